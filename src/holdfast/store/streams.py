"""Streams of object changes: which stream gets which change of one kind, and the unread changes of each stream.

A change reaches only the streams it concerns: those of its namespace, and those of a field value that it has or had. A
stream that falls too far behind ends with `Expired`, because its unread changes would otherwise grow without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from holdfast.foundation import metrics
from holdfast.model import codec
from holdfast.model.errors import Expired, Fault
from holdfast.model.kinds import Kind
from holdfast.model.meta import Object

# Unread changes of one watcher. At the bound its watch ends with 410, and the client lists again.
WATCHER_BACKLOG_EVENTS_MAX = 50_000


class ObjectChange(msgspec.Struct, gc=False):
    """One change. `value` is the stored bytes (the last state for a deletion): splice them instead of encoding
    again.
    """

    kind: Kind
    revision: int
    new: Object | None
    old: Object | None
    value: bytes
    line: bytes | None = None
    """The watch line for plain JSON watchers, encoded by the first watcher and shared by all."""


PREFIX_WILDCARD = "*"
Values = Callable[[str, Object], Iterable[str]]
"""(field, object) → the object's values of that field."""


class ObjectFilter(msgspec.Struct, frozen=True, gc=False):
    """Which objects a reader wants: of one namespace ("" for all), with these field values.

    A value that ends with `*` matches every value with that prefix; a process that represents many nodes uses it.
    """

    namespace: str
    fields: tuple[tuple[str, str], ...]

    def matches(self, item: Object, values: Values) -> bool:
        if self.namespace and item.metadata.namespace != self.namespace:
            return False
        return all(_contains(values(field, item), value) for field, value in self.fields)


def _contains(values: Iterable[str], wanted: str) -> bool:
    if wanted.endswith(PREFIX_WILDCARD):
        return any(value.startswith(wanted[:-1]) for value in values)
    return wanted in values


