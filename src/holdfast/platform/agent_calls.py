"""Finds replicas and calls their agents through the regions' APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout


class ReplicaLocation(msgspec.Struct, frozen=True):
    """A replica and its region. `node` is empty while the replica is not placed; `log_node` is where its logs are."""

    api: CellApi
    region: str
    tenant: str
    name: str
    node: str
    log_node: str = ""
    binding: str = ""


def region_apis(state: str) -> list[tuple[str, CellApi]]:
    layout = Layout(state)
    platform = layout.load()
    return [(region.name, connect_cell(layout, platform, region.name)) for region in platform.regions]


def find_replicas(state: str, name: str) -> list[ReplicaLocation]:
    """Replicas of `[TENANT/]REPLICA` or `[TENANT/]WORKLOAD` in all reachable regions."""
    tenant, _, own = name.rpartition("/")
    found, unreachable = [], []
    for region, api in region_apis(state):
        try:
            items = api.list("replicas", tenant)
        except CommandError as stop:
            if stop.code is not ExitCode.UNREACHABLE:
                raise
            unreachable.append(region)
            continue
        for item in items:
            if own in (item["metadata"]["name"], item["spec"]["workload"]):
                placed = item.get("status", {}).get("placement", {})
                node, meta = placed.get("node", ""), item["metadata"]
                log_node = node or placed.get("lastNode", "")
                binding = placed.get("binding", "")
                found.append(ReplicaLocation(api, region, meta["namespace"], meta["name"], node, log_node, binding))
    if not found:
        hint = f" (unreachable regions: {', '.join(unreachable)})" if unreachable else ""
        raise CommandError(
            f"{name}: no such replica or workload in any region{hint}", next_step="holdfast get replicas"
        )
    return sorted(found, key=lambda placed: (placed.tenant, placed.name))


def call_replica_agent(placed: ReplicaLocation, **question: Any) -> Iterator[dict[str, Any]]:
    path = f"/agent/v1/replicas/{quote(placed.tenant)}/{quote(placed.name)}"
    yield from _answers(placed.api, path, question)


def call_node_agent(api: CellApi, node: str, **question: Any) -> Iterator[dict[str, Any]]:
    yield from _answers(api, f"/agent/v1/nodes/{quote(node)}", question)


def _answers(api: CellApi, path: str, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in api.stream(path, question):
        if "error" in row:
            raise CommandError(str(row["error"]))
        yield row
