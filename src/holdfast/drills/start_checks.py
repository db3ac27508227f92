"""Whether a scheduled drill may start: nobody watches it, so it starts only on a fleet that is whole.

A drill that a person starts is not checked: the person may want to see a failure during another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.drills.platform_observer import PlatformObserver
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.times import parse_time

Item = dict[str, Any]


class StartRefusal(msgspec.Struct, frozen=True):
    """`planned`: because of maintenance, which is no failure."""

    reason: str
    planned: bool = False


class FleetState(msgspec.Struct, frozen=True):
    """What the decision reads of the global cell, as JSON of its API. `critical` are workloads with an objective."""

    regions: list[Item]
    overrides: list[Item] = []
    recoveries: list[Item] = []
    critical: list[Item] = []


def start_refusal(observer: PlatformObserver, region: str, now: float) -> StartRefusal | None:
    """Why the drill in the region does not start; None if it may."""
    try:
        found = FleetState(
            observer.list("regions"),
            observer.list("overrides"),
            observer.list("recoveries"),
            observer.critical_workloads(),
        )
    except CommandError as stop:
        return StartRefusal(f"the global cell cannot be read: {stop.message}")
    return judge_start(found, region, now)


def judge_start(fleet: FleetState, region: str, now: float) -> StartRefusal | None:
    acting = [override for override in fleet.overrides if _acts(override, now)]
    planned = [override for override in acting if override["spec"].get("maintenance")]
    if planned:
        scope = planned[0]["spec"]["scope"]
        until = planned[0]["status"]["expiresAt"].partition(".")[0]
        window = planned[0]["spec"]["maintenance"]["window"]
        where = scope.get("zone") or scope.get("region", "")
        return StartRefusal(f"maintenance {window} of {where} lasts until {until}Z", planned=True)
    problem = next(_problems(fleet, region, acting), None)
    return StartRefusal(problem) if problem is not None else None


def _acts(override: Item, now: float) -> bool:
    status = override.get("status", {})
    return status.get("phase") == "Active" and parse_time(status["expiresAt"]) > now


def _problems(fleet: FleetState, region: str, acting: list[Item]) -> Iterator[str]:
    if region not in [item["metadata"]["name"] for item in fleet.regions]:
        yield f"region {region} does not exist"
    for item in fleet.regions:
        name, status = item["metadata"]["name"], item.get("status", {})
        health, report = status.get("health", {}).get("state", "Unknown"), status.get("report") or {}
        if health != "Healthy":
            yield f"region {name} is {health}"
        elif report.get("liveNodes", 0) < report.get("nodes", 0):
            yield f"region {name} has {report.get('liveNodes', 0)} live nodes of {report['nodes']}"
    for item in acting:
        yield f"override {item['metadata']['name']} ({item['spec']['kind']}) is in force"
    for item in fleet.recoveries:
        if item.get("status", {}).get("phase", "Open") != "Closed":
            yield f"recovery {item['metadata']['name']} is not closed"
    for item in fleet.critical:
        meta, backing = item["metadata"], item.get("status", {}).get("backing") or {}
        if not backing.get("backed"):
            yield f"workload {meta['namespace']}/{meta['name']}: its recovery objective is not backed"
