"""Every command on a damaged state directory ends with an `error:` and a `next:` line, and never with a traceback."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.cli.app import run
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.layout import Layout, Platform

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("get", "nodes"),
    ("top",),
    ("explain", "payments/risk-api"),
    ("why-not", "payments/risk-api-us-east-0", "us-east-1"),
    ("plan", "--lose-region", "us-east"),
    ("logs", "payments/risk-api"),
    ("logs", "payments/risk-api", "--api"),
    ("exec", "payments/risk-api-us-east-0", "--", "true"),
    ("endpoints", "payments/risk-api"),
    ("node", "cordon", "us-east-1"),
    ("pool", "list"),
    ("rollout", "history", "payments/risk-api"),
    ("policy", "list"),
    ("override", "list"),
    ("drill", "list"),
    ("drill", "report"),
    ("readiness",),
    ("repair", "list"),
    ("cleanup-check",),
    ("audit",),
    ("kubeconfig",),
    ("token", "list"),
    ("credentials", "list"),
    ("console",),
    ("down",),
)

Damage = Callable[[Path], None]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(200))


def _other_json(path: Path) -> None:
    path.write_bytes(b'[{"a": [1, null]}]')


def _remove(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES: tuple[Damage, ...] = (_truncate, _empty, _garbage, _other_json, _remove, _directory, _loop)


def check_ends_properly(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code = run(arguments)
    printed = capsys.readouterr()
    what = f"holdfast {' '.join(arguments)}: {code}\n{printed.out}{printed.err}"
    assert "Traceback" not in printed.err and "unexpected failure" not in printed.err, what
    assert code in set(ExitCode), what
    assert printed.out + printed.err, f"{what}: says nothing"
    if "error:" in printed.err and code != ExitCode.USAGE:
        assert "next:" in printed.err, what


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__.strip("_"))
def test_every_command_survives_each_damaged_file(  # noqa: PLR0917 - fixtures
    layout: Layout,
    platform: Platform,
    damage: Damage,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    read = ("platform.json", "kubeconfig", "tokens.json", "pki/ca.crt", "pki/operator.crt", "pki/operator.key")
    whole = tmp_path / "whole"
    shutil.copytree(layout.root, whole, symlinks=True)
    for name in read:
        shutil.rmtree(layout.root)
        shutil.copytree(whole, layout.root, symlinks=True)
        path = layout.root / name
        if not path.exists():
            path.write_text("{}")
        damage(path)
        for arguments in COMMANDS:
            check_ends_properly(arguments, capsys)


@pytest.mark.parametrize(
    "state", ["/dev/null", "/proc/self/mem", "/etc/passwd/x", "x" * 300, "nul\udcffname", "", "/", "loop"]
)
def test_every_command_survives_an_impossible_state_path(
    state: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    for arguments in COMMANDS:
        if arguments[0] == "drill" or "--" in arguments:
            continue
        check_ends_properly((*arguments, "--state", state), capsys)


def test_down_without_a_platform_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for state in ("absent", "empty"):
        assert run(("down", "--state", state)) == ExitCode.UNREACHABLE
        assert "platform.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "clusters: 7", "a: [", "\0\1", "kind: Config\ncontexts:\n- name: global\n"])
def test_unreadable_kubeconfig_is_named(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    for arguments in (("status",), ("get", "nodes"), ("top",)):
        check_ends_properly((*arguments, "--state", str(path)), capsys)


def test_full_disk_and_closed_pipe_end_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "drill", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == ExitCode.FAILED and "Traceback" not in done.stderr
    assert "error:" in done.stderr and "next: free space" in done.stderr
    read, write = os.pipe()
    os.close(read)
    closed = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert "Traceback" not in closed.stderr and "Exception" not in closed.stderr


def test_interrupted_command_says_so_and_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.drills.catalog.DRILLS", _Interrupting())
    assert run(("drill", "list")) == ExitCode.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


class _Interrupting(dict[str, object]):
    """Raises KeyboardInterrupt as soon as it is read, as Ctrl-C does."""

    def items(self) -> NoReturn:
        raise KeyboardInterrupt

    values = __iter__ = items
