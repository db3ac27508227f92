"""The global cell's store is lost and the cell is created again: no replica stops, and the region says why.

Real cells, agents and tasks. Before, the regions took the empty cell for the truth within a minute and stopped it all.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import RunningPlatform, holdfast, processes_of, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(400)]

EAST, CELL = "us-east", "cell-global"
REPLICAS = 3
HELD_FOR_S = 75.0
"""Longer than the resync of a link, after which a region used to follow the empty cell."""


def manifest(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}


def apply_web(up: RunningPlatform, replicas: int) -> None:
    template = {"command": ["sleep", "1000"], "resources": {"cpu": "100m", "memory": "32Mi"}}
    up.apply(
        manifest("Tenant", "acme", {}),
        manifest("PriorityClass", "plain", {"priority": 0}),
        manifest("Quota", "quota", {"hard": {"cpu": "4", "memory": "4Gi"}}, "acme"),
        manifest("Workload", "web", {"replicas": replicas, "priorityClassName": "plain", "template": template}, "acme"),
    )


def running_tasks(state: Path) -> set[int]:
    """Process ids of the workload's tasks, read from /proc."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", b"1000"]:
                environ = (entry / "environ").read_bytes().split(b"\0")
                if b"HOLDFAST_WORKLOAD=web" in environ and str(state) in os.readlink(entry / "cwd"):
                    found.add(int(entry.name))
    return found


def holds_work(up: RunningPlatform) -> dict[str, str]:
    """The condition of the region, as its own cell shows it."""
    region = json.loads(up.kubectl("--context", EAST, "get", "region", EAST, "-o", "json"))
    conditions = region.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "HoldsWork"), {"status": "False", "reason": "", "message": ""})


def stop_global(layout: Layout) -> None:
    outage.hold_down(layout, [CELL])
    assert outage.kill_processes(layout, [CELL]) == 1


def test_lost_global_store_stops_no_replica(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "global.backup"
    with running_platform(state, "--regions", EAST, "--no-samples") as up:
        layout = Layout(state)
        cell = ("--cell", "global", "--state", str(layout.cell("global")))
        apply_web(up, REPLICAS)
        wait_until(lambda: len(running_tasks(state)) == REPLICAS, "all replicas run", within_s=120.0)
        tasks = running_tasks(state)
        holdfast("backup", *cell, "--to", str(backup))

        stop_global(layout)
        for file in layout.cell("global").glob("store.sqlite*"):
            file.unlink()
        holdfast("init-cell", *cell, "--new-identity")
        outage.allow_restart(layout, [CELL])
        wait_until(lambda: holds_work(up)["status"] == "True", "the region says that it holds work", within_s=90.0)
        began = time.monotonic()
        while time.monotonic() - began < HELD_FOR_S:
            assert running_tasks(state) == tasks, "a replica was stopped"
            time.sleep(2.0)
        said = holds_work(up)
        assert said["reason"] == "GlobalCellReplaced" and "ConfirmDeletion" in said["message"]
        shown = holdfast("status", "--state", str(state), check=False).stdout
        assert f"{EAST} holds work: GlobalCellReplaced" in shown
        assert not up.kubectl("get", "workloads", "-A", "-o", "name").strip(), "the cell is empty"

        stop_global(layout)
        holdfast("restore", *cell, "--from", str(backup), "--replace", "--other-identity")
        outage.allow_restart(layout, [CELL])
        wait_until(lambda: holds_work(up)["status"] == "False", "the region follows the restored cell", within_s=120.0)
        wait_until(lambda: up.kubectl("get", "workload", "web", "-n", "acme", check=False), "it is back", within_s=60.0)
        apply_web(up, REPLICAS + 1)
        wait_until(lambda: len(running_tasks(state)) == REPLICAS + 1, "the restored cell is obeyed", within_s=120.0)
        assert tasks < running_tasks(state), "a replica was restarted"
    assert processes_of(state) == []
