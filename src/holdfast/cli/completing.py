"""Shell completion of arguments. If the platform does not answer within 1 s, there are no suggestions and no error."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.exits import Stop

WAIT_S = 1.0


def kinds(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from holdfast.model.kinds import ALL

    return [k.plural for k in ALL if not k.internal and k.plural.startswith(begun)]


def drills(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from holdfast.cli.drills.catalog import DRILLS

    return [name for name in DRILLS if name.startswith(begun)]


def workloads(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """TENANT/WORKLOAD names of the platform that `--state` selects."""
    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.survey import connect

    try:
        layout = Layout(context.params.get("state") or ".holdfast")
        api = connect(layout, layout.load(), "global", timeout_s=WAIT_S)
        names = [_named(item["metadata"]) for item in api.list("workloads")]
    except (Stop, OSError):
        return []
    return [name for name in names if name.startswith(begun)]


def _named(meta: dict[str, Any]) -> str:
    return f"{meta['namespace']}/{meta['name']}"
