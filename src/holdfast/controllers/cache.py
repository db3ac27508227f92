"""In-memory cache of a cell's objects by kind, with indexes. An object's state never goes back in time.

- Objects are shared and immutable.
- Reads are synchronous and cost as much as they return. Lists are in key order.
- Every change enters through `put`, `remove`, `replace_all` or `reset_kind`, which return the changes for the handlers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.model.indexes import Index, indexes_of
from holdfast.model.meta import Key, Object
from holdfast.model.view import Measure, Totals

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class CacheChange(NamedTuple, Generic[O]):
    """One change of the cache. If the object was removed, `new` is None and `old` is its last state."""

    new: O | None
    old: O | None


class _Ordered:
    """Objects in key order. The list is cached until it changes."""

    __slots__ = ("_keys", "_listed", "_sorted", "items")

    def __init__(self) -> None:
        self.items: dict[Key, Any] = {}
        self._keys: list[Key] = []
        """The keys of `items`, in order if `_sorted`. A burst of new keys is sorted once, on the next read."""
        self._sorted = True
        self._listed: tuple[Any, ...] | None = ()

    def put(self, key: Key, item: Any) -> None:
        if key not in self.items:
            if self._sorted and self._keys and key < self._keys[-1]:
                self._sorted = False
            self._keys.append(key)
        self.items[key] = item
        self._listed = None

    def remove(self, key: Key) -> None:
        del self.items[key]
        self._sort()
        del self._keys[bisect_left(self._keys, key)]
        self._listed = None

    def list(self) -> tuple[Any, ...]:
        if self._listed is None:
            self._sort()
            self._listed = tuple(map(self.items.__getitem__, self._keys))
        return self._listed

    def _sort(self) -> None:
        if not self._sorted:
            self._keys.sort()
            self._sorted = True


class _KindIndex:
    """The cached objects of one kind."""

    def __init__(self, kind: type[Any]) -> None:
        self.all = _Ordered()
        self.indexes: dict[str, Index] = {_NAMESPACE: lambda item: (item.metadata.namespace,), **indexes_of(kind)}
        self._indexed: dict[str, _Buckets] = {}
        """By index. An index is built on first use; most are never used."""
        self.totals = Totals()
        self.totals_of_all = Totals()
        self.summed = False
        """Whether a total was ever read."""
        self.removed: dict[Key, int] = {}
        """Removed keys with the revision of their removal, kept until a list is newer. A delayed or repeated event must
        not bring the object back."""

    def place(self, key: Key, item: Any, old: Any | None) -> None:
        self.all.put(key, item)
        if self.summed:
            self.totals.update(old, item)
            self.totals_of_all.update(old, item)
        for name, buckets in self._indexed.items():
            index = self.indexes[name]
            values = tuple(index(item))
            if old is not None:
                for value in index(old):
                    if value not in values:
                        _remove_from_bucket(buckets, value, key)
            _put(buckets, values, key, item)

    def take(self, key: Key, old: Any) -> None:
        self.all.remove(key)
        self.totals.update(old, None)
        self.totals_of_all.update(old, None)
        for name, buckets in self._indexed.items():
            for value in self.indexes[name](old):
                _remove_from_bucket(buckets, value, key)

    def by(self, name: str, value: str) -> Sequence[Any]:
        buckets = self._indexed.get(name)
        if buckets is None:
            index = self.indexes[name]
            buckets = self._indexed[name] = {}
            for key, item in self.all.items.items():
                _put(buckets, index(item), key, item)
        bucket = buckets.get(value)
        if bucket is None:
            return ()
        return bucket.list() if isinstance(bucket, _Ordered) else (bucket,)


_NAMESPACE = "metadata.namespace"
_Buckets = dict[str, "Object | _Ordered"]
"""The objects of each value of an index. A single object stands for itself: most workloads have one Assignment in a
cell, and an `_Ordered` takes as much memory as a small object."""


def _put(buckets: _Buckets, values: Iterable[str], key: Key, item: Any) -> None:
    for value in values:
        bucket = buckets.get(value)
        if isinstance(bucket, _Ordered):
            bucket.put(key, item)
        elif bucket is None or _has_key(bucket, key):
            buckets[value] = item
        else:
            several = buckets[value] = _Ordered()
            several.put(bucket.key, bucket)
            several.put(key, item)


def _remove_from_bucket(buckets: _Buckets, name: str, key: Key) -> None:
    bucket = buckets.get(name)
    if bucket is None:
        return  # an index may yield one value twice
    if not isinstance(bucket, _Ordered):
        if _has_key(bucket, key):
            del buckets[name]
    elif key in bucket.items:
        bucket.remove(key)
        if not bucket.items:
            del buckets[name]


def _has_key(item: Object, key: Key) -> bool:
    meta = item.metadata
    return meta.name == key.name and meta.namespace == key.namespace


def namespace_of(item: Any) -> str:
    return str(item.metadata.namespace)


def single_group(item: Any) -> str:
    return ""


class _KindIndexes(dict[type[Any], _KindIndex]):
    """Creates the entry of a kind on first use."""

    def __missing__(self, kind: type[Any]) -> _KindIndex:
        created = self[kind] = _KindIndex(kind)
        return created


class Cache:
    """The newest state that this process has observed. Implements `model.view.View`."""

    def __init__(self) -> None:
        self._kinds = _KindIndexes()

    # Reading

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        found: O | None = self._kinds[kind].all.items.get(Key(namespace, name))
        return found

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]:
        entry = self._kinds[kind]
        return entry.by(_NAMESPACE, namespace) if namespace else entry.all.list()

    def by(self, kind: type[O], index: str, value: str) -> Sequence[O]:
        """Objects by an index of `model.indexes`. An unknown index raises KeyError."""
        entry = self._kinds[kind]
        if index not in entry.indexes:
            raise KeyError(f"{kind.__name__} has no index {index} (expected one of {', '.join(entry.indexes)})")
        return entry.by(index, value)

    def total(self, kind: type[O], namespace: str, measure: Measure) -> Mapping[Any, int]:
        entry = self._kinds[kind]
        totals = entry.totals if namespace else entry.totals_of_all
        if not totals.is_tracked(measure):
            entry.summed = True
            totals.track(measure, namespace_of if namespace else single_group, entry.all.list())
        return totals.total(measure, namespace)

    def count(self, kind: type[Any]) -> int:
        return len(self._kinds[kind].all.items)

    # Changing

    def put(self, item: O) -> CacheChange[O] | None:
        """Stores a state, unless a newer state or a later removal is known."""
        entry, key = self._kinds[type(item)], item.key
        old = entry.all.items.get(key)
        if old is item:
            return None
        revision = item.revision
        if old is not None and old.revision >= revision:
            return None
        if entry.removed and entry.removed.get(key, 0) >= revision:
            return None
        entry.place(key, item, old)
        return CacheChange(item, old)

    def remove(self, kind: type[O], key: Key, revision: int, last: O | None = None) -> CacheChange[O] | None:
        """Removes the object unless its state is newer than the removal. `last` is its final state."""
        entry = self._kinds[kind]
        old = entry.all.items.get(key)
        if old is not None and old.revision > revision:
            return None
        entry.removed[key] = max(revision, entry.removed.get(key, 0))
        if old is None:
            return None
        entry.take(key, old)
        return CacheChange(None, last if last is not None else old)

    def replace_all(self, kind: type[O], items: Iterable[O], revision: int) -> Sequence[CacheChange[O]]:
        """Applies a full list of `revision`. Objects that are neither listed nor newer were deleted."""
        entry = self._kinds[kind]
        changes = []
        listed: set[Key] = set()
        cached = entry.all.items
        for item in items:
            key = item.key
            listed.add(key)
            if cached.get(key) is not item and (change := self.put(item)) is not None:
                changes.append(change)
        for key in [key for key in cached if key not in listed]:
            removed = self.remove(kind, key, revision)
            if removed is not None:
                changes.append(removed)
        entry.removed = {key: at for key, at in entry.removed.items() if at > revision}
        return changes

    def reset_kind(self, kind: type[O], items: Iterable[O]) -> Sequence[CacheChange[O]]:
        """Applies a full list and ignores known revisions: the cell was restored from a backup."""
        entry = self._kinds[kind]
        entry.removed.clear()
        changes = []
        listed = {item.key: item for item in items}
        for key, old in [(key, old) for key, old in entry.all.items.items() if key not in listed]:
            entry.take(key, old)
            changes.append(CacheChange(None, old))
        for key, item in listed.items():
            old = entry.all.items.get(key)
            if old != item:
                entry.place(key, item, old)
                changes.append(CacheChange(item, old))
        return changes
