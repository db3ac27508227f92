"""Totals of a regional cell for the console: stages, durations, waits, capacity, the map."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.console.answers import (
    Capacity,
    NodeAttention,
    PendingWait,
    RegionMap,
    RegionSummary,
    RepairRow,
    ReplicaRow,
    StageCount,
    StageSpan,
    ZoneColumns,
    ZoneTotal,
)
from holdfast.console.derived import DerivedRows, KeptValues
from holdfast.console.node_rows import RESOURCES, STATES, NodeRow, node_row
from holdfast.console.past import CellHistory
from holdfast.console.replica_rows import SHOWN_STAGES, replica_row
from holdfast.console.viewer import Viewer
from holdfast.foundation.ports import Ports
from holdfast.model.binding import Binding
from holdfast.model.decision import Decision
from holdfast.model.kinds import Kind, kind_of
from holdfast.model.lease_page import LeasePage
from holdfast.model.lifecycle import Stage
from holdfast.model.meta import Object
from holdfast.model.node import Node
from holdfast.model.quantity import amounts
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.model.workload import WorkloadType
from holdfast.store.objects import ObjectReads, Objects

# Period of which durations and counts of passed replicas are shown.
RECENT_S = 3600.0
# Time for which durations and counts of the last hour are kept while no replica changes.
RECENT_FRESH_S = 15.0
# Nodes of a region up to which the map sends each node's heartbeat. Above, only states are sent.
HEARTBEAT_NODES_MAX = 200
# Waits listed by one region, the oldest first.
WAITS_MAX = 200
# Upper bounds of the histogram of a duration, in seconds. A last bucket counts the rest.
HISTOGRAM_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

Durations = NDArray[np.float64]
SPANS = ("scheduling", "binding", "startup", "readiness", "serving")


class TimedReplica(msgspec.Struct, frozen=True):
    """A replica's row, and its times as numbers. `spans` are the durations of `SPANS`; negative if not taken."""

    row: ReplicaRow
    since_s: float
    bound_s: float
    serving_s: float
    failed_s: float
    spans: tuple[float, ...]
    needs_repair: bool = False
    at_work: bool = False
    """Whether it is a running replica of a batch workload."""


class _NodeClaim(msgspec.Struct, frozen=True):
    node: str
    used: tuple[tuple[str, int], ...]


class Occupancy(msgspec.Struct, frozen=True):
    """By node: allocated amounts, amounts held for recovery, and the number of bindings."""

    allocated: dict[str, dict[str, int]]
    held: dict[str, dict[str, int]]
    bindings: dict[str, int]


