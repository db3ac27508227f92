"""Which events of the fleet people must hear of, as computed from the stored objects of the global cell. Pure.

An event is recomputed at each look for as long as it goes on. So an event is noticed although the process was killed
when it began, and none is announced from memory alone. `fleet/notifications.py` compares events with the stored
Notifications.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.model.break_glass_session import BreakGlassSession
from holdfast.model.notification import (
    NOTIFICATION_KEY_CHARS_MAX,
    NOTIFICATION_MESSAGE_CHARS_MAX,
    REGIONAL_TYPES,
    EventState,
    EventSubject,
    NotificationType,
)
from holdfast.model.override import Override, is_in_force, maintenance_of_region
from holdfast.model.recovery import ObjectiveOutcome, Recovery, is_late, judged_rows, objective_outcome
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import CellWarning, HealthState, Region
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.view import View
from holdfast.model.workload import Workload

# Age beyond which an event without an end is not announced any more: it is history by then.
EVENT_AGE_MAX_S = 86400.0
# Time before the end of an override in which it is announced; a quarter of its lifetime if that is shorter.
OVERRIDE_SOON_S = 900.0
# Time without a proof after which a RecoveryBudget is announced.
PROOF_AGE_MAX_S = 30 * 86400.0
# Time before the expiry of a certificate in which it is announced. The share of its lifetime in which it should have
# been renewed is over long before.
CERTIFICATE_SOON_S = 3 * 86400.0
# Age of a cell's last backup beyond which it is announced. The same as in the alert HoldfastBackupTooOld.
BACKUP_AGE_MAX_S = 86400.0
# Time for which a recovery objective is unbacked before it is announced, as in the alert HoldfastObjectiveUnbacked.
# A platform that starts has no reports of its regions yet, so objectives are unbacked for a moment.
UNBACKED_FOR_S = 120.0
# Names that a message lists. The rest are counted.
_NAMES_SHOWN = 5


class NotableEvent(msgspec.Struct, frozen=True):
    """`at_s` is when an event without an end occurred; 0 for an event that goes on. `key` identifies the event."""

    key: str
    type: NotificationType
    message: str
    subject: EventSubject
    at_s: float = 0.0

    @property
    def state(self) -> EventState:
        return EventState.OCCURRED if self.at_s else EventState.RAISED


def notable_events(view: View, now: float, own: Iterable[CellWarning] = ()) -> list[NotableEvent]:
    """All events, sorted by key. `own` are warnings of the global cell's process about itself."""
    found = [
        *_region_events(view, now),
        *_recovery_events(view, now),
        *_promise_events(view, now),
        *_override_events(view, now),
        *_session_events(view.list(BreakGlassSession)),
        *_cell_events("global", own),
    ]
    return sorted((event for event in found if _is_recent(event, now)), key=lambda event: event.key)


def warnings_of_sessions(sessions: Iterable[BreakGlassSession], now: float) -> Iterator[CellWarning]:
    """Break-glass sessions of a region's own cell, for its report. Tenants can read reports, so it names no person."""
    text = "a person opened break-glass access; next: holdfast break-glass list --region REGION"
    for event in _session_events(sessions):
        if _is_recent(event, now):
            yield CellWarning(type=event.type.value, key=event.key, message=text, at_s=event.at_s)


def certificate_warning(name: str, expires_s: float, now: float) -> CellWarning | None:
    if not expires_s or expires_s - now > CERTIFICATE_SOON_S:
        return None
    return CellWarning(
        type=NotificationType.CERTIFICATE_EXPIRES.value,
        key=f"certificate/{name}",
        message=f"certificate {name} expires at {seconds_text(expires_s)} and was not renewed; next: holdfast doctor",
    )


