"""S7 and S8 on recorded histories: an exclusive replica has no successor before its predecessor's proven end, and no
expired reservation is bound.

A simulation also checks the tasks that run on machines (`single_instance`). A recorded history has only stored objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import Binding, Reservation
from holdfast.model.node import Node
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Finding, ObservedCommit

STAMP_DELAY_MAX_S = 5.0
"""Maximum delay between the check and the timestamp of a commit."""


class ExclusiveSuccessionChecker:
    """Checker of one region. Deleted Bindings are remembered until their end is proven."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, Binding]] = {}
        """Bindings of exclusive work without a proven end, by replica uid and key."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if change.kind.name != "Binding":
                continue
            new: Binding | None = change.new
            if change.old is None and new is not None:
                if not change.is_stop_order:
                    yield from self._in_time(change.key, new, commit)
                if new.spec.exclusive is not None:
                    yield from self._check_successor(change.key, new, commit.state)
            self._follow(change.key, new if new is not None else change.old)

    def _follow(self, key: str, binding: Binding) -> None:
        if binding.spec.exclusive is None:
            return
        known = self._open.setdefault(binding.spec.intent.replica_uid, {})
        if binding.status.acknowledged_at:
            known.pop(key, None)
        else:
            known[key] = binding

    def _check_successor(self, key: str, binding: Binding, state: dict[str, Any]) -> Iterator[Finding]:
        for other_key, other in self._open.get(binding.spec.intent.replica_uid, {}).items():
            node: Node | None = state.get(f"/nodes/{other.spec.node}")
            fenced = node is None or node.status.fence.fenced_epoch >= other.spec.node_epoch
            if other_key != key and not fenced:
                what = f"{key} is bound without proof that {other_key} on {other.spec.node} has ended"
                yield "S7", what, (key, other_key, f"/nodes/{other.spec.node}")

    def _in_time(self, key: str, binding: Binding, commit: ObservedCommit) -> Iterator[Finding]:
        name = f"/reservations/{binding.metadata.namespace}/{binding.metadata.name}"
        reservation: Reservation | None = commit.state.get(name)
        if reservation is None or not reservation.spec.expires_at or not commit.wall_s:
            return
        late_s = commit.wall_s - parse_time(reservation.spec.expires_at)
        if late_s > STAMP_DELAY_MAX_S:
            yield "S8", f"{key} was bound {late_s:.1f} s after its reservation had expired", (key, name)
