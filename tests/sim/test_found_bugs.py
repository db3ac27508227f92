"""The decisions behind bugs that worlds have found (docs/bugs.md), each by itself."""

from __future__ import annotations

import msgspec

from holdfast.fleet.grants import quota_demand
from holdfast.fleet.ordinals import assign_ordinals
from holdfast.model.assignment import Assignment, AssignmentSpec, AssignmentStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import Template
from holdfast.model.workload import Batch, Exclusivity, Rollout, WorkloadType


def assignment(region: str, **spec: object) -> Assignment:
    made = AssignmentSpec(
        workload="job",
        workload_uid="u",
        region=region,
        revision="r",
        template=Template(resources={"cpu": "1"}),
        epoch=2,
    )
    made = msgspec.structs.replace(made, **spec)  # type: ignore[arg-type]
    return Assignment(metadata=ObjectMeta(name=f"job.{region}.normal", namespace="acme"), spec=made)


def status(item: Assignment, **values: object) -> Assignment:
    return msgspec.structs.replace(item, status=AssignmentStatus(**values))  # type: ignore[arg-type]


def test_a_finished_batch_asks_for_nothing() -> None:
    batch = assignment("east", type=WorkloadType.BATCH, replicas=2, batch=Batch(completions=3, parallelism=2))
    assert cpu(batch) == 2000
    assert cpu(status(batch, succeeded=2)) == 1000
    assert cpu(status(batch, succeeded=3)) == 0
    assert cpu(status(batch, failed=7)) == 0
    assert cpu(status(batch, succeeded=3, bound=1)) == 1000


def test_a_rollout_on_its_way_uses_the_room_for_its_surge_and_asks_for_no_more() -> None:
    service = assignment("east", type=WorkloadType.SERVICE, replicas=3, rollout=Rollout(max_surge=1))
    assert [cpu(status(service, bound=bound)) for bound in (0, 3, 4, 6)] == [4000, 4000, 4000, 6000]


def cpu(item: Assignment) -> int:
    return sum(quota_demand(item).values())


def test_an_ordinal_is_in_one_region() -> None:
    assert assign_ordinals({"east": 2, "west": 1}, []) == {"east": (0, 1), "west": (2,)}


def test_an_ordinal_stays_where_it_is_and_moves_only_when_it_was_let_go() -> None:
    east = assignment("east", exclusive=Exclusivity(), ordinals=(0, 1), replicas=2)
    there = status(east, observed_epoch=2, replicas=2, ordinals=(0, 1))
    assert assign_ordinals({"east": 1, "west": 1}, [there]) == {"east": (0,), "west": ()}, "no third one beside the two"
    shrunk = assignment("east", exclusive=Exclusivity(), ordinals=(0,), replicas=1, epoch=3)
    one = status(shrunk, observed_epoch=3, replicas=1, ordinals=(0,))
    assert assign_ordinals({"east": 1, "west": 1}, [both(shrunk, observed_epoch=2)])["west"] == ()
    assert assign_ordinals({"east": 1, "west": 1}, [both(shrunk, observed_epoch=3)])["west"] == ()
    assert assign_ordinals({"east": 1, "west": 1}, [one])["west"] == (1,)


def both(item: Assignment, *, observed_epoch: int) -> Assignment:
    return status(item, observed_epoch=observed_epoch, replicas=2, ordinals=(0, 1))
