"""cron: creates the runs of CronWorkloads, deletes old ones, and writes CronWorkload.status.

- A tick has at most one run. The run's name is derived from uid and tick, and `decidedThrough` moves past the tick in
  the commit that creates the run. `decidedThrough` never decreases, whatever the clock does.
- Every tick is run or counted as missed, with an event that says why. Ticks during a suspension are not missed: a
  person asked for it.
- Missed ticks are committed before the next run, so that a refused run cannot hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import tzinfo

import msgspec

from holdfast.fleet.cron_ticks import due_ticks, next_tick
from holdfast.model.cron_schedule import BadSchedule, CronSchedule, parse_schedule
from holdfast.model.cron_workload import (
    ANNOTATION_SCHEDULED_AT,
    ActiveRun,
    ConcurrencyPolicy,
    CronWorkload,
    CronWorkloadStatus,
    MissedTicks,
    run_name,
    run_of,
)
from holdfast.model.indexes import pending_replicas
from holdfast.model.meta import Condition, Key, find_condition, is_condition_true, with_condition
from holdfast.model.quota import Quota
from holdfast.model.reasons import Reason
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.view import View
from holdfast.model.workload import Workload, wanted_replicas
from holdfast.model.writes import NO_CHANGES, Create, Delete, Notice, Outcome, SetStatus, Write

# Due ticks looked at in one decision, as in Kubernetes. Older ones are counted as one and said not to be looked at.
DUE_TICKS_MAX = 100
# Runs created in one decision. The rest follows at once in the next one.
RUNS_PER_PASS = 10
# Unfinished runs of one CronWorkload. At the bound a tick waits, so that runs that never end do not fill the tenant.
ACTIVE_RUNS_MAX = 50
# Finished runs deleted in one decision. The rest follows in the next one.
DELETIONS_PER_PASS = 20
# Longest wait for a tick without another look. A wall clock that steps forward wakes nothing.
RECHECK_S = 60.0
# Ticks named in one message. The rest is only counted.
TICKS_NAMED_MAX = 3

FindZone = Callable[[str], tzinfo | None]


class _Decided(msgspec.Struct):
    """The status under construction, and what goes with it."""

    status: CronWorkloadStatus
    writes: list[Write]
    notices: list[Notice]
    condition: Condition
    again_s: float | None = None


def decider(find_zone: FindZone) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function. `find_zone` finds a loaded time zone by name."""

    def decide(key: Key, view: View, now: float) -> Outcome:
        cron: CronWorkload | None = view.get(CronWorkload, key.name, key.namespace)
        if cron is None or cron.metadata.terminating:
            return NO_CHANGES
        runs: Sequence[Workload] = view.by(Workload, "owner", cron.uid)
        made = _Decided(cron.status, [], [], _condition("True", Reason.SCHEDULE_ACTIVE, ""))
        _observe_runs(made, cron, runs)
        _decide_ticks(made, cron, runs, view, now=now, find_zone=find_zone)
        return _outcome(made, cron, now)

    return decide


def _decide_ticks(
    made: _Decided, cron: CronWorkload, runs: Sequence[Workload], view: View, *, now: float, find_zone: FindZone
) -> None:
    spec, zone = cron.spec, find_zone(cron.spec.time_zone)
    try:
        schedule = parse_schedule(spec.schedule)
    except BadSchedule as bad:  # stored by another release
        made.condition = _condition("False", Reason.SCHEDULE_UNUSABLE, f"spec.schedule: {bad}")
        return
    if zone is None:
        made.condition = _condition(
            "False", Reason.UNKNOWN_TIME_ZONE, f"time zone {spec.time_zone} is not in this release's time zone data"
        )
        return
    _close_former_schedule(made, cron, now, find_zone)
    if not spec.suspend:
        _start_due(made, cron, (schedule, zone), runs, view, now=now)
    _describe(made, spec.suspend, schedule, zone, now)


def _close_former_schedule(made: _Decided, cron: CronWorkload, now: float, find_zone: FindZone) -> None:
    """A changed schedule, and a suspension that begins or ends, count from now on. Ticks that were due before under
    the former schedule are missed, unless it was suspended."""
    spec, status = cron.spec, made.status
    former = (status.decided_schedule, status.decided_time_zone, status.decided_suspended)
    present = (spec.schedule, spec.time_zone, spec.suspend)
    if former == present:
        return
    if not status.decided_through:
        through_s = parse_time(cron.metadata.creation_timestamp)
    else:
        through_s = max(parse_time(status.decided_through), float(int(now)))
        zone = find_zone(status.decided_time_zone)
        if not status.decided_suspended and zone is not None:
            since_s = parse_time(status.decided_through)
            # Readable: a decision of this release or the former one read it before.
            due, more = due_ticks(parse_schedule(status.decided_schedule), zone, since_s, now, DUE_TICKS_MAX)
            why = "the CronWorkload was suspended" if spec.suspend else "the schedule was changed"
            _record_missed(made, cron, due, f"{why} before the run was started", more=more)
    made.status = msgspec.structs.replace(
        made.status,
        decided_through=seconds_text(through_s),
        decided_schedule=spec.schedule,
        decided_time_zone=spec.time_zone,
        decided_suspended=spec.suspend,
    )


