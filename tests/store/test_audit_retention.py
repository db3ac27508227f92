"""The audit log keeps its newest records: across restarts, and verifiable after each trim."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.cell import audit_checkpoints
from holdfast.cell.audit_checkpoints import AuditCheckpoints, load_or_make_key, read_checkpoints
from holdfast.foundation.ports import SystemPorts
from holdfast.gate import audit, audit_chain
from holdfast.gate.audit import AUDIT_LOG, AuditLog, decode_record
from holdfast.gate.audit_chain import ChainReport, verify
from holdfast.store.chained_log import GENESIS, link_of, record_hash
from holdfast.store.contract import LogRecord
from holdfast.store.sqlite import SqliteStore

KEPT, TRIM_EVERY = 50, 20


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (audit, audit_chain, audit_checkpoints):
        monkeypatch.setattr(module, "AUDIT_RECORDS_MAX", KEPT)
    monkeypatch.setattr(audit, "AUDIT_TRIM_EVERY_RECORDS", TRIM_EVERY)


class Life:
    """A process of the cell: its store, its audit log and its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder / "cell.db")
        self.log = AuditLog(self.store, SystemPorts())
        self.checkpoints = AuditCheckpoints("global", folder, self.store, SystemPorts())

    async def refuse(self, first: int, count: int) -> None:
        """One record each, as refusals that come one after the other have."""
        for number in range(first, first + count):
            self.log.record_refusal(f"user {number}", "get", "workloads", "Forbidden")
            await self.log.flush()

    async def records(self) -> tuple[LogRecord, ...]:
        return await self.store.read_log(AUDIT_LOG, limit=10_000)

    async def report(self) -> ChainReport:
        records = [(record.sequence, record.value) for record in await self.records()]
        return verify(records, read_checkpoints(self.folder), load_or_make_key(self.folder).public_key())


@asynccontextmanager
async def life(folder: Path) -> AsyncIterator[Life]:
    """Ends as a cell does: pending rows, the last checkpoint, the store."""
    made = Life(folder)
    await made.checkpoints.start()
    yield made
    await made.log.close()
    await made.checkpoints.stop()
    await made.store.close()


async def test_log_keeps_its_newest_records_across_restarts_and_verifies_after_each(tmp_path: Path) -> None:
    written = 0
    for part in (30, 45, 10, 40, 38, 1):  # a checkpoint is signed before its records are trimmed
        async with life(tmp_path) as cell:
            await cell.refuse(written, part // 2)
            assert await cell.checkpoints.checkpoint() is not None or not part // 2
            await cell.refuse(written + part // 2, part - part // 2)
            written += part
        async with life(tmp_path) as cell:
            records, report = await cell.records(), await cell.report()
            assert [finding.problem for finding in report.findings] == []
            assert report.restarts == 0 and report.signed_through == records[-1].sequence == written
            assert len(records) == min(written, KEPT)
            assert [r.sequence for r in records] == list(range(records[0].sequence, written + 1))
            assert all(link_of(b.value) == record_hash(a.value) for a, b in pairwise(records))
            assert (link_of(records[0].value) == GENESIS) == (written <= KEPT)
            assert decode_record(records[-1].value).principal == f"user {written - 1}"


async def test_log_of_a_cell_that_restarts_before_it_counts_enough_records_is_trimmed(tmp_path: Path) -> None:
    lives, each = 12, TRIM_EVERY - 5
    for number in range(lives):
        async with life(tmp_path) as cell:
            await cell.refuse(number * each, each)
    async with life(tmp_path) as cell:
        records = await cell.records()
        assert len(records) == KEPT
        assert records[-1].sequence == lives * each
        assert (await cell.report()).findings == ()


async def test_tampering_is_found_after_the_log_was_trimmed(tmp_path: Path) -> None:
    async with life(tmp_path) as cell:
        for start in range(0, 100, 10):
            await cell.refuse(start, 10)
            await cell.checkpoints.checkpoint()
    async with life(tmp_path) as cell:
        held = [(record.sequence, record.value) for record in await cell.records()]
        assert len(held) == KEPT and held[0][0] > 1
        key = load_or_make_key(tmp_path).public_key()

        def problems(records: list[tuple[int, bytes]]) -> list[str]:
            return [finding.problem for finding in verify(records, read_checkpoints(tmp_path), key).findings]

        assert problems(held) == []
        for place, (sequence, value) in enumerate(held):
            changed = value.replace(b"Forbidden", b"Forgotten")
            assert problems([*held[:place], (sequence, changed), *held[place + 1 :]]), sequence
        assert any("records before it are missing" in text for text in problems(held[1:]))
        assert any("truncated" in text for text in problems(held[:-1]))
        assert problems([*held[:20], *held[21:]])
