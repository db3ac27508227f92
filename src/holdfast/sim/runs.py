"""Many worlds on several processors: seeds are handed out one by one, and what comes back is added up.

A share of the seeds is run a second time in another process with another hash seed; if the digests differ, the run was
not decided by its seed alone, and that is a failure like any other ("unseed" check).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

import msgspec

from holdfast.sim.coverage import Coverage
from holdfast.sim.world import Outcome, Shape, World

UNSEED_EVERY = 25
"""One in so many seeds is run twice."""


class Done(msgspec.Struct, frozen=True):
    """One seed's result, with what it cost and exercised."""

    outcome: Outcome
    coverage: Coverage
    cpu_s: float
    unseed: str = ""


class Total(msgspec.Struct):
    """What many seeds add up to."""

    seeds: int = 0
    node_hours: float = 0.0
    faults: int = 0
    violations: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    next_seed: int = 1
    failed: list[int] = []
    coverage: Coverage = msgspec.field(default_factory=Coverage)

    def add(self, done: Done) -> None:
        outcome = done.outcome
        self.seeds += 1
        self.node_hours += outcome.node_hours
        self.faults += sum(outcome.faults.values())
        self.cpu_s += done.cpu_s
        self.slowest_s = max(self.slowest_s, outcome.settled_in_s)
        self.coverage.add(done.coverage)
        if not outcome.ok or done.unseed:
            self.violations += 1
            self.failed.append(outcome.seed)

    def lines(self, spent_s: float) -> Iterator[str]:
        speed = self.node_hours / max(self.cpu_s, 1e-9) * 60
        yield (f"{speed:.0f} node-hours per CPU-minute, {spent_s:.0f} s, slowest to settle {self.slowest_s:.0f} s")
        yield (
            f"{self.seeds} seeds, {self.node_hours:.1f} simulated node-hours, {self.faults} faults, "
            f"{self.violations} violations"
        )


def run_one(seed: int, shape: Shape | None = None) -> Done:
    quiet()
    began_s = time.process_time()
    world = World(seed, shape)
    outcome = world.run()
    unseed = ""
    if seed % UNSEED_EVERY == 0:
        unseed = why_not_determined(outcome)
    return Done(outcome, world.telling().coverage, time.process_time() - began_s, unseed)


def run_many(
    seeds: Iterator[int], *, workers: int, told: Callable[[Done], None], until: Callable[[], bool] = lambda: False
) -> None:
    """Runs seeds until they are used up, or `until` says that it is enough."""
    if workers <= 1:
        for seed in seeds:
            told(run_one(seed))
            if until():
                return
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=50) as pool:
        waiting: set[Future[Done]] = set()
        for seed in seeds:
            waiting.add(pool.submit(run_one, seed))
            if len(waiting) < 2 * workers:
                continue
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                told(future.result())
            if until():
                break
        for future in waiting:
            told(future.result())


def why_not_determined(outcome: Outcome) -> str:
    """Runs the seed again in a process of its own, with another hash seed; empty when both were the same."""
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-m", "holdfast.sim", "--seed", str(outcome.seed), "--digest"]
    answer = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": other}, capture_output=True, text=True, check=False
    )
    digest = answer.stdout.strip()
    if digest == outcome.digest:
        return ""
    there = digest or answer.stderr[-300:]
    return f"seed {outcome.seed}: not determined by its seed: {outcome.digest} here, {there} there"


def quiet() -> None:
    """Parts log as in production; in a simulation nobody reads it unless asked."""
    import logging

    import structlog

    if not structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def remember(path: Path, total: Total) -> None:
    """What a long run has done so far, so that the next one goes on where it ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(
        json.dumps(
            {
                **{
                    name: getattr(total, name)
                    for name in ("seeds", "node_hours", "faults", "violations", "cpu_s", "slowest_s", "next_seed")
                },
                "failed": total.failed,
                "transitions": [[a, b, n] for (a, b), n in sorted(total.coverage.transitions.items())],
                "fault_kinds": dict(total.coverage.faults),
                "reasons": dict(total.coverage.reasons),
            }
        )
    )
    part.rename(path)


def recall(path: Path) -> Total:
    if not path.exists():
        return Total(failed=[])
    kept = json.loads(path.read_text())
    coverage = Coverage()
    coverage.transitions.update({(a, b): n for a, b, n in kept.pop("transitions")})
    coverage.faults.update(kept.pop("fault_kinds"))
    coverage.reasons.update(kept.pop("reasons"))
    return Total(**kept, coverage=coverage)