def _start_due(
    made: _Decided,
    cron: CronWorkload,
    times: tuple[CronSchedule, tzinfo],
    runs: Sequence[Workload],
    view: View,
    *,
    now: float,
) -> None:
    """Records missed ticks; without any, starts the runs that are due."""
    spec = cron.spec
    through_s = parse_time(made.status.decided_through)
    due, more = due_ticks(*times, through_s, now, DUE_TICKS_MAX)
    deadline_s = spec.starting_deadline_seconds
    late = [tick for tick in due if deadline_s is not None and now - tick > deadline_s]
    fresh = due[len(late) :]
    catches_up = deadline_s is not None and spec.concurrency_policy is ConcurrencyPolicy.ALLOW
    superseded = [] if catches_up else fresh[:-1]
    if more and not late and not superseded:
        superseded = fresh[:1]
    if late or superseded:
        _record_missed(made, cron, late, f"startingDeadlineSeconds of {deadline_s or 0:g} s has passed", more=more)
        _record_missed(made, cron, superseded, "newer ticks are due", more=more and not late)
        made.again_s = 0.0 if len(fresh) > len(superseded) else None
        return
    unfinished = [run for run in runs if not is_finished(run)]
    for tick in fresh[:RUNS_PER_PASS]:
        waits_for = _wait_reason(cron, unfinished, view)
        if waits_for:
            made.condition = _condition("False", Reason.TICK_WAITING, f"the run of {seconds_text(tick)} {waits_for}")
            made.again_s = max(0.1, tick + deadline_s - now + 0.001) if deadline_s is not None else None
            return
        unfinished = _start(made, cron, tick, unfinished, view)
    made.again_s = 0.0 if len(fresh) > RUNS_PER_PASS else None


def _start(made: _Decided, cron: CronWorkload, tick: int, unfinished: Sequence[Workload], view: View) -> list[Workload]:
    """Starts the run of a tick. Returns the unfinished runs after it."""
    name, at = run_name(cron, tick), seconds_text(tick)
    taken = view.get(Workload, name, cron.metadata.namespace)
    if taken is not None and all(owner.uid != cron.uid for owner in taken.metadata.owner_references):
        _record_missed(made, cron, [tick], f"Workload {name} exists and is no run of this CronWorkload")
        return list(unfinished)
    run = run_of(cron, name, tick)
    left = list(unfinished)
    if cron.spec.concurrency_policy is ConcurrencyPolicy.REPLACE:
        made.writes += [Delete("Workload", r.key, r.uid) for r in unfinished if not r.metadata.terminating]
        left = [r for r in unfinished if r.metadata.terminating]
    if taken is None:
        made.writes.append(Create(run))
        made.notices.append(Notice(cron, Reason.RUN_STARTED, f"run {name} for {at}"))
    made.status = msgspec.structs.replace(
        made.status,
        active=(*_active(left), ActiveRun(workload=name, scheduled_at=at)),
        last_schedule_time=at,
        started=made.status.started + 1,
        decided_through=at,
    )
    return [*left, run]


def _wait_reason(cron: CronWorkload, unfinished: Sequence[Workload], view: View) -> str:
    """Why the run of a due tick must wait; empty if it may start."""
    if cron.spec.concurrency_policy is ConcurrencyPolicy.FORBID and unfinished:
        return f"waits until run {unfinished[0].metadata.name} ends (concurrencyPolicy Forbid)"
    if cron.spec.concurrency_policy is ConcurrencyPolicy.ALLOW and len(unfinished) >= ACTIVE_RUNS_MAX:
        return f"waits: {len(unfinished)} runs have not ended (limit {ACTIVE_RUNS_MAX})"
    tenant = cron.metadata.namespace
    quota = view.get(Quota, "quota", tenant)
    more = wanted_replicas(run_of(cron, "", 0.0))
    if quota is not None and more:
        waiting = sum(pending_replicas(w) for w in view.list(Workload, tenant))
        if waiting + more > quota.spec.pending_cap:
            return f"waits: tenant {tenant} has {waiting} pending replicas (limit {quota.spec.pending_cap})"
    return ""


def _record_missed(made: _Decided, cron: CronWorkload, ticks: Sequence[int], why: str, *, more: bool = False) -> None:
    if not ticks:
        return
    named = ", ".join(seconds_text(tick) for tick in ticks[-TICKS_NAMED_MAX:])
    said = f"{len(ticks)} tick(s) without a run, the newest {named}: {why}"
    if more:
        said += f"; ticks before {seconds_text(ticks[0])} were missed too and not looked at (limit {DUE_TICKS_MAX})"
    before = made.status.missed.count if made.status.missed is not None else 0
    newest = seconds_text(ticks[-1])
    missed = MissedTicks(count=before + len(ticks), last_time=newest, message=said)
    through = max(made.status.decided_through, newest)
    made.status = msgspec.structs.replace(made.status, missed=missed, decided_through=through)
    made.notices.append(Notice(cron, Reason.TICK_MISSED, said, warning=True))


