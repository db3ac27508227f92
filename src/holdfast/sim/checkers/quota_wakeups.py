"""Liveness: free quota wakes pending requests within half a minute.

Checked every few seconds after healing, on stored objects: a replica is pending for quota, although the tenant's claims
plus the replica fit the region's limit and there is room. A late retry is not enough: the wakeup must come in time. The
time starts again when another replica used the quota.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Purpose
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.quantity import Amounts, add, amounts, scaled
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import requests
from holdfast.sim.checkers import Finding, ObservedCommit
from holdfast.sim.checkers.capacity_oracle import CapacityOracle
from holdfast.sim.checkers.quota import used_by

if TYPE_CHECKING:
    from holdfast.sim.checkers.checker_set import CheckerSet

WAKES_WITHIN_S = 30.0
QUOTA_REASONS = frozenset(
    {Reason.NO_GRANT, Reason.QUOTA_EXCEEDED, Reason.GRANT_EXPIRED, Reason.NOT_ALLOWED_WHILE_PARTITIONED}
)
Waiter = tuple[str, str, str]
"""Region, key of the request, name of the replica."""


class Wait(msgspec.Struct):
    """A replica that could be placed since `since_s`. `left` is the quota that was free then and was not used since:
    quota that was freed later may still be unknown to the scheduler."""

    since_s: float
    need: Amounts
    left: Amounts


class QuotaWakeupChecker:
    """Checker of one simulation after healing. Wakeups lost during faults are repaired by the first resync, so time
    counts from there. Without watches every wakeup waits for a resync."""

    def __init__(self, checkers: CheckerSet, regions: Sequence[str], healed_s: float, *, watching: bool = True) -> None:
        self._checkers = checkers
        self._regions = tuple(regions)
        self._from_s = healed_s + limits.RESYNC_S
        self._within_s = WAKES_WITHIN_S if watching else WAKES_WITHIN_S + limits.RESYNC_S
        self._waits: dict[Waiter, Wait] = {}
        self._headroom: dict[tuple[str, str], Amounts] = {}
        """Free quota by region and tenant, as of the last commit that changed it."""
        self._notified: set[Waiter] = set()

    def committed(self, commit: ObservedCommit) -> None:
        """Ends the waits whose quota or room this commit uses. A commit that frees as much may follow before the next
        `observe`."""
        tenants = _tenants_with_changed_quota(commit)
        waiting = {w: wait for w, wait in self._waits.items() if w[0] == commit.cell and _tenant(w) in tenants}
        if not waiting:
            return
        for tenant in {_tenant(waiter) for waiter in waiting}:
            after = _headroom(tenant, commit.state)
            before, self._headroom[commit.cell, tenant] = self._headroom[commit.cell, tenant], after
            used = {name: amount - after.get(name, 0) for name, amount in before.items()}
            for waiter, wait in waiting.items():
                if _tenant(waiter) == tenant:
                    add(wait.left, {name: amount for name, amount in used.items() if amount > 0}, times=-1)
        could = {waiter for waiter, _ in _could_be_placed(commit.cell, commit.state)}
        for waiter, wait in waiting.items():
            if waiter not in could or not _covers(wait.left, wait.need):
                del self._waits[waiter]

    def observe(self, now_s: float) -> None:
        """Updates the set of pending replicas that could be placed."""
        waits: dict[Waiter, Wait] = {}
        for region in self._regions:
            state = self._checkers.state(region)
            for waiter, need in _could_be_placed(region, state):
                headroom = self._headroom[region, _tenant(waiter)] = _headroom(_tenant(waiter), state)
                known = self._waits.get(waiter)
                waits[waiter] = known or Wait(max(now_s, self._from_s), need, dict(headroom))
        self._waits = waits

    def overdue(self, now_s: float) -> Iterator[tuple[str, Finding]]:
        """Replicas that were not woken in time, by region. Each is reported once."""
        for waiter, wait in self._waits.items():
            if now_s - wait.since_s <= self._within_s or waiter in self._notified:
                continue
            self._notified.add(waiter)
            region, key, replica = waiter
            tenant = _tenant(waiter)
            what = (
                f"replica {tenant}/{replica} is pending for quota in {region}, although limit and room have sufficed"
                f" for {now_s - wait.since_s:.0f} s (limit {self._within_s:.0f} s)"
            )
            yield region, ("wakeup", what, (key, f"/replicas/{tenant}/{replica}", f"/grantcopies/{tenant}/normal"))


def _tenant(waiter: Waiter) -> str:
    return waiter[1].split("/")[2]


def _tenants_with_changed_quota(commit: ObservedCommit) -> set[str]:
    """Tenants whose claims or limits the commit changed."""
    keys = (change.key for change in commit.changes if change.kind.name in ("Binding", "Reservation", "GrantCopy"))
    return {key.split("/")[2] for key in keys}


def _could_be_placed(region: str, state: dict[str, Any]) -> Iterator[tuple[Waiter, Amounts]]:
    """The replicas that could be placed, and the quota that each needs."""
    room: CapacityOracle | None = None
    for key in sorted(key for key, item in state.items() if isinstance(item, SchedulingRequest) and _for_quota(item)):
        request: SchedulingRequest = state[key]
        tenant = request.metadata.namespace
        members = (state.get(f"/replicas/{tenant}/{member.name}") for member in request.spec.members)
        waiting: list[Replica] = [replica for replica in members if replica is not None and _waits(replica)]
        if not waiting:
            continue
        # A gang needs room and quota for all its members at once.
        together = len(waiting) if request.spec.gang is not None else 1
        need = scaled(requests(request.spec.template), together)
        if not _covers(_headroom(tenant, state), need):
            continue
        room = room or CapacityOracle(state)
        if not room.has_no_room(waiting[0], together):
            yield (region, key, waiting[0].metadata.name), need


def _for_quota(request: SchedulingRequest) -> bool:
    if request.metadata.terminating or request.spec.purpose is Purpose.RECOVERY:
        return False
    return any(refusal.reason in QUOTA_REASONS for refusal in request.status.reasons)


def _waits(replica: Replica) -> bool:
    return not replica.metadata.terminating and stage(replica) is Stage.QUEUED


def _headroom(tenant: str, state: dict[str, Any]) -> Amounts:
    """The region's limits without provisional quota, minus the tenant's stored claims."""
    free: Amounts = {}
    for grant_class in (GrantClass.NORMAL, GrantClass.EMERGENCY):
        copy: GrantCopy | None = state.get(f"/grantcopies/{tenant}/{grant_class.value.lower()}")
        if copy is not None and not copy.metadata.terminating:
            add(free, amounts(copy.spec.limit))
            add(free, amounts(copy.spec.provisional), times=-1)
    add(free, used_by(tenant, state), times=-1)
    return free


def _covers(free: Amounts, need: Amounts) -> bool:
    return all(amount <= free.get(name, 0) for name, amount in need.items())
