"""The loss of a whole region: its cell, its agents and all their work are killed, and the clock runs."""

from __future__ import annotations

import socket
from typing import Any

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.outage import hold_down, kill, names_of, restore
from holdfast.cli.drills.world import Item
from holdfast.cli.exits import Exit, Stop
from holdfast.model.times import parse_time

RECORDED_WITHIN_S = 5.0
CLOCK_FIELDS = (
    ("detectedAt", "recovery opened"), ("assignedAt", "assigned"), ("boundAt", "bound"), ("readyAt", "ready"),
    ("servingAt", "serving"),
)  # fmt: skip


def run(incident: Incident, *, fail_back: bool) -> None:
    """Until every critical workload serves enough in one other region; then, if wanted, until all is given back."""
    watcher = incident.watcher
    if not watcher.critical():
        raise Stop("no workload has a recovery promise", next_step="set spec.recovery on one", code=Exit.USAGE)
    names = names_of(incident.plan)
    seconds: dict[str, float] = {}
    incident.undo_with(f"region {incident.region}", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.struck(f"region {incident.region} is killed")
    lost_at = incident.wall_s()
    incident.facts["processes_killed"] = kill(incident.layout, names)
    served = incident.until("every critical workload serves enough", lambda: _served(incident, seconds))
    recovery = _recorded(incident)
    incident.expect(recovery, f"no Recovery was opened for region {incident.region}")
    _read_clock(incident, recovery, lost_at)
    _check_addresses(incident)
    _tell(incident, recovery, seconds, served=served)
    if fail_back and recovery:
        incident.say(f"giving region {incident.region} back; waiting for failback and the cleanup check")
        restore(incident.layout, names)
        incident.until("recovery Closed", lambda: _closed(incident))


def _back(incident: Incident, names: list[str]) -> None:
    restore(incident.layout, names)


def _served(incident: Incident, seconds: dict[str, float]) -> bool:
    """Notes each critical workload that serves enough in one other region; whether all do."""
    region = incident.watcher.get("regions", incident.region)
    state = region.get("status", {}).get("health", {}).get("state", "")
    if state != "Healthy":
        incident.mark(f"region {state.lower()}")
    if state != "Lost":
        return False
    done = True
    for workload in incident.watcher.critical():
        name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
        enough = workload["spec"]["recovery"].get("minServing", 4)
        elsewhere = {r: n for r, n in incident.watcher.serving_in(workload).items() if r != incident.region}
        if name not in seconds and max(elsewhere.values(), default=0) >= enough:
            seconds[name] = round(incident.now_s(), 2)
            incident.say(f"{seconds[name]:6.1f} s  {name}: {elsewhere}")
        done = done and name in seconds
    return done


def _recorded(incident: Incident) -> Item:
    """The Recovery, once it has noticed itself what was just seen: its clock is part of the report."""
    incident.until(
        "the recovery has noticed",
        lambda: _recovery(incident).get("status", {}).get("phase") != "Open",
        within_s=RECORDED_WITHIN_S,
    )
    return _recovery(incident)


def _recovery(incident: Incident) -> Item:
    found = [r for r in incident.watcher.list("recoveries") if r["spec"]["region"] == incident.region]
    newest: Item = max(found, key=lambda r: r["metadata"]["creationTimestamp"], default={})
    return newest


def _read_clock(incident: Incident, recovery: Item, lost_at: float) -> None:
    clock = recovery.get("status", {}).get("clock", {})
    for field, stage in CLOCK_FIELDS:
        if clock.get(field):
            incident.clock[stage] = round(parse_time(clock[field]) - lost_at, 2)


def _check_addresses(incident: Incident) -> None:
    """Serving means that something answers: every address in the other regions' endpoints accepts a connection."""
    critical = {(w["metadata"]["namespace"], w["metadata"]["name"]) for w in incident.watcher.critical()}
    answered = 0
    for endpoint in incident.watcher.list("endpoints"):
        spec = endpoint["spec"]
        if spec["region"] == incident.region or (endpoint["metadata"]["namespace"], spec["workload"]) not in critical:
            continue
        for address in spec.get("addresses", []):
            for port in address.get("ports", {}).values():
                try:
                    socket.create_connection((address["address"], port), timeout=2.0).close()
                    answered += 1
                except OSError as error:
                    incident.failures.append(f"{address['replica']} is in the endpoint and does not answer: {error}")
    incident.facts["addresses_that_answered"] = answered


def _closed(incident: Incident) -> bool:
    phase = _recovery(incident).get("status", {}).get("phase", "")
    if phase and phase != "Open":
        incident.mark(f"recovery {phase}")
    return bool(phase == "Closed")


def _tell(incident: Incident, recovery: Item, seconds: dict[str, float], *, served: bool) -> None:
    rows: list[dict[str, Any]] = recovery.get("status", {}).get("workloads", [])
    slowest = max(seconds.values(), default=0.0)
    deadline_s = float(recovery.get("spec", {}).get("deadlineSeconds", 300))
    if served:
        incident.expect(slowest <= deadline_s, f"the slowest took {slowest:.1f} s, the promise is {deadline_s:.0f} s")
    incident.facts |= {
        "seconds_to_four_serving": slowest if served else None,
        "deadline_seconds": deadline_s,
        "recovery": recovery.get("metadata", {}).get("name", "none"),
        "workloads": [{**r, "seconds": seconds.get(f"{r['tenant']}/{r['workload']}")} for r in rows],
    }
