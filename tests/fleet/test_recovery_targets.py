"""A stalled recovery target is abandoned once; its serving replicas stay until the new target serves."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, meta, region, with_new_revision, workload
from tests.fleet.test_recover import NOW, Fleet, fleet

from holdfast.fleet.recovery import recover
from holdfast.fleet.recovery.targets import RECOVERY_STALL_FRACTION, RECOVERY_STALL_MIN_S
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason, Purpose
from holdfast.model.meta import Key, Object
from holdfast.model.reasons import Reason
from holdfast.model.recovery import RecoveryPhase, StartRateLimit, WorkloadProgress
from holdfast.model.region import HealthState, Region
from holdfast.model.times import micro_text
from holdfast.model.workload import Disruption, RecoveryObjective, RolloutBlock, RolloutPhase, Workload
from holdfast.model.writes import Create, Update

STUCK_S = 300.0 * RECOVERY_STALL_FRACTION


def report_counts(f: Fleet, where: str, *, bound: int, ready: int = 0, serving: int = 0, why: str = "") -> None:
    """Report of the region about its recovery replicas."""
    item = f.assignments(Purpose.RECOVERY)[("api0", where)]
    waiting = item.spec.replicas - bound
    pending = (PendingReason(reason=why, count=waiting, message="so it is"),) if why else ()
    status = AssignmentStatus(
        observed_epoch=item.spec.epoch,
        replicas=item.spec.replicas,
        queued=max(0, waiting),
        bound=bound,
        ready=ready,
        serving=serving,
        pending=pending,
    )
    f.cache.put(with_new_revision(item, status=status))


def opened_recovery(promise: RecoveryObjective | None = None) -> Fleet:
    """A workload that ran only in `a`, which is lost; the target is `b`."""
    items: list[Object] = [region(name) for name in ("a", "b", "c")]
    items.append(
        workload(
            "api0", replicas=4, priority_class_name="critical", recovery=promise or RecoveryObjective(min_serving=4)
        )
    )
    status = AssignmentStatus(observed_epoch=1, replicas=4, bound=4, ready=4, serving=4)
    items.append(assignment("api0", "a", replicas=4, status=status))
    f = Fleet(*items)
    f.health("a", HealthState.LOST)
    f.step("a")
    f.step("a")
    assert recovery_replicas(f) == {"b": 4}
    return f


def recovery_replicas(f: Fleet) -> dict[str, int]:
    return {where: a.spec.replicas for (_, where), a in f.assignments(Purpose.RECOVERY).items()}


def progress_row(f: Fleet) -> WorkloadProgress:
    (found,) = f.recovery.status.workloads
    return found


def wait(f: Fleet, seconds: float) -> None:
    f.now += seconds
    f.step("a")


def test_stalled_target_is_abandoned_in_time() -> None:
    f = opened_recovery()
    report_counts(f, "b", bound=4)
    f.step("a")
    wait(f, STUCK_S - 5.0)
    assert recovery_replicas(f) == {"b": 4} and progress_row(f).target == "b"
    f.now += 10.0
    notices = recover.decide(Key("", "a"), f.cache, f.now).notices
    assert [n.reason for n in notices] == [Reason.TARGET_STALLED] and "4 bound, 0 ready, 0 of 4" in notices[0].message
    f.step("a")
    assert progress_row(f).target == "c" and recovery_replicas(f) == {"b": 0, "c": 4}, (
        "nothing served in b, so nothing is kept there"
    )
    (left,) = progress_row(f).abandoned_targets
    assert (left.region, left.reason) == ("b", Reason.TARGET_STALLED) and "no progress" in left.message


def test_target_without_a_live_node_is_replaced_at_once() -> None:
    """All agents of the target hang after the recovery began: its cell still reports, so it stays Healthy."""
    f = opened_recovery()
    report_counts(f, "b", bound=0, why=Reason.NODE_UNREACHABLE)
    target = present(f.cache.get(Region, "b"))
    report = msgspec.structs.replace(present(target.status.report), nodes=2, live_nodes=0)
    f.cache.put(with_new_revision(target, status=msgspec.structs.replace(target.status, report=report)))
    wait(f, 1.0)
    wait(f, 1.0)
    assert progress_row(f).target == "c" and recovery_replicas(f) == {"b": 0, "c": 4}


@pytest.mark.parametrize("stage", ["bound", "ready", "serving"])
def test_progress_in_any_stage_keeps_the_target(stage: str) -> None:
    f = opened_recovery()
    reached = {"bound": 1, "ready": 0, "serving": 0}
    for count in range(1, 5):
        reached = {"bound": max(reached["bound"], count), **{k: reached[k] for k in ("ready", "serving")}, stage: count}
        report_counts(f, "b", bound=reached["bound"], ready=reached["ready"], serving=reached["serving"])
        wait(f, STUCK_S * 0.8)
    assert progress_row(f).target == "b" and not progress_row(f).abandoned_targets


def test_flapping_replica_is_not_counted_as_progress() -> None:
    f = opened_recovery()
    began = f.now
    while not progress_row(f).abandoned_targets and f.now < began + STUCK_S * 3:
        for ready in (1, 0):
            report_counts(f, "b", bound=4, ready=ready)
            wait(f, STUCK_S / 10)
    assert [left.region for left in progress_row(f).abandoned_targets] == ["b"] and progress_row(f).target == "c"


def test_serving_replicas_in_an_abandoned_target_stay_until_the_new_one_serves() -> None:
    f = opened_recovery()
    report_counts(f, "b", bound=4, ready=2, serving=2)
    f.step("a")
    wait(f, STUCK_S + 1)
    f.step("a")
    assert recovery_replicas(f) == {"b": 2, "c": 4}, "serving replicas are kept, the others release node and quota"
    report_counts(f, "b", bound=2, ready=2, serving=2)
    report_counts(f, "c", bound=4, ready=3, serving=3)
    f.step("a")
    assert recovery_replicas(f) == {"b": 2, "c": 4} and f.phase() is RecoveryPhase.OPEN
    report_counts(f, "c", bound=4, ready=4, serving=4)
    f.step("a")
    assert recovery_replicas(f) == {"b": 0, "c": 4} and f.recovery.status.phase is RecoveryPhase.RECOVERED
    report_counts(f, "b", bound=0)
    f.step("a")
    assert recovery_replicas(f) == {"c": 4}, "its Assignment is deleted once it is drained"


def test_old_target_without_allowance_for_both_is_emptied_when_new_target_serves_as_many() -> None:
    f = opened_recovery()
    report_counts(f, "b", bound=4, ready=2, serving=2)
    f.step("a")
    wait(f, STUCK_S + 1)
    report_counts(f, "b", bound=2, ready=2, serving=2)
    report_counts(f, "c", bound=2, ready=1, serving=1, why=Reason.QUOTA_EXCEEDED)
    f.step("a")
    assert recovery_replicas(f) == {"b": 2, "c": 4}
    report_counts(f, "c", bound=2, ready=2, serving=2, why=Reason.QUOTA_EXCEEDED)
    f.step("a")
    assert recovery_replicas(f) == {"b": 0, "c": 4}


def test_each_target_is_abandoned_once_and_the_last_one_stays() -> None:
    f = opened_recovery()
    for _ in range(40):
        for where in recovery_replicas(f):
            report_counts(f, where, bound=recovery_replicas(f)[where])
        wait(f, STUCK_S / 2)
    assert [left.region for left in progress_row(f).abandoned_targets] == ["b"] and progress_row(f).target == "c"
    assert progress_row(f).reason == Reason.TARGET_STALLED and "no other region is eligible" in progress_row(f).message
    assert recovery_replicas(f) == {"c": 4}


def test_waiting_for_start_rate_is_not_a_stall() -> None:
    f = opened_recovery()
    stored = f.assignments(Purpose.RECOVERY)[("api0", "b")]
    f.cache.remove(Assignment, stored.key, int(with_new_revision(stored).metadata.resource_version))
    item = f.recovery
    later = msgspec.structs.replace(
        item.status, start_rate_limits=(StartRateLimit(region="b", next_at=micro_text(NOW + 10_000)),)
    )
    f.cache.put(with_new_revision(item, status=later))
    for _ in range(10):
        wait(f, STUCK_S / 2)
    assert (
        progress_row(f).reason == Reason.WAITING_FOR_START_RATE
        and progress_row(f).target == "b"
        and not progress_row(f).abandoned_targets
    )


def test_shorter_deadline_abandons_the_target_sooner() -> None:
    quick = opened_recovery(RecoveryObjective(min_serving=4, deadline_seconds=30.0))
    report_counts(quick, "b", bound=4)
    quick.step("a")
    wait(quick, RECOVERY_STALL_MIN_S - 5)
    assert progress_row(quick).target == "b"
    wait(quick, 10)
    assert progress_row(quick).target == "c"


@pytest.mark.parametrize(
    ("phase", "regions", "serving", "unavailable", "stays"),
    [
        pytest.param(RolloutPhase.PROGRESSING, ("a", "b"), 3, 1, True, id="rolling out"),
        pytest.param(RolloutPhase.ROLLING_BACK, ("b",), 3, 1, True, id="rolling back"),
        pytest.param(RolloutPhase.PROGRESSING, ("b",), 2, 1, False, id="fewer serve than the rollout may stop"),
        pytest.param(RolloutPhase.PROGRESSING, ("b",), 1, 4, True, id="one serves, and all may be away"),
        pytest.param(RolloutPhase.PROGRESSING, ("b",), 0, 4, False, id="none serves"),
        pytest.param(RolloutPhase.PROGRESSING, ("c",), 3, 1, False, id="in another region"),
        pytest.param(RolloutPhase.PAUSED, ("b",), 3, 1, False, id="paused"),
        pytest.param(RolloutPhase.COMPLETE, ("b",), 3, 1, False, id="complete"),
    ],
)
def test_running_rollout_in_the_target_is_no_stall(
    phase: RolloutPhase, regions: tuple[str, ...], serving: int, unavailable: int, *, stays: bool
) -> None:
    f = opened_recovery()
    item = present(f.cache.get(Workload, "api0", "acme"))
    spec = msgspec.structs.replace(item.spec, disruption=Disruption(max_unavailable=unavailable))
    status = msgspec.structs.replace(item.status, rollout=RolloutBlock(phase=phase, regions=regions))
    f.cache.put(with_new_revision(msgspec.structs.replace(item, spec=spec), status=status))
    report_counts(f, "b", bound=4, ready=serving, serving=serving)
    f.step("a")
    wait(f, STUCK_S + 1)
    wait(f, 1.0)
    assert progress_row(f).target == ("b" if stays else "c")


def test_abandoned_target_is_used_again_if_it_is_the_only_one() -> None:
    """Second failure during a recovery: it continues from the present state and creates nothing twice."""
    f = opened_recovery()
    report_counts(f, "b", bound=4)
    f.step("a")
    wait(f, STUCK_S + 1)
    report_counts(f, "b", bound=0)
    f.step("a")
    assert recovery_replicas(f) == {"c": 4}
    f.health("c", HealthState.LOST)
    f.step("a")
    assert progress_row(f).target == "b" and recovery_replicas(f)["b"] == 4
    report_counts(f, "b", bound=4, ready=4, serving=4)
    f.step("a")
    f.step("a")
    assert f.recovery.status.phase is RecoveryPhase.RECOVERED
    assert recovery_replicas(f) == {"b": 4, "c": 0}, "replicas of the lost region are not needed when it returns"


def test_recovered_service_that_fails_again_gets_the_full_stall_time() -> None:
    f = opened_recovery()
    report_counts(f, "b", bound=4, ready=4, serving=4)
    f.step("a")
    assert f.recovery.status.phase is RecoveryPhase.RECOVERED and not progress_row(f).last_progress_at
    wait(f, STUCK_S * 10)
    report_counts(f, "b", bound=4, ready=3, serving=3)
    f.step("a")
    wait(f, STUCK_S / 2)
    assert progress_row(f).target == "b"
    wait(f, STUCK_S)
    assert progress_row(f).target == "c" and recovery_replicas(f) == {"b": 3, "c": 4}


def test_ordinary_replicas_of_an_abandoned_target_stay() -> None:
    f = fleet(1)
    f.health("a", HealthState.LOST)
    for _ in range(2):
        f.step("a")
    assert recovery_replicas(f) == {"b": 1}
    report_counts(f, "b", bound=1)
    f.step("a")
    wait(f, STUCK_S + 1)
    f.step("a")
    assert recovery_replicas(f) == {"b": 0, "c": 4}
    assert f.assignments(Purpose.NORMAL)[("api0", "b")].spec.replicas == 3


def test_target_used_by_another_recovery_is_not_emptied() -> None:
    f = opened_recovery()
    report_counts(f, "b", bound=4)
    f.step("a")
    mine = f.recovery
    spec = msgspec.structs.replace(mine.spec, region="d")
    other = msgspec.structs.replace(mine, metadata=meta("d-1"), spec=spec)
    f.cache.put(other)
    f.now += STUCK_S + 1
    outcome = recover.decide(Key("", "a"), f.cache, f.now)
    changed = {of_type(w.object, Assignment).spec.region for w in outcome.writes if isinstance(w, Create | Update)}
    assert changed == {"c"}, "the other recovery abandons b by its own clock; then b is released"
