"""All runbooks. Their pages are in docs/runbooks; the steps here are those that a person would type.

`{run}` is the identifier of the run. Overrides are named after it, so that a run that is continued finds its own.
"""

from __future__ import annotations

from holdfast.runbooks.definition import Act, Fact, Look, Parameter, Person, Runbook, Verify, WaitUntil, nothing_left

RUN = "run"

_REGION = Parameter("region", "The region.")
_TENANT = Parameter("tenant", "The tenant.")
_REASON = Parameter("reason", "Why, for the incident review.")
_TTL = Parameter("ttl", "Seconds after which the override ends by itself.", "3600")
_HEALTHY = Fact("regions", "{region}", ("status", "health", "state"), ("Healthy",))
_LOST = Fact("regions", "{region}", ("status", "health", "state"), ("Lost",))
_ACTIVE = Fact("overrides", "{run}", ("status", "phase"), ("Active",))
_ABSENT = Fact("overrides", "{run}", ("metadata", "name"), ("",))
"""The override of this run does not exist. A run that was interrupted after its creation does not create it again."""
_CREATE = ("override", "create")
_NAMED = ("--name", "{run}", "--reason", "{reason}", "--ttl", "{ttl}", "--yes")
_APPROVED = (
    Person("A second person approves", "another operator runs: holdfast override approve {run}"),
    WaitUntil("The override is in force", _ACTIVE),
)
_REVOKED = (
    Act("End the override", ("override", "revoke", "{run}"), only_if=_ACTIVE),
    WaitUntil("Its effect is gone", Fact("overrides", "{run}", ("status", "phase"), ("Revoked", "Expired", "")), 300.0),
)

_REGION_LOSS = Runbook(
    name="region-loss",
    title="A region does not report",
    page="runbooks/region-loss.md",
    parameters=(_REGION,),
    steps=(
        Look("What the global cell knows of {region}", ("get", "regions")),
        Look("What the plan for its loss says", ("plan", "--lose-region", "{region}")),
        WaitUntil(
            "{region} is declared lost", Fact("regions", "{region}", ("status", "health", "state"), ("Lost",)), 180.0
        ),
        Look("How recovery proceeds", ("status",)),
        Person(
            "{region} returns",
            "find out why the region is gone, and bring it back; if it cannot report but is known to be down, use the "
            "runbook recovery-override",
        ),
        WaitUntil("{region} reports again", _HEALTHY, 300.0),
        nothing_left("{region}"),
        Look("All workloads serve", ("status",)),
    ),
    tell_users=(
        "Region {region} was lost and is back. Critical workloads were served from other regions meanwhile; work "
        "without a recovery objective waited or was moved as its `reassign` rule says."
    ),
)

_RECOVERY_OVERRIDE = Runbook(
    name="recovery-override",
    title="Declare a region lost without waiting for witnesses",
    page="runbooks/region-loss.md",
    parameters=(_REGION, _REASON, _TTL),
    steps=(
        Look("What recovery would do", ("plan", "--lose-region", "{region}")),
        Act("Declare {region} lost", (*_CREATE, "DeclareRegionLost", "--region", "{region}", *_NAMED), only_if=_ABSENT),
        *_APPROVED,
        WaitUntil("{region} is declared lost", _LOST),
        Look("How recovery proceeds", ("status",)),
        Person("The region can serve again", "make sure that {region} works before its work returns"),
        *_REVOKED,
        WaitUntil("{region} counts as healthy", _HEALTHY, 300.0),
        nothing_left("{run}"),
    ),
    tell_users=(
        "Region {region} was taken out of service by decision ({reason}). Critical workloads were served from other "
        "regions, and have returned."
    ),
)

_ZONE_AVOIDANCE = Runbook(
    name="zone-avoidance",
    title="A zone is failing",
    page="runbooks/failing-zone.md",
    parameters=(_REGION, Parameter("zone", "The zone."), _REASON, _TTL),
    steps=(
        Look("What the loss of {zone} would mean", ("plan", "--lose-region", "{region}", "--lose-zone", "{zone}")),
        Act(
            "Place no new work in {zone}", (*_CREATE, "AvoidZone", "--region", "{region}", "--zone", "{zone}", *_NAMED)
        ),
        WaitUntil("The override is in force", _ACTIVE),
        Person(
            "Running work leaves the zone",
            "if the zone gets worse, move its work node by node: holdfast plan --drain NODE, holdfast node drain NODE. "
            "Continue when the zone is healthy again",
        ),
        *_REVOKED,
        nothing_left("{run}"),
    ),
    tell_users=(
        "Zone {zone} of {region} had a problem ({reason}). No new work was placed there; running work was not touched "
        "unless its node was drained."
    ),
)

