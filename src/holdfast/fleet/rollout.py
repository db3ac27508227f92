"""rollout: decides in which regions a new revision may run by now, and when the last good one comes back.

Owns Workload.status.rollout and the condition RolledOut. A region takes the next revision only when those before it
serve it in full (waves); no progress within the deadline ends it, by going back to the last good revision where there
is one and that is wanted. Inside a region `replicate` keeps to surge and unavailable.
What a recovery has in a region takes part: it gets the revision with the region, and the next wave waits for it too.
A region that is out of touch has all the time it is away: the deadline is for those that are heard.
Never changes what the user wrote: `target` says which template a region runs, and `assign` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import Condition, Key
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import Template, template_hash
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import Revision, RolloutBlock, RolloutPhase, Workload, WorkloadType
from holdfast.model.writes import NOTHING, Notice, Outcome, SetStatus

_BACK = (RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK)
_OVER = (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK, RolloutPhase.FAILED)
_REASONS = {
    RolloutPhase.PROGRESSING: Reason.ROLLOUT_PROGRESSING,
    RolloutPhase.PAUSED: Reason.ROLLOUT_PAUSED,
    RolloutPhase.COMPLETE: Reason.ROLLOUT_COMPLETE,
    RolloutPhase.ROLLING_BACK: Reason.ROLLING_BACK,
    RolloutPhase.ROLLED_BACK: Reason.ROLLED_BACK,
    RolloutPhase.FAILED: Reason.ROLLOUT_FAILED,
}
_SILENT = (HealthState.SUSPECT, HealthState.AWAITING_WITNESS, HealthState.LOST)
_SOON_S = 0.1


def target(workload: Workload, region: str, stored: Assignment | None) -> Template:
    """The template a region runs now: the wanted one where the rollout has come that far, else what it had."""
    wanted, block = workload.spec.template, workload.status.rollout
    if workload.spec.type is WorkloadType.BATCH:
        return wanted
    before = stored.spec.template if stored is not None else _kept(block) or wanted
    if block is None or block.revision != template_hash(wanted):
        return before  # the rollout has not spoken about this revision yet
    if block.phase in _BACK:
        return _kept(block) or before
    if region in block.regions or block.phase == RolloutPhase.COMPLETE:
        return wanted
    return before


def _kept(block: RolloutBlock | None) -> Template | None:
    """The template of the last good revision."""
    if block is None or not block.last_good_revision:
        return None
    return next((r.template for r in block.history if r.revision == block.last_good_revision), None)


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one workload."""
    workload: Workload | None = view.get(Workload, key.name, key.namespace)
    if workload is None or workload.metadata.terminating or workload.spec.type is WorkloadType.BATCH:
        return NOTHING
    held = [a for a in view.by(Assignment, "workload", str(key)) if _takes_part(a)]
    states = {r.metadata.name: r.status.health.state for r in view.list(Region)}
    order = sorted(held, key=lambda a: (a.spec.region, a.spec.purpose is not Purpose.NORMAL))
    heard = [a for a in order if states.get(a.spec.region) is not HealthState.LOST]
    silent = tuple(dict.fromkeys(a.spec.region for a in order if states.get(a.spec.region) in _SILENT))
    block = workload.status.rollout
    new = _begun(workload, block, heard, now)
    if new.phase not in _OVER:
        new = _moved(workload, _waited_for(new, silent, heard, now), heard, now)
    elif new.phase == RolloutPhase.FAILED and _proved(heard, new.revision):
        new = _finished(new, RolloutPhase.COMPLETE, f"revision {new.revision} serves after all")
    again_s = _deadline_in_s(workload, new, heard, now) if new.phase not in _OVER else None
    if new == block:
        return Outcome(again_in_s=again_s)
    return Outcome(writes=(_write(workload, new),), notices=_notices(workload, block, new), again_in_s=again_s)


def _takes_part(assignment: Assignment) -> bool:
    """What a recovery has given back already is not worth a new revision."""
    if assignment.spec.purpose is Purpose.RECOVERY:
        return bool(assignment.spec.replicas) and not assignment.metadata.terminating
    return bool(assignment.spec.replicas or assignment.status.replicas)


def _waited_for(block: RolloutBlock, silent: tuple[str, ...], heard: Sequence[Assignment], now: float) -> RolloutBlock:
    """The rollout with the regions that are out of touch. One that is back has its whole time again to go on."""
    if block.phase != RolloutPhase.PROGRESSING:
        return block
    regions = {a.spec.region for a in heard}
    back = [name for name in block.silent if name not in silent and name in regions]
    progressed_at = micro_text(now) if back else block.progressed_at
    return msgspec.structs.replace(block, silent=silent, progressed_at=progressed_at)


