"""Help, exit codes and output of every command, without a platform behind them."""

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


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_every_command_explains_itself(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert done.returncode == ExitCode.OK
    assert "Example" in done.stdout
    assert not done.stderr


def test_the_list_of_commands_and_exit_codes(run: Run) -> None:
    done = run("--help")
    assert done.returncode == ExitCode.OK
    for name in COMMANDS:
        assert f"  {name} " in done.stdout
    for meaning in EXIT_CODE_MEANINGS.values():
        assert meaning in " ".join(done.stdout.split())


def test_wrong_command_lines_exit_with_two_and_say_what_was_meant(run: Run) -> None:
    done = run("stauts")
    assert done.returncode == ExitCode.USAGE
    assert "did you mean 'status'" in done.stderr
    assert run("status", "--no-such-flag").returncode == ExitCode.USAGE
    assert run("status", "-o", "xml").returncode == ExitCode.USAGE
    assert run().returncode == ExitCode.USAGE
    assert run("up", "--regions", "Not_A_Name").returncode == ExitCode.USAGE
    assert run("up", "--regions", "a,a").returncode == ExitCode.USAGE
    assert run("up", "--port-base", "65500").returncode == ExitCode.USAGE
    assert run("endpoints", "no-slash").returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    "words", [("status",), ("kubeconfig",), ("logs", "x"), ("endpoints", "a/b"), ("token", "list")], ids=" ".join
)
def test_without_a_platform_commands_say_how_to_get_one(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == ExitCode.UNREACHABLE
    assert done.stdout == ""
    assert done.stderr.startswith("error: platform ")
    assert "\nnext: holdfast up" in done.stderr


def test_nothing_to_stop_is_not_an_error(run: Run) -> None:
    done = run("down", "-o", "json")
    assert done.returncode == ExitCode.OK
    assert json.loads(done.stdout)["stopped"] is False


def test_down_refuses_a_directory_that_is_no_platform(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete\n")
    done = run("down", "--state", "mine", "--purge")
    assert done.returncode == ExitCode.USAGE
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_version(run: Run) -> None:
    assert json.loads(run("version", "-o", "json").stdout)["holdfast"]
    assert run("version").stdout.startswith("holdfast ")
    assert run("--version").stdout.startswith("holdfast ")


def test_status_of_a_platform_that_is_down(run: Run, platform: Platform) -> None:
    done = run("status", "-o", "json")
    assert done.returncode == ExitCode.UNREACHABLE
    told = json.loads(done.stdout)
    assert [cell["name"] for cell in told["cells"]] == ["global", "us-east", "eu-west"]
    assert not any(cell["ready"] for cell in told["cells"])
    assert told["supervisorPid"] == 0
    text = run("status")
    assert text.returncode == ExitCode.UNREACHABLE
    assert "no supervisor" in text.stdout


def test_no_escape_codes_where_nobody_looks(run: Run, platform: Platform) -> None:
    for done in (run("status"), run("status", NO_COLOR="1"), run("--help")):
        assert "\x1b" not in done.stdout + done.stderr


def test_kubeconfig_has_a_context_per_cell_and_everything_inside(run: Run, platform: Platform, layout: Layout) -> None:
    done = run("kubeconfig")
    assert done.returncode == ExitCode.OK
    config = json.loads(done.stdout)
    assert [context["name"] for context in config["contexts"]] == ["global", "us-east", "eu-west"]
    assert config["current-context"] == "global"
    assert [cluster["cluster"]["server"] for cluster in config["clusters"]] == [url for _, url in platform.cells]
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]).startswith(b"-----BEGIN CERTIFICATE")
    assert base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    assert json.loads(layout.kubeconfig.read_text()) == config
    assert stat.S_IMODE(layout.kubeconfig.stat().st_mode) == 0o600


def test_kubeconfig_never_replaces_a_file_silently(run: Run, platform: Platform, tmp_path: Path) -> None:
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


def test_tokens_are_shown_once_and_revoked(run: Run, platform: Platform, layout: Layout) -> None:
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
    assert run("token", "revoke", "ci").returncode == ExitCode.OK
    assert run("token", "revoke", "ci").returncode == ExitCode.FAILED
    assert run("token", "create", "x", "--viewer", "--expires", "soon").returncode == ExitCode.USAGE
    assert stat.S_IMODE(layout.tokens.stat().st_mode) == 0o600


def test_secrets_are_readable_by_their_owner_alone(platform: Platform, layout: Layout) -> None:
    for path in layout.root.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700


def test_up_refuses_other_options_than_the_platform_was_made_with(run: Run, platform: Platform) -> None:
    done = run("up", "--detach", "--port-base", "61500")
    assert done.returncode == ExitCode.CONFLICT
    assert "--port-base" in done.stderr
    assert "next:" in done.stderr


def test_a_reader_that_goes_away_is_no_failure(platform: Platform, layout: Layout, tmp_path: Path) -> None:
    import sys

    command = f"{sys.executable} -m holdfast.cli kubeconfig --state {layout.root} | head -c 5"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=tmp_path)
    assert "Traceback" not in done.stderr


def test_logs_of_a_replica_and_of_a_workload(run: Run, platform: Platform, layout: Layout) -> None:
    for replica, text in (("api-us-east-0", "first"), ("api-us-east-1", "second")):
        folder = layout.agent("us-east-1") / "tasks" / f"payments_{replica}"
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


def test_the_state_directory_comes_from_the_environment_too(run: Run, platform: Platform, layout: Layout) -> None:
    os.rename(layout.root, layout.root.with_name("elsewhere"))
    assert run("kubeconfig").returncode == ExitCode.UNREACHABLE
    assert run("kubeconfig", HOLDFAST_STATE=str(layout.root.with_name("elsewhere"))).returncode == ExitCode.OK
