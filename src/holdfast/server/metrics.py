"""`/metrics` of the cell, and of each node through the agent's own stream, for Prometheus.

An agent opens no port, so its region serves its metrics: `/metrics/nodes` lists the nodes for HTTP service discovery,
`/metrics/nodes/NODE` returns the metrics of one.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.foundation.metrics_text import cell_metrics
from holdfast.model.agent_rpc import AgentCall, AgentCallArguments, AgentCallKind, MetricsText
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.server import agent_rpc_hub
from holdfast.server.request import Request, Response, json_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Metrics of one agent. More is refused: an agent has some tens of families.
NODE_METRICS_BYTES_MAX = 1024 * 1024
_NODE = BY_NAME["Node"]


class AgentMetricsRow(MetricsText, frozen=True):
    """What an agent posts: text, or an error."""

    error: str = ""


_decoder = msgspec.json.Decoder(AgentMetricsRow)


async def of_cell(app: Application, request: Request) -> Response:
    return Response(cell_metrics(), content_type=CONTENT_TYPE_LATEST)


async def node_targets(app: Application, request: Request) -> Response:
    """Every node as a target at this address, in the form of Prometheus' `http_sd_configs`."""
    found, _ = app.objects.list(_NODE) if app.cell != "global" else ((), 0)
    host = request.headers.get("host", "")
    labels = (
        {"__metrics_path__": f"/metrics/nodes/{quote(name)}", "node": name, "region": app.cell}
        for name in sorted(node.metadata.name for node in found)
    )
    return json_response([{"targets": [host], "labels": each} for each in labels])


async def of_node(app: Application, request: Request) -> Response:
    node = request.target.parameters["node"]
    if app.cell == "global" or app.objects.get(_NODE, "", node) is None:
        raise NotFound(f"node {node[:253]}: not found in the {app.cell} cell")
    arguments = AgentCallArguments(kind=AgentCallKind.METRICS)
    text = ""
    async with aclosing(agent_rpc_hub.send_call(app, node, AgentCall(id="", arguments=arguments))) as chunks:
        async for chunk in chunks:
            for row in (_decoder.decode(line) for line in chunk.splitlines() if line):
                if row.error:
                    raise Unavailable(f"node {node}: {row.error}")
                text += row.text
            if len(text) > NODE_METRICS_BYTES_MAX:
                raise Unavailable(f"node {node}: its metrics are too large (limit {NODE_METRICS_BYTES_MAX} bytes)")
    return Response(text.encode(), content_type=CONTENT_TYPE_LATEST)
