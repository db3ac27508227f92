"""rollout: decides which regions may run a new revision, and when the last good one is restored.

Owns Workload.status.rollout and the condition RolledOut.
- Regions change in waves. The next wave starts when the regions before it fully serve the revision, recovery replicas
  included. Within a region, `replicate` respects maxSurge and maxUnavailable.
- Without progress within the deadline, the rollout fails or returns to the last good revision. A failed rollout
  continues when the regions that have the revision serve it after all.
- The deadline does not count for regions that are out of contact.
- The user's spec is never changed: `assign` calls `region_template` for the template that a region runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model.assignment import Assignment, Purpose, counts_desired_revision
from holdfast.model.meta import Condition, Key, find_condition
from holdfast.model.newest_template import ROLLOUT_REASONS, unserved_template
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import Template, template_hash
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import (
    Revision,
    RolloutBlock,
    RolloutPhase,
    Workload,
    WorkloadType,
    resolved_template,
    wanted_template,
)
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus

# Revisions kept per workload for rollback, besides the last good one. The Kubernetes default.
ROLLOUT_REVISIONS_MAX = 10

_ROLLBACK_PHASES = (RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK)
_FINAL_PHASES = (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK, RolloutPhase.FAILED)
_OUT_OF_CONTACT = (HealthState.SUSPECT, HealthState.AWAITING_WITNESS, HealthState.LOST)
_DEADLINE_MARGIN_S = 0.1


def region_template(workload: Workload, region: str, stored: Assignment | None) -> Template:
    """The template that a region runs now: the new one if the rollout has reached the region, else its previous one."""
    resolved, block = resolved_template(workload), workload.status.rollout
    wanted = resolved or wanted_template(workload)
    if workload.spec.type is WorkloadType.BATCH:
        return wanted if resolved is not None or stored is None else stored.spec.template
    before = stored.spec.template if stored is not None else _last_good_template(block) or wanted
    if resolved is None:
        # The new revision waits for its digest. Only a workload without any earlier revision has nothing else to run.
        earlier = block.history[0].template if block is not None and block.history else wanted
        return before if before != wanted else earlier
    if block is None or block.revision != template_hash(wanted):
        return before  # the rollout has not processed this revision yet
    if block.phase in _ROLLBACK_PHASES:
        return _last_good_template(block) or before
    if region in block.regions or block.phase == RolloutPhase.COMPLETE:
        return wanted
    return before


def _last_good_template(block: RolloutBlock | None) -> Template | None:
    """The template of the last good revision."""
    if block is None or not block.last_good_revision:
        return None
    return next((r.template for r in block.history if r.revision == block.last_good_revision), None)


def decide(key: Key, view: View, now: float) -> Outcome:
    """The next rollout step of one workload."""
    workload: Workload | None = view.get(Workload, key.name, key.namespace)
    if workload is None or workload.metadata.terminating or workload.spec.type is WorkloadType.BATCH:
        return NO_CHANGES
    if resolved_template(workload) is None:
        return _with_condition(workload, Outcome())  # no digest yet; the resolver wakes this workload again
    assignments = [a for a in view.by(Assignment, "workload", str(key)) if _is_in_rollout(a)]
    states = {r.metadata.name: r.status.health.state for r in view.list(Region)}
    order = sorted(assignments, key=lambda a: (a.spec.region, a.spec.purpose is not Purpose.NORMAL))
    reachable = [a for a in order if states.get(a.spec.region) is not HealthState.LOST]
    unreachable = tuple(dict.fromkeys(a.spec.region for a in order if states.get(a.spec.region) in _OUT_OF_CONTACT))
    block = workload.status.rollout
    new = _rollout_of(workload, block, reachable, now)
    if new.phase == RolloutPhase.FAILED:
        new = _after_failure(new, reachable, now)
    if new.phase not in _FINAL_PHASES:
        new = _advanced(workload, _with_unreachable(new, unreachable, reachable, now), reachable, now)
    again_s = _deadline_in_s(workload, new, reachable, now) if new.phase not in _FINAL_PHASES else None
    if new == block:
        return _with_condition(workload, Outcome(requeue_after_s=again_s))
    return Outcome(writes=(_write(workload, new),), notices=_notices(workload, block, new), requeue_after_s=again_s)


def _with_condition(workload: Workload, outcome: Outcome) -> Outcome:
    """The outcome with the condition RolledOut, if the stored one is about an earlier generation or says otherwise."""
    new, old = _condition(workload), find_condition(workload.status.conditions, "RolledOut")
    if old is not None and msgspec.structs.replace(old, last_transition_time="") == new:
        return outcome
    write = SetStatus("Workload", workload.key, workload.uid, conditions=(new,))
    return msgspec.structs.replace(outcome, writes=(*outcome.writes, write))


def _after_failure(block: RolloutBlock, assignments: Sequence[Assignment], now: float) -> RolloutBlock:
    """A failed rollout is complete, or continues with the next wave, when its regions serve the revision after all."""
    if _is_proven(assignments, block.revision):
        return _finished(block, RolloutPhase.COMPLETE, f"revision {block.revision} serves after its deadline")
    if not _is_proven([a for a in assignments if a.spec.region in block.regions], block.revision):
        return block
    return msgspec.structs.replace(block, phase=RolloutPhase.PROGRESSING, progressed_at=micro_text(now))


def _is_in_rollout(assignment: Assignment) -> bool:
    """Whether the Assignment is part of the rollout. A recovery Assignment that is being returned is not."""
    if assignment.spec.purpose is Purpose.RECOVERY:
        return bool(assignment.spec.replicas) and not assignment.metadata.terminating
    return bool(assignment.spec.replicas or assignment.status.replicas)


def _with_unreachable(
    block: RolloutBlock, unreachable: tuple[str, ...], reachable: Sequence[Assignment], now: float
) -> RolloutBlock:
    """The rollout with its unreachable regions. When a region is back, the deadline starts again."""
    if block.phase != RolloutPhase.PROGRESSING:
        return block
    regions = {a.spec.region for a in reachable}
    returned = [name for name in block.unreachable_regions if name not in unreachable and name in regions]
    progressed_at = micro_text(now) if returned else block.progressed_at
    return msgspec.structs.replace(block, unreachable_regions=unreachable, progressed_at=progressed_at)


def _rollout_of(
    workload: Workload, block: RolloutBlock | None, assignments: Sequence[Assignment], now: float
) -> RolloutBlock:
    """The rollout of the workload's current template: the running one, or a new one."""
    template = wanted_template(workload)
    wanted = template_hash(template)
    if block is not None and block.revision == wanted:
        return block
    last = block or RolloutBlock()
    entry = Revision(
        revision=wanted,
        template=resolved_template(workload) or template,
        generation=workload.metadata.generation,
        at=micro_text(now),
    )
    older = [r for r in last.history if r.revision != wanted]
    kept = _trimmed_history([entry, *older], last.last_good_revision)
    behind = {a.spec.region for a in assignments if a.spec.revision != wanted}
    already = tuple(dict.fromkeys(a.spec.region for a in assignments if a.spec.region not in behind))
    return RolloutBlock(
        revision=wanted,
        previous_revision=last.revision,
        last_good_revision=last.last_good_revision,
        phase=RolloutPhase.PROGRESSING,
        message=f"rollout of revision {wanted} starts",
        regions=already,
        progressed_at=micro_text(now),
        history=kept,
    )


