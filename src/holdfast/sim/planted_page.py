"""The table of planted bugs: how many seeds each took, in rows on the screen and as a page of the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from holdfast.sim.mutations import MUTATIONS, find
from holdfast.sim.planting import Caught, Control


class Table:
    """All that was tried, from the seed `first` on, and what the control said."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.rows: list[Caught] = []
        self.control = Control()

    @property
    def missed(self) -> list[str]:
        """Those that no seed caught, and that are not proven to be no bugs."""
        return [row.name for row in self.rows if row.seed is None and not find(row.name).equivalent]

    @property
    def disproven(self) -> list[str]:
        """Those that were caught though there is a proof that they cannot be."""
        return [row.name for row in self.rows if row.seed is not None and find(row.name).equivalent]

    def took(self, row: Caught) -> int | None:
        """Seeds of the ordinary run up to the one that caught it, those between that nobody ran included."""
        return None if row.seed is None else row.seed - self.first + 1

    @property
    def median(self) -> float:
        """Of what those took that were caught."""
        return statistics.median([seeds for row in self.rows if (seeds := self.took(row)) is not None] or [0])

    def summary(self) -> str:
        took = [seeds for row in self.rows if (seeds := self.took(row)) is not None]
        median = f"after {self.median:g} seeds in the median and {max(took)} at most" if took else "none"
        counted = [row for row in self.rows if not find(row.name).equivalent]
        return (
            f"{len(took)} of {len(counted)} caught, {median}; "
            f"control: {len(self.control.said)} seeds without any bug, {len(self.control.alarms)} alarms"
        )

    def in_order(self) -> None:
        """As the catalogue has them; they come in the order in which they were caught."""
        known = [mutation.name for mutation in MUTATIONS]
        self.rows.sort(key=lambda row: known.index(row.name))


def row_of(row: Caught) -> str:
    if row.seed is not None:
        return f"{row.name:28} {row.seed:5} {len(row.tried):5}  {row.by}: {row.what[:150]}"
    why = "never executed" if _idle(row) else f"not caught, never executed in {row.idle}"
    return f"{row.name:28} {'none':>5} {len(row.tried):5}  {why}: {find(row.name).says}"


def lines(table: Table) -> Iterator[str]:
    """The table as a page of the documentation."""
    begin = f" --from {table.first}" if table.first != 1 else ""
    yield "# Planted bugs"
    yield ""
    yield f"Written by `python -m holdfast.sim --plant all --seeds 25{begin} --page docs/planted-bugs.md`. Each"
    yield "bug takes a defence of the production code away (`sim/mutations`). *Took* is how many seeds of the ordinary"
    yield f"run it takes, counted from seed {table.first}, that one and the one that caught it included. A bug that"
    yield "only some course of events shows names a scenario: it was planted in the first seed and in those that begin"
    yield "from that scenario; the seeds between were not run but count all the same, so that its figure is an upper"
    yield "bound. *Tried* is in how many worlds it was planted, *ran* in how many of those its code was called. The"
    yield "control is every world that was tried, without any bug."
    yield ""
    yield f"{table.summary()}."
    if table.control.alarms:
        found = ", ".join(f"{seed} ({table.control.said[seed]})" for seed in table.control.alarms)
        yield f"Seeds that fail without any bug, and so have caught none: {found}."
    yield ""
    yield "| bug | the mistake | took | tried | ran | caught by | scenario |"
    yield "|---|---|---:|---:|---:|---|---|"
    for row in table.rows:
        mutation = find(row.name)
        took, by = (str(table.took(row)), row.by) if row.seed is not None else ("none", "")
        if row.seed is None:
            by = "equivalent, see below" if mutation.equivalent else "never executed" if _idle(row) else ""
        figures = f"{took} | {len(row.tried)} | {_ran(row)}"
        yield f"| {row.name} | {mutation.says} | {figures} | {by} | {mutation.scenario} |"
    yield ""
    yield "## Equivalents"
    yield ""
    yield from _equivalents(table)
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


def _equivalents(table: Table) -> Iterator[str]:
    proven = [mutation for mutation in map(find, (row.name for row in table.rows)) if mutation.equivalent]
    if not proven:
        yield "None: each of these bugs changes what the system does, and none is excused."
    for mutation in proven:
        caught = " **It was caught: the proof is wrong.**" if mutation.name in table.disproven else ""
        yield f"- {mutation.name} ({mutation.says}): {mutation.equivalent}{caught}"


def _ran(row: Caught) -> str:
    """The share of the tried worlds in which the bug's code was called."""
    return f"{(len(row.tried) - row.idle) / max(1, len(row.tried)):.0%}"


def _idle(row: Caught) -> bool:
    return row.idle == len(row.tried)
