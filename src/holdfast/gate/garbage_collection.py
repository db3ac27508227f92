"""Garbage collection: dependents of deleted owners, foreground and orphan deletion, and terminating tenants.

A controller: it decides from its view and writes through the gate, which checks against current state that an owner is
really gone. It never deletes a mirror of another cell's object, and never a claim: only the authority releases
Reservations and Bindings, on proof. It never deletes work because its owner is missing: an Assignment that wants
replicas and a Replica that has not ended have lost their owner with the records of a cell, and are kept.

Its keys name an identity, `Kind/name/uid`, because dependents of a deleted object know only its uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from holdfast.controllers.controller import Wake
from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.kinds import ALL, BY_NAME, Home, Kind
from holdfast.model.lifecycle import final_phase
from holdfast.model.meta import Key, Object, OwnerReference
from holdfast.model.override import Override, is_deletion_confirmed
from holdfast.model.ownership import NEVER_COLLECTED, TENANT_CONTENTS
from holdfast.model.replica import Replica
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Delete, Outcome, Update, Write

# Pause before garbage collection continues with the next batch, or checks again for the last dependent.
GARBAGE_COLLECTION_RETRY_S = 1.0

FOREGROUND, ORPHAN, CONTENTS = "foregroundDeletion", "orphan", TENANT_CONTENTS
_OWN_FINALIZERS = frozenset({FOREGROUND, ORPHAN, CONTENTS})

# Deleted by their controller only: a region may enforce a Grant until it has acknowledged that nothing is left of it.
_DELETED_BY_CONTROLLER = frozenset({"Grant"})

# Not looked at: claims are released on proof; terms and lease pages are state of the cell; events expire.
_NEVER_COLLECTED = NEVER_COLLECTED - _DELETED_BY_CONTROLLER | {"Event"}

# Created and deleted by the thousand, and never an owner. A resync would find a dependent.
_NEVER_OWNERS = frozenset({"SchedulingRequest"})

# A tenant is emptied in this order, step by step: first what creates workloads, then workloads, so that regions drain
# them while their Assignments and Grants still exist. Kinds that are not named come last.
_GLOBAL_STEPS = (("CronWorkload",), ("Workload",), ("Assignment",), ("Quota",), ("Grant",))
# In a region, replicas are deleted with their Assignments, and grant-sync deletes its GrantCopies. Other leftovers are
# deleted once the mirror of the Tenant and its last replica are gone.
_REGION_WAITS_FOR = ("Replica",)


class Collector:
    """The decisions for the kinds of one cell. Stateless."""

    def __init__(self, cell: str) -> None:
        self.is_global = cell == "global"
        self._cell = cell
        other = Home.REGION if self.is_global else Home.GLOBAL
        self.own_kinds = tuple(k for k in ALL if k.home is not other and k.collected and k.name not in _NEVER_COLLECTED)
        """Kinds that may be deleted here."""
        copies = () if self.is_global else tuple(k for k in ALL if k.home is Home.GLOBAL and k.mirrored)
        self.watched_kinds = (*self.own_kinds, *copies)
        """Kinds that may own an object here."""
        self._own_kind_names = frozenset(k.name for k in self.own_kinds)
        self._leftovers = tuple(
            k
            for k in self.own_kinds
            if k.home is Home.REGION and k.namespaced and k.name not in (*_REGION_WAITS_FOR, "GrantCopy")
        )

    # Events

    def wake_for(self, kind: Kind) -> Wake:
        def wake(new: Any, old: Any, view: View) -> Iterable[Key]:
            item: Object = new if new is not None else old
            keys: list[Key] = []
            if new is None:
                # Its dependents lose their owner, and its owner may wait for this deletion. A dependent or a waiting
                # owner that appears later has its own event.
                owns = kind.name not in _NEVER_OWNERS and next(self._dependents(item.uid, view), None) is not None
                if owns or kind.name == "Tenant":
                    keys.append(_key(kind, item))
                keys += (
                    _owner_key(item, ref)
                    for ref in item.metadata.owner_references
                    if self._owner_is_ending(item, ref, view)
                )
            elif (old is None or _relevant_fields(new) != _relevant_fields(old)) and self._needs_collection(
                kind, new, view
            ):
                keys.append(_key(kind, new))
            return keys

        return wake

    def keys(self, view: View) -> Iterator[Key]:
        """Everything that needs the collector: terminating objects, and objects without an owner."""
        for kind in self.watched_kinds:
            for item in view.list(kind.type):
                if self._needs_collection(kind, item, view):
                    yield _key(kind, item)
        if not self.is_global:
            for namespace in self._tenants_gone(view):
                yield Key("", f"Tenant/{namespace}/")

    def _needs_collection(self, kind: Kind, item: Object, view: View) -> bool:
        meta = item.metadata
        if meta.terminating and not _OWN_FINALIZERS.isdisjoint(meta.finalizers):
            return kind.name in self._own_kind_names
        refs = meta.owner_references
        return bool(refs) and kind.name in self._own_kind_names and any(self._missing(item, ref, view) for ref in refs)

    # Decisions

    def decide(self, key: Key, view: View, now_s: float) -> Outcome:
        kind_name, name, uid = key.name.split("/")
        kind = BY_NAME[kind_name]
        item: Object | None = view.get(kind.type, name, key.namespace)
        writes: list[Write] = []
        if item is None and kind.name == "Tenant" and not self.is_global:
            return self._clear_leftovers(name, view)
        if item is None or item.uid != uid:
            writes += self._collect_dependents(uid, view, now_s)
            return _outcome(writes)
        meta = item.metadata
        if kind.name not in self._own_kind_names:
            return NO_CHANGES
        if meta.terminating and ORPHAN in meta.finalizers:
            return self._orphan(kind, item, view)
        if meta.terminating and FOREGROUND in meta.finalizers:
            return self._foreground(kind, item, view)
        if meta.terminating and kind.name == "Tenant" and CONTENTS in meta.finalizers:
            return self._empty_tenant(item, view)
        return _outcome(list(self._collect_dependent(kind, item, view, now_s)))

    def _dependents(self, uid: str, view: View) -> Iterator[tuple[Kind, Object]]:
        for kind in self.own_kinds:
            for item in view.by(kind.type, "owner", uid):
                yield kind, item

    def _collect_dependents(self, uid: str, view: View, now_s: float) -> Iterator[Write]:
        for kind, item in self._dependents(uid, view):
            yield from self._collect_dependent(kind, item, view, now_s)

    def _collect_dependent(self, kind: Kind, item: Object, view: View, now_s: float) -> Iterator[Write]:
        """Deletes the object if no owner is left; else removes references to deleted owners."""
        refs = item.metadata.owner_references
        left = tuple(ref for ref in refs if not self._missing(item, ref, view))
        if len(left) == len(refs) or item.metadata.terminating or kind.name in _DELETED_BY_CONTROLLER:
            return
        if not left and _is_work(item) and not self._is_confirmed(item, view, now_s):
            return
        if not left or all(self._waits_for_dependents(item, ref, view) for ref in left):
            yield Delete(kind.name, item.key, item.uid)
        else:
            yield Update(replace(item, metadata=replace(item.metadata, owner_references=left)))

    def _is_confirmed(self, item: Object, view: View, now_s: float) -> bool:
        """Whether an override confirms that this work without an owner is to be stopped."""
        spec = item.spec  # type: ignore[attr-defined]
        region = spec.region if isinstance(item, Assignment) else self._cell
        tenant, workload = item.metadata.namespace, spec.workload
        overrides = view.list(Override)
        return is_deletion_confirmed(overrides, region=region, tenant=tenant, workload=workload, now=now_s)

    def _missing(self, item: Object, ref: OwnerReference, view: View) -> bool:
        """Whether an owner is gone, by uid. Owners of unknown kinds are assumed to exist."""
        owner = self._owner(item, ref, view)
        return owner is None and ref.kind in BY_NAME and any(k.name == ref.kind for k in self.watched_kinds)

    def _owner(self, item: Object, ref: OwnerReference, view: View) -> Object | None:
        kind = BY_NAME.get(ref.kind)
        if kind is None:
            return None
        owner: Object | None = view.get(kind.type, ref.name, item.metadata.namespace if kind.namespaced else "")
        return owner if owner is not None and owner.uid == ref.uid else None

    def _owner_is_ending(self, item: Object, ref: OwnerReference, view: View) -> bool:
        """Whether an owner is terminating or already gone."""
        owner = self._owner(item, ref, view)
        return ref.kind in BY_NAME and (owner is None or owner.metadata.terminating)

    def _waits_for_dependents(self, item: Object, ref: OwnerReference, view: View) -> bool:
        owner = self._owner(item, ref, view)
        return owner is not None and owner.metadata.terminating and FOREGROUND in owner.metadata.finalizers

    def _foreground(self, kind: Kind, owner: Object, view: View) -> Outcome:
        """Deletes dependents first; the owner waits for those with blockOwnerDeletion."""
        found = list(self._dependents(owner.uid, view))
        writes: list[Write] = [
            Delete(
                k.name,
                item.key,
                item.uid,
                propagation="Foreground" if self._has_dependents(item, view) else "Background",
            )
            for k, item in found
            if not item.metadata.terminating and self._has_only_ending_owners(item, view)
        ]
        blocked = any(_blocks(item, owner.uid) for _, item in found)
        if not blocked and not writes:
            writes.append(_without_finalizer(owner, FOREGROUND))
        return _outcome(writes, again=blocked)

    def _has_only_ending_owners(self, item: Object, view: View) -> bool:
        return all(
            self._missing(item, ref, view) or self._waits_for_dependents(item, ref, view)
            for ref in item.metadata.owner_references
        )

    def _has_dependents(self, item: Object, view: View) -> bool:
        return next(self._dependents(item.uid, view), None) is not None

    def _orphan(self, kind: Kind, owner: Object, view: View) -> Outcome:
        """Removes the owner reference from dependents, then the finalizer from the owner."""
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
        in_steps = {name for step in _GLOBAL_STEPS for name in step}
        rest = tuple(k.name for k in self.own_kinds if k.namespaced and k.name not in in_steps)
        for step in (*_GLOBAL_STEPS, rest):
            held = [(name, item) for name in step for item in view.list(BY_NAME[name].type, namespace)]
            if held:
                return _outcome(_deletes(held), again=True)
        return _outcome([_without_finalizer(tenant, CONTENTS)])

    def _clear_leftovers(self, namespace: str, view: View) -> Outcome:
        """Deletes the remaining objects of a deleted tenant in a region, after its mirrored Tenant and last replica."""
        if any(view.list(BY_NAME[name].type, namespace) for name in _REGION_WAITS_FOR):
            return Outcome(requeue_after_s=GARBAGE_COLLECTION_RETRY_S)
        held = [(kind.name, item) for kind in self._leftovers for item in view.list(kind.type, namespace)]
        return _outcome(_deletes(held), again=True) if held else NO_CHANGES

    def _tenants_gone(self, view: View) -> Iterator[str]:
        """Namespaces that have objects here but no tenant."""
        held = (item.metadata.namespace for kind in self._leftovers for item in view.list(kind.type))
        for namespace in dict.fromkeys(held):
            if view.get(Tenant, namespace) is None:
                yield namespace


def _is_work(item: Object) -> bool:
    """Whether deleting the object stops work: its owner is deleted only after it has ended."""
    if isinstance(item, Assignment):
        return item.spec.replicas > 0
    return isinstance(item, Replica) and final_phase(item) is None


def _deletes(held: list[tuple[str, Object]]) -> list[Write]:
    return [
        Delete(name, item.key, item.uid)
        for name, item in held
        if not item.metadata.terminating and name not in _DELETED_BY_CONTROLLER
    ]


def _outcome(writes: list[Write], *, again: bool = False) -> Outcome:
    """At most one batch of writes; the rest follows soon."""
    more = len(writes) > limits.BATCH_WRITES_MAX
    return Outcome(
        writes=tuple(writes[: limits.BATCH_WRITES_MAX]),
        requeue_after_s=GARBAGE_COLLECTION_RETRY_S if again or more else None,
    )


def _blocks(item: Object, uid: str) -> bool:
    return any(ref.uid == uid and ref.block_owner_deletion for ref in item.metadata.owner_references)


def _without_finalizer(item: Object, finalizer: str) -> Update:
    left = tuple(f for f in item.metadata.finalizers if f != finalizer)
    return Update(replace(item, metadata=replace(item.metadata, finalizers=left)))


def _relevant_fields(item: Object) -> tuple[object, ...]:
    """The fields that can make an object relevant to the collector. Other changes, which are frequent, are ignored."""
    meta = item.metadata
    return meta.deletion_timestamp, meta.finalizers, meta.owner_references


def _key(kind: Kind, item: Object) -> Key:
    return Key(item.metadata.namespace, f"{kind.name}/{item.metadata.name}/{item.uid}")


def _owner_key(item: Object, ref: OwnerReference) -> Key:
    namespace = item.metadata.namespace if BY_NAME[ref.kind].namespaced else ""
    return Key(namespace, f"{ref.kind}/{ref.name}/{ref.uid}")
