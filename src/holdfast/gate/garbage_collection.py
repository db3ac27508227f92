"""Garbage collection: dependents of owners that are gone, foreground and orphan deletion, and tenants that go.

A controller like any other: it decides from its view and writes through the gate, which checks against current state
that an owner is really gone. It never deletes a copy of another cell's object, and never a claim: Reservations and
Bindings are freed by the authority alone, on proof.

Its keys name an identity: `Kind/name/uid`, since whoever depended on an object that was deleted knows only its uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from holdfast.controllers.controller import Wake
from holdfast.model import limits
from holdfast.model.kinds import ALL, BY_NAME, Home, Kind
from holdfast.model.meta import Key, Object, OwnerReference
from holdfast.model.ownership import TENANT_CONTENTS
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Delete, Outcome, Update, Write

FOREGROUND, ORPHAN, CONTENTS = "foregroundDeletion", "orphan", TENANT_CONTENTS
_MINE = frozenset({FOREGROUND, ORPHAN, CONTENTS})

# Never collected: claims are freed on proof; terms and lease pages are the cell's own memory; events expire.
_KEPT = frozenset({"Reservation", "Binding", "LeasePage", "Term", "Event"})

# Queue items come and go by the thousand, and nothing is ever made to depend on one; a resync would find it if it were.
_BARREN = frozenset({"SchedulingRequest"})

# A tenant is emptied in this order, one step after the other: work first, so that regions drain it while their
# assignments and grants still stand; what is not named comes last.
_GLOBAL_STEPS = (("Workload",), ("Assignment",), ("Quota",), ("Grant",))
# In a region the work goes with its assignments, and grant-sync takes its copies away; only what else is left behind is
# cleared, once the tenant's copy and its last replica are gone.
_REGION_WAITS = ("Replica",)


class Collector:
    """The decisions, for the kinds a cell has. Holds no state."""

    def __init__(self, cell: str) -> None:
        self.is_global = cell == "global"
        other = Home.REGION if self.is_global else Home.GLOBAL
        self.mine = tuple(k for k in ALL if k.home is not other and k.name not in _KEPT)
        """What may be deleted here."""
        copies = () if self.is_global else tuple(k for k in ALL if k.home is Home.GLOBAL and k.mirrored)
        self.seen = (*self.mine, *copies)
        """What may own something here."""
        self._mine_names = frozenset(k.name for k in self.mine)
        self._leftovers = tuple(
            k
            for k in self.mine
            if k.home is Home.REGION and k.namespaced and k.name not in (*_REGION_WAITS, "GrantCopy")
        )

    # Waking

    def wake_for(self, kind: Kind) -> Wake:
        def wake(new: Any, old: Any, view: View) -> Iterable[Key]:
            item: Object = new if new is not None else old
            keys: list[Key] = []
            if new is None:
                # Its dependents lose their owner, and its owner may wait for it. Whoever comes to depend on it, or
                # begins to wait, later than this wakes by itself.
                owns = kind.name not in _BARREN and next(self._dependents(item.uid, view), None) is not None
                if owns or kind.name == "Tenant":
                    keys.append(_key(kind, item))
                keys += (
                    _owner_key(item, ref) for ref in item.metadata.owner_references if self._waits(item, ref, view)
                )
            elif (old is None or _ties(new) != _ties(old)) and self._worth_a_look(kind, new, view):
                keys.append(_key(kind, new))
            return keys

        return wake

    def keys(self, view: View) -> Iterator[Key]:
        """Everything that waits for the collector: what is going, and what lost its owner."""
        for kind in self.seen:
            for item in view.list(kind.type):
                if self._worth_a_look(kind, item, view):
                    yield _key(kind, item)
        if not self.is_global:
            for namespace in self._tenants_gone(view):
                yield Key("", f"Tenant/{namespace}/")

    def _worth_a_look(self, kind: Kind, item: Object, view: View) -> bool:
        meta = item.metadata
        if meta.terminating and not _MINE.isdisjoint(meta.finalizers):
            return kind.name in self._mine_names
        refs = meta.owner_references
        return bool(refs) and kind.name in self._mine_names and any(self._missing(item, ref, view) for ref in refs)

    # Deciding

    def decide(self, key: Key, view: View, now_s: float) -> Outcome:
        kind_name, name, uid = key.name.split("/")
        kind = BY_NAME[kind_name]
        item: Object | None = view.get(kind.type, name, key.namespace)
        writes: list[Write] = []
        if item is None and kind.name == "Tenant" and not self.is_global:
            return self._clear_leftovers(name, view)
        if item is None or item.uid != uid:
            writes += self._of_gone_owner(uid, view)
            return _outcome(writes)
        meta = item.metadata
        if kind.name not in self._mine_names:
            return NO_CHANGES
        if meta.terminating and ORPHAN in meta.finalizers:
            return self._orphan(kind, item, view)
        if meta.terminating and FOREGROUND in meta.finalizers:
            return self._foreground(kind, item, view)
        if meta.terminating and kind.name == "Tenant" and CONTENTS in meta.finalizers:
            return self._empty_tenant(item, view)
        return _outcome(list(self._as_dependent(kind, item, view)))

    def _dependents(self, uid: str, view: View) -> Iterator[tuple[Kind, Object]]:
        for kind in self.mine:
            for item in view.by(kind.type, "owner", uid):
                yield kind, item

    def _of_gone_owner(self, uid: str, view: View) -> Iterator[Write]:
        for kind, item in self._dependents(uid, view):
            yield from self._as_dependent(kind, item, view)

    def _as_dependent(self, kind: Kind, item: Object, view: View) -> Iterator[Write]:
        """Deleted when no owner is left; else it forgets the owners that are gone."""
        refs = item.metadata.owner_references
        left = tuple(ref for ref in refs if not self._missing(item, ref, view))
        if len(left) == len(refs) or item.metadata.terminating:
            return
        if not left or all(self._waits_for_dependents(item, ref, view) for ref in left):
            yield Delete(kind.name, item.key, item.uid)
        else:
            yield Update(replace(item, metadata=replace(item.metadata, owner_references=left)))

    def _missing(self, item: Object, ref: OwnerReference, view: View) -> bool:
        """Whether an owner is gone, by uid. Kinds of other systems are not ours to judge."""
        owner = self._owner(item, ref, view)
        return owner is None and ref.kind in BY_NAME and any(k.name == ref.kind for k in self.seen)

    def _owner(self, item: Object, ref: OwnerReference, view: View) -> Object | None:
        kind = BY_NAME.get(ref.kind)
        if kind is None:
            return None
        owner: Object | None = view.get(kind.type, ref.name, item.metadata.namespace if kind.namespaced else "")
        return owner if owner is not None and owner.uid == ref.uid else None

    def _waits(self, item: Object, ref: OwnerReference, view: View) -> bool:
        """Whether an owner is going, or gone already."""
        owner = self._owner(item, ref, view)
        return ref.kind in BY_NAME and (owner is None or owner.metadata.terminating)

    def _waits_for_dependents(self, item: Object, ref: OwnerReference, view: View) -> bool:
        owner = self._owner(item, ref, view)
        return owner is not None and owner.metadata.terminating and FOREGROUND in owner.metadata.finalizers

    def _foreground(self, kind: Kind, owner: Object, view: View) -> Outcome:
        """Dependents first; the owner waits for those that say they block it."""
        found = list(self._dependents(owner.uid, view))
        writes: list[Write] = [
            Delete(
                k.name,
                item.key,
                item.uid,
                propagation="Foreground" if self._has_dependents(item, view) else "Background",
            )
            for k, item in found
            if not item.metadata.terminating and self._only_owned_by_going(item, view)
        ]
        blocked = any(_blocks(item, owner.uid) for _, item in found)
        if not blocked and not writes:
            writes.append(_without_finalizer(owner, FOREGROUND))
        return _outcome(writes, again=blocked)

    def _only_owned_by_going(self, item: Object, view: View) -> bool:
        return all(
            self._missing(item, ref, view) or self._waits_for_dependents(item, ref, view)
            for ref in item.metadata.owner_references
        )

    def _has_dependents(self, item: Object, view: View) -> bool:
        return next(self._dependents(item.uid, view), None) is not None

    def _orphan(self, kind: Kind, owner: Object, view: View) -> Outcome:
        """Dependents stay and forget their owner; then the owner may go."""
        writes: list[Write] = []
        for _, item in self._dependents(owner.uid, view):
            left = tuple(ref for ref in item.metadata.owner_references if ref.uid != owner.uid)
            writes.append(Update(replace(item, metadata=replace(item.metadata, owner_references=left))))
        if writes:
            return _outcome(writes, again=True)
        return _outcome([_without_finalizer(owner, ORPHAN)])

    # Tenants

    def _empty_tenant(self, tenant: Object, view: View) -> Outcome:
        namespace = tenant.metadata.name
        named = {name for step in _GLOBAL_STEPS for name in step}
        rest = tuple(k.name for k in self.mine if k.namespaced and k.name not in named)
        for step in (*_GLOBAL_STEPS, rest):
            held = [(name, item) for name in step for item in view.list(BY_NAME[name].type, namespace)]
            if held:
                return _outcome(_deletes(held), again=True)
        return _outcome([_without_finalizer(tenant, CONTENTS)])

    def _clear_leftovers(self, namespace: str, view: View) -> Outcome:
        """What a tenant leaves in a region once its copy here and the last of its replicas are gone."""
        if any(view.list(BY_NAME[name].type, namespace) for name in _REGION_WAITS):
            return Outcome(requeue_after_s=limits.GARBAGE_COLLECTION_RETRY_S)
        held = [(kind.name, item) for kind in self._leftovers for item in view.list(kind.type, namespace)]
        return _outcome(_deletes(held), again=True) if held else NO_CHANGES

    def _tenants_gone(self, view: View) -> Iterator[str]:
        """Namespaces that still hold something here and have no tenant."""
        held = (item.metadata.namespace for kind in self._leftovers for item in view.list(kind.type))
        for namespace in dict.fromkeys(held):
            if view.get(Tenant, namespace) is None:
                yield namespace


def _deletes(held: list[tuple[str, Object]]) -> list[Write]:
    return [Delete(name, item.key, item.uid) for name, item in held if not item.metadata.terminating]


def _outcome(writes: list[Write], *, again: bool = False) -> Outcome:
    """At most one batch at a time; what is left follows soon."""
    more = len(writes) > limits.BATCH_WRITES_MAX
    return Outcome(
        writes=tuple(writes[: limits.BATCH_WRITES_MAX]), requeue_after_s=limits.GARBAGE_COLLECTION_RETRY_S if again or more else None
    )  # fmt: skip


def _blocks(item: Object, uid: str) -> bool:
    return any(ref.uid == uid and ref.block_owner_deletion for ref in item.metadata.owner_references)


def _without_finalizer(item: Object, finalizer: str) -> Update:
    left = tuple(f for f in item.metadata.finalizers if f != finalizer)
    return Update(replace(item, metadata=replace(item.metadata, finalizers=left)))


def _ties(item: Object) -> tuple[object, ...]:
    """What of an object can make it the collector's: all else of it changes often, and concerns nobody here."""
    meta = item.metadata
    return meta.deletion_timestamp, meta.finalizers, meta.owner_references


def _key(kind: Kind, item: Object) -> Key:
    return Key(item.metadata.namespace, f"{kind.name}/{item.metadata.name}/{item.uid}")


def _owner_key(item: Object, ref: OwnerReference) -> Key:
    namespace = item.metadata.namespace if BY_NAME[ref.kind].namespaced else ""
    return Key(namespace, f"{ref.kind}/{ref.name}/{ref.uid}")
