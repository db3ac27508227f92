"""Runs one seed. If the run fails, shrinks it and prints the report and the commands that reproduce it."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.mutations import MUTATIONS, Patch, applied_mutation
from holdfast.sim.shrink import RunResult, RunSpec, Shrunk, shrink
from holdfast.sim.simulation import RunOutcome, Simulation

SHRINK_S = 120.0
"""Default time limit for shrinking a failing run."""
NAMES_SHOWN = 12
PROGRESS_EVERY_S = 10.0


class SingleRunOptions(msgspec.Struct, frozen=True):
    """`only` restricts faults and user actions, `schedule` selects another interleaving, `mutation` is a mutation to
    apply, `shrink_s` 0 disables shrinking."""

    seed: int
    only: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    mutation: str = ""
    repeat: bool = False
    shrink_s: float = SHRINK_S
    schedule: int = 0


def run_seed(options: SingleRunOptions, print_line: Callable[[str], None]) -> int:
    """Runs the seed and prints the result. Returns 0 if it passed."""
    if options.mutation and options.mutation not in {m.name for m in MUTATIONS}:
        print_line(
            f"error: mutation {options.mutation}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})"
        )
        return 2
    with with_mutation(options.mutation) as mutation:
        # With a mutation the run may never end, so it stops at the first violation.
        violation_by_s = math.inf if options.mutation else None
        simulation = Simulation(
            options.seed,
            only=frozenset(options.only) if options.only else None,
            violation_by_s=violation_by_s,
            schedule=options.schedule,
        )
        outcome = simulation.run()
        recording = simulation.recording()
        print_line(failure_report.headline(outcome))
        print_line(f"  faults: {', '.join(f'{kind} ({n})' for kind, n in outcome.faults.items()) or 'none'}")
        if isinstance(mutation, Patch) and (mutation.mutation_error or not mutation.executed):
            problem = (
                f"the mutation itself failed: {mutation.mutation_error}"
                if mutation.mutation_error
                else "never called in this run"
            )
            print_line(f"  {options.mutation}: {problem}")
        failed = not outcome.ok
        if failed and options.shrink_s > 0 and not options.objects and not options.only:
            print_line(f"  {next(failure_report.failure_lines(outcome))}")
            small = report_shrunk(RunSpec(options.seed), (outcome, recording), options.shrink_s, print_line)
            smaller = msgspec.structs.replace(options, schedule=small.schedule)
            _print_commands(smaller, (*small.faults, *small.user_actions), print_line)
        elif failed or options.objects:
            for line in failure_report.summary_lines(outcome) if failed else ():
                print_line(f"  {line}")
            _print_timeline(failure_report.timeline(outcome, recording, options.objects, _frame(options)), print_line)
            _print_commands(options, options.only or None, print_line)
    return _repeat(options, outcome, print_line) or int(failed)


def _frame(options: SingleRunOptions) -> failure_report.ReportSize:
    """Size of the report of a run that was not shrunk: a screen if `only` restricts it, else everything."""
    return failure_report.SCREEN if options.only and options.shrink_s > 0 else failure_report.FULL


def with_mutation(name: str) -> AbstractContextManager[object]:
    """Applies the named mutation, or none."""
    return applied_mutation(name) if name else nullcontext()


def report_shrunk(subject: RunSpec, first: RunResult, shrink_s: float, print_line: Callable[[str], None]) -> Shrunk:
    """Shrinks a failed run within the time limit and prints its report."""
    print_line(f"shrinking, for at most {shrink_s:.0f} s (--whole prints everything without shrinking)")
    small = shrink(subject, first=first, progress=_throttled(print_line), time_max_s=shrink_s)
    assert small is not None, "it has just failed"
    print_line("")
    print_line(f"Smallest reproduction ({small.runs} runs{'; ' + small.cut_short if small.cut_short else ''}):")
    for line in failure_report.summary_lines(small.outcome):
        print_line(f"  {line}")
    faults, acts = small.original_counts
    needed = f"{len(small.faults)} of {faults} faults and {len(small.user_actions)} of {acts} user actions"
    print_line(f"  {'needed':16}{needed}: {_named((*small.faults, *small.user_actions)) or 'none'}")
    _print_timeline(failure_report.timeline(small.outcome, small.recording), print_line)
    return small


def _throttled(print_line: Callable[[str], None]) -> Callable[[str], None]:
    """Prints progress at most every PROGRESS_EVERY_S."""
    last_s = 0.0

    def throttled(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > PROGRESS_EVERY_S:
            last_s = time.monotonic()
            print_line(f"  {text}")

    return throttled


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return "; ".join(names[:NAMES_SHOWN]) + more


def _print_timeline(lines: Iterable[str], print_line: Callable[[str], None]) -> None:
    print_line("")
    print_line(failure_report.LEGEND)
    for line in lines:
        print_line(line)


def _print_commands(options: SingleRunOptions, only: tuple[str, ...] | None, print_line: Callable[[str], None]) -> None:
    """Prints commands to repeat the run. `only` are the needed faults and user actions; None means all."""
    mutation = f" --mutation {options.mutation}" if options.mutation else ""
    names = "".join(f" --only {shlex.quote(name)}" for name in only or ("nothing",))
    print_line("")
    schedule = f" --schedule {options.schedule}" if options.schedule else ""
    if only is not None and len(only) <= NAMES_SHOWN:
        print_line(f"reproduce:       python -m holdfast.sim --seed {options.seed}{schedule}{mutation}{names}")
    print_line(f"full history:    python -m holdfast.sim --seed {options.seed}{mutation} --whole")
    print_line(f"other objects:   python -m holdfast.sim --seed {options.seed}{mutation} --about TEXT")


def _repeat(options: SingleRunOptions, outcome: RunOutcome, print_line: Callable[[str], None]) -> int:
    if not options.repeat:
        return 0
    why = parallel_runs.nondeterminism_reason(outcome)
    print_line(why or "identical in another process with another hash seed")
    return int(bool(why))
