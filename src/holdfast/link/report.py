"""What a region tells the global cell: progress of its assignments, its endpoints, its capacity and its pulse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.flow.active_policy import active_policy
from holdfast.flow.assignment_status import assignment_status
from holdfast.flow.retreat.budget import held_back
from holdfast.link import answering
from holdfast.link.trial import guarded, tally
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.binding import Binding
from holdfast.model.decision import Decision
from holdfast.model.endpoint import Endpoint
from holdfast.model.hold import Hold, is_kept
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, node_capacity, why_not_schedulable
from holdfast.model.override import Override
from holdfast.model.quantity import Amounts, add, amounts, amounts_text
from holdfast.model.region import HeldPlaces, Region, RegionReport, SeenPeer, ZoneReport
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write

_PROGRESS = tuple(
    (field.name, field.encode_name)
    for field in msgspec.structs.fields(AssignmentStatus)
    if field.name not in ("conditions", "observed_generation")
)
"""What a region says of an assignment: every block of its status, by its name here and in JSON."""


def assignment_writes(key: Key, originals: View, here: View) -> Iterable[Write]:
    """The status of one assignment, when the global cell does not have it yet."""
    original = originals.get(Assignment, key.name, key.namespace)
    copy = here.get(Assignment, key.name, key.namespace)
    if original is None or copy is None or copy.uid != original.uid:
        return ()
    replicas = here.by(Replica, "assignment", str(key))
    requests = here.by(SchedulingRequest, "assignment", str(key))
    status = assignment_status(copy, replicas, requests, held_back(replicas, here))
    if status == msgspec.structs.replace(original.status, conditions=()):
        return ()
    blocks = {encoded: getattr(status, name) for name, encoded in _PROGRESS}
    return (
        SetStatus(
            "Assignment", original.key, original.uid, blocks=blocks, observed_generation=status.observed_generation
        ),
    )


def endpoint_writes(key: Key, originals: View, here: View) -> Iterable[Write]:
    """The global copy of one of this region's endpoint slices. Here the region is the original."""
    known = originals.get(Endpoint, key.name, key.namespace)
    mine = here.get(Endpoint, key.name, key.namespace)
    if mine is None:
        return () if known is None else (Delete("Endpoint", key, known.uid),)
    if known is None:
        meta = ObjectMeta(name=key.name, namespace=key.namespace, labels=mine.metadata.labels)
        return (Create(Endpoint(metadata=meta, spec=mine.spec)),)
    if known.spec == mine.spec:
        return ()
    return (Update(msgspec.structs.replace(known, spec=mine.spec)),)


def region_report(
    originals: View,
    here: View,
    region: str,
    now: float,
    peers: tuple[SeenPeer, ...] = (),
    *,
    decisions: Iterable[Decision] = (),
    fresh: View | None = None,
) -> Iterable[Write]:
    """The pulse: how much there is, how much is taken, how much waits. A hint to whoever assigns. `fresh` is what an
    answer to a restored global cell rests on (`answering`)."""
    known = originals.get(Region, region)
    if known is None:
        return ()
    capacity: Amounts = {}
    used: Amounts = {}
    held: Amounts = {}
    nodes = here.list(Node)
    live = [n for n in nodes if not why_not_schedulable(n)]
    for node in live:
        add(capacity, node_capacity(node))
    for binding in here.list(Binding):
        add(used, amounts(binding.spec.resources))
    holds = [h for h in here.list(Hold) if is_kept(h)]
    for hold in holds:
        add(held, amounts(hold.spec.resources))
    deciding = active_policy(here.list(PolicyRevision), here.list(Override), region, now).revision
    guard = guarded(here.list(PolicyRevision), deciding)
    report = RegionReport(
        at=micro_text(now),
        sequence=int(now * 1000),
        incarnation=answering.incarnation(here),
        nodes=len(nodes),
        live_nodes=len(live),
        capacity=dict(amounts_text(capacity)),
        used=dict(amounts_text(used)),
        held=dict(amounts_text(held)),
        pending=sum(r.status.pending for r in here.list(SchedulingRequest)),
        peers=peers,
        policy=deciding,
        zones=_zones(nodes, live),
        places=_places(holds, live),
        answered=answering.answered(originals, here, region, fresh),
        strays=answering.strays(originals, here, region),
        trial=tally(deciding, guard, decisions, here.list(SchedulingRequest), now) if guard is not None else None,
    )
    return (SetStatus("Region", known.key, known.uid, blocks={"report": report}),)


def _zones(nodes: Sequence[Node], live: Sequence[Node]) -> tuple[ZoneReport, ...]:
    heard: dict[str, Amounts] = {}
    counts: dict[str, int] = {}
    for node in live:
        add(heard.setdefault(node.spec.zone, {}), node_capacity(node))
        counts[node.spec.zone] = counts.get(node.spec.zone, 0) + 1
    # A node that was drained or cordoned on purpose is not lost: it counts for neither side.
    meant = [n for n in nodes if not n.spec.unschedulable and not n.spec.drain and not n.metadata.terminating]
    every = sorted({n.spec.zone for n in meant})
    return tuple(
        ZoneReport(
            zone=zone,
            nodes=sum(n.spec.zone == zone for n in meant),
            live_nodes=counts.get(zone, 0),
            capacity=dict(amounts_text(heard.get(zone, {}))),
        )
        for zone in every
    )


def _places(holds: Sequence[Hold], live: Sequence[Node]) -> tuple[HeldPlaces, ...]:
    """Recovery places by budget, shape and zone; a place on a node that is not heard is no place."""
    up = {n.metadata.name for n in live}
    groups: dict[tuple[str, int, str], list[Hold]] = {}
    for hold in holds:
        if hold.spec.node in up:
            groups.setdefault((hold.spec.budget, hold.spec.slot, hold.spec.zone), []).append(hold)
    return tuple(
        HeldPlaces(
            budget=budget,
            zone=zone,
            slot=slot,
            resources=group[0].spec.resources,
            kept=len(group),
            drawn=sum(h.status.draw is not None for h in group),
        )
        for (budget, slot, zone), group in sorted(groups.items())
    )