def backup_warnings(made_at: str, failed_at: str, failure: str, now: float) -> Iterator[CellWarning]:
    """A cell that has never been backed up is named by `holdfast readiness` instead. A region passes no `failure`: it
    has paths, and tenants can read reports."""
    if failed_at:
        text = f"the backup at {failed_at} failed: {failure or 'the log of the backup on its machine says why'}"
        yield CellWarning(type=NotificationType.BACKUP_FAILED.value, key="backup-failed", message=text)
    if made_at and now - parse_time(made_at) > BACKUP_AGE_MAX_S:
        text = f"the last backup was made at {made_at}; next: see the runbook backup-too-old"
        yield CellWarning(type=NotificationType.BACKUP_TOO_OLD.value, key="backup-too-old", message=text)


def _is_recent(event: NotableEvent, now: float) -> bool:
    return not event.at_s or now - event.at_s < EVENT_AGE_MAX_S


def _region_events(view: View, now: float) -> Iterator[NotableEvent]:
    for region in view.list(Region):
        name, health, report = region.metadata.name, region.status.health, region.status.report
        subject = EventSubject(kind="Region", name=name)
        planned = maintenance_of_region(view.list(Override), name, now) is not None
        if health.state is HealthState.LOST and not planned:
            text = f"region {name} is lost since {health.since}: {health.message or health.reason}"
            yield _event(f"region-lost/{region.uid}", NotificationType.REGION_LOST, text, subject)
        if report is not None and report.holding:
            text = f"region {name} keeps work: {report.holding}"
            yield _event(f"region-holds/{region.uid}", NotificationType.REGION_HOLDS_WORK, text, subject)
        certificate = region.status.certificate
        if certificate is not None and certificate.expires_at:
            warning = certificate_warning("of its cell", parse_time(certificate.expires_at), now)
            yield from _cell_events(name, (warning,) if warning is not None else ())
        if report is not None:
            yield from _cell_events(name, report.warnings)


def _cell_events(cell: str, warnings: Iterable[CellWarning]) -> Iterator[NotableEvent]:
    """Warnings of a cell about itself. A region can name only the types that concern its own cell."""
    allowed = {kind.value: kind for kind in REGIONAL_TYPES}
    if cell == "global":
        allowed[NotificationType.DRILL_FAILED.value] = NotificationType.DRILL_FAILED
    for warning in warnings:
        if (kind := allowed.get(warning.type)) is not None:
            subject = EventSubject(kind="Cell", name=cell)
            key = f"cell/{cell}/{warning.type}/{warning.key}"
            yield _event(key, kind, f"cell {cell}: {warning.message}", subject, warning.at_s)


def _recovery_events(view: View, now: float) -> Iterator[NotableEvent]:
    for recovery in view.list(Recovery):
        name, spec, status = recovery.metadata.name, recovery.spec, recovery.status
        subject = EventSubject(kind="Recovery", name=name)
        began_s = parse_time(spec.started_at or recovery.metadata.creation_timestamp)
        lost = f"{spec.region}/{spec.zone}" if spec.zone else spec.region
        workloads = f"{len(judged_rows(status))} critical workloads"
        text = f"recovery {name}: {lost} is lost, {workloads} are recovered elsewhere"
        yield _event(f"recovery-started/{recovery.uid}", NotificationType.RECOVERY_STARTED, text, subject, began_s)
        deadline_s = began_s + spec.deadline_seconds
        if objective_outcome(spec, status, now) is ObjectiveOutcome.MISSED:
            waiting = [f"{w.tenant}/{w.workload}" for w in status.workloads if is_late(w, spec)]
            text = f"recovery {name} of {lost} is not complete after {spec.deadline_seconds:g} s: {_names(waiting)}"
            key = f"recovery-missed/{recovery.uid}"
            yield _event(key, NotificationType.RECOVERY_MISSED, text, subject, deadline_s)
        if status.recovered_at:
            at_s = parse_time(status.recovered_at)
            text = f"recovery {name} of {lost}: {workloads} serve after {at_s - began_s:.0f} s"
            yield _event(f"recovered/{recovery.uid}", NotificationType.RECOVERED, text, subject, at_s)


