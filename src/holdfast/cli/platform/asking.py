"""Finds replicas and calls their agents through the regions' APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.http import Api
from holdfast.cli.platform.layout import Layout
from holdfast.cli.platform.survey import connect


class Placed(msgspec.Struct, frozen=True):
    """A replica and its region. `node` is empty while the replica is not placed."""

    api: Api
    region: str
    tenant: str
    name: str
    node: str


def regions(state: str) -> list[tuple[str, Api]]:
    layout = Layout(state)
    platform = layout.load()
    return [(region.name, connect(layout, platform, region.name)) for region in platform.regions]


def find_replicas(state: str, name: str) -> list[Placed]:
    """Replicas of `[TENANT/]REPLICA` or `[TENANT/]WORKLOAD` in all reachable regions."""
    tenant, _, own = name.rpartition("/")
    found, silent = [], []
    for region, api in regions(state):
        try:
            items = api.list("replicas", tenant)
        except Stop as stop:
            if stop.code is not Exit.UNREACHABLE:
                raise
            silent.append(region)
            continue
        for item in items:
            if own in (item["metadata"]["name"], item["spec"]["workload"]):
                node = item.get("status", {}).get("placement", {}).get("node", "")
                meta = item["metadata"]
                found.append(Placed(api, region, meta["namespace"], meta["name"], node))
    if not found:
        unheard = f" (unreachable regions: {', '.join(silent)})" if silent else ""
        raise Stop(f"{name}: no such replica or workload in any region{unheard}", next_step="holdfast get replicas")
    return sorted(found, key=lambda placed: (placed.tenant, placed.name))


def ask_replica(placed: Placed, **question: Any) -> Iterator[dict[str, Any]]:
    path = f"/ask/v1/replicas/{quote(placed.tenant)}/{quote(placed.name)}"
    yield from _answers(placed.api, path, question)


def ask_node(api: Api, node: str, **question: Any) -> Iterator[dict[str, Any]]:
    yield from _answers(api, f"/ask/v1/nodes/{quote(node)}", question)


def _answers(api: Api, path: str, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in api.stream(path, question):
        if "error" in row:
            raise Stop(str(row["error"]))
        yield row
