"""Runs many seeds in parallel and sums up the results.

Some seeds run again in another process with another hash seed. If the digests differ, the run is not deterministic and
counts as failed. Every seed is counted exactly once, however often a long run is interrupted and continued.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any

import msgspec

from holdfast.scheduling import policy_expressions
from holdfast.sim.coverage import Coverage
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import RunOutcome, Simulation
from holdfast.sim.worker_pool import WorkerExit, WorkerPool

REPEAT_EVERY_SEEDS = 25
"""One in this many seeds is run twice."""
POLL_EVERY_S = 1.0
WARM_UP_SIZE = SimulationSize(nodes_per_region=1, faults_s=2.0, convergence_timeout_s=20.0, stable_s=5.0, profiles=())


class SeedResult(msgspec.Struct, frozen=True):
    """Result of one seed with its coverage and CPU time. `nondeterminism` describes a second run that differed."""

    outcome: RunOutcome
    coverage: Coverage
    cpu_s: float
    nondeterminism: str = ""


class RunTotals(msgspec.Struct):
    """Totals of many seeds: all seeds below `next_seed`, and those in `ahead`."""

    seeds: int = 0
    node_hours: float = 0.0
    faults: int = 0
    violations: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    next_seed: int = 1
    completed_ahead: list[int] = msgspec.field(default_factory=list)
    failed: list[int] = msgspec.field(default_factory=list)
    coverage: Coverage = msgspec.field(default_factory=Coverage)

    def add(self, result: SeedResult) -> None:
        outcome = result.outcome
        if outcome.seed < self.next_seed or outcome.seed in self.completed_ahead:
            raise ValueError(
                f"seed {outcome.seed}: already counted (next {self.next_seed}, ahead {self.completed_ahead})"
            )
        self.seeds += 1
        self.node_hours += outcome.node_hours
        self.faults += sum(outcome.faults.values())
        self.cpu_s += result.cpu_s
        self.slowest_s = max(self.slowest_s, outcome.converged_in_s)
        self.coverage.add(result.coverage)
        self.completed_ahead.append(outcome.seed)
        while self.next_seed in self.completed_ahead:
            self.completed_ahead.remove(self.next_seed)
            self.next_seed += 1
        if not outcome.ok or result.nondeterminism:
            self.violations += 1
            self.failed.append(outcome.seed)

    def remaining_seeds(self) -> Iterator[int]:
        """The seeds that are not counted yet, without end."""
        result, seed = frozenset(self.completed_ahead), self.next_seed
        while True:
            if seed not in result:
                yield seed
            seed += 1

    def summary(self) -> str:
        return (
            f"{self.seeds} seeds, {self.node_hours:.1f} simulated node-hours, {self.faults} faults, "
            f"{self.violations} violations"
        )

    def lines(self, spent_s: float) -> Iterator[str]:
        speed = self.node_hours / max(self.cpu_s, 1e-9) * 60
        yield f"{speed:.0f} node-hours per CPU-minute, {spent_s:.0f} s, slowest convergence {self.slowest_s:.0f} s"
        yield self.summary()


def run_one(seed: int, shape: SimulationSize | None = None, *, collecting: bool = False) -> SeedResult:
    """Runs one seed in a process that exits afterwards."""
    silence_logs()
    cache_loggers()
    disable_metrics()
    began_s = time.process_time()
    simulation = Simulation(seed, shape)
    outcome = simulation.run_without_teardown(collecting=collecting)
    return SeedResult(outcome, simulation.recording().coverage, time.process_time() - began_s)


def run_many(
    seeds: Iterable[int],
    *,
    workers: int,
    on_result: Callable[[SeedResult], None],
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Runs all seeds, or until `until()` is true; runs in flight are completed."""
    silence_logs()
    warm_up()
    left = iter(seeds)
    pool: WorkerPool[SeedResult] = WorkerPool(run_one)
    repeater = RepeatRunner()
    more = True
    try:
        while more or len(pool) or repeater.pending:
            while more and len(pool) + bool(repeater.pending) < max(1, workers):
                seed = None if until() else next(left, None)
                more = seed is not None
                if seed is not None:
                    pool.begin(seed)
            select.select([*pool.files(), *repeater.files()], (), (), POLL_EVERY_S)
            for end in pool.ended(0.0):
                result = end.result or _failed_result(end)
                if end.result is not None and end.number % REPEAT_EVERY_SEEDS == 0:
                    repeater.submit(result)
                else:
                    on_result(result)
            for result in repeater.results():
                on_result(result)
    finally:
        pool.stop()
        repeater.stop()


