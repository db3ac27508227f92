"""Shell completion of arguments. If the platform does not answer within 1 s, there are no suggestions and no error."""

from __future__ import annotations

from typing import Any

import click

from holdfast.foundation.exit_codes import CommandError

COMPLETION_TIMEOUT_S = 1.0


def complete_kinds(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from holdfast.model.kinds import ALL

    return [k.plural for k in ALL if not k.internal and k.plural.startswith(begun)]


def complete_drills(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from holdfast.drills.catalog import DRILLS

    return [name for name in DRILLS if name.startswith(begun)]


def complete_workloads(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """TENANT/WORKLOAD names of the platform that `--state` selects."""
    from holdfast.platform.layout import Layout
    from holdfast.platform.platform_status import connect_cell

    try:
        layout = Layout(context.params.get("state") or ".holdfast")
        api = connect_cell(layout, layout.load(), "global", timeout_s=COMPLETION_TIMEOUT_S)
        names = [_named(item["metadata"]) for item in api.list("workloads")]
    except (CommandError, OSError):
        return []
    return [name for name in names if name.startswith(begun)]


def _named(meta: dict[str, Any]) -> str:
    return f"{meta['namespace']}/{meta['name']}"
