"""Plants each bug of `sim/mutations` in turn and counts the seeds until it is caught; the same seeds without it are the
control, and must be clean.

A bug that shows only in worlds of one scenario is looked for in those seeds of the ordinary run that begin from it: the
seed that catches it then is an upper bound of what the ordinary run takes. What a bug takes is counted from the first
seed of the search, however few of the seeds in between were run.
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
"""A bug with a scenario is looked for in so many of the first seeds before."""
SEEDS = 25
"""In so many seeds each is planted at most, unless told otherwise; as many of its scenario if it has one."""
SEED_MAX = 5000
"""Further than so many seeds from the first nobody looks."""
MEDIAN_MAX = 25
"""What the catalogue as a whole may take in the median: more, and the worlds are too tame."""


class Ask(msgspec.Struct, frozen=True):
    """One world that somebody wants to know about: this seed with this bug planted, or without any."""

    name: str
    seed: int


class Tried(msgspec.Struct, frozen=True):
    """One world: what it complained of, empty when all was well, and whether what was planted was ever called."""

    seed: int
    by: str = ""
    what: str = ""
    digest: str = ""
    executed: bool = True
    tripped: str = ""


class Caught(msgspec.Struct, frozen=True):
    """`seed` is the one that caught it, None when none did; `by` the promise that it broke.

    `tried` are the seeds it was planted in, `idle` those of them in which it was never called.
    """

    name: str
    tried: tuple[int, ...]
    seed: int | None = None
    by: str = ""
    what: str = ""
    idle: int = 0


def try_out(seed: int, name: str = "") -> Tried:
    """One world with the bug planted, or without any; it ends at its first violation."""
    with planted(name) if name else nullcontext() as patch:
        world = World(seed)
        world.court.alarm = world.loop.stop
        digest = by = what = ""
        try:
            outcome = world.run()
            digest, by = outcome.digest, complaint(outcome)
            what = next(iter((*outcome.unsettled, *outcome.failures)), "")
        except NothingLeft as stuck:
            by, what = "circles", str(stuck)
        except RuntimeError:
            if not world.court.violations:
                raise
        if world.court.violations:
            first = world.court.violations[0]
            by, what = first.promise, str(first)
    executed, tripped = (patch.executed, patch.tripped) if patch is not None else (True, "")
    return Tried(seed, by, what, digest, executed, tripped)


class Control:
    """The same seeds without any bug, each run once. What it complains of, by seed."""

    def __init__(self) -> None:
        self.said: dict[int, str] = {}

    @property
    def alarms(self) -> list[int]:
        return [seed for seed, by in sorted(self.said.items()) if by]


def search(name: str, seeds: Iterable[int]) -> Generator[Ask, Tried, Caught]:
    """Asks for seeds with the bug planted until one fails that is clean without it. Runs nothing itself.

    A mutation that fails by its own fault has caught nothing.
    """
    tried: list[int] = []
    idle = 0
    for seed in seeds:
        found = yield Ask(name, seed)
        tried.append(seed)
        idle += not found.executed
        if found.tripped:
            raise RuntimeError(f"the mutation {name} must be mended: {found.tripped}")
        if found.by and not (yield Ask("", seed)).by:
            return Caught(name, tuple(tried), seed, found.by, found.what, idle)
    return Caught(name, tuple(tried), idle=idle)


def seeds_for(mutation: Mutation, *, first: int, seeds: int) -> Iterator[int]:
    """The seeds to plant it in, in order: plain ones, or those that begin from its scenario after a few."""
    if not mutation.scenario:
        yield from range(first, first + seeds)
        return
    yield from range(first, first + FIRST_SEEDS)
    below = first + SEED_MAX
    yield from islice(begun_from(mutation.scenario, first=first + FIRST_SEEDS, below=below), seeds)


def begun_from(scenario: str, *, first: int = 1, below: int = SEED_MAX) -> Iterator[int]:
    """The seeds of the ordinary run that begin from a scenario."""
    for seed in range(first, below):
        base = base_of(seed)
        if base is not None and base.title.partition(" (")[0] == scenario:
            yield seed
