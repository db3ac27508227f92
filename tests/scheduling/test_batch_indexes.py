"""Job arrays: indexes in one region and over regions, retries, limits, and what is never run again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, meta, priority, region, replica, tenant, with_new_revision, workload

from holdfast.fleet import assign, workload_status
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.index_ranges import indexes_text, parse_indexes
from holdfast.model.ownership import RELEASE_FINALIZER
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, PlacementBlock, Replica, ReplicaStatus
from holdfast.model.workload import (
    Batch,
    CompletionMode,
    Exclusivity,
    Gang,
    IndexFailure,
    Summary,
    Workload,
    WorkloadStatus,
    WorkloadType,
    validate_workload,
)
from holdfast.model.writes import Create, Delete, Outcome, SetStatus, Update
from holdfast.scheduling import replicate
from holdfast.scheduling.assignment_status import assignment_status
from holdfast.scheduling.eviction import release

DECIDE = replicate.decider("us-east")
T0 = 1767225600.0  # 2026-01-01T00:00:00Z, when the objects of the factories were created


def array(count: int = 4, parallelism: int = 2, *, done: str = "", **batch: Any) -> Assignment:
    made = Batch(completions=count, parallelism=parallelism, completion_mode=CompletionMode.INDEXED, **batch)
    return assignment(
        type=WorkloadType.BATCH, batch=made, replicas=parallelism, ordinals=tuple(range(count)), done_indexes=done
    )


def run(of: Assignment, ordinal: int, index: int, phase: Phase | None = None, code: int = 1) -> Replica:
    status = ReplicaStatus()
    if phase is not None:
        ended = ExitStatus(code=code, reason="Exited", message="no such table") if phase is Phase.FAILED else None
        # An ended replica has given up its node, which raised its attempt.
        released = PlacementBlock(attempt=2)
        status = ReplicaStatus(placement=released, execution=ExecutionBlock(phase=phase, attempt=1, last_exit=ended))
    made = replica(ordinal, of, status=status)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, index=index, type=WorkloadType.BATCH))


def decided(of: Assignment, *replicas: Replica, now: float = T0 + 1) -> tuple[list[tuple[int, int | None]], list[str]]:
    """(ordinal, index) of created replicas, and the names of removed ones."""
    outcome: Outcome = DECIDE(of.key, cache_of(of, *replicas), now)
    created = [w.object.spec for w in outcome.writes if isinstance(w, Create) and isinstance(w.object, Replica)]
    removed = [w.key.name for w in outcome.writes if isinstance(w, Delete) and w.kind == "Replica"]
    return [(spec.ordinal, spec.index) for spec in created], removed


@given(st.sets(st.integers(0, 300)))
def test_index_text_reads_back_as_the_same_set(indexes: set[int]) -> None:
    assert parse_indexes(indexes_text(indexes)) == indexes


def test_index_text_joins_consecutive_indexes() -> None:
    assert indexes_text([7, 1, 2, 3, 5, 4]) == "1-5,7" and indexes_text([]) == ""


def test_array_starts_its_lowest_indexes_up_to_parallelism() -> None:
    assert decided(array()) == ([(0, 0), (1, 1)], [])


def test_failed_index_is_retried_with_its_index_and_a_new_name() -> None:
    of = array()
    assert decided(of, run(of, 0, 0, Phase.FAILED), run(of, 1, 1)) == ([(2, 0)], [])


def test_succeeded_index_is_not_run_again() -> None:
    of = array()
    assert decided(of, run(of, 0, 0, Phase.SUCCEEDED), run(of, 1, 1)) == ([(2, 2)], [])


def test_index_that_the_global_cell_knows_as_done_is_not_run_again_by_a_restored_region() -> None:
    assert decided(array(done="0-1")) == ([(0, 2), (1, 3)], [])
    stale = array(done="0-1")
    created, removed = decided(stale, run(stale, 0, 0))
    assert removed == ["api-us-east-0"] and [index for _, index in created] == [2, 3]


def test_terminating_replica_keeps_its_index_busy() -> None:
    of = array(2, 2)
    leaving = with_new_revision(
        run(of, 0, 0), metadata=meta("api-us-east-0", "acme", deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert decided(of, leaving) == ([(1, 1)], [])


def test_index_beyond_its_own_limit_is_given_up_and_the_others_go_on() -> None:
    of = array(3, 1, backoff_limit_per_index=1)
    failed = [run(of, n, 0, Phase.FAILED) for n in range(2)]
    assert decided(of, *failed) == ([(2, 1)], [])
    status = assignment_status(of, [*failed, run(of, 2, 1, Phase.SUCCEEDED)], ())
    assert (status.failed_indexes, status.succeeded_indexes) == ("0", "1")
    assert status.index_failures == (
        IndexFailure(
            index=0, failures=2, replica="api-us-east-1", exit_code=1, reason="Exited", message="no such table"
        ),
    )


def test_array_beyond_the_total_limit_stops() -> None:
    of = array(4, 2, backoff_limit=1)
    created, removed = decided(of, *(run(of, n, n, Phase.FAILED) for n in range(2)), run(of, 2, 2))
    assert created == [] and removed == ["api-us-east-2"]


def test_batch_beyond_its_active_deadline_is_stopped() -> None:
    of = array(active_deadline_seconds=60.0)
    waits = DECIDE(of.key, cache_of(of, run(of, 0, 0)), T0 + 10)
    assert waits.requeue_after_s == pytest.approx(50.0)
    assert decided(of, run(of, 0, 0), now=T0 + 60) == ([], ["api-us-east-0"])


THREE = (region("eu-central"), region("eu-west"), region("us-east"), tenant(), priority())


def global_array(count: int = 4, *, status: WorkloadStatus | None = None, **batch: Any) -> Workload:
    made = Batch(completions=count, parallelism=count, completion_mode=CompletionMode.INDEXED, **batch)
    item = workload(type=WorkloadType.BATCH, batch=made, replicas=1)
    return with_new_revision(item, status=status or WorkloadStatus())


def test_array_in_two_regions_has_every_index_once() -> None:
    item = global_array(5)
    rules = msgspec.structs.replace(item.spec.placement, spread_regions=2)
    item = with_new_revision(item, spec=msgspec.structs.replace(item.spec, placement=rules))
    specs = [
        of_type(of_type(w, Create).object, Assignment).spec
        for w in assign.decide(item.key, cache_of(item, *THREE), T0 + 60).writes
    ]
    assert len(specs) == 2 and sorted(n for spec in specs for n in spec.ordinals) == [0, 1, 2, 3, 4]


def test_region_that_leaves_takes_its_done_indexes_out_of_the_array() -> None:
    status = WorkloadStatus(summary=Summary(succeeded_indexes="0"))
    item = global_array(4, status=status)
    rules = msgspec.structs.replace(item.spec.placement, excluded_regions=("us-east",))
    item = with_new_revision(item, spec=msgspec.structs.replace(item.spec, placement=rules))
    held = with_new_revision(
        array(4, 4), status=AssignmentStatus(observed_epoch=1, succeeded_indexes="0-1", replicas=2, ordinals=(2, 3))
    )
    (shrink,) = assign.decide(item.key, cache_of(item, held, *THREE), T0 + 60).writes
    emptied = of_type(of_type(shrink, Update).object, Assignment)
    assert emptied.spec.ordinals == ()
    gone = with_new_revision(emptied, status=AssignmentStatus(observed_epoch=2, succeeded_indexes="0-1"))
    writes = assign.decide(item.key, cache_of(item, gone, *THREE), T0 + 60).writes
    assert not [w for w in writes if isinstance(w, Delete)], "the report goes only after its successes are recorded"
    moved = of_type(of_type(writes[0], Create).object, Assignment)
    assert moved.spec.ordinals == (2, 3) and present(moved.spec.batch).completions == 2


def conditions(item: Workload, *assignments: Assignment, now: float = T0 + 1) -> tuple[Summary, dict[str, str]]:
    outcome = workload_status.decide(item.key, cache_of(item, *assignments, *THREE), now)
    write = of_type(outcome.writes[0], SetStatus)
    return write.blocks["summary"], {c.type: c.reason for c in write.conditions if c.type != "Assigned"}


def test_successes_of_an_array_are_never_forgotten() -> None:
    item = global_array(4, status=WorkloadStatus(summary=Summary(succeeded_indexes="0-1")))
    restored = with_new_revision(array(4, 4), status=AssignmentStatus(succeeded_indexes="1-2"))
    summary, found = conditions(item, restored)
    assert (summary.succeeded_indexes, summary.succeeded) == ("0-2", 3)
    assert found["Complete"] == Reason.IN_PROGRESS


def test_array_with_given_up_indexes_fails_when_the_others_are_done() -> None:
    item = global_array(3, backoff_limit_per_index=0)
    part = with_new_revision(array(3, 3), status=AssignmentStatus(succeeded_indexes="0", failed_indexes="1", failed=1))
    assert conditions(item, part)[1] == {"Complete": Reason.IN_PROGRESS}
    rest = with_new_revision(part, status=AssignmentStatus(succeeded_indexes="0,2", failed_indexes="1", failed=1))
    summary, found = conditions(item, rest)
    assert found == {"Complete": Reason.FAILED_INDEXES, "Failed": Reason.FAILED_INDEXES}
    assert summary.failed_indexes == "1"


def test_batch_beyond_its_active_deadline_has_failed() -> None:
    item = global_array(3, active_deadline_seconds=60.0)
    assert conditions(item, array(3, 3), now=T0 + 59)[1] == {"Complete": Reason.IN_PROGRESS}
    assert conditions(item, array(3, 3), now=T0 + 61)[1]["Failed"] == Reason.ACTIVE_DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"batch": Batch(completions=3, backoff_limit_per_index=1)}, "spec.batch.backoffLimitPerIndex"),
        ({"batch": Batch(completions=20_000, completion_mode=CompletionMode.INDEXED)}, "spec.batch.completions"),
        (
            {"batch": Batch(completion_mode=CompletionMode.INDEXED), "exclusive": Exclusivity()},
            "spec.batch.completionMode",
        ),
        ({"batch": Batch(completion_mode=CompletionMode.INDEXED), "gang": Gang(1)}, "spec.batch.completionMode"),
    ],
)
def test_array_with_a_bad_field_names_it(spec: dict[str, Any], field: str) -> None:
    item = workload(type=WorkloadType.BATCH, **spec)
    assert field in {cause.field for cause in validate_workload(item, None)}


@pytest.mark.parametrize(
    ("of", "kept"),
    [
        (array(), True),
        (array(done="0-1"), True),
        (array(done="0-2"), False),
        (msgspec.structs.replace(array(), metadata=meta("web.us-east.normal", "acme", deletion_timestamp="x")), False),
        (assignment(type=WorkloadType.BATCH, batch=array().spec.batch, replicas=0, ordinals=(0, 1, 2, 3)), False),
        (assignment(type=WorkloadType.BATCH, batch=array().spec.batch, replicas=2, ordinals=(0, 1)), False),
    ],
    ids=["unrecorded", "others recorded", "recorded", "assignment deleted", "assignment emptied", "assigned elsewhere"],
)
def test_deleted_replica_stays_while_it_is_the_only_record_of_its_index(of: Assignment, kept: bool) -> None:
    ended = run(of, 5, 2, Phase.SUCCEEDED)
    deleted = msgspec.structs.replace(
        ended.metadata, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=(RELEASE_FINALIZER,)
    )
    ended = msgspec.structs.replace(ended, metadata=deleted)
    outcome = release.decide(ended.key, cache_of(of, ended), T0 + 1)
    assert (outcome.requeue_after_s is not None, not outcome.writes) == (kept, kept)
    if of.spec.replicas and not of.metadata.terminating:
        assert 2 not in [index for _, index in decided(of, ended)[0]], "the index does not run again"


def test_deleted_replica_of_a_failed_index_does_not_stay() -> None:
    of = array()
    failed = run(of, 5, 2, Phase.FAILED)
    meta_deleted = msgspec.structs.replace(failed.metadata, deletion_timestamp="x", finalizers=(RELEASE_FINALIZER,))
    failed = msgspec.structs.replace(failed, metadata=meta_deleted)
    assert release.decide(failed.key, cache_of(of, failed), T0 + 1).writes
