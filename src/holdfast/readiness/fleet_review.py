"""Reviews a running fleet by facts that were read from it. Pure: facts and time come in, findings go out.

A check whose facts cannot be known (the alerts without a Prometheus, the backups of a remote platform) is reported as
unknown. It is never counted as passed, and it does not fail the review.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.model.region import HealthState
from holdfast.model.times import parse_time

DAY_S = 86_400.0
DRILL_DAYS_MAX = 30.0
"""A promise whose last proof is older is unproven: code, load and capacity have changed since."""
BACKUP_HOURS_MAX = 24.0
"""A restore from an older backup loses more than a day of writes."""
RESTORE_DAYS_MAX = 90.0
"""A backup that nobody restored for a quarter is untested."""
OVERRIDE_GRACE_S = 60.0
"""Time after its end within which an override is marked as ended and its effects are reverted."""


class Level(enum.StrEnum):
    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class FleetFinding(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one check for one object."""

    check: str
    level: Level
    text: str
    next_step: str = ""


class PromiseFact(msgspec.Struct, frozen=True, rename="camel"):
    """A recovery promise; `proven_at` is empty if no recovery has proved it."""

    promise: str
    text: str
    backed: bool
    proven_at: str = ""
    proven_by: str = ""


class DrillFact(msgspec.Struct, frozen=True, rename="camel"):
    """The newest kept report of a drill in a region."""

    drill: str
    region: str
    passed: bool
    started_at: str
    report: str


