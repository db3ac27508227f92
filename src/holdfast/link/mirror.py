"""Read-only copies of global objects in a region. Only the link writes them, and keeps them equal to the originals.

A missing original is not an order to stop its work: see `deletion_orders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.controllers.controller import ControllerView
from holdfast.fleet import post_restore
from holdfast.link import break_glass, deletion_orders
from holdfast.link.override_expiry import OverrideTiming
from holdfast.model.assignment import Assignment
from holdfast.model.fencing_token import SOURCE_REVISION_ANNOTATION
from holdfast.model.kinds import ALL, BY_NAME, kind_of
from holdfast.model.lifecycle import final_phase
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.override import Override, OverrideKind
from holdfast.model.ownership import VOLUME_CLAIM_FINALIZER
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.tenant import Tenant
from holdfast.model.trace_ids import kept_context
from holdfast.model.view import View
from holdfast.model.volume import VolumeClaim
from holdfast.model.writes import Create, Delete, Update, Write

MIRRORED_KINDS: tuple[type[Any], ...] = tuple(
    kind.type for kind in sorted((kind for kind in ALL if kind.mirrored), key=lambda kind: kind.namespaced)
)
"""Kinds of the global cell, namespaced ones last: the gate refuses objects of an unknown tenant."""
STATUS_MIRRORED_KINDS = frozenset({Override, VolumeClaim})
"""Kinds whose status is copied too, because the region reads it."""
_WITH_WORK = frozenset({Assignment, Tenant})
"""Kinds whose copies are deleted only when no work depends on them."""

MirrorKey = tuple[type[Any], Key]


def _unchanged(original: Override, copy: Override | None) -> Override | None:
    return original


MayRemove = Callable[[Assignment, View], bool]
"""Whether the removal of this copy's workload may be carried out now (`deletion_orders.RemovalGuard`)."""


def _always(copy: Assignment, copies: View) -> bool:
    return True


def mirror_writes(
    key: MirrorKey,
    originals: View,
    copies: View,
    now: float,
    *,
    region: str = "",
    timed: OverrideTiming = _unchanged,
    may_remove: MayRemove = _always,
) -> Iterable[Write]:
    """The writes that make the copy equal to the original. `timed` converts an override's expiry to this region's clock
    (`override_expiry`). A break-glass override of this region is not a copy (`break_glass`).

    Until every region has acknowledged a restore of the global cell, an Assignment only shrinks here, because added
    work may still run in another region (`fleet.post_restore`).
    """
    kind, name = key
    source: Any = originals.get(kind, name.name, name.namespace)
    copy: Any = copies.get(kind, name.name, name.namespace)
    if isinstance(source, VolumeClaim) and _is_done(source):
        source = None
    if kind is Override and break_glass.is_local_break_glass(name.name, region):
        return break_glass.revocation_writes(source, copy)
    if kind is Override and source is not None:
        source = timed(source, copy if copy is not None and copy.uid == source.uid else None)
        if source is None:
            return ()
    if copy is not None and (source is None or copy.uid != source.uid):
        if kind in _WITH_WORK:
            return deletion_orders.removal_writes(copy, copies, region, now)
        return (Delete(kind_of(kind).name, name, copy.uid),)  # the event of the deletion creates the new copy
    if source is None:
        return ()
    wanted = copy_of(source)
    if kind is Region and name.name == region and copy is not None:
        wanted = msgspec.structs.replace(wanted, status=copy.status)  # the link's own condition, see `held_work`
    awaits_restore = kind is Assignment and _awaits_restore(source, originals, now)
    if copy is None:
        return () if awaits_restore else (Create(wanted),)
    if kind is Assignment and not deletion_orders.is_confirmed(copy, copies, region, now):
        removes = deletion_orders.removes_work(copy.spec, source.spec)
        if deletion_orders.is_older(source, copy) or (removes and not may_remove(copy, copies)):
            return ()  # held: see `deletion_orders`
    if awaits_restore:
        spec = post_restore.without_additions(copy.spec, wanted.spec)
        return () if spec is copy.spec else (Update(msgspec.structs.replace(copy, spec=spec)),)
    if _is_current(copy, wanted):
        return ()
    meta = msgspec.structs.replace(wanted.metadata, resource_version=copy.metadata.resource_version)
    return (Update(msgspec.structs.replace(wanted, metadata=meta)),)


def _is_done(claim: VolumeClaim) -> bool:
    """Whether only finalizers of others keep a deleted claim. Its copies go, or a tenant that keeps many such claims
    would fill every region's report of deleted data (`link.report`)."""
    return bool(claim.metadata.deletion_timestamp) and VOLUME_CLAIM_FINALIZER not in claim.metadata.finalizers


