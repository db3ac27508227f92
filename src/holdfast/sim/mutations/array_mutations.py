"""Mutations of job arrays."""

from __future__ import annotations

from typing import Any

from holdfast.fleet import assign, ordinals
from holdfast.scheduling import batch_indexes
from holdfast.sim.mutations.patch import Mutation, Patch


def succeeded_index_open(patch: Patch) -> None:
    """An index without a running replica is started, whether it has succeeded or not."""

    def unfinished(item: Any, replicas: Any) -> set[int]:
        return set(item.spec.ordinals) - batch_indexes.failed_indexes(item, replicas)

    patch.set(batch_indexes, "wanted_indexes", unfinished)


def indexes_counted_per_region(patch: Patch) -> None:
    """Every region counts its indexes from 0."""
    original = ordinals.__dict__["assign_ordinals"]

    def from_zero(shares: Any, stored: Any, done: Any = frozenset(), count_max: int | None = None) -> Any:
        if count_max is None:
            return original(shares, stored)
        return {region: tuple(range(share)) for region, share in shares.items()}

    patch.set(assign, "assign_ordinals", from_zero)


SCENARIO = "array-loses-region"
TABLE = (
    Mutation(
        "array-index-run-again", "an index that succeeded is started again", succeeded_index_open, scenario=SCENARIO
    ),
    Mutation(
        "array-index-in-two-regions",
        "regions of a job array count their indexes from 0",
        indexes_counted_per_region,
        scenario=SCENARIO,
    ),
)