class OverrideFact(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    cell: str
    phase: str
    expires_at: str
    reverted: bool


class RegionFact(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    state: HealthState
    last_contact_at: str
    message: str


class BackupFact(msgspec.Struct, frozen=True, rename="camel"):
    """The last backup of a cell, the last restore of one, the last verification by restoring one into a temporary
    store, and the failure of the last attempt; empty if there was none."""

    cell: str
    made_at: str
    restored_at: str
    verified_at: str = ""
    failure: str = ""


class AlertFact(msgspec.Struct, frozen=True, rename="camel"):
    """A firing alert, or a silence (`silenced_until` is set)."""

    name: str
    summary: str
    silenced_until: str = ""


class FleetFacts(msgspec.Struct, frozen=True, rename="camel"):
    """What was read. None means that it cannot be known from here; `unread` says why."""

    promises: tuple[PromiseFact, ...] = ()
    regions: tuple[RegionFact, ...] = ()
    overrides: tuple[OverrideFact, ...] = ()
    stuck: tuple[str, ...] = ()
    drills: tuple[DrillFact, ...] | None = None
    backups: tuple[BackupFact, ...] | None = None
    alerts: tuple[AlertFact, ...] | None = None
    unread: dict[str, str] = {}


def review_fleet(facts: FleetFacts, now: float, *, drill_days: float = DRILL_DAYS_MAX) -> list[FleetFinding]:
    """All findings, problems first."""
    found = [
        *_promises(facts.promises, now, drill_days),
        *_drills(facts, now),
        *_overrides(facts.overrides, now),
        *_regions(facts.regions),
        *_stuck(facts.stuck),
        *_backups(facts, now),
        *_alerts(facts),
    ]
    order = {Level.PROBLEM: 0, Level.UNKNOWN: 1, Level.OK: 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _promises(promises: Sequence[PromiseFact], now: float, drill_days: float) -> Iterator[FleetFinding]:
    if not promises:
        step = "add spec.recovery to the workloads that must survive the loss of a region"
        yield FleetFinding("promises", Level.UNKNOWN, "no workload has a recovery objective", step)
    for item in promises:
        if not item.backed:
            text = f"{item.promise}: not backed ({item.text}; RecoveryBacked is not True)"
            yield FleetFinding("backing", Level.PROBLEM, text, "holdfast plan --lose-region REGION")
        else:
            yield FleetFinding("backing", Level.OK, f"{item.promise}: backed")
        step = "holdfast drill run region-loss --region REGION"
        if not item.proven_at:
            yield FleetFinding("drills", Level.PROBLEM, f"{item.promise}: never proven by a recovery", step)
            continue
        days = (now - parse_time(item.proven_at)) / DAY_S
        text = f"{item.promise}: last proven {days:.1f} days ago by {item.proven_by}"
        if days > drill_days:
            yield FleetFinding("drills", Level.PROBLEM, f"{text} (at most {drill_days:g} days)", step)
        else:
            yield FleetFinding("drills", Level.OK, text)


def _drills(facts: FleetFacts, now: float) -> Iterator[FleetFinding]:
    if facts.drills is None:
        yield _unknown(facts, "drills", "the reports of drills")
        return
    for drill in facts.drills:
        if not drill.passed:
            days = (now - parse_time(drill.started_at)) / DAY_S
            text = f"drill {drill.drill} in {drill.region}: its last run failed, {days:.1f} days ago"
            yield FleetFinding("drills", Level.PROBLEM, text, f"holdfast drill show {drill.report}")


def _overrides(overrides: Sequence[OverrideFact], now: float) -> Iterator[FleetFinding]:
    late = 0
    for item in overrides:
        if not item.expires_at or now - parse_time(item.expires_at) <= OVERRIDE_GRACE_S:
            continue
        name = f"override {item.name} in {item.cell}"
        step = f"holdfast override revoke {item.name}"
        if item.phase == "Active":
            late += 1
            yield FleetFinding("overrides", Level.PROBLEM, f"{name}: active after its end at {item.expires_at}", step)
        elif not item.reverted:
            late += 1
            text = f"{name}: ended at {item.expires_at}, not reverted yet"
            yield FleetFinding("overrides", Level.PROBLEM, text, "holdfast cleanup-check")
    if not late:
        yield FleetFinding("overrides", Level.OK, f"{len(overrides)} overrides, none beyond its time")


def _regions(regions: Sequence[RegionFact]) -> Iterator[FleetFinding]:
    for region in regions:
        if region.state is HealthState.HEALTHY:
            yield FleetFinding("links", Level.OK, f"region {region.name}: in contact")
        else:
            text = f"region {region.name}: {region.state.value}, last contact {region.last_contact_at or 'never'}"
            more = f" ({region.message})" if region.message else ""
            yield FleetFinding("links", Level.PROBLEM, text + more, "holdfast status")


def _stuck(stuck: Sequence[str]) -> Iterator[FleetFinding]:
    for text in stuck:
        yield FleetFinding("stuck objects", Level.PROBLEM, text, "holdfast repair list")
    if not stuck:
        yield FleetFinding("stuck objects", Level.OK, "no finalizer, repair or claim is past its deadline")


def _backups(facts: FleetFacts, now: float) -> Iterator[FleetFinding]:
    if facts.backups is None:
        yield _unknown(facts, "backups", "the backups")
        return
    for item in facts.backups:
        step = f"holdfast backup --cell {item.cell} --state DIR --to FILE"
        if item.failure:
            text = f"cell {item.cell}: the last attempt to back up failed ({item.failure})"
            yield FleetFinding("backups", Level.PROBLEM, text, "docs/runbooks/backup-too-old.md")
        if not item.made_at:
            yield FleetFinding("backups", Level.PROBLEM, f"cell {item.cell}: never backed up", step)
            continue
        hours = (now - parse_time(item.made_at)) / 3600
        text = f"cell {item.cell}: last backup {hours:.1f} hours ago"
        if hours > BACKUP_HOURS_MAX:
            yield FleetFinding("backups", Level.PROBLEM, f"{text} (at most {BACKUP_HOURS_MAX:g})", step)
        else:
            yield FleetFinding("backups", Level.OK, text)
        test = "add --verify to the scheduled backup: docs/operations/backup.md"
        proofs = [parse_time(text) for text in (item.restored_at, item.verified_at) if text]
        if not proofs:
            yield FleetFinding("backups", Level.PROBLEM, f"cell {item.cell}: no backup was ever restored", test)
        elif (days := (now - max(proofs)) / DAY_S) > RESTORE_DAYS_MAX:
            old = f"cell {item.cell}: last restore {days:.0f} days ago (at most {RESTORE_DAYS_MAX:g})"
            yield FleetFinding("backups", Level.PROBLEM, old, test)


def _alerts(facts: FleetFacts) -> Iterator[FleetFinding]:
    if facts.alerts is None:
        yield _unknown(facts, "alerts", "the alerts")
        return
    for alert in facts.alerts:
        if alert.silenced_until:
            text = f"alert {alert.name}: silenced until {alert.silenced_until} ({alert.summary})"
            yield FleetFinding("alerts", Level.PROBLEM, text, "end the silence, or mend its cause")
        else:
            text = f"alert {alert.name}: firing ({alert.summary})"
            yield FleetFinding("alerts", Level.PROBLEM, text, "follow the runbook of the alert")
    if not facts.alerts:
        yield FleetFinding("alerts", Level.OK, "no alert fires or is silenced")


def _unknown(facts: FleetFacts, check: str, what: str) -> FleetFinding:
    return FleetFinding(check, Level.UNKNOWN, f"{what} cannot be read ({facts.unread.get(check, 'not asked for')})")