def _trimmed_history(history: list[Revision], good: str) -> tuple[Revision, ...]:
    """The newest revisions, and always the last good one."""
    kept = history[:ROLLOUT_REVISIONS_MAX]
    return (*kept, *(r for r in history[ROLLOUT_REVISIONS_MAX:] if r.revision == good))


def _advanced(workload: Workload, block: RolloutBlock, assignments: Sequence[Assignment], now: float) -> RolloutBlock:
    if block.phase == RolloutPhase.ROLLING_BACK:
        return _rolled_back(block, assignments)
    rules = workload.spec.rollout
    if rules.paused:
        return msgspec.structs.replace(block, phase=RolloutPhase.PAUSED, message=_progress(block, assignments))
    if block.phase == RolloutPhase.PAUSED:  # paused time does not count
        block = msgspec.structs.replace(block, phase=RolloutPhase.PROGRESSING, progressed_at=micro_text(now))
    updated = [a for a in assignments if a.spec.region in block.regions]
    remaining = tuple(dict.fromkeys(a.spec.region for a in assignments if a.spec.region not in block.regions))
    if _is_complete(updated, block.revision):
        if not remaining and _is_proven(assignments, block.revision):
            return _finished(block, RolloutPhase.COMPLETE, f"revision {block.revision} serves in every region")
        wave = _next_wave(remaining, rules.wave_regions, protects=bool(block.last_good_revision))
        if wave:
            block = msgspec.structs.replace(block, regions=(*block.regions, *wave), progressed_at=micro_text(now))
    serving = sum(_serving_count(a, block.revision) for a in assignments)
    if serving > block.serving:
        block = msgspec.structs.replace(block, progressed_at=micro_text(now))
    block = msgspec.structs.replace(block, serving=serving, message=_progress(block, assignments))
    if now - parse_time(block.progressed_at) <= rules.progress_deadline_seconds or not _is_overdue(block, assignments):
        return block
    return _failed(workload, block)


