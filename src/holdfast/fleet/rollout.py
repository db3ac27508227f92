"""rollout: decides in which regions a new revision may run by now, and when the last good one comes back.

Owns Workload.status.rollout and the condition RolledOut. A region takes the next revision only when those before it
serve it in full (waves); no progress within the deadline ends it, by going back to the last good revision where there
is one and that is wanted. Inside a region `replicate` keeps to surge and unavailable.
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
    held = [
        a for a in view.by(Assignment, "workload", str(key))
        if a.spec.purpose is Purpose.NORMAL and (a.spec.replicas or a.status.replicas)
    ]  # fmt: skip
    lost = {r.metadata.name for r in view.list(Region) if r.status.health.state is HealthState.LOST}
    heard = sorted((a for a in held if a.spec.region not in lost), key=lambda a: a.spec.region)
    block = workload.status.rollout
    new = _begun(workload, block, heard, now)
    if new.phase not in _OVER:
        new = _moved(workload, new, heard, now)
    elif new.phase == RolloutPhase.FAILED and _proved(heard, new.revision):
        new = _finished(new, RolloutPhase.COMPLETE, f"revision {new.revision} serves after all")
    again_s = _deadline_in_s(workload, new, now) if new.phase not in _OVER else None
    if new == block:
        return Outcome(again_in_s=again_s)
    return Outcome(writes=(_write(workload, new),), notices=_notices(workload, block, new), again_in_s=again_s)


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
    already = tuple(a.spec.region for a in held if a.spec.revision == wanted)
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
    ahead = [a for a in held if a.spec.region not in block.regions]
    if _done(taken, block.revision):
        if not ahead and held:
            return _finished(block, RolloutPhase.COMPLETE, f"revision {block.revision} serves in every region")
        wave = tuple(a.spec.region for a in ahead[: max(1, rules.wave_regions)])
        if not block.last_good_revision:
            wave = tuple(a.spec.region for a in ahead)  # nothing to protect yet
        if wave:
            block = msgspec.structs.replace(block, regions=(*block.regions, *wave), progressed_at=micro_text(now))
    serving = sum(a.status.updated_serving for a in held if a.spec.revision == block.revision)
    if serving > block.serving:
        block = msgspec.structs.replace(block, progressed_at=micro_text(now))
    block = msgspec.structs.replace(block, serving=serving, message=_progress(block, held))
    if now - parse_time(block.progressed_at) <= rules.progress_deadline_seconds or not held:
        return block
    return _given_up(workload, block)


def _done(held: Sequence[Assignment], revision: str) -> bool:
    """Whether these regions have acted on the revision and serve it in full, with nothing of another left. True of no
    region at all: whoever takes it for proof that the revision is good must have heard of one (`_proved`)."""
    return all(
        a.spec.revision == revision
        and a.status.observed_epoch >= a.spec.epoch
        and a.status.updated_serving >= a.spec.replicas
        and a.status.replicas <= a.spec.replicas
        for a in held
    )


def _proved(held: Sequence[Assignment], revision: str) -> bool:
    """Whether it serves in full somewhere. While every region is lost nobody knows, and a revision that was given up
    must not become the last good one by that."""
    return bool(held) and _done(held, revision)


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
    return msgspec.structs.replace(block, phase=phase, message=message, last_good_revision=good, history=history)


def _progress(block: RolloutBlock, held: Sequence[Assignment]) -> str:
    """One sentence for people: how many serve the revision where, and what the others wait for."""
    parts = []
    for a in held:
        if a.spec.region not in block.regions:
            continue
        new = a.status.updated_serving if a.spec.revision == block.revision else 0
        waits = f" ({a.status.pending[0].reason})" if a.status.pending else ""
        parts.append(f"{a.spec.region} {new}/{a.spec.replicas}{waits}")
    later = sum(a.spec.region not in block.regions for a in held)
    return f"serving {', '.join(parts) or 'nowhere yet'}" + (f"; {later} region(s) to come" if later else "")


def _deadline_in_s(workload: Workload, block: RolloutBlock, now: float) -> float | None:
    if block.phase != RolloutPhase.PROGRESSING:
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
