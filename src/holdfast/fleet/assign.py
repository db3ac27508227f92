"""assign: decides how many replicas of a workload each region runs. Owns normal Assignments and their finalizer.

- Reported capacity is a hint: it orders regions and never forbids one.
- New Assignments count in the next decision, because it reads the Assignments themselves.
- A region that is no longer allowed is emptied only after the other regions serve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

import msgspec

from holdfast.fleet import rollout
from holdfast.fleet.capacity import RegionHeadroom, region_headroom
from holdfast.fleet.disruption_shares import DisruptionShares, disruption_shares, with_share_peak
from holdfast.fleet.done_indexes import done_indexes, is_recorded, with_done_indexes
from holdfast.fleet.gang_shares import add_gang_members
from holdfast.fleet.ordinals import TENURE_STEP_S, Ordinals, advance_tenure_wait, assign_ordinals, with_withdrawal
from holdfast.fleet.reassign import Reassignment, reassignment
from holdfast.fleet.region_choice import candidate_regions
from holdfast.fleet.region_latency import latency_text, near_regions
from holdfast.fleet.spillover import assigned_units, avoided_regions, spill_over
from holdfast.fleet.volume_claims import with_claims
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.assignment import Assignment, AssignmentSpec, Purpose, assignment_name
from holdfast.model.config_references import restarting_objects
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import API_VERSION, Key, ObjectMeta, OwnerReference
from holdfast.model.override import Override, active_avoidances, avoidance_of, stays_until_s
from holdfast.model.ownership import ASSIGNMENTS_FINALIZER
from holdfast.model.priority_class import PriorityClass
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import template_hash
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import micro_text, parse_time
from holdfast.model.trace_ids import TRACEPARENT_ANNOTATION, kept_context
from holdfast.model.view import View
from holdfast.model.workload import Batch, Workload, WorkloadType, is_indexed, resolved_template, wanted_replicas
from holdfast.model.writes import NO_CHANGES, Create, Delete, Notice, Outcome, Update, Write

# Time for the first report of a new region. Until then assign waits, so that the first region does not get everything.
REGION_FIRST_REPORT_GRACE_S = 15.0

Shares = dict[str, int]
"""Size of the Assignment in each region: replicas, or completions of a batch."""


def decide(key: Key, view: View, now: float) -> Outcome:
    """The Assignments of one workload."""
    workload = view.get(Workload, key.name, key.namespace)
    if workload is None:
        return NO_CHANGES
    every = view.by(Assignment, "workload", str(key))
    stored = [a for a in every if a.spec.purpose is Purpose.NORMAL]
    borrowed = [a for a in every if a.spec.purpose is Purpose.RECOVERY]
    if workload.metadata.terminating:
        return _drain_deleted(workload, stored, recovering=bool(borrowed))
    if not every and resolved_template(workload) is None:
        return NO_CHANGES  # nothing may run before the tag of its image is resolved, which wakes this workload again
    regions = view.list(Region)
    allowed = [r for r in regions if not region_refusal_reason(workload, r)]
    if not stored and (_awaits_versions(workload) or any(_just_created(r, now) for r in allowed)):
        return Outcome(requeue_after_s=1.0)  # new regions report first: otherwise the first would get everything
    avoidances = active_avoidances(view.list(Override), now)
    open_to_more = [r for r in allowed if accepts_new_replicas(workload, r, avoidances, now)]
    away = reassignment(workload, stored, view, now) if open_to_more else Reassignment()
    gone = {r.metadata.name for r in allowed if stops_without_contact(workload, r)} if open_to_more else frozenset()
    staying = [r for r in allowed if r.metadata.name not in gone | away.regions]
    near = near_regions(workload, open_to_more, view, now)
    wanted = _shares(workload, stored, staying, near, view, left=avoided_regions(workload, now))
    moves = spill_over(workload, stored, wanted, open_to_more, view, now=now)
    shares = {**moves.shares, **away.kept}
    desired = sum(shares.values())
    ordinals: Ordinals = {}
    done, batch = done_indexes(workload, stored), workload.spec.batch
    if batch is not None and is_indexed(batch):
        ordinals = assign_ordinals(shares, stored, done, batch.completions)
    elif workload.spec.exclusive is not None:
        ordinals = assign_ordinals(shares, stored)
    if ordinals:
        shares = {region: len(given) for region, given in ordinals.items()}
    writes: list[Write] = list(moves.writes)
    notices: list[Notice] = list(moves.notices)
    current = {a.spec.region: a for a in stored}
    moved = _shares_serve(workload, shares, current)
    holding = {region for region, share in shares.items() if share} | {
        a.spec.region for a in borrowed if assigned_units(a)
    }
    budget = disruption_shares(workload, holding, every)
    for region in sorted({*shares, *current}):
        spec = assignment_spec(
            workload,
            region,
            shares.get(region, 0),
            view,
            ordinals=ordinals.get(region, ()),
            stored=current.get(region),
            disruption_share=budget.get(region),
            because=_joined(
                latency_text(workload, region, view, now), moves.explanations.get(region, away.explanation)
            ),
        )
        spec, may_empty = with_done_indexes(spec, done), moved or region in moves.emptied
        write = _settle(workload, spec, shares.get(region, 0), current.get(region), region, moved=may_empty)
        if write is None:
            continue
        writes.append(write)
        if isinstance(write, Create | Update) and isinstance(write.object, Assignment):
            said = f"{write.object.spec.replicas} replica(s) in {region}: {write.object.spec.reason}"
            notices.append(Notice(workload, Reason.ASSIGNED, said))
    writes += _recovery_updates(workload, borrowed, budget, view)
    if sum(shares.values()) < desired and needs_tenure(workload.spec.exclusive):
        touched = {write.object.key for write in writes if isinstance(write, Update)}
        steps = [found for a in stored if a.key not in touched and (found := advance_tenure_wait(a, now)) is not None]
        writes += [Update(step) for step in steps]
        return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=TENURE_STEP_S)
    again_s = min((s for s in (moves.requeue_after_s, away.requeue_after_s) if s is not None), default=None)
    return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=again_s)


def stops_without_contact(workload: Workload, region: Region) -> bool:
    """Whether the workload's exclusive replicas stop in a region that is out of contact, because their tenure expires.
    They may then move."""
    unreachable = region.status.health.state in (HealthState.LOST, HealthState.AWAITING_WITNESS)
    return unreachable and needs_tenure(workload.spec.exclusive)


def region_refusal_reason(workload: Workload, region: Region) -> str:
    """Why the workload's placement rules forbid a region; empty if they allow it."""
    rules = workload.spec.placement
    name = region.metadata.name
    if region.metadata.terminating:
        return "the region is being deleted"
    if not eligibility.allows_region(rules, name):
        return (
            "in spec.placement.excludedRegions" if name in rules.excluded_regions else "not in spec.placement.regions"
        )
    if not eligibility.satisfies_residency(rules, region.spec.residency):
        return f"has none of the residency tags {', '.join(rules.residency)}"
    if rules.zones and not open_zones(workload, region):
        return "has none of the allowed zones"
    return ""


