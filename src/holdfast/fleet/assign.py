"""assign: decides how many replicas of a workload each region runs. Owns normal Assignments and their finalizer.

- Reported capacity is a hint: it orders regions and never forbids one.
- New Assignments count in the next decision, because it reads the Assignments themselves.
- A region that is no longer allowed is emptied only after the other regions serve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.fleet import rollout
from holdfast.fleet.capacity import RegionHeadroom, region_headroom
from holdfast.fleet.disruption_shares import DisruptionShares, disruption_shares, with_share_peak
from holdfast.fleet.ordinals import TENURE_STEP_S, Ordinals, advance_tenure_wait, assign_ordinals, with_withdrawal
from holdfast.fleet.spillover import assigned_units, avoided_regions, max_regions, spill_over, waits_for_room
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.assignment import Assignment, AssignmentSpec, AssignmentStatus, Purpose, assignment_name
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import API_VERSION, Key, ObjectMeta, OwnerReference
from holdfast.model.override import ACTIVE, AVOIDANCES, Override, active_avoidances, avoidance_of
from holdfast.model.ownership import ASSIGNMENTS_FINALIZER
from holdfast.model.priority_class import PriorityClass
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import template_hash
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.workload import Batch, RolloutPhase, Workload, WorkloadType, wanted_replicas
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
    regions = view.list(Region)
    allowed = [r for r in regions if not region_refusal_reason(workload, r)]
    if not stored and any(_just_created(r, now) for r in allowed):
        return Outcome(
            requeue_after_s=1.0
        )  # wait for the first reports, so that the first region does not get everything
    avoidances = active_avoidances(view.list(Override), now)
    open_to_more = [r for r in allowed if accepts_new_replicas(workload, r, avoidances)]
    staying = [r for r in allowed if not stops_without_contact(workload, r)] if open_to_more else allowed
    wanted = _shares(workload, stored, staying, open_to_more, view, left=avoided_regions(workload, now))
    moves = spill_over(workload, stored, wanted, open_to_more, view, now=now)
    shares = moves.shares
    desired = sum(shares.values())
    ordinals: Ordinals = {}
    if workload.spec.exclusive is not None:
        ordinals = assign_ordinals(shares, stored)
        shares = {region: len(given) for region, given in ordinals.items()}
    writes: list[Write] = list(moves.writes)
    notices: list[Notice] = list(moves.notices)
    current = {a.spec.region: a for a in stored}
    moved = _shares_serve(workload, shares, current)
    holding = {region for region, share in shares.items() if share} | {
        a.spec.region for a in borrowed if assigned_units(a)
    }
    away = disruption_shares(workload, holding, every)
    for region in sorted({*shares, *current}):
        spec = assignment_spec(
            workload,
            region,
            shares.get(region, 0),
            view,
            ordinals=ordinals.get(region, ()),
            stored=current.get(region),
            disruption_share=away.get(region),
            because=moves.explanations.get(region, ""),
        )
        may_empty = moved or region in moves.emptied
        write = _settle(workload, spec, shares.get(region, 0), current.get(region), region, moved=may_empty)
        if write is None:
            continue
        writes.append(write)
        if isinstance(write, Create | Update) and isinstance(write.object, Assignment):
            said = f"{write.object.spec.replicas} replica(s) in {region}: {write.object.spec.reason}"
            notices.append(Notice(workload, Reason.ASSIGNED, said))
    writes += _recovery_updates(workload, borrowed, away, view)
    if sum(shares.values()) < desired and needs_tenure(workload.spec.exclusive):
        touched = {write.object.key for write in writes if isinstance(write, Update)}
        steps = [found for a in stored if a.key not in touched and (found := advance_tenure_wait(a, now)) is not None]
        writes += [Update(step) for step in steps]
        return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=TENURE_STEP_S)
    return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=moves.requeue_after_s)


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


def open_zones(workload: Workload, region: Region, avoidances: Collection[Override] = ()) -> list[str]:
    """Zones of the region that the placement rules allow and that none of these active overrides closes."""
    name, tenant, work = region.metadata.name, workload.metadata.namespace, workload.metadata.name
    rules, zones = workload.spec.placement, region.spec.zones or ("",)
    return [
        zone
        for zone in zones
        if eligibility.allows_zone(rules, zone)
        and not avoidance_of(avoidances, region=name, zone=zone, tenant=tenant, workload=work)
    ]


def _just_created(region: Region, now: float) -> bool:
    """Whether the region is so new that its first report may still arrive."""
    if region.status.health.state is not HealthState.UNKNOWN:
        return False
    return now - parse_time(region.metadata.creation_timestamp) < REGION_FIRST_REPORT_GRACE_S


def accepts_new_replicas(workload: Workload, region: Region, avoidances: Collection[Override]) -> bool:
    """Whether the region may get new replicas of the workload: it is healthy and no override forbids it."""
    healthy = region.status.health.state is HealthState.HEALTHY
    return healthy and (not avoidances or bool(open_zones(workload, region, avoidances)))


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
    while sum(have.values()) > want:
        fullest = max(have, key=lambda name: (have[name], name))
        have[fullest] -= 1
    lacking = want - sum(have.values())
    if not lacking:
        return have  # nothing to add, so no headroom is needed
    rooms = {r.metadata.name: region_headroom(r, workload, view) for r in open_to_more}
    candidates = _candidates(workload, have, rooms, left)
    for _ in range(lacking):
        if not candidates:
            break
        chosen = min(candidates, key=lambda name: _preference(name, have, rooms[name]))
        have[chosen] = have.get(chosen, 0) + 1
    return have


def _preference(name: str, have: Mapping[str, int], room: RegionHeadroom) -> tuple[object, ...]:
    """Regions with room first, then fewest replicas of the workload, lowest cost, name."""
    held = have.get(name, 0)
    return (room.fits - max(0, held - room.own_replicas) <= 0, held, room.cost, name)


def _candidates(
    workload: Workload, have: Mapping[str, int], rooms: Mapping[str, RegionHeadroom], left: Collection[str]
) -> list[str]:
    """Regions for new replicas. `spreadRegions` limits their number; regions in use come first. Avoided regions
    (`left`) are used only if there is no other."""
    order = sorted(rooms, key=lambda name: (name not in have, -rooms[name].fits, rooms[name].cost, name))
    able = [name for name in order if rooms[name].fits_when_empty] or order
    limit = max_regions(workload)
    used = sum(name in have for name in order)
    if limit and used < limit:  # more regions may be used: avoided ones come last
        able.sort(key=lambda name: (name not in have, name in left))
    able = able[:limit] if limit else able
    return [name for name in able if name not in left] or able


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
        if is_drained(stored):
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
    return Update(msgspec.structs.replace(stored, spec=with_share_peak(spec, stored)))


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
    """The spec with everything that a partitioned region needs; None while the PriorityClass is missing."""
    wanted = workload.spec
    template = rollout.region_template(workload, region, stored)
    priority = view.get(PriorityClass, wanted.priority_class_name)
    if priority is None:
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
        epoch=epoch,
        reason=reason or "; ".join(said for said in (_reason(workload, region, share), because) if said),
    )


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


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload)]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is None:
        return ()
    if old is not None and new.metadata.generation == old.metadata.generation:
        same_scale = new.status.scale == old.status.scale and new.metadata.finalizers == old.metadata.finalizers
        if same_scale and (_progress(new) == _progress(old) or _runs_everywhere(new, view)):
            return ()
    return (new.key,)


def _progress(workload: Workload) -> tuple[object, ...]:
    """The fields of the rollout status that select templates."""
    block = workload.status.rollout
    return () if block is None else (block.revision, block.phase, block.regions)


def _runs_everywhere(workload: Workload, view: View) -> bool:
    """Whether every Assignment already has the revision of a rollout that is not rolling back."""
    block = workload.status.rollout
    if block is None or block.phase not in (RolloutPhase.PROGRESSING, RolloutPhase.COMPLETE):
        return False
    held = view.by(Assignment, "workload", str(workload.key))
    return bool(held) and all(a.spec.revision == block.revision for a in held)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    """Wakes the workload, except for replica progress that affects no decision and for assign's own new Assignments."""
    item = new or old
    if item is None:
        return ()
    if new is not None:
        if old is None and new.spec.purpose is Purpose.NORMAL and new.status == _NO_REPORT:
            return ()
        if old is not None and (
            _decision_inputs(new) == _decision_inputs(old) or _only_region_progressed(new, old, view)
        ):
            return ()
    return (Key(item.metadata.namespace, item.spec.workload),)


