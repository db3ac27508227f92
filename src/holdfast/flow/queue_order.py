"""Who is planned next: requests in the order a policy states, and how long to wait after a refusal.

The order is total and stable: after the policy's keys come namespace and name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.flow.scratch import override_active
from holdfast.model import limits
from holdfast.model.override import Override, OverrideKind
from holdfast.model.scheduler_policy import QueueKey
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time

_NO_DEADLINE = float("inf")
_SHARE_UNITS = 1_000_000


def dominant_share(use: Mapping[str, int], total: Mapping[str, int]) -> int:
    """The largest share of any resource that a tenant uses, in millionths of the region."""
    return max((amount * _SHARE_UNITS // total[name] for name, amount in use.items() if total.get(name)), default=0)


def dominant_shares(use: Mapping[str, Mapping[str, int]], total: Mapping[str, int]) -> dict[str, int]:
    return {tenant: dominant_share(amounts, total) for tenant, amounts in use.items()}


def raised_ranks(overrides: Iterable[Override], now: float) -> dict[tuple[str, str], int]:
    """(tenant, workload) → the rank an active override lifts it to."""
    ranks: dict[tuple[str, str], int] = {}
    for override in overrides:
        if override.spec.kind is OverrideKind.RAISE_PRIORITY and override_active(override, now):
            key = (override.spec.scope.tenant, override.spec.scope.workload)
            ranks[key] = max(override.spec.rank, ranks.get(key, override.spec.rank))
    return ranks


def in_order(
    requests: Iterable[SchedulingRequest],
    keys: tuple[QueueKey, ...],
    shares: Mapping[str, int],
    ranks: Mapping[tuple[str, str], int],
) -> list[SchedulingRequest]:
    """Priority: the higher rank first. Deadline: the earliest first, none last. Fairness: the tenant with the smaller
    dominant share first. Age: the oldest first."""

    def place(request: SchedulingRequest) -> tuple[Any, ...]:
        meta, spec = request.metadata, request.spec
        parts: list[Any] = []
        for key in keys:
            match key:
                case QueueKey.PRIORITY:
                    parts.append(-max(spec.rank, ranks.get((meta.namespace, spec.workload), spec.rank)))
                case QueueKey.DEADLINE:
                    parts.append(parse_time(spec.deadline) if spec.deadline else _NO_DEADLINE)
                case QueueKey.FAIRNESS:
                    parts.append(shares.get(meta.namespace, 0))
                case QueueKey.AGE:
                    parts.append(meta.creation_timestamp)
        return (*parts, meta.namespace, meta.name)

    return sorted(requests, key=place)


def backoff_s(attempts: int, chance: float) -> float:
    """How long to wait after this many tries in vain: doubling, bounded, between half and all of it by chance."""
    doublings = min(max(attempts, 1) - 1, 16)
    whole = min(limits.QUEUE_BACKOFF_MAX_S, limits.QUEUE_BACKOFF_FIRST_S * 2.0**doublings)
    return whole * (0.5 + 0.5 * chance)


def wake_pause_s(attempts: int) -> float:
    """How soon after a try an event may cause another: at once the first times, then ever less often."""
    return min(limits.WAKE_PAUSE_MAX_S, limits.WAKE_PAUSE_FIRST_S * 2.0 ** min(max(attempts, 1) - 1, 16))
