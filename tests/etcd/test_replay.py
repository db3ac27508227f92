"""Decisions of a region on etcd replay bit for bit from its history, also after a restart."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests import etcd_cluster
from tests.authority.cell import Cell
from tests.insight.test_replay import assert_all_replay, replay_random_load_in

from holdfast.foundation.ports import SystemPorts
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget

DECISIONS = 1_000 if os.environ.get("HOLDFAST_PROVE") else 40

# Runs in real time, because etcd has no virtual clock.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800 if DECISIONS > 40 else 300)]


async def opened(prefix: str, cluster: etcd_cluster.Cluster) -> Cell:
    ports = SystemPorts()
    cell = Cell(await open_store(prefix, EtcdTarget(endpoints=cluster.endpoints)), ports.clock)
    cell.ports.ids = ports.ids  # type: ignore[assignment]
    await cell.objects.start()
    return cell


def test_decisions_replay_from_etcd_after_restart(shared_cluster: etcd_cluster.Cluster) -> None:
    async def main() -> None:
        await replay_random_load_in(await opened("replayed", shared_cluster), DECISIONS)
        again = await opened("replayed", shared_cluster)
        try:
            assert await assert_all_replay(again.objects) >= DECISIONS
        finally:
            await again.close()

    asyncio.run(main())