def _describe(made: _Decided, suspended: bool, schedule: CronSchedule, zone: tzinfo, now: float) -> None:
    """The next tick, the condition, and when to decide again."""
    through_s = parse_time(made.status.decided_through)
    tick = None if suspended else next_tick(schedule, zone, max(now, through_s))
    following = seconds_text(tick) if tick is not None else ""
    made.status = msgspec.structs.replace(made.status, next_schedule_time=following)
    if suspended:
        made.condition = _condition("False", Reason.SCHEDULE_SUSPENDED, "spec.suspend is set: no tick is run")
    elif through_s > now + 1.0:
        message = (
            f"ticks through {made.status.decided_through} are decided, and the clock of the global cell is behind "
            "that time: none of them runs again"
        )
        made.condition = _condition("False", Reason.CLOCK_BEHIND, message)
    elif made.condition.status == "True":
        made.condition = _condition("True", Reason.SCHEDULE_ACTIVE, f"the next tick is {following}")
    if tick is not None:
        left_s = min(max(0.01, tick - now), RECHECK_S)
        made.again_s = left_s if made.again_s is None else min(made.again_s, left_s)


def _observe_runs(made: _Decided, cron: CronWorkload, runs: Sequence[Workload]) -> None:
    """Lists the active runs, notes the newest success, and deletes finished runs beyond the history limits."""
    spec = cron.spec
    unfinished = [run for run in runs if not is_finished(run)]
    succeeded = [run for run in runs if is_condition_true(run.status.conditions, "Complete")]
    failed = [run for run in runs if is_finished(run) and not is_condition_true(run.status.conditions, "Complete")]
    ends = [c.last_transition_time for r in succeeded if (c := find_condition(r.status.conditions, "Complete"))]
    made.status = msgspec.structs.replace(
        made.status, active=_active(unfinished), last_successful_time=max((made.status.last_successful_time, *ends))
    )
    old: list[Workload] = []
    for group, limit in ((succeeded, spec.successful_runs_history_limit), (failed, spec.failed_runs_history_limit)):
        newest_first = sorted(group, key=lambda run: (_scheduled_at(run), run.metadata.name), reverse=True)
        old += [run for run in newest_first[limit:] if not run.metadata.terminating]
    made.writes += [Delete("Workload", run.key, run.uid) for run in old[:DELETIONS_PER_PASS]]


def is_finished(run: Workload) -> bool:
    return any(is_condition_true(run.status.conditions, kind) for kind in ("Complete", "Failed"))


def _scheduled_at(run: Workload) -> str:
    return run.metadata.annotations.get(ANNOTATION_SCHEDULED_AT, run.metadata.creation_timestamp)


def _active(runs: Iterable[Workload]) -> tuple[ActiveRun, ...]:
    """The newest unfinished runs, by time."""
    listed = sorted(runs, key=lambda run: (_scheduled_at(run), run.metadata.name))[-ACTIVE_RUNS_MAX:]
    return tuple(ActiveRun(workload=run.metadata.name, scheduled_at=_scheduled_at(run)) for run in listed)


def _condition(status: str, reason: Reason, message: str) -> Condition:
    return Condition(type="Scheduled", status=status, reason=reason, message=message)


def _outcome(made: _Decided, cron: CronWorkload, now: float) -> Outcome:
    generation = cron.metadata.generation
    condition = msgspec.structs.replace(made.condition, observed_generation=generation)
    conditions = with_condition(cron.status.conditions, condition, seconds_text(now))
    status = msgspec.structs.replace(made.status, conditions=conditions, observed_generation=generation)
    writes = list(made.writes)
    if status != cron.status:
        blocks = {
            field.encode_name: getattr(status, field.name)
            for field in msgspec.structs.fields(CronWorkloadStatus)
            if field.name not in ("conditions", "observed_generation")
            and getattr(status, field.name) != getattr(cron.status, field.name)
        }
        # The revision must match: with another state of the ticks this decision would be wrong.
        writes.append(
            SetStatus(
                "CronWorkload",
                cron.key,
                cron.uid,
                blocks=blocks,
                conditions=(condition,),
                observed_generation=generation,
                if_revision=cron.revision,
            )
        )
    return Outcome(writes=tuple(writes), notices=tuple(made.notices), requeue_after_s=made.again_s)


def keys(view: View) -> Iterable[Key]:
    return [cron.key for cron in view.list(CronWorkload)]


def woken_by_cron_workload(new: CronWorkload | None, old: CronWorkload | None, view: View) -> Iterable[Key]:
    if new is None or (old is not None and new.metadata.generation == old.metadata.generation):
        return ()
    return (new.key,)


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    """Wakes the CronWorkload of a run that begins, ends or is gone."""
    run = new or old
    if run is None or (new is not None and old is not None and is_finished(new) == is_finished(old)):
        return ()
    return [
        Key(run.metadata.namespace, owner.name)
        for owner in run.metadata.owner_references
        if owner.kind == "CronWorkload"
    ]
