"""Which branches of the deciding modules ordinary simulations reach.

    python scripts/branch_coverage.py --seeds 200 --workers 2
    python scripts/branch_coverage.py --report            what is measured so far, while a run goes on

Prints the share for each module and the branches never taken. Fails below SHARE_MIN, and if a simulation failed. A
branch that no simulation can take is named in branch_exemptions.txt, with the test that takes it. Results are kept in
`.sim/branches` after every seed, so that an interrupted run continues; a change in `src/holdfast` discards them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from decision_modules import GROUPS, ROOT, SOURCE, modules
from terminal import say

SHARE_MIN = 0.95
EXEMPTIONS = Path(__file__).with_name("branch_exemptions.txt")
RESULTS = ROOT / ".sim" / "branches"
# Reads the folder of results, the modules and the seeds. The data is saved before the seed is recorded.
RUN = """
import json, os, sys
import coverage
folder, included, seeds = json.load(sys.stdin)
measured = coverage.Coverage(f"{folder}/data", f"{seeds[0]}-{os.getpid()}", branch=True, include=included)
measured.start()
from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.simulation import Simulation
parallel_runs.silence_logs(), parallel_runs.cache_loggers(), parallel_runs.disable_metrics()
for seed in seeds:
    outcome = Simulation(seed).run()
    measured.save()
    with open(f"{folder}/seeds.jsonl", "a") as results:
        failure = "" if outcome.ok else failure_report.headline(outcome)
        results.write(json.dumps({"seed": seed, "failure": failure}) + "\\n")
"""


class ModuleCoverage(NamedTuple):
    path: str
    taken: int
    missing: list[str]
    exempt: int

    @property
    def share(self) -> float:
        return self.taken / max(self.taken + len(self.missing), 1)


def exempt_lines() -> dict[tuple[str, str], str]:
    """Exempted branches: (module, text of the line that branches) → the reason and test."""
    found = {}
    for line in EXEMPTIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            path, source, why = (part.strip() for part in line.split(" | "))
            found[path, source] = why
    return found


def results_folder(first: int) -> Path:
    """The results of this source from this first seed; those of another source are deleted."""
    digest = sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(path.read_bytes())
    folder = RESULTS / digest.hexdigest()[:16] / str(first)
    for other in RESULTS.glob("*"):
        if other != folder.parent:
            shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def measured_seeds(folder: Path) -> dict[int, str]:
    """The seeds that ran, each with how it failed, if it did."""
    path = folder / "seeds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["seed"]: row["failure"] for row in rows}


def measure(first: int, seeds: int, workers: int, folder: Path) -> None:
    """Runs the seeds that have no result yet, under coverage."""
    left = [seed for seed in range(first, first + seeds) if seed not in measured_seeds(folder)]
    included = [str(path) for group in GROUPS for path in modules(group)]
    runs = []
    for worker in range(min(workers, len(left))):
        run = subprocess.Popen(
            [sys.executable, "-c", RUN],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.PIPE,
            text=True,
        )
        assert run.stdin is not None
        run.stdin.write(json.dumps([str(folder), included, left[worker::workers]]))
        run.stdin.close()
        runs.append(run)
    if any([run.wait() for run in runs]):  # waits for all of them
        raise SystemExit(
            f"error: seeds from {first}: a simulation could not run (see above); next: run its seed with "
            "python -m holdfast.sim --seed"
        )


def read_report(folder: Path) -> dict[str, Any]:
    """Coverage's report of all seeds measured so far."""
    tool, data = [sys.executable, "-m", "coverage"], ["--data-file", str(folder / "all")]
    parts = [str(path) for path in folder.glob("data.*")]
    if not parts:
        raise SystemExit(f"error: {folder}: nothing is measured for this source; next: run without --report")
    subprocess.run([*tool, "combine", "-q", "--keep", *data, *parts], cwd=folder, check=True)
    report = folder / "report.json"
    subprocess.run([*tool, "json", "-q", *data, "-o", str(report)], cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def judge(report: dict[str, Any]) -> list[ModuleCoverage]:
    exempt = exempt_lines()
    found = []
    measured = {(ROOT / name).resolve(): row for name, row in report["files"].items()}
    for path in (path for group in GROUPS for path in modules(group)):
        name = str(path.relative_to(SOURCE))
        if path not in measured:
            found.append(ModuleCoverage(name, 0, ["never imported"], 0))
            continue
        row, lines = measured[path], path.read_text().splitlines()
        missing, exempted = [], 0
        for line, target in row["missing_branches"]:
            source = lines[line - 1].strip()
            if (name, source) in exempt:
                exempted += 1
            else:
                missing.append(f"{line} → {target if target > 0 else 'end'}: {source}")
        found.append(ModuleCoverage(name, len(row["executed_branches"]), missing, exempted))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="number of simulations")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="SEED", help="first seed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--report", action="store_true", help="run nothing; print what is measured so far")
    options = parser.parse_args()
    folder = results_folder(options.first)
    if not options.report:
        measure(options.first, options.seeds, options.workers, folder)
    rows, ran = judge(read_report(folder)), measured_seeds(folder)
    for row in rows:
        exempt = f", {row.exempt} exempt" if row.exempt else ""
        say(f"{row.share:7.1%}  {row.path}: {row.taken} taken, {len(row.missing)} never{exempt}")
        for branch in row.missing:
            say(f"           {branch}")
    taken, missing = sum(row.taken for row in rows), sum(len(row.missing) for row in rows)
    share = taken / (taken + missing)
    for seed, failure in sorted(ran.items()):
        if failure:
            say(f"seed {seed} failed: {failure}; next: make sim SEED={seed}")
    verdict = "ok" if share >= SHARE_MIN else "too few"
    say(f"{share:.1%} of {taken + missing} branches over {len(ran)} seeds: {verdict} (expected {SHARE_MIN:.0%})")
    return 0 if share >= SHARE_MIN and not any(ran.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
