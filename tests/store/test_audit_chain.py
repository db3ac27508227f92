"""The chain and the checkpoints of an audit log: each kind of tampering is found, and honest histories are clean."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.cell.audit_checkpoints import AuditCheckpoints, load_or_make_key, read_checkpoints
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.audit_chain import verify
from holdfast.model.errors import Conflict
from holdfast.store.chained_log import GENESIS, is_linked, link_of, record_hash
from holdfast.store.contract import Append, Compare, Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

Records = list[tuple[int, bytes]]


def record(number: int) -> Append:
    return Append("audit", json.dumps({"time": "t", "principal": f"user {number}", "verb": "create"}).encode())


async def records_of(store: MemoryStore | SqliteStore) -> Records:
    return [(r.sequence, r.value) for r in await store.read_log("audit", limit=100_000)]


async def write(store: MemoryStore | SqliteStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        await store.commit(Txn(writes=(Put(f"/k/{number}", b"v"),), appends=(record(number),)))


async def test_chain_continues_across_restart_and_conflicts(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    await write(store, 0, 5)
    with pytest.raises(Conflict):
        await store.commit(Txn(compares=(Compare("/k/1", 0),), appends=(record(99),)))
    await store.close()
    store = SqliteStore(tmp_path / "cell.db")
    await write(store, 5, 5)
    found = await records_of(store)
    await store.close()
    assert [json.loads(value)["principal"] for _, value in found] == [f"user {n}" for n in range(10)]
    assert link_of(found[0][1]) == GENESIS
    assert all(link_of(b[1]) == record_hash(a[1]) for a, b in pairwise(found))


async def signed_log(folder: Path, *, parts: int = 3, size: int = 10) -> tuple[Records, Path]:
    store = SqliteStore(folder / "cell.db")
    checkpoints = AuditCheckpoints("global", folder, store, SystemPorts())
    await checkpoints.start()
    for part in range(parts):
        await write(store, part * size, size)
        assert await checkpoints.checkpoint() is not None
    assert await checkpoints.checkpoint() is None
    found = await records_of(store)
    await store.close()
    return found, folder


def findings(records: Records, folder: Path) -> list[str]:
    report = verify(records, read_checkpoints(folder), load_or_make_key(folder).public_key())
    return [f"{finding.sequence}: {finding.problem}" for finding in report.findings]


async def test_honest_log_is_clean_and_any_flipped_byte_is_found(tmp_path: Path) -> None:
    records, folder = await signed_log(tmp_path)
    assert findings(records, folder) == []
    dice = random.Random(7)
    for place, (sequence, value) in enumerate(records):
        at = dice.randrange(len(value))
        changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        assert findings([*records[:place], (sequence, changed), *records[place + 1 :]], folder), (sequence, at)


async def test_truncation_removal_and_forged_chains_are_found(tmp_path: Path) -> None:
    records, folder = await signed_log(tmp_path)
    assert any("truncated" in text for text in findings(records[:-1], folder))
    assert any("truncated" in text for text in findings([], folder))
    assert findings([*records[:4], *records[5:]], folder)
    assert any("records before it are missing" in text for text in findings(records[3:], folder))
    store = MemoryStore()  # a chain that was computed anew, as someone who owns the store could
    await write(store, 100, 30)
    assert findings(await records_of(store), folder)
    other = Ed25519PrivateKey.generate().public_key()
    assert verify(records, read_checkpoints(folder), other).findings
    lines = (folder / "audit-checkpoints.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "audit-checkpoints.jsonl").write_bytes(lines[0] + lines[2])
    assert any("one is missing" in text for text in findings(records, folder))


async def test_checkpoint_after_a_restore_says_so_and_verifies(tmp_path: Path) -> None:
    records, folder = await signed_log(tmp_path)
    (folder / "restored").mkdir()
    restored = SqliteStore(folder / "restored" / "cell.db")
    for _, value in records[:12]:
        await restored.commit(Txn(appends=(Append("audit", value),)))
    await write(restored, 50, 3)
    checkpoints = AuditCheckpoints("global", folder, restored, SystemPorts())
    await checkpoints.start()
    made = await checkpoints.checkpoint()
    assert made is not None and made.restarted
    found = await records_of(restored)
    await restored.close()
    assert [value for _, value in found[:12]] == [value for _, value in records[:12]]
    assert all(is_linked(value) for _, value in found)
    assert findings(found, folder) == []


async def test_changed_row_of_the_file_is_found(tmp_path: Path) -> None:
    _, folder = await signed_log(tmp_path)
    connection = apsw.Connection(str(folder / "cell.db"))
    with connection:
        connection.execute("UPDATE log SET value = replace(value, 'user 7', 'user 8') WHERE sequence = 8")
    connection.close()
    connection = apsw.Connection(str(folder / "cell.db"))
    found: list[Any] = connection.execute("SELECT sequence, CAST(value AS BLOB) FROM log").fetchall()
    connection.close()
    assert any(text.startswith("9: ") for text in findings([(int(n), bytes(v)) for n, v in found], folder))
