"""Runs simulated worlds: `python -m holdfast.sim --seed 7` for one and its story, `--seeds 200` for many."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import time
from pathlib import Path

import structlog

from holdfast.sim import runs, story
from holdfast.sim.shrink import shrink
from holdfast.sim.world import World

STATE = Path(".sim/hours.json")
"""Where a run of hours keeps what it has done, to go on there."""


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
    if options.plant:
        from holdfast.sim.planting import plant

        return plant(options.plant, seeds=options.seeds, first=options.first, told=_say)
    if options.scenario:
        from holdfast.sim.scenario import run_scenarios

        return run_scenarios(options.scenario, first=options.first, told=_say)
    if options.seed is not None and options.digest:
        print(World(options.seed).run().digest)
        return 0
    if options.seed is not None:
        return _one(options)
    return _many(options)


def _check(state: Path) -> int:
    from holdfast.sim.recorded import check_platform

    verdict = check_platform(state)
    for violation in verdict.violations:
        print(violation)
    print(f"{state}: {verdict}")
    return 1 if verdict.violations else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _one(options: argparse.Namespace) -> int:
    if options.shrink:
        return _shrunk(options.seed)
    world = World(options.seed)
    outcome = world.run()
    telling = world.telling()
    print(story.headline(outcome))
    print(f"  faults: {outcome.faults}")
    for line in story.complaints(outcome):
        print(f"  {line}")
    if options.about or not outcome.ok:
        print("timeline: when, in which cell, who wrote, what object, what changed; * marks a fault that struck")
        for line in story.timeline(outcome, telling, options.about):
            print(line)
    if options.twice:
        why = runs.why_not_determined(outcome)
        print(why or "the same again in another process with another hash seed")
        if why:
            return 1
    if not outcome.ok:
        print(f"the fewest faults with which it fails: make sim SEED={outcome.seed} ARGS=--shrink")
    return 0 if outcome.ok else 1


def _shrunk(seed: int) -> int:
    found = shrink(seed, told=lambda text: print(f"  {text}", flush=True))
    if found is None:
        print(f"seed {seed} does not fail")
        return 0
    print(f"seed {seed} fails with these {len(found.faults)} faults ({found.runs} runs):")
    for name in found.faults:
        print(f"  {name}")
    for line in story.complaints(found.outcome):
        print(f"  {line}")
    for line in story.timeline(found.outcome, found.telling):
        print(line)
    return 1


def _many(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    hours = options.hours
    total = runs.recall(STATE) if hours else runs.Total(failed=[])
    first = max(options.first, total.next_seed) if hours else options.first
    seeds = itertools.count(first) if hours else iter(range(first, first + options.seeds))
    if hours and first > 1:
        print(f"going on at seed {first}; remove {STATE} to begin anew")

    def told(done: runs.Done) -> None:
        total.add(done)
        total.next_seed = max(total.next_seed, done.outcome.seed + 1)
        _tell(done)
        if hours and total.seeds % 20 == 0:
            runs.remember(STATE, total)

    def enough() -> bool:
        return bool(hours) and time.monotonic() - began_s > hours * 3600

    runs.run_many(seeds, workers=options.workers, told=told, until=enough)
    if hours:
        runs.remember(STATE, total)
    if os.isatty(sys.stdout.fileno()):
        print("\r", end="")
    if options.coverage or hours or total.seeds >= 100:
        for line in total.coverage.lines():
            print(line)
    for line in total.lines(time.monotonic() - began_s):
        print(line)
    return 1 if total.violations else 0


def _tell(done: runs.Done) -> None:
    outcome = done.outcome
    if outcome.ok and not done.unseed:
        if os.isatty(sys.stdout.fileno()):
            print(f"\rseed {outcome.seed} ok ", end="", flush=True)
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
    parser.add_argument("--first", type=int, default=1, help="the first seed of many")
    parser.add_argument("--hours", type=float, default=0.0, help="run worlds for so long; a later run goes on there")
    parser.add_argument("--workers", type=int, default=2, help="how many processes run worlds")
    parser.add_argument("--twice", action="store_true", help="with --seed: again in a process with another hash seed")
    parser.add_argument("--digest", action="store_true", help="with --seed: print only the digest of the run")
    parser.add_argument("--shrink", action="store_true", help="with --seed: find the fewest faults that make it fail")
    parser.add_argument("--about", action="append", default=[], metavar="TEXT", help="tell of objects named like this")
    parser.add_argument("--coverage", action="store_true", help="list what was exercised, and what never was")
    parser.add_argument("--plant", metavar="NAME", help="plant a bug ('all' for each in turn) and see it caught")
    parser.add_argument("--scenario", metavar="NAME", help="run a declared scenario ('all' for every one)")
    parser.add_argument("--check", type=Path, metavar="DIR", help="judge the recorded history of a platform or a cell")
    parser.add_argument("--verbose", action="store_true", help="show the parts' own logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