def _promise_events(view: View, now: float) -> Iterator[NotableEvent]:
    """One event per tenant: a region that is lost may leave thousands of objectives unbacked."""
    unbacked: dict[str, list[str]] = {}
    for workload in view.list(Workload):
        backing = workload.status.backing
        if backing is None or backing.backed or workload.metadata.terminating:
            continue
        if not backing.since or now - parse_time(backing.since) >= UNBACKED_FOR_S:
            unbacked.setdefault(workload.metadata.namespace, []).append(workload.metadata.name)
    for tenant, names in unbacked.items():
        text = f"tenant {tenant}: {len(names)} recovery objectives are not backed: {_names(names)}"
        subject = EventSubject(kind="Tenant", name=tenant)
        yield _event(f"promise-unbacked/{tenant}", NotificationType.PROMISE_UNBACKED, text, subject)
    for budget in view.list(RecoveryBudget):
        proof, name = budget.status.last_proven, budget.metadata.name
        since_s = parse_time(proof.at if proof is not None else budget.metadata.creation_timestamp)
        if now - since_s > PROOF_AGE_MAX_S:
            last = f"last proven at {proof.at}" if proof is not None else "never proven"
            text = f"recoverybudget {name} is {last}; next: holdfast drill run region-loss --region REGION"
            subject = EventSubject(kind="RecoveryBudget", name=name)
            yield _event(f"not-proven/{budget.uid}", NotificationType.PROMISE_NOT_PROVEN, text, subject)


def _override_events(view: View, now: float) -> Iterator[NotableEvent]:
    for override in view.list(Override):
        name, spec, status = override.metadata.name, override.spec, override.status
        subject = EventSubject(kind="Override", name=name)
        if is_in_force(override, now) and spec.maintenance is None:
            soon_s = parse_time(status.expires_at) - min(OVERRIDE_SOON_S, spec.ttl_seconds / 4)
            if now >= soon_s:
                text = f"override {name} ({spec.kind}) of {spec.requester} ends at {status.expires_at}: {spec.reason}"
                key = f"override-expires/{override.uid}"
                yield _event(key, NotificationType.OVERRIDE_EXPIRES, text, subject, soon_s)
        if any(c.type == "Reverted" and c.status == "False" for c in status.conditions):
            text = f"override {name} ({spec.kind}) has ended, and its effect is not reverted"
            yield _event(f"override-overdue/{override.uid}", NotificationType.OVERRIDE_OVERDUE, text, subject)
        if spec.break_glass is not None:
            text = f"{spec.requester} used break-glass in region {spec.break_glass.region} ({spec.kind}): {spec.reason}"
            at_s = parse_time(override.metadata.creation_timestamp)
            key = f"break-glass-override/{override.uid}"
            yield _event(key, NotificationType.BREAK_GLASS_USED, text, subject, at_s)


def _session_events(sessions: Iterable[BreakGlassSession]) -> Iterator[NotableEvent]:
    for session in sessions:
        spec = session.spec
        scope = f"tenant {spec.tenant}" if spec.tenant else "all tenants"
        text = f"{spec.requester} opened break-glass access to {scope}: {spec.reason}"
        subject = EventSubject(kind="BreakGlassSession", name=session.metadata.name)
        at_s = parse_time(session.metadata.creation_timestamp)
        yield _event(f"break-glass/{session.uid}", NotificationType.BREAK_GLASS_USED, text, subject, at_s)


def _event(key: str, kind: NotificationType, message: str, subject: EventSubject, at_s: float = 0.0) -> NotableEvent:
    printable = "".join(c if c.isprintable() else " " for c in message)  # reasons are written by people
    line = " ".join(printable.split())[:NOTIFICATION_MESSAGE_CHARS_MAX]
    return NotableEvent(key[:NOTIFICATION_KEY_CHARS_MAX], kind, line, subject, at_s)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
