"""Event handlers of the scheduler: apply informer changes to the snapshot and the queue, and trigger retries.

Handlers only update in-memory state, in the order of the changes. The informers' resync recovers lost events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.flow.explain import Wake
from holdfast.flow.replay import ahead_text
from holdfast.flow.snapshot import ClaimKey, SnapshotBuilder
from holdfast.model.binding import Binding, Reservation
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.hold import Hold
from holdfast.model.meta import Key
from holdfast.model.node import Node, why_not_schedulable
from holdfast.model.override import Override
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.runtime.informer import Changed, Informers
from holdfast.runtime.ports import Ports
from holdfast.runtime.request_queue import RequestQueue

_OF_SNAPSHOT: tuple[type[Any], ...] = (Node, Binding, Reservation, Hold, Override, GrantCopy, Region, PolicyRevision)


class SchedulerWatch:
    """`settled` is called for each assumed claim that is now committed, `changed` if a round may be needed."""

    def __init__(
        self,
        informers: Informers,
        ports: Ports,
        builder: SnapshotBuilder,
        queue: RequestQueue,
        *,
        settled: Callable[[ClaimKey], None],
        changed: Callable[[], None],
    ) -> None:
        self._ports = ports
        self._builder = builder
        self._queue = queue
        self._settled = settled
        self._changed = changed
        self._informers = informers
        self._ahead: dict[tuple[type[Any], Key], int] = {}
        """Objects applied ahead of their kind's watch, with their revision."""
        informers.of(Node).on_change(self._on_nodes)
        informers.of(Binding).on_change(self._on_claims)
        informers.of(Reservation).on_change(self._on_claims)
        informers.of(Hold).on_change(self._on_holds)
        informers.of(SchedulingRequest).on_change(self._on_requests)
        informers.of(Region).on_change(self._on_regions)
        informers.of(Override).on_change(self._on_overrides)
        informers.of(PolicyRevision).on_change(self._wake_with(Wake.POLICY_CHANGED))
        informers.of(GrantCopy).on_change(self._on_grants)

    def revisions(self) -> dict[str, int]:
        """The revision of each kind in the snapshot: all changes up to it are applied, newer ones are in `ahead`."""
        return {kind.__name__: self._informers.of(kind).revision for kind in _OF_SNAPSHOT}

    def ahead(self) -> tuple[str, ...]:
        """Objects in the snapshot that are newer than the revision of their kind."""
        for (kind, key), revision in list(self._ahead.items()):
            if revision <= self._informers.of(kind).revision:
                del self._ahead[kind, key]
        return tuple(sorted(ahead_text(kind.__name__, key, at) for (kind, key), at in self._ahead.items()))

    def _on_nodes(self, changes: Sequence[Changed[Node]]) -> None:
        events: dict[str, None] = {}
        for new, old in changes:
            self._apply(new, old)
            if new is None:
                continue
            if old is None:
                events[Wake.NODE_ADDED] = None
            elif _node_changed(new, old):
                events[Wake.NODE_CHANGED] = None
        self._wake(events)

    def _on_claims(self, changes: Sequence[Changed[Any]]) -> None:
        events: dict[str, None] = {}
        for new, old in changes:
            self._apply(new, old)
            item = new if new is not None else old
            if item is None:
                continue
            key = ClaimKey(item.metadata.namespace, item.metadata.name)
            if self._builder.confirm(key):
                # The claim is committed; its assumption must not outlive it.
                self._settled(key)
            if old is None:
                events[Wake.REPLICA_PLACED] = None
            elif new is None or _released(new, old):
                events[Wake.CAPACITY_FREED] = None
                self._member_lost_place(item.spec.intent.replica_uid)
        self._wake(events)

    def _member_lost_place(self, uid: str) -> None:
        waiting = self._queue.of_member(uid)
        if waiting is not None and not self._builder.has_claim(uid):
            self._queue.hasten(waiting, self._ports.clock.monotonic())
            self._changed()

    def _on_holds(self, changes: Sequence[Changed[Hold]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        self._wake({Wake.CAPACITY_FREED: None})

    def _on_requests(self, changes: Sequence[Changed[SchedulingRequest]]) -> None:
        now = self._ports.clock.monotonic()
        due = False
        for new, old in changes:
            if new is not None:
                due |= self._queue.put(new, now)
            elif old is not None:
                self._queue.drop(old, now)
        if due:
            self._changed()

    def _on_regions(self, changes: Sequence[Changed[Region]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        if any(new is None or old is None or new.spec != old.spec for new, old in changes):
            self._wake({Wake.NODE_CHANGED: None})

    def _on_overrides(self, changes: Sequence[Changed[Override]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        self._wake({Wake.OVERRIDE_CHANGED: None, Wake.POLICY_CHANGED: None})

    def _on_grants(self, changes: Sequence[Changed[GrantCopy]]) -> None:
        events: dict[str, None] = {Wake.GRANT_CHANGED: None}
        for new, old in changes:
            self._apply(new, old)
            if new is None or old is None or new.spec.protected != old.spec.protected:
                events[Wake.CAPACITY_FREED] = None  # other victims may be allowed now
        self._wake(events)

    def _apply(self, new: Any, old: Any) -> None:
        if new is not None:
            self._builder.upsert(new)
            if new.revision > self._informers.of(type(new)).revision:
                self._ahead[type(new), new.key] = new.revision
        elif old is not None:
            self._builder.delete(old)
            self._ahead.pop((type(old), old.key), None)

    def _wake_with(self, event: Wake) -> Callable[[Sequence[Changed[Any]]], None]:
        return lambda changes: self._wake({event: None})

    def _wake(self, events: dict[str, None]) -> None:
        if events and self._queue.wake(events, self._ports.clock.monotonic()):
            self._changed()


def _node_changed(new: Node, old: Node) -> bool:
    """Whether other replicas may fit than before; a heartbeat does not matter."""
    return (
        new.spec != old.spec
        or new.metadata.labels != old.metadata.labels
        or why_not_schedulable(new) != why_not_schedulable(old)
    )


def _released(new: Any, old: Any) -> bool:
    if isinstance(new, Binding):
        return bool(new.spec.quota_released and not old.spec.quota_released)
    return bool(new.status.phase != old.status.phase)
