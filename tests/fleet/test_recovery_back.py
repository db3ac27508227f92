"""Failback: not before ordinary replicas serve, unless none are desired."""

from __future__ import annotations

import pytest

from holdfast.fleet import recovery_back
from holdfast.model.assignment import Purpose
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.workload import RecoveryPromise
from holdfast.model.writes import Update
from making import assignment, meta, region, view, workload


@pytest.mark.parametrize(("replicas", "emptied"), [(0, [0]), (2, [])], ids=["scaled to nothing", "not home yet"])
def test_failback_without_ordinary_replicas_needs_zero_desired_replicas(replicas: int, emptied: list[int]) -> None:
    incident = Recovery(
        metadata=meta("east-1"),
        spec=RecoverySpec(region="east"),
        status=RecoveryStatus(phase=RecoveryPhase.FAILING_BACK),
    )
    made = workload(replicas=replicas, recovery=RecoveryPromise(min_serving=2))
    borrowed = assignment(where="west", replicas=2, purpose=Purpose.RECOVERY)
    seen = view(incident, made, borrowed, region("east"), region("west"))
    writes = recovery_back.give_back(incident, seen)
    assert [w.object.spec.replicas for w in writes if isinstance(w, Update)] == emptied
