"""`holdfast status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import output_option, repeat_until_interrupted, state_option, tenant_options, watch_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json, table

if TYPE_CHECKING:
    from holdfast.platform.platform_status import CellView, PlatformStatus


@click.command()
@tenant_options
@watch_option
@state_option
@output_option
def status(*, tenant: str, all_tenants: bool, watch: bool, state: str, output: str) -> int:
    """Show cells, nodes, and workloads by stage.

    Queries every cell and shows unreachable cells as not ready. Exits with 8 if a cell is not ready. A tenant's token
    shows that tenant's workloads.

    \b
    Examples:
      holdfast status
      holdfast status -n payments -w
      holdfast status -o json | jq '.workloads[] | {name, serving, wanted}'
    """
    import msgspec

    from holdfast.platform.layout import Layout
    from holdfast.platform.platform_status import PlatformStatusReader

    layout = Layout(state)
    reader = PlatformStatusReader(layout, layout.load())
    try:
        if watch:
            repeat_until_interrupted(lambda: as_text(reader.read(), tenant))
        status = reader.read()
    finally:
        reader.close()
    if output == "json":
        print_json(msgspec.to_builtins(of_tenant(status, tenant)))
    else:
        click.echo(as_text(status, tenant))
    return ExitCode.OK if status.complete else ExitCode.UNREACHABLE


def of_tenant(status: PlatformStatus, tenant: str) -> PlatformStatus:
    """The status with the workloads of one tenant only, if one is named."""
    import msgspec

    if not tenant:
        return status
    return msgspec.structs.replace(status, workloads=tuple(w for w in status.workloads if w.tenant == tenant))


def unknown_nodes(cell: CellView) -> str:
    """In place of the rows of the nodes of a region that does not answer."""
    known = f"; {cell.live_nodes} live in its last report" if cell.live_nodes else ""
    return f"nodes of {cell.name}: unknown (the region does not answer{known})"


def as_text(status: PlatformStatus, tenant: str = "") -> str:
    status = of_tenant(status, tenant)
    supervisor = f"supervisor {status.supervisor_pid}" if status.supervisor_pid else "no supervisor; next: holdfast up"
    restarts = {p.name: p for p in status.processes}
    parts = [f"platform {status.state} ({'remote' if status.remote else supervisor})"]
    cells = []
    for cell in status.cells:
        process = restarts.get(f"cell-{cell.name}")
        count = process.restarts if process is not None else 0
        cells.append((cell.name, cell.url, "yes" if cell.ready else "no", cell.health, count, cell.message))
    parts.append(table(("CELL", "ADDRESS", "READY", "HEALTH", "RESTARTS", "MESSAGE"), cells))
    parts.extend(f"{cell.name} holds work: {cell.holding}" for cell in status.cells if cell.holding)
    if status.nodes:
        nodes = [(n.region, n.name, n.zone, n.contact, n.running, n.reason) for n in status.nodes]
        parts.append(table(("REGION", "NODE", "ZONE", "CONTACT", "RUNNING", "UNSCHEDULABLE BECAUSE"), nodes))
    parts.extend(unknown_nodes(cell) for cell in status.cells if not cell.ready and cell.name != "global")
    if status.workloads:
        rows = [
            (
                w.tenant,
                w.name,
                f"{w.succeeded}/{w.wanted} succeeded" if w.type == "Batch" else f"{w.serving}/{w.wanted}",
                " ".join(f"{stage}:{count}" for stage, count in w.stages.items()),
                " ".join(f"{region}:{count}" for region, count in w.regions.items()),
                w.reason,
            )
            for w in status.workloads
        ]
        parts.append(table(("TENANT", "WORKLOAD", "SERVING", "STAGES", "REGIONS", "NOT SERVING BECAUSE"), rows))
    elif not any(cell.ready for cell in status.cells):
        parts.append("workloads: unknown (no cell answers)")
    elif any(cell.name == "global" and not cell.ready for cell in status.cells):
        known = "the global cell lists them and does not answer; what runs goes on"
        parts.append(f"workloads: unknown ({known}); next: holdfast explain TENANT/WORKLOAD asks the regions")
    if status.forbidden_lists:
        step = "kubectl -n TENANT get workloads"
        parts.append(f"not authorized to list: {', '.join(status.forbidden_lists)}; next: {step}")
    down = [p for p in status.processes if not p.running]
    parts.extend(f"{p.name}: not running ({p.last_exit or 'not started'}); see {p.log}" for p in down)
    return "\n\n".join(parts)
