"""Kubernetes Events, as shown by `kubectl describe`: aggregated, bounded and volatile. No decision reads them.

An event's name is a hash of its content, so a repetition finds the first event and raises its count. Losing events
affects nothing else: failures here are counted and dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.foundation import metrics
from holdfast.foundation.batches import batches
from holdfast.foundation.ports import Ports
from holdfast.gate.scope import CLUSTER_NAMESPACE
from holdfast.model import codec, limits
from holdfast.model.core import Event, EventSource, ObjectReference
from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_NAME, kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.writes import Notice
from holdfast.store.contract import Compare, Put, Remove, Txn
from holdfast.store.objects import Objects

# Events recorded per call. The rest is dropped and counted.
EVENTS_PER_CALL_MAX = 1024
# Interval at which expired and surplus Events are deleted.
EVENT_SWEEP_EVERY_S = 30.0
# Age at which an Event is deleted. The Kubernetes default.
EVENT_TTL_S = 3600.0

KIND = BY_NAME["Event"]
_TENANT = BY_NAME["Tenant"]
_MAX_NAME_PREFIX = 200
_MAX_MESSAGE = 1024


def event_name(about: Object, notice: Notice, component: str) -> str:
    content = "\0".join((about.uid, notice.reason, notice.message, component, str(notice.warning)))
    return f"{about.metadata.name[:_MAX_NAME_PREFIX]}.{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"


def reference(about: Object) -> ObjectReference:
    """The object an event is about. `kubectl describe` shows an event only if the uid is set."""
    kind, meta = kind_of(about), about.metadata
    return ObjectReference(
        api_version=kind.api_version,
        kind=kind.name,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


class EventLog:
    """One per cell and process. `run` deletes old events; without it only their number is bounded."""

    def __init__(self, objects: Objects, ports: Ports) -> None:
        self._objects = objects
        self._ports = ports

    async def record(self, notices: Sequence[Notice], *, component: str) -> None:
        """Writes the notices in one commit. Best effort: a race with another writer loses this count."""
        events: dict[str, tuple[Event, int]] = {}
        now = seconds_text(self._ports.clock.now())
        for notice in notices[:EVENTS_PER_CALL_MAX]:
            if not notice.about.uid:
                metrics.EVENTS_DROPPED.inc()
                continue
            self._add(events, notice, component, now)
        metrics.EVENTS_DROPPED.inc(max(0, len(notices) - EVENTS_PER_CALL_MAX))
        if not events:
            return
        compares = tuple(Compare(key, revision) for key, (_, revision) in events.items())
        puts = tuple(Put(key, codec.encode(event), event) for key, (event, _) in events.items())
        try:
            await self._objects.commit(KIND, Txn(compares, puts))
        except Fault:
            metrics.EVENTS_DROPPED.inc(len(events))

    def _add(self, events: dict[str, tuple[Event, int]], notice: Notice, component: str, now: str) -> None:
        about = notice.about
        namespace = about.metadata.namespace or CLUSTER_NAMESPACE
        name = event_name(about, notice, component)
        key = KIND.store_key(namespace, name)
        if key in events:
            event, revision = events[key]
            events[key] = replace(event, count=event.count + 1, last_timestamp=now), revision
            return
        held = self._objects.get(KIND, namespace, name)
        if isinstance(held, Event):
            meta = replace(held.metadata, resource_version="")
            events[key] = replace(held, metadata=meta, count=held.count + 1, last_timestamp=now), held.revision
            return
        meta = ObjectMeta(name=name, namespace=namespace, uid=self._ports.ids.uid(), creation_timestamp=now)
        made = Event(
            metadata=meta,
            involved_object=reference(about),
            type="Warning" if notice.warning else "Normal",
            reason=notice.reason,
            message=notice.message[:_MAX_MESSAGE],
            count=1,
            first_timestamp=now,
            last_timestamp=now,
            source=EventSource(component=component),
            reporting_component=component,
        )
        events[key] = made, 0

    async def run(self) -> None:
        """Periodically deletes old events, excess events, and events of terminating tenants. Never returns."""
        while True:
            await self._ports.clock.sleep(EVENT_SWEEP_EVERY_S)
            await self.sweep()

    async def sweep(self) -> None:
        held = [event for event in self._objects.list(KIND)[0] if isinstance(event, Event)]
        oldest_s = self._ports.clock.now() - EVENT_TTL_S
        gone = [
            event
            for event in held
            if _last_occurred_s(event) < oldest_s or self._tenant_terminates(event.metadata.namespace)
        ]
        left = len(held) - len(gone)
        if left > limits.EVENTS_MAX:
            names = {event.key for event in gone}
            rest = sorted((e for e in held if e.key not in names), key=lambda e: (_last_occurred_s(e), e.key))
            gone += rest[: left - limits.EVENTS_MAX]
        for some in batches(gone, limits.PLACEMENT_BATCH_MAX):
            keys = [KIND.store_key(e.metadata.namespace, e.metadata.name) for e in some]
            try:
                await self._objects.commit(KIND, Txn(writes=tuple(Remove(key) for key in keys)))
            except Fault:
                metrics.EVENTS_DROPPED.inc(len(keys))

    def _tenant_terminates(self, namespace: str) -> bool:
        tenant = self._objects.get(_TENANT, "", namespace)
        return tenant is not None and tenant.metadata.terminating


def _last_occurred_s(event: Event) -> float:
    """When the event last occurred. An event posted without a time counts from its creation."""
    for text in (event.last_timestamp, event.event_time, event.metadata.creation_timestamp):
        if text:
            try:
                return parse_time(text)
            except ValueError:
                continue
    return 0.0
