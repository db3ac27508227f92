"""Failback: not before ordinary replicas serve, unless none are desired."""

from __future__ import annotations

import pytest
from tests.expected import of_type
from tests.factories import assignment, cache_of, meta, region, workload

from holdfast.fleet.recovery import failback
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.workload import RecoveryObjective
from holdfast.model.writes import Update


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