class Subscription:
    """The unread changes of one stream. Filled by `Streams.deliver`, emptied by its reader."""

    def __init__(self, wanted: ObjectFilter) -> None:
        self.wanted = wanted
        self.unread: list[ObjectChange] = []
        self.fault: Fault | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Returns when there is something to read, or a fault."""
        if self.unread or self.fault is not None:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Streams:
    """All open streams of one kind."""

    def __init__(self, kind: Kind, values: Values) -> None:
        self._kind = kind
        self._values = values
        # Ordered by creation (a dict as a set), so that the order of delivery is reproducible.
        self._by_namespace: dict[str, dict[Subscription, None]] = {}
        self._by_field: dict[str, dict[str, dict[Subscription, None]]] = {}
        self._prefixes: dict[str, dict[str, None]] = {}
        """Field → the values of `_by_field` that are prefixes."""
        self._abandoned: list[Subscription] = []
        """Subscriptions whose readers were collected, until they are removed."""
        self._open = metrics.STORE_WATCHERS.labels(kind.name)
        self._expired = metrics.STORE_WATCHERS_EXPIRED.labels(kind.name)

    def add(self, subscription: Subscription) -> None:
        self._remove_abandoned()
        self._group(subscription.wanted)[subscription] = None
        self._open.inc()

    def remove(self, subscription: Subscription) -> None:
        wanted = subscription.wanted
        group = self._group(wanted)
        if subscription in group:
            del group[subscription]
            self._open.dec()
        if not group and wanted.fields:
            field, value = wanted.fields[0]
            del self._by_field[field][value]
            self._prefixes.get(field, {}).pop(value, None)
            if not self._by_field[field]:
                del self._by_field[field]
        elif not group:
            del self._by_namespace[wanted.namespace]

    def abandon(self, subscription: Subscription) -> None:
        """Removes the subscription of a reader that is being collected, with the next change or reader.

        Python may collect a reader in the middle of any statement of this class. So nothing else may change here: a
        `deliver` that iterates would fail, and the metric's lock may be held already.
        """
        self._abandoned.append(subscription)

    def _remove_abandoned(self) -> None:
        while self._abandoned:
            self.remove(self._abandoned.pop())

    def deliver(self, changes: Sequence[ObjectChange]) -> None:
        """Delivers the changes of one commit to every matching stream."""
        self._remove_abandoned()
        touched: dict[Subscription, None] = {}
        for subscription in self._by_namespace.get("", ()):
            subscription.unread.extend(changes)
            touched[subscription] = None
        if len(self._by_namespace) > ("" in self._by_namespace):
            self._deliver_by_namespace(changes, touched)
        if self._by_field:
            for change in changes:
                self._deliver_by_field(change, touched)
        for subscription in touched:
            if len(subscription.unread) > WATCHER_BACKLOG_EVENTS_MAX:
                self._expire(subscription)
            subscription.wake()

    def fail(self, fault: Fault) -> None:
        """Ends every stream."""
        groups = [*self._by_namespace.values(), *(g for by_value in self._by_field.values() for g in by_value.values())]
        for subscription in [subscription for group in groups for subscription in group]:
            subscription.fault = fault
            self.remove(subscription)
            subscription.wake()

    def _group(self, wanted: ObjectFilter) -> dict[Subscription, None]:
        if not wanted.fields:
            return self._by_namespace.setdefault(wanted.namespace, {})
        field, value = wanted.fields[0]
        if value.endswith(PREFIX_WILDCARD):
            self._prefixes.setdefault(field, {})[value] = None
        return self._by_field.setdefault(field, {}).setdefault(value, {})

    def _deliver_by_namespace(self, changes: Sequence[ObjectChange], touched: dict[Subscription, None]) -> None:
        for change in changes:
            namespace = (change.new or change.old).metadata.namespace  # type: ignore[union-attr]
            for subscription in self._by_namespace.get(namespace, ()) if namespace else ():
                subscription.unread.append(change)
                touched[subscription] = None

    def _deliver_by_field(self, change: ObjectChange, touched: dict[Subscription, None]) -> None:
        seen = FilteredChange(change, self._values)
        for field, by_value in self._by_field.items():
            values: dict[str, None] = {}
            for item in (change.old, change.new):
                if item is not None:
                    values.update(dict.fromkeys(self._values(field, item)))
            begins = self._prefixes.get(field)
            if begins:
                values.update({wanted: None for wanted in begins if _contains(tuple(values), wanted)})
            for value in values:
                for subscription in by_value.get(value, ()):
                    part = seen.of(subscription.wanted)
                    if part is not None:
                        subscription.unread.append(part)
                        touched[subscription] = None

    def _expire(self, subscription: Subscription) -> None:
        behind = len(subscription.unread)
        subscription.unread = []
        subscription.fault = Expired(f"watch of {self._kind.plural}: {behind} changes behind; next: list again")
        self._expired.inc()
        self.remove(subscription)


class FilteredChange:
    """One change as seen through filters: an object that starts to match is new, one that stops matching is deleted."""

    def __init__(self, change: ObjectChange, values: Values) -> None:
        self._change = change
        self._values = values
        self._started: ObjectChange | None = None
        self._ended: ObjectChange | None = None

    def of(self, wanted: ObjectFilter) -> ObjectChange | None:
        change = self._change
        before = change.old is not None and wanted.matches(change.old, self._values)
        after = change.new is not None and wanted.matches(change.new, self._values)
        if after and not before and change.old is not None:
            if self._started is None:
                self._started = ObjectChange(change.kind, change.revision, change.new, None, change.value)
            return self._started
        if before and not after and change.new is not None:
            assert change.old is not None
            if self._ended is None:
                # The last matching state is delivered; readers of stored bytes need the bytes of that state.
                self._ended = ObjectChange(change.kind, change.revision, None, change.old, codec.encode(change.old))
            return self._ended
        return change if before or after else None


def sorted_fields(fields: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The fields of a watch filter in the order of comparison: metadata.name first, because it excludes most."""
    return tuple(sorted((fields or {}).items(), key=lambda pair: (pair[0] != "metadata.name", pair[0])))
