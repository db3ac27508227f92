"""Pods of work that has ended, read by name. Their Bindings are gone; the Replica remembers the node that has the logs.

`kubectl get pods` lists only claims that exist. A pod that has ended can be read by its name (REPLICA.ATTEMPT) as long
as its Replica exists and was not placed again, which is what `kubectl logs` of finished batch work needs.
"""

from __future__ import annotations

from holdfast.model.binding import Binding, BindingSpec, BindingStatus, Intent
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.replica import Replica
from holdfast.store.objects import Objects

_REPLICA = BY_NAME["Replica"]


def find_ended_pod(objects: Objects, namespace: str, name: str) -> Object | None:
    """The Binding of the last attempt, as far as the Replica knows it."""
    owner, _, attempt = name.rpartition(".")
    if not owner or not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
        return None
    replica = objects.get(_REPLICA, namespace, owner)
    if not isinstance(replica, Replica):
        return None
    placement, execution = replica.status.placement, replica.status.execution
    if not placement.last_node or int(attempt) != placement.attempt - 1:
        return None
    ended = execution if execution is not None and execution.attempt == int(attempt) else None
    return Binding(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"{replica.metadata.uid}.{attempt}",
            resource_version=replica.metadata.resource_version,
            creation_timestamp=replica.metadata.creation_timestamp,
        ),
        spec=BindingSpec(
            replica=owner,
            intent=Intent(replica.metadata.uid, template_hash="", attempt=int(attempt)),
            node=placement.last_node,
            template=replica.spec.template,
            workload=replica.spec.workload,
            revision=replica.spec.revision,
        ),
        status=BindingStatus(
            phase=ended.phase if ended is not None else None,
            last_exit=ended.last_exit if ended is not None else None,
            acknowledged_at=placement.released_at,
        ),
    )