def _begun(workload: Workload, block: RolloutBlock | None, held: Sequence[Assignment], now: float) -> RolloutBlock:
    """The rollout of the revision the workload asks for: the one under way, or a new one."""
    wanted = template_hash(workload.spec.template)
    if block is not None and block.revision == wanted:
        return block
    last = block or RolloutBlock()
    entry = Revision(revision=wanted, template=workload.spec.template, generation=workload.metadata.generation,
                     at=micro_text(now))  # fmt: skip
    older = [r for r in last.history if r.revision != wanted]
    kept = _bounded([entry, *older], last.last_good_revision)
    behind = {a.spec.region for a in held if a.spec.revision != wanted}
    already = tuple(dict.fromkeys(a.spec.region for a in held if a.spec.region not in behind))
    return RolloutBlock(
        revision=wanted, previous_revision=last.revision, last_good_revision=last.last_good_revision,
        phase=RolloutPhase.PROGRESSING, message=f"revision {wanted} begins", regions=already,
        progressed_at=micro_text(now), history=kept,
    )  # fmt: skip


def _bounded(history: list[Revision], good: str) -> tuple[Revision, ...]:
    """The newest few; the last good one is never among those that go."""
    kept = history[: limits.REVISIONS_KEPT]
    return (*kept, *(r for r in history[limits.REVISIONS_KEPT :] if r.revision == good))


def _moved(workload: Workload, block: RolloutBlock, held: Sequence[Assignment], now: float) -> RolloutBlock:
    if block.phase == RolloutPhase.ROLLING_BACK:
        return _rolled_back(block, held)
    rules = workload.spec.rollout
    if rules.paused:
        return msgspec.structs.replace(block, phase=RolloutPhase.PAUSED, message=_progress(block, held))
    if block.phase == RolloutPhase.PAUSED:  # the time it was paused does not count
        block = msgspec.structs.replace(block, phase=RolloutPhase.PROGRESSING, progressed_at=micro_text(now))
    taken = [a for a in held if a.spec.region in block.regions]
    ahead = tuple(dict.fromkeys(a.spec.region for a in held if a.spec.region not in block.regions))
    if _done(taken, block.revision):
        if not ahead and _proved(held, block.revision):
            return _finished(block, RolloutPhase.COMPLETE, f"revision {block.revision} serves in every region")
        wave = ahead[: max(1, rules.wave_regions)]
        if not block.last_good_revision:
            wave = ahead  # nothing to protect yet
        if wave:
            block = msgspec.structs.replace(block, regions=(*block.regions, *wave), progressed_at=micro_text(now))
    serving = sum(_serves(a, block.revision) for a in held)
    if serving > block.serving:
        block = msgspec.structs.replace(block, progressed_at=micro_text(now))
    block = msgspec.structs.replace(block, serving=serving, message=_progress(block, held))
    if now - parse_time(block.progressed_at) <= rules.progress_deadline_seconds or not _late(block, held):
        return block
    return _given_up(workload, block)


def _late(block: RolloutBlock, held: Sequence[Assignment]) -> bool:
    """Whether a region that is heard has not done what it was given: one that is out of touch cannot be late."""
    return any(
        a.spec.region in block.regions and a.spec.region not in block.silent and not _done((a,), block.revision)
        for a in held
    )


def _done(held: Sequence[Assignment], revision: str) -> bool:
    """Whether these regions have acted on the revision and serve it in full, with nothing of another left. True of no
    region at all: whoever takes it for proof that the revision is good must have heard of one (`_proved`).

    A recovery's replica that has no place yet says nothing about the revision it would run: what has one must serve.
    """
    return all(
        a.spec.revision == revision
        and a.status.observed_epoch >= a.spec.epoch
        and a.status.updated_serving >= _to_serve(a)
        and a.status.replicas <= a.spec.replicas
        for a in held
    )


def _serves(assignment: Assignment, revision: str) -> int:
    """How many serve this very revision: a region that has not heard of it yet still counts those of the one before."""
    status = assignment.status
    counted = assignment.spec.revision == revision and status.revision in ("", revision)
    return status.updated_serving if counted else 0


def _to_serve(assignment: Assignment) -> int:
    status = assignment.status
    if assignment.spec.purpose is Purpose.NORMAL or status.updated < status.replicas:
        return assignment.spec.replicas
    return status.replicas - status.queued


