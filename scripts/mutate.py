"""Mutation testing by machine: does a test or a simulation notice a small change of a deciding module?

    python scripts/mutate.py --sample 100            a sample over all groups of decision_modules.py
    python scripts/mutate.py --group grants --sample 50 --draw 2
    python scripts/mutate.py --group authority --tests authority --seeds 0     a lower bound, from fewer tests

One run of the tests under coverage shows which tests reach which line. Each mutant then runs the tests that reach its
line, fastest first, and then some simulations, until one fails. Survivors are printed. A survivor that was judged
equivalent (no behaviour differs, or only a figure or a text) is named in mutants_judged.txt, with the reason; the score
does not count it. Fails below SCORE_MIN.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from code_mutants import Mutant, mutants_of
from decision_modules import GROUPS, ROOT, modules
from mutant_runs import TEST_FOLDERS, MutantRun, covering_tests, run_mutant
from terminal import say

SCORE_MIN = 0.90
JUDGED = Path(__file__).with_name("mutants_judged.txt")


class Outcome(NamedTuple):
    mutant: Mutant
    run: MutantRun


def judged() -> dict[str, str]:
    """Mutants judged equivalent: key → reason."""
    found = {}
    for line in JUDGED.read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, why = line.rpartition(" | ")
            found[key.strip()] = why.strip()
    return found


def draw(groups: Iterable[str], sample: int, seed: int) -> list[Mutant]:
    """A random sample of the mutants, as many of each group, the same for the same seed and source."""
    known, chosen = judged(), list(groups)
    each = -(-sample // len(chosen))
    samples = []
    for group in chosen:
        every = [
            mutant
            for path in modules(group)
            for mutant in mutants_of(str(path.relative_to(ROOT)), path.read_text())
            if mutant.key not in known
        ]
        samples.append(random.Random(seed).sample(every, min(each, len(every))))
    # In turn, so that an interrupted run has looked at every group.
    return [mutant for turn in zip_longest(*samples) for mutant in turn if mutant is not None]


def group_of(mutant: Mutant) -> str:
    return next((group for group in GROUPS if ROOT / mutant.path in modules(group)), "other")


def report(outcomes: list[Outcome]) -> int:
    survivors = [outcome for outcome in outcomes if not outcome.run.killed_by]
    by_tests = sum(outcome.run.killed_by == "tests" for outcome in outcomes)
    by_simulation = len(outcomes) - by_tests - len(survivors)
    for mutant, run in survivors:
        say(f"survived: {mutant.path}:{mutant.line}: {mutant.what} ({run.tests} tests): {mutant.source}")
    for group, found in sorted(Counter(group_of(outcome.mutant) for outcome in outcomes).items()):
        left = sum(group_of(outcome.mutant) == group for outcome in survivors)
        say(f"{group}: {found} mutants, {left} survived, score {1 - left / found:.1%}")
    score = 1 - len(survivors) / max(len(outcomes), 1)
    verdict = "ok" if score >= SCORE_MIN else "too low"
    counts = f"{by_tests} killed by tests, {by_simulation} by simulations, {len(survivors)} survived"
    say(f"{len(outcomes)} mutants: {counts}")
    say(f"score {score:.1%}: {verdict} (expected {SCORE_MIN:.0%})")
    return 0 if score >= SCORE_MIN else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=sorted(GROUPS), action="append", help="one group of modules; repeatable")
    parser.add_argument("--sample", type=int, default=100, help="number of mutants")
    parser.add_argument("--draw", type=int, default=1, help="which sample")
    parser.add_argument("--seeds", type=int, default=8, help="simulations for a mutant that no test killed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--tests", action="append", metavar="FOLDER", help="only the tests of this folder; repeatable")
    options = parser.parse_args()
    started = time.monotonic()
    folders = options.tests or TEST_FOLDERS
    tests = covering_tests(folders, say)
    say(f"{len(tests.durations)} tests of {', '.join(folders)} ({time.monotonic() - started:.0f} s)")
    mutants = draw(options.group or GROUPS, options.sample, options.draw)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.workers) as pool:
        runs = pool.map(lambda mutant: run_mutant(mutant, tests.reaching(mutant), options.seeds), mutants)
        for mutant, run in zip(mutants, runs, strict=True):
            outcomes.append(Outcome(mutant, run))
            how = run.killed_by or "SURVIVED"
            place = f"{mutant.path}:{mutant.line} {mutant.what}"
            say(f"{len(outcomes)}/{len(mutants)} {place}: {how} ({run.seconds:.0f} s)")
    return report(outcomes)


if __name__ == "__main__":
    sys.exit(main())
