"""The drills there are: what each does, which failure of the design it is, and where the same is simulated."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.cli.drills import (
    autoscaler,
    cut_off,
    leader_restart,
    loss_during_recovery,
    override_expires,
    policy_rollback,
    region_loss,
    repair_in_incident,
    stale_cache,
    timeout_after_commit,
    zone_loss,
)
from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.report import Report


class Options(msgspec.Struct, frozen=True):
    """What a person may choose; each drill reads what concerns it."""

    seconds: float = 90.0
    fail_back: bool = True


class Drill(msgspec.Struct, frozen=True):
    """`simulated` names the scenario in which the simulation does the same; `about_s` is how long it takes here."""

    name: str
    failure: str
    does: str
    simulated: str
    about_s: int
    run: Callable[[Incident, Options], None]


def _plain(run: Callable[[Incident], None]) -> Callable[[Incident, Options], None]:
    return lambda incident, options: run(incident)


DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        Drill(
            "region-loss", "regional capacity loss",
            "Kill a region's cell, agents and work; every critical workload must serve elsewhere in time.",
            "region-lost-then-nodes", 120,
            lambda incident, options: region_loss.run(incident, fail_back=options.fail_back),
        ),
        Drill(
            "loss-during-recovery", "regional capacity loss during recovery",
            "Kill a region, and a node of the region its work recovers in; the promise must hold all the same.",
            "region-lost-then-nodes", 150, _plain(loss_during_recovery.run),
        ),
        Drill(
            "zone-loss", "loss of a zone inside a region",
            "Kill a zone's agents and work; the region must replace it in its other zones by itself.",
            "zone-lost", 75, _plain(zone_loss.run),
        ),
        Drill(
            "stale-cache", "stale scheduler cache",
            "Propose placements from an old picture of the region; the authority must refuse each for its reason.",
            "stale-scheduler-and-drain", 25, _plain(stale_cache.run),
        ),
        Drill(
            "timeout-after-commit", "timeout after a reservation or binding commit",
            "Hang up before the answers of reserve and bind; asking again must find the first commit.",
            "lost-answers", 15, _plain(timeout_after_commit.run),
        ),
        Drill(
            "leader-restart", "scheduler leader restart during placement",
            "Kill the region's cell at the first commits of a burst; each replica must be placed exactly once.",
            "leader-dies-at-commits", 40, _plain(leader_restart.run),
        ),
        Drill(
            "policy-rollback", "policy rollback while replicas are starting",
            "Promote a policy, let replicas start under it, take it back; what is bound must stay as decided.",
            "policy-in-the-middle", 35, _plain(policy_rollback.run),
        ),
        Drill(
            "autoscaler", "autoscaler amplification during low readiness",
            "Raise demand while no replica is ready; the autoscaler must hold, say why, and go on when they are ready.",
            "autoscaler-under-low-readiness", 60, _plain(autoscaler.run),
        ),
        Drill(
            "repair-in-incident", "repair loop running during an incident",
            "Lose a node while an agent is deaf; repair must be paused by override, then act once and free the place.",
            "repair-in-incident", 200, _plain(repair_in_incident.run),
        ),
        Drill(
            "override-expires", "human override that must expire",
            "Avoid a zone, kill the global cell, and see the override end on time and its effect verified as gone.",
            "override-expires", 60, _plain(override_expires.run),
        ),
        Drill(
            "cut-off", "the ninety-second outage",
            "Kill the global cell for a while and a node meanwhile; the region must go on and replace it alone.",
            "cut-off", 150,
            lambda incident, options: cut_off.run(incident, seconds=options.seconds),
        ),
    )
}  # fmt: skip


def run_drill(drill: Drill, incident: Incident, options: Options) -> Report:
    """Does it, undoes it, checks, reports. What was done is undone even when the drill itself breaks."""
    try:
        incident.begin()
        try:
            drill.run(incident, options)
        finally:
            incident.undo()
        return incident.report(drill.name, incident.cleaned())
    finally:
        incident.close()
