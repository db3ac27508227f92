"""The pages of the console by name, with the resource that a caller must be able to list for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.console import fleet_reads, recovery_reads, tenant_reads, what_if_reads, workload_reads
from holdfast.console.global_reads import GlobalReader
from holdfast.console.viewer import Viewer, read_refusal
from holdfast.model.errors import BadRequest, Forbidden, NotFound


class Page(msgspec.Struct, frozen=True):
    """`resource` is empty for a page that filters by tenant itself. `past`: it can be shown as it was."""

    read: Callable[[GlobalReader, Viewer, dict[str, str]], Any]
    resource: str = ""
    past: bool = True


PAGES: dict[str, Page] = {
    "overview": Page(fleet_reads.overview),
    "nav": Page(fleet_reads.navigation),
    "workloads": Page(workload_reads.workload_list),
    "workload": Page(workload_reads.workload_detail),
    "decisions": Page(fleet_reads.decision_list),
    "decision": Page(fleet_reads.decision_page),
    "map": Page(fleet_reads.map_page, "nodes"),
    "node": Page(fleet_reads.node_page, "nodes"),
    "recoveries": Page(recovery_reads.recovery_list, "recoveries"),
    "recovery": Page(recovery_reads.recovery_detail, "recoveries"),
    "quotas": Page(fleet_reads.quota_page),
    "pipeline": Page(fleet_reads.pipeline_page),
    "queues": Page(fleet_reads.queue_page),
    "policies": Page(fleet_reads.policy_page, "schedulerpolicies"),
    "overrides": Page(fleet_reads.override_page),
    "what-if": Page(what_if_reads.what_if_page, "recoveries", past=False),
    "repairs": Page(fleet_reads.repair_page),
    "schedules": Page(tenant_reads.schedule_page),
    "config": Page(tenant_reads.config_page, past=False),
    "access": Page(tenant_reads.access_page),
    "audit": Page(fleet_reads.audit_page, "leases", past=False),
    "system": Page(fleet_reads.system_page, "leases", past=False),
    "search": Page(fleet_reads.search_page),
}


def allowed_pages(viewer: Viewer) -> list[str]:
    """The pages that the caller is offered."""
    return [name for name, page in PAGES.items() if not page.resource or read_refusal(viewer, page.resource) is None]


def check_has_past(name: str) -> None:
    """Raises BadRequest for a page that shows the present only."""
    if name in PAGES and not PAGES[name].past:
        raise BadRequest(f"page {name}: shows the present only; next: return to now")


async def read_page(reader: GlobalReader, viewer: Viewer, name: str, parameters: dict[str, str]) -> Any:
    """The data of a page. Raises Forbidden for a page that the caller is not offered."""
    page = PAGES.get(name)
    if page is None:
        raise NotFound(f"console page {name[:40]}: not found")
    refused = read_refusal(viewer, page.resource) if page.resource else None
    if refused is not None:
        raise Forbidden(refused.message, facts=refused.facts)
    found = page.read(reader, viewer, parameters)
    return await found if inspect.isawaitable(found) else found
