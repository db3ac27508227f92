"""Parallel runs: each seed counts once, also across interruptions, and the totals are the sums over the seeds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.sim import parallel_runs
from holdfast.sim.coverage import Coverage
from holdfast.sim.parallel_runs import RunTotals, SeedResult
from holdfast.sim.run_totals import load_totals, save_totals
from holdfast.sim.simulation import RunOutcome
from holdfast.sim.worker_pool import WorkerPool

DEADLINE_S = 200.0
SUMMARY = re.compile(r"^(\d+) seeds, ([\d.]+) simulated node-hours, (\d+) faults, (\d+) violations$")


def result_of(seed: int, **changes: Any) -> SeedResult:
    outcome = RunOutcome(seed, (), (), (), 10.0, 5.0, 1.5, 7, 70, {"call lost": 2}, "d")
    coverage = Coverage()
    coverage.transitions[("Queued", "Reserved")] += 3
    coverage.reasons["Reporting"] += 1
    return SeedResult(msgspec.structs.replace(outcome, **changes), coverage, 0.5)


def test_totals_count_each_seed_once_in_any_completion_order() -> None:
    total = RunTotals()
    for seed in (2, 1, 4):
        total.add(result_of(seed))
    assert (total.seeds, total.next_seed, total.completed_ahead) == (3, 3, [4])
    left = total.remaining_seeds()
    assert [next(left) for _ in range(3)] == [3, 5, 6]
    for seed in (1, 2, 4):
        with pytest.raises(ValueError, match="already counted"):
            total.add(result_of(seed))


def test_totals_are_saved_loaded_and_extended(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "hours.json"
    total = load_totals(path)
    for seed in (1, 3):
        total.add(result_of(seed))
    total.add(result_of(2, unconverged=("api is missing",)))
    save_totals(path, total)
    again = load_totals(path)
    assert msgspec.to_builtins(again, str_keys=False) == msgspec.to_builtins(total, str_keys=False)
    again.add(result_of(4))
    assert again.coverage.transitions[("Queued", "Reserved")] == 12
    assert again.coverage.reasons["Reporting"] == 4
    assert again.failed == [2]
    assert again.summary() == "4 seeds, 6.0 simulated node-hours, 8 faults, 1 violations"


def test_summary_line_has_its_exact_format() -> None:
    total = RunTotals()
    total.add(result_of(1))
    last = list(total.lines(1.0))[-1]
    assert last == "1 seeds, 1.5 simulated node-hours, 2 faults, 0 violations"
    assert SUMMARY.match(last)


def test_worker_that_raises_or_is_killed_is_reported() -> None:
    def run_worker(number: int) -> str:
        if number == 1:
            raise ValueError("no such seed")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "x" * 200_000

    pool: WorkerPool[str] = WorkerPool(run_worker)
    for number in (1, 2, 3):
        pool.begin(number)
    ends = {}
    deadline_s = time.monotonic() + DEADLINE_S
    while len(pool):
        assert time.monotonic() < deadline_s
        ends.update({end.number: end for end in pool.ended(1.0)})
    assert "no such seed" in ends[1].why and ends[1].result is None
    assert "ended without a result" in ends[2].why and ends[2].result is None
    assert ends[3].result == "x" * 200_000


def test_different_digests_count_as_violation() -> None:
    outcome = result_of(25).outcome
    assert parallel_runs.digest_difference(outcome, outcome.digest) == ""
    assert "not deterministic" in parallel_runs.digest_difference(outcome, "other")
    total = RunTotals()
    total.add(msgspec.structs.replace(result_of(1), nondeterminism="seed 1: not deterministic"))
    assert (total.violations, total.failed) == (1, [1])


def test_interrupt_during_fork_is_not_lost() -> None:
    """Python ignores exceptions raised inside fork hooks. The hook here sends the signal at that moment."""
    program = """
import os, signal
from holdfast.sim.worker_pool import WorkerPool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with SIGINT ignored
os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))
pool = WorkerPool(lambda number: number)
try:
    pool.begin(7)
    print("lost")
except KeyboardInterrupt:
    print("interrupted with", len(pool), "child")
ends = pool.ended(30.0)
while not ends:
    ends = pool.ended(30.0)
print("result", ends[0].result)
"""
    result_of = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result_of.stdout.splitlines() == ["interrupted with 1 child", "result 7"], result_of.stderr


@pytest.mark.slow
def test_long_run_continues_after_kill_and_interrupt(tmp_path: Path) -> None:
    state = tmp_path / ".sim" / "hours.json"

    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast.sim", "--hours", "1", "--workers", "2"]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    killed = begin()
    seeds_seen = _until_seeds(state, 1, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=DEADLINE_S)
    saved = load_totals(state)
    assert saved.seeds >= seeds_seen

    interrupted = begin()
    _until_seeds(state, saved.seeds + 1, interrupted)
    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=DEADLINE_S)
    total = load_totals(state)
    assert total.seeds > saved.seeds and total.next_seed >= saved.next_seed
    assert f"continuing at seed {saved.next_seed}" in output
    assert "fault kinds:" in output, "coverage is printed at the end"
    last = SUMMARY.match(output.strip().splitlines()[-1])
    assert last is not None, output
    assert int(last[1]) == total.seeds
    assert interrupted.returncode == (1 if total.violations else 130)

    # The totals equal a new run of the counted seeds: no seed is counted twice, none is missing.
    counted = [*range(1, total.next_seed), *total.completed_ahead]
    assert len(counted) == total.seeds == len(set(counted))
    recount = RunTotals()
    parallel_runs.run_many(counted, workers=2, on_result=recount.add)
    assert (recount.seeds, recount.faults, recount.violations) == (total.seeds, total.faults, total.violations)
    assert recount.node_hours == pytest.approx(total.node_hours)
    assert recount.coverage == total.coverage


def _until_seeds(state: Path, count: int, process: subprocess.Popen[str]) -> int:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = int(json.loads(state.read_text())["seeds"]) if state.exists() else 0
        if found >= count:
            return found
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    raise AssertionError(f"{count} seeds were not run within {DEADLINE_S:.0f} s")
