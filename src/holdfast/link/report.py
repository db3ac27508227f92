"""What a region tells the global cell: progress of its assignments, its endpoints, its capacity and its pulse."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.flow.assignment_status import assignment_status
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.endpoint import Endpoint
from holdfast.model.hold import Hold
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, node_capacity, why_not_schedulable
from holdfast.model.quantity import Amounts, add, amounts, amounts_text
from holdfast.model.region import Region, RegionReport
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write


def assignment_writes(key: Key, originals: View, here: View) -> Iterable[Write]:
    """The status of one assignment, when the global cell does not have it yet."""
    original = originals.get(Assignment, key.name, key.namespace)
    copy = here.get(Assignment, key.name, key.namespace)
    if original is None or copy is None or copy.uid != original.uid:
        return ()
    replicas = here.by(Replica, "assignment", str(key))
    requests = here.by(SchedulingRequest, "assignment", str(key))
    status = assignment_status(copy, replicas, requests)
    if status == msgspec.structs.replace(original.status, conditions=()):
        return ()
    blocks = {
        field.encode_name: getattr(status, field.name)
        for field in msgspec.structs.fields(type(status))
        if field.name not in ("conditions", "observed_generation")
    }
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


def region_report(originals: View, here: View, region: str, now: float) -> Iterable[Write]:
    """The pulse: how much there is, how much is taken, how much waits. A hint to whoever assigns."""
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
    for hold in here.list(Hold):
        add(held, amounts(hold.spec.resources))
    report = RegionReport(
        at=micro_text(now),
        sequence=int(now * 1000),
        nodes=len(nodes),
        live_nodes=len(live),
        capacity=dict(amounts_text(capacity)),
        used=dict(amounts_text(used)),
        held=dict(amounts_text(held)),
        pending=sum(r.status.pending for r in here.list(SchedulingRequest)),
    )
    return (SetStatus("Region", known.key, known.uid, blocks={"report": report}),)
