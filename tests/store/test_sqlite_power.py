"""Power loss at any moment: nothing acknowledged or visible is lost, and the file is intact.

A process writes on a recorded disk (`power.py`). The record is then cut at many points, and each possible disk state is
opened as a store. `HOLDFAST_POWER_LOSSES` sets how often.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.power import Disk, Event
from tests.store.witness import Witness

ROOT = Path(__file__).parents[2]
LOSSES = int(os.environ.get("HOLDFAST_POWER_LOSSES", "1000"))
LOSSES_PER_LIFE = 100
COMMITS_PER_LIFE = 120
LIVES_PER_FILE = 4
"""After so many lives a new file is begun, or the files would only grow."""


def live(folder: Path, seed: int, synchronous: str = "FULL") -> list[Event]:
    """Runs one process on the files in `folder` and returns its disk record."""
    record = folder.with_name("record")
    arguments = [folder / "cell.db", record, seed, COMMITS_PER_LIFE, synchronous]
    command = [sys.executable, "-m", "tests.store.power_child", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    events: list[Event] = pickle.loads(record.read_bytes())
    return events


class PowerLossRun:
    """Runs on one file, each ended by a power loss; the last state of a run is the start of the next."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._chance = chance
        self._files: dict[str, bytes] = {}
        self._witness = Witness()
        self.losses = 0

    async def live_and_lose(self, times: int, synchronous: str = "FULL") -> None:
        running, ruin = self._folder / "running", self._folder / "ruin"
        self._lay_out(running, self._files)
        events = live(running, self._chance.randrange(2**32), synchronous)
        disk, left = Disk(self._files), self._files
        moments = sorted(self._chance.randrange(len(events) + 1) for _ in range(times))
        done = 0
        for moment in moments:
            for event in events[done:moment]:
                disk.happen(event)
                if event[0] == "output":
                    self._witness.read([event[1]])
            done = moment
            left = disk.lose_power(self._chance)
            self._lay_out(ruin, left)
            await self._witness.check(ruin / "cell.db")
            self.losses += 1
        self._files = left

    def _lay_out(self, folder: Path, files: dict[str, bytes]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.timeout(120 + LOSSES // 5)
async def test_power_loss_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    chance, losses, life = random.Random(5), 0, PowerLossRun(tmp_path, random.Random(0))
    for number in range((LOSSES + LOSSES_PER_LIFE - 1) // LOSSES_PER_LIFE):
        if number % LIVES_PER_FILE == 0:
            life = PowerLossRun(tmp_path, chance)
        await life.live_and_lose(min(LOSSES_PER_LIFE, LOSSES - losses))
        losses += min(LOSSES_PER_LIFE, LOSSES - losses)
    assert losses == LOSSES


@pytest.mark.slow
async def test_store_without_full_sync_fails_power_loss_check(tmp_path: Path) -> None:
    """SQLite's synchronous=NORMAL keeps the file intact and survives every kill, but loses acknowledged commits."""
    life = PowerLossRun(tmp_path, random.Random(0))
    with pytest.raises(AssertionError, match=r"visible|lost"):
        await life.live_and_lose(LOSSES_PER_LIFE, synchronous="NORMAL")
