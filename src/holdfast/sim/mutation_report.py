"""The table of mutations and the seeds that caught them, as rows on the terminal and as a page of the docs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from holdfast.sim.mutation_testing import ControlRun, MutationCaught
from holdfast.sim.mutations import MUTATIONS, find_mutation


class MutationTable:
    """Results of all mutations from seed `first`, and of the control."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.rows: list[MutationCaught] = []
        self.control = ControlRun()

    @property
    def missed(self) -> list[str]:
        """Mutations that no seed caught and that are not marked equivalent."""
        return [row.name for row in self.rows if row.seed is None and not find_mutation(row.name).equivalent]

    @property
    def wrongly_equivalent(self) -> list[str]:
        """Mutations that were caught although they are marked equivalent."""
        return [row.name for row in self.rows if row.seed is not None and find_mutation(row.name).equivalent]

    def seeds_to_catch(self, row: MutationCaught) -> int | None:
        """Seeds of the ordinary run up to the catching seed, including seeds that were not run."""
        return None if row.seed is None else row.seed - self.first + 1

    @property
    def median(self) -> float:
        """Median number of seeds of the caught mutations."""
        return statistics.median([seeds for row in self.rows if (seeds := self.seeds_to_catch(row)) is not None] or [0])

    def summary(self) -> str:
        took = [seeds for row in self.rows if (seeds := self.seeds_to_catch(row)) is not None]
        median = f"after {self.median:g} seeds in the median and {max(took)} at most" if took else "none"
        counted = [row for row in self.rows if not find_mutation(row.name).equivalent]
        return (
            f"{len(took)} of {len(counted)} caught, {median}; "
            f"control: {len(self.control.failures)} seeds without mutation, {len(self.control.failing_seeds)} failures"
        )

    def sort_by_catalogue(self) -> None:
        """Sorts rows in the order of `MUTATIONS`. They arrive in the order in which they were caught."""
        known = [mutation.name for mutation in MUTATIONS]
        self.rows.sort(key=lambda row: known.index(row.name))


def format_row(row: MutationCaught) -> str:
    if row.seed is not None:
        return f"{row.name:32} {row.seed:5} {len(row.tried):5}  {row.invariant}: {row.message[:150]}"
    why = "never executed" if _never_executed(row) else f"not caught, never executed in {row.not_executed}"
    return f"{row.name:32} {'none':>5} {len(row.tried):5}  {why}: {find_mutation(row.name).description}"


def report_lines(table: MutationTable) -> Iterator[str]:
    """The table as a page of the documentation."""
    begin = f" --from {table.first}" if table.first != 1 else ""
    yield "# Mutations"
    yield ""
    yield f"Written by `python -m holdfast.sim --mutation all --seeds 25{begin} --page docs/mutations.md`. Each"
    yield "mutation removes a defence of the production code (`sim/mutations`). *Seeds* is the number of seeds of the"
    yield f"ordinary run until a checker catches the mutation, counted from seed {table.first}. A mutation that needs a"
    yield "certain course of events names a scenario: it was applied in the first seed and in seeds that start from the"
    yield "scenario. The seeds in between count although they were not run, so the number is an upper bound. *Runs* is"
    yield "the number of runs with the mutation, *executed* the share of them in which its code was called. The control"
    yield "is the same runs without a mutation."
    yield ""
    yield f"{table.summary()}."
    if table.control.failing_seeds:
        found = ", ".join(f"{seed} ({table.control.failures[seed]})" for seed in table.control.failing_seeds)
        yield f"Seeds that fail without a mutation and therefore catch none: {found}."
    yield ""
    yield "| mutation | the mistake | seeds | runs | executed | caught by | scenario |"
    yield "|---|---|---:|---:|---:|---|---|"
    for row in table.rows:
        mutation = find_mutation(row.name)
        took, by = (str(table.seeds_to_catch(row)), row.invariant) if row.seed is not None else ("none", "")
        if row.seed is None:
            by = "equivalent, see below" if mutation.equivalent else "never executed" if _never_executed(row) else ""
        figures = f"{took} | {len(row.tried)} | {_ran(row)}"
        yield f"| {row.name} | {mutation.description} | {figures} | {by} | {mutation.scenario} |"
    yield ""
    yield "## Equivalents"
    yield ""
    yield from _equivalents(table)
    yield ""
    yield "## Catalogue"
    yield ""
    yield "| mistake | mutations |"
    yield "|---|---|"
    by_entry: dict[str, list[str]] = {}
    for mutation in MUTATIONS:
        by_entry.setdefault(mutation.catalogue_entry, []).append(mutation.name)
    for entry, names in by_entry.items():
        yield f"| {entry or '(not in the catalogue)'} | {', '.join(names)} |"


def _equivalents(table: MutationTable) -> Iterator[str]:
    proven = [mutation for mutation in map(find_mutation, (row.name for row in table.rows)) if mutation.equivalent]
    if not proven:
        yield "None: every mutation changes the behaviour of the system."
    for mutation in proven:
        caught = " **It was caught: the proof is wrong.**" if mutation.name in table.wrongly_equivalent else ""
        yield f"- {mutation.name} ({mutation.description}): {mutation.equivalent}{caught}"


def _ran(row: MutationCaught) -> str:
    """The share of runs in which the mutation's code was called."""
    return f"{(len(row.tried) - row.not_executed) / max(1, len(row.tried)):.0%}"


def _never_executed(row: MutationCaught) -> bool:
    return row.not_executed == len(row.tried)
