"""override: activates overrides, expires them, and verifies that their effect is gone. Owns Override.status.

This cell's clock sets the expiry when the override becomes active; it is never extended. Every consumer checks
`is_in_force`, so the effect ends at the expiry without any message. This controller then reports the end and verifies
it (S8). More time needs another override.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.fleet.override_kinds import RULES, latest_expiry_s, max_duration_s, needs_approval
from holdfast.model import limits
from holdfast.model.meta import Condition, Key
from holdfast.model.override import (
    ACTIVE,
    EXPIRED,
    PENDING,
    REVOKED,
    Override,
    OverrideKind,
    break_glass_prefix,
    drain_deadline_s,
    has_emergency_quota,
    in_force,
    is_in_scope,
)
from holdfast.model.quantity import amounts
from holdfast.model.quota import Grant, GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Delete, Notice, Outcome, SetStatus

# Interval at which an ended Override is checked until its effect is reverted.
VERIFY_EVERY_S = 1.0
Wake = Callable[[Override | None, Override | None, View], Iterable[Key]]


def decide(key: Key, view: View, now: float) -> Outcome:
    """The phase and conditions of one override; deletes it when its retention has passed."""
    override = view.get(Override, key.name)
    if override is None or override.metadata.terminating:
        return NO_CHANGES
    phase, expires_at, next_s = _phase(override, now)
    ended = phase in (EXPIRED, REVOKED)
    remaining = remaining_effect(override, view, now) if ended else ""
    conditions = _conditions(override, phase, expires_at, remaining, ended=ended)
    if ended and not remaining and now - parse_time(expires_at) > limits.ENDED_OVERRIDE_RETENTION_S:
        return Outcome(writes=(Delete("Override", override.key, override.uid),))
    again_s = VERIFY_EVERY_S if remaining else next_s
    status = override.status
    known = {c.type: (c.status, c.reason, c.message) for c in status.conditions}
    same = all(known.get(c.type) == (c.status, c.reason, c.message) for c in conditions)
    if (status.phase, status.expires_at) == (phase, expires_at) and same:
        return Outcome(requeue_after_s=again_s)
    write = SetStatus(
        "Override",
        override.key,
        override.uid,
        blocks={"phase": phase, "expiresAt": expires_at},
        conditions=tuple(conditions),
        observed_generation=override.metadata.generation,
        if_revision=override.revision,  # override expiry may have written an earlier end meanwhile
    )
    notices: tuple[Notice, ...] = ()
    if status.phase != phase:
        message = f"{override.spec.kind} by {override.spec.requester}: {status.phase or 'new'} → {phase}"
        notices = (Notice(override, conditions[0].reason, message, warning=phase == ACTIVE),)
    return Outcome(writes=(write,), notices=notices, requeue_after_s=again_s)


def _phase(override: Override, now: float) -> tuple[str, str, float | None]:
    """Phase, expiry, and delay until the next check. An ended override stays ended."""
    status = override.status
    if status.phase in (EXPIRED, REVOKED):
        return status.phase, status.expires_at, limits.ENDED_OVERRIDE_RETENTION_S
    deadline = parse_time(status.expires_at) if status.expires_at else _deadline(override, now)
    if override.spec.revoked:
        return REVOKED, micro_text(min(now, deadline)), None
    if now >= deadline:
        return EXPIRED, micro_text(deadline), None
    if needs_approval(override):
        return PENDING, "", deadline - now
    return ACTIVE, micro_text(deadline), deadline - now


def _deadline(override: Override, now: float) -> float:
    """Expiry: the full duration from activation. Without approval, one TTL after creation."""
    if needs_approval(override):
        return latest_expiry_s(override)
    return now + max_duration_s(override)


def _conditions(override: Override, phase: str, expires_at: str, remaining: str, *, ended: bool) -> list[Condition]:
    reasons = {
        PENDING: (Reason.APPROVAL_NEEDED, f"needs approval: holdfast override approve {override.metadata.name}"),
        ACTIVE: (
            Reason.OVERRIDE_ACTIVE,
            f"{RULES[override.spec.kind].effect}, until {expires_at}{_drain_note(override)}",
        ),
        EXPIRED: (Reason.OVERRIDE_EXPIRED, f"expired at {expires_at}"),
        REVOKED: (Reason.OVERRIDE_REVOKED, f"revoked at {expires_at}"),
    }
    reason, message = reasons[phase]
    generation = override.metadata.generation
    found = [
        Condition(
            type="Active",
            status="True" if phase == ACTIVE else "False",
            reason=reason,
            message=message,
            observed_generation=generation,
        )
    ]
    if ended:
        found.append(
            Condition(
                type="Reverted",
                status="False" if remaining else "True",
                reason=Reason.OVERRIDE_REVERT_PENDING if remaining else Reason.OVERRIDE_REVERTED,
                message=remaining or "verified: no effect is left",
                observed_generation=generation,
            )
        )
    return found


def _drain_note(override: Override) -> str:
    if override.spec.kind is not OverrideKind.EMERGENCY_QUOTA:
        return ""
    drain_s = override.spec.drain_seconds or limits.OVER_QUOTA_DRAIN_S
    return f"; usage above the quota is then drained within {drain_s:g} s"


def remaining_effect(override: Override, view: View, now: float) -> str:
    """Remaining effect of an ended override, read from the objects it affected; empty if there is none."""
    spec = override.spec
    twins = [o for o in in_force(view.list(Override), spec.kind, now) if o.spec.scope == spec.scope]
    if twins:
        return ""  # the remaining effect belongs to another override of the same scope
    match spec.kind:
        case OverrideKind.DECLARE_REGION_LOST:
            region = view.get(Region, spec.scope.region)
            if region is not None and region.status.health.reason == Reason.DECLARED_LOST:
                return f"region {spec.scope.region} is still declared lost"
        case OverrideKind.EMERGENCY_QUOTA:
            tenant, known = spec.scope.tenant, view.list(Override)
            held = [
                g.spec.region
                for g in view.list(Grant, tenant)
                if g.spec.grant_class is GrantClass.EMERGENCY
                and is_in_scope(override, region=g.spec.region, tenant=tenant, workload=None)
                and not has_emergency_quota(known, region=g.spec.region, tenant=tenant, now=now)
                and (amounts(g.spec.limit) or amounts(g.status.limit) or amounts(g.status.used))
            ]
            if held:
                what = f"tenant {spec.scope.tenant} still holds emergency quota in {', '.join(sorted(held))}"
                return f"{what}; its replicas are evicted by {micro_text(drain_deadline_s(override))} at the latest"
        case _:
            pass  # consumers of the other kinds check the expiry themselves
    return ""


def keys(view: View) -> Iterable[Key]:
    return [o.key for o in view.list(Override)]


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None else ()


def keys_of_region(region: str) -> Callable[[View], Iterable[Key]]:
    """Break-glass overrides of this region. Other overrides here are copies."""
    prefix = break_glass_prefix(region)
    return lambda view: [o.key for o in view.list(Override) if o.metadata.name.startswith(prefix)]


def woken_in_region(region: str) -> Wake:
    prefix = break_glass_prefix(region)

    def woken(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
        return (new.key,) if new is not None and new.metadata.name.startswith(prefix) else ()

    return woken
