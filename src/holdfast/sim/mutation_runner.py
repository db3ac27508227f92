"""Runs mutation tests in parallel, each run in its own process.

Every result is stored at once (`mutation_results`), so that an interrupted search continues. If two
searches request the same run, it is executed once.
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
    """Mutations to test: one, several separated by commas, or `all`. The table is written to `report_path`."""

    name: str
    seeds: int
    first: int = 1
    workers: int = 1
    results_path: Path | None = None
    report_path: Path | None = None


def run_mutations(options: MutationRunOptions, print_line: Callable[[str], None]) -> int:
    """Prints a row per mutation. Returns 0 if every mutation was caught and the control passed."""
    chosen = [m for m in MUTATIONS if options.name == "all" or m.name in options.name.split(",")]
    if not chosen:
        print_line(
            f"error: mutation {options.name}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})"
        )
        return 2
    table = MutationTable(options.first)
    results = MutationResultLog(options.results_path)
    if results.results:
        print_line(f"continuing after {len(results.results)} runs; delete {options.results_path} to restart")
    print_line(f"{'mutation':32} {'seed':>5} {'runs':>5}  caught by")
    parallel_runs.silence_logs()
    parallel_runs.warm_up()
    runner = MutationRunner(results, options.workers, table, print_line)
    searches = (search(m.name, seeds_for(m, first=options.first, seeds=options.seeds)) for m in chosen)
    runner.run(list(searches))
    tried = sorted({seed for row in table.rows for seed in row.tried})
    runner.run([_control_run(seed) for seed in tried])
    table.control.failures = {seed: results.results[TrialRequest("", seed)].invariant for seed in tried}
    table.sort_by_catalogue()
    print_line(table.summary())
    for seed in table.control.failing_seeds:
        print_line(f"the control fails with seed {seed} ({table.control.failures[seed]}); next: make sim SEED={seed}")
    if options.report_path is not None:
        options.report_path.write_text("\n".join(report_lines(table)) + "\n")
    for name in table.wrongly_equivalent:
        print_line(f"{name}: marked equivalent, but caught")
    too_late = options.name == "all" and table.median > MEDIAN_MAX
    if too_late:
        print_line(f"median number of seeds to catch a mutation: {table.median:g} (limit {MEDIAN_MAX})")
    return 1 if table.missed or table.wrongly_equivalent or table.control.failing_seeds or too_late else 0


def _control_run(seed: int) -> Search:
    """The control run of one seed. It has no row in the table."""
    yield TrialRequest("", seed)
    return MutationCaught("", (seed,))


class MutationRunner:
    """Advances searches as their runs end. `workers` runs execute at once."""

    def __init__(
        self, results: MutationResultLog, workers: int, table: MutationTable, print_line: Callable[[str], None]
    ) -> None:
        self._results = results
        self._workers = max(1, workers)
        self._table = table
        self._print = print_line
        self._requests: dict[int, TrialRequest] = {}
        """Requests by the number of their run."""
        self._waiting: dict[TrialRequest, list[Search]] = {}
        self._runs = 0
        self._began_s = self._printed_s = time.monotonic()

    def run(self, searches: list[Search]) -> None:
        """Runs all searches to their end."""
        pool: WorkerPool[TrialResult] = WorkerPool(self._run_trial)
        left, queue = searches[::-1], list[TrialRequest]()
        try:
            while left or queue or len(pool):
                while left and len(pool) + len(queue) < self._workers:
                    queue += self._advance(left.pop(), None)
                while queue and len(pool) < self._workers:
                    self._runs += 1
                    self._requests[self._runs] = queue.pop(0)
                    pool.begin(self._runs)
                for end in pool.ended(POLL_EVERY_S):
                    request = self._requests.pop(end.number)
                    if end.result is None:
                        raise RuntimeError(f"seed {request.seed} with {request.name or 'no mutation'}: {end.why}")
                    self._results.add(request, end.result)
                    for waiting in self._waiting.pop(request):
                        queue += self._advance(waiting, end.result)
                self._progress(len(left))
        finally:
            pool.stop()

    def _advance(self, searching: Search, result: TrialResult | None) -> list[TrialRequest]:
        """Advances a search with known results. Returns the next run to start, unless it is already in flight."""
        try:
            request = next(searching) if result is None else searching.send(result)
            while request in self._results.results:
                request = searching.send(self._results.results[request])
        except StopIteration as end:
            caught: MutationCaught = end.value
            if caught.name:
                self._table.rows.append(caught)
                self._print(format_row(caught))
            return []
        self._waiting.setdefault(request, []).append(searching)
        return [request] if len(self._waiting[request]) == 1 else []

    def _run_trial(self, number: int) -> TrialResult:
        """Runs in a worker process."""
        request = self._requests[number]
        parallel_runs.disable_metrics()
        return run_trial(request.seed, request.name)

    def _progress(self, left: int) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s > PROGRESS_EVERY_S:
            self._printed_s = now_s
            spent = f"after {(now_s - self._began_s) / 60:.0f} min: {self._runs} runs"
            self._print(f"{spent}, {len(self._table.rows)} mutations finished, {left} not started")