def _decision_inputs(assignment: Assignment) -> tuple[object, ...]:
    """The fields of an Assignment that a decision reads; the stages of its replicas are not among them."""
    meta, status = assignment.metadata, assignment.status
    reported = (
        status.observed_epoch,
        status.replicas,
        status.serving,
        status.evictions_blocked,
        bool(status.pending_evictions),
        waits_for_room(assignment),
    )
    return (assignment.spec, meta.deletion_timestamp, meta.finalizers, reported, status.ordinals)


def _only_region_progressed(new: Assignment, old: Assignment, view: View) -> bool:
    """Whether only the progress of the workload's single region changed, which affects no decision."""
    spec = new.spec
    if spec != old.spec or not spec.replicas or spec.exclusive is not None or new.metadata.terminating:
        return False
    if waits_for_room(new) or waits_for_room(old):
        return False
    workload: Workload | None = view.get(Workload, spec.workload, new.metadata.namespace)
    alone = len(view.by(Assignment, "workload", f"{new.metadata.namespace}/{spec.workload}")) == 1
    return alone and workload is not None and not workload.metadata.terminating


_NO_REPORT = AssignmentStatus()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """Wakes all workloads if the region's health or spec changes, but not on the reports every few seconds."""
    if new is not None and old is not None:
        same = new.spec == old.spec and new.status.health.state is old.status.health.state
        first_report = old.status.report is None and new.status.report is not None
        if same and not first_report and new.metadata.terminating == old.metadata.terminating:
            return ()
    return [w.key for w in view.list(Workload)]


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    """Wakes all workloads when an avoidance ends: pending replicas may use the region again."""
    if old is None or old.spec.kind not in AVOIDANCES or old.status.phase != ACTIVE:
        return ()
    if new is not None and new.status.phase == ACTIVE:
        return ()
    return [w.key for w in view.list(Workload)]


def woken_by_priority(new: PriorityClass | None, old: PriorityClass | None, view: View) -> Iterable[Key]:
    if new is not None and old is not None and new.spec == old.spec:
        return ()
    item = new or old
    return [w.key for w in view.list(Workload) if item is not None and w.spec.priority_class_name == item.metadata.name]
