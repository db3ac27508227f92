"""The view of one controller: the cache restricted to its declared kinds, plus the effects of its current pass.

- Reading an undeclared kind raises, because the cache may not hold that kind and would look empty.
- Decisions of one pass are committed together. Totals include the writes decided earlier in the pass, so that a batch
  does not spend the same quota twice. Reads of objects ignore those writes, except that with `sees_earlier_statuses`
  they include the status blocks set earlier in the pass.
- A controller of the link reads the other cell through `peer`, under the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.controllers.cache import Cache, namespace_of, single_group
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key, Object
from holdfast.model.view import Measure, Totals
from holdfast.model.writes import Create, SetStatus, Update, Write

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class _PassChanges:
    """Uncommitted changes of one kind in the current pass, and their effect on totals."""

    def __init__(self) -> None:
        self.changes: list[tuple[Any, Any]] = []
        self.objects: dict[Key, Any] = {}
        """Objects with the status blocks that the pass has set; only with `sees_earlier_statuses`."""
        self.by_namespace = Totals()
        self.over_all = Totals()

    def change(self, old: Any, new: Any) -> None:
        self.changes.append((old, new))
        self.by_namespace.update(old, new)
        self.over_all.update(old, new)

    def total(self, namespace: str, measure: Measure) -> Mapping[Any, int]:
        totals, group = (self.by_namespace, namespace_of) if namespace else (self.over_all, single_group)
        if not totals.is_tracked(measure):
            totals.track(measure, group)
            for old, new in self.changes:
                totals.update(old, new, only=measure)
        return totals.total(measure, namespace)


class DeclaredView:
    def __init__(
        self, controller: str, cache: Cache, kinds: frozenset[type[Any]], *, sees_earlier_statuses: bool = False
    ) -> None:
        self._controller = controller
        self._peer: DeclaredView | None = None
        self._sees_earlier_statuses = sees_earlier_statuses
        self._cache = cache
        self._kinds = kinds
        self._pass_changes: dict[type[Any], _PassChanges] = {}

    @property
    def peer(self) -> DeclaredView:
        if self._peer is None:
            raise LookupError(f"controller {self._controller} reads another cell; declare it in its peer_wakes")
        return self._peer

    def attach_peer(self, peer: DeclaredView) -> None:
        """Makes the other cell of a link readable."""
        self._peer = peer

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        if kind not in self._kinds:
            raise self._undeclared(kind)
        changes_of_kind = self._pass_changes.get(kind)
        if changes_of_kind is not None and changes_of_kind.objects:
            found: O | None = changes_of_kind.objects.get(Key(namespace, name))
            if found is not None:
                return found
        return self._cache.get(kind, name, namespace)

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]:
        if kind not in self._kinds:
            raise self._undeclared(kind)
        found = self._cache.list(kind, namespace)
        return self._with_pass_statuses(kind, found) if self._pass_changes else found

    def by(self, kind: type[O], index: str, value: str) -> Sequence[O]:
        if kind not in self._kinds:
            raise self._undeclared(kind)
        found = self._cache.by(kind, index, value)
        return self._with_pass_statuses(kind, found) if self._pass_changes else found

    def total(self, kind: type[O], namespace: str, measure: Measure) -> Mapping[Any, int]:
        if kind not in self._kinds:
            raise self._undeclared(kind)
        stored = self._cache.total(kind, namespace, measure)
        changes_of_kind = self._pass_changes.get(kind)
        pass_total = changes_of_kind.total(namespace, measure) if changes_of_kind is not None else None
        if not pass_total:
            return stored
        return {name: stored.get(name, 0) + pass_total.get(name, 0) for name in {**stored, **pass_total}}

    def begin_pass(self) -> None:
        """Starts a pass: writes of earlier passes are in the cache or were refused."""
        self._pass_changes.clear()

    def assume(self, writes: Iterable[Write]) -> None:
        """Adds the writes to the totals of this pass."""
        for write in writes:
            if isinstance(write, Create | Update) and type(write.object) in self._kinds:
                kind, meta = type(write.object), write.object.metadata
                old = self._cache.get(kind, meta.name, meta.namespace)
                self._pass_changes.setdefault(kind, _PassChanges()).change(old, write.object)
            elif self._sees_earlier_statuses and isinstance(write, SetStatus):
                self._assume_status(write)

    def _assume_status(self, write: SetStatus) -> None:
        kind = BY_NAME[write.kind].type
        old = self.get(kind, write.key.name, write.key.namespace) if kind in self._kinds else None
        if old is None or old.uid != write.uid:
            return
        names = _field_names(type(old.status))
        blocks = {names[name]: block for name, block in write.blocks.items()}
        new = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, **blocks))
        changes_of_kind = self._pass_changes.setdefault(kind, _PassChanges())
        changes_of_kind.change(old, new)
        changes_of_kind.objects[write.key] = new

    def _with_pass_statuses(self, kind: type[O], items: Sequence[O]) -> Sequence[O]:
        """The objects, replaced where this pass has set their status."""
        changes_of_kind = self._pass_changes.get(kind)
        if changes_of_kind is None or not changes_of_kind.objects:
            return items
        changed = changes_of_kind.objects
        return [changed.get(item.key, item) for item in items]

    def _undeclared(self, kind: type[Any]) -> LookupError:
        return LookupError(f"controller {self._controller} reads {kind.__name__}, which is not in its wakes or reads")


def _field_names(status: type[Any]) -> dict[str, str]:
    """Field names of a status by their wire names."""
    found = _NAMES.get(status)
    if found is None:
        found = _NAMES[status] = {field.encode_name: field.name for field in msgspec.structs.fields(status)}
    return found


_NAMES: dict[type[Any], dict[str, str]] = {}
