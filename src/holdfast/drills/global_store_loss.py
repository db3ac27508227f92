"""Drill global-store-loss: the store of the global cell is lost. The runbook's own commands restore it from a backup.

An empty global cell must stop nothing: every region holds its work and says why. After the restore the regions follow
the global cell again. The lost store is kept beside the new one until the drill has passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Container
from pathlib import Path

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, task_processes
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.workload import WorkloadType

NAME = "kept"
REPLICAS = 3
CELL = "cell-global"
HELD_S = 75.0
"""Longer than the resync of a link, after which a region could follow an empty cell."""
COMMAND_TIMEOUT_S = 120.0
NOT_FOUND = 404


def run(drill: DrillRun) -> None:
    if "global" in drill.platform.etcd_cells:
        raise CommandError("drill global-store-loss: the global cell is stored in etcd (expected SQLite)")
    tenant = DrillTenant(drill)
    tenant.workload(NAME, REPLICAS)
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving(NAME) == REPLICAS, within_s=60):
        return
    folder = tempfile.TemporaryDirectory(prefix="holdfast-drill-")
    drill.add_undo("the backup", folder.cleanup)
    backup = Path(folder.name) / "global.backup"
    _command(drill, "backup", "--to", str(backup))
    restored: list[bool] = []
    drill.add_undo("the global cell", lambda: None if restored else _restore(drill, backup))
    tasks = _tasks(drill, without=_batch_tasks(drill))
    drill.failure_starts(f"the store of the global cell is deleted; {len(tasks)} tasks run")
    drill.global_cell_down = True
    _stop(drill)
    for file in drill.layout.cell("global").glob("store.sqlite*"):
        file.unlink()
    _command(drill, "init-cell", "--new-identity")
    allow_restart(drill.layout, [CELL])
    drill.mark("the global cell starts on an empty store")
    drill.wait_until("every region holds its work", lambda: all(_held_reasons(drill).values()), within_s=120)
    drill.facts["held"] = _held_reasons(drill)
    held_mono_s = time.monotonic() + HELD_S
    drill.wait_until("the work is held", lambda: time.monotonic() >= held_mono_s, within_s=HELD_S + 30)
    stopped = tasks - _tasks(drill)
    drill.expect(not stopped, f"{len(stopped)} of {len(tasks)} tasks were stopped")
    drill.expect(tenant.serving(NAME) == REPLICAS, f"{tenant.serving(NAME)} of {REPLICAS} replicas serve")
    _restore(drill, backup)
    restored.append(True)
    drill.mark("the global cell is restored from the backup")
    drill.wait_until("the regions follow it again", lambda: not any(_held_reasons(drill).values()), within_s=180)
    drill.wait_until("all regions are healthy", lambda: _all_healthy(drill), within_s=120)
    stopped = tasks - _tasks(drill)
    drill.expect(not stopped, f"{len(stopped)} of {len(tasks)} tasks were stopped by the restore")
    tenant.scale(NAME, REPLICAS + 1)
    drill.wait_until("the restored cell is obeyed", lambda: tenant.serving(NAME) == REPLICAS + 1, within_s=120)
    drill.invariants_held.append(
        f"no task was stopped by the loss of the global store: {len(tasks)} tasks kept running"
    )
    drill.facts["tasksKept"] = len(tasks)


def _command(drill: DrillRun, name: str, *arguments: str) -> None:
    """Runs a command of the runbook as an operator would."""
    folder = str(drill.layout.cell("global"))
    command = [sys.executable, "-m", "holdfast.cli", name, "--cell", "global", "--state", folder, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if ran.returncode:
        raise CommandError(f"holdfast {name}: exit code {ran.returncode}: {ran.stderr.strip()[-300:]}")


def _stop(drill: DrillRun) -> None:
    hold_down(drill.layout, [CELL])
    kill_processes(drill.layout, [CELL])


def _restore(drill: DrillRun, backup: Path) -> None:
    _stop(drill)
    _command(drill, "restore", "--from", str(backup), "--replace", "--other-identity")
    allow_restart(drill.layout, [CELL])
    drill.global_cell_down = False


def _tasks(drill: DrillRun, *, without: Container[str] = ()) -> set[int]:
    """Process ids of the platform's tasks, with their keepers."""
    agents = [agent.name for region in drill.platform.regions for agent in region.agents]
    return {identity.pid for agent in agents for identity in task_processes(drill.layout, agent, without=without)}


def _batch_tasks(drill: DrillRun) -> set[str]:
    """Ids of the tasks of batches, which end by themselves."""
    found: set[str] = set()
    for region in drill.observer.regions:
        replicas = drill.observer.list("replicas", region)
        batches = {r["metadata"]["uid"] for r in replicas if r["spec"].get("type") == WorkloadType.BATCH.value}
        for binding in drill.observer.list("bindings", region):
            meta = binding["metadata"]
            if binding["spec"]["intent"]["replicaUid"] in batches:
                found.add(f"{meta['namespace']}_{meta['name']}_{meta['uid']}")
    return found


def _held_reasons(drill: DrillRun) -> dict[str, str]:
    """Why each region holds its work, by its own cell; empty if it does not. A region whose copies of global objects
    are being replaced has not decided yet."""
    found = {}
    for region in drill.observer.regions:
        try:
            item = drill.observer.get("regions", region, cell=region)
        except ApiRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
            found[region] = "RegionNotFound"
            continue
        conditions = item.get("status", {}).get("conditions", [])
        held: dict[str, str] = next((c for c in conditions if c["type"] == "HoldsWork" and c["status"] == "True"), {})
        found[region] = str(held.get("reason", ""))
    return found


def _all_healthy(drill: DrillRun) -> bool:
    regions = drill.observer.list("regions")
    return bool(regions) and all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
