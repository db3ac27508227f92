"""Single objects of a regional cell for the console: a workload's replicas, a node, search, the state of the cell."""

from __future__ import annotations

from typing import cast

from holdfast import __version__
from holdfast.console.answers import (
    Capacity,
    DecisionLine,
    EventRow,
    LeaderRow,
    NodeDetail,
    RegionSystem,
    RegionWorkload,
    SearchHit,
)
from holdfast.console.derived import percentile
from holdfast.console.node_rows import RESOURCES, STATES, node_row
from holdfast.console.region_reads import RegionReader
from holdfast.console.replica_rows import replica_row
from holdfast.console.viewer import Viewer, read_refusal
from holdfast.model.core import Event, Lease
from holdfast.model.decision import Decision
from holdfast.model.errors import Forbidden, NotFound
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import ALL, kind_of
from holdfast.model.node import Node
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time

# Replicas of a workload on one page.
REPLICAS_PAGE = 50
# Events of a workload that one region sends, the newest.
EVENTS_MAX = 30
# Images of a node that its panel lists.
NODE_IMAGES_MAX = 50
# Decisions listed at once, the newest.
DECISIONS_MAX = 50
# Hits of one kind that a search returns.
HITS_MAX = 8


def workload_part(reader: RegionReader, viewer: Viewer, tenant: str, name: str, offset: int) -> RegionWorkload:
    viewer.require_tenant(tenant, "replicas")
    mine = [r for r in reader.replicas(viewer) if r.row.tenant == tenant and r.row.workload == name]
    mine.sort(key=lambda r: (r.row.purpose, len(r.row.name), r.row.name))
    requests = cast("list[SchedulingRequest]", reader.all(SchedulingRequest, tenant, workload=f"{tenant}/{name}"))
    usual = sorted(r.spans[3] for r in mine if r.spans[3] >= 0)
    return RegionWorkload(
        replicas=tuple(r.row for r in mine[offset : offset + REPLICAS_PAGE]),
        total=len(mine),
        waits=tuple(reader.wait_of(r) for r in requests if r.status.pending),
        decisions=tuple(decisions(reader, viewer, tenant, name)[:10]),
        events=tuple(events(reader, tenant, name)),
        usual_ready_s=percentile(usual, 0.5),
    )


def decisions(reader: RegionReader, viewer: Viewer, tenant: str = "", workload: str = "") -> list[DecisionLine]:
    """Decisions, the newest first."""
    found = []
    for decision in cast("list[Decision]", reader.all(Decision, tenant)):
        spec = decision.spec
        if not viewer.sees(decision.metadata.namespace) or (workload and spec.workload != workload):
            continue
        found.append(
            DecisionLine(
                region=reader.region,
                tenant=decision.metadata.namespace,
                name=decision.metadata.name,
                workload=spec.workload,
                at=spec.decided_at,
                placed=sum(bool(e.node) and e.result != "Rejected" for e in spec.entries),
                of=len(spec.entries),
                nodes=spec.nodes,
                feasible=spec.feasible,
                reason=next((e.reason for e in spec.entries if not e.node), ""),
                policy=spec.policy_revision,
            )
        )
    found.sort(key=lambda d: d.at, reverse=True)
    return found


def events(reader: RegionReader, tenant: str, workload: str = "") -> list[EventRow]:
    """The newest Events of a tenant, about one workload and its parts if it is named."""
    found = [e for e in cast("list[Event]", reader.all(Event, tenant)) if not workload or _is_about(e, workload)]
    found.sort(key=lambda e: e.last_timestamp or e.event_time or "", reverse=True)
    return [event_row(event, reader.region) for event in found[:EVENTS_MAX]]


def _is_about(event: Event, workload: str) -> bool:
    name = event.involved_object.name
    return name == workload or name.startswith((f"{workload}-", f"{workload}."))


def event_row(event: Event, region: str) -> EventRow:
    about = event.involved_object
    return EventRow(
        at=event.last_timestamp or event.event_time or event.first_timestamp or "",
        type=event.type,
        reason=event.reason,
        message=event.message,
        object=f"{about.kind}/{about.name}",
        count=max(1, event.count),
        by=event.reporting_component or event.source.component,
        region=region,
    )


