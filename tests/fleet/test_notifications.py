"""Which events are announced, and the queue of notifications as decisions on stored objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.expected import of_type, only
from tests.factories import cache_of, meta, workload

from holdfast.fleet import notifications as queue
from holdfast.fleet.notable_events import (
    NotableEvent,
    backup_warnings,
    certificate_warning,
    notable_events,
    warnings_of_sessions,
)
from holdfast.model.break_glass_session import BreakGlassSession, BreakGlassSessionSpec
from holdfast.model.meta import Condition
from holdfast.model.notification import (
    EventState,
    EventSubject,
    Notification,
    NotificationReceiver,
    NotificationReceiverSpec,
    NotificationReceiverStatus,
    NotificationType,
    ReceiverSecret,
    Severity,
    url_problem,
    validate_receiver,
)
from holdfast.model.override import (
    ACTIVE,
    Override,
    OverrideKind,
    OverrideScope,
    OverrideSpec,
    OverrideStatus,
    PlannedMaintenance,
)
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus, WorkloadProgress
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec
from holdfast.model.region import (
    CellWarning,
    HealthState,
    Region,
    RegionHealth,
    RegionReport,
    RegionSpec,
    RegionStatus,
    validate_region,
)
from holdfast.model.times import micro_text, parse_time, seconds_text
from holdfast.model.workload import BackingBlock, RecoveryObjective
from holdfast.model.writes import Create, Delete, SetStatus

NOW = parse_time("2026-12-01T22:00:00Z")
DAY = 86400.0
LOST = NotificationType.REGION_LOST


def region(state: HealthState = HealthState.LOST, **report: Any) -> Region:
    health = RegionHealth(state=state, since=micro_text(NOW - 5), message="no report for 45 s")
    status = RegionStatus(health=health, report=RegionReport(**report))
    return Region(meta("us-east"), RegionSpec(zones=("a",)), status)


def receiver(
    name: str = "pager", status: NotificationReceiverStatus | None = None, **spec: Any
) -> NotificationReceiver:
    given = {"url": "https://pager.example.com/x", "secret": ReceiverSecret("ops", "pager"), **spec}
    created = msgspec.structs.replace(meta(name), creation_timestamp=seconds_text(NOW - 10 * DAY))
    return NotificationReceiver(created, NotificationReceiverSpec(**given), status or NotificationReceiverStatus())


def going_on(key: str = "region-lost/u", kind: NotificationType = LOST) -> NotableEvent:
    return NotableEvent(key, kind, "region us-east is lost", EventSubject(kind="Region", name="us-east"))


def stored(made: object, **status: Any) -> Notification:
    item = of_type(made, Notification)
    named = msgspec.structs.replace(item.metadata, uid=f"uid-{item.metadata.name}", resource_version="1")
    return msgspec.structs.replace(
        item, metadata=named, status=msgspec.structs.replace(item.status, **status) if status else item.status
    )


def created(plan: queue.QueuePlan) -> list[Notification]:
    return [stored(w.object) for w in plan.writes if isinstance(w, Create)]


def types_of(*objects: Any, now: float = NOW, own: tuple[CellWarning, ...] = ()) -> list[str]:
    return [event.type.value for event in notable_events(cache_of(*objects), now, own)]


# --- events ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "announced"), [(5.0, False), (119.0, False), (120.0, True), (DAY, True)])
def test_unbacked_objective_is_an_event_only_if_it_lasts(age_s: float, announced: bool) -> None:
    """A platform that starts has no reports of its regions yet, so its objectives are unbacked for a moment."""
    block = BackingBlock(backed=False, reason="NotBacked", since=seconds_text(NOW - age_s))
    item = workload("api", recovery=RecoveryObjective(min_serving=1))
    item = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, backing=block))
    assert ("PromiseUnbacked" in types_of(item)) is announced


def test_lost_region_is_an_event_but_not_during_its_planned_maintenance() -> None:
    planned = Override(
        meta("kernels"),
        OverrideSpec(
            kind=OverrideKind.AVOID_REGION,
            scope=OverrideScope(region="us-east"),
            maintenance=PlannedMaintenance(window="kernels", starts_at=micro_text(NOW - 60)),
        ),
        OverrideStatus(phase=ACTIVE, expires_at=micro_text(NOW + 60)),
    )
    assert types_of(region()) == ["RegionLost"]
    assert types_of(region(), planned) == []
    assert types_of(region(HealthState.SUSPECT)) == []


def test_region_that_holds_work_is_an_event() -> None:
    assert types_of(region(HealthState.HEALTHY, holding="300 of 400 workloads vanished")) == ["RegionHoldsWork"]


def test_warnings_of_a_region_name_only_its_own_cell() -> None:
    warnings = (CellWarning("BackupFailed", "b", "disk full"), CellWarning("RegionLost", "x", "a lie"))
    events = notable_events(cache_of(region(HealthState.HEALTHY, warnings=warnings)), NOW)
    assert [(e.type.value, e.subject.name) for e in events] == [("BackupFailed", "us-east")]


def test_message_of_a_hostile_region_has_one_bounded_line() -> None:
    warning = CellWarning("BackupFailed", "b", "a\nb\x00\x9bc" + "x" * 5000)
    event = only(notable_events(cache_of(region(HealthState.HEALTHY, warnings=(warning,))), NOW), NotableEvent)
    assert event.message.startswith("cell us-east: a b c")
    assert len(event.message) == 1000


def test_report_with_too_many_or_too_long_warnings_is_refused() -> None:
    many = region(warnings=tuple(CellWarning("BackupFailed", str(i)) for i in range(17)))
    long = region(warnings=(CellWarning("BackupFailed", "k", "x" * 501),))
    assert [cause.field for cause in validate_region(many, None)] == ["status.report.warnings"]
    assert [cause.field for cause in validate_region(long, None)] == ["status.report.warnings"]
    assert not list(validate_region(region(warnings=(CellWarning("BackupFailed", "k", "x" * 500),)), None))


@pytest.mark.parametrize(
    ("status", "now", "expected"),
    [
        (RecoveryStatus(), NOW + 60, ["RecoveryStarted"]),
        (RecoveryStatus(), NOW + 301, ["RecoveryMissed", "RecoveryStarted"]),
        (
            RecoveryStatus(phase=RecoveryPhase.RECOVERED, recovered_at=micro_text(NOW + 100)),
            NOW + 400,
            ["Recovered", "RecoveryStarted"],
        ),
        (
            RecoveryStatus(phase=RecoveryPhase.RECOVERED, recovered_at=micro_text(NOW + 350)),
            NOW + 400,
            ["Recovered", "RecoveryMissed", "RecoveryStarted"],
        ),
        (RecoveryStatus(phase=RecoveryPhase.CLOSED), NOW + 2 * DAY, []),
    ],
)
def test_recovery_events_follow_its_deadline(status: RecoveryStatus, now: float, expected: list[str]) -> None:
    progress = msgspec.structs.replace(status, workloads=(WorkloadProgress("shop", "checkout", serving=1),))
    spec = RecoverySpec(region="us-east", started_at=micro_text(NOW), deadline_seconds=300)
    assert sorted(types_of(Recovery(meta("r1"), spec, progress), now=now)) == expected


@pytest.mark.parametrize(("left_s", "expected"), [(901.0, []), (899.0, ["OverrideExpires"]), (-1.0, [])])
def test_override_is_announced_a_quarter_of_an_hour_before_its_end(left_s: float, expected: list[str]) -> None:
    spec = OverrideSpec(kind=OverrideKind.PAUSE_REPAIR, ttl_seconds=7200)
    status = OverrideStatus(phase=ACTIVE, expires_at=micro_text(NOW + left_s))
    assert types_of(Override(meta("pause"), spec, status)) == expected


def test_override_whose_effect_stays_is_overdue_until_it_is_reverted() -> None:
    spec = OverrideSpec(kind=OverrideKind.PAUSE_REPAIR)
    stays = OverrideStatus(phase="Expired", conditions=(Condition(type="Reverted", status="False"),))
    gone = OverrideStatus(phase="Expired", conditions=(Condition(type="Reverted", status="True"),))
    assert types_of(Override(meta("pause"), spec, stays)) == ["OverrideOverdue"]
    assert types_of(Override(meta("pause"), spec, gone)) == []


@pytest.mark.parametrize(("age_days", "expected"), [(29, []), (31, ["PromiseNotProven"])])
def test_budget_without_a_proof_for_thirty_days_is_an_event(age_days: int, expected: list[str]) -> None:
    made = msgspec.structs.replace(meta("shop"), creation_timestamp=seconds_text(NOW - age_days * DAY))
    assert types_of(RecoveryBudget(made, RecoveryBudgetSpec(region="us-east"))) == expected


def test_backup_and_certificate_warnings_have_thresholds() -> None:
    fresh, old = seconds_text(NOW - DAY + 60), seconds_text(NOW - DAY - 60)
    assert [w.type for w in backup_warnings(fresh, "", "", NOW)] == []
    assert [w.type for w in backup_warnings("", "", "", NOW)] == []
    assert [w.type for w in backup_warnings(old, fresh, "disk full", NOW)] == ["BackupFailed", "BackupTooOld"]
    assert certificate_warning("server.pem", NOW + 3 * DAY + 1, NOW) is None
    assert certificate_warning("server.pem", NOW + 3 * DAY - 1, NOW) is not None
    assert certificate_warning("server.pem", 0.0, NOW) is None  # a file that is being replaced


# --- queue -----------------------------------------------------------------------------------------------------


def test_event_that_goes_on_is_announced_once_and_resolved_in_the_same_transaction_as_its_end() -> None:
    raised = only(created(queue.plan_queue([going_on()], [], [receiver()], NOW)), Notification)
    assert (raised.spec.state, raised.spec.receivers) == (EventState.RAISED, ("pager",))
    assert queue.plan_queue([going_on()], [raised], [receiver()], NOW + 60).writes == ()
    ended = queue.plan_queue([], [raised], [receiver()], NOW + 60)
    assert [type(w) for w in ended.writes] == [SetStatus, Create]
    resolved = only(created(ended), Notification)
    assert (resolved.spec.state, resolved.spec.resolves) == (EventState.RESOLVED, raised.metadata.name)


def test_event_that_comes_and_goes_is_announced_again_only_after_a_pause() -> None:
    raised = stored(created(queue.plan_queue([going_on()], [], [receiver()], NOW))[0], resolved_at=micro_text(NOW + 1))
    soon = queue.plan_queue([going_on()], [raised], [receiver()], NOW + queue.REPEAT_MIN_S - 1)
    later = queue.plan_queue([going_on()], [raised], [receiver()], NOW + queue.REPEAT_MIN_S + 1)
    assert not soon.writes
    assert only(created(later), Notification).metadata.name != raised.metadata.name


def test_event_without_an_end_is_announced_once_for_as_long_as_it_is_looked_at() -> None:
    event = msgspec.structs.replace(going_on("break-glass/u"), at_s=NOW)
    told = only(created(queue.plan_queue([event], [], [receiver()], NOW + 1)), Notification)
    for later_s in (2.0, 600.0, DAY - 1):
        assert not queue.plan_queue([event], [told], [receiver()], NOW + later_s).writes


def test_new_receiver_gets_events_that_go_on_and_none_from_before_it() -> None:
    new = receiver()
    new = msgspec.structs.replace(
        new, metadata=msgspec.structs.replace(new.metadata, creation_timestamp=seconds_text(NOW))
    )
    past = msgspec.structs.replace(going_on("break-glass/u"), at_s=NOW - 60)
    made = created(queue.plan_queue([going_on(), past], [], [new], NOW + 1))
    assert [n.spec.key for n in made] == ["region-lost/u"]


def test_filters_choose_receivers_by_severity_and_type() -> None:
    receivers = [
        receiver("all", min_severity=Severity.INFO),
        receiver("critical", min_severity=Severity.CRITICAL),
        receiver("backups", types=("BackupFailed",)),
        receiver("off", suspend=True),
    ]
    plan = queue.plan_queue([going_on("k", NotificationType.BACKUP_FAILED)], [], receivers, NOW)
    assert only(created(plan), Notification).spec.receivers == ("all", "backups")


def test_full_queue_makes_events_wait_and_announces_them_later() -> None:
    events = [going_on(f"region-lost/{n}") for n in range(3)]
    full = [
        stored(created(queue.plan_queue([going_on(f"old/{n}")], [], [receiver()], NOW))[0])
        for n in range(queue.NOTIFICATIONS_MAX - 1)
    ]
    present = [*events, *(going_on(f"old/{n}") for n in range(queue.NOTIFICATIONS_MAX - 1))]
    plan = queue.plan_queue(present, full, [receiver()], NOW + 1)
    assert (len(created(plan)), plan.waiting) == (1, 2)


def test_broken_cell_cannot_fill_the_queue() -> None:
    flood = [
        NotableEvent(f"cell/x/BackupFailed/{n}", NotificationType.BACKUP_FAILED, "m", EventSubject("Cell", name="x"))
        for n in range(200)
    ]
    kept: list[Notification] = []
    for look in range(20):
        kept += created(queue.plan_queue(flood, kept, [receiver()], NOW + look))
    assert len(kept) == queue.CELL_EVENTS_PER_HOUR_MAX


def test_notification_is_deleted_when_its_event_is_over_and_every_delivery_has_ended() -> None:
    raised = created(queue.plan_queue([going_on()], [], [receiver()], NOW))[0]
    later = NOW + queue.NOTIFICATION_KEPT_S + 1
    assert not queue.plan_queue([going_on()], [raised], [receiver()], later).writes
    over = stored(raised, resolved_at=micro_text(NOW + 1))
    assert not queue.plan_queue([], [over], [receiver()], later).writes  # not delivered yet
    (gone,) = queue.plan_queue([], [over], [], later).writes  # its receiver is deleted
    assert isinstance(gone, Delete)


# --- deliveries ------------------------------------------------------------------------------------------------


def test_refused_notification_goes_behind_the_others() -> None:
    first, second = (created(queue.plan_queue([going_on(k)], [], [receiver()], NOW))[0] for k in ("a", "b"))
    assert queue.next_delivery(receiver(), [first, second], NOW) is not None
    writes = queue.record_attempt(receiver(), first, NOW, error="HTTP status 400", pause_s=5, left=1)
    row = of_type(writes[0], SetStatus).blocks["deliveries"]
    refused = stored(first, deliveries=row)
    assert queue.next_delivery(receiver(), [refused, second], NOW) == second


def test_failure_pauses_the_receiver_and_success_ends_the_pause() -> None:
    item = created(queue.plan_queue([going_on()], [], [receiver()], NOW))[0]
    failed = of_type(queue.record_attempt(receiver(), item, NOW, error="refused", pause_s=5, left=0)[1], SetStatus)
    assert (failed.blocks["failures"], failed.blocks["pending"], failed.blocks["delivered"]) == (1, 1, 0)
    paused = receiver(status=NotificationReceiverStatus(failures=1, next_attempt_at=failed.blocks["nextAttemptAt"]))
    assert queue.next_delivery(paused, [item], NOW + 4.9) is None
    assert queue.next_delivery(paused, [item], NOW + 5.1) == item
    passed = of_type(queue.record_attempt(paused, item, NOW + 6, error="", pause_s=5, left=0)[1], SetStatus)
    assert (passed.blocks["failures"], passed.blocks["nextAttemptAt"], passed.blocks["delivered"]) == (0, "", 1)


def test_delivery_that_fails_for_a_day_is_dropped_and_counted() -> None:
    item = created(queue.plan_queue([going_on()], [], [receiver()], NOW))[0]
    late = NOW + queue.DELIVERY_AGE_MAX_S + 1
    writes = queue.record_attempt(receiver(), item, late, error="refused", pause_s=5, left=0)
    (row,) = of_type(writes[0], SetStatus).blocks["deliveries"]
    assert row.state == "Dropped"
    assert of_type(writes[1], SetStatus).blocks["dropped"] == 1
    assert queue.next_delivery(receiver(), [stored(item, deliveries=(row,))], late) is None


# --- receivers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "loopback", "allowed"),
    [
        ("https://pager.example.com/hook?team=a", False, True),
        ("https://[2001:db8::1]:8443/hook", False, True),
        ("http://127.0.0.1:9000/hook", True, True),
        ("http://127.0.0.1:9000/hook", False, False),
        ("http://pager.example.com/hook", True, False),
        ("http://127.0.0.1.example.com/", True, False),
        ("https://user:password@pager.example.com/", False, False),
        ("https://pager.example.com\\@127.0.0.1/", False, False),
        ("https://pager.example.com/a b", False, False),
        ("https://pager.example.com/\r\nHost: x", False, False),
        ("https://pager.example.com:99999/", False, False),
        ("https://pager.example.com/#x", False, False),
        ("file:///etc/passwd", True, False),
        ("gopher://127.0.0.1/", True, False),
    ],
)
def test_url_of_a_receiver_is_https_or_named_loopback(url: str, loopback: bool, allowed: bool) -> None:
    assert (url_problem(url, allow_loopback=loopback) == "") is allowed
    fields = [cause.field for cause in validate_receiver(receiver(url=url, allow_loopback=loopback), None)]
    assert fields == ([] if allowed else ["spec.url"])


def test_unknown_event_type_is_refused() -> None:
    assert [c.field for c in validate_receiver(receiver(types=("Nonsense",)), None)] == ["spec.types[0]"]


def test_page_lists_every_type_with_its_severity() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "notifications.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("|")]
    listed = {row[1]: row[2] for row in rows if len(row) > 5}
    del listed["type"], listed["---"]
    assert listed == {kind.value: kind.severity.value for kind in NotificationType}


def test_url_is_in_the_receiver_or_in_its_secret() -> None:
    hidden = ReceiverSecret("ops", "pager", url_key="url")
    assert not list(validate_receiver(receiver(url="", secret=hidden), None))
    assert [c.field for c in validate_receiver(receiver(secret=hidden), None)] == ["spec.url"]
    assert [c.field for c in validate_receiver(receiver(url=""), None)] == ["spec.url"]


def test_report_of_a_region_names_neither_people_nor_paths() -> None:
    """Tenants can read the reports of regions."""
    made = msgspec.structs.replace(meta("s1"), creation_timestamp=seconds_text(NOW))
    session = BreakGlassSession(made, BreakGlassSessionSpec(reason="INC-7: secret customer", requester="ann"))
    (warning,) = warnings_of_sessions([session], NOW)
    assert (warning.type, warning.at_s) == ("BreakGlassUsed", NOW)
    assert "ann" not in warning.message
    assert "INC-7" not in warning.message
    assert not list(warnings_of_sessions([session], NOW + 2 * DAY))
    (failed,) = backup_warnings("", seconds_text(NOW), "", NOW)
    assert "machine says why" in failed.message
