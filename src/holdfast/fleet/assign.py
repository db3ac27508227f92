"""assign: decides which region holds how many replicas of a workload.

Owns normal Assignments and the workload's finalizer.

Capacity summaries are hints: they order regions and never forbid one. What was just assigned counts before the next
decision, because it is read from the Assignments themselves. A region that may no longer hold the workload is emptied
only after the others serve (make before break).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.fleet import rollout
from holdfast.fleet.capacity import RegionHeadroom, region_headroom
from holdfast.fleet.disruption_shares import DisruptionShares, disruption_shares, with_share_peak
from holdfast.fleet.ordinals import Ordinals, advance_tenure_wait, assign_ordinals, with_withdrawal
from holdfast.fleet.spillover import assigned_units, avoided_regions, max_regions, spill_over, waits_for_room
from holdfast.model import limits
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

Shares = dict[str, int]


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one workload."""
    workload = view.get(Workload, key.name, key.namespace)
    if workload is None:
        return NO_CHANGES
    every = view.by(Assignment, "workload", str(key))
    stored = [a for a in every if a.spec.purpose is Purpose.NORMAL]
    borrowed = [a for a in every if a.spec.purpose is Purpose.RECOVERY]
    if workload.metadata.terminating:
        return _wind_down(workload, stored, recovering=bool(borrowed))
    regions = view.list(Region)
    allowed = [r for r in regions if not region_refusal_reason(workload, r)]
    if not stored and any(_just_created(r, now) for r in allowed):
        return Outcome(requeue_after_s=1.0)  # rather wait a moment than crowd whichever region was heard first
    avoidances = active_avoidances(view.list(Override), now)
    open_to_more = [r for r in allowed if accepts_new_replicas(workload, r, avoidances)]
    staying = [r for r in allowed if not stops_without_contact(workload, r)] if open_to_more else allowed
    wanted = _shares(workload, stored, staying, open_to_more, view, left=avoided_regions(workload, now))
    moves = spill_over(workload, stored, wanted, open_to_more, view, now=now)
    shares = moves.shares
    wished = sum(shares.values())
    ordinals: Ordinals = {}
    if workload.spec.exclusive is not None:
        ordinals = assign_ordinals(shares, stored)
        shares = {region: len(given) for region, given in ordinals.items()}
    writes: list[Write] = list(moves.writes)
    notices: list[Notice] = list(moves.notices)
    current = {a.spec.region: a for a in stored}
    moved = _moved_in(workload, shares, current)
    holding = {region for region, share in shares.items() if share} | {a.spec.region for a in borrowed if assigned_units(a)}
    away = disruption_shares(workload, holding, every)
    for region in sorted({*shares, *current}):
        spec = assignment_spec(
            workload, region, shares.get(region, 0), view,
            ordinals=ordinals.get(region, ()), stored=current.get(region), away_share=away.get(region),
            because=moves.explanations.get(region, ""),
        )  # fmt: skip
        lets_go = moved or region in moves.emptied
        write = _settle(workload, spec, shares.get(region, 0), current.get(region), region, moved=lets_go)
        if write is None:
            continue
        writes.append(write)
        if isinstance(write, Create | Update) and isinstance(write.object, Assignment):
            said = f"{write.object.spec.replicas} replica(s) in {region}: {write.object.spec.reason}"
            notices.append(Notice(workload, Reason.ASSIGNED, said))
    writes += _follow(workload, borrowed, away, view)
    if sum(shares.values()) < wished and needs_tenure(workload.spec.exclusive):
        touched = {write.object.key for write in writes if isinstance(write, Update)}
        steps = [found for a in stored if a.key not in touched and (found := advance_tenure_wait(a, now)) is not None]
        writes += [Update(step) for step in steps]
        return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=limits.TENURE_STEP_S)
    return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=moves.again_in_s)


def stops_without_contact(workload: Workload, region: Region) -> bool:
    """Whether the workload's exclusive replicas end in a silent region without anyone's help, and may move: a region
    that is only cut off has no tenure either."""
    silent = region.status.health.state in (HealthState.LOST, HealthState.AWAITING_WITNESS)
    return silent and needs_tenure(workload.spec.exclusive)


def region_refusal_reason(workload: Workload, region: Region) -> str:
    """Why the workload's own rules forbid a region, or an empty string."""
    rules = workload.spec.placement
    name = region.metadata.name
    if region.metadata.terminating:
        return "the region is being removed"
    if not eligibility.allows_region(rules, name):
        return "excluded" if name in rules.excluded_regions else "not among the allowed regions"
    if not eligibility.satisfies_residency(rules, region.spec.residency):
        return f"has none of the residency tags {', '.join(rules.residency)}"
    if rules.zones and not open_zones(workload, region):
        return "has none of the allowed zones"
    return ""


