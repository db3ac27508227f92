"""Counts the outcomes of the active policy revision from the region's Decisions, for its guard."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import limits
from holdfast.model.decision import Decision
from holdfast.model.region import PolicyTrial
from holdfast.model.scheduler_policy import PolicyGuard, PolicyRevision
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time

REFUSED = "Rejected"


def active_guard(revisions: Iterable[PolicyRevision], deciding: str) -> PolicyGuard | None:
    """The guard of the revision used in this region, if it has one."""
    return next((r.spec.guard for r in revisions if r.metadata.name == deciding), None)


def count_outcomes(
    revision: str, guard: PolicyGuard, decisions: Iterable[Decision], requests: Iterable[SchedulingRequest], now: float
) -> PolicyTrial:
    """Counts over the newest decisions of this revision within the guard's window.

    The age of a pending request counts from the revision's first decision if the request is older.
    """
    mine = sorted(
        (d for d in decisions if d.spec.policy_revision == revision and d.spec.decided_at), key=lambda d: -d.revision
    )[: limits.POLICY_TRIAL_DECISIONS_MAX]
    inside = [d for d in mine if now - parse_time(d.spec.decided_at) <= guard.window_seconds]
    proposed = refused = unplaced = 0
    for decision in inside:
        for entry in decision.spec.entries:
            proposed += bool(entry.node)
            refused += bool(entry.node) and entry.result == REFUSED
            unplaced += not entry.node
    since = min((parse_time(d.spec.decided_at) for d in mine), default=now)
    waits = [
        now - max(since, parse_time(r.metadata.creation_timestamp))
        for r in requests
        if r.status.pending and not r.metadata.terminating
    ]
    return PolicyTrial(
        revision=revision,
        decisions=len(inside),
        proposed=proposed,
        refused=refused,
        unplaced=unplaced,
        oldest_pending_seconds=float(int(max((*waits, 0.0)))),
    )
