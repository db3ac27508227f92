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
    """`only` restricts faults and user actions, `bug` is a mutation to apply, `shrink_s` 0 disables shrinking."""

    seed: int
    only: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    mutation: str = ""
    repeat: bool = False
    shrink_s: float = SHRINK_S


def run_seed(asked: SingleRunOptions, say: Callable[[str], None]) -> int:
    """Runs the seed and prints the result. Returns 0 if it passed."""
    if asked.mutation and asked.mutation not in {m.name for m in MUTATIONS}:
        say(f"error: mutation {asked.mutation}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})")
        return 2
    with with_mutation(asked.mutation) as bug:
        # With a mutation the run may never end, so it stops at the first violation.
        by_s = math.inf if asked.mutation else None
        world = Simulation(asked.seed, only=frozenset(asked.only) if asked.only else None, breach_by_s=by_s)
        outcome = world.run()
        telling = world.recording()
        say(failure_report.headline(outcome))
        say(f"  faults: {', '.join(f'{kind} ({n})' for kind, n in outcome.faults.items()) or 'none'}")
        if isinstance(bug, Patch) and (bug.mutation_error or not bug.executed):
            problem = f"the mutation itself failed: {bug.mutation_error}" if bug.mutation_error else "never called in this run"
            say(f"  {asked.mutation}: {problem}")
        failed = not outcome.ok
        if failed and asked.shrink_s > 0 and not asked.objects and not asked.only:
            say(f"  {next(failure_report.failure_lines(outcome))}")
            small = report_shrunk(RunSpec(asked.seed), (outcome, telling), asked.shrink_s, say)
            _how_again(asked, (*small.faults, *small.user_actions), say)
        elif failed or asked.objects:
            for line in failure_report.summary_lines(outcome) if failed else ():
                say(f"  {line}")
            _tell_lines(failure_report.timeline(outcome, telling, asked.objects, _frame(asked)), say)
            _how_again(asked, asked.only or None, say)
    return _same_again(asked, outcome, say) or int(failed)


def _frame(asked: SingleRunOptions) -> failure_report.ReportSize:
    """Size of the report of a run that was not shrunk: a screen if `only` restricts it, else everything."""
    return failure_report.SCREEN if asked.only and asked.shrink_s > 0 else failure_report.FULL


def with_mutation(name: str) -> AbstractContextManager[object]:
    """Applies the named mutation, or none."""
    return applied_mutation(name) if name else nullcontext()


def report_shrunk(subject: RunSpec, first: RunResult, shrink_s: float, say: Callable[[str], None]) -> Shrunk:
    """Shrinks a failed run within the time limit and prints its report."""
    say(f"shrinking, for at most {shrink_s:.0f} s (--whole prints everything without shrinking)")
    small = shrink(subject, first=first, told=_now_and_then(say), time_max_s=shrink_s)
    assert small is not None, "it has just failed"
    say("")
    say(f"Smallest reproduction ({small.runs} runs{'; ' + small.cut_short if small.cut_short else ''}):")
    for line in failure_report.summary_lines(small.outcome):
        say(f"  {line}")
    faults, acts = small.original_counts
    needed = f"{len(small.faults)} of {faults} faults and {len(small.user_actions)} of {acts} user actions"
    say(f"  {'needed':16}{needed}: {_named((*small.faults, *small.user_actions)) or 'none'}")
    _tell_lines(failure_report.timeline(small.outcome, small.recording), say)
    return small


def _now_and_then(say: Callable[[str], None]) -> Callable[[str], None]:
    """Prints progress at most every PROGRESS_EVERY_S."""
    last_s = 0.0

    def told(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > PROGRESS_EVERY_S:
            last_s = time.monotonic()
            say(f"  {text}")

    return told


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return "; ".join(names[:NAMES_SHOWN]) + more


def _tell_lines(lines: Iterable[str], say: Callable[[str], None]) -> None:
    say("")
    say(failure_report.LEGEND)
    for line in lines:
        say(line)


def _how_again(asked: SingleRunOptions, only: tuple[str, ...] | None, say: Callable[[str], None]) -> None:
    """Prints commands to repeat the run. `only` are the needed faults and user actions; None means all."""
    bug = f" --mutation {asked.mutation}" if asked.mutation else ""
    names = "".join(f" --only {shlex.quote(name)}" for name in only or ("nothing",))
    say("")
    if only is not None and len(only) <= NAMES_SHOWN:
        say(f"reproduce:       python -m holdfast.sim --seed {asked.seed}{bug}{names}")
    say(f"full history:    python -m holdfast.sim --seed {asked.seed}{bug} --whole")
    say(f"other objects:   python -m holdfast.sim --seed {asked.seed}{bug} --about TEXT")


def _same_again(asked: SingleRunOptions, outcome: RunOutcome, say: Callable[[str], None]) -> int:
    if not asked.repeat:
        return 0
    why = parallel_runs.nondeterminism_reason(outcome)
    say(why or "identical in another process with another hash seed")
    return int(bool(why))