_AUTOSCALER_PAUSE = Runbook(
    name="autoscaler-pause",
    title="Pause the autoscaler",
    page="runbooks/autoscaler-pause.md",
    parameters=(_TENANT, Parameter("workload", "The workload."), _REASON, _TTL),
    steps=(
        Look("Where the workload stands", ("explain", "{tenant}/{workload}")),
        Act(
            "Keep the number of replicas as it is",
            (*_CREATE, "PauseAutoscaler", "--tenant", "{tenant}", "--workload", "{workload}", *_NAMED),
            only_if=_ABSENT,
        ),
        WaitUntil("The override is in force", _ACTIVE),
        Person("The load metric can be trusted again", "continue when the cause is gone"),
        *_REVOKED,
        nothing_left("{run}"),
    ),
    tell_users="{tenant}/{workload} was not scaled for some time ({reason}), and is scaled by its load again.",
)

_REPAIR_APPROVAL = Runbook(
    name="repair-approval",
    title="Repairs wait for approval",
    page="runbooks/stuck-repair.md",
    parameters=(_REGION, _REASON, Parameter("ttl", "Seconds for which repairs are approved.", "900")),
    steps=(
        Look("What waits, and why", ("repair", "list")),
        Person("The incident is understood", "many repairs at once have one cause: find it before you approve them"),
        Act(
            "Approve repairs in {region}", (*_CREATE, "ApproveRepair", "--region", "{region}", *_NAMED), only_if=_ABSENT
        ),
        WaitUntil("The override is in force", _ACTIVE),
        Verify("Nothing waits for repair", ("repair", "list"), 600.0),
        *_REVOKED,
        nothing_left("{run}"),
    ),
    tell_users="Replicas in {region} that were stuck were placed again ({reason}).",
)

_POLICY_ROLLBACK = Runbook(
    name="policy-rollback",
    title="Return to the previous scheduling policy",
    page="runbooks/policy-stopped.md",
    parameters=(Parameter("policy", "The SchedulerPolicy.", "default"),),
    steps=(
        Look("Which revisions the regions use", ("policy", "list", "{policy}")),
        Look("What the last change was", ("policy", "diff", "{policy}")),
        Act("Return to the previous rules", ("policy", "rollback", "{policy}")),
        Look("Which revisions the regions use now", ("policy", "list", "{policy}")),
        nothing_left("{run}"),
    ),
    tell_users="The scheduling policy {policy} uses its previous rules again. Running replicas did not move.",
)

_STORE_RESTORE = Runbook(
    name="store-restore",
    title="A cell's store is lost or damaged",
    page="runbooks/store-lost.md",
    parameters=(
        Parameter("cell", "The cell: global, or a region."),
        Parameter("directory", "The cell's directory, as `--state` of `holdfast serve`."),
        Parameter("backup", "The backup file."),
    ),
    steps=(
        Look("What is wrong with the store", ("check-store", "--cell", "{cell}", "--state", "{directory}")),
        Person("The cell is stopped", "stop every server of {cell}: systemctl stop holdfast-cell@{cell}"),
        Act(
            "Restore the backup: writes after it are lost",
            ("restore", "--cell", "{cell}", "--state", "{directory}", "--from", "{backup}", "--replace"),
        ),
        Person("The cell is started", "start the servers of {cell} again: systemctl start holdfast-cell@{cell}"),
        Verify("The cells answer", ("status",), 180.0),
        Look("Work that a region holds because the restored cell does not know it", ("get", "regions")),
        nothing_left("{cell}"),
    ),
    tell_users=(
        "{cell} was restored from a backup. Changes made after the backup are lost and must be made again; running "
        "work was not stopped."
    ),
)

