"""Help, exit codes and output of commands without a running platform."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.app import COMMANDS
from holdfast.foundation.exit_codes import EXIT_CODE_MEANINGS, ExitCode
from holdfast.platform.layout import Layout, Platform

Run = Callable[..., subprocess.CompletedProcess[str]]
SUBCOMMANDS = [(name,) for name in COMMANDS] + [("token", "create"), ("token", "list"), ("token", "revoke")]


@pytest.mark.parametrize("arguments", SUBCOMMANDS, ids=" ".join)
def test_every_command_has_help(run: Run, arguments: tuple[str, ...]) -> None:
    completed = run(*arguments, "--help")
    assert completed.returncode == ExitCode.OK
    assert "Example" in completed.stdout
    assert not completed.stderr


def test_help_lists_commands_and_exit_codes(run: Run) -> None:
    completed = run("--help")
    assert completed.returncode == ExitCode.OK
    for name in COMMANDS:
        assert f"  {name} " in completed.stdout
    for meaning in EXIT_CODE_MEANINGS.values():
        assert meaning in " ".join(completed.stdout.split())


def test_wrong_command_line_exits_with_usage_and_suggestion(run: Run) -> None:
    completed = run("stauts")
    assert completed.returncode == ExitCode.USAGE
    assert "did you mean 'status'" in completed.stderr
    assert run("status", "--no-such-flag").returncode == ExitCode.USAGE
    assert run("status", "-o", "xml").returncode == ExitCode.USAGE
    assert run().returncode == ExitCode.USAGE
    assert run("up", "--regions", "Not_A_Name").returncode == ExitCode.USAGE
    assert run("up", "--regions", "a,a").returncode == ExitCode.USAGE
    assert run("up", "--port-base", "65500").returncode == ExitCode.USAGE
    assert run("endpoints", "no-slash").returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    "arguments", [("status",), ("kubeconfig",), ("logs", "x"), ("endpoints", "a/b"), ("token", "list")], ids=" ".join
)
def test_command_without_platform_names_next_step(run: Run, arguments: tuple[str, ...]) -> None:
    completed = run(*arguments)
    assert completed.returncode == ExitCode.UNREACHABLE
    assert completed.stdout == ""
    assert completed.stderr.startswith("error: platform ")
    assert "\nnext: holdfast up" in completed.stderr


def test_down_of_a_platform_that_does_not_run_succeeds(run: Run, platform: Platform) -> None:
    completed = run("down", "-o", "json")
    assert completed.returncode == ExitCode.OK
    assert json.loads(completed.stdout)["stopped"] is False


def test_down_refuses_a_directory_without_platform(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete\n")
    completed = run("down", "--state", "mine", "--purge")
    assert completed.returncode == ExitCode.UNREACHABLE
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_version_prints_name_and_version(run: Run) -> None:
    assert json.loads(run("version", "-o", "json").stdout)["holdfast"]
    assert run("version").stdout.startswith("holdfast ")
    assert run("--version").stdout.startswith("holdfast ")


def test_status_of_a_stopped_platform_is_not_serving(run: Run, platform: Platform) -> None:
    completed = run("status", "-o", "json")
    assert completed.returncode == ExitCode.UNREACHABLE
    status = json.loads(completed.stdout)
    assert [cell["name"] for cell in status["cells"]] == ["global", "us-east", "eu-west"]
    assert not any(cell["ready"] for cell in status["cells"])
    assert status["supervisorPid"] is None
    text = run("status")
    assert text.returncode == ExitCode.UNREACHABLE
    assert "no supervisor" in text.stdout


def test_output_without_terminal_has_no_escape_codes(run: Run, platform: Platform) -> None:
    for completed in (run("status"), run("status", NO_COLOR="1"), run("--help")):
        assert "\x1b" not in completed.stdout + completed.stderr


def test_kubeconfig_has_a_context_per_cell_with_embedded_keys(run: Run, platform: Platform, layout: Layout) -> None:
    completed = run("kubeconfig")
    assert completed.returncode == ExitCode.OK
    config = json.loads(completed.stdout)
    assert [context["name"] for context in config["contexts"]] == ["global", "us-east", "eu-west"]
    assert config["current-context"] == "global"
    assert [cluster["cluster"]["server"] for cluster in config["clusters"]] == [url for _, url in platform.cells]
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]).startswith(b"-----BEGIN CERTIFICATE")
    assert base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    assert json.loads(layout.kubeconfig.read_text()) == config
    assert stat.S_IMODE(layout.kubeconfig.stat().st_mode) == 0o600


def test_kubeconfig_does_not_overwrite_without_force(run: Run, platform: Platform, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text("mine\n")
    run("kubeconfig", HOME=str(home))
    refused = run("kubeconfig", "--write", str(home / ".kube" / "config"), HOME=str(home))
    assert refused.returncode == ExitCode.CONFLICT
    assert (home / ".kube" / "config").read_text() == "mine\n"
    assert run("kubeconfig", "--write", "new.yaml").returncode == ExitCode.OK
    assert run("kubeconfig", "--write", "new.yaml", "--force", "--token", "hf_x").returncode == ExitCode.OK
    assert json.loads((tmp_path / "new.yaml").read_text())["users"][0]["user"] == {"token": "hf_x"}


def test_token_is_shown_once_and_revoked(run: Run, platform: Platform, layout: Layout) -> None:
    assert run("token", "create", "idle").returncode == ExitCode.USAGE
    made = run("token", "create", "ci", "--tenant", "payments", "--expires", "30d", "-o", "json")
    assert made.returncode == ExitCode.OK
    secret = json.loads(made.stdout)["token"]
    assert secret not in layout.tokens.read_text()
    assert run("token", "create", "ci", "--viewer").returncode == ExitCode.CONFLICT
    listed = json.loads(run("token", "list", "-o", "json").stdout)
    assert [token["name"] for token in listed] == ["ci"]
    assert listed[0]["groups"] == ["holdfast:tenant:payments"]
    assert "ci" in run("token", "list").stdout
    assert run("token", "create", "prometheus", "--monitor").returncode == ExitCode.OK
    listed = json.loads(run("token", "list", "-o", "json").stdout)
    assert {token["name"]: token["groups"] for token in listed}["prometheus"] == ["holdfast:monitors"]
    assert run("token", "revoke", "ci").returncode == ExitCode.OK
    assert run("token", "revoke", "ci").returncode == ExitCode.FAILED
    assert run("token", "create", "x", "--viewer", "--expires", "soon").returncode == ExitCode.USAGE
    assert stat.S_IMODE(layout.tokens.stat().st_mode) == 0o600


def test_secret_files_are_private(platform: Platform, layout: Layout) -> None:
    for path in layout.root.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700


def test_up_with_other_options_is_refused(run: Run, platform: Platform) -> None:
    completed = run("up", "--detach", "--port-base", "61500")
    assert completed.returncode == ExitCode.CONFLICT
    assert "--port-base" in completed.stderr
    assert "next:" in completed.stderr


def test_closed_output_pipe_prints_no_traceback(platform: Platform, layout: Layout, tmp_path: Path) -> None:
    import sys

    command = f"{sys.executable} -m holdfast.cli kubeconfig --state {layout.root} | head -c 5"
    completed = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=tmp_path
    )
    assert "Traceback" not in completed.stderr


def test_logs_show_one_replica_or_a_workload(run: Run, platform: Platform, layout: Layout) -> None:
    for replica, text, part in (("api-us-east-0", "first", "tasks"), ("api-us-east-1", "second", "oci/tasks")):
        folder = layout.agent("us-east-1") / part / f"payments_{replica}"
        folder.mkdir(parents=True)
        task = {"namespace": "payments", "replica": replica, "workload": "api"}
        (folder / "task.json").write_text(json.dumps({"task": task}))
        (folder / "output.log.1").write_text(f"2026-01-01T00:00:00.000000Z O older {text}\n")
        (folder / "output.log").write_text(f"2026-01-01T00:00:01.000000Z E {text}\n")
    assert run("logs", "api-us-east-0").stdout == "older first\nfirst\n"
    assert run("logs", "api-us-east-0", "--tail", "1").stdout == "first\n"
    both = run("logs", "payments/api", "--tail", "1").stdout
    assert "api-us-east-0  first" in both
    assert "api-us-east-1  second" in both
    lines = [json.loads(line) for line in run("logs", "api", "-o", "json").stdout.splitlines()]
    assert lines[-1]["stream"] == "stderr"
    assert len(lines) == 4
    assert run("logs", "search/api").returncode == ExitCode.FAILED


def test_state_directory_is_read_from_environment(run: Run, platform: Platform, layout: Layout) -> None:
    os.rename(layout.root, layout.root.with_name("elsewhere"))
    assert run("kubeconfig").returncode == ExitCode.UNREACHABLE
    assert run("kubeconfig", HOLDFAST_STATE=str(layout.root.with_name("elsewhere"))).returncode == ExitCode.OK


def test_watched_rows_are_printed_when_they_change_and_not_when_time_passes() -> None:
    from holdfast.cli.commands.get import changed_rows

    headers = ["CELL", "NAME", "STATUS", "AGE", "ANSWERED"]
    before: dict[tuple[str, ...], list[str]] = {("nodes", "west", "n1"): ["west", "n1", "Ready", "5s", "now"]}
    older: dict[tuple[str, ...], list[str]] = {("nodes", "west", "n1"): ["west", "n1", "Ready", "9s", "4s ago"]}
    assert changed_rows(headers, before, older) == []
    lost: dict[tuple[str, ...], list[str]] = {
        ("nodes", "west", "n1"): ["west", "n1", "NotReady", "9s", "now"],
        ("nodes", "west", "n2"): ["w"] * 5,
    }
    assert changed_rows(headers, before, lost) == list(lost.values())
