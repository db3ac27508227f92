"""Mutation testing: applies each mutation of `sim/mutations` and counts the seeds until a checker catches it. The same
seeds without a mutation are the control and must pass.

A mutation may name a scenario. Then only the first seed and seeds whose simulation starts from that scenario are run.
The skipped seeds are counted too, so that the count is an upper bound.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import msgspec

from holdfast.sim.loop import SimulationStuck
from holdfast.sim.mutations import Mutation, applied_mutation
from holdfast.sim.scenario_files import base_scenario
from holdfast.sim.shrink import failure_kind
from holdfast.sim.simulation import Simulation

PLAIN_SEEDS = 1
"""Consecutive seeds tried first, whatever they start from, before the seeds that start from a mutation's scenario."""
SEEDS_PER_MUTATION = 25
"""Default maximum of seeds per mutation; with a scenario, of seeds that start from it."""
SEED_SPAN = 5000
"""Seeds searched for ones that start from a mutation's scenario. Fewer are run if the span contains fewer."""
MEDIAN_MAX = 25
"""Maximum median number of seeds to catch a mutation. Above it the run fails: the simulation is too weak."""


class TrialRequest(msgspec.Struct, frozen=True):
    """One requested run: a seed with a mutation, or without one (empty name)."""

    name: str
    seed: int


class TrialResult(msgspec.Struct, frozen=True):
    """Result of one run. `invariant` is the violated one, empty if it passed; `executed`: the mutated code ran."""

    seed: int
    invariant: str = ""
    message: str = ""
    digest: str = ""
    executed: bool = True
    mutation_error: str = ""


class MutationCaught(msgspec.Struct, frozen=True):
    """Result of one search. `seed` caught the mutation (None: not caught) by the violated `invariant`.

    `tried` are the seeds that were run; in `not_executed` of them the mutated code never ran.
    """

    name: str
    tried: tuple[int, ...]
    seed: int | None = None
    invariant: str = ""
    message: str = ""
    not_executed: int = 0


def run_trial(seed: int, name: str = "") -> TrialResult:
    """Runs a seed with or without a mutation, up to the first violation."""
    with applied_mutation(name) if name else nullcontext() as patch:
        simulation = Simulation(seed)
        simulation.checkers.on_violation = simulation.loop.stop
        digest = by = what = ""
        try:
            outcome = simulation.run()
            digest, by = outcome.digest, failure_kind(outcome)
            what = next(iter((*outcome.unconverged, *outcome.failures)), "")
        except SimulationStuck as stuck:
            by, what = "livelock", str(stuck)
        except RuntimeError:
            if not simulation.checkers.violations:
                raise
        if simulation.checkers.violations:
            first = simulation.checkers.violations[0]
            by, what = first.invariant, str(first)
    executed, tripped = (patch.executed, patch.mutation_error) if patch is not None else (True, "")
    return TrialResult(seed, by, what, digest, executed, tripped)


class ControlRun:
    """Runs without mutation. `failures` maps each seed to its failure, empty if it passed."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}

    @property
    def failing_seeds(self) -> list[int]:
        return [seed for seed, by in sorted(self.failures.items()) if by]


def search(name: str, seeds: Iterable[int]) -> Generator[TrialRequest, TrialResult, MutationCaught]:
    """Requests runs with the mutation until a seed fails that passes without it. The caller runs them.

    An error inside the mutation itself is not a catch; it raises.
    """
    tried: list[int] = []
    idle = 0
    for seed in seeds:
        found = yield TrialRequest(name, seed)
        tried.append(seed)
        idle += not found.executed
        if found.mutation_error:
            raise RuntimeError(f"mutation {name}: the mutation itself failed: {found.mutation_error}")
        if found.invariant and not (yield TrialRequest("", seed)).invariant:
            return MutationCaught(name, tuple(tried), seed, found.invariant, found.message, idle)
    return MutationCaught(name, tuple(tried), not_executed=idle)


def seeds_for(mutation: Mutation, *, first: int, seeds: int) -> Iterator[int]:
    """The seeds to try, in order: consecutive seeds; for a mutation with a scenario, `PLAIN_SEEDS` of them and then the
    seeds that start from the scenario."""
    if not mutation.scenario:
        yield from range(first, first + seeds)
        return
    yield from range(first, first + PLAIN_SEEDS)
    below = first + SEED_SPAN
    yield from islice(seeds_from_scenario(mutation.scenario, first=first + PLAIN_SEEDS, below=below), seeds)


def seeds_from_scenario(scenario: str, *, first: int = 1, below: int = SEED_SPAN) -> Iterator[int]:
    """Seeds whose simulation starts from the scenario."""
    for seed in range(first, below):
        base = base_scenario(seed)
        if base is not None and base.title.partition(" (")[0] == scenario:
            yield seed
