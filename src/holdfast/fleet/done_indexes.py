"""Indexes of an indexed batch that are done, over all regions. They are never assigned again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.index_ranges import indexes_text, parse_indexes
from holdfast.model.workload import Workload, is_indexed


def done_indexes(workload: Workload, assignments: Sequence[Assignment]) -> frozenset[int]:
    """Indexes that the workload's status records as succeeded, or that a region reports."""
    if not is_indexed(workload.spec.batch):
        return frozenset()
    reports = (parse_indexes(a.status.succeeded_indexes) for a in assignments)
    return parse_indexes(workload.status.summary.succeeded_indexes).union(*reports)


def with_done_indexes(spec: AssignmentSpec | None, done: Collection[int]) -> AssignmentSpec | None:
    """The spec that keeps the region from running its done indexes again, for example after a restore."""
    if spec is None or not done:
        return spec
    return msgspec.structs.replace(spec, done_indexes=indexes_text(i for i in spec.ordinals if i in done))


def is_recorded(workload: Workload, assignment: Assignment) -> bool:
    """Whether the workload's status has every success that the region reports. Before, the report must not go."""
    reported = parse_indexes(assignment.status.succeeded_indexes)
    return reported <= parse_indexes(workload.status.summary.succeeded_indexes)
