"""A killed process, a full disk, a second process: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from holdfast.model.errors import StoreFailed
from holdfast.store.sqlite import SqliteStore

CHILD = Path(__file__).with_name("writing_child.py")
KILLS = int(os.environ.get("HOLDFAST_KILLS", "20"))


def start(path: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), str(path), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Witness:
    """What processes were told, over all their lives, checked against the file after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: dict[str, tuple[int, str]] = {}
        self.values: set[str] = set()
        self.told = 0
        self.seen = 0

    def hear(self, lines: list[str]) -> None:
        for line in lines:
            match line.split():
                case ["ack", key, value, revision]:
                    self.told += 1
                    self.seen = max(self.seen, int(revision))
                    self.acknowledged[key] = max(self.acknowledged.get(key, (0, "")), (int(revision), value))
                    self.values.add(value)
                case ["seen", _, revision]:
                    self.seen = max(self.seen, int(revision))
                case ["open", head]:
                    assert int(head) >= self.seen, "something visible was gone after a restart"

    async def check(self) -> None:
        store = SqliteStore(self.path)
        assert store.head >= self.seen
        for key, (revision, value) in self.acknowledged.items():
            entry = await store.get(key)
            assert entry is not None and entry.revision >= revision, f"{key} at {revision} was acknowledged and is lost"
            if entry.revision == revision:
                assert entry.value.split(b".")[0] == value.encode()
        log = {record.value.decode() for record in await store.read_log("audit", limit=1_000_000)}
        assert self.values <= log, "an audit record was lost"
        revisions = [change.revision for change in await self._history(store)]
        assert revisions == sorted(set(revisions))
        await store.close()
        connection = apsw.Connection(str(self.path))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()

    async def _history(self, store: SqliteStore):
        changes, after = [], store.compacted
        watch = store.watch("", after=after)
        while after < store.head:
            changes += await anext(watch)
            after = changes[-1].revision
        return changes


@pytest.mark.slow
async def test_killed_at_any_moment_nothing_acknowledged_is_lost(tmp_path):
    witness, chance = Witness(tmp_path / "cell.db"), random.Random(11)
    for kill in range(KILLS):
        child = start(witness.path, kill)
        lines = [child.stdout.readline()]
        assert lines[0].startswith("open")
        deadline = time.monotonic() + chance.uniform(0.0, 0.15)
        while time.monotonic() < deadline:
            lines.append(child.stdout.readline())
        child.kill()
        lines += child.stdout.read().splitlines(keepends=True)
        child.stdout.close()
        child.wait()
        # The last line may have been cut short.
        witness.hear([line for line in lines if line.endswith("\n")])
        await witness.check()
    assert witness.told > KILLS


async def test_a_full_disk_stops_the_store_and_loses_nothing(tmp_path):
    witness = Witness(tmp_path / "cell.db")
    child = start(witness.path, "full", 300_000)
    lines = child.communicate(timeout=60)[0].splitlines(keepends=True)
    assert child.returncode == 0
    assert lines[-6:] == ["failed True\n", *["refused\n"] * 4, "closed\n"]
    witness.hear(lines)
    assert witness.told > 10
    await witness.check()


async def test_two_processes_cannot_open_one_file(tmp_path):
    child = start(tmp_path / "cell.db", "lock")
    assert child.stdout.readline().startswith("open")
    with pytest.raises(StoreFailed, match=f"in use by process {child.pid}"):
        SqliteStore(tmp_path / "cell.db")
    child.kill()
    child.stdout.close()
    child.wait()
    await SqliteStore(tmp_path / "cell.db").close()
