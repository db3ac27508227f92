"""`--config`: strict, overridden by options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli.commands.agent import agent
from holdfast.cli.commands.proxy import proxy
from holdfast.cli.commands.serve import serve
from holdfast.foundation.exit_codes import CommandError

# A command keeps the names of its help option from its first context, and the generated page shows them.
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def written(folder: Path, **changes: str) -> Path:
    """A valid file of the global cell, with changed lines; an empty one is left out."""
    (folder / "pem").write_text("x")
    pem = f'"{folder / "pem"}"'
    lines = {
        "cell": '"global"',
        "state": f'"{folder}"',
        "port": "7400",
        "tls_cert": pem,
        "tls_key": pem,
        "client_ca": pem,
        "tokens": '"tokens.json"',
        **changes,
    }
    path = folder / "global.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items() if value))
    return path


def check(path: Path, *options: str) -> str:
    done = CliRunner().invoke(serve, ["--config", str(path), "--check-config", *options], catch_exceptions=True, **HELP)
    if isinstance(done.exception, CommandError):
        return "\n".join(done.exception.lines())
    return done.output


def test_file_replaces_required_options(tmp_path: Path) -> None:
    assert "cell global: the settings are valid" in check(written(tmp_path))


def test_option_overrides_the_file(tmp_path: Path) -> None:
    assert "cell us-east" in check(written(tmp_path), "--cell", "us-east", "--global-url", "https://h:1")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prot": "7400"}, "unknown key prot; did you mean port?"),
        ({"xyzzy": "1"}, "unknown key xyzzy"),
        ({"config": '"a"'}, "unknown key config"),
        ({"port": '"many"'}, "'many' is not a valid integer"),
        ({"port": "[1]"}, "port: invalid (expected a text or a number, found list)"),
        ({"rebalance": '"yes"'}, "rebalance: invalid (expected true or false, found str)"),
        ({"port": ""}, "Missing option '--port'"),
        ({"client_ca": '"/missing"'}, "/missing: not readable"),
        ({"cell": "= ="}, "cannot read it"),
    ],
)
def test_wrong_file_is_refused_with_the_key(changes: dict[str, str], expected: str, tmp_path: Path) -> None:
    assert expected in check(written(tmp_path, **changes))


def test_agent_file_with_unknown_key_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('name = "n"\nregio = "us-east"\n')
    done = CliRunner().invoke(agent, ["--config", str(path), "--check-config"], **HELP)
    assert isinstance(done.exception, CommandError)
    assert "unknown key regio; did you mean region?" in done.exception.message


def test_agent_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        f'name = "n1"\nregion = "us-east"\nzone = "us-east-a"\nurl = "https://h:7401"\nstate_dir = "{tmp_path}"\n'
    )
    done = CliRunner().invoke(agent, ["--config", str(path), "--check-config"], **HELP)
    assert done.exception is None, done.exception
    assert "node n1: the settings are valid" in done.output


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        ('[[http]]\nport = 8080\ntenants = ["*"]\n', "proxy of us-east: the settings are valid"),
        ("", "no listener"),
        ("[[http]]\nprot = 1\n", "prot"),
    ],
)
def test_proxy_file_is_checked(tmp_path: Path, listener: str, expected: str) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text(f'region = "us-east"\n{listener}')
    words = ["--config", str(path), "--check-config", "--haproxy", "sh"]
    done = CliRunner().invoke(proxy, words, **HELP)
    said = "\n".join(done.exception.lines()) if isinstance(done.exception, CommandError) else done.output
    assert expected in said
