"""Rebalancing: moves for a more even spread are few, slow, allowed and useful.

When a release with reason Rebalanced is committed in a region:

- no other replica of the region is moving for that reason;
- no recovery uses the region, except one that began moments before;
- the workload allows it, and its last move began at least its `rebalance.afterSeconds` before.

When the replica is bound again while its siblings stayed where they were, the sum of squares of the workload's replicas
per zone must be lower, or equal with a lower sum per node. One useless move per workload is tolerated (the state may
change while it moves), a second one is an oscillation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

RECOVERY_GRACE_S = 5.0
"""Time for a recovery to become known to the controllers of the region."""
USELESS_MOVES_MAX = 1
CLOCK_SLACK_S = 1.0


class _ReplicaPlace(msgspec.Struct, frozen=True):
    zone: str
    node: str


class _ObservedMove(msgspec.Struct, frozen=True):
    """A release for rebalancing: the attempt that leaves, its place, and where the siblings were."""

    attempt: int
    left: _ReplicaPlace
    siblings: tuple[_ReplicaPlace, ...]


class RebalancingChecker:
    """Checker of one region."""

    def __init__(self, recovery_grace_s: float = RECOVERY_GRACE_S) -> None:
        self._grace_s = recovery_grace_s
        self._moves: dict[str, _ObservedMove] = {}
        """Moves that have not ended, by replica key."""
        self._last_s: dict[str, float] = {}
        """Start of the last move, by workload."""
        self._useless: Counter[str] = Counter()
        self._recovering_since_s: float | None = None

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        if any(isinstance(change.item, Assignment) for change in commit.changes):
            self._observe_recovery(commit)
        for change in commit.changes:
            if isinstance(change.item, Replica):
                yield from self._observe(commit, change)

    def _observe_recovery(self, commit: ObservedCommit) -> None:
        uses = any(
            isinstance(a, Assignment) and (a.spec.suspended or (a.spec.purpose is Purpose.RECOVERY and a.spec.replicas))
            for a in commit.state.values()
        )
        self._recovering_since_s = (self._recovering_since_s or commit.at_s) if uses else None

    def _observe(self, commit: ObservedCommit, change: ObservedChange) -> Iterator[Finding]:
        old, new = change.old, change.new
        if new is None or new.metadata.terminating or (old is not None and old.uid != new.uid):
            self._moves.pop(change.key, None)
            return
        placed = new.status.placement
        move = self._moves.get(change.key)
        if move is not None and placed.attempt > move.attempt and placed.binding:
            del self._moves[change.key]
            if placed.attempt == move.attempt + 1:
                yield from self._judge(commit, change.key, new, move)
        elif move is not None and placed.attempt > move.attempt + 1:
            del self._moves[change.key]
        block = new.status.release
        if old is None or block is None or block == old.status.release or block.reason != Reason.REBALANCED:
            return
        yield from self._judge_start(commit, change.key, new)
        self._moves[change.key] = _ObservedMove(placed.attempt, _place(new), tuple(_siblings(commit, new)))

    def _judge_start(self, commit: ObservedCommit, key: str, replica: Replica) -> Iterator[Finding]:
        name = f"{replica.metadata.namespace}/{replica.spec.workload}"
        others = sorted(other for other in self._moves if other != key)
        if others:
            yield "rebalance", f"{key} is moved while {', '.join(others)} still moves", (key, *others)
        since_s = self._recovering_since_s
        if since_s is not None and commit.at_s - since_s > self._grace_s + commit.latency_s:
            yield "rebalance", f"{key} is moved although a recovery uses the region since {since_s:.1f} s", (key,)
        after_s = _after_s(commit, replica)
        if not after_s:
            yield "rebalance", f"{key} is moved although its workload forbids it", (key,)
        last_s = self._last_s.get(name)
        if last_s is not None and commit.at_s - last_s < after_s - CLOCK_SLACK_S:
            what = f"{key} is moved {commit.at_s - last_s:.1f} s after the last move of {name} (at least {after_s:g} s)"
            yield "rebalance", what, (key,)
        self._last_s[name] = commit.at_s

    def _judge(self, commit: ObservedCommit, key: str, replica: Replica, move: _ObservedMove) -> Iterator[Finding]:
        siblings = tuple(_siblings(commit, replica))
        if siblings != move.siblings:
            return  # another replica moved, failed or was added meanwhile
        before, after = _unevenness((*siblings, move.left)), _unevenness((*siblings, _place(replica)))
        if after < before:
            return
        name = f"{replica.metadata.namespace}/{replica.spec.workload}"
        self._useless[name] += 1
        if self._useless[name] == USELESS_MOVES_MAX + 1:
            what = f"{self._useless[name]} moves of {name} did not make its spread more even, the last one of {key}"
            yield "rebalance", what, (key,)


def _place(replica: Replica) -> _ReplicaPlace:
    return _ReplicaPlace(replica.status.placement.zone, replica.status.placement.node)


def _siblings(commit: ObservedCommit, replica: Replica) -> list[_ReplicaPlace]:
    """Places of the workload's other replicas in the region."""
    found = [
        _place(other)
        for other in commit.state.values()
        if isinstance(other, Replica)
        and other.uid != replica.uid
        and other.spec.workload_uid == replica.spec.workload_uid
        and other.status.placement.node
    ]
    return sorted(found, key=lambda place: (place.zone, place.node))


def _unevenness(places: tuple[_ReplicaPlace, ...]) -> tuple[int, int]:
    """Sums of squares of the replicas per zone and per node."""
    zones, nodes = Counter(p.zone for p in places), Counter(p.node for p in places)
    return sum(n * n for n in zones.values()), sum(n * n for n in nodes.values())


def _after_s(commit: ObservedCommit, replica: Replica) -> float:
    for item in commit.state.values():
        if (
            isinstance(item, Assignment)
            and (item.metadata.namespace, item.metadata.name) == (replica.metadata.namespace, replica.spec.assignment)
            and item.spec.rebalance is not None
        ):
            return item.spec.rebalance.after_seconds
    return limits.REBALANCE_AFTER_S
