"""What the shell is offered: from the program itself, and from a platform only if that answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from holdfast.cli.app import holdfast, run
from holdfast.foundation.exit_codes import ExitCode


def offered(*words: str, begun: str = "") -> list[str]:
    return [item.value for item in ShellComplete(holdfast, {}, "holdfast", "_X").get_completions(list(words), begun)]


def test_commands_kinds_and_drills_are_offered() -> None:
    assert "drill" in offered(begun="dr")
    assert offered("get", begun="nodep") == ["nodepools"]
    assert offered("drill", "run", begun="region") == ["region-loss"]


def test_a_platform_that_is_not_there_offers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "none"))
    assert offered("explain", begun="pay") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(shell: str, capsys: Any) -> None:
    assert run(["completion", shell]) == ExitCode.OK
    assert "_HOLDFAST_COMPLETE" in capsys.readouterr().out
