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
        return [row.name for row in self.rows if row.seed is None]

    def took(self, row: Caught) -> int | None:
        """Seeds of the ordinary run up to the one that caught it, those between that nobody ran included."""
        return None if row.seed is None else row.seed - self.first + 1

    def summary(self) -> str:
        took = [seeds for row in self.rows if (seeds := self.took(row)) is not None]
        median = f"after {statistics.median(took):g} seeds in the median and {max(took)} at most" if took else "none"
        return (
            f"{len(took)} of {len(self.rows)} caught, {median}; "
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
    yield f"run it takes, from seed {table.first} on. A bug that only some course of events shows names a scenario:"
    yield "it was planted in the first seed and in those that begin from that scenario; the seeds between were not run"
    yield "but count all the same, so that its figure is an upper bound. *Tried* is in how many worlds it was planted."
    yield ""
    yield f"{table.summary()}."
    if table.control.alarms:
        found = ", ".join(f"{seed} ({table.control.said[seed]})" for seed in table.control.alarms)
        yield f"Seeds that fail without any bug, and so have caught none: {found}."
    yield ""
    yield "| bug | the mistake | took | tried | caught by | scenario |"
    yield "|---|---|---:|---:|---|---|"
    for row in table.rows:
        mutation = find(row.name)
        took, by = (str(table.took(row)), row.by) if row.seed is not None else ("none", "")
        if row.seed is None and _idle(row):
            by = "never executed"
        yield f"| {row.name} | {mutation.says} | {took} | {len(row.tried)} | {by} | {mutation.scenario} |"
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
