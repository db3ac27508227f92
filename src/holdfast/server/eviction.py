"""Evictions: `POST /api/v1/namespaces/{namespace}/pods/{name}/eviction` and `kubectl delete pod`.

If an operator has cordoned the node, as `kubectl drain` does first, an eviction requests a drain of the node: it sets
`spec.drain` of the Node, and the release controller then releases its replicas as their disruption budgets allow.
Otherwise the pod's Replica is deleted, within the same budget: it is released, and a new one is placed. A replica whose
budget blocks it gets 429 with the reason. Once the replica has left, its pod is gone and the response is 404.

The budget is checked and the Replica deleted under one lock per API server, so evictions through one server never
exceed it together. A forced deletion skips the budget, never the proof that the task has stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.errors import Conflict, NotFound, Overloaded
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key
from holdfast.model.node import Node
from holdfast.model.principal import OPERATORS
from holdfast.model.replica import Replica
from holdfast.model.workload import WorkloadType
from holdfast.model.writes import Delete, Update
from holdfast.scheduling.disruption_budget import blocked_reason_among, disruption_share
from holdfast.server import status
from holdfast.server.read import require_object
from holdfast.server.request import Request, Response
from holdfast.server.request_bodies import decode_object_body
from holdfast.server.write import WRITE_ATTEMPTS

if TYPE_CHECKING:
    from holdfast.server.app import Application

_NODE, _REPLICA, _ASSIGNMENT = BY_NAME["Node"], BY_NAME["Replica"], BY_NAME["Assignment"]
NO_RETRY_AFTER_S = 0.0
"""No Retry-After: Kubernetes clients would retry ten times within one request and exceed their own deadline."""


async def evict(app: Application, request: Request) -> Response:
    binding = require_object(app, request)
    assert isinstance(binding, Binding)  # pods are stored as Bindings
    body: dict[str, Any] = decode_object_body(request.content_type, await request.body())
    expected_uid = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid", "")
    if expected_uid and expected_uid != binding.uid:
        raise Conflict(f"pod {request.target.name}: wrong uid (expected {expected_uid}, found {binding.uid})")
    dry = bool((body.get("deleteOptions") or {}).get("dryRun") or request.query.get("dryRun"))
    node = app.objects.get(_NODE, "", binding.spec.node)
    if OPERATORS in request.principal.groups and isinstance(node, Node) and node.spec.unschedulable:
        if not dry:
            await _set_drain(app, request, binding.spec.node)
        _require_budget(app, binding, share_requested=True)
        return _accepted()
    await _delete_replica(app, request, binding, forced=False, dry_run=dry)
    return _accepted()


async def delete_pod(app: Application, request: Request, binding: Binding, *, forced: bool, dry_run: bool) -> None:
    """`kubectl delete pod`. The disruption budget applies unless the caller forces it."""
    await _delete_replica(app, request, binding, forced=forced, dry_run=dry_run)


def _require_budget(app: Application, binding: Binding, *, share_requested: bool) -> None:
    """`share_requested`: the eviction is part of a drain, for which the region requests a share of the budget."""
    why = _blocked_reason(app, binding, share_requested)
    if why:
        message = f"Cannot evict pod as it would violate the pod's disruption budget: {why}"
        raise Overloaded(message, retry_after_s=NO_RETRY_AFTER_S)


async def _delete_replica(app: Application, request: Request, binding: Binding, *, forced: bool, dry_run: bool) -> None:
    namespace, name = binding.metadata.namespace, binding.spec.replica
    async with app.eviction_lock:
        replica = app.objects.get(_REPLICA, namespace, name)
        if not isinstance(replica, Replica) or replica.status.placement.binding != binding.metadata.name:
            raise NotFound(f"pod {binding.metadata.name}: its replica {namespace}/{name} has left the node")
        if replica.metadata.terminating:
            return
        if not forced:
            _require_budget(app, binding, share_requested=False)
            leaving = _leaving_siblings(app, replica)
            if leaving:
                message = f"Cannot evict pod as it would violate the pod's disruption budget: {leaving}"
                raise Overloaded(message, retry_after_s=NO_RETRY_AFTER_S)
        write = Delete(_REPLICA.name, Key(namespace, name), replica.uid)
        what = f"{request.id} {request.method} {request.path[:200]}"
        await app.gate.commit(request.principal, [write], dry_run=dry_run, request=what, warnings=request.warnings)


def _leaving_siblings(app: Application, replica: Replica) -> str:
    """Why replicas that are being deleted use up the budget; empty if they do not."""
    namespace = replica.metadata.namespace
    if replica.spec.type is not WorkloadType.SERVICE:
        return ""
    found = app.objects.list(_REPLICA, namespace, fields={"workload": f"{namespace}/{replica.spec.workload}"})[0]
    leaving = [one.metadata.name for one in found if one.metadata.terminating]
    assignment = app.objects.get(_ASSIGNMENT, namespace, replica.spec.assignment)
    allowed = disruption_share(replica, cast("Assignment | None", assignment))
    if not leaving or len(leaving) < allowed:
        return ""
    return f"{len(leaving)} replicas are being deleted (allowed {allowed}): {', '.join(sorted(leaving)[:3])}"


def _blocked_reason(app: Application, binding: Binding, share_requested: bool) -> str:
    namespace, name = binding.metadata.namespace, binding.spec.replica
    replica = app.objects.get(_REPLICA, namespace, name)
    if not isinstance(replica, Replica) or replica.status.placement.binding != binding.metadata.name:
        return ""
    assignment = app.objects.get(_ASSIGNMENT, namespace, replica.spec.assignment)
    siblings = app.objects.list(_REPLICA, namespace, fields={"workload": f"{namespace}/{replica.spec.workload}"})[0]
    why = blocked_reason_among(
        replica, cast("Assignment | None", assignment), cast("list[Replica]", siblings), share_requested=share_requested
    )
    return f"{namespace}/{name}: {why}" if why else ""


async def _set_drain(app: Application, request: Request, name: str) -> None:
    """Sets `spec.drain` of the node. The evictions of one drain arrive together, and the first one sets it."""
    for attempt in range(WRITE_ATTEMPTS):
        node = app.objects.get(_NODE, "", name)
        if not isinstance(node, Node):
            raise NotFound(f"node {name} of pod {request.target.name}: not found")
        if node.spec.drain:
            return
        spec = msgspec.structs.replace(node.spec, drain=True, unschedulable=True)
        what = f"{request.id} POST {request.path[:200]}"
        write = Update(msgspec.structs.replace(node, spec=spec))
        try:
            await app.gate.commit(request.principal, [write], request=what, warnings=request.warnings)
        except Conflict:
            if attempt == WRITE_ATTEMPTS - 1:
                raise


def _accepted() -> Response:
    success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return Response(status.encode(success), 201)
