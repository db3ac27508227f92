"""Status of a whole platform: processes, cells, nodes, and workloads with replicas by stage.

An unreachable cell is part of the status, never an error.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import find_condition, is_condition_true
from holdfast.model.node import ContactState, Node, unschedulable_reason
from holdfast.model.reasons import Reason
from holdfast.model.region import HOLDS_WORK, Region, health_text
from holdfast.model.replica import Phase, Replica
from holdfast.model.template import template_hash
from holdfast.model.workload import Workload, WorkloadType, wanted_replicas
from holdfast.platform.caller_tenants import list_visible
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout, Platform
from holdfast.platform.processes import is_alive
from holdfast.platform.supervisor import load_records, running_supervisor


class ProcessView(msgspec.Struct, frozen=True, rename="camel"):
    """`pid` is None while the process does not run: scripts pass it to `kill`, and `kill 0` ends the caller itself."""

    name: str
    running: bool
    pid: int | None = None
    uptime_seconds: float = 0.0
    restarts: int = 0
    last_exit: str = ""
    log: str = ""


class CellView(msgspec.Struct, frozen=True, rename="camel"):
    """`health` is the region's health state in the global cell; `ready` is the cell's own readiness. `holding` says why
    a region keeps work that the global cell does not contain."""

    name: str
    url: str
    ready: bool
    message: str = ""
    health: str = ""
    live_nodes: int = 0
    holding: str = ""


class NodeView(msgspec.Struct, frozen=True, rename="camel"):
    region: str
    name: str
    zone: str
    contact: str
    schedulable: bool
    reason: str = ""
    running: int = 0


class WorkloadView(msgspec.Struct, frozen=True, rename="camel"):
    """`stages` counts replicas in reachable regions. `done` means that `holdfast up` no longer waits for the workload.

    `stuck` means that the workload reports why it cannot serve: it is pending, gets no region, has failed, or its
    replicas crash on start.
    """

    tenant: str
    name: str
    type: str
    wanted: int
    serving: int
    succeeded: int
    done: bool
    stages: dict[str, int]
    regions: dict[str, int]
    reason: str = ""
    stuck: bool = False


class PlatformStatus(msgspec.Struct, frozen=True, rename="camel"):
    state: str
    supervisor_pid: int | None
    processes: tuple[ProcessView, ...]
    cells: tuple[CellView, ...]
    nodes: tuple[NodeView, ...]
    workloads: tuple[WorkloadView, ...]
    remote: bool = False
    forbidden_lists: tuple[str, ...] = ()
    """Lists that the caller is not authorized to read. They are empty here."""

    @property
    def complete(self) -> bool:
        """Whether all cells are ready, so that the lists are complete."""
        return all(cell.ready for cell in self.cells)


class PlatformStatusReader:
    """Reads the status repeatedly over the same connections."""

    def __init__(self, layout: Layout, platform: Platform, *, timeout_s: float = 5.0) -> None:
        self._layout = layout
        self._platform = platform
        self._apis = {name: connect_cell(layout, platform, name, timeout_s=timeout_s) for name, _ in platform.cells}
        self._hidden: set[str] = set()

    def api(self, cell: str) -> CellApi:
        return self._apis[cell]

    def read(self) -> PlatformStatus:
        cells = tuple(self._cell(name) for name, _ in self._platform.cells)
        ready = {cell.name for cell in cells if cell.ready}
        if "global" in ready:
            regions = {r.metadata.name: r for r in self._list("global", "regions", Region)}
            cells = tuple(with_health(cell, regions.get(cell.name)) for cell in cells)
        cells = tuple(self._with_holding(cell) if cell.ready and cell.name != "global" else cell for cell in cells)
        nodes: list[NodeView] = []
        replicas: list[tuple[str, Replica]] = []
        for region in self._platform.regions:
            if region.name in ready:
                nodes.extend(node_view(region.name, n) for n in self._list(region.name, "nodes", Node))
                replicas.extend((region.name, r) for r in self._list(region.name, "replicas", Replica))
        workloads = self._list("global", "workloads", Workload) if "global" in ready else []
        found = running_supervisor(self._layout)
        return PlatformStatus(
            state=str(self._layout.root),
            supervisor_pid=found.pid if found is not None else None,
            processes=process_views(self._layout),
            cells=cells,
            nodes=tuple(sorted(nodes, key=lambda n: (n.region, n.name))),
            workloads=tuple(workload_view(w, replicas) for w in workloads),
            remote=self._layout.remote,
            forbidden_lists=tuple(sorted(self._hidden)),
        )

    def _with_holding(self, cell: CellView) -> CellView:
        """Adds what the region itself says about held work: the global cell may be the one that lost its records."""
        own = next((r for r in self._list(cell.name, "regions", Region) if r.metadata.name == cell.name), None)
        said = find_condition(own.status.conditions, HOLDS_WORK) if own is not None else None
        if said is None or said.status != "True":
            return cell
        return msgspec.structs.replace(cell, holding=f"{said.reason}: {said.message}")

    def close(self) -> None:
        for api in self._apis.values():
            api.close()

    def _cell(self, name: str) -> CellView:
        api = self._apis[name]
        try:
            status, text = api.text("/readyz")
        except CommandError as stop:
            return CellView(name=name, url=api.url, ready=False, message=stop.message)
        return CellView(name=name, url=api.url, ready=status == 200, message="" if status == 200 else text.strip())

    def _list(self, cell: str, plural: str, kind: type[Any]) -> list[Any]:
        try:
            namespaced = plural in ("workloads", "replicas")
            return [msgspec.convert(i, kind) for i in list_visible(self._apis[cell], plural, namespaced=namespaced)]
        except ApiRefusal as refusal:
            if refusal.code is ExitCode.DENIED:
                self._hidden.add(f"{plural} of {cell}")
            return []
        except CommandError:
            return []  # the cell became unreachable; the next status shows it as not ready


def with_health(cell: CellView, region: Region | None) -> CellView:
    if region is None:
        return cell
    report = region.status.report
    live_nodes = report.live_nodes if report is not None else 0
    return msgspec.structs.replace(cell, health=health_text(region), live_nodes=live_nodes)


def process_views(layout: Layout) -> tuple[ProcessView, ...]:
    views: list[ProcessView] = []
    for record in load_records(layout):
        running = record.identity is not None and is_alive(record.identity)
        views.append(
            ProcessView(
                name=record.program.name,
                running=running,
                pid=record.identity.pid if record.identity is not None and running else None,
                uptime_seconds=round(max(0.0, time.time() - record.started_at), 1) if running else 0.0,
                restarts=record.restarts,
                last_exit=record.last_exit,
                log=str(layout.log(record.program.name)),
            )
        )
    return tuple(views)


def node_view(region: str, node: Node) -> NodeView:
    reason = unschedulable_reason(node)
    return NodeView(
        region=region,
        name=node.metadata.name,
        zone=node.spec.zone,
        contact=node.status.contact.state,
        schedulable=not reason and node.status.contact.state is ContactState.LIVE,
        reason=reason,
        running=node.status.execution.running,
    )


def workload_view(workload: Workload, replicas: list[tuple[str, Replica]]) -> WorkloadView:
    """Status of one workload. Stages are derived with `lifecycle.stage`."""
    own = [(region, r) for region, r in replicas if r.spec.workload_uid == workload.metadata.uid]
    stages: dict[str, int] = {}
    regions: dict[str, int] = {}
    for region, replica in own:
        reached = stage(replica)
        stages[reached.value] = stages.get(reached.value, 0) + 1
        regions[region] = regions.get(region, 0) + 1
    order = {s.value: i for i, s in enumerate(Stage)}
    wanted = wanted_replicas(workload)
    serving = stages.get(Stage.SERVING.value, 0)
    succeeded = max(stages.get(Stage.SUCCEEDED.value, 0), workload.status.summary.succeeded)
    batch = workload.spec.type is WorkloadType.BATCH
    conditions = workload.status.conditions
    if batch:
        started = any(stages.get(s.value, 0) for s in (Stage.RUNNING, Stage.READY, Stage.SERVING))
        done = started or succeeded > 0 or is_condition_true(conditions, "Complete")
    else:
        done = serving >= wanted and workload.status.summary.serving >= wanted
    return WorkloadView(
        tenant=workload.metadata.namespace,
        name=workload.metadata.name,
        type=workload.spec.type,
        wanted=workload.spec.batch.completions if batch and workload.spec.batch is not None else wanted,
        serving=serving,
        succeeded=succeeded,
        done=done,
        stages=dict(sorted(stages.items(), key=lambda item: order[item[0]])),
        regions=dict(sorted(regions.items())),
        reason="" if done else pending_reason(workload),
        stuck=not done and is_stuck(workload, [r for _, r in own]),
    )


def is_stuck(workload: Workload, replicas: list[Replica]) -> bool:
    ran = (r.status.execution for r in replicas)
    reasons = {p.pending_reason for p in workload.status.summary.regions} - {"", Reason.WAITING}
    return (
        bool(reasons)
        or any(e is not None and e.phase is Phase.BACKING_OFF for e in ran)
        or is_unassignable(workload)
        or is_condition_true(workload.status.conditions, "Failed")
    )


def is_unassignable(workload: Workload) -> bool:
    """Whether the workload has no region for a reason that only its owner can remove."""
    assigned = find_condition(workload.status.conditions, "Assigned")
    if assigned is None or assigned.status == "True" or assigned.observed_generation < workload.metadata.generation:
        return False
    if assigned.reason == Reason.IMAGE_UNRESOLVED:
        image = workload.status.image  # before the first attempt, the digest may be on its way
        return image is not None and image.revision == template_hash(workload.spec.template) and not image.digest
    return assigned.reason in (Reason.NO_REGION_ALLOWED, Reason.VOLUME_CLAIM_NOT_FOUND)


def pending_reason(workload: Workload) -> str:
    """Why not all replicas serve: the condition that says so, led by the reason for which replicas wait. The progress
    of a rollout comes last, as it follows from the others."""
    waits = [p.pending_reason for p in workload.status.summary.regions if p.pending_reason]
    unmet = [c for c in workload.status.conditions if c.status != "True" and c.message]
    for condition in sorted(unmet, key=lambda c: c.type == "RolledOut"):
        found = ", ".join(dict.fromkeys(waits)) if condition.type == "Serving" else ""
        return f"{found or condition.reason}: {condition.message}"
    for progress in workload.status.summary.regions:
        if progress.pending_reason:
            return f"{progress.region}: {progress.pending_reason}"
    return ""
