"""Drill leader-restart: the process of the scheduler and the authority is killed during a placement burst."""

from __future__ import annotations

from holdfast.cli.drills import meters
from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import Load
from holdfast.cli.drills.outage import kill

REPLICAS = 40
NAME = "burst"


def run(incident: Incident) -> None:
    """Requests many replicas and kills the region's cell at the first commits. Each replica must be placed once."""
    load = Load(incident)
    load.workload(NAME, 1)
    if not incident.until("the drill's workload serves", lambda: load.serving(NAME) == 1, within_s=60):
        return
    terms = _terms(incident)
    incident.struck(f"{REPLICAS} replicas are requested in {incident.region}")
    load.scale(NAME, REPLICAS)
    if not incident.until("first placement commits", lambda: _began(incident), within_s=30, every_s=0.002):
        return
    killed = kill(incident.layout, [f"cell-{incident.region}"])
    incident.mark(f"cell-{incident.region} killed")
    incident.facts["processesKilled"] = killed
    incident.until("the cell is reachable again", lambda: bool(load.replicas(NAME)), within_s=60)
    incident.facts["boundAfterRestart"] = len(load.bindings(NAME))
    incident.until(f"all {REPLICAS} serve", lambda: load.serving(NAME) == REPLICAS, within_s=120)
    bindings = load.bindings(NAME)
    incident.expect(len(bindings) == REPLICAS, f"{len(bindings)} bindings for {REPLICAS} replicas")
    after = _terms(incident)
    risen = {name: f"{terms.get(name, 0)} → {held}" for name, held in after.items() if held > terms.get(name, 0)}
    incident.expect("authority" in risen, "the authority's term did not increase, so its old fencing token stays valid")
    incident.facts["terms"] = ", ".join(f"{name} {change}" for name, change in sorted(risen.items()))
    incident.facts["elections"] = round(meters.total(incident.moved(), "holdfast_election_changes_total"))


def _began(incident: Incident) -> bool:
    """Whether the first commits of the burst were recorded; the others are in flight."""
    return any(s.kind in ("Decision", "Reservation", "Binding") and s.op == "created" for s in incident.steps())


def _terms(incident: Incident) -> dict[str, int]:
    found = incident.watcher.list("terms", incident.region)
    return {t["metadata"]["name"]: int(t["metadata"]["resourceVersion"]) for t in found}
