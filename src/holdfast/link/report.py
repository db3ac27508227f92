"""Reports of a region to the global cell: Assignment status, Endpoints, and the region report (capacity, heartbeat)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from holdfast.link import node_shapes, restore_handshake
from holdfast.link.policy_trial import active_guard, count_outcomes
from holdfast.model.active_policy import active_policy
from holdfast.model.assignment import Assignment, AssignmentStatus, names_ordinals
from holdfast.model.binding import Binding, Reservation
from holdfast.model.cell_identity import cell_identity
from holdfast.model.decision import Decision
from holdfast.model.election_term import Term, is_restore_in_progress
from holdfast.model.endpoint import Endpoint
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, node_capacity, unschedulable_reason
from holdfast.model.override import Override
from holdfast.model.quantity import STORAGE, Amounts, add, amounts, amounts_text
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.region import CellWarning, PeerProbeResult, RecoverySlotReport, Region, RegionReport, ZoneReport
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRules
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.volume import Volume, VolumeClaim, volume_bytes
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write
from holdfast.scheduling.assignment_status import assignment_status
from holdfast.scheduling.disruption_budget import blocked_node_evictions
from holdfast.scheduling.eviction import over_quota, preempted
from holdfast.scheduling.eviction.pending_evictions import pending_evictions
from holdfast.scheduling.policy_expressions import closes_to_all_requests

_CLOSED_BY_OPERATORS = frozenset({Reason.NODE_TERMINATING, Reason.NODE_DRAINING, Reason.NODE_CORDONED})
# Claims in one report whose data is deleted. The others follow when the global cell has recorded these.
CLAIMS_WITHOUT_DATA_MAX = 200
_STATUS_FIELDS = tuple(
    (field.name, field.encode_name)
    for field in msgspec.structs.fields(AssignmentStatus)
    if field.name not in ("conditions", "observed_generation")
)
"""Status fields of an Assignment that a region reports: Python name and JSON name."""


def assignment_writes(key: Key, originals: View, here: View) -> Iterable[Write]:
    """The write of one Assignment's status, if the global cell does not have it yet.

    During a restore of this region nothing is reported about exclusive work. A withdrawn ordinal that is missing from
    the report may start in another region, and agents may still run it (S7)."""
    original = originals.get(Assignment, key.name, key.namespace)
    copy = here.get(Assignment, key.name, key.namespace)
    if original is None or copy is None or copy.uid != original.uid:
        return ()
    if names_ordinals(copy.spec) and restore_handshake.is_region_restoring(here):
        return ()
    replicas = here.by(Replica, "assignment", str(key))
    requests = here.by(SchedulingRequest, "assignment", str(key))
    blocked = blocked_node_evictions(replicas, here) + preempted.blocked_preemptions(replicas, here)
    status = assignment_status(copy, replicas, requests, blocked, pending_evictions(copy, replicas, here))
    if status == msgspec.structs.replace(original.status, conditions=()):
        return ()
    blocks = {encoded: getattr(status, name) for name, encoded in _STATUS_FIELDS}
    return (
        SetStatus(
            "Assignment", original.key, original.uid, blocks=blocks, observed_generation=status.observed_generation
        ),
    )


def woken_by_part(new: Any, old: Any, view: View) -> Iterable[Key]:
    """Wakes the Assignment of a changed Replica or SchedulingRequest."""
    return _assignments_of([new if new is not None else old])


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """Wakes the Assignments on a node that starts or ends a drain: their pending evictions change."""
    if new is None or old is None or (new.spec.drain, new.spec.taints) == (old.spec.drain, old.spec.taints):
        return ()
    return _assignments_of(view.by(Replica, "node", new.metadata.name))


def _volume_resources(volume: Volume) -> Mapping[str, int]:
    return {STORAGE: volume_bytes(volume.spec.size)}


def woken_by_reservation(new: Reservation | None, old: Reservation | None, view: View) -> Iterable[Key]:
    """Wakes the Assignments of nominated victims: their pending evictions change."""
    item = new if new is not None else old
    return _assignments_of(preempted.victims_of(item, view)) if item is not None and item.spec.victims else ()


def woken_by_restore(new: Term | None, old: Term | None, view: View) -> Iterable[Key]:
    """Wakes the exclusive Assignments when a restore of this region is complete."""
    ended = is_restore_in_progress(old) and not is_restore_in_progress(new)
    return [a.key for a in view.list(Assignment) if names_ordinals(a.spec)] if ended else ()


def woken_by_copy(new: GrantCopy | None, old: GrantCopy | None, view: View) -> Iterable[Key]:
    """Wakes all Assignments of a tenant that is over its limit: their pending evictions change."""
    tenant = next(copy.metadata.namespace for copy in (new, old) if copy is not None)
    return (
        [a.key for a in view.list(Assignment, tenant)] if over_quota.quota_excess(view.list(GrantCopy, tenant)) else ()
    )


def _assignments_of(parts: Iterable[Any]) -> Iterable[Key]:
    return [Key(part.metadata.namespace, part.spec.assignment) for part in parts]


def endpoint_writes(key: Key, originals: View, here: View) -> Iterable[Write]:
    """The write of the global copy of one Endpoint of this region."""
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


def report_sequence(now: float) -> int:
    """Sequence number of a report made now."""
    return int(now * 1000)


def region_report(
    originals: View,
    here: View,
    region: str,
    now: float,
    peers: tuple[PeerProbeResult, ...] = (),
    *,
    decisions: Iterable[Decision] = (),
    fresh: View | None = None,
    holding: str = "",
    warnings: tuple[CellWarning, ...] = (),
) -> Iterable[Write]:
    """The region report: nodes, capacity, usage, free shapes, pending replicas, peers, policy and recovery slots.

    `fresh` are the objects for the acknowledgement of a restore (see `restore_handshake`), `holding` is the reason for
    held work, `warnings` are about the region's own cell."""
    known = originals.get(Region, region)
    if known is None:
        return ()
    reserved: Amounts = {}
    census = here.total(Node, "", _node_counts)
    zones = _zones(census)
    capacity: Amounts = {}
    for zone in zones:
        add(capacity, amounts(zone.capacity))
    used = dict(here.total(Binding, "", _bound_resources))
    add(used, here.total(Volume, "", _volume_resources))
    slots = [h for h in here.list(RecoverySlot) if is_admitted(h)]
    for slot in slots:
        add(reserved, amounts(slot.spec.resources))
    policy = active_policy(here.list(PolicyRevision), here.list(Override), region, now)
    deciding = policy.revision
    guard = active_guard(here.list(PolicyRevision), deciding)
    own = cell_identity(here)
    report = RegionReport(
        at=micro_text(now),
        sequence=report_sequence(now),
        incarnation=restore_handshake.own_incarnation(here),
        identity=own.identity if own is not None else "",
        era=own.era if own is not None else "",
        nodes=census.get("nodes", 0),
        live_nodes=census.get("live", 0),
        capacity=dict(amounts_text(capacity)),
        used=dict(amounts_text(used)),
        recovery_reserved=dict(amounts_text(reserved)),
        pending=here.total(SchedulingRequest, "", _pending).get("replicas", 0),
        peers=peers,
        policy=deciding,
        zones=tuple(zone for zone in zones if zone.nodes),
        free_shapes=node_shapes.free_shapes(here),
        node_shapes=node_shapes.node_shapes(here),
        recovery_slots=_slot_reports(slots, here, policy.rules),
        restore_acknowledged=restore_handshake.acknowledged_incarnation(originals, here, region, fresh),
        unknown_grants=restore_handshake.unknown_grants(originals, here, region),
        policy_trial=count_outcomes(deciding, guard, decisions, here.list(SchedulingRequest), now)
        if guard is not None
        else None,
        holding=holding,
        warnings=warnings,
        claims_without_data=_claims_without_data(here, region),
    )
    return (SetStatus("Region", known.key, known.uid, blocks={"report": report}),)


