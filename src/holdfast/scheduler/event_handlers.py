"""Event handlers of the scheduler: apply informer changes to the snapshot and the queue, and trigger retries.

Handlers only update in-memory state, in the order of the changes. The informers' resync recovers lost events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.controllers.informer import CacheChange, Informers
from holdfast.foundation.ports import Ports
from holdfast.model.binding import Binding, DesiredRunState, Reservation
from holdfast.model.decision import newer_object_text
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.override import Override
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.volume import Volume
from holdfast.scheduler.request_queue import RequestQueue
from holdfast.scheduling.refusal_summary import RetryEvent
from holdfast.scheduling.snapshot import ClaimKey, SnapshotBuilder

_SNAPSHOT_KINDS: tuple[type[Any], ...] = (
    Node,
    Binding,
    Reservation,
    RecoverySlot,
    Override,
    GrantCopy,
    Region,
    PolicyRevision,
    Volume,
)


class SchedulerEventHandlers:
    """`confirmed` is called for each assumed claim that is now committed, `changed` if a round may be needed."""

    def __init__(
        self,
        informers: Informers,
        ports: Ports,
        builder: SnapshotBuilder,
        queue: RequestQueue,
        *,
        confirmed: Callable[[ClaimKey], None],
        changed: Callable[[], None],
    ) -> None:
        self._ports = ports
        self._builder = builder
        self._queue = queue
        self._confirmed = confirmed
        self._changed = changed
        self._informers = informers
        self._newer_objects: dict[tuple[type[Any], Key], int] = {}
        """Objects applied ahead of their kind's watch, with their revision."""
        informers.of(Node).on_change(self._on_nodes)
        informers.of(Binding).on_change(self._on_claims)
        informers.of(Reservation).on_change(self._on_claims)
        informers.of(Volume).on_change(self._on_volumes)
        informers.of(RecoverySlot).on_change(self._on_holds)
        informers.of(SchedulingRequest).on_change(self._on_requests)
        informers.of(Region).on_change(self._on_regions)
        informers.of(Override).on_change(self._on_overrides)
        informers.of(PolicyRevision).on_change(self._wake_with(RetryEvent.POLICY_CHANGED))
        informers.of(GrantCopy).on_change(self._on_grants)

    def revisions(self) -> dict[str, int]:
        """The revision of each kind in the snapshot. All changes up to it are applied; see also `newer_objects`."""
        return {kind.__name__: self._informers.of(kind).revision for kind in _SNAPSHOT_KINDS}

    def newer_objects(self) -> tuple[str, ...]:
        """Objects in the snapshot that are newer than the revision of their kind."""
        for (kind, key), revision in list(self._newer_objects.items()):
            if revision <= self._informers.of(kind).revision:
                del self._newer_objects[kind, key]
        return tuple(
            sorted(newer_object_text(kind.__name__, key, at) for (kind, key), at in self._newer_objects.items())
        )

    def _on_nodes(self, changes: Sequence[CacheChange[Node]]) -> None:
        events: dict[str, None] = {}
        for new, old in changes:
            self._apply(new, old)
            if new is None:
                continue
            if old is None:
                events[RetryEvent.NODE_ADDED] = None
            elif _node_changed(new, old):
                events[RetryEvent.NODE_CHANGED] = None
        self._wake(events)

    def _on_claims(self, changes: Sequence[CacheChange[Any]]) -> None:
        events: dict[str, None] = {}
        for new, old in changes:
            self._apply(new, old)
            item = new if new is not None else old
            if item is None:
                continue
            key = ClaimKey(item.metadata.namespace, item.metadata.name)
            if self._builder.confirm_assumption(key):
                # The claim is committed; its assumption must not outlive it.
                self._confirmed(key)
            if new is None and isinstance(old, Reservation) and old.spec.victims:
                self._nomination_ended(old)
            if old is None:
                events[RetryEvent.REPLICA_PLACED] = None
            elif new is None or _released(new, old):
                events[RetryEvent.CAPACITY_FREED] = None
                self._member_lost_place(item.spec.intent.replica_uid)
        self._wake(events)

    def _nomination_ended(self, nomination: Reservation) -> None:
        """A nomination ended before its victims were released: those that still run are not chosen again soon."""
        cache, namespace = self._informers.cache, nomination.metadata.namespace
        remaining = []
        for victim in nomination.spec.victims:
            tenant, _, name = victim.rpartition("/")
            binding = cache.get(Binding, name, tenant or namespace)
            if binding is not None and binding.spec.desired is DesiredRunState.RUN:
                remaining.append(f"{tenant or namespace}/{name}")
        self._queue.nomination_expired(nomination.spec.intent.replica_uid, remaining, self._ports.clock.monotonic())

    def _member_lost_place(self, uid: str) -> None:
        pending = self._queue.find_by_member(uid)
        if pending is not None and not self._builder.has_claim(uid):
            self._queue.retry_by(pending, self._ports.clock.monotonic())
            self._changed()

    def _on_holds(self, changes: Sequence[CacheChange[RecoverySlot]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        self._wake({RetryEvent.CAPACITY_FREED: None})

    def _on_volumes(self, changes: Sequence[CacheChange[Volume]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        if any(new is None or new.metadata.terminating for new, _ in changes):
            self._wake({RetryEvent.CAPACITY_FREED: None, RetryEvent.NODE_CHANGED: None})

    def _on_requests(self, changes: Sequence[CacheChange[SchedulingRequest]]) -> None:
        now = self._ports.clock.monotonic()
        due = False
        for new, old in changes:
            if new is not None:
                due |= self._queue.put(new, now)
            elif old is not None:
                self._queue.drop(old, now)
        if due:
            self._changed()

    def _on_regions(self, changes: Sequence[CacheChange[Region]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        if any(new is None or old is None or new.spec != old.spec for new, old in changes):
            self._wake({RetryEvent.NODE_CHANGED: None})

    def _on_overrides(self, changes: Sequence[CacheChange[Override]]) -> None:
        for new, old in changes:
            self._apply(new, old)
        self._wake({RetryEvent.OVERRIDE_CHANGED: None, RetryEvent.POLICY_CHANGED: None})

    def _on_grants(self, changes: Sequence[CacheChange[GrantCopy]]) -> None:
        events: dict[str, None] = {RetryEvent.GRANT_CHANGED: None}
        for new, old in changes:
            self._apply(new, old)
            if new is None or old is None or new.spec.protected != old.spec.protected:
                events[RetryEvent.CAPACITY_FREED] = None  # other victims may be allowed now
        self._wake(events)

    def _apply(self, new: Any, old: Any) -> None:
        if new is not None:
            self._builder.upsert(new)
            if new.revision > self._informers.of(type(new)).revision:
                self._newer_objects[type(new), new.key] = new.revision
        elif old is not None:
            self._builder.delete(old)
            self._newer_objects.pop((type(old), old.key), None)

    def _wake_with(self, event: RetryEvent) -> Callable[[Sequence[CacheChange[Any]]], None]:
        return lambda changes: self._wake({event: None})

    def _wake(self, events: dict[str, None]) -> None:
        if events and self._queue.retry_on_events(events, self._ports.clock.monotonic()):
            self._changed()


def _node_changed(new: Node, old: Node) -> bool:
    """Whether other replicas may fit than before; a heartbeat does not matter."""
    return (
        new.spec != old.spec
        or new.metadata.labels != old.metadata.labels
        or unschedulable_reason(new) != unschedulable_reason(old)
    )


def _released(new: Any, old: Any) -> bool:
    if isinstance(new, Binding):
        return bool(new.spec.quota_released and not old.spec.quota_released)
    return bool(new.status.phase != old.status.phase)
