"""workload-status: sums up the regions' reports. Owns Workload.status except the blocks of other controllers.

Counts are computed from the Assignments' status each time, never accumulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.fleet.assign import region_refusal_reason
from holdfast.fleet.done_indexes import done_indexes
from holdfast.fleet.reassign import reassign_after_s
from holdfast.fleet.volume_claims import missing_claims
from holdfast.model.assignment import Assignment, PendingReason, counts_desired_revision
from holdfast.model.index_ranges import indexes_text, parse_indexes
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import Condition, Key, find_condition, is_condition_true, with_condition
from holdfast.model.newest_template import image_problem
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import template_hash
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.view import View
from holdfast.model.workload import (
    Batch,
    RegionProgress,
    Summary,
    Workload,
    WorkloadType,
    is_indexed,
    resolved_template,
    wanted_replicas,
    wanted_template,
)
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus

INDEX_FAILURES_MAX = 20
"""Failed indexes of a job array listed with their last failure; `failedIndexes` has all of them."""
INDEXES_SHOWN_CHARS_MAX = 200
"""Characters of the failed indexes in one condition message; `failedIndexes` has all of them."""
REGIONS_NAMED_MAX = 4
"""Regions named in one condition message; the rest is omitted."""

_STARTING = (Reason.FETCHING_ARTIFACTS, Reason.IMAGE_PULLING, Reason.INITIALIZING)
"""Reasons of replicas that start, and have not failed."""
_BRIEF_WAITS = (Reason.WAITING, Reason.REGION_LOST)
"""Pending reasons of which other events tell."""
_NOT_FAILED = (*_STARTING, Reason.BECAME_UNREADY)


def decide(key: Key, view: View, now: float) -> Outcome:
    """The counts and conditions of one workload."""
    workload = view.get(Workload, key.name, key.namespace)
    if workload is None:
        return NO_CHANGES
    assignments = [_without_lost_report(workload, a, view) for a in view.by(Assignment, "workload", str(key))]
    summary = _summary(workload, assignments)
    conditions = [*_conditions(workload, assignments, summary, view, now), *_backing_condition(workload)]
    again_s = _next_check_s(workload, summary, now)
    generation = workload.metadata.generation
    old = workload.status.conditions
    new = old
    for condition in conditions:
        new = with_condition(new, condition, seconds_text(now))
    status = workload.status
    if summary == status.summary and new == old and status.observed_generation == generation:
        return Outcome(requeue_after_s=again_s)
    write = SetStatus(
        "Workload",
        workload.key,
        workload.uid,
        blocks={"summary": summary},
        conditions=tuple(conditions),
        observed_generation=generation,
    )
    notices = (*_notices(workload, conditions), *_unplaced(workload, assignments))
    return Outcome(writes=(write,), notices=notices, requeue_after_s=again_s)


def _backing_condition(workload: Workload) -> list[Condition]:
    block = workload.status.backing
    if block is None:
        return []
    return [
        Condition(
            type="RecoveryBacked",
            status="True" if block.backed else "False",
            reason=block.reason,
            message=block.message,
            observed_generation=workload.metadata.generation,
        )
    ]


def _without_lost_report(workload: Workload, assignment: Assignment, view: View) -> Assignment:
    """The Assignment without the last report of a lost region."""
    region = view.get(Region, assignment.spec.region)
    if region is None or region.status.health.state is not HealthState.LOST:
        return assignment
    status = msgspec.structs.replace(
        assignment.status,
        ready=0,
        serving=0,
        updated_serving=0,
        started=0,
        unknown=assignment.status.bound,
        failing=(),
        pending=_lost_replicas(workload, assignment, region, view),
    )
    return msgspec.structs.replace(assignment, status=status)


def _lost_replicas(workload: Workload, assignment: Assignment, region: Region, view: View) -> tuple[PendingReason, ...]:
    """The replicas of a lost region, and what becomes of them. A completed batch has none. Of work with a recovery
    objective the Recovery says it."""
    batch = assignment.spec.batch
    completed = batch is not None and assignment.status.succeeded >= batch.completions
    if not assignment.spec.replicas or completed:
        return ()
    after_s = reassign_after_s(workload, view)
    since = region.status.health.since
    if workload.spec.recovery is not None or workload.spec.exclusive is not None:
        message = ""
    elif after_s and since:
        message = f"other regions take over from {seconds_text(parse_time(since) + after_s)} on"
    else:
        message = "waits for the region"
    return (PendingReason(reason=Reason.REGION_LOST, count=assignment.spec.replicas, message=message),)


def _is_lost(assignment: Assignment) -> bool:
    return any(p.reason == Reason.REGION_LOST for p in assignment.status.pending)


def _summary(workload: Workload, assignments: Sequence[Assignment]) -> Summary:
    regions = tuple(
        RegionProgress(
            region=a.spec.region,
            assigned=a.spec.replicas,
            bound=a.status.bound,
            ready=a.status.ready,
            serving=a.status.serving,
            pending_reason=next((p.reason for p in (*a.status.pending, *a.status.failing)), ""),
            failing_reason=next((p.reason for p in a.status.failing if p.reason not in _NOT_FAILED), ""),
        )
        for a in assignments
    )
    done = done_indexes(workload, assignments)
    reported = max(workload.status.summary.succeeded, sum(a.status.succeeded for a in assignments))
    failed_indexes = frozenset[int]().union(*(parse_indexes(a.status.failed_indexes) for a in assignments)) - done
    failures = sorted((f for a in assignments for f in a.status.index_failures), key=lambda f: f.index)
    return Summary(
        replicas=wanted_replicas(workload),
        assigned=sum(a.spec.replicas for a in assignments),
        bound=sum(a.status.bound for a in assignments),
        started=sum(a.status.started for a in assignments),
        ready=sum(a.status.ready for a in assignments),
        serving=sum(a.status.serving for a in assignments),
        succeeded=len(done) if is_indexed(workload.spec.batch) else reported,
        failed=sum(a.status.failed for a in assignments),
        regions=regions,
        selector=f"{LABEL_WORKLOAD}={workload.metadata.name}",
        succeeded_indexes=indexes_text(done),
        failed_indexes=indexes_text(failed_indexes),
        index_failures=tuple(f for f in failures if f.index not in done)[:INDEX_FAILURES_MAX],
    )


def _conditions(
    workload: Workload, assignments: Sequence[Assignment], summary: Summary, view: View, now: float
) -> list[Condition]:
    generation = workload.metadata.generation
    batch = workload.spec.batch
    is_batch = workload.spec.type is WorkloadType.BATCH and batch is not None
    required = batch.completions if is_batch and batch is not None else summary.replicas
    assigned_units = sum(a.spec.batch.completions if a.spec.batch is not None else a.spec.replicas for a in assignments)
    assigned, why = (Reason.ASSIGNED, "") if assigned_units >= required else _unassigned_reason(workload, view)
    found = [
        Condition(
            type="Assigned",
            status="True" if assigned_units >= required else "False",
            reason=assigned,
            message=f"{assigned_units} of {required} replicas are assigned to a region{why}",
            observed_generation=generation,
        )
    ]
    if is_batch and batch is not None:
        complete = _complete(workload, assignments, summary, now)
        found.append(complete)
        if complete.reason in _BATCH_FAILURES:
            # A separate condition has its own transition time; the TTL of a failed batch counts from it.
            found.append(msgspec.structs.replace(complete, type="Failed", status="True"))
        found += _deadline(workload, summary, batch, now)
        return found
    found.append(_serving(workload, assignments, summary, all_assigned=assigned_units >= required))
    return found


def _serving(
    workload: Workload, assignments: Sequence[Assignment], summary: Summary, *, all_assigned: bool
) -> Condition:
    """Condition Serving. A region that the workload leaves does not count, neither for nor against it. A lost region
    that is to have its replicas back does not count against it: other regions have taken over."""
    staying = [a for a in assignments if a.spec.replicas and not _is_lost(a)]
    behind = [a.spec.region for a in staying if not _is_current(workload, a)]
    serving_enough = summary.serving >= summary.replicas
    stayers_serve = sum(a.status.serving for a in staying) >= summary.replicas and not behind
    enough = serving_enough and all_assigned and (stayers_serve or _scales_down(workload, assignments))
    message = f"{summary.serving} of {summary.replicas} replicas serve"
    if enough:
        reason = Reason.ALL_SERVING
    elif serving_enough:
        reason = Reason.UPDATE_PENDING
        leaving = [a.spec.region for a in assignments if not a.spec.replicas and a.status.serving]
        waits = [f"{region} has not applied the newest generation" for region in behind[:REGIONS_NAMED_MAX]]
        waits += [f"{region} serves replicas that leave it" for region in leaving[:REGIONS_NAMED_MAX]]
        message = "; ".join((message, *waits)) + _problems(assignments)
    else:
        reason = Reason.SOME_SERVING if summary.serving else Reason.NONE_SERVING
        message += _problems(assignments)
    return Condition(
        type="Serving",
        status="True" if enough else "False",
        reason=reason,
        message=message,
        observed_generation=workload.metadata.generation,
    )


def _unassigned_reason(workload: Workload, view: View) -> tuple[Reason, str]:
    """Why replicas have no region: the image, the placement rules, or the health of the allowed regions."""
    if resolved_template(workload) is None:
        return Reason.IMAGE_UNRESOLVED, f"; the tag of the image is not resolved ({image_problem(workload)})"
    missing = missing_claims(workload.spec.template, workload.metadata.namespace, view)
    if missing:
        return Reason.VOLUME_CLAIM_NOT_FOUND, f"; VolumeClaim {', '.join(missing)} does not exist; next: create it"
    regions = view.list(Region)
    refused = {r.metadata.name: region_refusal_reason(workload, r) for r in regions}
    allowed = [r for r in regions if not refused[r.metadata.name]]
    if not allowed:
        named = "; ".join(f"{name}: {why}" for name, why in sorted(refused.items())[:REGIONS_NAMED_MAX])
        return Reason.NO_REGION_ALLOWED, f"; no region is allowed ({named or 'there are no regions'})"
    healthy = [r for r in allowed if r.status.health.state is HealthState.HEALTHY]
    if not healthy:
        named = ", ".join(f"{r.metadata.name} is {r.status.health.state}" for r in allowed[:REGIONS_NAMED_MAX])
        return Reason.REGION_NOT_HEALTHY, f"; no allowed region is healthy ({named})"
    return Reason.PARTLY_ASSIGNED, ""


_BATCH_FAILURES = (Reason.BACKOFF_LIMIT_EXCEEDED, Reason.FAILED_INDEXES, Reason.ACTIVE_DEADLINE_EXCEEDED)


def _complete(workload: Workload, assignments: Sequence[Assignment], summary: Summary, now: float) -> Condition:
    batch = workload.spec.batch or Batch()
    message = f"{summary.succeeded} of {batch.completions} completions, {summary.failed} failed"
    left = batch.completions - summary.succeeded
    over_s = now - parse_time(workload.metadata.creation_timestamp) - (batch.active_deadline_seconds or 0.0)
    reason = Reason.IN_PROGRESS
    if left <= 0:
        reason = Reason.COMPLETE
    elif summary.failed > batch.backoff_limit:
        reason = Reason.BACKOFF_LIMIT_EXCEEDED
    elif summary.failed_indexes and len(parse_indexes(summary.failed_indexes)) >= left:
        reason = Reason.FAILED_INDEXES
    elif batch.active_deadline_seconds is not None and over_s >= 0:
        reason = Reason.ACTIVE_DEADLINE_EXCEEDED
    if summary.failed_indexes:
        message += f"; failed indexes {summary.failed_indexes[:INDEXES_SHOWN_CHARS_MAX]}"
    if reason is Reason.IN_PROGRESS:
        message += _pending_text(assignments)
    return Condition(
        type="Complete",
        status="True" if left <= 0 else "False",
        reason=reason,
        message=message,
        observed_generation=workload.metadata.generation,
    )


def _deadline(workload: Workload, summary: Summary, batch: Batch, now: float) -> list[Condition]:
    """Condition OnTime of a batch with a deadline, projected from its progress so far.

    Without any completion, the batch is at risk once half of the time has passed.
    """
    if batch.deadline_seconds is None:
        return []
    elapsed_s = max(0.001, now - parse_time(workload.metadata.creation_timestamp))
    left_s = batch.deadline_seconds - elapsed_s
    required = max(0, batch.completions - summary.succeeded)
    expected_s = (
        elapsed_s * required / summary.succeeded if summary.succeeded else 2 * elapsed_s - batch.deadline_seconds
    )
    late = expected_s > left_s if summary.succeeded else expected_s > 0
    known = find_condition(workload.status.conditions, "OnTime")
    if not required:
        missed = known is not None and known.reason == Reason.DEADLINE_MISSED
        status, reason, message = (
            ("False", Reason.DEADLINE_MISSED, known.message)
            if missed and known
            else ("True", Reason.ON_TIME, "completed before the deadline")
        )
    elif left_s <= 0:
        status, reason = "False", Reason.DEADLINE_MISSED
        message = f"{summary.succeeded} of {batch.completions} completed at the deadline"
    elif late:
        status, reason = "False", Reason.DEADLINE_AT_RISK
        message = (
            f"{summary.succeeded} of {batch.completions} completed at half time"
            if not summary.succeeded
            else (f"at this rate the last of {batch.completions} completes after the deadline")
        )
    else:
        status, reason, message = "True", Reason.ON_TIME, f"{required} of {batch.completions} remaining"
    return [
        Condition(
            type="OnTime",
            status=status,
            reason=reason,
            message=message,
            observed_generation=workload.metadata.generation,
        )
    ]


def _next_check_s(workload: Workload, summary: Summary, now: float) -> float | None:
    """Delay until a deadline is checked again, because no event announces it."""
    batch = workload.spec.batch
    if batch is None or summary.succeeded >= batch.completions:
        return None
    elapsed_s = now - parse_time(workload.metadata.creation_timestamp)
    waits_s: list[float] = []
    if batch.deadline_seconds is not None and batch.deadline_seconds > elapsed_s:
        waits_s.append(max(1.0, (batch.deadline_seconds - elapsed_s) / 8))
    if batch.active_deadline_seconds is not None and batch.active_deadline_seconds > elapsed_s:
        waits_s.append(batch.active_deadline_seconds - elapsed_s + 0.001)
    return min(waits_s, default=None)


def _is_current(workload: Workload, assignment: Assignment) -> bool:
    """Whether the region has applied the newest generation."""
    return (
        assignment.spec.workload_generation >= workload.metadata.generation
        and assignment.status.observed_epoch >= assignment.spec.epoch
        and assignment.status.replicas <= assignment.spec.replicas
    )


def _scales_down(workload: Workload, assignments: Sequence[Assignment]) -> bool:
    """Whether a fully serving workload is only scaled down: enough replicas of the current template serve, so it stays
    Serving while regions remove the others."""
    wanted, before = wanted_replicas(workload), workload.status.summary
    present = sum(max(a.spec.replicas, a.status.replicas) for a in assignments)
    if wanted >= max(present, before.replicas, before.bound) or not is_condition_true(
        workload.status.conditions, "Serving"
    ):
        return False
    revision = template_hash(wanted_template(workload))
    if any(a.spec.revision != revision or not counts_desired_revision(a) for a in assignments):
        return False
    return sum(a.status.updated_serving for a in assignments) >= wanted


def _problems(assignments: Sequence[Assignment]) -> str:
    """Reasons of replicas that do not serve. Without a failure, the steps at which bound replicas are."""
    found = [(p.reason, _reason_text(a, p)) for a in assignments for p in a.status.failing]
    failing = [text for reason, text in found if reason not in _STARTING]
    starting = [text for reason, text in found if reason in _STARTING]
    parts = (("failing", failing), ("starting", starting))
    said = _pending_text(assignments) + "".join(f"; {name}: {', '.join(texts[:4])}" for name, texts in parts if texts)
    return said if failing else said + _slow_steps(assignments)


def _pending_text(assignments: Sequence[Assignment]) -> str:
    """Reasons of pending replicas."""
    pending = [_reason_text(a, p) for a in assignments for p in a.status.pending]
    return f"; pending: {', '.join(pending[:4])}" if pending else ""


def _slow_steps(assignments: Sequence[Assignment]) -> str:
    """The steps at which bound replicas are. The one with most replicas limits the start. At which step the replicas of
    a lost region are, nobody knows."""
    known = [a.status for a in assignments if a.spec.replicas and not _is_lost(a)]
    not_running, not_ready = sum(s.bound - s.started for s in known), sum(s.started - s.ready for s in known)
    parts = [f"{not_running} bound, not running"] if not_running > 0 else []
    parts += [f"{not_ready} running, not ready"] if not_ready > 0 else []
    return "".join(f"; {part}" for part in parts)


def _reason_text(assignment: Assignment, why: PendingReason) -> str:
    return f"{why.count} in {assignment.spec.region}: {why.reason}{' (' + why.message + ')' if why.message else ''}"


def _notices(workload: Workload, conditions: Sequence[Condition]) -> tuple[Notice, ...]:
    """Events for conditions whose status changed. `assign` says for itself which regions it chose."""
    before = {c.type: c.status for c in workload.status.conditions}
    return tuple(
        Notice(workload, c.reason, c.message)
        for c in conditions
        if before.get(c.type) != c.status and (c.status == "True" or c.type in before) and c.reason != Reason.ASSIGNED
    )


def _unplaced(workload: Workload, assignments: Sequence[Assignment]) -> tuple[Notice, ...]:
    """A warning for each region whose replicas begin to wait for a place, or wait for another reason."""
    before = {r.region: r.pending_reason for r in workload.status.summary.regions}
    return tuple(
        Notice(workload, Reason.UNSCHEDULABLE, _reason_text(a, a.status.pending[0]), warning=True)
        for a in assignments
        if a.status.pending and a.status.pending[0].reason not in (before.get(a.spec.region, ""), *_BRIEF_WAITS)
    )


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload)]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    same = (
        new is not None
        and old is not None
        and (new.status.backing, new.status.image) == (old.status.backing, old.status.image)
    )
    if new is None or (old is not None and same and new.metadata.generation == old.metadata.generation):
        return ()
    return (new.key,)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key(item.metadata.namespace, item.spec.workload),) if item is not None else ()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """Wakes the workloads in a region whose health or spec changed, and all workloads that are not fully assigned."""
    if new is not None and old is not None and _is_unchanged(new, old):
        return ()
    item = new or old
    if item is None:
        return ()
    held = [Key(a.metadata.namespace, a.spec.workload) for a in view.by(Assignment, "region", item.metadata.name)]
    short = [w.key for w in view.list(Workload) if not is_condition_true(w.status.conditions, "Assigned")]
    return [*held, *short]


def _is_unchanged(new: Region, old: Region) -> bool:
    return new.status.health.state is old.status.health.state and new.spec == old.spec
