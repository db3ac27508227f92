"""Which changes wake assign and backing: mere progress does not, everything else does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import TEMPLATE, assignment, cache_of, meta, region, with_new_revision, workload

from holdfast.fleet import assign_wakes as wakes
from holdfast.fleet.recovery import backing
from holdfast.fleet.recovery.need import critical_workloads
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.template import template_hash
from holdfast.model.workload import (
    RecoveryObjective,
    RolloutBlock,
    RolloutPhase,
    Workload,
    WorkloadStatus,
    WorkloadType,
)

WORKLOAD = workload()
KEY = (Key("acme", "api"),)


def _told(held: Assignment, **status: Any) -> Assignment:
    found: Assignment = with_new_revision(held, status=msgspec.structs.replace(held.status, **status))
    return found


def test_assignment_created_by_assign_does_not_wake_it() -> None:
    assert wakes.woken_by_assignment(assignment(), None, cache_of(WORKLOAD)) == ()
    assert wakes.woken_by_assignment(assignment(purpose=Purpose.RECOVERY), None, cache_of(WORKLOAD)) == KEY
    heard = assignment(status=AssignmentStatus(observed_epoch=1, replicas=3))
    assert wakes.woken_by_assignment(heard, None, cache_of(WORKLOAD)) == KEY


def test_end_of_region_avoidance_wakes_all_workloads() -> None:
    def avoided(phase: str, kind: OverrideKind = OverrideKind.AVOID_REGION) -> Override:
        spec = OverrideSpec(kind=kind, scope=OverrideScope(region="us-east"), reason="x")
        return Override(meta("o"), spec, OverrideStatus(phase=phase))

    cache = cache_of(WORKLOAD)
    active, over = avoided("Active"), avoided("Expired")
    assert wakes.woken_by_override(over, active, cache) == list(KEY)
    assert wakes.woken_by_override(None, active, cache) == list(KEY)
    assert wakes.woken_by_override(active, None, cache) == () and wakes.woken_by_override(active, over, cache) == ()
    assert wakes.woken_by_override(None, over, cache) == ()
    zone, other = OverrideKind.AVOID_ZONE, OverrideKind.PAUSE_REPAIR
    assert wakes.woken_by_override(avoided("Expired", zone), avoided("Active", zone), cache) == list(KEY)
    assert wakes.woken_by_override(avoided("Expired", other), avoided("Active", other), cache) == ()


def test_progress_in_the_only_region_does_not_wake_assign() -> None:
    held = assignment()
    new = _told(held, observed_epoch=1, replicas=3, bound=2)
    assert wakes.woken_by_assignment(new, held, cache_of(WORKLOAD, new)) == ()


@pytest.mark.parametrize("told", [{"serving": 3}, {"observed_epoch": 1}, {"replicas": 3}, {"evictions_blocked": 1}])
def test_progress_in_one_of_two_regions_wakes_assign(told: dict[str, int]) -> None:
    held = assignment()
    new = _told(held, **told)
    assert wakes.woken_by_assignment(new, held, cache_of(WORKLOAD, new, assignment(where="eu-west"))) == KEY


def test_replica_stage_progress_does_not_wake_assign() -> None:
    held = assignment()
    new = _told(held, bound=1, queued=2, ready=1)
    assert wakes.woken_by_assignment(new, held, cache_of(WORKLOAD, new, assignment(where="eu-west"))) == ()


def test_changed_or_deleted_assignment_wakes_assign() -> None:
    held = assignment()
    changed = with_new_revision(held, spec=msgspec.structs.replace(held.spec, epoch=2))
    assert wakes.woken_by_assignment(changed, held, cache_of(WORKLOAD, changed)) == KEY
    assert wakes.woken_by_assignment(None, held, cache_of(WORKLOAD)) == KEY
    emptied = with_new_revision(held, spec=msgspec.structs.replace(held.spec, replicas=0))
    assert wakes.woken_by_assignment(_told(emptied, observed_epoch=1), emptied, cache_of(WORKLOAD, emptied)) == KEY
    going = msgspec.structs.replace(
        WORKLOAD, metadata=msgspec.structs.replace(WORKLOAD.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert wakes.woken_by_assignment(_told(held, replicas=0, observed_epoch=1), held, cache_of(going, held)) == KEY


def _rolling(phase: RolloutPhase, revision: str = template_hash(TEMPLATE)) -> Workload:
    block = RolloutBlock(revision=revision, phase=phase, regions=("us-east",))
    found: Workload = with_new_revision(WORKLOAD, status=WorkloadStatus(rollout=block))
    return found


def test_rollout_without_template_change_does_not_wake_assign() -> None:
    for phase in (RolloutPhase.PROGRESSING, RolloutPhase.COMPLETE):
        assert wakes.woken_by_workload(_rolling(phase), WORKLOAD, cache_of(assignment())) == ()


def test_rollout_progress_or_rollback_wakes_assign() -> None:
    other = msgspec.structs.replace(TEMPLATE, command=("another",))
    assert wakes.woken_by_workload(_rolling(RolloutPhase.ROLLING_BACK), WORKLOAD, cache_of(assignment())) == KEY
    assert wakes.woken_by_workload(_rolling(RolloutPhase.PROGRESSING), WORKLOAD, cache_of()) == KEY
    behind = cache_of(assignment(), assignment(where="eu-west", template=other))
    assert wakes.woken_by_workload(_rolling(RolloutPhase.PROGRESSING), WORKLOAD, behind) == KEY


def test_only_critical_workloads_wake_backing() -> None:
    plain, promised = workload(), workload(recovery=RecoveryObjective(min_serving=1))
    assert backing.woken_by_workload(plain, None, cache_of()) == ()
    assert backing.woken_by_workload(promised, None, cache_of()) == (backing.ALL_OBJECTIVES,)
    assert backing.woken_by_workload(plain, promised, cache_of()) == (backing.ALL_OBJECTIVES,)
    assert backing.woken_by_workload(None, promised, cache_of()) == (backing.ALL_OBJECTIVES,)
    assert backing.woken_by_workload(with_new_revision(promised), promised, cache_of()) == ()
    held = assignment()
    assert backing.woken_by_assignment(held, None, cache_of(plain)) == ()
    assert backing.woken_by_assignment(held, None, cache_of(promised)) == (backing.ALL_OBJECTIVES,)
    assert backing.woken_by_assignment(None, held, cache_of(promised)) == (backing.ALL_OBJECTIVES,)


def test_region_wakes_all_workloads_at_its_first_report_and_not_at_the_next() -> None:
    reporting = region("us-east")
    silent = msgspec.structs.replace(reporting, status=msgspec.structs.replace(reporting.status, report=None))
    cache = cache_of(WORKLOAD)
    assert list(wakes.woken_by_region(reporting, silent, cache)) == list(KEY)
    assert list(wakes.woken_by_region(reporting, reporting, cache)) == []
    assert list(wakes.woken_by_region(None, reporting, cache)) == list(KEY)


def test_batch_with_recovery_objective_is_not_recovered() -> None:
    """Validation refuses it; a stored one must not start twice either."""
    promise = RecoveryObjective(min_serving=1)
    assert [c.name for c in critical_workloads(cache_of(workload(recovery=promise)))] == ["api"]
    assert critical_workloads(cache_of(workload(recovery=promise, type=WorkloadType.BATCH))) == []
