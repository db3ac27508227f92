"""Plants each bug of `sim/mutations` in turn and counts the seeds until it is caught; the same seeds without it are the
control, and must be clean.

A bug that shows only in worlds of one scenario is looked for in those seeds of the ordinary run that begin from it: the
seed that catches it then is an upper bound of what the ordinary run takes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import msgspec

from holdfast.sim.declared import base_of
from holdfast.sim.loop import NothingLeft
from holdfast.sim.mutations import MUTATIONS, Mutation, find, planted
from holdfast.sim.shrink import complaint
from holdfast.sim.world import World

FIRST_SEEDS = 1
"""A bug with a scenario is looked for in so many of the first seeds before."""
SEEDS = 25
"""In so many seeds each is planted at most, unless told otherwise; as many of its scenario if it has one."""
SEED_MAX = 5000
"""Further than this nobody looks."""


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

    def clean(self, seed: int) -> bool:
        if seed not in self.said:
            self.said[seed] = try_out(seed).by
        return not self.said[seed]

    @property
    def alarms(self) -> list[int]:
        return [seed for seed, by in sorted(self.said.items()) if by]


def catch(name: str, seeds: Iterable[int], control: Control | None = None) -> Caught:
    """Runs seeds with the bug planted until one fails that is clean without it.

    A mutation that fails by its own fault has caught nothing.
    """
    control = control or Control()
    tried: list[int] = []
    idle = 0
    for seed in seeds:
        found = try_out(seed, name)
        tried.append(seed)
        idle += not found.executed
        if found.tripped:
            raise RuntimeError(f"the mutation {name} must be mended: {found.tripped}")
        if found.by and control.clean(seed):
            return Caught(name, tuple(tried), seed, found.by, found.what, idle)
    return Caught(name, tuple(tried), idle=idle)


def seeds_for(mutation: Mutation, *, first: int, seeds: int) -> Iterator[int]:
    """The seeds to plant it in, in order: plain ones, or those that begin from its scenario after a few."""
    if not mutation.scenario:
        yield from range(first, first + seeds)
        return
    yield from range(first, first + FIRST_SEEDS)
    yield from islice(begun_from(mutation.scenario, first=first + FIRST_SEEDS), seeds)


def begun_from(scenario: str, *, first: int = 1) -> Iterator[int]:
    """The seeds of the ordinary run that begin from a scenario."""
    for seed in range(first, SEED_MAX):
        base = base_of(seed)
        if base is not None and base.title.partition(" (")[0] == scenario:
            yield seed


class Table:
    """All that was tried, and what the control said."""

    def __init__(self) -> None:
        self.rows: list[Caught] = []
        self.control = Control()

    @property
    def missed(self) -> list[str]:
        return [row.name for row in self.rows if row.seed is None]

    def summary(self) -> str:
        took = [row.seed for row in self.rows if row.seed is not None]
        median = f"median seed {statistics.median(took):g}, last {max(took)}" if took else "none"
        return (
            f"{len(took)} of {len(self.rows)} caught, {median}; "
            f"control: {len(self.control.said)} seeds without any bug, {len(self.control.alarms)} alarms"
        )


def row_of(row: Caught) -> str:
    if row.seed is not None:
        return f"{row.name:28} {row.seed:5} {len(row.tried):5}  {row.by}: {row.what[:150]}"
    why = "never executed" if row.idle == len(row.tried) else f"not caught, never executed in {row.idle}"
    return f"{row.name:28} {'none':>5} {len(row.tried):5}  {why}: {find(row.name).says}"


def plant(
    name: str, *, seeds: int, first: int, told: Callable[[str], None], page: Callable[[str], None] | None = None
) -> int:
    """The command: one bug, or all; tells a row for each. 0 when each was caught and the control is clean."""
    chosen = [m for m in MUTATIONS if name == "all" or m.name in name.split(",")]
    if not chosen:
        told(f"there is no bug {name!r}; there are: {', '.join(m.name for m in MUTATIONS)}")
        return 2
    table = Table()
    told(f"{'bug':28} {'seed':>5} {'tried':>5}  caught by")
    for mutation in chosen:
        row = catch(mutation.name, seeds_for(mutation, first=first, seeds=seeds), table.control)
        table.rows.append(row)
        told(row_of(row))
    for seed in sorted({seed for row in table.rows for seed in row.tried}):
        table.control.clean(seed)
    told(table.summary())
    for seed in table.control.alarms:
        told(f"the control fails with seed {seed} ({table.control.said[seed]}): make sim SEED={seed}")
    if page is not None:
        page("\n".join(lines(table)) + "\n")
    return 1 if table.missed or table.control.alarms else 0


def lines(table: Table) -> Iterator[str]:
    """The table as a page of the documentation."""
    yield "# Planted bugs"
    yield ""
    yield "Written by `python -m holdfast.sim --plant all --seeds 25 --page docs/planted-bugs.md`. Each bug takes a"
    yield "defence of the production code away (`sim/mutations`). *Seed* is the first seed of the ordinary run that"
    yield "catches it, or, where a scenario is named, the first of those that begin from it; *tried* is in how many"
    yield "worlds it was planted."
    yield ""
    yield f"{table.summary()}."
    if table.control.alarms:
        found = ", ".join(f"{seed} ({table.control.said[seed]})" for seed in table.control.alarms)
        yield f"Seeds that fail without any bug, and so have caught none: {found}."
    yield ""
    yield "| bug | the mistake | seed | tried | caught by | scenario |"
    yield "|---|---|---:|---:|---|---|"
    for row in table.rows:
        mutation = find(row.name)
        seed, by = (str(row.seed), row.by) if row.seed is not None else ("none", "never executed" if _idle(row) else "")
        yield f"| {row.name} | {mutation.says} | {seed} | {len(row.tried)} | {by} | {mutation.scenario} |"
    yield ""
    yield "## The catalogue"
    yield ""
    yield "| mistake | planted as |"
    yield "|---|---|"
    by_entry: dict[str, list[str]] = {}
    for mutation in MUTATIONS:
        by_entry.setdefault(mutation.entry, []).append(mutation.name)
    for entry, names in by_entry.items():
        yield f"| {entry or '(beyond it)'} | {', '.join(names)} |"


def _idle(row: Caught) -> bool:
    return row.idle == len(row.tried)
