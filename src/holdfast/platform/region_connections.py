"""Connects the queries of `insight` to the cells of a platform: local, or remote through a kubeconfig."""

from __future__ import annotations

from holdfast.insight.region_clients import RegionClient, RegionClients
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout
from holdfast.platform.output import print_note


def connect_regions(state: str, *, tenant: str = "") -> RegionClients:
    """Clients of the global cell and of every region. `tenant` limits them if the caller may not list all tenants."""
    layout = Layout(state)
    platform = layout.load()
    regions = [RegionClient(connect_cell(layout, platform, r.name), r.name, tenant) for r in platform.regions]
    return RegionClients(connect_cell(layout, platform, "global"), regions)


def print_unreachable(regions: RegionClients) -> None:
    """Names each unreachable region on stderr."""
    for _, why in sorted(regions.unreachable.items()):
        print_note(f"{why}; its objects are missing from this output")
