"""A cell's store at start: waits for a cluster that does not respond yet, and logs the wait."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import structlog

from holdfast.model.errors import Ambiguous, Unavailable
from holdfast.store.etcd.store import EtcdStore, open_store
from holdfast.store.etcd.target import EtcdTarget

# Time that a starting cell waits for etcd to respond. After that, the process exits with an error. Long enough for a
# cluster that starts at the same time on slow disks.
ETCD_START_TIMEOUT_S = 300.0
# Pause between two attempts of a starting cell to open its store.
ETCD_START_RETRY_S = 0.5
# Interval at which a starting cell logs that it waits for etcd.
ETCD_START_TELL_EVERY_S = 5.0

_log = structlog.get_logger()


async def wait_for_store(
    cell: str, target: EtcdTarget, folder: Path | None = None, *, timeout_s: float = ETCD_START_TIMEOUT_S
) -> EtcdStore:
    """Opens a cell's store, and waits for a cluster that does not respond yet: it may be starting or electing a leader.

    Logs what it waits for. Raises Unavailable after the timeout, and every other fault at once.
    """
    began_s = time.monotonic()
    told_s = -math.inf
    endpoints = ", ".join(target.endpoints)
    while True:
        try:
            store = await open_store(cell, target, folder)
            waited_s = time.monotonic() - began_s
            if told_s > 0:
                _log.info("store_responded", cell=cell, endpoints=endpoints, waited_s=round(waited_s, 1))
            return store
        except (Unavailable, Ambiguous) as fault:
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise Unavailable(
                    f"store of cell {cell}: etcd at {endpoints} did not respond within {timeout_s:g} s "
                    f"({fault.message}); next: check that its members run and have a leader: etcdctl endpoint health"
                ) from fault
            if time.monotonic() - told_s >= ETCD_START_TELL_EVERY_S:
                told_s = time.monotonic()
                _log.warning(
                    "store_awaited",
                    cell=cell,
                    endpoints=endpoints,
                    waited_s=round(waited_s, 1),
                    limit_s=timeout_s,
                    error=fault.message,
                )
        await asyncio.sleep(ETCD_START_RETRY_S)
