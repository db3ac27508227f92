"""Hollow regions: they speak the link's protocol to a global cell and run nothing. Started as a process by `fleet`.

A hollow region has the watches and the resyncs of a link, with a link's certificate. It decodes only what it needs: the
streams of other kinds are read and dropped. It reports every Assignment as serving as soon as it arrives, with an
Endpoint, acknowledges its Grants with the use that follows from its Assignments, keeps the recovery slots of its
budgets, and sends the region report with the results of its peer probes. Its nodes exist only in the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.client.http import HttpClient
from holdfast.client.resources import client_tls_context, resource_path
from holdfast.controllers.informer import CacheChange, Informers
from holdfast.foundation.ports import SystemPorts
from holdfast.link.link import REGION_REPORT_EVERY_S
from holdfast.link.mirror import MIRRORED_KINDS
from holdfast.link.report import report_sequence
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.endpoint import Address, Endpoint, EndpointSpec, endpoint_name
from holdfast.model.errors import Fault
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, scaled
from holdfast.model.quota import Grant, GrantClass
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import NodeShape, PeerProbeResult, RecoverySlotReport, Region, RegionReport, ZoneReport
from holdfast.model.template import requests
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, Delete, SetStatus, Write

_DECODED = frozenset({Assignment, RecoveryBudget})
WRITES_MAX = 256
"""Writes in one commit, as in the link's controllers."""
PROBE_TIMEOUT_S = 2.0
STARTS_AT_ONCE = 4
"""Regions of one process that connect at the same time: a fleet is not started in one moment."""
NODE_CPU, NODE_MEMORY_GIB = 64, 256
_STATUS_FIELDS = tuple(
    (field.name, field.encode_name)
    for field in msgspec.structs.fields(AssignmentStatus)
    if field.name not in ("conditions", "observed_generation")
)
"""Status fields that a link reports: Python name and JSON name."""


class RegionIdentity(msgspec.Struct, frozen=True):
    name: str
    cert: str
    key: str
    port: int
    """Port of its endpoint, which other regions probe."""


class HollowConfig(msgspec.Struct, frozen=True):
    """File of one process of hollow regions."""

    url: str
    ca: str
    nodes: int
    regions: tuple[RegionIdentity, ...]
    endpoints: dict[str, int]
    """Port of every region's endpoint, those of other processes included."""


def zones_of(region: str) -> tuple[str, ...]:
    return tuple(f"{region}-{letter}" for letter in "abc")


class Peers:
    """Probes every region's endpoint once per report interval, for all regions of this process."""

    def __init__(self, ports: SystemPorts) -> None:
        self._ports = ports
        self.results: dict[str, PeerProbeResult] = {}

    async def run(self, endpoints: Mapping[str, int]) -> None:
        while True:
            await asyncio.gather(*(self._probe(name, port) for name, port in endpoints.items()))
            await asyncio.sleep(REGION_REPORT_EVERY_S)

    async def _probe(self, name: str, port: int) -> None:
        reachable = False
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                reachable = True
        self.results[name] = PeerProbeResult(name, reachable, micro_text(self._ports.clock.now()), 1.0)


class DroppedStreams:
    """Watches and periodic lists of kinds that a hollow region does not need. The global cell serves them all the
    same."""

    def __init__(self, config: HollowConfig, identity: RegionIdentity, kinds: Sequence[type[Any]]) -> None:
        self._urls = [config.url + resource_path(kind_of(kind)) for kind in kinds]
        self._tls = client_tls_context(config.ca, identity.cert, identity.key)

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        no_limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=no_limit) as session:
            streams = (self._repeat(session, f"{url}?watch=true", 1.0) for url in self._urls)
            lists = (self._repeat(session, url, limits.RESYNC_S) for url in self._urls)
            await asyncio.gather(*streams, *lists)

    async def _repeat(self, session: aiohttp.ClientSession, url: str, pause_s: float) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with session.get(url) as answer:
                    if answer.status in (403, 404):
                        raise LookupError(f"{url}: refused with {answer.status}; a link may read it")
                    async for _ in answer.content.iter_any():
                        pass
            await asyncio.sleep(pause_s)


