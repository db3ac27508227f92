"""Shell completion of arguments. If the platform does not answer within 1 s, there are no suggestions and no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.foundation.exit_codes import CommandError

COMPLETION_TIMEOUT_S = 1.0
# Names that are suggested. A shell shows no more, and the platform is not read further.
SUGGESTIONS_MAX = 500


def complete_kinds(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from holdfast.model.kinds import ALL

    before, comma, last = begun.rpartition(",")
    plurals = [k.plural for k in ALL if not k.internal] + ["pods", "namespaces"]
    return [f"{before}{comma}{plural}" for plural in plurals if plural.startswith(last)]


def complete_drills(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from holdfast.drills.catalog import DRILLS

    return [name for name in DRILLS if name.startswith(begun)]


def complete_workloads(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """TENANT/WORKLOAD names of the platform that `--state` selects."""
    return _names(context, "workloads", begun)


def complete_replicas(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, "replicas", begun)


def complete_workloads_and_replicas(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return [*complete_workloads(context, parameter, begun), *complete_replicas(context, parameter, begun)]


def complete_nodes(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, "nodes", begun)


def complete_regions(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, "regions", begun)


def complete_tenants(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    return _names(context, "tenants", begun)


def complete_objects(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of the kind that the command line names before."""
    kind = str(context.params.get("kind") or "")
    named: dict[str, Callable[..., list[str]]] = {
        "nodes": complete_nodes,
        "regions": complete_regions,
        "tenants": complete_tenants,
        "namespaces": complete_tenants,
    }
    if kind in named:
        return named[kind](context, parameter, begun)
    if kind not in ("workloads", "replicas"):
        return []
    return [name.partition("/")[2] for name in _names(context, kind, "") if name.partition("/")[2].startswith(begun)]


def _names(context: click.Context, plural: str, begun: str) -> list[str]:
    """Names in the global cell, which reads regional kinds from the regions."""
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    try:
        layout = Layout(context.params.get("state") or ".holdfast")
        api = connect_cell(layout, layout.load(), "global", timeout_s=COMPLETION_TIMEOUT_S)
        answer = api.get(f"/apis/holdfast.dev/v1/{plural}", limit=str(SUGGESTIONS_MAX))
        names = [_named(item["metadata"]) for item in answer["items"]]
    except (CommandError, OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in names if name.startswith(begun)]


def _named(meta: dict[str, Any]) -> str:
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
