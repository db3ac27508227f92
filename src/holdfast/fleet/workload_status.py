"""workload-status: what regions report, summed up. Owns Workload.status but for the blocks of autoscale and rollout.

Counts are derived from the Assignments' status each time, never accumulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.meta import Condition, Key, with_condition
from holdfast.model.reasons import Reason
from holdfast.model.times import seconds_text
from holdfast.model.view import View
from holdfast.model.workload import RegionProgress, Summary, Workload, WorkloadType, wanted_replicas
from holdfast.model.writes import NOTHING, Notice, Outcome, SetStatus


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one workload."""
    workload = view.get(Workload, key.name, key.namespace)
    if workload is None:
        return NOTHING
    assignments = view.by(Assignment, "workload", str(key))
    summary = _summary(workload, assignments)
    conditions = _conditions(workload, assignments, summary)
    generation = workload.metadata.generation
    old = workload.status.conditions
    new = old
    for condition in conditions:
        new = with_condition(new, condition, seconds_text(now))
    status = workload.status
    if summary == status.summary and new == old and status.observed_generation == generation:
        return NOTHING
    write = SetStatus(
        "Workload",
        workload.key,
        workload.uid,
        blocks={"summary": summary},
        conditions=tuple(conditions),
        observed_generation=generation,
    )
    return Outcome(writes=(write,), notices=_notices(workload, conditions))


def _summary(workload: Workload, assignments: Sequence[Assignment]) -> Summary:
    regions = tuple(
        RegionProgress(
            region=a.spec.region,
            assigned=a.spec.replicas,
            bound=a.status.bound,
            ready=a.status.ready,
            serving=a.status.serving,
            pending_reason=a.status.pending[0].reason if a.status.pending else "",
        )
        for a in assignments
    )
    return Summary(
        replicas=wanted_replicas(workload),
        assigned=sum(a.spec.replicas for a in assignments),
        bound=sum(a.status.bound for a in assignments),
        started=sum(a.status.started for a in assignments),
        ready=sum(a.status.ready for a in assignments),
        serving=sum(a.status.serving for a in assignments),
        succeeded=max(workload.status.summary.succeeded, sum(a.status.succeeded for a in assignments)),
        failed=sum(a.status.failed for a in assignments),
        regions=regions,
        selector=f"holdfast.dev/workload={workload.metadata.name}",
    )


def _conditions(workload: Workload, assignments: Sequence[Assignment], summary: Summary) -> list[Condition]:
    generation = workload.metadata.generation
    batch = workload.spec.batch
    is_batch = workload.spec.type is WorkloadType.BATCH and batch is not None
    owed = batch.completions if is_batch and batch is not None else summary.replicas
    held = sum(a.spec.batch.completions if a.spec.batch is not None else a.spec.replicas for a in assignments)
    found = [
        Condition(
            type="Assigned",
            status="True" if held >= owed else "False",
            reason=Reason.ASSIGNED if held >= owed else Reason.PARTLY_ASSIGNED,
            message=f"{held} of {owed} have a region",
            observed_generation=generation,
        )
    ]
    if is_batch and batch is not None:
        found.append(_complete(summary, batch.completions, batch.backoff_limit, generation))
        return found
    current = all(_is_current(workload, a) for a in assignments)
    enough = summary.serving >= summary.replicas and current and held >= owed
    reason = Reason.ALL_SERVING if enough else Reason.SOME_SERVING if summary.serving else Reason.NONE_SERVING
    message = f"{summary.serving} of {summary.replicas} replicas serve"
    if not enough:
        message += _waiting_for(assignments)
    found.append(
        Condition(
            type="Serving",
            status="True" if enough else "False",
            reason=reason,
            message=message,
            observed_generation=generation,
        )
    )
    return found


def _complete(summary: Summary, completions: int, backoff_limit: int, generation: int) -> Condition:
    done = summary.succeeded >= completions
    failed = summary.failed > backoff_limit
    reason = Reason.COMPLETE if done else Reason.BACKOFF_LIMIT_EXCEEDED if failed else Reason.IN_PROGRESS
    return Condition(
        type="Complete",
        status="True" if done else "False",
        reason=reason,
        message=f"{summary.succeeded} of {completions} completions, {summary.failed} failed",
        observed_generation=generation,
    )


def _is_current(workload: Workload, assignment: Assignment) -> bool:
    """Whether the region has acted on the newest generation."""
    return (
        assignment.spec.workload_generation >= workload.metadata.generation
        and assignment.status.observed_epoch >= assignment.spec.epoch
        and assignment.status.replicas <= assignment.spec.replicas
    )


def _waiting_for(assignments: Sequence[Assignment]) -> str:
    parts = [
        f"{p.count} in {a.spec.region}: {p.reason}{' (' + p.message + ')' if p.message else ''}"
        for a in assignments
        for p in a.status.pending
    ]
    return "; waiting: " + ", ".join(parts[:4]) if parts else ""


def _notices(workload: Workload, conditions: Sequence[Condition]) -> tuple[Notice, ...]:
    """People are told when a condition turns."""
    before = {c.type: c.status for c in workload.status.conditions}
    return tuple(
        Notice(workload, c.reason, c.message)
        for c in conditions
        if before.get(c.type) != c.status and (c.status == "True" or c.type in before)
    )


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload)]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is None or (old is not None and new.metadata.generation == old.metadata.generation):
        return ()
    return (new.key,)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key(item.metadata.namespace, item.spec.workload),) if item is not None else ()
