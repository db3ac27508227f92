"""Indexed batches in one region: which indexes still run, which are done and which have failed. Pure.

- An index has at most one replica that may run. A retry is a new replica with the same index.
- A replica that succeeded and is deleted stays until the global cell has recorded its index.
- An index that the global cell recorded as done (`doneIndexes`) never runs again, whatever records this region lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.index_ranges import parse_indexes
from holdfast.model.lifecycle import final_phase
from holdfast.model.replica import Phase, Replica
from holdfast.model.workload import IndexFailure

FAILURES_LISTED_MAX = 20
"""Failed indexes listed with exit code and message; the rest only counts in `failedIndexes`."""
MESSAGE_CHARS_MAX = 1024
"""Characters of one failure's message. The rest is cut off: twenty of them must fit into a status."""


def succeeded_indexes(replicas: Sequence[Replica]) -> set[int]:
    return {r.spec.index for r in replicas if r.spec.index is not None and final_phase(r) is Phase.SUCCEEDED}


def failed_indexes(assignment: Assignment, replicas: Sequence[Replica]) -> set[int]:
    """Indexes that are not retried, because they failed more often than `backoffLimitPerIndex` allows."""
    batch = assignment.spec.batch
    if batch is None or batch.backoff_limit_per_index is None:
        return set()
    limit = batch.backoff_limit_per_index
    return {i for i, ended in failures_by_index(replicas).items() if len(ended) > limit} - succeeded_indexes(replicas)


def failures_by_index(replicas: Sequence[Replica]) -> Mapping[int, list[Replica]]:
    """The failed replicas of each index, oldest first."""
    found: dict[int, list[Replica]] = {}
    for replica in sorted(replicas, key=lambda r: r.spec.ordinal):
        if replica.spec.index is not None and final_phase(replica) is Phase.FAILED:
            found.setdefault(replica.spec.index, []).append(replica)
    return found


def wanted_indexes(assignment: Assignment, replicas: Sequence[Replica]) -> set[int]:
    """Indexes of this region that must still run, or run now."""
    spec = assignment.spec
    done = parse_indexes(spec.done_indexes) | succeeded_indexes(replicas)
    return set(spec.ordinals) - done - failed_indexes(assignment, replicas)


def open_indexes(assignment: Assignment, replicas: Sequence[Replica]) -> list[int]:
    """Wanted indexes without a replica that may run, lowest first."""
    busy = {r.spec.index for r in replicas if final_phase(r) is None}
    return sorted(wanted_indexes(assignment, replicas) - busy)


def indexed_changes(
    assignment: Assignment, replicas: Sequence[Replica], live: Sequence[Replica]
) -> tuple[int, list[Replica]]:
    """Number of replicas to create, and the replicas to remove."""
    batch = assignment.spec.batch
    if batch is None:
        return 0, []
    failed = sum(final_phase(r) is Phase.FAILED for r in replicas)
    if failed > batch.backoff_limit:
        return 0, list(live)
    wanted = wanted_indexes(assignment, replicas)
    kept = sorted((r for r in live if r.spec.index in wanted), key=lambda r: r.spec.ordinal)
    unwanted = [r for r in live if r.spec.index not in wanted]
    room = max(0, batch.parallelism - len(kept))
    return min(room, len(open_indexes(assignment, replicas))), [*unwanted, *kept[batch.parallelism :]]


def is_only_record(replica: Replica, assignment: Assignment | None) -> bool:
    """Whether only this replica says that its index is done: the global cell has not recorded it yet. If the replica
    goes before that, its index runs again."""
    index = replica.spec.index
    if index is None or final_phase(replica) is not Phase.SUCCEEDED:
        return False
    if assignment is None or assignment.metadata.terminating or not assignment.spec.replicas:
        return False
    return index in assignment.spec.ordinals and index not in parse_indexes(assignment.spec.done_indexes)


def index_failures(assignment: Assignment, replicas: Sequence[Replica]) -> tuple[IndexFailure, ...]:
    """The last failure of each failed index that has not succeeded since, lowest index first."""
    done = parse_indexes(assignment.spec.done_indexes) | succeeded_indexes(replicas)
    listed = sorted((i, ended) for i, ended in failures_by_index(replicas).items() if i not in done)
    return tuple(_failure(index, ended) for index, ended in listed[:FAILURES_LISTED_MAX])


def _failure(index: int, ended: Sequence[Replica]) -> IndexFailure:
    execution = ended[-1].status.execution  # of an earlier attempt, once the node is given up
    last = execution.last_exit if execution is not None else None
    if execution is None or last is None:
        return IndexFailure(index=index, failures=len(ended), replica=ended[-1].metadata.name)
    return IndexFailure(
        index=index,
        failures=len(ended),
        replica=ended[-1].metadata.name,
        exit_code=last.code,
        reason=last.reason or execution.reason,
        message=(last.message or execution.message)[:MESSAGE_CHARS_MAX],
    )