class RegionReader:
    """Reads one regional cell. Rows of unchanged objects are kept between queries."""

    def __init__(self, region: str, objects: ObjectReads, ports: Ports) -> None:
        self.region = region
        self.objects = objects
        self.ports = ports
        self.planning = asyncio.Lock()
        """Held while a what-if question is planned: one at a time."""
        self.used: Mapping[str, Mapping[str, int]] = {}
        """What the tasks of each node use, as its agent answered last; empty where nobody asked."""
        self._replicas: DerivedRows[Replica, TimedReplica] = DerivedRows(self._timed)
        self._nodes: DerivedRows[Node, NodeRow] = DerivedRows(node_row)
        self._claims: DerivedRows[Binding, _NodeClaim] = DerivedRows(_claim_of)
        self._kept = KeptValues()

    def all(self, kind: type[Any], namespace: str = "", **fields: str) -> list[Any]:
        return self.objects.list(kind_of(kind), namespace, fields=fields or None)[0]

    def get(self, kind: type[Any], name: str, namespace: str = "") -> Object | None:
        return self.objects.get(kind_of(kind), namespace, name)

    def revision(self) -> int:
        return self.objects.head(kind_of(Replica))

    def changed_at(self, *kinds: type[Any]) -> tuple[int, ...]:
        """Changes when an object of one of these kinds changes."""
        return tuple(self.objects.changed_at(kind_of(kind)) for kind in kinds)

    def count(self, kind: Kind) -> int:
        return self._kept.value(kind.name, self.objects.changed_at(kind), lambda: len(self.objects.list(kind)[0]))

    def replicas(self, viewer: Viewer) -> list[TimedReplica]:
        def rows() -> list[TimedReplica]:
            return self._replicas.rows(self.all(Replica))

        found = self._kept.value("replicas", self.changed_at(Replica), rows)
        return found if viewer.tenants is None else [r for r in found if viewer.sees(r.row.tenant)]

    def node_rows(self) -> list[NodeRow]:
        """All nodes by zone and name."""

        def rows() -> list[NodeRow]:
            return sorted(self._nodes.rows(self.all(Node)), key=lambda n: (n.zone, _name_order(n.name)))

        return self._kept.value("nodes", self.changed_at(Node), rows)

    # Summary

    def summary(self, viewer: Viewer) -> RegionSummary:
        """Computed anew if an object that it counts has changed, or if a replica may have left the last hour."""
        kinds = (Replica, Node, Binding, RecoverySlot, SchedulingRequest)
        version = (*self.changed_at(*kinds), int(self.ports.clock.now() / RECENT_FRESH_S))
        return self._kept.value(("summary", viewer.scope), version, lambda: self._summary(viewer))

    def _summary(self, viewer: Viewer) -> RegionSummary:
        now_s = self.ports.clock.now()
        rows = self.replicas(viewer)
        nodes = self.node_rows()
        zones, total = self.zone_totals()
        waits = self.pending_waits(viewer)
        return RegionSummary(
            replicas=len(rows),
            nodes=len(nodes),
            live=sum(n.live for n in nodes),
            stages=_stages(rows),
            spans=_spans(rows, now_s),
            waits=tuple(waits[:WAITS_MAX]),
            waiting=sum(w.replicas for w in waits),
            zones=zones,
            resources=total,
            repairs=sum(r.needs_repair for r in rows),
            failed_last_hour=sum(now_s - r.failed_s < RECENT_S for r in rows),
            served_last_hour=sum(now_s - r.serving_s < RECENT_S for r in rows),
        )

    def pending_waits(self, viewer: Viewer) -> list[PendingWait]:
        """Requests with pending replicas, the oldest first."""
        found = []
        for request in cast("list[SchedulingRequest]", self.all(SchedulingRequest)):
            if request.status.pending and viewer.sees(request.metadata.namespace):
                found.append(self.wait_of(request))
        return sorted(found, key=lambda w: (w.since, w.tenant, w.workload))

    def wait_of(self, request: SchedulingRequest) -> PendingWait:
        status = request.status
        first = status.reasons[0] if status.reasons else None
        return PendingWait(
            region=self.region,
            tenant=request.metadata.namespace,
            workload=request.spec.workload,
            request=request.metadata.name,
            reason=first.reason if first is not None else "Queued",
            message=first.message if first is not None else "not tried yet",
            replicas=status.pending,
            since=self._waiting_since(request),
            position=status.position,
            attempts=status.attempts,
            priority=request.spec.priority,
            next_retry_at=status.next_retry_at,
            retry_on=status.retry_on,
            decision=status.decision,
            gang=request.spec.gang is not None,
        )

    def _waiting_since(self, request: SchedulingRequest) -> str:
        """When the first pending member was queued; the request itself may be older."""
        tenant = request.metadata.namespace
        waiting = []
        for member in request.spec.members:
            replica = self.get(Replica, member.name, tenant)
            if isinstance(replica, Replica) and not replica.status.placement.node:
                waiting.append(replica_row(replica).since or replica.metadata.creation_timestamp)
        return min(waiting, default=request.metadata.creation_timestamp)

    def repairs(self, viewer: Viewer) -> list[RepairRow]:
        found = []
        for timed in self.replicas(viewer):
            replica = self.get(Replica, timed.row.name, timed.row.tenant) if timed.needs_repair else None
            repair = replica.status.repair if isinstance(replica, Replica) else None
            if isinstance(replica, Replica) and repair is not None:
                found.append(
                    RepairRow(
                        region=self.region,
                        tenant=replica.metadata.namespace,
                        replica=replica.metadata.name,
                        reason=repair.reason,
                        message=repair.message,
                        state=repair.state,
                        at=repair.at,
                    )
                )
        return sorted(found, key=lambda r: r.at, reverse=True)

    # Capacity

    def occupancy(self) -> Occupancy:
        return self._kept.value("occupancy", self.changed_at(Binding, RecoverySlot), self._occupancy)

    def _occupancy(self) -> Occupancy:
        allocated: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        count: dict[str, int] = defaultdict(int)
        for claim in self._claims.rows(self.all(Binding)):
            count[claim.node] += 1
            node = allocated[claim.node]
            for name, amount in claim.used:
                node[name] += amount
        held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for slot in cast("list[RecoverySlot]", self.all(RecoverySlot)):
            if is_admitted(slot) and (slot.status.consumer is None or not slot.status.consumer.claim):
                for name, amount in amounts(slot.spec.resources).items():
                    held[slot.spec.node][name] += amount
        return Occupancy(allocated, held, count)

    def zone_totals(self) -> tuple[tuple[ZoneTotal, ...], dict[str, Capacity]]:
        version = self.changed_at(Node, Binding, RecoverySlot)
        return self._kept.value("zones", version, lambda: self._zone_totals(self.node_rows()))

    def _zone_totals(self, nodes: Iterable[NodeRow]) -> tuple[tuple[ZoneTotal, ...], dict[str, Capacity]]:
        occupied = self.occupancy()
        allocated, held = occupied.allocated, occupied.held
        sums: dict[str, dict[str, list[int]]] = defaultdict(lambda: {name: [0, 0, 0] for name in RESOURCES})
        counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for node in nodes:
            counts[node.zone][0] += 1
            counts[node.zone][1] += node.live
            counts[node.zone][2] += node.letter != "l"
            for name in RESOURCES:
                cell = sums[node.zone][name]
                cell[0] += node.total[name]
                cell[1] += allocated[node.name][name] if node.name in allocated else 0
                cell[2] += held[node.name][name] if node.name in held else 0
        zones = tuple(
            ZoneTotal(
                zone=zone,
                nodes=counts[zone][0],
                live=counts[zone][1],
                attention=counts[zone][2],
                resources={n: Capacity(total=v[0], allocated=v[1], held=v[2]) for n, v in sums[zone].items()},
            )
            for zone in sorted(sums)
        )
        total = {
            name: Capacity(
                total=sum(z.resources[name].total for z in zones),
                allocated=sum(z.resources[name].allocated for z in zones),
                held=sum(z.resources[name].held for z in zones),
            )
            for name in RESOURCES
        }
        return zones, total

    def map(self, viewer: Viewer, resource: str) -> RegionMap:
        """A small region sends heartbeats and use with its map, so its map is new every time."""
        nodes = self.node_rows()
        if len(nodes) <= HEARTBEAT_NODES_MAX:
            return self._map(nodes, resource, self.renewals())
        version = self.changed_at(Node, Binding, RecoverySlot)
        return self._kept.value(("map", resource), version, lambda: self._map(nodes, resource, {}))

    def _map(self, nodes: list[NodeRow], resource: str, renewed: dict[str, float]) -> RegionMap:
        occupied = self.occupancy()
        zones: dict[str, list[NodeRow]] = defaultdict(list)
        for node in nodes:
            zones[node.zone].append(node)
        columns = tuple(
            _columns(zone, rows, occupied, renewed, resource, self.used) for zone, rows in sorted(zones.items())
        )
        totals, _ = self.zone_totals()
        return RegionMap(nodes=len(nodes), zones=columns, totals=totals, attention=_attention(nodes))

    def renewals(self) -> dict[str, float]:
        """The newest renewal of each node's lease, Unix time."""
        found: dict[str, float] = {}
        for page in cast("list[LeasePage]", self.all(LeasePage)):
            for node, lease in page.spec.leases.items():
                found[node] = max(lease.renewed_at_s, found.get(node, 0.0))
        return found

    def _timed(self, replica: Replica) -> TimedReplica:
        row = replica_row(replica)
        decision = self.get(Decision, row.decision, row.tenant) if row.decision else None
        if isinstance(decision, Decision):
            row = msgspec.structs.replace(row, decided_at=decision.spec.decided_at)
        row = msgspec.structs.replace(row, region=self.region)
        queued, decided, bound = _s(row.queued_at), _s(row.decided_at), _s(row.bound_at)
        started, ready, serving = _s(row.started_at), _s(row.ready_at), _s(row.serving_at)
        # After a restart of the task, its start is that of the restart.
        spans = (
            _gap(queued, decided),
            _gap(decided, bound),
            _gap(bound, started) if not row.restarts else -1.0,
            _gap(started, ready),
            _gap(ready, serving),
        )
        ran = replica.status.execution
        failed = _s(ran.last_exit.at) if ran is not None and ran.last_exit is not None and ran.restarts else 0.0
        repair = replica.status.repair
        needs_repair = repair is not None and repair.attempt == replica.status.placement.attempt
        at_work = replica.spec.type is WorkloadType.BATCH and row.stage in (Stage.RUNNING, Stage.READY)
        return TimedReplica(row, _s(row.since), bound, serving, failed, spans, needs_repair, at_work)


