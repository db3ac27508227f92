"""The Replica beside the Binding of a pod: for reads, and for watches, which follow the changes of both.

A change of a Replica is a change of the pod only if it changes what the pod shows. Events carry the revision of the
change that caused them, so that a client that resumes after its last event misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.binding import Binding
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.model.meta import Object
from holdfast.model.pod_view import Pod, pod_of
from holdfast.model.replica import Replica
from holdfast.store.objects import ObjectChange, Objects

_BINDING, _REPLICA = BY_NAME["Binding"], BY_NAME["Replica"]


class ViewJoin(msgspec.Struct, frozen=True):
    """`change` tells the view before and after a change of the stored kind or of `kind`."""

    kind: Kind
    change: Callable[[ObjectChange, Objects], tuple[Object | None, Object | None]]


def joined_pod(binding: Binding, objects: Objects) -> Pod:
    replica = objects.get(_REPLICA, binding.metadata.namespace, binding.spec.replica)
    return pod_of(binding, replica if isinstance(replica, Replica) else None)


def pod_change(change: ObjectChange, objects: Objects) -> tuple[Pod | None, Pod | None]:
    """The pod before and after a change of its Binding or its Replica. Both are None if the pod has not changed."""
    if change.kind is _BINDING:
        old, new = (_shown(joined_pod(item, objects), change) if item is not None else None for item in _both(change))
        return old, new
    before, after = _both(change)
    if before is None or after is None or _reported(before) == _reported(after):
        return None, None
    binding = objects.get(_BINDING, after.metadata.namespace, after.status.placement.binding)
    if not isinstance(binding, Binding):
        return None, None
    old, new = (_shown(pod_of(binding, replica), change) for replica in (before, after))
    return (old, new) if old != new else (None, None)


def _both(change: ObjectChange) -> tuple[Any, Any]:
    return change.old, change.new


def _reported(replica: Replica) -> tuple[Any, ...]:
    """The blocks of a Replica that its pod shows."""
    return replica.status.execution, replica.status.contact


def _shown(pod: Pod, change: ObjectChange) -> Pod:
    meta = msgspec.structs.replace(pod.metadata, resource_version=str(change.revision))
    return msgspec.structs.replace(pod, metadata=meta)


POD_JOIN = ViewJoin(_REPLICA, pod_change)
