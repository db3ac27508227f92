"""Runs tests and simulations against one mutant, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from code_mutants import Mutant
from decision_modules import GROUPS, ROOT, modules

TEST_FOLDERS = ("authority", "fleet", "link", "rules", "scheduling", "agent", "gate", "model", "sim")
MARKS = "not e2e and not slow"
TESTS_MAX = 200
"""Tests per mutant, fastest first: the thousand that pass through a common line show nothing that these do not."""
TESTS_FIRST = 20
"""Run before the others: they kill most mutants, and importing the files of all would take longer than running them."""
TESTS_CPU_S = 120
"""A mutant that loops forever counts as killed after this much CPU time. Wall time would kill on a loaded machine."""
SIMULATIONS_CPU_S = 240
HANG_FACTOR = 20
"""A mutant that waits forever counts as killed after this many times its CPU time."""
CACHE = ROOT / ".sim" / "covering_tests.json"

# Replaces one module's code while it is imported; everything else is the tree's own.
PATCH = """
import ast, importlib.abc, importlib.util, os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({cpu_s}, {cpu_s}))
sys.path.insert(0, {scripts!r})
from code_mutants import mutated
class Mutating(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            return importlib.util.spec_from_file_location(name, {path!r}, loader=self)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(mutated(open({path!r}).read(), {place}), {path!r}, "exec"), module.__dict__)
sys.meta_path.insert(0, Mutating())
"""
RUN_TESTS = """
import pytest
options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0", "-m", {marks!r}]
sys.exit(pytest.main([*options, *{tests!r}]))
"""
RUN_SIMULATIONS = """
from holdfast.sim import parallel_runs
from holdfast.sim.simulation import Simulation
parallel_runs.silence_logs()
for seed in range(1, {seeds} + 1):
    if not Simulation(seed).run().ok:
        sys.exit(1)
"""


class MutantRun(NamedTuple):
    """`killed_by` is "tests" or "simulations", or empty for a survivor. `tests` counts those that reach the line."""

    killed_by: str
    tests: int
    seconds: float


@dataclass(frozen=True)
class CoveringTests:
    """Which tests reach which line, and how long each takes."""

    by_line: dict[str, dict[int, list[str]]]
    durations: dict[str, float]

    def reaching(self, mutant: Mutant) -> list[str]:
        """The tests of the mutant's line. A line that runs only at import has its module's tests."""
        lines = self.by_line.get(mutant.path, {})
        tests = lines.get(mutant.line) or {test for found in lines.values() for test in found}
        return sorted(tests, key=lambda test: self.durations.get(test, 0.0))[:TESTS_MAX]


def run_mutant(mutant: Mutant, tests: list[str], seeds: int) -> MutantRun:
    started = time.monotonic()
    killed_by = ""
    parts = [part for part in (tests[:TESTS_FIRST], tests[TESTS_FIRST:]) if part]
    if not all(_passes(mutant, RUN_TESTS.format(marks=MARKS, tests=part), TESTS_CPU_S) for part in parts):
        killed_by = "tests"
    elif seeds and not _passes(mutant, RUN_SIMULATIONS.format(seeds=seeds), SIMULATIONS_CPU_S):
        killed_by = "simulations"
    return MutantRun(killed_by, len(tests), time.monotonic() - started)


def _passes(mutant: Mutant, program: str, cpu_s: int) -> bool:
    """Whether the program exits with 0 within this CPU time. Its process group ends with it."""
    patch = PATCH.format(
        scripts=str(Path(__file__).parent),
        module=mutant.path.removeprefix("src/").removesuffix(".py").replace("/", "."),
        path=str(ROOT / mutant.path),
        place=mutant.place,
        cpu_s=cpu_s,
    )
    with tempfile.TemporaryDirectory() as scratch:
        run = subprocess.Popen(
            [sys.executable, "-c", patch + program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            return run.wait(cpu_s * HANG_FACTOR) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end_group(run)


def _end_group(run: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def covering_tests(folders: Sequence[str], say: Callable[[str], None]) -> CoveringTests:
    """Runs the tests once under coverage, or reads the result of an earlier run of the same tree and folders."""
    state = _tree_digest(folders)
    if CACHE.exists():
        cached = json.loads(CACHE.read_text())
        if cached["state"] == state:
            by_line = {path: {int(n): tests for n, tests in lines.items()} for path, lines in cached["by_line"].items()}
            return CoveringTests(by_line, cached["durations"])
    say("running the tests under coverage, to learn which reach which line (minutes)")
    with tempfile.TemporaryDirectory() as scratch:
        found = _measure(Path(scratch), folders, say)
    CACHE.parent.mkdir(exist_ok=True)
    CACHE.write_text(json.dumps({"state": state, "by_line": found.by_line, "durations": found.durations}))
    return found


def _measure(scratch: Path, folders: Sequence[str], say: Callable[[str], None]) -> CoveringTests:
    included = [str(path) for group in GROUPS for path in modules(group)]
    (scratch / "contexts.py").write_text(CONTEXTS)
    data = scratch / "data"
    words = [sys.executable, "-m", "coverage", "run", f"--data-file={data}", f"--include={','.join(included)}"]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "contexts", "-m", MARKS]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(scratch), str(ROOT / "src"))),
        "HOLDFAST_DURATIONS": str(scratch / "durations.json"),
    }
    places = [f"tests/{folder}" for folder in folders]
    ran = subprocess.run([*words, *tests, *places], cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=False)
    if ran.returncode not in (0, 1):
        raise SystemExit(f"error: the tests could not run (pytest exited with {ran.returncode})")
    results = json.loads((scratch / "durations.json").read_text())
    failed = frozenset(results["failed"])
    for test in sorted(failed):
        say(f"left out, because it fails without a mutant: {test}")

    from coverage import CoverageData

    store = CoverageData(str(data))
    store.read()
    by_line: dict[str, dict[int, list[str]]] = defaultdict(dict)
    for path in store.measured_files():
        name = str(Path(path).relative_to(ROOT))
        for line, contexts in store.contexts_by_lineno(path).items():
            by_line[name][line] = sorted(context for context in contexts if context and context not in failed)
    return CoveringTests(by_line, results["durations"])


# A plugin of pytest: one coverage context per test, how long each took, and which failed.
CONTEXTS = """
import json, os
import coverage
durations, failed = {}, set()
def pytest_runtest_setup(item):
    coverage.Coverage.current().switch_context(item.nodeid)
def pytest_runtest_logreport(report):
    durations[report.nodeid] = durations.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        failed.add(report.nodeid)
def pytest_sessionfinish():
    with open(os.environ["HOLDFAST_DURATIONS"], "w") as f:
        json.dump({"durations": durations, "failed": sorted(failed)}, f)
"""


def _tree_digest(folders: Sequence[str]) -> str:
    digest = sha256(" ".join(folders).encode())
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
