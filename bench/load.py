"""Load of the pipeline benchmark: workload requests as bytes, and counters of the outcome through the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bench.cells import REGION, TENANT, BenchCells
from bench.https import connect, request
from holdfast.model.meta import ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.model.template import Template
from holdfast.model.workload import Workload, WorkloadSpec

POLL_EVERY_S = 0.05
FULL_LIST_EVERY_S = 1.0
"""Interval of counts that read every object."""
TIMEOUT_S = 180.0
RESOURCES = {"cpu": "100m", "memory": "500Mi"}
"""Requests of the pods in scheduler_perf."""


class _ListMeta(msgspec.Struct, rename="camel"):
    remaining_item_count: int = 0


class _Count(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


class _Region(msgspec.Struct, rename="camel"):
    pending_reason: str = ""


class _Summary(msgspec.Struct):
    ready: int = 0
    regions: list[_Region] = []


class _Status(msgspec.Struct):
    summary: _Summary = msgspec.field(default_factory=_Summary)


class _Item(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Items(msgspec.Struct):
    items: list[_Item] = []


def workload_body(
    name: str,
    replicas: int,
    *,
    tenant: str = TENANT,
    resources: Mapping[str, str] = RESOURCES,
    labels: Mapping[str, str] | None = None,
    drain_delay_s: float | None = None,
    **spec: Any,
) -> bytes:
    template = Template(
        driver="hollow",  # type: ignore[arg-type]
        command=("serve",),
        resources=dict(resources),
        labels=dict(labels or {}),
    )
    if drain_delay_s is not None:
        template = msgspec.structs.replace(template, drain_delay_seconds=drain_delay_s)
    item = Workload(ObjectMeta(name=name, namespace=tenant), WorkloadSpec(replicas=replicas, template=template, **spec))
    plain = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", **msgspec.to_builtins(item)}
    plain.pop("status", None)
    plain["metadata"] = {"name": name, "namespace": tenant}
    return msgspec.json.encode(plain)


def workloads_path(tenant: str = TENANT) -> str:
    return f"/apis/holdfast.dev/v1/namespaces/{tenant}/workloads"


def posts(url: str, bodies: Iterable[bytes], tenant: str = TENANT) -> list[bytes]:
    path = workloads_path(tenant)
    return [request(url, "POST", path, body) for body in bodies]


def workload_requests(url: str, count: int, replicas: int) -> list[bytes]:
    return posts(url, (workload_body(f"w{number:05}", replicas) for number in range(count)))


class ProgressPoller:
    """Counts objects through the API at low cost: a list with limit 1 returns the remaining item count."""

    def __init__(self, bench: BenchCells) -> None:
        self._bench = bench

    async def until_bound(self, expected: int, tenant: str = TENANT) -> float:
        """Waits until the region has this many Bindings of the tenant. Returns the time."""
        path = f"/apis/holdfast.dev/v1/namespaces/{tenant}/bindings?limit=1"
        return await self._until("bound", REGION, path, _counted, expected)

    async def until_ready(self, expected: int, tenant: str = TENANT) -> float:
        """Waits until the global cell shows this many ready replicas. Returns the time."""
        return await self._until("ready", "global", workloads_path(tenant), _ready, expected)

    async def until_waiting(self, expected: int, tenant: str) -> float:
        """Waits until this many workloads of the tenant have a pending reason. Returns the time."""
        queued = f"/apis/holdfast.dev/v1/namespaces/{tenant}/schedulingrequests?limit=1"
        await self._until("queued", REGION, queued, _counted, expected)
        path = workloads_path(tenant)
        return await self._until(
            "pending with a reason", "global", path, _count_pending, expected, every_s=FULL_LIST_EVERY_S
        )

    async def _until(
        self,
        what: str,
        cell: str,
        path: str,
        count: Callable[[bytes], int],
        expected: int,
        *,
        every_s: float = POLL_EVERY_S,
    ) -> float:
        message = request(self._bench.urls[cell], "GET", path)
        line = await connect(self._bench.urls[cell], self._bench.tls(self._bench.operator))
        deadline = time.perf_counter() + TIMEOUT_S
        found = 0
        try:
            while time.perf_counter() < deadline:
                found = count(await line.ask(message))
                if found >= expected:
                    return time.perf_counter()
                self._bench.check()
                await asyncio.sleep(every_s)
        finally:
            line.close()
        raise TimeoutError(f"{found} of {expected} were {what} after {TIMEOUT_S} s")


def _counted(body: bytes) -> int:
    found = msgspec.json.decode(body, type=_Count)
    return len(found.items) + found.metadata.remaining_item_count


def _count_pending(body: bytes) -> int:
    found = msgspec.json.decode(body, type=_Items).items
    return sum(any(r.pending_reason == Reason.INSUFFICIENT_CPU for r in item.status.summary.regions) for item in found)


def _ready(body: bytes) -> int:
    return sum(item.status.summary.ready for item in msgspec.json.decode(body, type=_Items).items)