def open_zones(
    workload: Workload, region: Region, avoidances: Collection[Override] = (), stays_until_s: float = inf
) -> list[str]:
    """Zones of the region that the placement rules allow and that none of these active overrides closes to replicas
    that stay until then."""
    name, tenant, work = region.metadata.name, workload.metadata.namespace, workload.metadata.name
    rules, zones = workload.spec.placement, region.spec.zones or ("",)
    return [
        zone
        for zone in zones
        if eligibility.allows_zone(rules, zone)
        and not avoidance_of(
            avoidances, region=name, zone=zone, tenant=tenant, workload=work, stays_until_s=stays_until_s
        )
    ]


def _awaits_versions(workload: Workload) -> bool:
    """Whether the versions of the workload's content are unknown: they are part of its first revision."""
    return workload.status.config is None and bool(restarting_objects(workload.spec.template))


def _just_created(region: Region, now: float) -> bool:
    """Whether the region is so new that its first report may still arrive."""
    if region.status.health.state is not HealthState.UNKNOWN:
        return False
    return now - parse_time(region.metadata.creation_timestamp) < REGION_FIRST_REPORT_GRACE_S


def accepts_new_replicas(workload: Workload, region: Region, avoidances: Collection[Override], now: float) -> bool:
    """Whether the region may get new replicas of the workload: it is healthy and no override forbids it."""
    healthy = region.status.health.state is HealthState.HEALTHY
    return healthy and (not avoidances or bool(open_zones(workload, region, avoidances, _stay_until_s(workload, now))))


def _stay_until_s(workload: Workload, now: float) -> float:
    """The latest time at which replicas that are placed now may still be there if nobody forces them out."""
    spec, ends_at = workload.spec, ""
    if spec.batch is not None and spec.batch.active_deadline_seconds is not None:
        ends_at = micro_text(now + spec.batch.active_deadline_seconds)
    return stays_until_s(spec.template, spec.disruption.max_unavailable, ends_at, now)


