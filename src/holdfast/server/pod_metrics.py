"""`metrics.k8s.io/v1beta1`, for `kubectl top`: current use of pods and nodes, measured by the agents on request.

CPU is the use within the agents' short window, memory that of the moment; `timestamp` and `window` say so. The use of a
node is that of its tasks, not of other processes on it. A node whose agent does not answer is left out, as
metrics-server does. The global cell asks the regions (`fleet_metrics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.gate.scope import GLOBAL_CELL
from holdfast.model.agent_rpc import AgentCall, AgentCallArguments, AgentCallKind, UsageRow
from holdfast.model.binding import Binding
from holdfast.model.errors import Fault, Forbidden
from holdfast.model.kinds import BY_NAME
from holdfast.model.pod_view import pod_of
from holdfast.model.task_programs import MAIN_PROGRAM
from holdfast.model.times import micro_text
from holdfast.server import agent_rpc_hub, fleet_metrics, status
from holdfast.server.request import Request, Response, json_response
from holdfast.server.resources import CORE_NODE, POD
from holdfast.server.selectors import parse

if TYPE_CHECKING:
    from holdfast.server.app import Application

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
# Age of a measurement that is returned again. Repeated calls cost the agents nothing within it.
USAGE_FRESH_S = 10.0
# Agents asked at the same time for one request.
USAGE_CALLS_AT_ONCE = 32
# Time for one agent to answer. After that, its node is left out.
USAGE_TIMEOUT_S = 5.0
WINDOW = "500ms"
"""The agents' measuring window (`agent.rpc_server`)."""

RESOURCES = (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True))
_BINDING, _NODE = BY_NAME["Binding"], BY_NAME["Node"]
_row_decoder = msgspec.json.Decoder(UsageRow)


class UsageSample(msgspec.Struct, frozen=True):
    at_s: float
    rows: tuple[UsageRow, ...]


class UsageSamples:
    """The newest measurement per node. Bounded by the nodes of the region: others are dropped when one is added."""

    def __init__(self) -> None:
        self._samples: dict[str, UsageSample] = {}
        self._asking = asyncio.Semaphore(USAGE_CALLS_AT_ONCE)

    async def of(self, app: Application, nodes: Iterable[str]) -> dict[str, UsageSample]:
        wanted = sorted(set(nodes))
        await asyncio.gather(*(self._refresh(app, node) for node in wanted))
        return {node: self._samples[node] for node in wanted if self._is_fresh(app, node)}

    def _is_fresh(self, app: Application, node: str) -> bool:
        known = self._samples.get(node)
        return known is not None and app.ports.clock.now() - known.at_s < USAGE_FRESH_S

    async def _refresh(self, app: Application, node: str) -> None:
        async with self._asking:
            if self._is_fresh(app, node) or node not in app.agent_rpc.agents:
                return
            call = AgentCall(id="", arguments=AgentCallArguments(kind=AgentCallKind.USAGE))
            chunks = b""
            try:
                async with asyncio.timeout(USAGE_TIMEOUT_S):
                    async for chunk in agent_rpc_hub.send_call(app, node, call):
                        chunks += chunk
                rows = tuple(_row_decoder.decode(line) for line in chunks.splitlines() if line.strip())
            except (Fault, TimeoutError, msgspec.MsgspecError):
                return
            self._samples[node] = UsageSample(app.ports.clock.now(), rows)
            for gone in [name for name in self._samples if name not in app.agent_rpc.agents]:
                del self._samples[gone]


async def nodes(app: Application, request: Request) -> Response:
    """`/apis/metrics.k8s.io/v1beta1/nodes` and `…/nodes/{name}`"""
    name = request.target.parameters.get("name", "")
    _require(app, request, "nodes", "", name)
    if app.cell == GLOBAL_CELL:
        return _respond("NodeMetrics", await fleet_metrics.items(app, request), name)
    wanted = parse(CORE_NODE, request.query.get("labelSelector", ""), "")
    found, _ = app.objects.list(_NODE, "")
    kept = [node for node in found if (not name or node.metadata.name == name) and wanted.matches(node)]
    usage = await app.usage.of(app, (node.metadata.name for node in kept))
    items = [
        {
            "metadata": _metadata(node.metadata.name, "", node.metadata.creation_timestamp, node.metadata.labels),
            **_measured(usage[node.metadata.name]),
            "usage": _amounts(usage[node.metadata.name].rows),
        }
        for node in kept
        if node.metadata.name in usage
    ]
    return _respond("NodeMetrics", items, name)


async def pods(app: Application, request: Request) -> Response:
    """`/apis/metrics.k8s.io/v1beta1/[namespaces/{namespace}/]pods[/{name}]`"""
    parameters = request.target.parameters
    namespace, name = parameters.get("namespace", ""), parameters.get("name", "")
    _require(app, request, "pods", namespace, name)
    if app.cell == GLOBAL_CELL:
        return _respond("PodMetrics", await fleet_metrics.items(app, request), name)
    wanted = parse(POD, request.query.get("labelSelector", ""), "")
    found, _ = app.objects.list(_BINDING, namespace)
    kept = [
        binding
        for binding in found
        if isinstance(binding, Binding)
        and (not name or binding.metadata.name == name)
        and wanted.matches(pod_of(binding))
    ]
    usage = await app.usage.of(app, (binding.spec.node for binding in kept))
    by_replica = {(row.namespace, row.replica, node): row for node, one in usage.items() for row in one.rows}
    items = []
    for binding in kept:
        meta, node = binding.metadata, binding.spec.node
        row = by_replica.get((meta.namespace, binding.spec.replica, node))
        if row is not None:
            items.append(
                {
                    "metadata": _metadata(
                        meta.name, meta.namespace, meta.creation_timestamp, pod_of(binding).metadata.labels
                    ),
                    **_measured(usage[node]),
                    "containers": [{"name": MAIN_PROGRAM, "usage": _amounts((row,))}],
                }
            )
    return _respond("PodMetrics", items, name)


def _require(app: Application, request: Request, plural: str, namespace: str, name: str) -> None:
    """Whoever may read the pod or node may read its use."""
    verb = "get" if name else "list"
    refused = app.access_refusal(request.principal, verb, plural, "", namespace, name)
    if refused is not None:
        app.gate.audit.record_refusal(
            request.principal, verb, f"{plural}.{GROUP}", refused.reason, message=refused.message, request=request.id
        )
        raise Forbidden(refused.message, facts=refused.facts)


def _metadata(name: str, namespace: str, created: str, labels: dict[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "creationTimestamp": created or None, "labels": labels}
    return {**made, "namespace": namespace} if namespace else made


def _measured(usage: UsageSample) -> dict[str, str]:
    return {"timestamp": micro_text(usage.at_s), "window": WINDOW}


def _amounts(rows: Sequence[UsageRow]) -> dict[str, str]:
    return {"cpu": f"{sum(row.cpu for row in rows)}m", "memory": f"{sum(row.memory for row in rows) // 1024}Ki"}


def _respond(kind: str, items: list[dict[str, Any]], name: str) -> Response:
    version = f"{GROUP}/{VERSION}"
    if not name:
        return json_response({"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": items})
    if not items:
        raise status.HttpRefusal(404, "NotFound", f"{kind} {name}: no such object, or its agent does not answer")
    return json_response({"kind": kind, "apiVersion": version, **items[0]})