def region_history(region: str, objects: Objects, ports: Ports) -> CellHistory[RegionReader]:
    """Readers of this region's past."""
    return CellHistory(objects, ports, lambda past, then: RegionReader(region, past, then))


def _s(text: str) -> float:
    return parse_time(text) if text else 0.0


def _gap(start: float, end: float) -> float:
    """A duration; -1 if one end is missing. Queueing is recorded in whole seconds, so a gap may come out negative."""
    return max(0.0, end - start) if start and end else -1.0


def _claim_of(binding: Binding) -> _NodeClaim:
    return _NodeClaim(binding.spec.node, tuple(amounts(binding.spec.resources).items()))


def _stages(rows: list[TimedReplica]) -> tuple[StageCount, ...]:
    count: dict[str, int] = defaultdict(int)
    at_work: dict[str, int] = defaultdict(int)
    oldest: dict[str, TimedReplica] = {}
    for timed in rows:
        name = timed.row.stage
        count[name] += 1
        at_work[name] += timed.at_work
        if timed.since_s and not timed.at_work and (name not in oldest or timed.since_s < oldest[name].since_s):
            oldest[name] = timed
    return tuple(
        StageCount(
            stage=name,
            count=count[name],
            at_work=at_work[name],
            oldest_since_s=oldest[name].since_s if name in oldest else 0.0,
            oldest=f"{oldest[name].row.tenant}/{oldest[name].row.name}" if name in oldest else "",
        )
        for name in SHOWN_STAGES
    )


