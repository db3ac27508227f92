"""Runs mutation tests in parallel, each run in its own process.

Every result is stored at once (`planted_kept`), so that an interrupted search continues. Two searches share the runs
that both request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from holdfast.sim import runs
from holdfast.sim.mutations import MUTATIONS
from holdfast.sim.nursery import Nursery
from holdfast.sim.planted_kept import Kept
from holdfast.sim.planted_page import Table, lines, row_of
from holdfast.sim.planting import MEDIAN_MAX, Ask, Caught, Tried, search, seeds_for, try_out

PROGRESS_EVERY_S = 60.0
LOOK_EVERY_S = 1.0

Search = Generator[Ask, Tried, Caught]


class Wish(msgspec.Struct, frozen=True):
    """Mutations to test: one, several separated by commas, or `all`. `kept` is the result file, `page` the file for the
    table."""

    name: str
    seeds: int
    first: int = 1
    workers: int = 1
    kept: Path | None = None
    page: Path | None = None


def plant(wish: Wish, told: Callable[[str], None]) -> int:
    """Prints a row per mutation. Returns 0 if every mutation was caught and the control passed."""
    chosen = [m for m in MUTATIONS if wish.name == "all" or m.name in wish.name.split(",")]
    if not chosen:
        told(f"error: mutation {wish.name}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})")
        return 2
    table = Table(wish.first)
    kept = Kept(wish.kept)
    if kept.answers:
        told(f"continuing after {len(kept.answers)} runs; delete {wish.kept} to restart")
    told(f"{'mutation':32} {'seed':>5} {'runs':>5}  caught by")
    runs.quiet()
    runs.warm_up()
    garden = Garden(kept, wish.workers, table, told)
    searches = (search(m.name, seeds_for(m, first=wish.first, seeds=wish.seeds)) for m in chosen)
    garden.run(list(searches))
    tried = sorted({seed for row in table.rows for seed in row.tried})
    garden.run([_alone(seed) for seed in tried])
    table.control.said = {seed: kept.answers[Ask("", seed)].by for seed in tried}
    table.in_order()
    told(table.summary())
    for seed in table.control.alarms:
        told(f"the control fails with seed {seed} ({table.control.said[seed]}); next: make sim SEED={seed}")
    if wish.page is not None:
        wish.page.write_text("\n".join(lines(table)) + "\n")
    for name in table.disproven:
        told(f"{name}: marked equivalent, but caught")
    late = wish.name == "all" and table.median > MEDIAN_MAX
    if late:
        told(f"median of seeds over the catalogue: {table.median:g} (limit {MEDIAN_MAX})")
    return 1 if table.missed or table.disproven or table.control.alarms or late else 0


def _alone(seed: int) -> Search:
    """The control run of one seed. It has no row in the table."""
    yield Ask("", seed)
    return Caught("", (seed,))


class Garden:
    """Advances searches as their runs end. `workers` runs execute at once."""

    def __init__(self, kept: Kept, workers: int, table: Table, told: Callable[[str], None]) -> None:
        self._kept = kept
        self._workers = max(1, workers)
        self._table = table
        self._told = told
        self._asked: dict[int, Ask] = {}
        """Requests by the number of their run."""
        self._waiting: dict[Ask, list[Search]] = {}
        self._worlds = 0
        self._began_s = self._told_s = time.monotonic()

    def run(self, searches: list[Search]) -> None:
        """Runs all searches to their end."""
        nursery: Nursery[Tried] = Nursery(self._live)
        left, queue = searches[::-1], list[Ask]()
        try:
            while left or queue or len(nursery):
                while left and len(nursery) + len(queue) < self._workers:
                    queue += self._go_on(left.pop(), None)
                while queue and len(nursery) < self._workers:
                    self._worlds += 1
                    self._asked[self._worlds] = queue.pop(0)
                    nursery.begin(self._worlds)
                for end in nursery.ended(LOOK_EVERY_S):
                    ask = self._asked.pop(end.number)
                    if end.result is None:
                        raise RuntimeError(f"seed {ask.seed} with {ask.name or 'no mutation'}: {end.why}")
                    self._kept.add(ask, end.result)
                    for waiting in self._waiting.pop(ask):
                        queue += self._go_on(waiting, end.result)
                self._progress(len(left))
        finally:
            nursery.stop()

    def _go_on(self, asking: Search, answer: Tried | None) -> list[Ask]:
        """Advances a search with known results. Returns the next run to start, unless it is already in flight."""
        try:
            ask = next(asking) if answer is None else asking.send(answer)
            while ask in self._kept.answers:
                ask = asking.send(self._kept.answers[ask])
        except StopIteration as end:
            caught: Caught = end.value
            if caught.name:
                self._table.rows.append(caught)
                self._told(row_of(caught))
            return []
        self._waiting.setdefault(ask, []).append(asking)
        return [ask] if len(self._waiting[ask]) == 1 else []

    def _live(self, number: int) -> Tried:
        """Runs in a worker process."""
        ask = self._asked[number]
        runs.count_nothing()
        return try_out(ask.seed, ask.name)

    def _progress(self, left: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s > PROGRESS_EVERY_S:
            self._told_s = now_s
            spent = f"after {(now_s - self._began_s) / 60:.0f} min: {self._worlds} runs"
            self._told(f"{spent}, {len(self._table.rows)} mutations finished, {left} not started")
