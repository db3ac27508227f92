"""Liveness: free quota wakes pending requests within half a minute.

Checked every few seconds after healing, on stored objects: a replica is pending for quota, although the tenant's claims
plus the replica fit the region's limit and there is room. A late retry is not enough: the wakeup must come in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
from holdfast.sim.checkers import Finding
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


class QuotaWakeupChecker:
    """Checker of one simulation after healing. Wakeups lost during faults are repaired by the first resync, so time
    counts from there. Without watches every wakeup waits for a resync."""

    def __init__(self, checkers: CheckerSet, regions: Sequence[str], healed_s: float, *, watching: bool = True) -> None:
        self._checkers = checkers
        self._regions = tuple(regions)
        self._from_s = healed_s + limits.RESYNC_S
        self._within_s = WAKES_WITHIN_S if watching else WAKES_WITHIN_S + limits.RESYNC_S
        self._since_s: dict[Waiter, float] = {}
        self._notified: set[Waiter] = set()

    def observe(self, now_s: float) -> None:
        """Updates the set of pending replicas that could be placed. Called after every change."""
        could = [
            waiter for region in self._regions for waiter in _could_be_placed(region, self._checkers.state(region))
        ]
        self._since_s = {waiter: self._since_s.get(waiter, max(now_s, self._from_s)) for waiter in could}

    def overdue(self, now_s: float) -> Iterator[tuple[str, Finding]]:
        """Replicas that were not woken in time, by region. Each is reported once."""
        for waiter, since_s in self._since_s.items():
            if now_s - since_s <= self._within_s or waiter in self._notified:
                continue
            self._notified.add(waiter)
            region, key, replica = waiter
            tenant = key.split("/")[2]
            what = (
                f"replica {tenant}/{replica} is pending for quota in {region}, although limit and room have sufficed"
                f" for {now_s - since_s:.0f} s (limit {self._within_s:.0f} s)"
            )
            yield region, ("wakeup", what, (key, f"/replicas/{tenant}/{replica}", f"/grantcopies/{tenant}/normal"))


def _could_be_placed(region: str, state: dict[str, Any]) -> Iterator[Waiter]:
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
        if not _fits(tenant, scaled(requests(request.spec.template), together), state):
            continue
        room = room or CapacityOracle(state)
        if not room.has_no_room(waiting[0], together):
            yield region, key, waiting[0].metadata.name


def _for_quota(request: SchedulingRequest) -> bool:
    if request.metadata.terminating or request.spec.purpose is Purpose.RECOVERY:
        return False
    return any(refusal.reason in QUOTA_REASONS for refusal in request.status.reasons)


def _waits(replica: Replica) -> bool:
    return not replica.metadata.terminating and stage(replica) is Stage.QUEUED


def _fits(tenant: str, need: Amounts, state: dict[str, Any]) -> bool:
    """Whether the tenant's stored claims plus `need` fit the region's limits, without provisional quota."""
    limit: Amounts = {}
    for grant_class in (GrantClass.NORMAL, GrantClass.EMERGENCY):
        copy: GrantCopy | None = state.get(f"/grantcopies/{tenant}/{grant_class.value.lower()}")
        if copy is not None and not copy.metadata.terminating:
            add(limit, amounts(copy.spec.limit))
            add(limit, amounts(copy.spec.provisional), times=-1)
    used = used_by(tenant, state)
    return all(used.get(name, 0) + amount <= limit.get(name, 0) for name, amount in need.items())
