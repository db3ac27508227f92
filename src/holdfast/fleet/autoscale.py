"""autoscale: sets the number of replicas from the load. Owns Workload.status.scale.

- It scales up only if more replicas can help: not while replicas are pending or not ready.
- Each direction is rate limited per minute and follows its whole stabilization window.
- Without a fresh load the number of replicas stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope
from holdfast.model.reasons import Reason
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import Autoscale, ScaleBlock, ScaleLimits, ScaleRecommendation, Workload, wanted_replicas
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus

# Deviation from the target load that changes nothing. The HorizontalPodAutoscaler default.
AUTOSCALE_TOLERANCE = 0.1
# Fraction of the replicas that must be ready before more are added. Replicas that do not become ready need no company.
AUTOSCALE_READY_FRACTION = 0.9
# Recommendations kept per workload for the stabilization window. The oldest is dropped.
AUTOSCALE_RECOMMENDATIONS_MAX = 64
# Maximum age of a pushed load. An older one is ignored, and the number of replicas stays.
LOAD_MAX_AGE_S = 120.0

_MINUTE_S = 60.0


class ObservedLoad(msgspec.Struct, frozen=True, gc=False):
    """Reports of all regions: ready replicas, pending replicas and the most frequent pending reason."""

    ready: int = 0
    pending: int = 0
    pending_reason: str = ""


class SizeDecision(msgspec.Struct, frozen=True, gc=False):
    replicas: int
    reason: Reason
    message: str


def decide(key: Key, view: View, now: float) -> Outcome:
    """The number of replicas of one workload."""
    workload = view.get(Workload, key.name, key.namespace)
    if workload is None or workload.metadata.terminating:
        return NO_CHANGES
    rules, block = workload.spec.autoscale, workload.status.scale
    if rules is None:
        if block is None:
            return NO_CHANGES
        return Outcome(writes=(SetStatus("Workload", workload.key, workload.uid, blocks={"scale": None}),))
    current = max(wanted_replicas(workload), 0) if block is not None else workload.spec.replicas
    load = fresh_load(workload, now)
    recommended = recommended_replicas(rules, current, load)
    recommendations = _recent(block, recommended if load is not None else None, rules, now)
    observed = observed_load(view.by(Assignment, "workload", str(key)))
    paused = _paused(workload, view, now)
    idle_s = now - parse_time(block.scaled_at) if block is not None and block.scaled_at else math.inf
    sized = SizeDecision(current, Reason.AUTOSCALER_PAUSED, paused)
    if not paused:
        sized = decide_size(
            rules, current, load, recommendations=recommendations, observed=observed, idle_s=idle_s, now=now
        )
    replicas = min(max(sized.replicas, rules.min_replicas), rules.max_replicas) if not paused else sized.replicas
    moved = block is None or replicas != block.replicas
    scaled_at = micro_text(now) if moved else (block.scaled_at if block is not None else "")
    made = ScaleBlock(replicas, sized.reason, sized.message, scaled_at, recommendations)
    if made == block:
        return Outcome(requeue_after_s=limits.AUTOSCALE_CHECK_EVERY_S)
    write = SetStatus("Workload", workload.key, workload.uid, blocks={"scale": made})
    notices: tuple[Notice, ...] = ()
    if moved and block is not None:
        notices = (Notice(workload, sized.reason, f"{block.replicas} → {replicas} replicas: {sized.message}"),)
    return Outcome(writes=(write,), notices=notices, requeue_after_s=limits.AUTOSCALE_CHECK_EVERY_S)


def fresh_load(workload: Workload, now: float) -> float | None:
    """The last pushed load; None if there is none or it is too old."""
    rules, block = workload.spec.autoscale, workload.status.load
    found = next((m for m in (block.metrics if block else ()) if rules is not None and m.name == rules.metric), None)
    if found is None or not found.at or not math.isfinite(found.value) or found.value < 0:
        return None
    age_s = now - parse_time(found.at)
    return found.value if abs(age_s) <= LOAD_MAX_AGE_S else None


def load_target(rules: Autoscale) -> float:
    return rules.target if rules.target is not None else float(rules.target_cpu_percent)


def recommended_replicas(rules: Autoscale, current: int, load: float | None) -> int:
    """Number of replicas that would bring the load to its target; `current` if the load is within the tolerance."""
    if load is None or current == 0:
        return current
    ratio = load / load_target(rules)
    if abs(ratio - 1.0) <= AUTOSCALE_TOLERANCE:
        return current
    recommended = math.ceil(min(current * ratio, float(limits.MAX_REPLICAS)) - 1e-9)
    return min(max(recommended, rules.min_replicas), rules.max_replicas)


def decide_size(
    rules: Autoscale,
    current: int,
    load: float | None,
    *,
    recommendations: Sequence[ScaleRecommendation],
    observed: ObservedLoad,
    idle_s: float,
    now: float,
) -> SizeDecision:
    """The new number of replicas, after the stabilization window, the rate limit and the check that scaling up helps.

    `idle_s` is the time since the last change.
    """
    if load is None:
        return SizeDecision(current, Reason.LOAD_UNKNOWN, f"no {rules.metric} in the last {LOAD_MAX_AGE_S:.0f} s")
    recommended = recommended_replicas(rules, current, load)
    summary = f"{rules.metric} is {load:g} (target {load_target(rules):g})"
    stabilized = _stabilized(rules, current, recommended, recommendations, now)
    if stabilized == current:
        if recommended == current:
            return SizeDecision(current, Reason.LOAD_WITHIN_TARGET, summary)
        return SizeDecision(
            current, Reason.SCALE_LIMITED, f"{summary}: {recommended} recommended, within the stabilization window"
        )
    if stabilized > current:
        blocked = scale_up_blocked_reason(current, observed)
        if blocked:
            return SizeDecision(
                current, Reason.SCALE_UP_BLOCKED, f"{summary}: not scaled to {stabilized} replicas, because {blocked}"
            )
    side = rules.scale_up if stabilized > current else rules.scale_down
    allowed = _rate_limited(current, stabilized, side, idle_s)
    reason = Reason.SCALED_BY_LOAD if allowed == stabilized else Reason.SCALE_LIMITED
    tail = "" if allowed == stabilized else f"; {stabilized} recommended, the rate limit allows {allowed} now"
    return SizeDecision(allowed, reason, summary + tail)


def scale_up_blocked_reason(current: int, observed: ObservedLoad) -> str:
    """Why more replicas would not help; empty if they would."""
    if observed.pending:
        return f"{observed.pending} of {current} replicas are pending ({observed.pending_reason})"
    if observed.ready < current * AUTOSCALE_READY_FRACTION:
        return f"only {observed.ready} of {current} replicas are ready"
    return ""


def _stabilized(
    rules: Autoscale, current: int, recommended: int, recommendations: Sequence[ScaleRecommendation], now: float
) -> int:
    """The lowest recommendation in the window for scaling up, the highest for scaling down."""
    up = [w.replicas for w in _within(recommendations, rules.scale_up.stabilization_seconds, now)]
    down = [w.replicas for w in _within(recommendations, rules.scale_down.stabilization_seconds, now)]
    if recommended > current:
        return max(current, min([recommended, *up]))
    return min(current, max([recommended, *down]))


def _rate_limited(current: int, stabilized: int, side: ScaleLimits, idle_s: float) -> int:
    """The number that the rate limit allows now: per minute the larger of the two limits of the direction."""
    per_minute = max(side.replicas_per_minute, math.floor(current * side.percent_per_minute / 100))
    if per_minute <= 0:
        return current
    pause_s = max(limits.AUTOSCALE_CHECK_EVERY_S, _MINUTE_S / per_minute)
    if 0 <= idle_s < pause_s:
        return current
    step = max(1, math.floor(per_minute * pause_s / _MINUTE_S))
    return min(stabilized, current + step) if stabilized > current else max(stabilized, current - step)


def _recent(
    block: ScaleBlock | None, recommended: int | None, rules: Autoscale, now: float
) -> tuple[ScaleRecommendation, ...]:
    """Recommendations of the longest window. One is valid until the next, so equal ones are stored once and nothing is
    written while nothing changes. Recommendations with a time in the future are dropped."""
    longest_s = max(rules.scale_up.stabilization_seconds, rules.scale_down.stabilization_seconds)
    if longest_s <= 0:
        return ()
    known = [w for w in (block.recommendations if block else ()) if now >= parse_time(w.at)]
    if recommended is not None and (not known or known[-1].replicas != recommended):
        known.append(ScaleRecommendation(micro_text(now), recommended))
    return tuple(_within(known, longest_s, now)[-AUTOSCALE_RECOMMENDATIONS_MAX:])


def _within(
    recommendations: Sequence[ScaleRecommendation], window_s: float, now: float
) -> Sequence[ScaleRecommendation]:
    """Recommendations that were valid at some time in the window."""
    before = sum(now - parse_time(w.at) >= window_s for w in recommendations)
    return recommendations[max(0, before - 1) :]


def observed_load(assignments: Sequence[Assignment]) -> ObservedLoad:
    mine = [a for a in assignments if a.spec.purpose is Purpose.NORMAL]
    pending = [p for a in mine for p in a.status.pending if p.count]
    worst = max(pending, key=lambda p: (p.count, p.reason), default=None)
    return ObservedLoad(
        ready=sum(a.status.ready for a in mine),
        pending=sum(a.status.queued for a in mine) if pending else 0,
        pending_reason=worst.reason if worst is not None else "",
    )


def _paused(workload: Workload, view: View, now: float) -> str:
    """An override limited to a region pauses the workloads that have an Assignment there: a count spans all regions."""
    tenant, name = workload.key.namespace, workload.key.name
    regions = {a.spec.region for a in view.by(Assignment, "workload", str(workload.key))} or {""}
    for override in in_force(view.list(Override), OverrideKind.PAUSE_AUTOSCALER, now):
        if any(is_in_scope(override, region=region, tenant=tenant, workload=name) for region in regions):
            return f"override {override.metadata.name} by {override.spec.requester}: {override.spec.reason}"
    return ""


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload) if w.spec.autoscale is not None or w.status.scale is not None]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    """Wakes the workload on a new load or spec. The periodic check covers other changes."""
    if new is None or (new.spec.autoscale is None and new.status.scale is None):
        return ()
    if old is not None and new.spec == old.spec and new.status.load == old.status.load:
        return ()
    return (new.key,)
