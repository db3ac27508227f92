"""Order of the scheduling queue by the policy's keys, fairness between tenants, and retry delays. Pure.

The order is total and stable: namespace and name follow the policy's keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf
from typing import Any

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope
from holdfast.model.quantity import CPU, GPU, MEMORY
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import QueueKey
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import requests
from holdfast.model.times import parse_time

# Replicas of one tenant planned before the next tenant in fair order. Gangs are never split.
FAIR_QUEUE_SLICE = 32
# Part of the time to a deadline that is left when a pending request is reported as DeadlineAtRisk.
DEADLINE_RISK_SHARE = 0.25
# Minimum pause after a failed attempt before an event triggers the next one. Doubles with every attempt.
EVENT_RETRY_PAUSE_FIRST_S = 0.05
# Upper end of the doubling pause between a failed attempt and the next one that an event triggers.
EVENT_RETRY_PAUSE_MAX_S = 2.0

_NO_DEADLINE = float("inf")
_SHARE_UNITS = 1_000_000


def dominant_share(use: Mapping[str, int], total: Mapping[str, int]) -> int:
    """The tenant's dominant share: its largest share of any resource, in millionths of the region's capacity."""
    return max((amount * _SHARE_UNITS // total[name] for name, amount in use.items() if total.get(name)), default=0)


def dominant_shares(use: Mapping[str, Mapping[str, int]], total: Mapping[str, int]) -> dict[str, int]:
    return {tenant: dominant_share(amounts, total) for tenant, amounts in use.items()}


def raised_priorities(overrides: Iterable[Override], now: float, region: str) -> dict[tuple[str, str], int]:
    """(tenant, workload) → the priority to which an active override raises it in this region."""
    priorities: dict[tuple[str, str], int] = {}
    for override in in_force(overrides, OverrideKind.RAISE_PRIORITY, now):
        tenant, workload = override.spec.scope.tenant, override.spec.scope.workload
        if is_in_scope(override, region=region, tenant=None, workload=None):
            priorities[tenant, workload] = max(
                override.spec.priority, priorities.get((tenant, workload), override.spec.priority)
            )
    return priorities


def order_requests(
    requests: Iterable[SchedulingRequest],
    keys: tuple[QueueKey, ...],
    shares: Mapping[str, int],
    priorities: Mapping[tuple[str, str], int],
) -> list[SchedulingRequest]:
    """Sorts by the policy's keys. Priority: highest first. Deadline: earliest first, none last. Fairness: smallest
    dominant share first. Size: largest replicas first. Age: oldest first."""

    def sort_key(request: SchedulingRequest) -> tuple[Any, ...]:
        meta, spec = request.metadata, request.spec
        parts: list[Any] = []
        for key in keys:
            match key:
                case QueueKey.PRIORITY:
                    parts.append(-max(spec.priority, priorities.get((meta.namespace, spec.workload), spec.priority)))
                case QueueKey.DEADLINE:
                    parts.append(parse_time(spec.deadline) if spec.deadline else _NO_DEADLINE)
                case QueueKey.FAIRNESS:
                    parts.append(shares.get(meta.namespace, 0))
                case QueueKey.SIZE:
                    parts.append(_largest_first(request))
                case QueueKey.AGE:
                    parts.append(meta.creation_timestamp)
        return (*parts, meta.namespace, meta.name)

    return sorted(requests, key=sort_key)


def _largest_first(request: SchedulingRequest) -> tuple[int, ...]:
    """Sort key by what is hardest to find on one node: GPUs, then CPU, then memory."""
    need = requests(request.spec.template)
    return tuple(-need.get(name, 0) for name in (GPU, CPU, MEMORY))


class QueueSlice(msgspec.Struct, frozen=True):
    """Some members of a request, to be planned together."""

    request: SchedulingRequest
    members: int


def fair_slices(
    ordered: Sequence[SchedulingRequest],
    pending: Mapping[Key, int],
    keys: tuple[QueueKey, ...],
    shares: Mapping[str, int],
    total: Mapping[str, int],
) -> Iterator[QueueSlice]:
    """Cuts the queue into slices. Between tenants at the same priority and deadline, the smallest dominant share goes
    next, and each slice counts as used before the next is chosen: a large request cannot delay small tenants.
    `pending` is the number of pending members per request."""
    if QueueKey.FAIRNESS not in keys:
        yield from (QueueSlice(r, pending[r.key]) for r in ordered if pending.get(r.key))
        return
    before = keys[: keys.index(QueueKey.FAIRNESS)]
    shares = dict(shares)
    for _, run in groupby(ordered, key=lambda r: _keys_before_fairness(r, before)):
        queues: dict[str, deque[SchedulingRequest]] = {}
        for request in run:
            if pending.get(request.key):
                queues.setdefault(request.metadata.namespace, deque()).append(request)
        yield from _slices(queues, pending, shares, total)


def _slices(
    queues: dict[str, deque[SchedulingRequest]],
    pending: Mapping[Key, int],
    shares: dict[str, int],
    total: Mapping[str, int],
) -> Iterator[QueueSlice]:
    remaining = {request.key: pending[request.key] for queue in queues.values() for request in queue}
    heap = [(shares.get(tenant, 0), tenant) for tenant in queues]
    heapify(heap)
    while heap:
        share, tenant = heappop(heap)
        request = queues[tenant][0]
        only_tenant = not heap
        gang = request.spec.gang is not None
        count = remaining[request.key] if only_tenant or gang else min(remaining[request.key], FAIR_QUEUE_SLICE)
        yield QueueSlice(request, count)
        remaining[request.key] -= count
        if not remaining[request.key]:
            queues[tenant].popleft()
        share_per_member = dominant_share(requests(request.spec.template), total)
        shares[tenant] = share + share_per_member * count
        if queues[tenant]:
            heappush(heap, (shares[tenant], tenant))


def _keys_before_fairness(request: SchedulingRequest, keys: tuple[QueueKey, ...]) -> tuple[Any, ...]:
    """The keys that rank before fairness."""
    spec = request.spec
    known = {QueueKey.PRIORITY: spec.priority, QueueKey.DEADLINE: spec.deadline}
    return tuple(known[key] for key in keys if key in known)


def deadline_reason(request: SchedulingRequest, now: float) -> Reason | None:
    """DeadlineAtRisk or DeadlineMissed for a pending request; None if it is on time."""
    if not request.spec.deadline:
        return None
    deadline, created = parse_time(request.spec.deadline), parse_time(request.metadata.creation_timestamp)
    if now >= deadline:
        return Reason.DEADLINE_MISSED
    return Reason.DEADLINE_AT_RISK if deadline - now <= (deadline - created) * DEADLINE_RISK_SHARE else None


def deadline_reason_changes_in_s(request: SchedulingRequest, now: float) -> float:
    """Seconds until `deadline_reason` changes by time alone; infinite if it does not."""
    if not request.spec.deadline:
        return inf
    deadline, created = parse_time(request.spec.deadline), parse_time(request.metadata.creation_timestamp)
    at_risk = deadline - (deadline - created) * DEADLINE_RISK_SHARE
    return min((moment - now for moment in (at_risk, deadline) if moment > now), default=inf)


def retry_backoff_s(attempts: int, chance: float) -> float:
    """Retry delay after this many failed attempts: exponential, bounded, jittered to 50 to 100 %."""
    doublings = min(max(attempts, 1) - 1, 16)
    whole = min(limits.QUEUE_BACKOFF_MAX_S, limits.QUEUE_BACKOFF_FIRST_S * 2.0**doublings)
    return whole * (0.5 + 0.5 * chance)


def min_retry_interval_s(attempts: int) -> float:
    """Minimum interval between an attempt and an event-triggered retry: short at first, then growing."""
    return min(EVENT_RETRY_PAUSE_MAX_S, EVENT_RETRY_PAUSE_FIRST_S * 2.0 ** min(max(attempts, 1) - 1, 16))
