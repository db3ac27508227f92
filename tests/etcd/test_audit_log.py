"""The audit log of a cell on etcd: verified without links, and trimmed by several servers at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.etcd_cluster import Cluster

from holdfast.cell.audit_checkpoints import AuditCheckpoints, load_or_make_key, read_checkpoints
from holdfast.foundation.ports import SystemPorts
from holdfast.gate import audit_chain
from holdfast.gate.audit_chain import verify
from holdfast.store.contract import Append, Store, Txn
from holdfast.store.etcd import logs
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget

Records = list[tuple[int, bytes]]


async def write(store: Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        await store.commit(Txn(appends=(Append("audit", b'{"principal":"user %04d"}' % number),)))


async def records_of(store: Store) -> Records:
    return [(record.sequence, record.value) for record in await store.read_log("audit", limit=10_000)]


def problems(records: Records, folder: Path) -> list[str]:
    key = load_or_make_key(folder).public_key()
    return [finding.problem for finding in verify(records, read_checkpoints(folder), key).findings]


async def test_log_on_etcd_verifies_and_every_change_is_found(tmp_path: Path, shared_cluster: Cluster) -> None:
    store = await open_store(f"v-{abs(hash(tmp_path)):x}", EtcdTarget(endpoints=shared_cluster.endpoints), tmp_path)
    checkpoints = AuditCheckpoints("global", tmp_path, store, SystemPorts())
    await checkpoints.start()
    for part in range(3):
        await write(store, 10 * part, 10)
        assert await checkpoints.checkpoint() is not None
    records = await records_of(store)
    await store.close()
    assert len(records) == 30 and problems(records, tmp_path) == []
    for place, (sequence, value) in enumerate(records):
        changed = (sequence, value.replace(b"user", b"uses"))
        assert problems([*records[:place], changed, *records[place + 1 :]], tmp_path), place
    for place in range(30):
        assert problems([*records[:place], *records[place + 1 :]], tmp_path), place
    assert any("records before it are missing" in text for text in problems(records[3:], tmp_path))
    assert any("records before it are missing" in text for text in problems(records[15:], tmp_path))
    assert any("truncated" in text for text in problems(records[:-1], tmp_path))


async def test_servers_that_trim_at_once_keep_the_newest_records(
    tmp_path: Path, shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 40
    monkeypatch.setattr(logs, "ETCD_LOG_SEGMENT_RECORDS", 7)
    monkeypatch.setattr(audit_chain, "AUDIT_RECORDS_MAX", kept)
    cell, target = f"t-{abs(hash(tmp_path)):x}", EtcdTarget(endpoints=shared_cluster.endpoints)
    servers: list[Store] = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        servers.append(await open_store(cell, target, tmp_path / str(number)))
    checkpoints = AuditCheckpoints("global", tmp_path, servers[0], SystemPorts())
    await checkpoints.start()
    written = 0
    for _ in range(4):
        for server in servers:
            await write(server, written, 15)
            written += 15
        await checkpoints.checkpoint()
        await asyncio.gather(*(server.trim_log("audit", keep=kept) for server in servers))
        records = await records_of(servers[1])
        names = [value.split(b"user ")[1][:4] for _, value in records]
        assert names == [b"%04d" % number for number in range(written - kept, written)]
        assert problems(records, tmp_path) == []
    for server in servers:
        await server.close()
