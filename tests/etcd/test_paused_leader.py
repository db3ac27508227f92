"""A paused leader with a write in flight: etcd refuses that write, because the term has ended (S5)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.authority.cell import Cell, ManualClock
from tests.etcd.fleet import REGION, Fleet, Proxy
from tests.etcd.test_chaos import all_nodes, apply, lease, manifests
from tests.etcd_cluster import Cluster

from holdfast.model.binding import Binding
from holdfast.model.errors import Fault
from holdfast.model.placement_api import PlacementOutcome
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget

NODES = 20
PAGE = b"/leasepages/"


async def until(true: Callable[[], object], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.02)


async def test_bind_in_flight_after_leader_change_is_refused(shared_cluster: Cluster) -> None:
    """The transaction itself is held back in the proxy, out of reach of the process that sent it."""
    member = int(shared_cluster.endpoints[0].rpartition(":")[2])
    wire = await Proxy(member).start()
    clock = ManualClock()
    slow = Cell(await open_store("paused", EtcdTarget(endpoints=(f"http://127.0.0.1:{wire.port}",))), clock)
    other = Cell(await open_store("paused", EtcdTarget(endpoints=shared_cluster.endpoints)), clock)
    try:
        await slow.objects.start()
        await slow.node()
        await slow.node("n2")
        await slow.grant()
        await slow.lead()
        replica = await slow.replica()
        wire.stall()
        writing = asyncio.create_task(slow.place(replica, "n1"))
        await until(lambda: b"/bindings/" in wire.held)
        await other.objects.start()
        await other.lead()
        assert (await other.place(other.get_replica(), "n2")).result is PlacementOutcome.ACCEPTED
        wire.let_through()
        with pytest.raises(Fault) as refused:
            await writing
        assert "not the region's elected authority" in refused.value.message
        assert not slow.authority.leading, "it still believes that it is the leader"
        await other.store.newest_revision()
        (binding,) = other.every(Binding)
        assert binding.spec.node == "n2"
        with pytest.raises(Fault):
            await slow.place(slow.get_replica(), "n1")
    finally:
        wire.let_through()
        await slow.close()
        await other.close()
        wire.end()


async def test_new_leader_waits_full_ttl_before_fencing(shared_cluster: Cluster) -> None:
    """The nodes were silent long before the takeover; only the time since the takeover counts."""
    clock = ManualClock()
    target = EtcdTarget(endpoints=shared_cluster.endpoints)
    first = Cell(await open_store("takeover", target), clock)
    second = Cell(await open_store("takeover", target), clock)
    try:
        await first.objects.start()
        await first.lead()
        await first.node()
        await clock.advance(100)
        await second.objects.start()
        await second.lead()
        await clock.advance(19.9)  # TTL 15 s, drift 1 %, kill bound 5 s
        await second.authority.tick()
        assert second.get_node().status.fence.fenced_epoch == 0
        await clock.advance(0.5)
        await second.authority.tick()
        await until(lambda: second.get_node().status.fence.fenced_epoch == 1)
    finally:
        await first.close()
        await second.close()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_writes_of_suspended_former_leader_are_refused(own_cluster: Cluster, tmp_path: Path) -> None:
    """SIGSTOP with a write in flight, beyond the lease; another process leads; then process and proxy continue."""
    fleet = Fleet(tmp_path, own_cluster)
    try:
        await fleet.start(NODES)
        for path, body in manifests():
            await fleet.until(path, partial(apply, fleet, path, body), 60)
        await fleet.until("the nodes", partial(all_nodes, fleet, NODES), 60)
        leader = fleet.leader_of("authority", await lease(fleet, "authority"))
        for wire in fleet.wires[leader]:
            wire.stall()
        # Agents renew continuously, so the authority always has a commit to make.
        await until(lambda: any(PAGE in wire.held for wire in fleet.wires[leader]))
        fleet.signal(leader, signal.SIGSTOP)
        fleet.signal("hollow", signal.SIGSTOP)  # from now on nothing else writes that key

        other = next(name for name in ("api-1", "api-2") if name != leader)

        async def another_leads() -> bool:
            return fleet.leader_of("authority", await lease(fleet, "authority", other)) == other

        took_s = await fleet.until("another to lead", another_leads, 60)
        before = written_at(fleet)
        for wire in fleet.wires[leader]:
            wire.let_through()
        await until(lambda: all(wire.arrived for wire in fleet.wires[leader] if wire.held))
        # etcd processes earlier requests before it answers this one.
        for _ in range(10):
            assert written_at(fleet) == before, "a write of the paused leader took effect in another leader's term"
            await asyncio.sleep(0.1)
        fleet.signal(leader, signal.SIGCONT)
        fleet.signal("hollow", signal.SIGCONT)

        async def stepped_down() -> bool:
            return b"authority_stepped_down" in (tmp_path / f"{leader}.log").read_bytes()

        await fleet.until("the paused one to step down", stepped_down, 30)

        async def renewed() -> bool:
            return written_at(fleet) > before

        await fleet.until("the new one to renew leases", renewed, 60)
        print(f"another led {took_s:.1f} s after the pause; the write that was on its way was refused")
    finally:
        await fleet.end()


def written_at(fleet: Fleet) -> int:
    """etcd revision of the last write to the lease page; 0 while the first one is held back."""
    response = json.loads(fleet.cluster.ctl("get", f"/holdfast/{REGION}/data/leasepages/page-0", "-w", "json"))
    return int(response["kvs"][0]["mod_revision"]) if "kvs" in response else 0