def node_detail(reader: RegionReader, viewer: Viewer, name: str) -> NodeDetail:
    refused = read_refusal(viewer, "nodes")
    if refused is not None:
        raise Forbidden(refused.message, facts=refused.facts)
    node = reader.get(Node, name)
    if not isinstance(node, Node):
        raise NotFound(f"node {name}: not found in region {reader.region}")
    row = node_row(node)
    occupied = reader.occupancy()
    allocated, held = occupied.allocated, occupied.held
    slots = cast("list[RecoverySlot]", reader.all(RecoverySlot, node=name))
    replicas = cast("list[Replica]", reader.all(Replica, node=name))
    drain = node.status.drain
    return NodeDetail(
        name=name,
        region=reader.region,
        zone=node.spec.zone,
        pool=node.spec.pool,
        state=STATES[row.letter],
        reason=row.reason,
        since=row.since,
        renewed_at=reader.renewals().get(name, 0.0),
        epoch=node.status.execution.epoch,
        agent_version=node.status.execution.agent_version,
        isolation=node.status.execution.isolation,
        resources={
            r: Capacity(
                total=row.total[r],
                allocated=allocated[name][r] if name in allocated else 0,
                held=held[name][r] if name in held else 0,
            )
            for r in RESOURCES
        },
        drain=f"{drain.phase}: {drain.remaining} replicas left" if drain is not None and drain.phase else "",
        unschedulable=node.spec.unschedulable,
        draining=node.spec.drain,
        taints=tuple(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints),
        replicas=tuple(replica_row(r) for r in replicas[:REPLICAS_PAGE]),
        slots=sum(is_admitted(s) for s in slots),
        images=tuple(f"{i.names[0]} {i.size_bytes}" for i in node.status.execution.images if i.names)[:NODE_IMAGES_MAX],
    )


def search(reader: RegionReader, viewer: Viewer, text: str) -> list[SearchHit]:
    """Replicas, nodes and decisions whose name contains the text."""
    wanted = text.lower()
    hits: list[SearchHit] = []
    for timed in reader.replicas(viewer):
        row = timed.row
        full = f"{row.tenant}/{row.name}"
        if wanted in full and len(hits) < HITS_MAX:
            note = f"{row.stage} on {row.node}" if row.node else row.stage
            path = f"/workloads/{row.tenant}/{row.workload}?replica={row.name}"
            hits.append(SearchHit(kind="Replica", name=full, note=note, path=path, stage=row.stage))
    if read_refusal(viewer, "nodes") is None:
        names = [n.metadata.name for n in cast("list[Node]", reader.all(Node)) if wanted in n.metadata.name]
        hits += [
            SearchHit(kind="Node", name=name, note=reader.region, path=f"/map?region={reader.region}&node={name}")
            for name in names[:HITS_MAX]
        ]
    found = [d for d in decisions(reader, viewer) if wanted in f"{d.tenant}/{d.name}"]
    hits += [
        SearchHit(
            kind="Decision",
            name=f"{d.tenant}/{d.name}",
            note=f"{d.placed} of {d.of} placed",
            path=f"/decisions/{d.region}/{d.tenant}/{d.name}",
        )
        for d in found[:HITS_MAX]
    ]
    return hits


def system(reader: RegionReader) -> RegionSystem:
    store = reader.objects.store_of(kind_of(Replica))
    now_s = reader.ports.clock.now()
    left = [parse_time(c.spec.lease_expires_at) - now_s for c in _copies(reader) if c.spec.lease_expires_at]
    return RegionSystem(
        leaders=leaders(reader),
        version=__version__,
        objects={k.plural: reader.count(k) for k in ALL if k.home.value != "global" and not k.internal},
        revision=store.head,
        behind=max(0, store.head - reader.revision()),
        compacted=store.compacted,
        grants_expiring_s=min(left, default=0.0),
    )


def _copies(reader: RegionReader) -> list[GrantCopy]:
    return cast("list[GrantCopy]", reader.all(GrantCopy))


def leaders(reader: RegionReader) -> tuple[LeaderRow, ...]:
    return tuple(
        LeaderRow(
            cell=reader.region,
            election=lease.metadata.name,
            holder=lease.spec.holder_identity,
            renewed_at=lease.spec.renew_time or "",
            transitions=lease.spec.lease_transitions,
        )
        for lease in cast("list[Lease]", reader.all(Lease))
        if lease.spec.holder_identity and lease.spec.renew_time
    )
