"""Failback: not before ordinary replicas serve, unless none are desired."""

from __future__ import annotations

import pytest
from tests.expected import of_type
from tests.factories import assignment, cache_of, meta, region, workload

from holdfast.fleet.recovery import failback
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.workload import RecoveryObjective
from holdfast.model.writes import Delete, Update


@pytest.mark.parametrize(
    ("replicas", "emptied"), [(0, [0]), (2, [])], ids=["scaled to zero", "no ordinary replicas yet"]
)
def test_failback_without_ordinary_replicas_needs_zero_desired_replicas(replicas: int, emptied: list[int]) -> None:
    incident = Recovery(
        metadata=meta("east-1"),
        spec=RecoverySpec(region="east"),
        status=RecoveryStatus(phase=RecoveryPhase.FAILING_BACK),
    )
    made = workload(replicas=replicas, recovery=RecoveryObjective(min_serving=2))
    borrowed = assignment(where="west", replicas=2, purpose=Purpose.RECOVERY)
    seen = cache_of(incident, made, borrowed, region("east"), region("west"))
    writes = failback.return_borrowed(incident, seen)
    assert [of_type(w.object, Assignment).spec.replicas for w in writes if isinstance(w, Update)] == emptied


@pytest.mark.parametrize(
    ("observed_epoch", "left", "deleted"), [(3, 0, True), (2, 0, False), (3, 1, False), (2, 1, False)]
)
def test_emptied_recovery_assignment_is_deleted_after_its_region_has_stopped_all(
    observed_epoch: int, left: int, deleted: bool
) -> None:
    incident = Recovery(
        metadata=meta("east-1"),
        spec=RecoverySpec(region="east"),
        status=RecoveryStatus(phase=RecoveryPhase.FAILING_BACK),
    )
    status = AssignmentStatus(observed_epoch=observed_epoch, replicas=left)
    emptied = assignment(where="west", replicas=0, epoch=3, purpose=Purpose.RECOVERY, status=status)
    seen = cache_of(incident, workload(), emptied, region("east"), region("west"))
    writes = failback.return_borrowed(incident, seen)
    assert [isinstance(write, Delete) for write in writes] == [True] * deleted


def test_failback_returns_few_assignments_per_pass() -> None:
    incident = Recovery(
        metadata=meta("east-1"),
        spec=RecoverySpec(region="east"),
        status=RecoveryStatus(phase=RecoveryPhase.FAILING_BACK),
    )
    names = [f"web{number}" for number in range(failback.RETURNS_PER_PASS + 3)]
    objective = RecoveryObjective(min_serving=2)
    made = [workload(name, replicas=0, recovery=objective) for name in names]
    borrowed = [assignment(name, "west", replicas=2, purpose=Purpose.RECOVERY) for name in names]
    writes = failback.return_borrowed(incident, cache_of(incident, *made, *borrowed, region("east"), region("west")))
    assert len(writes) == failback.RETURNS_PER_PASS
