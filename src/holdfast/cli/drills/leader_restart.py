"""The scheduler's and authority's process is killed in the middle of a placement, and comes back."""

from __future__ import annotations

from holdfast.cli.drills import meters
from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import Load
from holdfast.cli.drills.outage import kill

REPLICAS = 40
NAME = "burst"


def run(incident: Incident) -> None:
    """Asks for many replicas and kills the region's cell at the first commits; each must be placed once."""
    load = Load(incident)
    load.workload(NAME, 1)
    if not incident.until("the drill's workload serves", lambda: load.serving(NAME) == 1, within_s=60):
        return
    terms = _terms(incident)
    incident.struck(f"asked for {REPLICAS} replicas in {incident.region}")
    load.scale(NAME, REPLICAS)
    if not incident.until("placing began", lambda: _began(incident), within_s=30, every_s=0.002):
        return
    killed = kill(incident.layout, [f"cell-{incident.region}"])
    incident.mark(f"cell-{incident.region} killed")
    incident.facts["processes_killed"] = killed
    incident.until("the cell answers again", lambda: bool(load.replicas(NAME)), within_s=60)
    incident.facts["bound_when_it_came_back"] = len(load.bindings(NAME))
    incident.until(f"all {REPLICAS} serve", lambda: load.serving(NAME) == REPLICAS, within_s=120)
    bindings = load.bindings(NAME)
    incident.expect(len(bindings) == REPLICAS, f"{len(bindings)} bindings for {REPLICAS} replicas")
    after = _terms(incident)
    risen = {name: f"{terms.get(name, 0)} → {held}" for name, held in after.items() if held > terms.get(name, 0)}
    incident.expect("authority" in risen, "the authority's term did not rise: its old token would still be good")
    incident.facts["terms"] = ", ".join(f"{name} {change}" for name, change in sorted(risen.items()))
    incident.facts["elections"] = round(meters.total(incident.moved(), "holdfast_election_changes_total"))


def _began(incident: Incident) -> bool:
    """The first commits of the burst were seen: the rest is on its way at this moment."""
    return any(s.kind in ("Decision", "Reservation", "Binding") and s.op == "created" for s in incident.steps())


def _terms(incident: Incident) -> dict[str, int]:
    found = incident.watcher.list("terms", incident.region)
    return {t["metadata"]["name"]: int(t["metadata"]["resourceVersion"]) for t in found}