class HollowRegion:
    """One region. Dirty keys are flushed together, as the link's queues do."""

    def __init__(self, identity: RegionIdentity, config: HollowConfig, ports: SystemPorts, peers: Peers) -> None:
        self.name = identity.name
        self._nodes = config.nodes
        self._ports, self._peers = ports, peers
        self._client = HttpClient(config.url, ports, cell="global", ca=config.ca, cert=identity.cert, key=identity.key)
        self.informers = Informers(self._client, ports)
        self._used: dict[tuple[str, GrantClass], Amounts] = {}
        self._counted: dict[Key, tuple[tuple[str, GrantClass], Amounts]] = {}
        self._dirty: dict[Key, None] = {}
        self._dirty_endpoints: dict[Key, None] = {}
        self._renewed: dict[Key, tuple[int, Amounts, float]] = {}
        for kind in (Assignment, Grant, Endpoint):
            self.informers.of(kind, {"region": self.name})
        self.informers.of(RecoveryBudget)
        self._streams = DroppedStreams(config, identity, [k for k in MIRRORED_KINDS if k not in _DECODED])
        self._uid = ""
        self.informers.of(Assignment).on_change(self._on_assignments)

    async def run(self, starting: asyncio.Semaphore) -> None:
        async with starting:
            await self.informers.start()
            await self.informers.synced()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._streams.run())
            tasks.create_task(self._every(limits.LINK_FLUSH_EVERY_S, self._flush))
            tasks.create_task(self._every(1.0, self._acknowledge))
            tasks.create_task(self._every(REGION_REPORT_EVERY_S, self._report))

    async def _every(self, interval_s: float, step: Any) -> None:
        while True:
            with contextlib.suppress(Fault):  # the next round repeats it
                await step()
            await asyncio.sleep(interval_s)

    def _on_assignments(self, changes: Sequence[CacheChange[Any]]) -> None:
        for change in changes:
            item = change.new if change.new is not None else change.old
            if item is None:
                continue
            self._count(item.key, change.new)
            if change.old is None or change.new is None or change.old.spec != change.new.spec:
                self._dirty[item.key] = self._dirty_endpoints[item.key] = None

    def _count(self, key: Key, assignment: Assignment | None) -> None:
        """Keeps the use per tenant and grant class."""
        counted = self._counted.pop(key, None)
        if counted is not None:
            add(self._used[counted[0]], counted[1], times=-1)
        if assignment is not None and assignment.spec.replicas:
            recovers = assignment.spec.purpose is Purpose.RECOVERY
            group = (key.namespace, GrantClass.RECOVERY if recovers else GrantClass.NORMAL)
            amount = scaled(requests(assignment.spec.template), assignment.spec.replicas)
            add(self._used.setdefault(group, {}), amount)
            self._counted[key] = (group, amount)

    async def _flush(self) -> None:
        await self._commit(self._dirty, self._status_write)
        await self._commit(self._dirty_endpoints, self._endpoint_write)

    async def _commit(self, dirty: dict[Key, None], write_of: Any) -> None:
        while dirty:
            keys = list(dirty)[:WRITES_MAX]
            writes: list[Write] = [write for key in keys if (write := write_of(key)) is not None]
            if writes:
                await self._client.commit(writes, brief=True)
            for key in keys:
                dirty.pop(key, None)

    def _status_write(self, key: Key) -> Write | None:
        assignment = self.informers.cache.get(Assignment, key.name, key.namespace)
        if assignment is None:
            return None
        count, spec = assignment.spec.replicas, assignment.spec
        status = AssignmentStatus(
            observed_epoch=spec.epoch,
            replicas=count,
            bound=count,
            started=count,
            ready=count,
            serving=count,
            revision=spec.revision,
            updated=count,
            updated_serving=count,
        )
        blocks = {encoded: getattr(status, name) for name, encoded in _STATUS_FIELDS}
        generation = assignment.metadata.generation
        return SetStatus("Assignment", key, assignment.uid, blocks=blocks, observed_generation=generation)

    def _endpoint_write(self, key: Key) -> Write | None:
        """The Endpoint of the workload here, with one address per replica."""
        cache = self.informers.cache
        assignment = cache.get(Assignment, key.name, key.namespace)
        workload = assignment.spec.workload if assignment is not None else key.name.split(".")[0]
        name = endpoint_name(workload, self.name)
        known = cache.get(Endpoint, name, key.namespace)
        if assignment is None or not assignment.spec.replicas:
            return Delete("Endpoint", known.key, known.uid) if known is not None else None
        if known is not None:
            return None
        addresses = tuple(
            Address(
                f"{workload}-{number}", f"{workload}-{number}", "10.0.0.1", f"{self.name}-node", zones_of(self.name)[0]
            )
            for number in range(assignment.spec.replicas)
        )
        meta = ObjectMeta(name=name, namespace=key.namespace)
        return Create(Endpoint(meta, EndpointSpec(workload, self.name, addresses=addresses)))

    async def _acknowledge(self) -> None:
        writes: list[Write] = []
        now, mono_s = self._ports.clock.now(), self._ports.clock.monotonic()
        for grant in self.informers.cache.list(Grant):
            used = self._used.get((grant.metadata.namespace, grant.spec.grant_class), {})
            known = self._renewed.get(grant.key)
            same = known is not None and known[:2] == (grant.spec.epoch, used)
            if known is not None and same and mono_s - known[2] < limits.GRANT_LEASE_S / 2:
                continue
            self._renewed[grant.key] = (grant.spec.epoch, dict(used), mono_s)
            held = amounts(grant.spec.limit)
            blocks = {
                "acknowledgedEpoch": grant.spec.epoch,
                "limit": dict(amounts_text({name: max(held.get(name, 0), used.get(name, 0)) for name in held | used})),
                "used": dict(amounts_text(used)),
                "renewedAt": micro_text(now),
            }
            generation = grant.metadata.generation
            writes.append(SetStatus("Grant", grant.key, grant.uid, blocks=blocks, observed_generation=generation))
        for start in range(0, len(writes), WRITES_MAX):
            try:
                await self._client.commit(writes[start : start + WRITES_MAX], brief=True)
            except Fault:
                self._renewed.clear()
                raise

    async def _report(self) -> None:
        if not self._uid:
            known = await self._client.get(Region, self.name)
            self._uid = known.uid if known is not None else ""
        now = self._ports.clock.now()
        slots = tuple(self._slots())
        report = self._report_of(now, slots)
        write = SetStatus("Region", Key("", self.name), self._uid, blocks={"report": report})
        await self._client.commit([write], brief=True)

    def _slots(self) -> Iterable[RecoverySlotReport]:
        consumed = sum(item[0][1] is GrantClass.RECOVERY for item in self._counted.values())
        for budget in self.informers.cache.list(RecoveryBudget):
            if budget.spec.region != self.name:
                continue
            for index, shape in enumerate(budget.spec.slot_shapes):
                yield RecoverySlotReport(
                    budget=budget.metadata.name,
                    zone=zones_of(self.name)[0],
                    shape_index=index,
                    resources=shape.resources,
                    admitted=shape.count,
                    consumed=min(consumed, shape.count),
                )

    def _report_of(self, now: float, slots: tuple[RecoverySlotReport, ...]) -> RegionReport:
        used: Amounts = {}
        for amount in self._used.values():
            add(used, amount)
        reserved: Amounts = {}
        for slot in slots:
            add(reserved, scaled(amounts(slot.resources), slot.admitted))
        node = {"cpu": f"{NODE_CPU}", "memory": f"{NODE_MEMORY_GIB}Gi"}
        per_node, each = self._nodes // 3, amounts(node)
        whole = scaled(each, per_node)
        left = {
            name: max(0, amount - (used.get(name, 0) + reserved.get(name, 0)) // self._nodes)
            for name, amount in each.items()
        }
        zones = zones_of(self.name)
        return RegionReport(
            at=micro_text(now),
            sequence=report_sequence(now),
            nodes=per_node * 3,
            live_nodes=per_node * 3,
            capacity=dict(amounts_text(scaled(whole, 3))),
            used=dict(amounts_text(used)),
            recovery_reserved=dict(amounts_text(reserved)),
            peers=tuple(result for name, result in self._peers.results.items() if name != self.name),
            zones=tuple(ZoneReport(zone, per_node, per_node, dict(amounts_text(whole))) for zone in zones),
            free_shapes=tuple(NodeShape(zone, nodes=per_node, resources=dict(amounts_text(left))) for zone in zones),
            node_shapes=tuple(NodeShape(zone, nodes=per_node, resources=dict(amounts_text(each))) for zone in zones),
            recovery_slots=slots,
        )


async def _listen(port: int) -> asyncio.Server:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    return await asyncio.start_server(close, "127.0.0.1", port)


async def run(config: HollowConfig) -> None:
    ports = SystemPorts()
    peers = Peers(ports)
    regions = [HollowRegion(identity, config, ports, peers) for identity in config.regions]
    servers = [await _listen(identity.port) for identity in config.regions]
    starting = asyncio.Semaphore(STARTS_AT_ONCE)
    try:
        async with asyncio.TaskGroup() as tasks:
            for region in regions:
                tasks.create_task(region.run(starting))
            tasks.create_task(peers.run(config.endpoints))
    finally:
        for server in servers:
            server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=HollowConfig)))
