"""A downgraded agent reads the files of the next release: persisted state, tasks and run records."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.agent.drivers.contract import Task
from holdfast.agent.drivers.records import TaskDir, TaskRecord
from holdfast.agent.persisted_state import FileStateStore, PersistedState
from holdfast.agent.shim import write_record
from holdfast.model.template import Template
from holdfast.sim.releases import UNKNOWN, ReleaseVersion, written_by


def rewritten(path: Path, kind: type[msgspec.Struct]) -> None:
    """The file as the next release writes it."""
    tree = written_by(ReleaseVersion.NEXT, kind, msgspec.json.decode(path.read_bytes()))
    path.write_bytes(msgspec.json.encode(tree))
    assert UNKNOWN.encode() in path.read_bytes()


def test_persisted_state_of_next_release_is_read(tmp_path: Path) -> None:
    first = FileStateStore(tmp_path)
    first.save(
        PersistedState(epoch=7, fenced_epoch=6, lease_until_mono_s=5.0, incarnation=2, identity="one", started_s=9)
    )
    first.close()
    rewritten(tmp_path / "agent.json", PersistedState)
    again = FileStateStore(tmp_path)
    assert again.load().durable_fields == (7, 6, 2, "one", 9)
    again.close()


def test_task_records_of_next_release_are_read(tmp_path: Path) -> None:
    task = Task("t", 2, "acme", "r", "u", "w", "b", "bu", 1, 1, 1, Template(command=("true",)), {"A": "b"})
    folder = TaskDir(tmp_path / "t")
    folder.prepare(task, {"A": "b"})
    rewritten(folder.path / "task.json", TaskRecord)
    write_record(
        str(folder.run_dir(2) / "exit"),
        {"code": "3", "signal": "", "reason": "Exited", "message": "", "at": "12.5", UNKNOWN: "x"},
    )
    read = TaskDir(tmp_path / "t").read()
    assert read is not None and read.task == task
    left = folder.exit(2)
    assert left is not None and (left.code, left.reason) == (3, "Exited")