def _spans(rows: list[TimedReplica], now_s: float) -> tuple[StageSpan, ...]:
    since_s = now_s - RECENT_S
    recent = [r for r in rows if r.bound_s > since_s]
    durations: Durations = np.array([r.spans for r in recent], dtype=np.float64).reshape(len(recent), len(SPANS))
    return tuple(_span(name, column, recent, durations) for column, name in enumerate(SPANS))


def _span(name: str, column: int, rows: list[TimedReplica], durations: Durations) -> StageSpan:
    taken = durations[:, column]
    slowest = int(np.argmax(taken)) if len(taken) else 0
    values = np.sort(taken[taken >= 0])
    if not len(values):
        return StageSpan(name=name, histogram=(0,) * (len(HISTOGRAM_BOUNDS_S) + 1))
    p50, p90, p99 = (float(values[min(len(values) - 1, int(part * len(values)))]) for part in (0.5, 0.9, 0.99))
    buckets = np.bincount(np.searchsorted(HISTOGRAM_BOUNDS_S, values), minlength=len(HISTOGRAM_BOUNDS_S) + 1)
    return StageSpan(
        name=name,
        count=len(values),
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        max_s=float(values[-1]),
        slowest=f"{rows[slowest].row.tenant}/{rows[slowest].row.name}",
        histogram=tuple(buckets.tolist()),
    )


def _name_order(name: str) -> tuple[str, int, str]:
    """Names that differ only in their number stand in the order of the number."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits and len(digits) < 12 else 0, name


def _columns(  # noqa: PLR0917 - one column each
    zone: str,
    rows: list[NodeRow],
    occupied: Occupancy,
    renewed: dict[str, float],
    resource: str,
    used: Mapping[str, Mapping[str, int]],
) -> ZoneColumns:
    prefix = _common_prefix([r.name for r in rows])

    def part(of: Mapping[str, Mapping[str, int]], row: NodeRow) -> int:
        total = row.total.get(resource, 0)
        return min(1000, of[row.name].get(resource, 0) * 1000 // total) if total and row.name in of else 0

    return ZoneColumns(
        zone=zone,
        prefix=prefix,
        names=tuple(r.name[len(prefix) :] for r in rows),
        allocated=tuple(part(occupied.allocated, r) for r in rows),
        held=tuple(part(occupied.held, r) for r in rows),
        states="".join(r.letter for r in rows),
        renewed=tuple(int(renewed.get(r.name, 0.0)) for r in rows) if renewed else (),
        replicas=tuple(occupied.bindings.get(r.name, 0) for r in rows),
        used=tuple(part(used, r) if r.name in used else -1 for r in rows) if used else (),
    )


def _common_prefix(names: list[str]) -> str:
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same].rstrip("0123456789")


def _attention(nodes: list[NodeRow]) -> tuple[NodeAttention, ...]:
    groups: dict[tuple[str, str], list[NodeRow]] = defaultdict(list)
    for node in nodes:
        if node.letter != "l":
            groups[node.zone, node.letter].append(node)
    return tuple(
        NodeAttention(
            zone=zone,
            state=STATES[letter],
            reason=rows[0].reason,
            count=len(rows),
            examples=tuple(r.name for r in rows[:3]),
            since=min((r.since for r in rows if r.since), default=""),
        )
        for (zone, letter), rows in sorted(groups.items())
    )