def _ordered_deletions(claim: VolumeClaim) -> Mapping[tuple[str, str, tuple[str, ...]], int]:
    order = claim.status.data_deletion
    return {(str(claim.key), claim.uid, order.confirmed_by): 1} if order is not None else {}


def _claims_without_data(here: View, region: str) -> tuple[str, ...]:
    """Claims whose data was ordered to be deleted, by uid, of which no Volume is left here and of which the global cell
    has not recorded it. Claims that wait for another region therefore take no place in the report."""
    counts = here.total(VolumeClaim, "", _ordered_deletions)
    ordered = sorted(found for found, count in counts.items() if count)
    done = (
        uid
        for key, uid, confirmed_by in ordered
        if region not in confirmed_by and all(v.spec.claim_uid != uid for v in here.by(Volume, "claim", key))
    )
    return tuple(islice(done, CLAIMS_WITHOUT_DATA_MAX))


def _pending(request: SchedulingRequest) -> Mapping[str, int]:
    return {"replicas": request.status.pending} if request.status.pending else {}


def _bound_resources(binding: Binding) -> Mapping[str, int]:
    return amounts(binding.spec.resources)


def _node_counts(node: Node) -> Mapping[str | tuple[str, str] | tuple[str, str, str], int]:
    """Counts of one node for the report. A maintained total, because a region has thousands of nodes."""
    zone = node.spec.zone
    found: dict[str | tuple[str, str] | tuple[str, str, str], int] = {"nodes": 1}
    # A cordoned, draining or deleted node is not lost: it counts neither as expected nor as live.
    refusal = unschedulable_reason(node)
    if refusal not in _CLOSED_BY_OPERATORS:
        found[zone, "expected"] = 1
    if not refusal:
        found["live"] = found[zone, "live"] = 1
        for name, amount in node_capacity(node).items():
            found[zone, "capacity", name] = amount
    return found


