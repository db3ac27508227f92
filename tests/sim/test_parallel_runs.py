"""Runs of many worlds: a seed is counted once however often a run is stopped, and the sums are those of the seeds."""

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


def done(seed: int, **changes: Any) -> SeedResult:
    outcome = RunOutcome(seed, (), (), (), 10.0, 5.0, 1.5, 7, 70, {"call lost": 2}, "d")
    coverage = Coverage()
    coverage.transitions[("Queued", "Reserved")] += 3
    coverage.reasons["Reporting"] += 1
    return SeedResult(msgspec.structs.replace(outcome, **changes), coverage, 0.5)


def test_every_seed_counts_once_in_whatever_order_they_end() -> None:
    total = RunTotals()
    for seed in (2, 1, 4):
        total.add(done(seed))
    assert (total.seeds, total.next_seed, total.completed_ahead) == (3, 3, [4])
    left = total.remaining_seeds()
    assert [next(left) for _ in range(3)] == [3, 5, 6]
    for seed in (1, 2, 4):
        with pytest.raises(ValueError, match="already counted"):
            total.add(done(seed))


def test_what_is_remembered_is_recalled_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "hours.json"
    total = load_totals(path)
    for seed in (1, 3):
        total.add(done(seed))
    total.add(done(2, unconverged=("api is missing",)))
    save_totals(path, total)
    again = load_totals(path)
    assert msgspec.to_builtins(again, str_keys=False) == msgspec.to_builtins(total, str_keys=False)
    again.add(done(4))
    assert again.coverage.transitions[("Queued", "Reserved")] == 12
    assert again.coverage.reasons["Reporting"] == 4
    assert again.failed == [2]
    assert again.summary() == "4 seeds, 6.0 simulated node-hours, 8 faults, 1 violations"


def test_the_summary_has_its_exact_form() -> None:
    total = RunTotals()
    total.add(done(1))
    last = list(total.lines(1.0))[-1]
    assert last == "1 seeds, 1.5 simulated node-hours, 2 faults, 0 violations"
    assert SUMMARY.match(last)


def test_a_child_that_fails_or_dies_is_told_of() -> None:
    def bear(number: int) -> str:
        if number == 1:
            raise ValueError("no such world")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "x" * 200_000

    pool: WorkerPool[str] = WorkerPool(bear)
    for number in (1, 2, 3):
        pool.begin(number)
    ends = {}
    deadline_s = time.monotonic() + DEADLINE_S
    while len(pool):
        assert time.monotonic() < deadline_s
        ends.update({end.number: end for end in pool.ended(1.0)})
    assert "no such world" in ends[1].why and ends[1].result is None
    assert "without a word" in ends[2].why and ends[2].result is None
    assert ends[3].result == "x" * 200_000


def test_digests_that_differ_are_a_failure() -> None:
    outcome = done(25).outcome
    assert parallel_runs.digest_difference(outcome, outcome.digest) == ""
    assert "not deterministic" in parallel_runs.digest_difference(outcome, "other")
    total = RunTotals()
    total.add(msgspec.structs.replace(done(1), nondeterminism="seed 1: not deterministic"))
    assert (total.violations, total.failed) == (1, [1])


def test_an_interrupt_in_the_middle_of_a_fork_is_not_lost() -> None:
    """Python passes over what is raised inside the hooks of a fork; the hook here sends the signal just there."""
    program = """
import os, signal
from holdfast.sim.worker_pool import WorkerPool
os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))
pool = WorkerPool(lambda number: number)
try:
    pool.begin(7)
    print("lost")
except KeyboardInterrupt:
    print("heard, with", len(pool), "child")
ends = pool.ended(30.0)
while not ends:
    ends = pool.ended(30.0)
print("and it ended with", ends[0].result)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["heard, with 1 child", "and it ended with 7"], done.stderr


@pytest.mark.slow
def test_a_long_run_is_killed_interrupted_and_goes_on(tmp_path: Path) -> None:
    state = tmp_path / ".sim" / "hours.json"

    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast.sim", "--hours", "1", "--workers", "2"]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    killed = begin()
    seen = _until_seeds(state, 1, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=DEADLINE_S)
    kept = load_totals(state)
    assert kept.seeds >= seen

    interrupted = begin()
    _until_seeds(state, kept.seeds + 1, interrupted)
    interrupted.send_signal(signal.SIGINT)
    said, _ = interrupted.communicate(timeout=DEADLINE_S)
    total = load_totals(state)
    assert total.seeds > kept.seeds and total.next_seed >= kept.next_seed
    assert f"going on at seed {kept.next_seed}" in said
    assert "fault kinds:" in said, "what was exercised is told at the end"
    last = SUMMARY.match(said.strip().splitlines()[-1])
    assert last is not None, said
    assert int(last[1]) == total.seeds
    assert interrupted.returncode == (1 if total.violations else 130)

    # What was counted is exactly what these seeds give: none is in it twice, none is missing.
    counted = [*range(1, total.next_seed), *total.completed_ahead]
    assert len(counted) == total.seeds == len(set(counted))
    afresh = RunTotals()
    parallel_runs.run_many(counted, workers=2, on_result=afresh.add)
    assert (afresh.seeds, afresh.faults, afresh.violations) == (total.seeds, total.faults, total.violations)
    assert afresh.node_hours == pytest.approx(total.node_hours)
    assert afresh.coverage == total.coverage


def _until_seeds(state: Path, count: int, process: subprocess.Popen[str]) -> int:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = int(json.loads(state.read_text())["seeds"]) if state.exists() else 0
        if found >= count:
            return found
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    raise AssertionError(f"{count} seeds were not run within {DEADLINE_S:.0f} s")
