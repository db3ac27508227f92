"""The largest request with which all waiting replicas of a request find room now. Pure.

The free amounts of the nodes give a candidate, and the planner has to place every replica with it, so that a rule that
the sums do not know (spread, ports, a gang) makes the candidate smaller instead of wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.quantity import BYTE_RESOURCES
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.scheduling.filters import resources
from holdfast.scheduling.plan import plan
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch

# Candidates that the planner tries, each half of the one before. Then no smaller request is suggested.
CANDIDATES_MAX = 4
# Replicas that the planner places for one candidate, as it takes about a second for so many. Of more, the sums decide.
PLANNED_REPLICAS_MAX = 2000
_MEBIBYTE = 2**20

Nodes = npt.NDArray[np.bool_]


def missing_shares(scratch: Scratch, requirements: ReplicaRequirements) -> npt.NDArray[np.float64]:
    """What each node lacks for one replica, as a fraction of the request."""
    found = np.zeros(len(scratch.snapshot.static.has_node))
    for name, amount in requirements.amounts.items():
        found += np.maximum(0, amount - resources.free_of(scratch, requirements, name)) / amount
    return found


def fitting_amounts(
    scratch: Scratch,
    requirements: ReplicaRequirements,
    rules: PolicyRules,
    now: float,
    *,
    usable: Nodes,
    lacking: Collection[str],
) -> dict[str, int]:
    """For each of the `lacking` resources the amount per replica, at most the requested one; empty if no smaller
    request is sufficient. `usable` nodes refuse the replicas only for such resources."""
    found = _by_free_amounts(scratch, requirements, usable, lacking)
    for _ in range(CANDIDATES_MAX):
        if not found or not all(found.values()):
            return {}
        if len(requirements.members) > PLANNED_REPLICAS_MAX or _places_all(scratch, requirements, rules, now, found):
            return found
        found = {
            name: rounded_down(name, amount // 2) if amount < requirements.amounts[name] else amount
            for name, amount in found.items()
        }
    return {}


def rounded_down(resource: str, amount: int) -> int:
    """Whole mebibytes where that loses little."""
    whole = resource in BYTE_RESOURCES and amount >= _MEBIBYTE
    return amount - amount % _MEBIBYTE if whole else amount


def _by_free_amounts(
    scratch: Scratch, requirements: ReplicaRequirements, usable: Nodes, lacking: Collection[str]
) -> dict[str, int]:
    replicas = max(1, len(requirements.members))
    rest = np.where(usable, np.int64(replicas), np.int64(0))
    for name, amount in requirements.amounts.items():
        if name not in lacking and amount:
            rest = np.minimum(rest, _free(scratch, requirements, name) // amount)
    found: dict[str, int] = {}
    for name in lacking:
        free = _free(scratch, requirements, name)
        low, high = 0, requirements.amounts[name]
        while low < high:  # the largest amount of which the nodes hold enough
            middle = (low + high + 1) // 2
            if int(np.minimum(rest, free // middle).sum()) >= replicas:
                low = middle
            else:
                high = middle - 1
        found[name] = low if low == requirements.amounts[name] else rounded_down(name, low)
        if not found[name]:
            return {}
        rest = np.minimum(rest, free // found[name])
    return found


def _free(scratch: Scratch, requirements: ReplicaRequirements, name: str) -> npt.NDArray[Any]:
    return np.maximum(resources.free_of(scratch, requirements, name), 0)


def _places_all(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, now: float, amounts: dict[str, int]
) -> bool:
    smaller = msgspec.structs.replace(
        requirements, amounts={**requirements.amounts, **amounts}, quota_headroom=None, may_preempt=False
    )
    return not plan(scratch.snapshot, [smaller], rules, now, 1).request_plans[0].unplaced