def _proved(held: Sequence[Assignment], revision: str) -> bool:
    """Whether it serves in full somewhere. While every region is lost nobody knows, and a revision that was given up
    must not become the last good one by that."""
    told = any(a.spec.purpose is Purpose.NORMAL or a.status.updated_serving for a in held)
    return told and _done(held, revision)


def _rolled_back(block: RolloutBlock, held: Sequence[Assignment]) -> RolloutBlock:
    if not _proved(held, block.last_good_revision):
        return block
    said = f"revision {block.last_good_revision} serves again; {block.revision} made no progress in its time"
    return _finished(block, RolloutPhase.ROLLED_BACK, said)


def _given_up(workload: Workload, block: RolloutBlock) -> RolloutBlock:
    rules = workload.spec.rollout
    late = f"revision {block.revision} made no progress for {rules.progress_deadline_seconds:g} s: {block.message}"
    if rules.auto_rollback and _kept(block) is not None and block.last_good_revision != block.revision:
        said = f"{late}; going back to {block.last_good_revision}"
        return msgspec.structs.replace(block, phase=RolloutPhase.ROLLING_BACK, message=said)
    why = "there is no good revision before it" if not block.last_good_revision else "automatic rollback is off"
    return _finished(block, RolloutPhase.FAILED, f"{late}; {why}")


def _finished(block: RolloutBlock, phase: RolloutPhase, message: str) -> RolloutBlock:
    good = block.revision if phase is RolloutPhase.COMPLETE else block.last_good_revision
    history = tuple(
        msgspec.structs.replace(r, outcome=phase.value) if r.revision == block.revision else r for r in block.history
    )
    return msgspec.structs.replace(
        block, phase=phase, message=message, last_good_revision=good, silent=(), history=history
    )


def _progress(block: RolloutBlock, held: Sequence[Assignment]) -> str:
    """One sentence for people: how many serve the revision where, and what the others wait for."""
    parts = []
    for a in held:
        if a.spec.region not in block.regions:
            continue
        new = _serves(a, block.revision)
        waits = f" ({a.status.pending[0].reason})" if a.status.pending else ""
        purpose = " for recovery" if a.spec.purpose is Purpose.RECOVERY else ""
        parts.append(f"{a.spec.region} {new}/{a.spec.replicas}{purpose}{waits}")
    later = len({a.spec.region for a in held if a.spec.region not in block.regions})
    said = f"serving {', '.join(parts) or 'nowhere yet'}" + (f"; {later} region(s) to come" if later else "")
    return said + (f"; out of touch, with no deadline meanwhile: {', '.join(block.silent)}" if block.silent else "")


def _deadline_in_s(workload: Workload, block: RolloutBlock, held: Sequence[Assignment], now: float) -> float | None:
    if block.phase != RolloutPhase.PROGRESSING or not _late(block, held):
        return None
    left_s = parse_time(block.progressed_at) + workload.spec.rollout.progress_deadline_seconds - now
    return max(0.0, left_s) + _SOON_S


def _write(workload: Workload, block: RolloutBlock) -> SetStatus:
    condition = Condition(
        type="RolledOut", status="True" if block.phase == RolloutPhase.COMPLETE else "False",
        reason=_REASONS[RolloutPhase(block.phase)], message=block.message,
        observed_generation=workload.metadata.generation,
    )  # fmt: skip
    return SetStatus("Workload", workload.key, workload.uid, blocks={"rollout": block}, conditions=(condition,))


def _notices(workload: Workload, old: RolloutBlock | None, new: RolloutBlock) -> tuple[Notice, ...]:
    if old is not None and (old.phase, old.revision, old.regions) == (new.phase, new.revision, new.regions):
        return ()
    warning = new.phase in (RolloutPhase.ROLLING_BACK, RolloutPhase.FAILED)
    return (Notice(workload, _REASONS[RolloutPhase(new.phase)], new.message, warning=warning),)


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload)]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is None or (old is not None and new.metadata.generation == old.metadata.generation):
        return ()
    return (new.key,)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key(item.metadata.namespace, item.spec.workload),) if item is not None else ()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """When a region is lost, silent or back: who waits for it, and whose time goes on."""
    item = new or old
    same = new is not None and old is not None and new.status.health.state is old.status.health.state
    if item is None or same:
        return ()
    held = view.by(Assignment, "region", item.metadata.name)
    return sorted({Key(a.metadata.namespace, a.spec.workload) for a in held})