def _shares(
    workload: Workload,
    stored: Sequence[Assignment],
    allowed: Sequence[Region],
    open_to_more: Sequence[Region],
    view: View,
    *,
    left: Collection[str],
) -> Shares:
    """Replicas per region: the present numbers, changed as little as possible."""
    want = _wanted(workload)
    names = {r.metadata.name for r in allowed}
    have: Shares = {a.spec.region: assigned_units(a) for a in stored if a.spec.region in names and assigned_units(a)}
    least = workload.spec.gang.min_available if workload.spec.gang is not None else 0
    while sum(have.values()) > want:
        fullest = max(have, key=lambda name: (have[name] > least, have[name], name))
        have[fullest] -= 1
    lacking = want - sum(have.values())
    if not lacking:
        return have  # nothing to add, so no headroom is needed
    if len(open_to_more) == 1 and least <= 1:
        (only,) = (r.metadata.name for r in open_to_more)
        have[only] = have.get(only, 0) + lacking  # no choice, so no headroom is needed
        return have
    rooms = {r.metadata.name: region_headroom(r, workload, view) for r in open_to_more}
    candidates = candidate_regions(workload, have, rooms, lacking, left)
    if least > 1 and candidates:
        return add_gang_members(have, rooms, candidates, lacking, least)
    for _ in range(lacking):
        if not candidates:
            break
        chosen = min(candidates, key=lambda name: _preference(name, have, rooms[name]))
        have[chosen] = have.get(chosen, 0) + 1
    return have


def _preference(name: str, have: Mapping[str, int], room: RegionHeadroom) -> tuple[object, ...]:
    """Regions with room first, then fewest replicas of the workload, lowest cost, least room on one node, name. Nodes
    with much room stay free for large replicas."""
    held = have.get(name, 0)
    return (room.fits - max(0, held - room.own_replicas) <= 0, held, room.cost, room.fits_on_one_node, name)


def _wanted(workload: Workload) -> int:
    """Units to assign: completions of a batch, replicas of a service."""
    batch = workload.spec.batch
    if workload.spec.type is WorkloadType.BATCH and batch is not None:
        return batch.completions
    return wanted_replicas(workload)


def _shares_serve(workload: Workload, shares: Shares, current: Mapping[str, Assignment]) -> bool:
    """Whether every region with a share already serves it."""
    if workload.spec.type is WorkloadType.BATCH:
        return True
    return all(
        region in current and current[region].status.serving >= share for region, share in shares.items() if share
    )


def _settle(
    workload: Workload, spec: AssignmentSpec | None, share: int, stored: Assignment | None, region: str, *, moved: bool
) -> Write | None:
    """The write that changes one region's Assignment to its share, or None if nothing changes."""
    if stored is None:
        if not share or spec is None:
            return None
        return Create(Assignment(metadata=assignment_meta(workload, region), spec=spec))
    if not share:
        if is_drained(stored) and is_recorded(workload, stored):
            return Delete("Assignment", stored.key, stored.uid)
        if stored.spec.replicas and workload.spec.exclusive is None and not moved:
            return None  # the other regions do not serve yet
    if spec is None:
        return None
    spec = with_withdrawal(spec, stored.spec)
    kept = msgspec.structs.replace(
        spec,
        suspended=stored.spec.suspended,
        reason=stored.spec.reason,
        epoch=stored.spec.epoch,
        disruption_share_peak=stored.spec.disruption_share_peak,
    )
    if kept == stored.spec:
        return None
    spec = msgspec.structs.replace(spec, suspended=stored.spec.suspended, epoch=stored.spec.epoch + 1)
    return Update(msgspec.structs.replace(_with_context(stored, workload), spec=with_share_peak(spec, stored)))


def _with_context(stored: Assignment, workload: Workload) -> Assignment:
    """The Assignment with the trace context of the workload's newest admission (`model.trace_ids`)."""
    kept = kept_context(workload)
    if kept_context(stored) == kept:
        return stored
    others = {name: text for name, text in stored.metadata.annotations.items() if name != TRACEPARENT_ANNOTATION}
    return msgspec.structs.replace(
        stored, metadata=msgspec.structs.replace(stored.metadata, annotations={**others, **kept})
    )


def _recovery_updates(
    workload: Workload, borrowed: Sequence[Assignment], away: DisruptionShares, view: View
) -> Iterable[Update]:
    """Updates of recovery Assignments. `recover` owns their region and number of replicas. Template, rules and
    disruption share follow the workload, because one decision must divide the disruption budget.
    """
    for item in borrowed:
        stored, part = item.spec, away.get(item.spec.region)
        if item.metadata.terminating:
            continue
        spec = assignment_spec(
            workload,
            stored.region,
            stored.replicas,
            view,
            epoch=stored.epoch,
            purpose=Purpose.RECOVERY,
            reason=stored.reason,
            stored=item,
            disruption_share=part,
        )
        if spec is None or not stored.replicas:  # an Assignment being returned needs only its share
            spec = msgspec.structs.replace(stored, disruption_share=part, disruption=workload.spec.disruption)
        spec = msgspec.structs.replace(
            spec, disruption_share_peak=stored.disruption_share_peak, suspended=stored.suspended
        )
        if spec != stored:
            spec = msgspec.structs.replace(spec, epoch=stored.epoch + 1)
            yield Update(msgspec.structs.replace(item, spec=with_share_peak(spec, item)))


