"""Decisions with past bugs found by simulations (docs/bugs.md), as unit tests."""

from __future__ import annotations

import msgspec

from holdfast.fleet.grant_demand import quota_demand
from holdfast.fleet.ordinals import assign_ordinals
from holdfast.model.assignment import Assignment, AssignmentSpec, AssignmentStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import Template
from holdfast.model.workload import Batch, Exclusivity, Rollout, WorkloadType


def assignment(region: str, **spec: object) -> Assignment:
    spec_object = AssignmentSpec(
        workload="job",
        workload_uid="u",
        region=region,
        revision="r",
        template=Template(resources={"cpu": "1"}),
        epoch=2,
    )
    spec_object = msgspec.structs.replace(spec_object, **spec)
    return Assignment(metadata=ObjectMeta(name=f"job.{region}.normal", namespace="acme"), spec=spec_object)


def status(item: Assignment, **values: object) -> Assignment:
    return msgspec.structs.replace(item, status=AssignmentStatus(**values))  # type: ignore[arg-type]


def test_finished_batch_has_no_quota_demand() -> None:
    batch = assignment("east", type=WorkloadType.BATCH, replicas=2, batch=Batch(completions=3, parallelism=2))
    assert cpu(batch) == 2000
    assert cpu(status(batch, succeeded=2)) == 1000
    assert cpu(status(batch, succeeded=3)) == 0
    assert cpu(status(batch, failed=7)) == 0
    assert cpu(status(batch, succeeded=3, bound=1)) == 1000


def test_rollout_in_progress_demands_no_more_than_its_surge() -> None:
    service = assignment("east", type=WorkloadType.SERVICE, replicas=3, rollout=Rollout(max_surge=1))
    changing = [status(service, bound=bound, replicas=3, updated=1, revision="r") for bound in (0, 3, 4, 6)]
    assert [cpu(item) for item in changing] == [4000, 4000, 4000, 6000]
    assert cpu(status(service, bound=3, replicas=3, updated=3, revision="r")) == 3000, "no rollout, no surge"


def cpu(item: Assignment) -> int:
    return sum(quota_demand(item).values())


def test_ordinals_are_assigned_to_one_region_each() -> None:
    assert assign_ordinals({"east": 2, "west": 1}, []) == {"east": (0, 1), "west": (2,)}


def test_ordinal_moves_only_after_its_region_released_it() -> None:
    east = assignment("east", exclusive=Exclusivity(), ordinals=(0, 1), replicas=2)
    reported = status(east, observed_epoch=2, replicas=2, ordinals=(0, 1))
    assert assign_ordinals({"east": 1, "west": 1}, [reported]) == {"east": (0,), "west": ()}, "no third instance"
    shrunk = assignment("east", exclusive=Exclusivity(), ordinals=(0,), replicas=1, epoch=3)
    reduced = status(shrunk, observed_epoch=3, replicas=1, ordinals=(0,))
    assert assign_ordinals({"east": 1, "west": 1}, [still_running(shrunk, observed_epoch=2)])["west"] == ()
    assert assign_ordinals({"east": 1, "west": 1}, [still_running(shrunk, observed_epoch=3)])["west"] == ()
    assert assign_ordinals({"east": 1, "west": 1}, [reduced])["west"] == (1,)


def still_running(item: Assignment, *, observed_epoch: int) -> Assignment:
    return status(item, observed_epoch=observed_epoch, replicas=2, ordinals=(0, 1))
