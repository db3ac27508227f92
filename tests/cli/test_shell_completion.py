"""Shell completion, from the program and from a reachable platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from holdfast.cli.app import holdfast, run
from holdfast.foundation.exit_codes import ExitCode


def completions(*arguments: str, incomplete: str = "") -> list[str]:
    return [
        item.value
        for item in ShellComplete(holdfast, {}, "holdfast", "_X").get_completions(list(arguments), incomplete)
    ]


def test_completion_offers_commands_kinds_and_drills() -> None:
    assert "drill" in completions(incomplete="dr")
    assert completions("get", incomplete="nodep") == ["nodepools"]
    assert completions("drill", "run", incomplete="region-l") == ["region-loss"]


def test_completion_without_platform_offers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "none"))
    assert completions("explain", incomplete="pay") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_each_shell(shell: str, capsys: Any) -> None:
    assert run(["completion", shell]) == ExitCode.OK
    assert "_HOLDFAST_COMPLETE" in capsys.readouterr().out