def _failed_result(end: WorkerExit[SeedResult]) -> SeedResult:
    """The result of a run that ended without one: failed."""
    outcome = RunOutcome(end.number, (), (), (end.why,), 0.0, 0.0, 0.0, 0, 0, {}, "")
    return SeedResult(outcome, Coverage(), 0.0)


class RepeatRunner:
    """A second interpreter with another hash seed that repeats runs. It is started on first use."""

    def __init__(self) -> None:
        self.pending: list[SeedResult] = []
        self._process: subprocess.Popen[bytes] | None = None

    def submit(self, result: SeedResult) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.sim", "--digests"],
                env={**os.environ, "PYTHONHASHSEED": _other_hash_seed()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        self.pending.append(result)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{result.outcome.seed}\n".encode())

    def files(self) -> list[int]:
        """File descriptors to wait for while results are pending."""
        return [self._stdout().fileno()] if self.pending else []

    def _stdout(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout

    def results(self) -> Iterator[SeedResult]:
        """Results that have arrived, with the comparison of the digests."""
        while (files := self.files()) and select.select(files, (), (), 0.0)[0]:
            digest = self._stdout().readline().decode().strip()
            result = self.pending.pop(0)
            yield msgspec.structs.replace(result, nondeterminism=digest_difference(result.outcome, digest))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def serve_digests(lines: Iterable[str]) -> Iterator[str]:
    """Reads seeds and yields digests, each from a run in its own process. Garbage is collected very often, so that a
    dependency on the collector changes the digest."""
    pool: WorkerPool[SeedResult] = WorkerPool(partial(run_one, collecting=True))
    for line in lines:
        pool.begin(int(line))
        ends: list[WorkerExit[SeedResult]] = []
        while not ends:
            ends = pool.ended()
        yield ends[0].result.outcome.digest if ends[0].result is not None else f"nothing ({ends[0].why[-200:]!r})"


def digest_difference(outcome: RunOutcome, digest: str) -> str:
    """Description of the difference; empty if the digests are equal."""
    if digest == outcome.digest:
        return ""
    repeated = digest or "none"
    return f"seed {outcome.seed}: not deterministic (digest {outcome.digest}, repeated {repeated})"


def nondeterminism_reason(outcome: RunOutcome) -> str:
    """Repeats the run with another hash seed. Returns the difference; empty if the digests are equal."""
    repeater = RepeatRunner()
    try:
        repeater.submit(SeedResult(outcome, Coverage(), 0.0))
        while True:
            select.select(repeater.files(), (), ())
            for result in repeater.results():
                return result.nondeterminism
    finally:
        repeater.stop()


def _other_hash_seed() -> str:
    return "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"


def warm_up() -> None:
    """Loads and compiles shared code once, before workers are forked."""
    policy_expressions.find_error("true", score=False)
    with contextlib.suppress(Exception):  # the real runs report any error
        Simulation(0, WARM_UP_SIZE).run()


def disable_metrics() -> None:
    """Disables Prometheus metrics, which are not read in a simulation."""
    from prometheus_client import Counter, Gauge, Histogram
    from prometheus_client.metrics import MetricWrapperBase

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def itself(metric: MetricWrapperBase, *_: Any, **__: Any) -> MetricWrapperBase:
        return metric

    for kind, names in ((Counter, ("inc",)), (Gauge, ("inc", "dec", "set")), (Histogram, ("observe",))):
        for name in names:
            setattr(kind, name, nothing)
    setattr(MetricWrapperBase, "labels", itself)  # noqa: B010 - a plain assignment has the wrong type


def cache_loggers() -> None:
    """Creates each logger once, because logging is not reconfigured in a simulation."""
    import structlog

    structlog.configure(cache_logger_on_first_use=True)


def silence_logs() -> None:
    """Silences the logs of components, unless logging is configured."""
    import logging

    import structlog

    if not structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