def is_drained(assignment: Assignment) -> bool:
    """Whether the region reports for the newest epoch that no replica is left."""
    return (
        assigned_units(assignment) == 0
        and assignment.status.observed_epoch >= assignment.spec.epoch
        and assignment.status.replicas == 0
    )


def assignment_meta(workload: Workload, region: str, purpose: Purpose = Purpose.NORMAL) -> ObjectMeta:
    owner = OwnerReference(
        api_version=API_VERSION, kind="Workload", name=workload.metadata.name, uid=workload.uid, controller=True
    )
    return ObjectMeta(
        name=assignment_name(workload.metadata.name, region, purpose),
        namespace=workload.metadata.namespace,
        labels={LABEL_WORKLOAD: workload.metadata.name},
        annotations=kept_context(workload) if purpose is Purpose.NORMAL else {},
        owner_references=(owner,),
    )


def assignment_spec(
    workload: Workload,
    region: str,
    share: int,
    view: View,
    *,
    epoch: int = 1,
    purpose: Purpose = Purpose.NORMAL,
    reason: str = "",
    ordinals: tuple[int, ...] = (),
    stored: Assignment | None = None,
    disruption_share: int | None = None,
    because: str = "",
) -> AssignmentSpec | None:
    """The spec with everything that a partitioned region needs; None while its class or a VolumeClaim is missing."""
    wanted = workload.spec
    template = with_claims(rollout.region_template(workload, region, stored), workload.metadata.namespace, view)
    priority = view.get(PriorityClass, wanted.priority_class_name)
    if priority is None or template is None:
        return None
    tenant = view.get(Tenant, workload.metadata.namespace)
    batch: Batch | None = None
    replicas = share
    if wanted.batch is not None:
        replicas = min(share, wanted.batch.parallelism)
        batch = msgspec.structs.replace(wanted.batch, completions=share, parallelism=replicas)
    return AssignmentSpec(
        workload=workload.metadata.name,
        workload_uid=workload.uid,
        workload_generation=workload.metadata.generation,
        region=region,
        purpose=purpose,
        type=wanted.type,
        replicas=replicas,
        ordinals=ordinals,
        revision=template_hash(template),
        template=template,
        placement=wanted.placement,
        priority_class=wanted.priority_class_name,
        priority=priority.spec.priority,
        reclaimable=priority.spec.reclaimable,
        may_preempt=priority.spec.may_preempt,
        disruption=wanted.disruption,
        disruption_share=disruption_share,
        rollout=wanted.rollout,
        exclusive=wanted.exclusive,
        batch=batch,
        gang=wanted.gang,
        dedicated=is_dedicated(tenant),
        min_ready_seconds=wanted.min_ready_seconds,
        rebalance=wanted.rebalance,
        epoch=epoch,
        reason=reason or _joined(_reason(workload, region, share), because),
    )


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)


def _reason(workload: Workload, region: str, share: int) -> str:
    rules = workload.spec.placement
    why = [f"{share} of {_wanted(workload)}"]
    if rules.residency:
        why.append(f"residency {', '.join(rules.residency)}")
    if rules.regions:
        why.append(f"allowed regions {', '.join(rules.regions)}")
    return "; ".join(why)


def _drain_deleted(workload: Workload, stored: Sequence[Assignment], *, recovering: bool) -> Outcome:
    """Deletion: drains every region, deletes its Assignment, then removes the finalizer. `recover` drains its own."""
    writes: list[Write] = []
    for assignment in stored:
        if is_drained(assignment):
            if not assignment.metadata.terminating:
                writes.append(Delete("Assignment", assignment.key, assignment.uid))
        elif assignment.spec.replicas or assigned_units(assignment):
            batch = assignment.spec.batch
            spec = msgspec.structs.replace(
                assignment.spec,
                replicas=0,
                ordinals=(),
                batch=msgspec.structs.replace(batch, completions=0, parallelism=0) if batch is not None else None,
                epoch=assignment.spec.epoch + 1,
                reason="the workload is being deleted",
            )
            writes.append(Update(msgspec.structs.replace(assignment, spec=spec)))
    if not stored and not recovering and ASSIGNMENTS_FINALIZER in workload.metadata.finalizers:
        rest = tuple(f for f in workload.metadata.finalizers if f != ASSIGNMENTS_FINALIZER)
        meta = msgspec.structs.replace(workload.metadata, finalizers=rest)
        writes.append(Update(msgspec.structs.replace(workload, metadata=meta)))
    return Outcome(writes=tuple(writes))
