"""replicate: existing replicas and desired state in, writes out."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.expected import of_type, only
from tests.factories import (
    assignment,
    batch_assignment,
    bound_status,
    cache_of,
    replica,
    serving_status,
    with_new_revision,
)

from holdfast.model.assignment import Purpose
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Object
from holdfast.model.replica import ExecutionBlock, Phase, Replica, ReplicaStatus
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.workload import Disruption, Exclusivity, Rollout
from holdfast.model.writes import Create, Delete, Outcome, Update
from holdfast.scheduling import replicate

T = TypeVar("T", bound=Object)
decide = replicate.decider("us-east")


def made(outcome: Outcome, kind: type[T]) -> list[T]:
    return [w.object for w in outcome.writes if isinstance(w, Create) and isinstance(w.object, kind)]


def deleted(outcome: Outcome, kind: str) -> list[str]:
    return [w.key.name for w in outcome.writes if isinstance(w, Delete) and w.kind == kind]


def test_replicate_creates_missing_replicas_and_their_request() -> None:
    desired = assignment(replicas=3)
    outcome = decide(desired.key, cache_of(desired), 100.0)
    replicas = made(outcome, Replica)
    assert [r.metadata.name for r in replicas] == ["api-us-east-0", "api-us-east-1", "api-us-east-2"]
    (request,) = made(outcome, SchedulingRequest)
    assert [(m.name, m.uid) for m in request.spec.members] == [(r.metadata.name, r.uid) for r in replicas]


def test_recreated_replica_has_new_uid() -> None:
    desired = assignment(replicas=1)
    first = made(decide(desired.key, cache_of(desired), 100.0), Replica)[0]
    later = made(decide(desired.key, cache_of(desired), 200.0), Replica)[0]
    assert first.metadata.name == later.metadata.name and first.uid != later.uid


def test_replicate_with_desired_replicas_writes_nothing() -> None:
    desired = assignment(replicas=2)
    there = [replica(n, desired, status=serving_status()) for n in range(2)]
    assert decide(desired.key, cache_of(desired, *there), 1.0).writes == ()


def test_scale_down_removes_least_useful_replicas() -> None:
    desired = assignment(replicas=1)
    there = [
        replica(0, desired, status=bound_status()),
        replica(1, desired, status=serving_status()),
        replica(2, desired),
    ]
    assert sorted(deleted(decide(desired.key, cache_of(desired, *there), 1.0), "Replica")) == [
        "api-us-east-0",
        "api-us-east-2",
    ]


def test_name_of_terminating_replica_is_not_reused() -> None:
    desired = assignment(replicas=1)
    going = replica(0, desired, status=bound_status(), terminating=True)
    assert [r.metadata.name for r in made(decide(desired.key, cache_of(desired, going), 1.0), Replica)] == [
        "api-us-east-1"
    ]


def test_suspended_assignment_creates_and_removes_nothing() -> None:
    desired = assignment(replicas=5, suspended=True)
    there = replica(0, desired, status=serving_status())
    assert decide(desired.key, cache_of(desired, there), 1.0).writes == ()


def test_suspended_assignment_deletes_replicas_of_withdrawn_ordinals() -> None:
    """Otherwise the region never acknowledges a restore of the global cell (simulation seed 127)."""
    desired = assignment(replicas=1, ordinals=(1,), exclusive=Exclusivity(), suspended=True)
    there = [replica(n, desired, status=serving_status()) for n in (0, 1)]
    assert deleted(decide(desired.key, cache_of(desired, *there), 1.0), "Replica") == ["api-us-east-0"]


def test_missing_assignment_deletes_only_ended_replicas() -> None:
    gone = batch_assignment(completions=3, parallelism=3)
    there = [
        replica(0, gone, status=serving_status()),
        replica(1, gone),
        replica(2, gone, status=_ended(Phase.SUCCEEDED)),
    ]
    assert deleted(decide(gone.key, cache_of(*there), 1.0), "Replica") == ["api-us-east-2"]


def test_update_surges_and_removes_only_covered_replicas() -> None:
    desired = assignment(replicas=3, rollout=Rollout(max_surge=1, max_unavailable=0))
    old = [replica(n, desired, status=serving_status(), revision="older") for n in range(3)]
    first = decide(desired.key, cache_of(desired, *old), 1.0)
    assert len(made(first, Replica)) == 1 and deleted(first, "Replica") == []
    new = replica(3, desired, status=serving_status())
    second = decide(desired.key, cache_of(desired, *old, new), 2.0)
    assert len(deleted(second, "Replica")) == 1


def test_update_removes_old_replicas_that_do_not_serve() -> None:
    desired = assignment(replicas=2)
    stuck = [replica(n, desired, revision="older") for n in range(2)]
    assert len(deleted(decide(desired.key, cache_of(desired, *stuck), 1.0), "Replica")) == 2


def test_update_replaces_exclusive_ordinals_one_at_a_time() -> None:
    desired = assignment(replicas=2, ordinals=(0, 1), exclusive=Exclusivity())
    old = [replica(n, desired, status=serving_status(), revision="older") for n in range(2)]
    outcome = decide(desired.key, cache_of(desired, *old), 1.0)
    assert deleted(outcome, "Replica") == ["api-us-east-0"] and made(outcome, Replica) == []


def _ended(phase: Phase) -> ReplicaStatus:
    return ReplicaStatus(execution=ExecutionBlock(attempt=1, phase=phase))


@given(st.integers(0, 6), st.integers(0, 3), st.integers(1, 6), st.integers(1, 4))
def test_batch_never_runs_more_than_remaining_completions(
    done: int, running: int, completions: int, parallelism: int
) -> None:
    desired = batch_assignment(completions, parallelism)
    there = [replica(n, desired, status=_ended(Phase.SUCCEEDED)) for n in range(done)]
    there += [replica(done + n, desired, status=bound_status()) for n in range(running)]
    outcome = decide(desired.key, cache_of(desired, *there), 1.0)
    after = running + len(made(outcome, Replica)) - len(deleted(outcome, "Replica"))
    assert after <= max(0, completions - done)
    assert after <= parallelism


def test_batch_beyond_backoff_limit_stops() -> None:
    desired = batch_assignment(5, 2, backoff_limit=1)
    there = [replica(n, desired, status=_ended(Phase.FAILED)) for n in range(2)]
    there.append(replica(2, desired, status=bound_status()))
    outcome = decide(desired.key, cache_of(desired, *there), 1.0)
    assert made(outcome, Replica) == [] and deleted(outcome, "Replica") == ["api-us-east-2"]


def test_request_follows_attempt_and_is_deleted_when_placed() -> None:
    desired = assignment(replicas=1)
    first = replica(0, desired)
    outcome = decide(desired.key, cache_of(desired, first), 1.0)
    (request,) = made(outcome, SchedulingRequest)
    request = with_new_revision(
        request, metadata=msgspec.structs.replace(request.metadata, uid="u", resource_version="9")
    )
    moved = msgspec.structs.replace(first.status.placement, attempt=2)
    second = with_new_revision(first, status=msgspec.structs.replace(first.status, placement=moved))
    update = only(decide(desired.key, cache_of(desired, second, request), 2.0).writes, Update)
    assert of_type(update.object, SchedulingRequest).spec.members[0].attempt == 2
    placed = with_new_revision(second, status=bound_status(attempt=2))
    assert stage(placed) is Stage.BOUND
    assert deleted(decide(desired.key, cache_of(desired, placed, request), 3.0), "SchedulingRequest") == [
        request.metadata.name
    ]


def removals_during_update(
    *,
    purpose: Purpose = Purpose.RECOVERY,
    max_unavailable: int = 1,
    pending: bool = True,
    siblings: tuple[Replica, ...] = (),
) -> list[str]:
    """Removals for three serving replicas of an old revision and one new replica that is pending or starting."""
    desired = assignment(replicas=3, purpose=purpose, disruption=Disruption(max_unavailable=max_unavailable))
    old = [replica(n, desired, status=serving_status(), revision="old") for n in range(3)]
    beside = replica(3, desired, status=None if pending else bound_status())
    return deleted(decide(desired.key, cache_of(desired, *old, beside, *siblings), 1.0), "Replica")


def test_recovery_update_without_quota_replaces_in_place() -> None:
    assert len(removals_during_update()) == 1
    assert len(removals_during_update(max_unavailable=2)) == 2
    assert removals_during_update(max_unavailable=0) == [], "the budget is zero"
    assert removals_during_update(pending=False) == [], "the surge replica has quota and serves first"
    assert removals_during_update(purpose=Purpose.NORMAL) == [], "ordinary replicas wait for quota"


def test_recovery_update_in_place_counts_unavailable_siblings() -> None:
    ordinary = assignment(replicas=3)
    unready = with_new_revision(replica(7, ordinary, status=bound_status()))
    assert removals_during_update(siblings=(unready,)) == []
    assert len(removals_during_update(max_unavailable=2, siblings=(unready,))) == 1
    going = with_new_revision(replica(8, ordinary, status=serving_status(), terminating=True))
    assert removals_during_update(siblings=(going,)) == []