_REMOVE_FINALIZER = ("repair", "finalizer", "{kind}", "{object}", "--finalizer", "{finalizer}", "--cell", "{cell}")
_STUCK_FINALIZER = Runbook(
    name="stuck-finalizer",
    title="A deletion does not end",
    page="runbooks/stuck-repair.md",
    parameters=(
        Parameter("kind", "Kind of the object, such as Workload."),
        Parameter("object", "The object: NAME or TENANT/NAME."),
        Parameter("finalizer", "The finalizer that `holdfast repair list` names."),
        Parameter("cell", "Cell of the object.", "global"),
    ),
    steps=(
        Look("Which deletions are stuck, and who owns them", ("repair", "list")),
        Act("Remove the stale finalizer", (*_REMOVE_FINALIZER, "--yes"), dry_run=_REMOVE_FINALIZER),
        Verify("Nothing is stuck", ("repair", "list"), 120.0),
        nothing_left("{run}"),
    ),
    tell_users="{kind} {object} is deleted.",
)

_FOREIGN_FINALIZER = Runbook(
    name="foreign-finalizer",
    title="A deletion waits for a finalizer that Holdfast does not own",
    page="runbooks/stuck-repair.md",
    parameters=_STUCK_FINALIZER.parameters,
    steps=(
        Look("Which deletions are stuck, and who owns them", ("repair", "list")),
        Person(
            "The finalizer's work is done",
            "ask the author of {finalizer}, or do its work by hand: nothing here can check it. Continue when you vouch "
            "for it",
        ),
        Act(
            "Remove the stale finalizer",
            (*_REMOVE_FINALIZER, "--foreign", "--yes"),
            dry_run=(*_REMOVE_FINALIZER, "--foreign"),
        ),
        Verify("Nothing is stuck", ("repair", "list"), 120.0),
        nothing_left("{run}"),
    ),
    tell_users=(
        "{kind} {object} is deleted. Its finalizer {finalizer} was removed by hand; tell its author, and those who "
        "rely on its work."
    ),
)

_QUOTA_EMERGENCY = Runbook(
    name="quota-emergency",
    title="A tenant needs more than its quota in an incident",
    page="runbooks/override-not-reverted.md",
    parameters=(_TENANT, Parameter("quota", "Additional quota, such as cpu=4."), _REASON, _TTL),
    steps=(
        Look("What the tenant uses now", ("get", "quotas", "-n", "{tenant}")),
        Act(
            "Add emergency quota",
            (*_CREATE, "EmergencyQuota", "--tenant", "{tenant}", "--quota", "{quota}", *_NAMED),
            only_if=_ABSENT,
        ),
        *_APPROVED,
        Look("What the tenant may use now", ("get", "quotas", "-n", "{tenant}")),
        Person(
            "The incident is over", "continue when the tenant no longer needs it; it also ends by itself after {ttl} s"
        ),
        *_REVOKED,
        nothing_left("{run}"),
    ),
    tell_users=(
        "Tenant {tenant} had {quota} above its quota ({reason}). It is returned; replicas above the quota were drained."
    ),
)

_CERTIFICATE_EXPIRY = Runbook(
    name="certificate-expiry",
    title="The certificate of a region expires",
    page="runbooks/certificate-expiry.md",
    parameters=(_REGION,),
    steps=(
        Look("Which certificates expire, and when", ("credentials", "list")),
        Act("Replace the certificate while the region runs", ("credentials", "rotate", "region", "{region}")),
        WaitUntil("{region} reports with it", _HEALTHY),
        Look("Which certificates are in use now", ("credentials", "list")),
        nothing_left("{region}"),
    ),
    tell_users="The certificate of region {region} was replaced. Nothing was interrupted.",
)

RUNBOOKS: dict[str, Runbook] = {
    runbook.name: runbook
    for runbook in (
        _REGION_LOSS,
        _RECOVERY_OVERRIDE,
        _ZONE_AVOIDANCE,
        _AUTOSCALER_PAUSE,
        _REPAIR_APPROVAL,
        _POLICY_ROLLBACK,
        _STORE_RESTORE,
        _STUCK_FINALIZER,
        _FOREIGN_FINALIZER,
        _QUOTA_EMERGENCY,
        _CERTIFICATE_EXPIRY,
    )
}