def _next_wave(remaining: tuple[str, ...], wave_regions: int, *, protects: bool) -> tuple[str, ...]:
    """The regions that change next: all of them while there is no good revision to protect."""
    return remaining[: max(1, wave_regions)] if protects else remaining


def rollout_waves(workload: Workload, regions: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The regions of the workload in the waves in which they change: first those that changed, in their order."""
    block = workload.status.rollout
    if block is None:
        return ()
    earlier = [r for r in block.history if r.revision != block.revision and r.outcome == RolloutPhase.COMPLETE]
    protects = bool(earlier) or block.last_good_revision not in ("", block.revision)
    left = (*(r for r in block.regions if r in regions), *sorted(set(regions) - set(block.regions)))
    found = []
    while left:
        wave = _next_wave(left, workload.spec.rollout.wave_regions, protects=protects)
        found.append(wave)
        left = left[len(wave) :]
    return tuple(found)


def _is_overdue(block: RolloutBlock, assignments: Sequence[Assignment]) -> bool:
    """Whether a reachable region of the rollout has not completed it."""
    return any(
        a.spec.region in block.regions
        and a.spec.region not in block.unreachable_regions
        and not _is_complete((a,), block.revision)
        for a in assignments
    )


def _is_complete(assignments: Sequence[Assignment], revision: str) -> bool:
    """Whether these Assignments fully serve the revision and no replica of another one is left.

    True for an empty list, which proves nothing about the revision (see `_is_proven`). A pending recovery replica does
    not count, because it says nothing about the revision.
    """
    return all(
        a.spec.revision == revision
        and a.status.observed_epoch >= a.spec.epoch
        and a.status.updated_serving >= _required_serving(a)
        and a.status.replicas <= a.spec.replicas
        for a in assignments
    )


def _serving_count(assignment: Assignment, revision: str) -> int:
    """Serving replicas of this revision; 0 if the region's report counts another revision."""
    status = assignment.status
    counted = not status.revision or counts_desired_revision(assignment)
    return status.updated_serving if counted and assignment.spec.revision == revision else 0


def _required_serving(assignment: Assignment) -> int:
    status = assignment.status
    if assignment.spec.purpose is Purpose.NORMAL or status.updated < status.replicas:
        return assignment.spec.replicas
    return status.replicas - status.queued


def _is_proven(assignments: Sequence[Assignment], revision: str) -> bool:
    """Whether at least one region fully serves the revision. While every region is lost this is unknown, and a failed
    revision must not become the last good one."""
    reported = any(a.spec.purpose is Purpose.NORMAL or a.status.updated_serving for a in assignments)
    return reported and _is_complete(assignments, revision)


def _rolled_back(block: RolloutBlock, assignments: Sequence[Assignment]) -> RolloutBlock:
    if not _is_proven(assignments, block.last_good_revision):
        return block
    message = f"revision {block.last_good_revision} serves again; {block.revision} made no progress within the deadline"
    return _finished(block, RolloutPhase.ROLLED_BACK, message)


def _failed(workload: Workload, block: RolloutBlock) -> RolloutBlock:
    deadline_s = workload.spec.rollout.progress_deadline_seconds
    late = f"revision {block.revision} made no progress for {deadline_s:g} s: {block.message}"
    if can_roll_back(workload, block):
        message = f"{late}; rolling back to {block.last_good_revision}"
        return msgspec.structs.replace(block, phase=RolloutPhase.ROLLING_BACK, message=message)
    why = "there is no earlier good revision" if not block.last_good_revision else "automatic rollback is off"
    return _finished(block, RolloutPhase.FAILED, f"{late}; {why}")


def can_roll_back(workload: Workload, block: RolloutBlock) -> bool:
    """Whether the rollout returns to the last good revision at its deadline. Otherwise it fails."""
    earlier = _last_good_template(block) is not None and block.last_good_revision != block.revision
    return workload.spec.rollout.auto_rollback and earlier


def _finished(block: RolloutBlock, phase: RolloutPhase, message: str) -> RolloutBlock:
    good = block.revision if phase is RolloutPhase.COMPLETE else block.last_good_revision
    history = tuple(
        msgspec.structs.replace(r, outcome=phase.value) if r.revision == block.revision else r for r in block.history
    )
    return msgspec.structs.replace(
        block, phase=phase, message=message, last_good_revision=good, unreachable_regions=(), history=history
    )


def _progress(block: RolloutBlock, assignments: Sequence[Assignment]) -> str:
    """Progress message: serving replicas per region, and why others are pending."""
    parts = []
    for a in assignments:
        if a.spec.region not in block.regions:
            continue
        new = _serving_count(a, block.revision)
        reasons = (*a.status.pending, *a.status.failing)
        waits = f" ({reasons[0].reason})" if reasons else ""
        purpose = " for recovery" if a.spec.purpose is Purpose.RECOVERY else ""
        parts.append(f"{a.spec.region} {new}/{a.spec.replicas}{purpose}{waits}")
    later = len({a.spec.region for a in assignments if a.spec.region not in block.regions})
    message = f"serving {', '.join(parts) or 'nowhere yet'}" + (f"; {later} region(s) follow" if later else "")
    return message + (
        f"; out of contact, deadline suspended: {', '.join(block.unreachable_regions)}"
        if block.unreachable_regions
        else ""
    )


def _deadline_in_s(
    workload: Workload, block: RolloutBlock, assignments: Sequence[Assignment], now: float
) -> float | None:
    if block.phase != RolloutPhase.PROGRESSING or not _is_overdue(block, assignments):
        return None
    left_s = parse_time(block.progressed_at) + workload.spec.rollout.progress_deadline_seconds - now
    return max(0.0, left_s) + _DEADLINE_MARGIN_S


def _write(workload: Workload, block: RolloutBlock) -> SetStatus:
    rolled = msgspec.structs.replace(workload, status=msgspec.structs.replace(workload.status, rollout=block))
    blocks = {"rollout": block}
    return SetStatus("Workload", workload.key, workload.uid, blocks=blocks, conditions=(_condition(rolled),))


def _condition(workload: Workload) -> Condition:
    """RolledOut: whether the newest template is what serves."""
    waits, block = unserved_template(workload), workload.status.rollout
    return Condition(
        type="RolledOut",
        status="True" if waits is None else "False",
        reason=Reason.ROLLOUT_COMPLETE if waits is None else waits.reason,
        message=waits.message if waits is not None else block.message if block is not None else "",
        observed_generation=workload.metadata.generation,
    )


def _notices(workload: Workload, old: RolloutBlock | None, new: RolloutBlock) -> tuple[Notice, ...]:
    if old is not None and (old.phase, old.revision, old.regions) == (new.phase, new.revision, new.regions):
        return ()
    warning = new.phase in (RolloutPhase.ROLLING_BACK, RolloutPhase.FAILED)
    return (Notice(workload, ROLLOUT_REASONS[new.phase], new.message, warning=warning),)


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload)]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is None:
        return ()
    same = old is not None and new.metadata.generation == old.metadata.generation
    return () if same and old is not None and new.status.image == old.status.image else (new.key,)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key(item.metadata.namespace, item.spec.workload),) if item is not None else ()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """Wakes the workloads in a region whose health changed: their progress deadline stops or restarts."""
    item = new or old
    same = new is not None and old is not None and new.status.health.state is old.status.health.state
    if item is None or same:
        return ()
    assignments = view.by(Assignment, "region", item.metadata.name)
    return sorted({Key(a.metadata.namespace, a.spec.workload) for a in assignments})
