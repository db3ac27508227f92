"""Drill autoscaler: the load rises while no replica is ready. The autoscaler must not add replicas."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import TENANT, Load
from holdfast.cli.drills.world import Item
from holdfast.cli.platform.measuring import push_value

NAME = "busy"
METRIC, TARGET, HIGH = "queueLength", 10.0, 100.0
FEWEST, MOST = 2, 12
PUSHES, PUSH_EVERY_S = 6, 5.0


def run(incident: Incident) -> None:
    """Readiness of every replica depends on a file. The drill deletes the file and pushes ten times the target load."""
    folder = tempfile.TemporaryDirectory(prefix="holdfast-drill-")
    Path(folder.name).chmod(0o755)
    well = Path(folder.name) / "well"
    well.touch(mode=0o644)
    incident.undo_with("the readiness file", folder.cleanup)
    load = Load(incident)
    rules = {
        "minReplicas": FEWEST, "maxReplicas": MOST, "metric": METRIC, "target": TARGET,
        "scaleUp": {"replicasPerMinute": 60, "percentPerMinute": 400},
    }  # fmt: skip
    load.workload(NAME, FEWEST, ready_when=["test", "-e", str(well)], autoscale=rules)
    if not incident.until("the drill's workload serves", lambda: load.serving(NAME) == FEWEST, within_s=60):
        return
    _push(incident, TARGET)
    incident.until("the autoscaler uses the metric", lambda: _scale(incident).get("replicas") == FEWEST, within_s=60)
    incident.struck("no replica is ready, and the load is ten times the target")
    well.unlink()
    incident.until("no replica serves", lambda: load.serving(NAME) == 0, within_s=60)
    _push(incident, HIGH)
    incident.until("scale-up blocked", lambda: _scale(incident).get("reason") == "ScaleHeld", within_s=30)
    for _ in range(PUSHES - 1):
        time.sleep(PUSH_EVERY_S)
        _push(incident, HIGH)
    incident.until("scale-up still blocked", lambda: _scale(incident).get("reason") == "ScaleHeld", within_s=30)
    said = _scale(incident)
    wanted = _wanted(incident)
    incident.facts |= {
        "maxDesiredWhileNotReady": max(wanted),
        "reason": said.get("reason", ""),
        "message": said.get("message", ""),
    }
    incident.expect(max(wanted) == FEWEST, f"{max(wanted)} replicas were requested while none was ready")
    incident.held.append(
        f"desired replicas stayed at {FEWEST} in {len(wanted)} recorded status update(s) of the autoscaler: "
        f"{said.get('reason', '')}, {said.get('message', '')}"
    )
    well.touch(mode=0o644)
    incident.until("the replicas are ready again", lambda: load.serving(NAME) == FEWEST, within_s=60)
    incident.until("the autoscaler adds replicas", lambda: _scaled_up(incident), within_s=90)


def _push(incident: Incident, value: float) -> None:
    push_value(incident.watcher.api(), TENANT, NAME, METRIC, value)


def _scale(incident: Incident) -> Item:
    found: Item = incident.watcher.get("workloads", NAME, TENANT).get("status", {}).get("scale") or {}
    return found


def _scaled_up(incident: Incident) -> bool:
    """Pushes the high load again and checks whether replicas were added."""
    _push(incident, HIGH)
    return int(_scale(incident).get("replicas", 0)) > FEWEST


def _wanted(incident: Incident) -> list[int]:
    """All replica counts that the autoscaler wrote since the failure."""
    found = [_scale(incident)["replicas"]]
    for step in incident.steps():
        if step.kind == "Workload" and step.name == NAME and step.after is not None:
            block = step.after.get("status", {}).get("scale") or {}
            found.append(int(block.get("replicas", FEWEST)))
    return found
