"""Runs simulated worlds: `python -m holdfast.sim --seed 7` for one and its story, `--seeds 200` for many."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import signal
import sys
import time
from pathlib import Path

import structlog

from holdfast.sim import runs, story
from holdfast.sim.remembered import recall, remember
from holdfast.sim.world import World

STATE = Path(".sim/hours.json")
"""Where a run of hours keeps what it has done, to go on there."""
PLANTED = Path(".sim/planted.jsonl")
"""Where a search for planted bugs keeps what worlds have said."""
PROGRESS_EVERY_S = 60.0


def main() -> int:
    options = _options()
    if options.verbose:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            processors=[structlog.dev.ConsoleRenderer()],
        )
    runs.quiet()
    if options.check:
        return _check(options.check)
    if options.plant and options.seed is None and not options.scenario:
        from holdfast.sim.garden import Wish, plant

        wish = Wish(
            options.plant, options.seeds, options.first, options.workers, kept=PLANTED, page=options.page
        )  # fmt: skip
        return plant(wish, _say)
    if options.scenario:
        from holdfast.sim import scenario

        asked = scenario.Asked(
            options.scenario, options.first, options.plant or "", every=options.every,
            shrink_s=0.0 if options.whole else options.minutes * 60,
        )  # fmt: skip
        return scenario.run_scenarios(asked, _say)
    if options.digests:
        for digest in runs.answer_digests(iter(sys.stdin.readline, "")):
            _say(digest)
        return 0
    if options.seed is not None and options.digest:
        print(World(options.seed).run().digest)
        return 0
    if options.seed is not None:
        return _one(options)
    return _many(options)


def _check(state: Path) -> int:
    from holdfast.sim.recorded import check_platform

    verdict = check_platform(state)
    for line in verdict.lines():
        print(line)
    print(f"{state}: {verdict}")
    return 1 if verdict.violations else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _one(options: argparse.Namespace) -> int:
    from holdfast.sim.single import Asked, tell

    shrink_s = 0.0 if options.whole else options.minutes * 60
    asked = Asked(
        options.seed, only=tuple(options.only), about=tuple(options.about), bug=options.plant or "",
        twice=options.twice, shrink_s=shrink_s,
    )  # fmt: skip
    return tell(asked, _say)


def _many(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    hours = options.hours
    total = recall(STATE) if hours else runs.Total(next_seed=options.first)
    if hours and total.seeds:
        print(f"going on at seed {total.next_seed} after {total.summary()}; remove {STATE} to begin anew", flush=True)
    seeds = total.left() if hours else iter(range(options.first, options.first + options.seeds))
    told_s = began_s

    def told(done: runs.Done) -> None:
        nonlocal told_s
        total.add(done)
        if hours:
            remember(STATE, total)
        _tell(done, total)
        if time.monotonic() - told_s > PROGRESS_EVERY_S:
            told_s = time.monotonic()
            _say(f"after {(told_s - began_s) / 60:.0f} min: {total.summary()}")

    def enough() -> bool:
        return bool(hours) and time.monotonic() - began_s > hours * 3600

    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        runs.run_many(seeds, workers=options.workers, told=told, until=enough)
    except KeyboardInterrupt:
        interrupted = True
    if os.isatty(sys.stdout.fileno()):
        print("\r", end="")
    if interrupted:
        print(f"stopped; {'the same command goes on at' if hours else 'not run: seeds from'} {total.next_seed} on")
    if options.coverage or hours or total.seeds >= 100:
        for line in total.coverage.lines():
            print(line)
    if total.failed:
        print(f"failed: {' '.join(map(str, sorted(total.failed)))}; see one: make sim SEED={min(total.failed)}")
    for line in total.lines(time.monotonic() - began_s):
        print(line)
    if total.violations:
        return 1
    return 130 if interrupted else 0


def _tell(done: runs.Done, total: runs.Total) -> None:
    outcome = done.outcome
    if outcome.ok and not done.unseed:
        if os.isatty(sys.stdout.fileno()):
            print(f"\r{total.summary()} ", end="", flush=True)
        return
    print(story.headline(outcome), flush=True)
    for line in itertools.islice(story.complaints(outcome), 6):
        print(f"  {line}")
    if done.unseed:
        print(f"  {done.unseed}")
    print(f"  run it again: make sim SEED={outcome.seed}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="holdfast.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one world and tell its story")
    parser.add_argument("--seeds", type=int, default=10, help="run this many worlds")
    parser.add_argument("--first", "--from", type=int, default=1, help="the first seed of many")
    parser.add_argument("--hours", type=float, default=0.0, help="run worlds for so long; a later run goes on there")
    parser.add_argument("--workers", type=int, default=2, help="how many processes run worlds")
    parser.add_argument("--twice", action="store_true", help="with --seed: again in a process with another hash seed")
    parser.add_argument("--digest", action="store_true", help="with --seed: print only the digest of the run")
    parser.add_argument("--digests", action="store_true", help="read seeds from the input and print their digests")
    parser.add_argument("--minutes", type=float, default=2.0, help="for how long a failing world is made smaller")
    parser.add_argument("--whole", action="store_true", help="with --seed: tell everything, and shrink nothing")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FAULT", help="with --seed: only this fault or act of a user"
    )
    parser.add_argument("--about", action="append", default=[], metavar="TEXT", help="tell of objects named like this")
    parser.add_argument("--coverage", action="store_true", help="list what was exercised, and what never was")
    parser.add_argument("--plant", metavar="NAME", help="plant a bug, or 'all'; with --seed or --scenario: there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="with --plant: write the table there as a page")
    parser.add_argument("--scenario", metavar="NAME", help="run a declared scenario ('all' for every one)")
    parser.add_argument("--every", action="store_true", help="with --scenario: every value it sweeps in long runs too")
    parser.add_argument("--check", type=Path, metavar="DIR", help="judge the recorded history of a platform or a cell")
    parser.add_argument("--verbose", action="store_true", help="show the parts' own logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
