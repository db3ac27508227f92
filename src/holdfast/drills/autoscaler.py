"""Drill autoscaler: the load rises while no replica is ready. The autoscaler must not add replicas."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import TENANT, DrillTenant
from holdfast.drills.platform_observer import Item
from holdfast.platform.cpu_metrics import push_metric

NAME = "busy"
METRIC, TARGET, HIGH = "queueLength", 10.0, 100.0
FEWEST, MOST = 2, 12
PUSHES, PUSH_EVERY_S = 6, 5.0


def run(drill: DrillRun) -> None:
    """Readiness of every replica depends on a file. The drill deletes the file and pushes ten times the target load."""
    well = _visible_file(drill)
    tenant = DrillTenant(drill)
    rules = {
        "minReplicas": FEWEST,
        "maxReplicas": MOST,
        "metric": METRIC,
        "target": TARGET,
        "scaleUp": {"replicasPerMinute": 60, "percentPerMinute": 400},
    }
    tenant.workload(NAME, FEWEST, ready_when=["test", "-e", str(well)], autoscale=rules)
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving(NAME) == FEWEST, within_s=60):
        return
    _push(drill, TARGET)
    drill.wait_until("the autoscaler uses the metric", lambda: _scale(drill).get("replicas") == FEWEST, within_s=60)
    drill.failure_starts("no replica is ready, and the load is ten times the target")
    well.unlink()
    drill.wait_until("no replica serves", lambda: tenant.serving(NAME) == 0, within_s=60)
    _push(drill, HIGH)
    drill.wait_until("scale-up blocked", lambda: _scale(drill).get("reason") == "ScaleUpBlocked", within_s=30)
    for _ in range(PUSHES - 1):
        time.sleep(PUSH_EVERY_S)
        _push(drill, HIGH)
    drill.wait_until("scale-up still blocked", lambda: _scale(drill).get("reason") == "ScaleUpBlocked", within_s=30)
    scale_status = _scale(drill)
    desired = _desired(drill)
    drill.facts |= {
        "maxDesiredWhileNotReady": max(desired),
        "reason": scale_status.get("reason", ""),
        "message": scale_status.get("message", ""),
    }
    drill.expect(max(desired) == FEWEST, f"{max(desired)} replicas were requested while none was ready")
    drill.invariants_held.append(
        f"desired replicas stayed at {FEWEST} in {len(desired)} recorded status update(s) of the autoscaler: "
        f"{scale_status.get('reason', '')}, {scale_status.get('message', '')}"
    )
    well.touch(mode=0o644)
    drill.wait_until("the replicas are ready again", lambda: tenant.serving(NAME) == FEWEST, within_s=60)
    drill.wait_until("the autoscaler adds replicas", lambda: _scaled_up(drill), within_s=90)


def _visible_file(drill: DrillRun) -> Path:
    """A file that the tasks of all agents see. Their `/tmp` is their own, so it is in the platform's shared directory,
    which is created if it does not exist."""
    shared = drill.layout.shared
    if not shared.exists():
        drill.add_undo("the shared directory", shared.rmdir)
        shared.mkdir()
        shared.chmod(0o1777)
    well = shared / "drill-autoscaler-ready"
    drill.add_undo("the readiness file", lambda: well.unlink(missing_ok=True))
    well.touch(mode=0o644)
    return well


def _push(drill: DrillRun, value: float) -> None:
    push_metric(drill.observer.api(), TENANT, NAME, METRIC, value)


def _scale(drill: DrillRun) -> Item:
    found: Item = drill.observer.get("workloads", NAME, TENANT).get("status", {}).get("scale") or {}
    return found


def _scaled_up(drill: DrillRun) -> bool:
    """Pushes the high load again and checks whether replicas were added."""
    _push(drill, HIGH)
    return int(_scale(drill).get("replicas", 0)) > FEWEST


def _desired(drill: DrillRun) -> list[int]:
    """All replica counts that the autoscaler wrote since the failure."""
    found = [_scale(drill)["replicas"]]
    for step in drill.changes():
        if step.kind == "Workload" and step.name == NAME and step.after is not None:
            block = step.after.get("status", {}).get("scale") or {}
            found.append(int(block.get("replicas", FEWEST)))
    return found
