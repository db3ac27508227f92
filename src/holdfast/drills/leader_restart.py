"""Drill leader-restart: the process of the scheduler and the authority is killed during a placement burst."""

from __future__ import annotations

from holdfast.drills import counters
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant
from holdfast.drills.outage import kill_processes

REPLICAS = 40
NAME = "burst"


def run(drill: DrillRun) -> None:
    """Requests many replicas and kills the region's cell at the first commits. Each replica must be placed once."""
    tenant = DrillTenant(drill)
    tenant.workload(NAME, 1)
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving(NAME) == 1, within_s=60):
        return
    terms = _terms(drill)
    drill.failure_starts(f"{REPLICAS} replicas are requested in {drill.region}")
    tenant.scale(NAME, REPLICAS)
    if not drill.wait_until("first placement commits", lambda: _began(drill), within_s=30, every_s=0.002):
        return
    killed = kill_processes(drill.layout, [f"cell-{drill.region}"])
    drill.mark(f"cell-{drill.region} killed")
    drill.facts["processesKilled"] = killed
    drill.wait_until("the cell is reachable again", lambda: bool(tenant.replicas(NAME)), within_s=60)
    drill.facts["boundAfterRestart"] = len(tenant.bindings(NAME))
    drill.wait_until(f"all {REPLICAS} serve", lambda: tenant.serving(NAME) == REPLICAS, within_s=120)
    bindings = tenant.bindings(NAME)
    drill.expect(len(bindings) == REPLICAS, f"{len(bindings)} bindings for {REPLICAS} replicas")
    after = _terms(drill)
    risen = {name: f"{terms.get(name, 0)} → {term}" for name, term in after.items() if term > terms.get(name, 0)}
    drill.expect("authority" in risen, "the authority's term did not increase, so its old fencing token stays valid")
    drill.facts["terms"] = ", ".join(f"{name} {change}" for name, change in sorted(risen.items()))
    drill.facts["elections"] = round(counters.sum_series(drill.counter_increases(), "holdfast_election_changes_total"))


def _began(drill: DrillRun) -> bool:
    """Whether the first commits of the burst were recorded; the others are in flight."""
    return any(s.kind in ("Decision", "Reservation", "Binding") and s.op == "created" for s in drill.changes())


def _terms(drill: DrillRun) -> dict[str, int]:
    found = drill.observer.list("terms", drill.region)
    return {t["metadata"]["name"]: int(t["metadata"]["resourceVersion"]) for t in found}
