"""Runs simulations: `python -m holdfast.sim --seed 7` runs one and reports it, `--seeds 200` runs many."""

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

from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.run_totals import load_totals, save_totals
from holdfast.sim.simulation import Simulation

STATE = Path(".sim/hours.json")
"""Totals of `--hours`, so that a later run continues."""
MUTATION_RESULTS = Path(".sim/mutations.jsonl")
"""Results of mutation testing, so that an interrupted run continues."""
PROGRESS_EVERY_S = 60.0


def main() -> int:
    options = _options()
    if options.verbose:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            processors=[structlog.dev.ConsoleRenderer()],
        )
    parallel_runs.silence_logs()
    if options.check:
        return _check(options.check)
    if options.mutation and options.seed is None and not options.scenario:
        from holdfast.sim.mutation_runner import MutationRunOptions, run_mutations

        mutation_options = MutationRunOptions(
            options.mutation,
            options.seeds,
            options.first,
            options.workers,
            results_path=MUTATION_RESULTS,
            report_path=options.page,
        )
        return run_mutations(mutation_options, _print)
    if options.scenario:
        from holdfast.sim import scenario_runs

        scenario_options = scenario_runs.ScenarioOptions(
            options.scenario,
            options.first,
            options.mutation or "",
            all_values=options.every,
            shrink_s=0.0 if options.whole else options.minutes * 60,
        )
        return scenario_runs.run_scenarios(scenario_options, _print)
    if options.digests:
        for digest in parallel_runs.serve_digests(iter(sys.stdin.readline, "")):
            _print(digest)
        return 0
    if options.seed is not None and options.digest:
        print(Simulation(options.seed).run().digest)
        return 0
    if options.seed is not None:
        return _run_one(options)
    return _run_many(options)


def _check(state: Path) -> int:
    """Returns 1 if an invariant is violated, 2 if a part of the history could not be read and none is."""
    from holdfast.model.errors import StoreFailed
    from holdfast.sim.recorded_history import check_platform

    try:
        verdict = check_platform(state)
    except StoreFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in verdict.lines():
        print(line)
    print(f"{state}: {verdict}")
    if verdict.violations:
        return 1
    return 2 if verdict.unreadable else 0


def _print(text: str) -> None:
    print(text, flush=True)


def _run_one(options: argparse.Namespace) -> int:
    from holdfast.sim.single_run import SingleRunOptions, run_seed

    shrink_s = 0.0 if options.whole else options.minutes * 60
    run_options = SingleRunOptions(
        options.seed,
        only=tuple(options.only),
        objects=tuple(options.about),
        mutation=options.mutation or "",
        repeat=options.twice,
        shrink_s=shrink_s,
        schedule=options.schedule,
    )
    return run_seed(run_options, _print)


def _run_many(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    hours = options.hours
    total = load_totals(STATE) if hours else parallel_runs.RunTotals(next_seed=options.first)
    if hours and total.seeds:
        print(f"continuing at seed {total.next_seed} after {total.summary()}; delete {STATE} to restart", flush=True)
    seeds = total.remaining_seeds() if hours else iter(range(options.first, options.first + options.seeds))
    printed_s = began_s

    def on_result(result: parallel_runs.SeedResult) -> None:
        nonlocal printed_s
        total.add(result)
        if hours:
            save_totals(STATE, total)
        _print_result(result, total)
        if time.monotonic() - printed_s > PROGRESS_EVERY_S:
            printed_s = time.monotonic()
            _print(f"after {(printed_s - began_s) / 60:.0f} min: {total.summary()}")

    def enough() -> bool:
        return bool(hours) and time.monotonic() - began_s > hours * 3600

    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        parallel_runs.run_many(seeds, workers=options.workers, on_result=on_result, until=enough)
    except KeyboardInterrupt:
        interrupted = True
    if os.isatty(sys.stdout.fileno()):
        print("\r", end="")
    if interrupted:
        print(f"interrupted; {'the same command continues at' if hours else 'not run: seeds from'} {total.next_seed}")
    if options.coverage or hours or total.seeds >= 100:
        for line in total.coverage.lines():
            print(line)
    if total.failed:
        print(f"failed: {' '.join(map(str, sorted(total.failed)))}; next: make sim SEED={min(total.failed)}")
    for line in total.lines(time.monotonic() - began_s):
        print(line)
    if total.violations:
        return 1
    return 130 if interrupted else 0


def _print_result(result: parallel_runs.SeedResult, total: parallel_runs.RunTotals) -> None:
    outcome = result.outcome
    if outcome.ok and not result.nondeterminism:
        if os.isatty(sys.stdout.fileno()):
            print(f"\r{total.summary()} ", end="", flush=True)
        return
    print(failure_report.headline(outcome), flush=True)
    for line in itertools.islice(failure_report.failure_lines(outcome), 6):
        print(f"  {line}")
    if result.nondeterminism:
        print(f"  {result.nondeterminism}")
    print(f"  next: make sim SEED={outcome.seed}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="holdfast.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one simulation and report it")
    parser.add_argument("--seeds", type=int, default=10, help="number of simulations")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="SEED", help="first seed")
    parser.add_argument("--hours", type=float, default=0.0, help="run for this long; a later run continues")
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes")
    parser.add_argument("--twice", action="store_true", help="with --seed: repeat with another hash seed and compare")
    parser.add_argument("--digest", action="store_true", help="with --seed: print only the digest of the run")
    parser.add_argument("--digests", action="store_true", help="read seeds from stdin and print their digests")
    parser.add_argument("--minutes", type=float, default=2.0, help="time limit for shrinking a failing run")
    parser.add_argument("--whole", action="store_true", help="with --seed: print the whole history, without shrinking")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FAULT", help="with --seed: only this fault, user action or kind"
    )
    parser.add_argument("--schedule", type=int, default=0, help="with --seed: another interleaving of the same seed")
    parser.add_argument("--about", action="append", default=[], metavar="TEXT", help="print the history of objects")
    parser.add_argument("--coverage", action="store_true", help="print what was exercised and what was not")
    parser.add_argument("--mutation", metavar="NAME", help="apply a mutation; alone, or 'all': find the catching seed")
    parser.add_argument("--page", type=Path, metavar="FILE", help="with --mutation: write the table to this file")
    parser.add_argument("--scenario", metavar="NAME", help="run a scenario, or 'all'")
    parser.add_argument("--every", action="store_true", help="with --scenario: also the values reserved for long runs")
    parser.add_argument("--check", type=Path, metavar="DIR", help="check the recorded history of a platform or cell")
    parser.add_argument("--verbose", action="store_true", help="print the logs of the simulated components")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
