"""Reads task logs from the directories of local agents, for one replica or for all replicas of a workload."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.agent.logs import StoredLogLine, log_files, parse_line
from holdfast.model.task_programs import MAIN_PROGRAM
from holdfast.platform.layout import Layout
from holdfast.platform.processes import task_folders


class LogLocation(msgspec.Struct, frozen=True):
    replica: str
    line: StoredLogLine


def log_line(row: dict[str, str]) -> StoredLogLine:
    """Decodes a log line that an agent sent."""
    return StoredLogLine(at=row.get("at", ""), stream=row.get("stream", "stdout"), text=row.get("text", ""))


class TaskLog:
    """Log of the newest task of one replica. `read_new` continues where `last` stopped."""

    def __init__(self, path: Path, *, tenant: str, replica: str) -> None:
        self.path = path
        self.tenant = tenant
        self.replica = replica
        self._inode = 0
        self._offset = 0

    def last(self, count: int) -> list[LogLocation]:
        """The last lines, across rotated files."""
        lines: list[bytes] = []
        for part in log_files(self.path):
            try:
                with part.open("rb") as file:
                    lines = (lines + list(file))[-count:] if count else []
                    if part == self.path:
                        file.seek(0, os.SEEK_END)
                        self._inode, self._offset = os.fstat(file.fileno()).st_ino, file.tell()
            except FileNotFoundError:
                continue  # deleted by a rotation
        return [LogLocation(self.replica, parse_line(raw.rstrip(b"\n"))) for raw in lines]

    def read_new(self) -> Iterator[LogLocation]:
        """New complete lines. After a rotation the new file is read from its start."""
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                for raw in file:
                    if not raw.endswith(b"\n"):
                        return
                    self._offset += len(raw)
                    yield LogLocation(self.replica, parse_line(raw.rstrip(b"\n")))
        except FileNotFoundError:
            return


def find_logs(layout: Layout, name: str, program: str = "") -> list[TaskLog]:
    """Logs of the newest task of each matching replica. The name is a replica or a workload, `program` an init task or
    a sidecar of it.
    """
    file = "output.log" if program in ("", MAIN_PROGRAM) else f"program-{Path(program).name}.log"
    tenant, _, own = name.rpartition("/")
    newest: dict[tuple[str, str], tuple[float, TaskLog]] = {}
    folders = [folder for agent in layout.root.glob("agents/*") for folder in task_folders(agent)]
    for path in (folder / "task.json" for folder in folders):
        try:
            task = json.loads(path.read_bytes())["task"]
            written = path.stat().st_mtime
        except (OSError, ValueError, KeyError):
            continue  # removed, or not completely written
        if (tenant and task["namespace"] != tenant) or own not in (task["replica"], task["workload"]):
            continue
        log = TaskLog(path.with_name(file), tenant=task["namespace"], replica=task["replica"])
        key = (log.tenant, log.replica)
        if key not in newest or newest[key][0] < written:
            newest[key] = (written, log)
    return [log for _, (_, log) in sorted(newest.items())]