def _zones(census: Mapping[Any, int]) -> list[ZoneReport]:
    """Reports of all zones with nodes, sorted by name."""
    capacity: dict[str, Amounts] = {}
    for key, amount in census.items():
        if isinstance(key, tuple):
            there = capacity.setdefault(key[0], {})
            if len(key) == 3:
                there[key[2]] = amount
    return [
        ZoneReport(
            zone=zone,
            nodes=census.get((zone, "expected"), 0),
            live_nodes=census.get((zone, "live"), 0),
            capacity=dict(sorted(amounts_text(there).items())),
        )
        for zone, there in sorted(capacity.items())
    ]


def _slot_reports(slots: Sequence[RecoverySlot], here: View, rules: PolicyRules) -> tuple[RecoverySlotReport, ...]:
    """Admitted slots on schedulable nodes, by budget, shape and zone. A free slot on a node that the policy closes to
    every request holds no replica, so it is left out."""
    groups: dict[tuple[str, int, str], list[RecoverySlot]] = {}
    closed: dict[str, bool] = {}
    for slot in slots:
        node = here.get(Node, slot.spec.node)
        if node is None or unschedulable_reason(node):
            continue
        if slot.status.consumer is None and slot.spec.node not in closed:
            closed[slot.spec.node] = closes_to_all_requests(rules.filter_expressions, node)
        if slot.status.consumer is not None or not closed[slot.spec.node]:
            groups.setdefault((slot.spec.budget, slot.spec.shape_index, slot.spec.zone), []).append(slot)
    return tuple(
        RecoverySlotReport(
            budget=budget,
            zone=zone,
            shape_index=shape_index,
            resources=group[0].spec.resources,
            admitted=len(group),
            consumed=sum(h.status.consumer is not None for h in group),
        )
        for (budget, shape_index, zone), group in sorted(groups.items())
    )
