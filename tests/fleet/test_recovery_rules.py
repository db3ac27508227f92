"""Opening, status, start rate and failback of a recovery as tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, meta, priority, region, workload
from tests.fleet.test_region_health import AWAITING, EAST, HEALTHY, LOST, NOW_S, SUSPECT, seen

from holdfast.fleet.assign import stops_without_contact
from holdfast.fleet.recovery import failback, recover
from holdfast.fleet.recovery.need import critical_workloads
from holdfast.fleet.recovery.recover import CAPACITY_LOSS_GRACE_S, RECOVERY_STABLE_S, loss_evidence
from holdfast.fleet.recovery.recovery_status import (
    RECOVERY_CHECK_EVERY_S,
    budget_writes,
    phase_condition,
    stage_clock,
    status_write,
    suspension_writes,
)
from holdfast.fleet.recovery.start_rate import RECOVERY_START_BURST_S, RECOVERY_STARTS_PER_S, StartRateLimiter
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.meta import Condition, Key
from holdfast.model.quantity import Amount
from holdfast.model.quota import Grant, GrantClass, GrantSpec, GrantStatus
from holdfast.model.recovery import (
    Recovery,
    RecoveryPhase,
    RecoverySpec,
    RecoveryStatus,
    StageClock,
    StartRateLimit,
    WorkloadProgress,
)
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, RecoverySlotReport, Region, RegionHealth
from holdfast.model.times import micro_text
from holdfast.model.workload import ExclusiveScope, Exclusivity, RecoveryObjective
from holdfast.model.writes import Create, SetStatus, Update

replace = msgspec.structs.replace

# Start rate


def test_starts_are_limited_to_a_burst_of_the_rate() -> None:
    limiter = StartRateLimiter.from_status((), {"west": 4.0}, NOW_S)
    assert limiter.can_start("west", 2) and limiter.rate_limits() == ()
    limiter.record_start("west", 2)
    assert limiter.rate_limits() == (StartRateLimit("west", micro_text(NOW_S + 0.5)),)
    assert limiter.can_start("west", 2)
    limiter.record_start("west", 2)
    assert not limiter.can_start("west", 1), f"{RECOVERY_START_BURST_S:g} s of starts are ahead"
    assert limiter.can_start("north", 1), "other regions have their own rate"
    limiter.record_start("north", 1)
    assert limiter.rate_limits()[0] == StartRateLimit("north", micro_text(NOW_S + 1 / RECOVERY_STARTS_PER_S))


@pytest.mark.parametrize(
    ("next_in_s", "starts", "kept"), [(-5.0, True, False), (0.0, True, False), (0.9, True, True), (1.0, False, True)]
)
def test_stored_rate_limit_outlives_a_restart(next_in_s: float, *, starts: bool, kept: bool) -> None:
    lane = StartRateLimit("west", micro_text(NOW_S + next_in_s))
    limiter = StartRateLimiter.from_status((lane,), {"west": 10.0}, NOW_S)
    assert limiter.can_start("west", 1) is starts
    assert bool(limiter.rate_limits()) is kept
    limiter.record_start("west", 1)
    assert limiter.rate_limits() == (StartRateLimit("west", micro_text(NOW_S + max(0.0, next_in_s) + 0.1)),)


def test_later_work_waits_behind_work_that_had_to_wait() -> None:
    lanes = (StartRateLimit("west", micro_text(NOW_S + 5.0)),)
    limiter = StartRateLimiter.from_status(lanes, {}, NOW_S)
    assert not limiter.can_start("west", 1)
    limiter._next_s["west"] = NOW_S
    assert not limiter.can_start("west", 1)


# Status of a Recovery


def progress(serving: int, wanted: int = 2, **more: Any) -> WorkloadProgress:
    counts = {"assigned": serving, "bound": serving, "ready": serving, **more}
    return WorkloadProgress("acme", "api", wanted=wanted, serving=serving, **counts)


def test_stage_is_reached_when_every_workload_has_reached_it_and_stays() -> None:
    at = micro_text(NOW_S)
    assert stage_clock(StageClock(), (progress(2), progress(1)), NOW_S) == StageClock(detected_at=at)
    assert stage_clock(StageClock(), (progress(2), progress(3)), NOW_S) == StageClock(at, at, at, at, at)
    assert stage_clock(StageClock(), (progress(0, bound=2, assigned=2),), NOW_S) == StageClock(at, at, at)
    known = StageClock("a", "b", "c", "d", "e")
    assert stage_clock(known, (progress(0),), NOW_S) == known


def incident(name: str = "east-1", *, started_ago_s: float = 10.0, **status: Any) -> Recovery:
    spec = RecoverySpec(region="east", started_at=micro_text(NOW_S - started_ago_s), deadline_seconds=60.0)
    return Recovery(meta(name), spec, RecoveryStatus(**status))


@pytest.mark.parametrize(
    ("phase", "ago_s", "recovered_at", "status", "reason"),
    [
        (RecoveryPhase.OPEN, 10.0, "", "False", "Recovering"),
        (RecoveryPhase.OPEN, 60.0, "", "False", "Recovering"),
        (RecoveryPhase.OPEN, 60.5, "", "False", "ObjectiveMissed"),
        (RecoveryPhase.RECOVERED, 100.0, "then", "True", "Recovered"),
        (RecoveryPhase.FAILING_BACK, 100.0, "then", "True", "FailingBack"),
        (RecoveryPhase.FAILING_BACK, 100.0, "", "False", "FailingBack"),
        (RecoveryPhase.CLOSED, 100.0, "then", "True", "RecoveryClosed"),
        (RecoveryPhase.CLOSED, 100.0, "", "False", "RecoveryClosed"),
    ],
)
def test_condition_of_a_recovery_follows_its_phase_outcome_and_deadline(
    phase: RecoveryPhase, ago_s: float, recovered_at: str, status: str, reason: str
) -> None:
    rows = (progress(2), progress(1, reason="NoTarget"), progress(0))
    now = RecoveryStatus(phase=phase, workloads=rows, recovered_at=recovered_at)
    found = phase_condition(incident(started_ago_s=ago_s), now, NOW_S)
    assert (found.status, found.reason) == (status, reason)
    assert found.message.startswith("1 of 3 critical workload(s) serve elsewhere")
    assert ("acme/api: NoTarget" in found.message) is (phase is RecoveryPhase.OPEN)
    undated = replace(incident(), spec=replace(incident().spec, started_at=""))
    assert phase_condition(undated, RecoveryStatus(), NOW_S).reason == "Recovering"


def test_recovery_status_is_written_only_if_it_changed() -> None:
    first = present(status_write(incident(), RecoveryStatus(), NOW_S))
    known = replace(incident(), status=RecoveryStatus(conditions=tuple(present(first.conditions))))
    assert status_write(known, known.status, NOW_S) is None
    changed = present(status_write(known, replace(known.status, stable_since=micro_text(NOW_S)), NOW_S))
    assert changed.blocks == {"stableSince": micro_text(NOW_S)}
    assert status_write(known, known.status, NOW_S + 600.0) is not None, "the objective is missed by now"


def test_only_ordinary_assignments_of_the_region_are_suspended() -> None:
    mine = assignment("a", "east", epoch=4)
    others = (
        assignment("b", "west"),
        assignment("c", "east", suspended=True),
        replace(assignment("d", "east"), metadata=meta("d.east", "acme", deletion_timestamp="2026-01-01T00:00:10Z")),
        replace(assignment("e", "east", purpose=Purpose.RECOVERY), metadata=meta("e.east.recovery", "acme")),
    )
    cache = cache_of(mine, *others)
    (write,) = suspension_writes("east", cache, suspended=True)
    item = of_type(of_type(write, Update).object, Assignment)
    assert (item.spec.workload, item.spec.suspended, item.spec.epoch) == ("a", True, 5)
    (write,) = suspension_writes("east", cache, suspended=False)
    assert of_type(of_type(write, Update).object, Assignment).spec.workload == "c"


def slots(zone: str, admitted: int, consumed: int = 0, *, shape: int = 0, budget: str = "b") -> RecoverySlotReport:
    return RecoverySlotReport(budget, zone, shape, admitted=admitted, consumed=consumed)


@pytest.mark.parametrize(
    ("reported", "whole", "admitted", "consumed"),
    [
        ([slots("a", 1), slots("b", 1, 1)], True, 2, 1),
        ([slots("a", 2)], False, 2, 0),
        ([slots("a", 1)], False, 1, 0),
        ([slots("a", 2), slots("b", 0)], False, 2, 0),
        ([slots("a", 1), slots("b", 1, budget="other")], False, 1, 0),
        ([slots("a", 1), slots("b", 1, shape=1)], False, 2, 0),
        ([], False, 0, 0),
    ],
)
def test_budget_is_admitted_if_all_slots_are_in_enough_zones(
    reported: list[RecoverySlotReport], admitted: int, consumed: int, *, whole: bool
) -> None:
    made = RecoveryBudget(meta("b"), RecoveryBudgetSpec("east", (SlotShape({"cpu": "1"}, count=2, min_zones=2),)))
    other = RecoveryBudget(meta("a"), RecoveryBudgetSpec("west", (SlotShape({"cpu": "1"}),)))
    where = seen("east", recovery_slots=tuple(reported))
    (write,) = budget_writes(where, cache_of(other, made))
    write = of_type(write, SetStatus)
    (condition,) = present(write.conditions)
    assert (write.key, condition.status) == (made.key, "True" if whole else "False")
    assert condition.reason == ("SlotsAdmitted" if whole else "SlotsUnschedulable")
    assert (write.blocks["admitted"], write.blocks["consumed"]) == (admitted, consumed)
    status = replace(made.status, admitted=admitted, consumed=consumed, conditions=(condition,), observed_generation=1)
    assert budget_writes(where, cache_of(replace(made, status=status))) == []
    for changed in (
        replace(status, admitted=9),
        replace(status, consumed=9),
        replace(status, observed_generation=0),
        replace(status, conditions=()),
    ):
        assert len(budget_writes(where, cache_of(replace(made, status=changed)))) == 1


def test_single_slot_needs_one_zone_and_a_region_without_report_says_nothing() -> None:
    made = RecoveryBudget(meta("b"), RecoveryBudgetSpec("east", (SlotShape({"cpu": "1"}, count=1, min_zones=2),)))
    (write,) = budget_writes(seen("east", recovery_slots=(slots("a", 1),)), cache_of(made))
    assert present(of_type(write, SetStatus).conditions)[0].status == "True"
    unknown = replace(EAST, status=replace(EAST.status, report=None))
    assert budget_writes(unknown, cache_of(made)) == []


# Failback


@pytest.mark.parametrize(
    ("serving", "where", "suspended", "observed", "emptied"),
    [
        (2, EAST, False, 1, True),
        (1, EAST, False, 1, False),
        (2, EAST, True, 1, False),
        (2, EAST, False, 0, False),
        (2, seen("east", state=SUSPECT), False, 1, False),
    ],
)
def test_recovery_replicas_return_when_ordinary_ones_serve(
    *, serving: int, where: Region, suspended: bool, observed: int, emptied: bool
) -> None:
    made = workload(replicas=2, recovery=RecoveryObjective(min_serving=2))
    status = AssignmentStatus(observed_epoch=observed, replicas=2, serving=serving)
    normal = assignment(where="east", replicas=2, epoch=1, suspended=suspended, status=status)
    borrowed = assignment(where="west", replicas=2, epoch=3, purpose=Purpose.RECOVERY)
    borrowed = replace(borrowed, metadata=meta("api.west.recovery", "acme"))
    writes = failback.return_borrowed(incident(), cache_of(incident(), made, normal, borrowed, where, region("west")))
    found = [of_type(w.object, Assignment).spec for w in writes if isinstance(w, Update)]
    assert [(spec.replicas, spec.epoch) for spec in found] == ([(0, 4)] if emptied else [])


def recovery_grant(limit: str = "", acknowledged: str = "", used: str = "") -> Grant:
    def cpu(amount: str) -> dict[str, Amount]:
        return {"cpu": amount} if amount else {}

    spec = GrantSpec(region="west", grant_class=GrantClass.RECOVERY, limit=cpu(limit))
    return Grant(meta("west.recovery", "acme"), spec, GrantStatus(limit=cpu(acknowledged), used=cpu(used)))


@pytest.mark.parametrize(
    ("items", "left"),
    [
        ([], []),
        ([assignment(where="west", replicas=2, purpose=Purpose.RECOVERY)], ["2 recovery replica(s)"]),
        ([assignment(where="west", replicas=2)], []),
        ([recovery_grant()], []),
        ([recovery_grant(limit="1")], ["not returned"]),
        ([recovery_grant(acknowledged="1")], ["not returned"]),
        ([recovery_grant(used="1")], ["in use"]),
        ([seen("west", recovery_slots=(slots("a", 2, 1),))], ["1 recovery slot(s)"]),
        ([seen("west", recovery_slots=(slots("a", 2),))], []),
        ([seen("west", state=LOST, recovery_slots=(slots("a", 2, 1),))], []),
        ([assignment(where="east", suspended=True)], ["is suspended"]),
        ([assignment(where="west", suspended=True)], []),
        ([incident("west-1"), recovery_grant(limit="1"), assignment(where="east", suspended=True)], ["is suspended"]),
        ([incident("west-1", phase=RecoveryPhase.CLOSED), recovery_grant(limit="1")], ["not returned"]),
    ],
)
def test_recovery_closes_only_when_nothing_borrowed_is_left(items: list[Any], left: list[str]) -> None:
    found = failback.remaining_resources(incident(), cache_of(incident(), *items))
    assert len(found) == len(left) and all(text in row for text, row in zip(left, found, strict=True))


def test_failback_of_a_region_that_is_lost_again_opens_the_recovery() -> None:
    item = incident(phase=RecoveryPhase.FAILING_BACK, stable_since="x")
    found = failback.decide(item, seen("east", state=LOST), cache_of(item), NOW_S)
    write = of_type(found.writes[0], SetStatus)
    assert (write.blocks["phase"], write.blocks["stableSince"]) == (RecoveryPhase.OPEN, "")
    assert found.requeue_after_s == 0.0 and found.notices[0].warning


def test_failback_closes_the_recovery_and_is_checked_until_then() -> None:
    item = incident(phase=RecoveryPhase.FAILING_BACK)
    found = failback.decide(item, EAST, cache_of(item), NOW_S)
    write = of_type(found.writes[-1], SetStatus)
    assert (write.blocks["phase"], write.blocks["closedAt"]) == (RecoveryPhase.CLOSED, micro_text(NOW_S))
    assert found.requeue_after_s is None and not found.notices[0].warning
    left = failback.decide(item, EAST, cache_of(item, recovery_grant(limit="1")), NOW_S)
    assert of_type(left.writes[-1], SetStatus).blocks.keys() == {"remaining"}
    assert left.requeue_after_s is not None and left.notices == ()
    held = assignment(where="east", suspended=True)
    resumed = failback.decide(item, EAST, cache_of(item, held), NOW_S)
    assert isinstance(resumed.writes[0], Update) and resumed.requeue_after_s is not None


@pytest.mark.parametrize(
    "made",
    [
        None,
        workload(replicas=2),
        replace(
            workload(replicas=2, recovery=RecoveryObjective(min_serving=2)),
            metadata=meta("api", "acme", deletion_timestamp="2026-01-01T00:00:10Z"),
        ),
    ],
    ids=["deleted", "not critical any more", "being deleted"],
)
def test_recovery_replicas_of_work_that_needs_none_return_at_once(made: Any) -> None:
    borrowed = assignment(where="west", replicas=2, purpose=Purpose.RECOVERY)
    items = [item for item in (made,) if item is not None]
    normal = replace(assignment(where="east", replicas=2), metadata=meta("api.east.n", "acme"))
    writes = failback.return_borrowed(incident(), cache_of(incident(), *items, normal, borrowed, EAST, region("west")))
    assert [of_type(w.object, Assignment).spec.replicas for w in writes if isinstance(w, Update)] == [0]


@pytest.mark.parametrize(
    ("scope", "state", "stops"),
    [
        (ExclusiveScope.GLOBAL, LOST, True),
        (ExclusiveScope.GLOBAL, AWAITING, True),
        (ExclusiveScope.GLOBAL, SUSPECT, False),
        (ExclusiveScope.GLOBAL, HEALTHY, False),
        (ExclusiveScope.REGION, LOST, False),
        (None, LOST, False),
    ],
)
def test_exclusive_work_under_a_tenure_stops_in_a_region_out_of_contact(
    *, scope: ExclusiveScope | None, state: HealthState, stops: bool
) -> None:
    made = workload(exclusive=Exclusivity(scope=scope) if scope is not None else None)
    assert stops_without_contact(made, seen("east", state=state)) is stops


@pytest.mark.parametrize(("contact", "lost_at"), [("2026-01-01T00:00:05Z", "2026-01-01T00:00:05Z"), ("", "since")])
def test_region_is_lost_since_its_last_contact(contact: str, lost_at: str) -> None:
    health = RegionHealth(state=LOST, since="since", last_contact_at=contact, reason="UnreachableConfirmed")
    where = replace(EAST, status=replace(EAST.status, health=health))
    found = present(loss_evidence(where, cache_of(where), NOW_S))
    assert (found.lost_at, found.since, found.cause) == (lost_at, "since", "UnreachableConfirmed")


@pytest.mark.parametrize(
    ("purpose", "status", "expected"),
    [
        (Purpose.NORMAL, {}, 3),
        (Purpose.NORMAL, {"queued": 1}, 2),
        (Purpose.NORMAL, {"queued": 1, "unknown": 1}, 1),
        (Purpose.NORMAL, {"queued": 3, "serving": 2}, 2),
        (Purpose.RECOVERY, {"queued": 2}, 3),
        (Purpose.RECOVERY, {"queued": 2, "unknown": 1}, 2),
    ],
)
def test_replicas_that_serve_or_start_count_for_the_objective(
    purpose: Purpose, status: dict[str, Any], expected: int
) -> None:
    item = assignment(where="east", replicas=3, purpose=purpose, status=AssignmentStatus(**status))
    made = workload(recovery=RecoveryObjective(min_serving=2))
    (critical,) = critical_workloads(cache_of(made, item, priority(), EAST))
    assert critical.counts_in("east").serving_or_starting == expected


# Opening, recovering and waking


def short_of_capacity(ago_s: float, *, kind: str = "CapacityLost", status: str = "True") -> Region:
    since = micro_text(NOW_S - ago_s)
    condition = Condition(type=kind, status=status, reason="CapacityLost", message="", last_transition_time=since)
    return replace(EAST, status=replace(EAST.status, conditions=(condition,)))


@pytest.mark.parametrize(
    ("where", "again"),
    [
        (EAST, False),
        (short_of_capacity(1.0), True),
        (short_of_capacity(1.0, status="False"), False),
        (short_of_capacity(1.0, kind="Other"), False),
    ],
)
def test_region_that_has_just_lost_capacity_is_looked_at_again(where: Region, *, again: bool) -> None:
    found = recover.decide(Key("", "east"), cache_of(where), NOW_S)
    assert not found.writes and found.requeue_after_s == (RECOVERY_CHECK_EVERY_S if again else None)


@pytest.mark.parametrize(("ago_s", "opened"), [(CAPACITY_LOSS_GRACE_S - 0.5, False), (CAPACITY_LOSS_GRACE_S, True)])
def test_capacity_loss_opens_a_recovery_after_its_grace_if_critical_work_is_short(
    ago_s: float, *, opened: bool
) -> None:
    made = workload(recovery=RecoveryObjective(min_serving=2, deadline_seconds=90.0))
    item = assignment(where="east", replicas=3, status=AssignmentStatus(queued=3))
    found = recover.decide(
        Key("", "east"), cache_of(short_of_capacity(ago_s), region("west"), made, item, priority()), NOW_S
    )
    created = [of_type(w.object, Recovery) for w in found.writes if isinstance(w, Create)]
    assert [(r.spec.cause, r.spec.deadline_seconds) for r in created] == ([("CapacityLost", 90.0)] if opened else [])
    idle = recover.decide(Key("", "east"), cache_of(short_of_capacity(ago_s), region("west")), NOW_S)
    assert not [w for w in idle.writes if isinstance(w, Create)], "no critical work is short"


def test_lost_region_opens_one_recovery_with_a_warning() -> None:
    health = RegionHealth(state=LOST, since="2026-01-01T00:00:00Z", reason="UnreachableConfirmed")
    where = replace(EAST, status=replace(EAST.status, health=health))
    found = recover.decide(Key("", "east"), cache_of(where), NOW_S)
    (write,) = found.writes
    made = of_type(of_type(write, Create).object, Recovery)
    assert (made.metadata.name, made.spec.deadline_seconds) == ("east-20260101000000", 300.0)
    assert found.requeue_after_s == 0.0 and [notice.warning for notice in found.notices] == [True]
    closed = replace(made, metadata=meta(made.metadata.name), status=RecoveryStatus(phase=RecoveryPhase.CLOSED))
    assert recover.decide(Key("", "east"), cache_of(where, closed), NOW_S).writes == ()


@pytest.mark.parametrize(
    ("where", "stable_s", "phase", "since_s"),
    [
        (EAST, RECOVERY_STABLE_S, RecoveryPhase.FAILING_BACK, RECOVERY_STABLE_S),
        (EAST, RECOVERY_STABLE_S - 0.5, RecoveryPhase.RECOVERED, RECOVERY_STABLE_S - 0.5),
        (EAST, None, RecoveryPhase.RECOVERED, 0.0),
        (seen("east", state=SUSPECT), RECOVERY_STABLE_S, RecoveryPhase.RECOVERED, None),
        (short_of_capacity(1.0), RECOVERY_STABLE_S, RecoveryPhase.RECOVERED, None),
    ],
    ids=["stable", "not yet", "healthy since now", "suspect again", "short of capacity"],
)
def test_failback_begins_when_the_region_was_healthy_for_long_enough(
    where: Region, stable_s: float | None, phase: RecoveryPhase, since_s: float | None
) -> None:
    stable = micro_text(NOW_S - stable_s) if stable_s is not None else ""
    item = incident(stable_since=stable, phase=RecoveryPhase.OPEN)
    found = recover.decide(Key("", "east"), cache_of(item, where), NOW_S)
    (write,) = (w for w in found.writes if isinstance(w, SetStatus) and w.kind == "Recovery")
    assert write.blocks["phase"] is phase
    expected = micro_text(NOW_S - since_s) if since_s is not None else ""
    assert write.blocks.get("stableSince", stable) == expected
    assert found.requeue_after_s == RECOVERY_CHECK_EVERY_S
    assert [notice.reason for notice in found.notices] == [
        "FailingBack" if phase is RecoveryPhase.FAILING_BACK else "Recovered"
    ]
    again = replace(item, status=replace(item.status, phase=RecoveryPhase.RECOVERED, stable_since=""))
    quiet = recover.decide(Key("", "east"), cache_of(again, seen("east", state=SUSPECT)), NOW_S)
    assert quiet.notices == (), "it is told once"


def test_recovery_is_woken_by_regions_and_by_recoveries_of_others() -> None:
    assert list(recover.keys(cache_of(EAST, region("west")))) == [Key("", "east"), Key("", "west")]
    made = incident()
    assert list(recover.woken_by_recovery(made, None, cache_of())) == [Key("", "east")]
    assert list(recover.woken_by_recovery(None, made, cache_of())) == [Key("", "east")]
    assert list(recover.woken_by_recovery(made, made, cache_of())) == []
    used = seen("east", recovery_slots=(slots("a", 1),))
    for new, old, wakes in (
        (EAST, None, True),
        (None, EAST, False),
        (EAST, EAST, False),
        (used, EAST, True),
        (seen("east", state=LOST), EAST, True),
        (short_of_capacity(1.0), EAST, True),
    ):
        assert list(recover.woken_by_region(new, old, cache_of())) == ([Key("", "east")] if wakes else [])