def _awaits_restore(source: Assignment, originals: View, now: float) -> bool:
    """Whether other regions must acknowledge a restore first. Each kind has its own watch, so a restored Assignment may
    arrive before the Regions of the same restore."""
    known = max((region.status.restore_incarnation for region in originals.list(Region)), default=0)
    return post_restore.incarnation_of_epoch(source.spec.epoch) > known or bool(
        post_restore.regions_not_restored(originals, now)
    )


def copy_of(source: Any) -> Any:
    """The copy of an object: identity, labels and spec. Finalizers and owners apply only in the global cell."""
    meta = source.metadata
    kept = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        generation=meta.generation,
        creation_timestamp=meta.creation_timestamp,
        labels=meta.labels,
    )
    if isinstance(source, Assignment):
        # Not compared by `_is_current`: it is the revision at which the spec was copied (`model.fencing_token`).
        annotations = {SOURCE_REVISION_ANNOTATION: str(source.revision), **kept_context(source)}
        kept = msgspec.structs.replace(kept, annotations=annotations)
    if type(source) in STATUS_MIRRORED_KINDS or not hasattr(source, "status"):
        return msgspec.structs.replace(source, metadata=kept)
    empty = type(source.status)()
    return msgspec.structs.replace(source, metadata=kept, status=empty)


def _is_current(copy: Any, wanted: Any) -> bool:
    """Whether the copy equals the original."""
    held, meta = copy.metadata, wanted.metadata
    if held.generation != meta.generation or held.labels != meta.labels:
        return False
    return all(getattr(copy, name) == getattr(wanted, name) for name in wanted.__struct_fields__ if name != "metadata")


def queue_key(kind: type[Any], name: Key) -> Key:
    """`Kind/namespace/name`. All keys are in one namespace, so that the queue keeps the order of `keys`: Tenants first,
    because the gate refuses objects of an unknown tenant."""
    return Key("", f"{kind_of(kind).name}/{name.namespace}/{name.name}")


def mirror_key(key: Key) -> MirrorKey:
    kind, namespace, name = key.name.split("/", 2)
    return BY_NAME[kind].type, Key(namespace, name)


def keys(view: ControllerView) -> Iterable[Key]:
    """Keys of all objects on both sides."""
    return [
        queue_key(kind, item.key) for kind in MIRRORED_KINDS for side in (view.peer, view) for item in side.list(kind)
    ]


def woken_by_any(new: Any, old: Any, view: View) -> Iterable[Key]:
    item = new if new is not None else old
    return (queue_key(type(item), item.key),)


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    """Wakes the Override, and if it confirms deletions every Assignment that may be held."""
    found = list(woken_by_any(new, old, view))
    item = new if new is not None else old
    if item is not None and item.spec.kind is OverrideKind.CONFIRM_DELETION:
        found += (queue_key(Assignment, a.key) for a in view.list(Assignment))
    return found


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Wakes the Assignment and the Tenant of a deleted or finished replica, if their copies wait for the last one."""
    item = new if new is not None else old
    if item is None or (new is not None and final_phase(new) is None):
        return ()
    copy = view.get(Assignment, item.spec.assignment, item.metadata.namespace)
    if copy is not None and copy.spec.replicas:
        return ()
    key = Key(item.metadata.namespace, item.spec.assignment)
    return (queue_key(Assignment, key), queue_key(Tenant, Key("", item.metadata.namespace)))


def woken_by_original(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    """Wakes the Assignment, except for a change of its status, which is not copied."""
    if new is not None and old is not None and new.uid == old.uid:
        was, meta = old.metadata, new.metadata
        if (was.generation, was.labels, was.terminating) == (meta.generation, meta.labels, meta.terminating):
            return ()
    return woken_by_any(new, old, view)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    """Wakes the Assignment, and at its end its Tenant, whose copy stays while it has one. A new copy is the link's."""
    if old is None:
        return ()
    found = list(woken_by_any(new, old, view))
    if new is None and old is not None:
        found.append(queue_key(Tenant, Key("", old.metadata.namespace)))
    return found


def woken_by_region(new: Region | None, old: Region | None, view: ControllerView) -> Iterable[Key]:
    """Wakes the Region, and until it acknowledges a restore every Assignment: the acknowledgement allows additions."""
    found = list(woken_by_any(new, old, view))
    if new is not None and old is not None and not post_restore.has_acknowledged_restore(old):
        found += (queue_key(Assignment, a.key) for a in view.peer.list(Assignment))
    return found
