"""volume: deletes the Volumes whose claim orders it, and removes their finalizer once the node has deleted the data.

Owns the deletion, the finalizer and the conditions of Volume. The authority creates Volumes.
- A Volume is deleted only on the order of the claim that it was made for, by uid. A missing claim is no order: the
  Volume is kept and says so (`ClaimMissing`).
- A Volume in use is not removed: its Binding must be gone first. The authority binds nothing to a terminating Volume.
- `Retain` keeps the Volume, and so its space and quota, until a person deletes it.
- A Volume whose node is gone has no data that anybody could delete: its finalizer is removed at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.binding import Binding
from holdfast.model.meta import Condition, Key, find_condition
from holdfast.model.node import Node
from holdfast.model.ownership import VOLUME_DATA_FINALIZER
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.volume import DataPhase, ReclaimPolicy, Volume, VolumeClaim, is_data_deletion_ordered
from holdfast.model.writes import NO_CHANGES, Delete, Outcome, SetStatus, Update

# Interval at which a deletion is checked again that waits for its user.
IN_USE_CHECK_EVERY_S = 5.0


def decide(key: Key, view: View, now: float) -> Outcome:
    volume = view.get(Volume, key.name, key.namespace)
    if volume is None:
        return NO_CHANGES
    if not volume.metadata.terminating:
        claim = view.get(VolumeClaim, volume.spec.claim, volume.metadata.namespace)
        if not is_data_deletion_ordered(claim, volume):
            return _claimed(volume, claim)
        if _has_replica(volume, view) or _is_used(volume, view):
            return Outcome(requeue_after_s=IN_USE_CHECK_EVERY_S)
        return Outcome(writes=(Delete("Volume", volume.key, volume.uid),))
    if VOLUME_DATA_FINALIZER not in volume.metadata.finalizers:
        return NO_CHANGES
    data = volume.status.data
    deleted = data is not None and data.phase is DataPhase.DELETED
    if not deleted and view.get(Node, volume.spec.node) is not None:
        return NO_CHANGES  # the agent deletes the data, and its report wakes this volume
    if _is_used(volume, view):
        return Outcome(requeue_after_s=IN_USE_CHECK_EVERY_S)
    rest = tuple(f for f in volume.metadata.finalizers if f != VOLUME_DATA_FINALIZER)
    meta = msgspec.structs.replace(volume.metadata, finalizers=rest)
    return Outcome(writes=(Update(msgspec.structs.replace(volume, metadata=meta)),))


def _claimed(volume: Volume, claim: VolumeClaim | None) -> Outcome:
    """The condition `Claimed` of a Volume with the policy Delete: False while its claim is missing."""
    made_for = claim is not None and claim.uid == volume.spec.claim_uid
    missing = volume.spec.reclaim_policy is ReclaimPolicy.DELETE and not made_for
    known = find_condition(volume.status.conditions, "Claimed")
    if missing == (known is not None and known.status == "False"):
        return NO_CHANGES
    condition = Condition(
        type="Claimed",
        status="False" if missing else "True",
        reason=Reason.VOLUME_CLAIM_MISSING if missing else Reason.VOLUME_CLAIM_FOUND,
        message=f"VolumeClaim {volume.spec.claim} with uid {volume.spec.claim_uid} is missing; the data is kept; "
        "next: delete the Volume if nobody needs the data"
        if missing
        else "",
    )
    return Outcome(writes=(SetStatus("Volume", volume.key, volume.uid, conditions=(condition,)),))


def _has_replica(volume: Volume, view: View) -> bool:
    return view.get(Replica, volume.spec.replica, volume.metadata.namespace) is not None


def _is_used(volume: Volume, view: View) -> bool:
    """Whether a Binding of its node uses it. A task may run until its Binding is gone."""
    bound: Iterable[Binding] = view.by(Binding, "node", volume.spec.node)
    return any(used.uid == volume.uid for binding in bound for used in binding.spec.volumes)


def keys(view: View) -> Iterable[Key]:
    return [volume.key for volume in view.list(Volume)]


def woken_by_volume(new: Volume | None, old: Volume | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None else ()


def woken_by_claim(new: VolumeClaim | None, old: VolumeClaim | None, view: View) -> Iterable[Key]:
    """The volumes of a claim that is new or gone, or that orders the deletion of its data."""
    if new is not None and old is not None and new.status.data_deletion == old.status.data_deletion:
        return ()
    item = new or old
    return [volume.key for volume in view.by(Volume, "claim", str(item.key))] if item is not None else ()


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """The volumes of a node that is gone."""
    if new is not None or old is None:
        return ()
    return [volume.key for volume in view.by(Volume, "node", old.metadata.name)]


def woken_by_binding(new: Binding | None, old: Binding | None, view: View) -> Iterable[Key]:
    """The volumes of a Binding that is gone."""
    if new is not None or old is None:
        return ()
    return [Key(old.metadata.namespace, used.name) for used in old.spec.volumes]
