"""A cell whose etcd starts late waits for it, logs the wait, and gives up with a clear error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import etcd_cluster
from tests.etcd.fleet import REGION, Fleet

from holdfast.model.errors import StoreFailed, Unavailable
from holdfast.store.etcd.startup import wait_for_store
from holdfast.store.etcd.target import EtcdTarget

LATE_S = 8.0


@pytest.fixture
def stopped_cluster(tmp_path: Path) -> Iterator[etcd_cluster.Cluster]:
    """One member that is not started yet."""
    cluster = etcd_cluster.Cluster(tmp_path / "etcd", 1)
    yield cluster
    cluster.end()


@pytest.mark.slow
async def test_cell_waits_for_etcd_that_starts_late(stopped_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, stopped_cluster)
    try:
        await fleet.start(0, ["api-1"])
        log = tmp_path / "api-1.log"

        async def awaited() -> bool:
            return "store_awaited" in log.read_text()

        await fleet.until("the cell to say what it waits for", awaited, 60)
        await asyncio.sleep(LATE_S)
        assert fleet.alive()["api-1"] is None, log.read_text()[-2000:]
        assert f"http://127.0.0.1:{fleet.wires['api-1'][0].port}" in log.read_text()
        stopped_cluster.start()

        async def ready() -> bool:
            return "items" in await fleet.ask("api-1", "/apis/holdfast.dev/v1/nodes")

        await fleet.until(f"the cell of {REGION} to serve", ready, 90)
        assert "store_responded" in log.read_text()
    finally:
        await fleet.end()


async def test_store_that_never_responds_ends_the_wait_with_a_clear_error(tmp_path: Path) -> None:
    (port,) = etcd_cluster.free_ports(1)
    target = EtcdTarget(endpoints=(f"http://127.0.0.1:{port}",))
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match=rf"etcd at http://127.0.0.1:{port} did not respond within 2 s .*next: check"):
        await wait_for_store("here", target, tmp_path, timeout_s=2)
    assert time.monotonic() - began_s < 30


@pytest.mark.slow
async def test_store_of_a_stalled_member_opens_when_it_resumes(stopped_cluster: etcd_cluster.Cluster) -> None:
    member = stopped_cluster.start().members[0]
    member.stop()
    opening = asyncio.create_task(wait_for_store("here", EtcdTarget(endpoints=stopped_cluster.endpoints), timeout_s=90))
    await asyncio.sleep(LATE_S)
    assert not opening.done()
    member.resume()
    store = await asyncio.wait_for(opening, 60)
    await store.close()


async def test_wrong_store_is_refused_without_waiting(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    target = EtcdTarget(endpoints=shared_cluster.endpoints)
    store = await wait_for_store("slow", target, tmp_path)
    await store.close()
    assert int(await asyncio.to_thread(shared_cluster.ctl, "del", "--prefix", "/holdfast/slow/")) > 0
    began_s = time.monotonic()
    with pytest.raises(StoreFailed):
        await wait_for_store("slow", target, tmp_path)
    assert time.monotonic() - began_s < 30
