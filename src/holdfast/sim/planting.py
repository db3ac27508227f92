"""Mutation testing: applies each mutation of `sim/mutations` and counts the seeds until a checker catches it. The same
seeds without a mutation are the control and must pass.

A mutation with a scenario is tried in those seeds of the ordinary run that start from the scenario. Seeds are counted
from the first seed of the search, including seeds that were not run, so that the count is an upper bound.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import msgspec

from holdfast.sim.declared import base_of
from holdfast.sim.loop import NothingLeft
from holdfast.sim.mutations import Mutation, planted
from holdfast.sim.shrink import complaint
from holdfast.sim.world import World

FIRST_SEEDS = 1
"""Plain seeds tried before the seeds of a mutation's scenario."""
SEEDS = 25
"""Default maximum of seeds per mutation, and of seeds of its scenario."""
SEED_MAX = 5000
"""Span of seeds that is searched for a scenario."""
MEDIAN_MAX = 25
"""Maximum median of seeds over the whole catalogue. A larger median fails the run: the simulation is too weak."""


class Ask(msgspec.Struct, frozen=True):
    """One requested run: a seed with a mutation, or without one (empty name)."""

    name: str
    seed: int


class Tried(msgspec.Struct, frozen=True):
    """Result of one run. `by` is the violated invariant, empty if it passed; `executed` tells if the mutation ran."""

    seed: int
    by: str = ""
    what: str = ""
    digest: str = ""
    executed: bool = True
    tripped: str = ""


class Caught(msgspec.Struct, frozen=True):
    """Result of one search. `seed` caught the mutation (None: not caught), `by` is the violated invariant.

    `tried` are the seeds that were run, `idle` is the number of them in which the mutation was never called.
    """

    name: str
    tried: tuple[int, ...]
    seed: int | None = None
    by: str = ""
    what: str = ""
    idle: int = 0


def try_out(seed: int, name: str = "") -> Tried:
    """Runs a seed with or without a mutation, up to the first violation."""
    with planted(name) if name else nullcontext() as patch:
        world = World(seed)
        world.court.alarm = world.loop.stop
        digest = by = what = ""
        try:
            outcome = world.run()
            digest, by = outcome.digest, complaint(outcome)
            what = next(iter((*outcome.unsettled, *outcome.failures)), "")
        except NothingLeft as stuck:
            by, what = "livelock", str(stuck)
        except RuntimeError:
            if not world.court.violations:
                raise
        if world.court.violations:
            first = world.court.violations[0]
            by, what = first.promise, str(first)
    executed, tripped = (patch.executed, patch.tripped) if patch is not None else (True, "")
    return Tried(seed, by, what, digest, executed, tripped)


class Control:
    """Runs without mutation. `said` maps each seed to its failure, empty if it passed."""

    def __init__(self) -> None:
        self.said: dict[int, str] = {}

    @property
    def alarms(self) -> list[int]:
        return [seed for seed, by in sorted(self.said.items()) if by]


def search(name: str, seeds: Iterable[int]) -> Generator[Ask, Tried, Caught]:
    """Requests runs with the mutation until a seed fails that passes without it. The caller runs them.

    An error inside the mutation itself is not a catch; it raises.
    """
    tried: list[int] = []
    idle = 0
    for seed in seeds:
        found = yield Ask(name, seed)
        tried.append(seed)
        idle += not found.executed
        if found.tripped:
            raise RuntimeError(f"mutation {name}: the mutation itself failed: {found.tripped}")
        if found.by and not (yield Ask("", seed)).by:
            return Caught(name, tuple(tried), seed, found.by, found.what, idle)
    return Caught(name, tuple(tried), idle=idle)


def seeds_for(mutation: Mutation, *, first: int, seeds: int) -> Iterator[int]:
    """The seeds to try, in order: plain seeds, or a few plain seeds and then those of the mutation's scenario."""
    if not mutation.scenario:
        yield from range(first, first + seeds)
        return
    yield from range(first, first + FIRST_SEEDS)
    below = first + SEED_MAX
    yield from islice(begun_from(mutation.scenario, first=first + FIRST_SEEDS, below=below), seeds)


def begun_from(scenario: str, *, first: int = 1, below: int = SEED_MAX) -> Iterator[int]:
    """Seeds of the ordinary run that start from a scenario."""
    for seed in range(first, below):
        base = base_of(seed)
        if base is not None and base.title.partition(" (")[0] == scenario:
            yield seed
