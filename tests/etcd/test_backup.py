"""Backup, restore and moves between stores, and an old backup restored under running work."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import msgspec
import pytest
from tests.authority.cell import START_S, TENANT, Cell, ManualClock
from tests.etcd_cluster import Cluster
from tests.expected import present

from holdfast.agent.task_decision import LeaseState, Now, desired_state
from holdfast.authority import restore_records
from holdfast.cell import storage
from holdfast.cell.storage import StoreLocation
from holdfast.model import codec, limits
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.errors import Conflict, Expired, StoreFailed, Unavailable
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.reasons import Reason
from holdfast.store import backup
from holdfast.store.contract import Append, Compare, Put, Store, Txn
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget
from holdfast.store.sqlite import SqliteStore


async def opened(place: StoreLocation) -> Store:
    if place.etcd is not None:
        return await open_store(place.cell, place.etcd, place.state)
    return SqliteStore(place.file)


@pytest.fixture(params=["sqlite", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path, shared_cluster: Cluster) -> StoreLocation:
    (tmp_path / "state").mkdir()
    etcd = EtcdTarget(endpoints=shared_cluster.endpoints) if request.param == "etcd" else None
    return StoreLocation(cell=f"b-{request.param}-{abs(hash(tmp_path)):x}", state=tmp_path / "state", etcd=etcd)


async def some_content(store: Store) -> None:
    for start in range(0, 300, 50):
        await store.commit(
            Txn(
                writes=tuple(Put(f"/somethings/{n:03}", b'{"n":%d}' % n) for n in range(start, start + 50)),
                appends=(Append("audit", b"record %d" % start),),
            )
        )


async def test_backup_of_running_cell_restores_to_other_store(
    place: StoreLocation, tmp_path: Path, shared_cluster: Cluster
) -> None:
    store = await opened(place)
    await some_content(store)
    whole = {e.key: e.value for e in (await store.range("")).entries}
    assert await storage.back_up(place, tmp_path / "saved") == (300, 6)
    await store.close()
    other = tmp_path / "other"
    to_etcd = EtcdTarget(endpoints=shared_cluster.endpoints) if place.etcd is None else None
    target = StoreLocation(cell=place.cell, state=other, etcd=to_etcd)
    assert await storage.copy_store(place, target) == 300
    moved = await opened(target)
    assert {e.key: e.value for e in (await moved.range("")).entries} == whole
    assert [r.value for r in await moved.read_log("audit")] == [b"record %d" % n for n in range(0, 300, 50)]
    assert await moved.get(backup.RESTORE_MARKER) is None
    await moved.close()
    with pytest.raises(StoreFailed, match=r"already exists|not empty"):
        await storage.copy_store(place, target)


async def test_move_of_running_cell_is_refused(tmp_path: Path, shared_cluster: Cluster) -> None:
    source = StoreLocation(cell="runs", state=tmp_path)
    store = SqliteStore(source.file)
    target = StoreLocation(cell="runs", state=tmp_path / "other", etcd=EtcdTarget(endpoints=shared_cluster.endpoints))
    with pytest.raises(StoreFailed, match="in use by process"):
        await storage.copy_store(source, target)
    await store.close()


async def test_damaged_backup_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    await some_content(store)
    await store.close()
    path, here = tmp_path / "saved", StoreLocation(cell="here", state=tmp_path)
    await storage.back_up(here, path)
    whole = path.read_bytes()
    lines = gzip.decompress(whole).splitlines()
    for wrong in (
        whole[: len(whole) // 2],
        gzip.compress(b"\n".join(lines[:-1])),
        gzip.compress(b"\n".join([*lines[:5], *lines[6:]])),
        b"nothing of the kind",
    ):
        path.write_bytes(wrong)
        with pytest.raises(StoreFailed, match=r"unreadable or truncated|modified or damaged"):
            await storage.restore(here, path, replace=True)
    path.write_bytes(whole)
    with pytest.raises(StoreFailed, match="backup of another cell"):
        await storage.restore(StoreLocation(cell="there", state=tmp_path), path, replace=True)
    with pytest.raises(StoreFailed, match="already exists"):
        await storage.restore(here, path, replace=False)


async def region(place: StoreLocation, clock: object = None) -> Cell:
    """A cell with an authority on the given store."""
    cell = Cell(await opened(place), clock or ManualClock())
    await cell.objects.start()
    return cell


async def test_old_backup_under_running_work_keeps_claims_and_quota(place: StoreLocation, tmp_path: Path) -> None:
    """Since the backup more was bound and less was granted: the restored cell must not trust the old state."""
    here = place
    cell = await region(here)
    await cell.node()
    await cell.node("n2")
    await cell.grant(limit={"cpu": "4", "memory": "100Gi"})
    await cell.lead()
    first, second = await cell.replica("web-0"), await cell.replica("web-1")
    assert (await cell.place(first)).result is PlacementOutcome.ACCEPTED
    await storage.back_up(here, tmp_path / "old")
    # Since the backup: another binding on n2, which is a new node, and a lower acknowledged limit.
    assert (await cell.place(second, "n2")).result is PlacementOutcome.ACCEPTED
    later = await cell.renew("n3", 0)
    await cell.grant(limit={"cpu": "2", "memory": "100Gi"})
    seen = cell.objects.head(kind_of(Binding))
    await cell.close()

    incarnation = await storage.restore(here, tmp_path / "old", replace=True)
    assert incarnation > 1
    cell = await region(here, cell.clock)
    await cell.lead()
    assert cell.objects.head(kind_of(Binding)) > seen, "a revision was assigned twice"
    restoring = cell.authority.restore_in_progress
    assert restoring
    (known,) = cell.every(Binding)
    assert (known.spec.desired, known.spec.stop_reason) == (DesiredRunState.STOP, Reason.RESTORE_IN_PROGRESS), (
        "an agent would start it"
    )
    # Nothing is bound, and the old agents must stop all tasks and register again.
    second = cell.get_replica("web-1")
    with pytest.raises(Unavailable) as refused:
        await cell.place(second, "n1")
    assert refused.value.facts["reason"] == Reason.RESTORE_IN_PROGRESS
    for name, epoch in (("n1", 1), ("n2", 1), ("n3", later.epoch)):
        answer = await cell.renew(name, epoch)
        assert answer.result is PlacementOutcome.REJECTED
        assert answer.reason in (Reason.NODE_FENCED, Reason.NODE_NOT_FOUND)
    fresh = incarnation * limits.EPOCHS_PER_INCARNATION + 1
    renewed = [(await cell.renew(name, 0)).epoch for name in ("n1", "n2")]
    assert renewed == [fresh, fresh], "an epoch was assigned twice"
    for _ in range(5):
        await cell.clock.advance(4.5)
        for name in ("n1", "n2"):
            await cell.renew(name, fresh)
    await cell.authority.tick()
    assert not cell.authority.restore_in_progress
    # No quota is spent before the global cell renews the grant; then the present limit applies.
    for name in ("n1", "n2"):
        node = cell.get_node(name)
        execution = msgspec.structs.replace(node.status.execution, epoch=fresh)
        await cell.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=execution)))
    assert (await cell.place(second, "n2")).reason == Reason.GRANT_EXPIRED
    await cell.grant(limit={"cpu": "2", "memory": "100Gi"})
    assert (await cell.place(second, "n2")).result is PlacementOutcome.ACCEPTED
    third = await cell.replica("web-2")
    assert (await cell.place(third, "n2")).reason == Reason.QUOTA_EXCEEDED
    assert sorted(b.spec.replica for b in cell.every(Binding)) == ["web-0", "web-1"]
    (copy,) = cell.every(GrantCopy)
    assert copy.metadata.namespace == TENANT
    cell.check_ledger()
    await cell.close()


async def test_agent_does_not_start_bindings_of_a_backup(tmp_path: Path) -> None:
    """The agent reconnects before its lease expires, and reads its Bindings before it learns that it was fenced."""
    cell = await Cell.open(tmp_path / "store.sqlite")
    await cell.node()
    await cell.grant()
    await cell.lead()
    await cell.place(await cell.replica())
    binding = cell.binding("web-0.1")
    await cell.close()
    live, now = LeaseState(epoch=1, expires_mono_s=1010.0), Now(wall_s=START_S, mono_s=1000.0)
    assert desired_state(binding, live, now).run, "before the restore it would start"
    kind = kind_of(Binding)
    stored = Put(kind.store_key(TENANT, "web-0.1"), codec.encode(present(binding)))
    (put, _), incarnation = restore_records.restored_entries("us-east", [stored], START_S, "uid", 1)
    assert incarnation == 2
    back = codec.decode(kind, put.value, 1)
    assert (desired_state(back, live, now).run, desired_state(back, live, now).reason) == (
        False,
        Reason.RESTORE_IN_PROGRESS,
    )


async def test_each_restore_increases_incarnation(tmp_path: Path) -> None:
    here = StoreLocation(cell="us-east", state=tmp_path)
    cell = await Cell.open(here.file)
    await cell.node()
    await cell.close()
    await storage.back_up(here, tmp_path / "first")
    found = [1]
    for _ in range(3):
        # Restoring the same backup again starts another incarnation.
        found.append(await storage.restore(here, tmp_path / "first", replace=True))
    assert found == sorted(set(found))
    store = SqliteStore(here.file)
    assert (await store.get(restore_records.incarnation_key())) is not None
    await store.close()


async def test_restore_on_other_cluster_never_reuses_a_revision(
    tmp_path: Path, shared_cluster: Cluster, other_cluster: Cluster
) -> None:
    """The other cluster is new, so its own revisions are low. Readers from before the restore must list again."""
    target = EtcdTarget(endpoints=shared_cluster.endpoints)
    here = StoreLocation(cell=f"c-{abs(hash(tmp_path)):x}", state=tmp_path / "state", etcd=target)
    here.state.mkdir()
    store = await opened(here)
    await some_content(store)
    await storage.back_up(here, tmp_path / "saved")
    await store.commit(Txn(writes=(Put("/somethings/later", b"{}"),)))
    seen = store.head
    await store.close()
    for endpoints in (shared_cluster.endpoints, other_cluster.endpoints, shared_cluster.endpoints):
        place = msgspec.structs.replace(here, etcd=EtcdTarget(endpoints=endpoints))
        await storage.restore(place, tmp_path / "saved", replace=True)
        store = await opened(place)
        assert store.head > seen
        with pytest.raises(Expired):
            await asyncio.wait_for(anext(store.watch("/somethings/", after=seen)), 10)
        restored = (await store.range("")).entries
        assert restored and all(entry.revision > seen and entry.created > seen for entry in restored)
        await store.commit(Txn(writes=(Put("/somethings/a", b"1"), Put("/somethings/b", b"1"))))
        entry = present(await store.get("/somethings/b"))
        changed = await store.commit(Txn((Compare(entry.key, entry.revision),), (Put(entry.key, b"{}"),)))
        assert changed.revision > entry.revision
        with pytest.raises(Conflict):
            await store.commit(Txn((Compare(entry.key, seen),), (Put(entry.key, b"{}"),)))
        assert (await store.get(entry.key, at=changed.revision - 1)) == entry
        seen = store.head
        await store.close()
        store = await opened(place)
        assert store.head == seen, "the same revisions after another start"
        await store.close()
