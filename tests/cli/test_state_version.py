"""Real programs refuse a state directory of a newer release, with the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.platforms import holdfast

from holdfast.agent.persisted_state import FileStateStore
from holdfast.model.errors import StoreFailed


def newer(folder: Path, kind: str) -> Path:
    folder.mkdir()
    (folder / "version.json").write_text(json.dumps({"format": 99, "holdfast": "9.9.9", "kind": kind}))
    return folder


def test_cell_refuses_the_directory_of_a_newer_release(tmp_path: Path) -> None:
    state = newer(tmp_path / "state", "cell")
    nothing = str(tmp_path / "none")
    for name in ("none", "tokens.json"):
        (tmp_path / name).write_text("[]")
    tls = (
        "--tls-cert",
        nothing,
        "--tls-key",
        nothing,
        "--client-ca",
        nothing,
        "--tokens",
        str(tmp_path / "tokens.json"),
    )
    ended = holdfast("serve", "--cell", "global", "--state", str(state), "--port", "7499", *tls, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "written by a newer release (expected format 1 or older, found 99 of holdfast 9.9.9)" in ended.stderr
    assert "next: " in ended.stderr and "Traceback" not in ended.stderr


def test_agent_refuses_the_directory_of_a_newer_release(tmp_path: Path) -> None:
    state = newer(tmp_path / "state", "agent")
    node = ("--name", "n", "--region", "us-east", "--zone", "a", "--url", "https://127.0.0.1:1")
    ended = holdfast("agent", *node, "--state", str(state), check=False)
    assert ended.returncode == 1, ended.stderr
    assert "written by a newer release" in ended.stderr and "next: start that release" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_refused_directory_is_not_left_locked(tmp_path: Path) -> None:
    state = newer(tmp_path / "state", "agent")
    with pytest.raises(StoreFailed):
        FileStateStore(state)
    (state / "version.json").unlink()
    FileStateStore(state).close()
    assert json.loads((state / "version.json").read_text())["format"] == 1
