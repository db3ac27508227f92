"""Which branches of the deciding modules ordinary simulations reach.

    python scripts/branch_coverage.py --seeds 200 --workers 2

Prints the share for each module and the branches never taken. Fails below SHARE_MIN. A branch that no simulation can
take is named in branch_exemptions.txt, with the test that takes it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from decision_modules import GROUPS, ROOT, SOURCE, modules
from terminal import say

SHARE_MIN = 0.95
EXEMPTIONS = Path(__file__).with_name("branch_exemptions.txt")
RUN = """
import sys
from holdfast.sim import parallel_runs
from holdfast.sim.simulation import Simulation
parallel_runs.silence_logs()
for seed in range(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])):
    Simulation(seed).run()
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


def measure(first: int, seeds: int, workers: int, scratch: Path) -> dict[str, Any]:
    """Runs the seeds under coverage and returns coverage's report."""
    included = ",".join(str(path) for group in GROUPS for path in modules(group))
    tool = [sys.executable, "-m", "coverage"]
    data = ["--data-file", str(scratch / "data")]
    script = scratch / "run.py"
    script.write_text(RUN)

    def seeds_of(worker: int) -> tuple[str, ...]:
        return (str(first + worker), str(first + seeds), str(workers))

    runs = [
        subprocess.Popen(
            [
                *tool,
                "run",
                "--branch",
                "--parallel-mode",
                *data,
                f"--include={included}",
                str(script),
                *seeds_of(worker),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        for worker in range(workers)
    ]
    if any([run.wait() for run in runs]):  # waits for all of them
        raise SystemExit("error: a simulation failed; next: run its seed with python -m holdfast.sim --seed")
    subprocess.run([*tool, "combine", "-q", *data], cwd=scratch, check=True)
    subprocess.run([*tool, "json", "-q", *data, "-o", str(scratch / "report.json")], cwd=ROOT, check=True)
    report: dict[str, Any] = json.loads((scratch / "report.json").read_text())
    return report


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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = judge(measure(options.first, options.seeds, options.workers, Path(scratch)))
    for row in rows:
        exempt = f", {row.exempt} exempt" if row.exempt else ""
        say(f"{row.share:7.1%}  {row.path}: {row.taken} taken, {len(row.missing)} never{exempt}")
        for branch in row.missing:
            say(f"           {branch}")
    taken, missing = sum(row.taken for row in rows), sum(len(row.missing) for row in rows)
    share = taken / (taken + missing)
    verdict = "ok" if share >= SHARE_MIN else "too few"
    say(f"{share:.1%} of {taken + missing} branches over {options.seeds} seeds: {verdict} (expected {SHARE_MIN:.0%})")
    return 0 if share >= SHARE_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
