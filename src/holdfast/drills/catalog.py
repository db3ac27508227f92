"""The table of all drills: the failure, a description, and the scenario that simulates the same failure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.drills import (
    autoscaler,
    emergency_quota,
    global_hang,
    global_store_loss,
    leader_restart,
    loss_during_recovery,
    override_expires,
    partition,
    partition_beyond_lease,
    policy_rollback,
    region_away,
    region_loss,
    repair_in_incident,
    stale_cache,
    timeout_after_commit,
    zone_loss,
)
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.report import DrillReport
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.scheduler_policy import PartitionMode


class DrillOptions(msgspec.Struct, frozen=True):
    """Options of the command line. Each drill reads the options that concern it."""

    seconds: float = 90.0
    wait_for_failback: bool = True


class Drill(msgspec.Struct, frozen=True):
    """A rehearsed failure. `simulated_by` is the scenario that simulates the same failure."""

    name: str
    failure: str
    description: str
    simulated_by: str
    typical_s: int
    run: Callable[[DrillRun, DrillOptions], None]


def _plain(run: Callable[[DrillRun], None]) -> Callable[[DrillRun, DrillOptions], None]:
    return lambda drill_run, options: run(drill_run)


DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        Drill(
            "region-loss",
            "regional capacity loss",
            "Kill a region's cell, agents and tasks. Every critical workload must serve in another region in time.",
            "region-lost-then-nodes",
            120,
            lambda drill_run, options: region_loss.run(drill_run, fail_back=options.wait_for_failback),
        ),
        Drill(
            "loss-during-recovery",
            "regional capacity loss during recovery",
            "Kill a region and then a node of the target region. The recovery objective must still be met.",
            "region-lost-then-nodes",
            150,
            _plain(loss_during_recovery.run),
        ),
        Drill(
            "zone-loss",
            "loss of a zone inside a region",
            "Kill a zone's agents and tasks. The region must replace the replicas in its other zones.",
            "zone-lost",
            75,
            _plain(zone_loss.run),
        ),
        Drill(
            "stale-cache",
            "stale scheduler cache",
            "Propose placements from stale state. The authority must refuse each with the right reason.",
            "stale-scheduler-and-drain",
            25,
            _plain(stale_cache.run),
        ),
        Drill(
            "timeout-after-commit",
            "timeout after a reservation or binding commit",
            "Drop the responses of reserve and bind. A retry must find the first commit.",
            "lost-answers",
            15,
            _plain(timeout_after_commit.run),
        ),
        Drill(
            "leader-restart",
            "scheduler leader restart during placement",
            "Kill the region's cell at the first commits of a burst. Each replica must be placed exactly once.",
            "leader-dies-at-commits",
            40,
            _plain(leader_restart.run),
        ),
        Drill(
            "policy-rollback",
            "policy rollback while replicas are starting",
            "Promote a policy and roll it back while replicas start. Bound replicas must keep their decision.",
            "policy-in-the-middle",
            35,
            _plain(policy_rollback.run),
        ),
        Drill(
            "autoscaler",
            "autoscaler amplification during low readiness",
            "Raise the load while no replica is ready. The autoscaler must hold until replicas are ready.",
            "autoscaler-under-low-readiness",
            60,
            _plain(autoscaler.run),
        ),
        Drill(
            "repair-in-incident",
            "repair loop running during an incident",
            "Lose a node while an agent ignores its Bindings. Repair must obey its pause, then act exactly once.",
            "repair-in-incident",
            200,
            _plain(repair_in_incident.run),
        ),
        Drill(
            "override-expires",
            "human override that must expire",
            "Avoid a zone and kill the global cell. The override must expire on time and be verified as reverted.",
            "override-expires",
            60,
            _plain(override_expires.run),
        ),
        Drill(
            "partition",
            "partition from the global cell",
            "Kill the global cell for 90 s and also a node. The region must replace the node's replicas alone.",
            "cut-off",
            150,
            lambda drill_run, options: partition.run(drill_run, seconds=options.seconds),
        ),
        Drill(
            "partition-wait",
            "partition that outlasts the grant lease, mode Wait",
            "Kill the global cell, and a node after the lease. Bound replicas must run on, and nothing may be placed.",
            "cut-off",
            260,
            lambda drill_run, options: partition_beyond_lease.run(drill_run, mode=PartitionMode.WAIT),
        ),
        Drill(
            "partition-provisional",
            "partition that outlasts the grant lease, mode Provisional",
            "Kill the global cell, and a node after the lease. The region must replace the node's replicas alone.",
            "cut-off-provisional",
            260,
            lambda drill_run, options: partition_beyond_lease.run(drill_run, mode=PartitionMode.PROVISIONAL),
        ),
        Drill(
            "region-away",
            "region away for longer than its grant lease",
            "Pause a region until its grants expire. Its work must be recovered; it must place nothing by old grants.",
            "zombie-returns",
            280,
            lambda drill_run, options: region_away.run(drill_run, seconds=options.seconds),
        ),
        Drill(
            "global-hang",
            "hung global cell",
            "Pause the global cell. Every region must notice within ten seconds and accept a break-glass override.",
            "cut-off",
            75,
            _plain(global_hang.run),
        ),
        Drill(
            "global-store-loss",
            "lost store of the global cell",
            "Delete the global cell's store. No task may stop, and a restore must bring the platform back.",
            "global-store-emptied",
            240,
            _plain(global_store_loss.run),
        ),
        Drill(
            "emergency-quota",
            "emergency quota that must expire",
            "Run replicas on emergency quota. After its expiry the usage must fall back to the quota.",
            "override-expires",
            120,
            _plain(emergency_quota.run),
        ),
    )
}


def run_drill(drill: Drill, drill_run: DrillRun, options: DrillOptions) -> DrillReport:
    """Runs the drill, undoes its changes, checks and reports. A drill that stops early is reported too."""
    try:
        drill_run.start()
        try:
            drill.run(drill_run, options)
        except CommandError as stop:
            drill_run.failures.append(f"the drill stopped: {stop.message}")
        finally:
            drill_run.undo()
        return drill_run.report(drill.name, drill_run.unreturned_after_cleanup())
    finally:
        drill_run.close()
