"""repair: reports replicas that exceed the deadline of a stage, and requests rescheduling where another node may help.

- Owns Replica.status.repair: the finding, its time and the requested action. It releases nothing itself.
- An override pauses it. More than REPAIRS_PER_MINUTE repairs need an approval: many at once look like an incident that
  repairs would make worse.
- It is stateless: after a crash it finds the same replicas again.
- Leaked reservations and orphaned claims are left to the authority, expired overrides to the override controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.model import limits
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, current_execution, stage
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, is_in_scope
from holdfast.model.ownership import FINALIZERS
from holdfast.model.reasons import Reason
from holdfast.model.replica import RepairBlock, Replica
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import Notice, Outcome, SetStatus, Write
from holdfast.scheduling.eviction.stuck_finalizers import REPAIRS_PER_PASS, UNKNOWN_FINALIZER_DEADLINE_S
from holdfast.scheduling.last_contact import is_effective_here, last_contact_s

# Repairs per region and minute. Further findings wait, so that a common cause does not restart everything.
REPAIRS_PER_MINUTE = 10

Decide = Callable[[Key, View, float], Outcome]
SINGLE_KEY = Key("", "replicas")
REPORTED, RELEASE_REQUESTED, PAUSED, AWAITING_APPROVAL = "Reported", "ReleaseRequested", "Paused", "AwaitingApproval"
_RELEASABLE_STAGES = frozenset({Stage.BOUND})
"""Stages in which another node may help: bound, and no report from the agent yet."""


class _Finding(msgspec.Struct, frozen=True, gc=False):
    reason: Reason
    message: str
    release: bool


def decider(region: str) -> Decide:
    return lambda key, view, now: _scan(region, view, now)


def _scan(region: str, view: View, now: float) -> Outcome:
    """Scans all replicas. There is one key, because repairs share a budget and a timer per replica costs too much."""
    replicas = view.list(Replica)
    remaining = REPAIRS_PER_MINUTE - sum(_recent(r, now) for r in replicas)
    pauses = _active_overrides(view, OverrideKind.PAUSE_REPAIR, now)
    approvals = _active_overrides(view, OverrideKind.APPROVE_REPAIR, now)
    writes: list[Write] = []
    notices: list[Notice] = []
    for replica in replicas:
        if len(writes) == REPAIRS_PER_PASS:
            break
        finding = _finding(replica, now)
        recorded = replica.status.repair
        if recorded is not None and recorded.attempt != replica.status.placement.attempt:
            recorded = None
        if finding is None:
            if recorded is not None and recorded.state != RELEASE_REQUESTED:
                writes.append(SetStatus("Replica", replica.key, replica.uid, blocks={"repair": None}))
            continue
        requested = recorded is not None and recorded.state == RELEASE_REQUESTED
        allowed = requested or remaining > 0 or _any_covers(approvals, replica, region)
        state = _state(finding, paused=_any_covers(pauses, replica, region), allowed=allowed)
        if requested or (recorded is not None and (recorded.state, recorded.reason) == (state, finding.reason)):
            continue
        remaining -= state == RELEASE_REQUESTED
        writes.append(
            SetStatus("Replica", replica.key, replica.uid, blocks={"repair": _block(replica, finding, state, now)})
        )
        notices.append(Notice(replica, finding.reason, f"{finding.message} ({state})", warning=True))
    return Outcome(writes=tuple(writes), notices=tuple(notices))


def _block(replica: Replica, finding: _Finding, state: str, now: float) -> RepairBlock:
    return RepairBlock(
        attempt=replica.status.placement.attempt,
        reason=finding.reason,
        message=finding.message,
        state=state,
        at=micro_text(now),
    )


def _finding(replica: Replica, now: float) -> _Finding | None:
    """The replica's problem; None if it is on time."""
    stuck_finalizer = _stuck_finalizer(replica, now)
    if stuck_finalizer is not None:
        return stuck_finalizer
    reached = stage(replica)
    since = _since(replica, reached)
    allowed_s = limits.STAGE_DEADLINE_S.get(reached.value)
    if not since or allowed_s is None or now < parse_time(since) + allowed_s:
        return None
    message = f"{reached.value} since {since} (deadline {allowed_s:.0f} s)"
    return _Finding(Reason.STAGE_DEADLINE_EXCEEDED, message, reached in _RELEASABLE_STAGES)


def _since(replica: Replica, reached: Stage) -> str:
    status = replica.status
    execution = current_execution(replica)
    match reached:
        case Stage.QUEUED:
            return replica.metadata.creation_timestamp
        case Stage.BOUND:
            return status.placement.bound_at
        case Stage.RESERVED:
            return status.placement.reserved_at
        case Stage.STARTING:
            return execution.started_at if execution is not None else ""
        case Stage.READY:
            return execution.ready_since if execution is not None else ""
        case Stage.UNKNOWN:
            return status.contact.since if status.contact is not None else ""
        case _:
            return ""


def _stuck_finalizer(replica: Replica, now: float) -> _Finding | None:
    if not replica.metadata.terminating:
        return None
    gone_s = now - parse_time(replica.metadata.deletion_timestamp)
    for name in replica.metadata.finalizers:
        owner, deadline_s = FINALIZERS.get(name, ("", UNKNOWN_FINALIZER_DEADLINE_S))
        if gone_s > deadline_s:
            owner_name = owner or "an unknown owner"
            message = (
                f"finalizer {name} of {owner_name} was not removed for {gone_s:.0f} s (deadline {deadline_s:.0f} s)"
            )
            return _Finding(Reason.FINALIZER_STUCK, message, release=False)
    return None


def _state(finding: _Finding, *, paused: bool, allowed: bool) -> str:
    if not finding.release:
        return REPORTED
    if paused:
        return PAUSED
    return RELEASE_REQUESTED if allowed else AWAITING_APPROVAL


def _recent(replica: Replica, now: float) -> bool:
    block = replica.status.repair
    return block is not None and block.state == RELEASE_REQUESTED and now - parse_time(block.at) < 60.0


def _active_overrides(view: View, kind: OverrideKind, now: float) -> list[Override]:
    heard_at_s = last_contact_s(view.list(GrantCopy))
    return [o for o in view.list(Override) if o.spec.kind is kind and is_effective_here(o, now, heard_at_s)]


def _any_covers(overrides: list[Override], replica: Replica, region: str) -> bool:
    tenant, workload = replica.metadata.namespace, replica.spec.workload
    return any(is_in_scope(o, region=region, tenant=tenant, workload=workload) for o in overrides)


def release_request(replica: Replica) -> str:
    """Why repair requests the release of the replica; empty if it does not. Read by `release`."""
    block = replica.status.repair
    if block is None or block.state != RELEASE_REQUESTED or block.attempt != replica.status.placement.attempt:
        return ""
    return block.message if stage(replica) in _RELEASABLE_STAGES else ""


def keys(view: View) -> Iterable[Key]:
    return (SINGLE_KEY,)