def open_zones(workload: Workload, region: Region, avoidances: Collection[Override] = ()) -> list[str]:
    """The zones of the region that the workload's rules allow and none of these active overrides closes to it."""
    name, tenant, work = region.metadata.name, workload.metadata.namespace, workload.metadata.name
    rules, zones = workload.spec.placement, region.spec.zones or ("",)
    return [
        zone for zone in zones
        if eligibility.allows_zone(rules, zone)
        and not avoidance_of(avoidances, region=name, zone=zone, tenant=tenant, workload=work)
    ]  # fmt: skip


def _just_created(region: Region, now: float) -> bool:
    """Whether the region is so new that its first report is probably on its way."""
    if region.status.health.state is not HealthState.UNKNOWN:
        return False
    return now - parse_time(region.metadata.creation_timestamp) < limits.REGION_FIRST_REPORT_GRACE_S


def accepts_new_replicas(workload: Workload, region: Region, avoidances: Collection[Override]) -> bool:
    """Whether new replicas of the workload may be sent there: the region is healthy and no override keeps them away."""
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
    """How many replicas each region should hold: what it has, plus or minus as little as possible."""
    want = _wanted(workload)
    names = {r.metadata.name for r in allowed}
    have: Shares = {a.spec.region: assigned_units(a) for a in stored if a.spec.region in names and assigned_units(a)}
    while sum(have.values()) > want:
        fullest = max(have, key=lambda name: (have[name], name))
        have[fullest] -= 1
    lacking = want - sum(have.values())
    if not lacking:
        return have  # what has its place need not be measured against the room that is left
    rooms = {r.metadata.name: region_headroom(r, workload, view) for r in open_to_more}
    candidates = _candidates(workload, have, rooms, left)
    for _ in range(lacking):
        if not candidates:
            break
        chosen = min(candidates, key=lambda name: _preference(name, have, rooms[name]))
        have[chosen] = have.get(chosen, 0) + 1
    return have


def _preference(name: str, have: Mapping[str, int], room: RegionHeadroom) -> tuple[object, ...]:
    """Regions with room first, then the emptiest, then the cheapest, then by name."""
    held = have.get(name, 0)
    return (room.fits - max(0, held - room.own_replicas) <= 0, held, room.cost, name)


def _candidates(
    workload: Workload, have: Mapping[str, int], rooms: Mapping[str, RegionHeadroom], left: Collection[str]
) -> list[str]:
    """Regions new replicas may go to. `spreadRegions` limits how many are used; regions in use come first. Those that
    were left as full (`left`) are taken only if there is no other."""
    order = sorted(rooms, key=lambda name: (name not in have, -rooms[name].fits, rooms[name].cost, name))
    able = [name for name in order if rooms[name].fits_when_empty] or order
    limit = max_regions(workload)
    used = sum(name in have for name in order)
    if limit and used < limit:  # room for regions that are not in use yet: those that were left come last
        able.sort(key=lambda name: (name not in have, name in left))
    able = able[:limit] if limit else able
    return [name for name in able if name not in left] or able


def _wanted(workload: Workload) -> int:
    """For batch work the unit is the completion: a region keeps its share until it is done."""
    batch = workload.spec.batch
    if workload.spec.type is WorkloadType.BATCH and batch is not None:
        return batch.completions
    return wanted_replicas(workload)


def _moved_in(workload: Workload, shares: Shares, current: Mapping[str, Assignment]) -> bool:
    """Whether the regions that keep the workload already serve all it wants there."""
    if workload.spec.type is WorkloadType.BATCH:
        return True
    return all(
        region in current and current[region].status.serving >= share for region, share in shares.items() if share
    )


def _settle(
    workload: Workload, spec: AssignmentSpec | None, share: int, stored: Assignment | None, region: str, *, moved: bool
) -> Write | None:
    """The write that brings one region's Assignment to its share, or None when it is there."""
    if stored is None:
        if not share or spec is None:
            return None
        return Create(Assignment(metadata=assignment_meta(workload, region), spec=spec))
    if not share:
        if is_drained(stored):
            return Delete("Assignment", stored.key, stored.uid)
        if stored.spec.replicas and workload.spec.exclusive is None and not moved:
            return None  # make before break: the others do not serve yet
    if spec is None:
        return None
    spec = with_withdrawal(spec, stored.spec)
    kept = msgspec.structs.replace(
        spec, suspended=stored.spec.suspended, reason=stored.spec.reason, epoch=stored.spec.epoch,
        disruption_share_peak=stored.spec.disruption_share_peak,
    )  # fmt: skip
    if kept == stored.spec:
        return None
    spec = msgspec.structs.replace(spec, suspended=stored.spec.suspended, epoch=stored.spec.epoch + 1)
    return Update(msgspec.structs.replace(stored, spec=with_share_peak(spec, stored)))


