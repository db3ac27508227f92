"""autoscale: how many replicas a workload should have, from the load of those it has. Owns Workload.status.scale.

It asks for more only when more would help: replicas that wait for a place, or that do not get ready, are no reason to
make others that wait beside them. Every step is bounded per minute in each direction, and a lower number is taken only
when the whole stabilization window agrees. Without a fresh load nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, in_force, is_about
from holdfast.model.reasons import Reason
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import Autoscale, ScaleBlock, ScaleLimits, Wish, Workload, wanted_replicas
from holdfast.model.writes import NOTHING, Notice, Outcome, SetStatus

_MINUTE_S = 60.0


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What regions report of the workload: how many are ready, and what those without a place wait for."""

    ready: int = 0
    waiting: int = 0
    waits_for: str = ""


class Sized(msgspec.Struct, frozen=True, gc=False):
    replicas: int
    reason: Reason
    message: str


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one workload."""
    workload = view.get(Workload, key.name, key.namespace)
    if workload is None or workload.metadata.terminating:
        return NOTHING
    rules, block = workload.spec.autoscale, workload.status.scale
    if rules is None:
        if block is None:
            return NOTHING
        return Outcome(writes=(SetStatus("Workload", workload.key, workload.uid, blocks={"scale": None}),))
    current = max(wanted_replicas(workload), 0) if block is not None else workload.spec.replicas
    load = load_of(workload, now)
    asked = wish(rules, current, load)
    wishes = _remembered(block, asked if load is not None else None, rules, now)
    seen = seen_of(view.by(Assignment, "workload", str(key)))
    paused = _paused(workload, view, now)
    idle_s = now - parse_time(block.scaled_at) if block is not None and block.scaled_at else math.inf
    sized = (
        Sized(current, Reason.AUTOSCALER_PAUSED, paused) if paused
        else size(rules, current, load, wishes=wishes, seen=seen, idle_s=idle_s, now=now)
    )  # fmt: skip
    replicas = min(max(sized.replicas, rules.min_replicas), rules.max_replicas) if not paused else sized.replicas
    moved = block is None or replicas != block.replicas
    scaled_at = micro_text(now) if moved else (block.scaled_at if block is not None else "")
    made = ScaleBlock(replicas, sized.reason, sized.message, scaled_at, wishes)
    if made == block:
        return Outcome(again_in_s=limits.AUTOSCALE_LOOK_EVERY_S)
    write = SetStatus("Workload", workload.key, workload.uid, blocks={"scale": made})
    notices: tuple[Notice, ...] = ()
    if moved and block is not None:
        notices = (Notice(workload, sized.reason, f"{block.replicas} → {replicas} replicas: {sized.message}"),)
    return Outcome(writes=(write,), notices=notices, again_in_s=limits.AUTOSCALE_LOOK_EVERY_S)


def load_of(workload: Workload, now: float) -> float | None:
    """The load that was pushed last, if it is fresh enough to decide by."""
    rules, block = workload.spec.autoscale, workload.status.load
    found = next((m for m in (block.metrics if block else ()) if rules is not None and m.name == rules.metric), None)
    if found is None or not found.at or not math.isfinite(found.value) or found.value < 0:
        return None
    age_s = now - parse_time(found.at)
    return found.value if abs(age_s) <= limits.LOAD_MAX_AGE_S else None


def target_of(rules: Autoscale) -> float:
    return rules.target if rules.target is not None else float(rules.target_cpu_percent)


def wish(rules: Autoscale, current: int, load: float | None) -> int:
    """How many replicas would bring the load to its target; as many as there are when it is near enough."""
    if load is None or current == 0:
        return current
    ratio = load / target_of(rules)
    if abs(ratio - 1.0) <= limits.AUTOSCALE_TOLERANCE:
        return current
    asked = math.ceil(min(current * ratio, float(limits.MAX_REPLICAS)) - 1e-9)
    return min(max(asked, rules.min_replicas), rules.max_replicas)


def size(
    rules: Autoscale, current: int, load: float | None, *, wishes: Sequence[Wish], seen: Seen, idle_s: float, now: float
) -> Sized:
    """The number for now: what the window agrees on, within the limits of its direction, and only if it helps.

    `idle_s` is how long ago the number was last changed.
    """
    if load is None:
        return Sized(current, Reason.LOAD_UNKNOWN, f"no {rules.metric} of the last {limits.LOAD_MAX_AGE_S:.0f} s")
    asked = wish(rules, current, load)
    said = f"{rules.metric} is {load:g}, its target {target_of(rules):g}"
    agreed = _agreed(rules, current, asked, wishes, now)
    if agreed == current:
        if asked == current:
            return Sized(current, Reason.LOAD_WITHIN_TARGET, said)
        return Sized(current, Reason.SCALE_LIMITED, f"{said}: {asked} are asked for, and have not been for long enough")
    if agreed > current:
        held = why_held(current, seen)
        if held:
            return Sized(current, Reason.SCALE_HELD, f"{said}: {agreed} would be asked for, but {held}")
    side = rules.scale_up if agreed > current else rules.scale_down
    reached = _bounded(current, agreed, side, idle_s)
    reason = Reason.SCALED_BY_LOAD if reached == agreed else Reason.SCALE_LIMITED
    tail = "" if reached == agreed else f"; {agreed} are asked for, of which {abs(reached - current)} may move now"
    return Sized(reached, reason, said + tail)


def why_held(current: int, seen: Seen) -> str:
    """Why more replicas would not help, or an empty string."""
    if seen.waiting:
        return f"{seen.waiting} of {current} wait for a place ({seen.waits_for})"
    if seen.ready < current * limits.AUTOSCALE_READY_SHARE:
        return f"only {seen.ready} of {current} are ready; more of the same would not be either"
    return ""


def _agreed(rules: Autoscale, current: int, asked: int, wishes: Sequence[Wish], now: float) -> int:
    """Up: the least that was asked for in its window. Down: the most. Short peaks and dips move nothing."""
    up = [w.replicas for w in _within(wishes, rules.scale_up.stabilization_seconds, now)]
    down = [w.replicas for w in _within(wishes, rules.scale_down.stabilization_seconds, now)]
    if asked > current:
        return max(current, min([asked, *up]))
    return min(current, max([asked, *down]))


def _bounded(current: int, agreed: int, side: ScaleLimits, idle_s: float) -> int:
    """As far as it may go now, so that no minute moves more than the larger of its two limits."""
    a_minute = max(side.replicas_per_minute, math.floor(current * side.percent_per_minute / 100))
    if a_minute <= 0:
        return current
    pause_s = max(limits.AUTOSCALE_LOOK_EVERY_S, _MINUTE_S / a_minute)
    if 0 <= idle_s < pause_s:
        return current
    step = max(1, math.floor(a_minute * pause_s / _MINUTE_S))
    return min(agreed, current + step) if agreed > current else max(agreed, current - step)


def _remembered(block: ScaleBlock | None, asked: int | None, rules: Autoscale, now: float) -> tuple[Wish, ...]:
    """The wishes of the longest window. A wish stands until there is another, so that the same one asked for at every
    look is one, and nothing is written while nothing changes; those from a clock ahead are forgotten."""
    longest_s = max(rules.scale_up.stabilization_seconds, rules.scale_down.stabilization_seconds)
    if longest_s <= 0:
        return ()
    known = [w for w in (block.wishes if block else ()) if now >= parse_time(w.at)]
    if asked is not None and (not known or known[-1].replicas != asked):
        known.append(Wish(micro_text(now), asked))
    return tuple(_within(known, longest_s, now)[-limits.AUTOSCALE_WISHES_KEPT :])


def _within(wishes: Sequence[Wish], window_s: float, now: float) -> Sequence[Wish]:
    """Those that stood at some moment of the window: what was asked for in it, and what stood when it began."""
    before = sum(now - parse_time(w.at) >= window_s for w in wishes)
    return wishes[max(0, before - 1) :]


def seen_of(assignments: Sequence[Assignment]) -> Seen:
    mine = [a for a in assignments if a.spec.purpose is Purpose.NORMAL]
    pending = [p for a in mine for p in a.status.pending if p.count]
    worst = max(pending, key=lambda p: (p.count, p.reason), default=None)
    return Seen(
        ready=sum(a.status.ready for a in mine),
        waiting=sum(a.status.queued for a in mine) if pending else 0,
        waits_for=worst.reason if worst is not None else "",
    )


def _paused(workload: Workload, view: View, now: float) -> str:
    """An override limited to a region pauses the workloads that have an Assignment there: a count spans all regions."""
    tenant, name = workload.key.namespace, workload.key.name
    regions = {a.spec.region for a in view.by(Assignment, "workload", str(workload.key))} or {""}
    for override in in_force(view.list(Override), OverrideKind.PAUSE_AUTOSCALER, now):
        if any(is_about(override, region=region, tenant=tenant, workload=name) for region in regions):
            return f"override {override.metadata.name} by {override.spec.requester}: {override.spec.reason}"
    return ""


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload) if w.spec.autoscale is not None or w.status.scale is not None]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    """A new load, or new rules. Everything else is found by the next look."""
    if new is None or (new.spec.autoscale is None and new.status.scale is None):
        return ()
    if old is not None and new.spec == old.spec and new.status.load == old.status.load:
        return ()
    return (new.key,)
