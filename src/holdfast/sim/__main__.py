"""Runs simulated worlds: `python -m holdfast.sim --seed 7` for one, `--seeds 50` for many."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

import structlog

from holdfast.sim.world import Outcome, World


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.verbose:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            processors=[structlog.dev.ConsoleRenderer()],
        )
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcome = World(seed).run()
        outcomes.append(outcome)
        _tell(outcome, quiet=len(seeds) > 1 and outcome.ok)
        if options.twice and World(seed).run().digest != outcome.digest:
            print(f"seed {seed}: two runs differ: nondeterminism")
            return 1
    bad = [o for o in outcomes if not o.ok]
    hours = sum(o.node_hours for o in outcomes)
    faults = sum(sum(o.faults.values()) for o in outcomes)
    spent_s = time.process_time() - cpu_s
    print(f"{len(outcomes)} seeds, {hours:.1f} simulated node-hours, {faults} faults, {len(bad)} violations")
    print(
        f"{hours / max(spent_s, 1e-9) * 60:.0f} node-hours per CPU-minute, {time.perf_counter() - started_s:.0f} s, "
        f"slowest to settle {max(o.settled_in_s for o in outcomes):.0f} s"
    )
    return 1 if bad else 0


def _tell(outcome: Outcome, *, quiet: bool) -> None:
    if quiet:
        if os.isatty(sys.stdout.fileno()):
            print(f"\rseed {outcome.seed} ok", end="", flush=True)
        return
    verdict = "ok" if outcome.ok else "FAILED"
    print(
        f"seed {outcome.seed}: {verdict}; {outcome.simulated_s:.0f} s simulated, "
        f"settled in {outcome.settled_in_s:.0f} s, {outcome.commits} commits, {outcome.steps} steps, "
        f"digest {outcome.digest}"
    )
    print(f"  faults: {outcome.faults}")
    for violation in outcome.violations:
        print(f"  {violation}")
    for line in (*outcome.unsettled[:10], *outcome.failures):
        print(f"  {line}")
    if not outcome.ok:
        print(f"  run it again: make sim SEED={outcome.seed}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="holdfast.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one world and tell its story")
    parser.add_argument("--seeds", type=int, default=10, help="run this many worlds")
    parser.add_argument("--first", type=int, default=1, help="the first seed of many")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the digests")
    parser.add_argument("--verbose", action="store_true", help="show the parts' own logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