def _follow(workload: Workload, borrowed: Sequence[Assignment], away: DisruptionShares, view: View) -> Iterable[Update]:
    """Recovery Assignments belong to recover, which says how many and where. What they are follows the workload: its
    revision, as far as the rollout has come, its rules, and their part of the budget, which one decision shares out.
    """
    for item in borrowed:
        stored, part = item.spec, away.get(item.spec.region)
        if item.metadata.terminating:
            continue
        spec = assignment_spec(
            workload, stored.region, stored.replicas, view, epoch=stored.epoch, purpose=Purpose.RECOVERY,
            reason=stored.reason, stored=item, away_share=part,
        )  # fmt: skip
        if spec is None or not stored.replicas:  # what is given back needs no more than its part
            spec = msgspec.structs.replace(stored, disruption_share=part, disruption=workload.spec.disruption)
        spec = msgspec.structs.replace(spec, disruption_share_peak=stored.disruption_share_peak, suspended=stored.suspended)
        if spec != stored:
            spec = msgspec.structs.replace(spec, epoch=stored.epoch + 1)
            yield Update(msgspec.structs.replace(item, spec=with_share_peak(spec, item)))


def is_drained(assignment: Assignment) -> bool:
    """Whether the region says, about the newest epoch, that nothing is left."""
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
    away_share: int | None = None,
    because: str = "",
) -> AssignmentSpec | None:
    """Everything the region needs while it is cut off; None while the priority class is missing."""
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
        disruption_share=away_share,
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


def _wind_down(workload: Workload, stored: Sequence[Assignment], *, recovering: bool) -> Outcome:
    """Every region drains, then its Assignment goes, then the workload may go. Recovery drains its own."""
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
    """What the rollout says that decides templates; its counts and words do not."""
    block = workload.status.rollout
    return () if block is None else (block.revision, block.phase, block.regions)


def _runs_everywhere(workload: Workload, view: View) -> bool:
    """Whether a rollout that goes forward has nothing to change: every region was given its revision already."""
    block = workload.status.rollout
    if block is None or block.phase not in (RolloutPhase.PROGRESSING, RolloutPhase.COMPLETE):
        return False
    held = view.by(Assignment, "workload", str(workload.key))
    return bool(held) and all(a.spec.revision == block.revision for a in held)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    """Progress matters only while something moves or ends; of a share it has just made, assign knows already."""
    item = new or old
    if item is None:
        return ()
    if new is not None:
        if old is None and new.spec.purpose is Purpose.NORMAL and new.status == _UNHEARD:
            return ()
        if old is not None and (_standing(new) == _standing(old) or _stays_alone(new, old, view)):
            return ()
    return (Key(item.metadata.namespace, item.spec.workload),)


def _standing(assignment: Assignment) -> tuple[object, ...]:
    """What of an assignment a decision rests on: how far its replicas are on their way is none of it."""
    meta, status = assignment.metadata, assignment.status
    told = (
        status.observed_epoch, status.replicas, status.serving, status.evictions_blocked, bool(status.pending_evictions),
        waits_for_room(assignment),
    )  # fmt: skip
    return (assignment.spec, meta.deletion_timestamp, meta.finalizers, told, status.ordinals)


def _stays_alone(new: Assignment, old: Assignment, view: View) -> bool:
    """Whether this is mere progress of the one region that has the whole workload: nobody waits for it."""
    spec = new.spec
    if spec != old.spec or not spec.replicas or spec.exclusive is not None or new.metadata.terminating:
        return False
    if waits_for_room(new) or waits_for_room(old):
        return False
    workload: Workload | None = view.get(Workload, spec.workload, new.metadata.namespace)
    alone = len(view.by(Assignment, "workload", f"{new.metadata.namespace}/{spec.workload}")) == 1
    return alone and workload is not None and not workload.metadata.terminating


_UNHEARD = AssignmentStatus()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """Health and rules, not heartbeats: a report every few seconds must not re-decide the fleet."""
    if new is not None and old is not None:
        same = new.spec == old.spec and new.status.health.state is old.status.health.state
        heard_first = old.status.report is None and new.status.report is not None
        if same and not heard_first and new.metadata.terminating == old.metadata.terminating:
            return ()
    return [w.key for w in view.list(Workload)]


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    """When an avoidance ends, replicas that wait for the region may go there."""
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
