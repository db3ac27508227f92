"""Runs mutation tests in parallel, each run in its own process.

Every result is stored at once (`planted_kept`), so that an interrupted search continues. Two searches share the runs
that both request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from holdfast.sim import parallel_runs
from holdfast.sim.mutation_report import MutationTable, format_row, report_lines
from holdfast.sim.mutation_results import MutationResultLog
from holdfast.sim.mutation_testing import (
    MEDIAN_MAX,
    MutationCaught,
    TrialRequest,
    TrialResult,
    run_trial,
    search,
    seeds_for,
)
from holdfast.sim.mutations import MUTATIONS
from holdfast.sim.worker_pool import WorkerPool

PROGRESS_EVERY_S = 60.0
POLL_EVERY_S = 1.0

Search = Generator[TrialRequest, TrialResult, MutationCaught]


class MutationRunOptions(msgspec.Struct, frozen=True):
    """Mutations to test: one, several separated by commas, or `all`. `kept` is the result file, `page` the file for the
    table."""

    name: str
    seeds: int
    first: int = 1
    workers: int = 1
    results_path: Path | None = None
    report_path: Path | None = None


def run_mutations(wish: MutationRunOptions, told: Callable[[str], None]) -> int:
    """Prints a row per mutation. Returns 0 if every mutation was caught and the control passed."""
    chosen = [m for m in MUTATIONS if wish.name == "all" or m.name in wish.name.split(",")]
    if not chosen:
        told(f"error: mutation {wish.name}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})")
        return 2
    table = MutationTable(wish.first)
    kept = MutationResultLog(wish.results_path)
    if kept.results:
        told(f"continuing after {len(kept.results)} runs; delete {wish.results_path} to restart")
    told(f"{'mutation':32} {'seed':>5} {'runs':>5}  caught by")
    parallel_runs.silence_logs()
    parallel_runs.warm_up()
    garden = MutationRunner(kept, wish.workers, table, told)
    searches = (search(m.name, seeds_for(m, first=wish.first, seeds=wish.seeds)) for m in chosen)
    garden.run(list(searches))
    tried = sorted({seed for row in table.rows for seed in row.tried})
    garden.run([_alone(seed) for seed in tried])
    table.control.failures = {seed: kept.results[TrialRequest("", seed)].invariant for seed in tried}
    table.sort_by_catalogue()
    told(table.summary())
    for seed in table.control.failing_seeds:
        told(f"the control fails with seed {seed} ({table.control.failures[seed]}); next: make sim SEED={seed}")
    if wish.report_path is not None:
        wish.report_path.write_text("\n".join(report_lines(table)) + "\n")
    for name in table.wrongly_equivalent:
        told(f"{name}: marked equivalent, but caught")
    late = wish.name == "all" and table.median > MEDIAN_MAX
    if late:
        told(f"median of seeds over the catalogue: {table.median:g} (limit {MEDIAN_MAX})")
    return 1 if table.missed or table.wrongly_equivalent or table.control.failing_seeds or late else 0


def _alone(seed: int) -> Search:
    """The control run of one seed. It has no row in the table."""
    yield TrialRequest("", seed)
    return MutationCaught("", (seed,))


class MutationRunner:
    """Advances searches as their runs end. `workers` runs execute at once."""

    def __init__(self, kept: MutationResultLog, workers: int, table: MutationTable, told: Callable[[str], None]) -> None:
        self._kept = kept
        self._workers = max(1, workers)
        self._table = table
        self._told = told
        self._asked: dict[int, TrialRequest] = {}
        """Requests by the number of their run."""
        self._waiting: dict[TrialRequest, list[Search]] = {}
        self._worlds = 0
        self._began_s = self._told_s = time.monotonic()

    def run(self, searches: list[Search]) -> None:
        """Runs all searches to their end."""
        nursery: WorkerPool[TrialResult] = WorkerPool(self._live)
        left, queue = searches[::-1], list[TrialRequest]()
        try:
            while left or queue or len(nursery):
                while left and len(nursery) + len(queue) < self._workers:
                    queue += self._go_on(left.pop(), None)
                while queue and len(nursery) < self._workers:
                    self._worlds += 1
                    self._asked[self._worlds] = queue.pop(0)
                    nursery.begin(self._worlds)
                for end in nursery.ended(POLL_EVERY_S):
                    ask = self._asked.pop(end.number)
                    if end.result is None:
                        raise RuntimeError(f"seed {ask.seed} with {ask.name or 'no mutation'}: {end.why}")
                    self._kept.add(ask, end.result)
                    for waiting in self._waiting.pop(ask):
                        queue += self._go_on(waiting, end.result)
                self._progress(len(left))
        finally:
            nursery.stop()

    def _go_on(self, asking: Search, answer: TrialResult | None) -> list[TrialRequest]:
        """Advances a search with known results. Returns the next run to start, unless it is already in flight."""
        try:
            ask = next(asking) if answer is None else asking.send(answer)
            while ask in self._kept.results:
                ask = asking.send(self._kept.results[ask])
        except StopIteration as end:
            caught: MutationCaught = end.value
            if caught.name:
                self._table.rows.append(caught)
                self._told(format_row(caught))
            return []
        self._waiting.setdefault(ask, []).append(asking)
        return [ask] if len(self._waiting[ask]) == 1 else []

    def _live(self, number: int) -> TrialResult:
        """Runs in a worker process."""
        ask = self._asked[number]
        parallel_runs.disable_metrics()
        return run_trial(ask.seed, ask.name)

    def _progress(self, left: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s > PROGRESS_EVERY_S:
            self._told_s = now_s
            spent = f"after {(now_s - self._began_s) / 60:.0f} min: {self._worlds} runs"
            self._told(f"{spent}, {len(self._table.rows)} mutations finished, {left} not started")
