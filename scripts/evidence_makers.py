"""Makes the evidence of a readiness review: tests, simulations, scenarios, mutations, drills and benchmarks.

Every maker yields one result for each need that it was given, also if the run broke off: evidence without a result is a
failure, never silence.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from holdfast.model.times import parse_time, seconds_text
from holdfast.readiness.evidence import EvidenceKind, EvidenceResult, Need, ViolationRecord
from holdfast.sim import mutation_testing, parallel_runs
from holdfast.sim.scenario_files import load_scenario
from holdfast.sim.scenario_runs import run_variants
from holdfast.sim.single_run import with_mutation
from holdfast.sim.worker_pool import WorkerPool

ROOT = Path(__file__).resolve().parents[1]
MUTATION_TEST = "tests/sim/test_mutation_results.py::test_mutation_is_caught_by_its_recorded_seed"
TESTS_S, DRILL_S, UP_S, BENCHMARK_S = 1800.0, 900.0, 300.0, 900.0
"""Time limits of the commands. A command that exceeds its limit fails its evidence."""
TEXT_CHARACTERS = 200
FAILURES_MAX = 5
BENCHMARK_NODES = {"recovery": 60}
"""Nodes per region of a benchmark that is run for the review. A full-size result of this revision is preferred."""
PLANTED_VIOLATIONS_ENOUGH = 1
"""Violating seeds after which a run with a planted bug ends."""
DRILLED_REGION = "eu-central"


@dataclass(frozen=True)
class Run:
    """One run of the review. `planted` is a mutation to apply to simulations and scenarios, to test the review."""

    revision: str
    workers: int
    say: Callable[[str], None]
    planted: str = ""

    def evidence(self, need: Need, *, passed: bool, summary: str, seconds: float, **more: Any) -> EvidenceResult:
        made_at = seconds_text(time.time())
        return EvidenceResult(
            need.kind, need.name, passed, self.revision, made_at, round(seconds, 1), summary=summary, **more
        )


def make(run: Run, needs: Sequence[Need]) -> Generator[EvidenceResult, None, None]:
    """Makes the evidence, kind by kind. Drills and benchmarks measure time and therefore run last, and alone."""
    by_kind: dict[EvidenceKind, list[Need]] = {}
    for need in needs:
        by_kind.setdefault(need.kind, []).append(need)
    files = [*by_kind.get(EvidenceKind.TEST, []), *by_kind.get(EvidenceKind.ALERTS, [])]
    yield from _tests(run, files, {need.name: need for need in files}, "not slow")
    caught = by_kind.get(EvidenceKind.MUTATION, [])
    yield from _tests(run, caught, {f"{MUTATION_TEST}[{need.name}]": need for need in caught}, "")
    yield from _simulations(run, by_kind.get(EvidenceKind.SIMULATIONS, []))
    yield from _scenarios(run, by_kind.get(EvidenceKind.SCENARIO, []))
    yield from _drills(run, by_kind.get(EvidenceKind.DRILL, []))
    yield from _benchmarks(run, by_kind.get(EvidenceKind.BENCHMARK, []))


# Tests and mutations


def _tests(run: Run, needs: Sequence[Need], nodes: dict[str, Need], marks: str) -> Iterator[EvidenceResult]:
    if not needs:
        return
    run.say(f"{len(needs)} {needs[0].kind.value} runs with pytest")
    with tempfile.TemporaryDirectory(prefix="holdfast-readiness-") as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(run.workers)]
        command += ["-o", "junit_family=xunit1", "--junitxml", str(results), *(["-m", marks] if marks else [])]
        ended = _command([*command, *nodes], TESTS_S, env={"CI": "true"})
        cases = _cases(results)
    for node, need in nodes.items():
        mine = [case for case in cases if _is_of(case, node)]
        failed = [f"{case.name}: {case.problem}" for case in mine if case.problem]
        ran = [case for case in mine if not case.skipped]
        if not ran:
            failed.append(f"no test ran ({_last_line(ended) or 'all were skipped'})")
        summary = f"{len(ran)} passed" if not failed else f"{len(failed)} of {len(mine)} failed"
        seconds = sum(case.seconds for case in mine)
        figures = {"tests": float(len(ran))}
        yield run.evidence(
            need, passed=not failed, summary=summary, seconds=seconds, failures=tuple(failed), figures=figures
        )


@dataclass(frozen=True)
class _Case:
    file: str
    name: str
    problem: str
    skipped: bool
    seconds: float


def _cases(results: Path) -> list[_Case]:
    try:
        tree = ElementTree.parse(results)
    except (OSError, ElementTree.ParseError):
        return []
    found = []
    for case in tree.iter("testcase"):
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        problem = "" if wrong is None else _short(wrong.get("message") or "failed")
        file, name, seconds = case.get("file", ""), case.get("name", ""), float(case.get("time", 0))
        found.append(_Case(file, name, problem, case.find("skipped") is not None, seconds))
    return found


def _is_of(case: _Case, node: str) -> bool:
    file, _, name = node.partition("::")
    return case.file == file and (not name or case.name == name or case.name.startswith(f"{name}["))


# Simulations and scenarios


def _simulations(run: Run, needs: Sequence[Need]) -> Iterator[EvidenceResult]:
    for need in needs:
        first, _, last = need.name.partition("-")
        seeds = range(int(first), int(last) + 1)
        run.say(f"simulations of seeds {need.name}")
        began_s = time.monotonic()
        violations, summary = _planted_seeds(run, seeds) if run.planted else _seeds(run, seeds)
        yield run.evidence(
            need,
            passed=not violations,
            summary=summary,
            seconds=time.monotonic() - began_s,
            violations=one_per_invariant(violations),
            figures={"seeds": float(len(seeds)), "violations": float(len(violations))},
        )


def _seeds(run: Run, seeds: range) -> tuple[list[ViolationRecord], str]:
    total, violations = parallel_runs.RunTotals(next_seed=seeds.start), list[ViolationRecord]()

    def on_result(result: parallel_runs.SeedResult) -> None:
        total.add(result)
        violations.extend(_violations(result.outcome, f"seed {result.outcome.seed}"))
        if result.nondeterminism:
            violations.append(ViolationRecord("failure", f"seed {result.outcome.seed}: {result.nondeterminism}"))

    parallel_runs.run_many(iter(seeds), workers=run.workers, on_result=on_result)
    return violations, total.summary()


def _planted_seeds(run: Run, seeds: range) -> tuple[list[ViolationRecord], str]:
    """Runs with the planted bug, each until its first violation, because such a run may not end."""
    parallel_runs.silence_logs()
    found: list[ViolationRecord] = []
    tried = 0
    for seed in seeds:
        trial = mutation_testing.run_trial(seed, run.planted)
        tried += 1
        if trial.invariant:
            found.append(ViolationRecord(trial.invariant, f"seed {seed}: {_short(trial.message)}"))
        if len(found) >= PLANTED_VIOLATIONS_ENOUGH:
            break
    return found, f"{tried} seeds with the planted bug {run.planted}, {len(found)} violations"


def one_per_invariant(violations: Sequence[ViolationRecord]) -> tuple[ViolationRecord, ...]:
    """The first violation of each invariant: each may contradict another claim."""
    return tuple({violation.invariant: violation for violation in reversed(violations)}.values())[::-1]


def _violations(outcome: Any, where: str) -> Iterator[ViolationRecord]:
    for violation in outcome.violations:
        yield ViolationRecord(violation.invariant, f"{where}: {_short(violation.message)}")
    if outcome.unconverged and not outcome.violations:
        yield ViolationRecord("convergence", f"{where}: {_short('; '.join(outcome.unconverged))}")
    for failure in outcome.failures:
        yield ViolationRecord("failure", f"{where}: {_short(failure)}")


def _scenarios(run: Run, needs: Sequence[Need]) -> Iterator[EvidenceResult]:
    """Each scenario with one seed and all its variants, in worker processes."""
    if not needs:
        return
    run.say(f"{len(needs)} scenarios")
    parallel_runs.silence_logs()

    def play(number: int) -> EvidenceResult:
        gc.enable()  # workers start without it, which suits one short run
        need, began_s = needs[number], time.monotonic()
        violations: list[ViolationRecord] = []
        failures: list[str] = []
        runs = 0
        with with_mutation(run.planted):
            for played in run_variants(load_scenario(need.name), 1):
                runs += 1
                violations += _violations(played.outcome, played.title)
                failures += [f"{played.title}: {_short(text)}" for text in played.unmet]
        return run.evidence(
            need,
            passed=not violations and not failures,
            summary=f"{runs} runs, {len(violations)} violations, {len(failures)} unmet expectations",
            seconds=time.monotonic() - began_s,
            violations=one_per_invariant(violations),
            failures=tuple(failures[:FAILURES_MAX]),
        )

    pool: WorkerPool[EvidenceResult] = WorkerPool(play)
    waiting = iter(range(len(needs)))
    left = len(needs)
    try:
        while left:
            while len(pool) < run.workers and (number := next(waiting, None)) is not None:
                pool.begin(number)
            for end in pool.ended():
                left -= 1
                broken = run.evidence(needs[end.number], passed=False, summary=_short(end.why), seconds=0.0)
                yield end.result or broken
    finally:
        pool.stop()


# Drills


def _drills(run: Run, needs: Sequence[Need]) -> Iterator[EvidenceResult]:
    """All drills on one platform, which is stopped afterwards."""
    if not needs:
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-readiness-") as folder:
        state = Path(folder) / "platform"
        run.say("platform for the drills starts")
        try:
            up = _holdfast("up", "--detach", "--state", state, "--port-base", str(_free_ports()), limit_s=UP_S)
            for need in needs:
                if up.returncode:
                    yield run.evidence(need, passed=False, summary=f"holdfast up: {_last_line(up)}", seconds=0.0)
                    continue
                run.say(f"drill {need.name}")
                began_s = time.monotonic()
                region = ("--region", DRILLED_REGION)
                ended = _holdfast("drill", "run", need.name, *region, "-o", "json", state=state, limit_s=DRILL_S)
                yield drill_evidence(run, need, ended, time.monotonic() - began_s)
        finally:
            _holdfast("down", state=state, limit_s=UP_S)


def drill_evidence(run: Run, need: Need, ended: subprocess.CompletedProcess[str], seconds: float) -> EvidenceResult:
    """Evidence from the JSON report of a drill."""
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        return run.evidence(need, passed=False, summary=f"no report: {_last_line(ended)}", seconds=seconds)
    answers = report.get("questions", {})
    figures = {f"stage: {stage}": float(at_s) for stage, at_s in report["clock"].items()}
    figures["questionsAnswered"] = float(sum(bool(lines) for lines in answers.values()))
    figures |= {
        name: float(value)
        for name, value in report.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    wrong = [*report["violations"], *report["failures"], *(f"not returned: {x}" for x in report["unreturned"])]
    passed = bool(report["passed"]) and ended.returncode == 0
    summary = f"{'passed' if passed else 'failed'} in region {report.get('region', '')}"
    if report.get("secondsToMinServing"):
        summary += f", minServing after {report['secondsToMinServing']:.1f} s"
    return run.evidence(
        need,
        passed=passed,
        summary=summary,
        seconds=seconds,
        failures=() if passed else tuple(_short(text) for text in wrong[:FAILURES_MAX]),
        figures=figures,
    )


def _free_ports() -> int:
    """A port base with free ports for cells and agents, below the ephemeral range."""
    for base in range(21_000, 31_000, 500):
        with contextlib.ExitStack() as stack:
            try:
                for port in (*range(base, base + 5), *range(base + 100, base + 400, 10)):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise OSError("no free ports between 21000 and 31000")


# Benchmarks


def _benchmarks(run: Run, needs: Sequence[Need]) -> Iterator[EvidenceResult]:
    for need in needs:
        results = ROOT / "bench" / "out"
        present = saved_benchmark(run, need, results / f"{need.name}.json")
        if present is not None:
            yield present
            continue
        nodes = BENCHMARK_NODES[need.name]
        run.say(f"benchmark {need.name} with {nodes} nodes per region")
        began_s = time.monotonic()
        size = ("--nodes", str(nodes))
        ended = _command([sys.executable, "-m", "bench", need.name, *size], BENCHMARK_S)
        made = saved_benchmark(run, need, results / f"{need.name}-nodes{nodes}.json")
        summary = f"no result: {_last_line(ended)}"
        yield made or run.evidence(need, passed=False, summary=summary, seconds=time.monotonic() - began_s)


def saved_benchmark(run: Run, need: Need, path: Path) -> EvidenceResult | None:
    """A stored result of this revision, with the date of its measurement. None if there is none."""
    try:
        result = json.loads(path.read_text())
        measured_at = str(result["measuredAt"])
        parse_time(measured_at)
    except (OSError, ValueError, KeyError):
        return None
    if result["revision"] != run.revision:
        return None
    figures = {
        name: float(value)
        for name, value in result["figures"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    summary = ", ".join(f"{figure} {figures[figure]:g}" for figure in need.bounds if figure in figures)
    return EvidenceResult(need.kind, need.name, True, run.revision, measured_at, summary=summary, figures=figures)


# Commands


def _holdfast(*arguments: str | Path, limit_s: float, state: Path | None = None) -> subprocess.CompletedProcess[str]:
    where = ("--state", str(state)) if state is not None else ()
    return _command([sys.executable, "-m", "holdfast.cli", *map(str, arguments), *where], limit_s, env={"CI": "true"})


def _command(
    words: Sequence[str], limit_s: float, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command in the checkout. One that exceeds its time is ended with its children, and has failed."""
    started = subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        out, err = started.communicate()
        return subprocess.CompletedProcess(list(words), 1, out, f"{err}\nstopped after {limit_s:g} s")
    except KeyboardInterrupt:
        os.killpg(started.pid, signal.SIGTERM)
        started.communicate()
        raise
    return subprocess.CompletedProcess(list(words), started.returncode, out, err)


def _last_line(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
    return _short(lines[-1]) if lines else ""


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= TEXT_CHARACTERS else f"{flat[: TEXT_CHARACTERS - 1]}…"
