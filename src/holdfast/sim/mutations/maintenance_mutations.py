"""Mutations of planned maintenance."""

from __future__ import annotations

from typing import Any

from holdfast.authority import placement_gates
from holdfast.model import override
from holdfast.model.writes import Outcome
from holdfast.scheduling import scratch
from holdfast.scheduling.eviction import maintenance_drain
from holdfast.sim.mutations.patch import Mutation, Patch


def maintenance_never_begins(patch: Patch) -> None:
    """The time at which planned maintenance begins is not compared."""

    def begun(avoidance: Any, stays_until_s: float) -> bool:
        return avoidance.spec.maintenance is None

    for module in (override, scratch, placement_gates):
        patch.set(module, "has_begun_by", begun)


def maintenance_drain_kept(patch: Patch) -> None:
    """A node that maintenance drained is not returned at its end."""

    def kept(node: Any, name: str, again_s: float | None) -> Outcome:
        return Outcome(requeue_after_s=again_s)

    patch.set(maintenance_drain, "_released", kept)


SCENARIO = "maintenance-and-region-loss"
TABLE = (
    Mutation(
        "maintenance-never-begins",
        "work is placed where maintenance goes on",
        maintenance_never_begins,
        scenario=SCENARIO,
    ),
    Mutation("maintenance-drain-kept", "a drain outlasts its maintenance", maintenance_drain_kept, scenario=SCENARIO),
)
