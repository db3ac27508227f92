"""Shell completion, from the program and from a reachable platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from holdfast.cli import shell_completion
from holdfast.cli.app import holdfast, run
from holdfast.foundation.exit_codes import ExitCode

AGENTS = ("agent", "hollow", "node join")
"""Commands that run or install agents: their `--state` is the agent's own directory."""


def completions(*arguments: str, incomplete: str = "") -> list[str]:
    return [
        item.value
        for item in ShellComplete(holdfast, {}, "holdfast", "_X").get_completions(list(arguments), incomplete)
    ]


def test_completion_offers_commands_kinds_and_drills() -> None:
    assert "drill" in completions(incomplete="dr")
    assert completions("get", incomplete="nodep") == ["nodepools"]
    assert completions("drill", "run", incomplete="region-l") == ["region-loss"]


def parameters(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    """Parameters of every command that reads a platform, with the command's words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from parameters(found, (*path, name))
    elif any("--state" in parameter.opts for parameter in command.params):
        yield from ((" ".join(path), parameter) for parameter in command.params)


def test_every_region_tenant_and_node_of_a_command_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def names(context: click.Context, plural: str, begun: str) -> list[str]:
        asked.append(plural)
        return []

    monkeypatch.setattr(shell_completion, "_names", names)
    plurals = {"--region": "regions", "--tenant": "tenants", "--node": "nodes"}
    seen = 0
    for command, parameter in parameters(holdfast):
        for option in set(parameter.opts) & set(plurals):
            asked.clear()
            parameter.shell_complete(click.Context(holdfast), "x")
            assert asked == [plurals[option]] or command in AGENTS, (command, option)
            seen += 1
    assert seen > 20


def test_completion_without_platform_offers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "none"))
    assert completions("explain", incomplete="pay") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_each_shell(shell: str, capsys: Any) -> None:
    assert run(["completion", shell]) == ExitCode.OK
    assert "_HOLDFAST_COMPLETE" in capsys.readouterr().out
