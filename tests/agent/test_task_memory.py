"""Values of tasks in memory: permissions, updates, links of a hostile task, and removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.shim_launch import read_values
from holdfast.agent.task_memory import TaskMemory, find_tmpfs, link_into
from holdfast.model.config_values import TaskFile, TaskValues

VALUES = TaskValues(
    env={"TOKEN": b"a=b", "OTHER": b"\xff\n"},
    files=(TaskFile("creds/token", 0o400, b"one", True), TaskFile("app.conf", 0o444, b"x", True)),
)


@pytest.fixture
def memory(tmp_path: Path) -> TaskMemory:
    (tmp_path / "shm").mkdir()
    return TaskMemory(tmp_path / "state", tmp_path / "shm")


def test_values_are_written_with_closed_permissions_and_read_by_the_shim(memory: TaskMemory) -> None:
    assert not memory.holds("t")
    memory.write("t", VALUES)
    assert memory.holds("t")
    assert read_values(str(memory.env_file("t"))) == {b"TOKEN": b"a=b", b"OTHER": b"\xff\n"}
    assert memory.env_file("t").stat().st_mode & 0o777 == 0o600
    token = memory.files_dir("t") / "creds" / "token"
    assert token.read_bytes() == b"one" and token.stat().st_mode & 0o777 == 0o400
    assert memory.files_dir("t").stat().st_mode & 0o777 == 0o700
    assert read_values(str(memory.env_file("gone"))) == {}


def test_update_replaces_changed_files_only(memory: TaskMemory) -> None:
    memory.write("t", VALUES)
    kept = (memory.files_dir("t") / "app.conf").stat().st_ino
    changed = (TaskFile("creds/token", 0o400, b"two", True), VALUES.files[1], TaskFile("creds/new", 0o400, b"n", True))
    assert memory.update("t", changed) == 2
    assert (memory.files_dir("t") / "creds" / "token").read_bytes() == b"two"
    assert (memory.files_dir("t") / "creds" / "new").read_bytes() == b"n"
    assert (memory.files_dir("t") / "app.conf").stat().st_ino == kept
    assert memory.update("never started", changed) == 0


def test_links_of_the_task_are_not_followed(memory: TaskMemory, tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    for folder in (outside, work):
        folder.mkdir()
    memory.write("t", VALUES)
    creds = memory.files_dir("t") / "creds"
    (creds / "token").unlink()
    creds.rmdir()
    creds.symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        memory.update("t", VALUES.files)
    assert list(outside.iterdir()) == []
    (memory.files_dir("t") / "app.conf").unlink()
    (memory.files_dir("t") / "app.conf").symlink_to(outside / "app.conf")
    memory.update("t", VALUES.files[1:])
    assert list(outside.iterdir()) == []
    (work / "creds").symlink_to(outside)
    link_into(work, memory.files_dir("t"), ["creds/token", "app.conf"], None)
    assert os.readlink(work / "creds") == str(memory.files_dir("t") / "creds")
    assert list(outside.iterdir()) == []


def test_directory_of_somebody_else_is_refused(memory: TaskMemory, tmp_path: Path) -> None:
    memory.write("t", VALUES)
    root = memory.files_dir("t").parents[1]
    root.chmod(0o777)
    with pytest.raises(PermissionError, match="not owned by the agent"):
        memory.write("t", VALUES)


def test_values_of_forgotten_and_unknown_tasks_are_removed(memory: TaskMemory) -> None:
    for task in ("a", "b", "c"):
        memory.write(task, VALUES)
    memory.remove("a")
    memory.keep_only(["b"])
    assert [memory.holds(task) for task in ("a", "b", "c")] == [False, True, False]


def test_found_place_is_a_tmpfs() -> None:
    place = find_tmpfs()
    if place is None:
        pytest.skip("this machine has no tmpfs at /dev/shm or /run")
    assert any(
        line.split()[1:3] == [str(place), "tmpfs"] for line in Path("/proc/self/mounts").read_text().splitlines()
    )
