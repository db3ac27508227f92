"""A killed process, a full disk, a second process: no acknowledged commit is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.expected import present
from tests.store.witness import Witness

from holdfast.model.errors import StoreFailed
from holdfast.store.sqlite import SqliteStore

CHILD = Path(__file__).with_name("writing_child.py")
KILLS = int(os.environ.get("HOLDFAST_KILLS", "50"))


def start(path: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), str(path), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
async def test_sigkill_at_any_moment_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    path, witness, chance = tmp_path / "cell.db", Witness(), random.Random(11)
    for kill in range(KILLS):
        child = start(path, kill)
        lines = [present(child.stdout).readline()]
        assert lines[0].startswith("open")
        deadline = time.monotonic() + chance.uniform(0.0, 0.15)
        while time.monotonic() < deadline:
            lines.append(present(child.stdout).readline())
        child.kill()
        lines += present(child.stdout).read().splitlines(keepends=True)
        present(child.stdout).close()
        child.wait()
        # The last line may be truncated.
        witness.read([line for line in lines if line.endswith("\n")])
        await witness.check(path)
    assert witness.acknowledgements > KILLS


async def test_full_disk_refuses_writes_and_continues_by_itself(tmp_path: Path) -> None:
    path, witness = tmp_path / "cell.db", Witness()
    child = start(path, "full", 300_000)
    try:
        lines = child.communicate(timeout=60)[0].splitlines(keepends=True)
    finally:
        child.kill()
    assert child.returncode == 0
    said = [line.split()[0] for line in lines]
    assert [line for line in lines if line.startswith("refused")] == ["refused True\n"] * 2
    assert said.index("refused") < said.index("answered") < said.index("resumed")
    assert said[-1] == "closed"
    full = said.index("refused")
    assert said[:full].count("ack") > 10 and said[full:].count("ack") > 10
    witness.read(lines)
    await witness.check(path)


async def test_second_process_on_store_file_is_refused(tmp_path: Path) -> None:
    child = start(tmp_path / "cell.db", "lock")
    assert present(child.stdout).readline().startswith("open")
    with pytest.raises(StoreFailed, match=f"in use by process {child.pid}"):
        SqliteStore(tmp_path / "cell.db")
    child.kill()
    present(child.stdout).close()
    child.wait()
    await SqliteStore(tmp_path / "cell.db").close()
