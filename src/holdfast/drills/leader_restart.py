"""Drill leader-restart: the process of the scheduler and the authority is killed during a placement burst."""

from __future__ import annotations

from holdfast.drills import counters
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant
from holdfast.drills.outage import kill_processes

REPLICAS = 40
NAME = "burst"


def run(incident: DrillRun) -> None:
    """Requests many replicas and kills the region's cell at the first commits. Each replica must be placed once."""
    load = DrillTenant(incident)
    load.workload(NAME, 1)
    if not incident.wait_until("the drill's workload serves", lambda: load.serving(NAME) == 1, within_s=60):
        return
    terms = _terms(incident)
    incident.failure_starts(f"{REPLICAS} replicas are requested in {incident.region}")
    load.scale(NAME, REPLICAS)
    if not incident.wait_until("first placement commits", lambda: _began(incident), within_s=30, every_s=0.002):
        return
    killed = kill_processes(incident.layout, [f"cell-{incident.region}"])
    incident.mark(f"cell-{incident.region} killed")
    incident.facts["processesKilled"] = killed
    incident.wait_until("the cell is reachable again", lambda: bool(load.replicas(NAME)), within_s=60)
    incident.facts["boundAfterRestart"] = len(load.bindings(NAME))
    incident.wait_until(f"all {REPLICAS} serve", lambda: load.serving(NAME) == REPLICAS, within_s=120)
    bindings = load.bindings(NAME)
    incident.expect(len(bindings) == REPLICAS, f"{len(bindings)} bindings for {REPLICAS} replicas")
    after = _terms(incident)
    risen = {name: f"{terms.get(name, 0)} → {held}" for name, held in after.items() if held > terms.get(name, 0)}
    incident.expect("authority" in risen, "the authority's term did not increase, so its old fencing token stays valid")
    incident.facts["terms"] = ", ".join(f"{name} {change}" for name, change in sorted(risen.items()))
    incident.facts["elections"] = round(counters.sum_series(incident.counter_increases(), "holdfast_election_changes_total"))


def _began(incident: DrillRun) -> bool:
    """Whether the first commits of the burst were recorded; the others are in flight."""
    return any(s.kind in ("Decision", "Reservation", "Binding") and s.op == "created" for s in incident.changes())


def _terms(incident: DrillRun) -> dict[str, int]:
    found = incident.observer.list("terms", incident.region)
    return {t["metadata"]["name"]: int(t["metadata"]["resourceVersion"]) for t in found}
