"""The objects of one kind in memory: decoded once, in key order, indexed, with the recent changes.

Owned by a `Follower`, which applies the store's changes in order. Readers never see a part of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from holdfast.model import codec
from holdfast.model.errors import BadRequest, Expired, Fault
from holdfast.model.indexes import TALLIES, indexes_of
from holdfast.model.kinds import Kind
from holdfast.model.meta import Object
from holdfast.store.contract import Change, StoredEntry
from holdfast.store.ordered_keys import OrderedKeys
from holdfast.store.ring import Ring
from holdfast.store.streams import PREFIX_WILDCARD, ObjectChange, ObjectFilter, Streams

# Newest changes held per kind for watches of one kind. A watch from an older revision reads the store's history.
OBJECT_RING_EVENTS = 2_000

NAME = "metadata.name"
NAMESPACE = "metadata.namespace"


class KindCache:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.objects: dict[str, Object] = {}
        self.entries: dict[str, StoredEntry] = {}
        self.keys = OrderedKeys()
        self.changed_at = 0
        """Revision of the newest change of this kind."""
        self.recent: Ring[ObjectChange] = Ring(0, OBJECT_RING_EVENTS)
        self.streams = Streams(kind, self.values)
        self._index = indexes_of(kind.type)
        self._tally = TALLIES.get(kind.type, {})
        self._tallies: dict[tuple[str, str], int] = {}
        # index → value → keys; a dict as a set keeps the order reproducible. An index is built on first use: most are
        # never used, and each costs time on every change.
        self._indexed: dict[str, dict[str, dict[str, None]]] = {}
        self._listed: dict[str, list[Object]] = {}
        """Lists by namespace, cached until the next change."""

    def load(self, entries: Sequence[StoredEntry], revision: int) -> None:
        """Starts over from a full list. Streams end, because the changes in between are unknown."""
        self.streams.fail(Expired(f"{self.kind.plural}: reloaded at revision {revision}; next: list again"))
        self.objects = {entry.key: object_of(self.kind, entry) for entry in entries}
        self.entries = {entry.key: entry for entry in entries}
        self.keys = OrderedKeys(self.objects)
        self.changed_at = revision
        self.recent = Ring(revision, OBJECT_RING_EVENTS)
        self._indexed = {}
        self._listed = {}
        self._tallies = {}
        for key, item in self.objects.items():
            self._reindex(key, None, item)

    def apply(self, changes: Sequence[Change]) -> None:
        """Applies the changes of one commit, or of a run of commits."""
        seen: list[ObjectChange] = []
        for change in changes:
            key, entry = change.key, change.entry
            old = self.objects.get(key)
            if entry is not None:
                new = object_of(self.kind, entry)
                if old is None:
                    self.keys.add(key)
                self.objects[key] = new
                self.entries[key] = entry
                self._reindex(key, old, new)
                seen.append(ObjectChange(self.kind, change.revision, new, old, entry.value))
            elif old is not None:
                del self.objects[key]
                value = self.entries.pop(key).value
                self.keys.remove(key)
                self._reindex(key, old, None)
                seen.append(ObjectChange(self.kind, change.revision, None, old, value))
        if seen:
            if self._listed:
                self._listed = {}
            self.changed_at = seen[-1].revision
            self.recent.append(seen)
            self.streams.deliver(seen)

    def fail(self, fault: Fault) -> None:
        self.streams.fail(fault)

    def past_change(self, change: Change) -> ObjectChange:
        """A past change, from history."""
        new = object_of(self.kind, change.entry) if change.entry is not None else None
        old = object_of(self.kind, change.previous) if change.previous is not None else None
        state = change.entry or change.previous
        return ObjectChange(self.kind, change.revision, new, old, state.value if state is not None else b"")

    def list_namespace(self, namespace: str) -> list[Object]:
        """All objects, or those of one namespace, in order. The caller owns the list."""
        found = self._listed.get(namespace)
        if found is None:
            objects = self.objects
            keys = self.keys.walk(self.kind.range_prefix(namespace))
            found = self._listed[namespace] = [objects[key] for key in keys]
        return found.copy()

    def select(self, wanted: ObjectFilter) -> Iterator[str]:
        """The keys of matching objects, in order."""
        if not wanted.fields:
            yield from self.keys.walk(self.kind.range_prefix(wanted.namespace))
            return
        for key in self._candidates(wanted):
            if wanted.matches(self.objects[key], self.values):
                yield key

    def page(self, namespace: str, after: str, limit: int) -> tuple[list[Object], int]:
        """Objects after a key, and how many follow them."""
        prefix = self.kind.range_prefix(namespace)
        walk = self.keys.walk(prefix, after)
        keys = list(islice(walk, limit) if limit else walk)
        remaining = self.keys.count(prefix, keys[-1]) if keys else 0
        return [self.objects[key] for key in keys], remaining

    def values(self, field: str, item: Object) -> Iterable[str]:
        """An object's values of a field."""
        if field == NAME:
            return (item.metadata.name,)
        if field == NAMESPACE:
            return (item.metadata.namespace,)
        return self._index[field](item)

    def check_fields(self, fields: Iterable[str]) -> None:
        for field in fields:
            if field not in self._index and field not in (NAME, NAMESPACE):
                known = ", ".join([NAME, NAMESPACE, *sorted(self._index)])
                raise BadRequest(f"{self.kind.plural}: field {field} is not selectable (expected one of {known})")

    def _candidates(self, wanted: ObjectFilter) -> Iterable[str]:
        """A superset of the matching keys, in order, as small as the first field allows."""
        field, value = wanted.fields[0]
        if value.endswith(PREFIX_WILDCARD):
            return self.keys.walk(self.kind.range_prefix(wanted.namespace))
        if field in self._index:
            return sorted(self._index_of(field).get(value, ()))
        if field == NAME and (wanted.namespace or not self.kind.namespaced):
            key = self.kind.store_key(wanted.namespace, value)
            return (key,) if key in self.objects else ()
        return self.keys.walk(self.kind.range_prefix(value if field == NAMESPACE else wanted.namespace))

    def _index_of(self, field: str) -> dict[str, dict[str, None]]:
        """The keys by value of an index."""
        found = self._indexed.get(field)
        if found is None:
            found, index = {}, self._index[field]
            for key, item in self.objects.items():
                for value in index(item):
                    found.setdefault(value, {})[key] = None
            self._indexed[field] = found
        return found

    def tally(self, name: str, namespace: str) -> int:
        """The sum of a tally of `model.indexes` over one namespace."""
        return self._tallies.get((name, namespace), 0)

    def _reindex(self, key: str, old: Object | None, new: Object | None) -> None:
        for name, count in self._tally.items():
            for item, sign in ((old, -1), (new, 1)):
                if item is not None:
                    at = (name, item.metadata.namespace)
                    self._tallies[at] = self._tallies.get(at, 0) + sign * count(item)
        for name, by_value in self._indexed.items():
            index = self._index[name]
            before: Iterable[str] = index(old) if old is not None else ()
            after: Iterable[str] = index(new) if new is not None else ()
            if before == after:
                continue
            for value in before:
                keys = by_value.get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del by_value[value]
            for value in after:
                by_value.setdefault(value, {})[key] = None


def object_of(kind: Kind, entry: StoredEntry) -> Object:
    """The object of an entry. Decoded only if the writer's own object is not attached."""
    item: Object | None = entry.attached
    if item is None:
        decoded: Object = codec.decode(kind, entry.value, entry.revision)
        return decoded
    if item.metadata.resource_version == str(entry.revision):
        return item
    return codec.with_revision(item, entry.revision)
