"""Runs one seed. If the run fails, shrinks it and prints the report and the commands that reproduce it."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from holdfast.sim import runs, story
from holdfast.sim.mutations import MUTATIONS, Patch, planted
from holdfast.sim.shrink import Lived, Shrunk, Subject, shrink
from holdfast.sim.world import Outcome, World

SHRINK_S = 120.0
"""Default time limit for shrinking a failing run."""
NAMES_SHOWN = 12
PROGRESS_EVERY_S = 10.0


class Asked(msgspec.Struct, frozen=True):
    """`only` restricts faults and user actions, `bug` is a mutation to apply, `shrink_s` 0 disables shrinking."""

    seed: int
    only: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    bug: str = ""
    twice: bool = False
    shrink_s: float = SHRINK_S


def tell(asked: Asked, say: Callable[[str], None]) -> int:
    """Runs the seed and prints the result. Returns 0 if it passed."""
    if asked.bug and asked.bug not in {m.name for m in MUTATIONS}:
        say(f"error: mutation {asked.bug}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})")
        return 2
    with with_bug(asked.bug) as bug:
        # With a mutation the run may never end, so it stops at the first violation.
        by_s = math.inf if asked.bug else None
        world = World(asked.seed, only=frozenset(asked.only) if asked.only else None, breach_by_s=by_s)
        outcome = world.run()
        telling = world.telling()
        say(story.headline(outcome))
        say(f"  faults: {', '.join(f'{kind} ({n})' for kind, n in outcome.faults.items()) or 'none'}")
        if isinstance(bug, Patch) and (bug.tripped or not bug.executed):
            problem = f"the mutation itself failed: {bug.tripped}" if bug.tripped else "never called in this run"
            say(f"  {asked.bug}: {problem}")
        failed = not outcome.ok
        if failed and asked.shrink_s > 0 and not asked.about and not asked.only:
            say(f"  {next(story.complaints(outcome))}")
            small = tell_small(Subject(asked.seed), (outcome, telling), asked.shrink_s, say)
            _how_again(asked, (*small.faults, *small.acts), say)
        elif failed or asked.about:
            for line in story.account(outcome) if failed else ():
                say(f"  {line}")
            _tell_lines(story.timeline(outcome, telling, asked.about, _frame(asked)), say)
            _how_again(asked, asked.only or None, say)
    return _same_again(asked, outcome, say) or int(failed)


def _frame(asked: Asked) -> story.Frame:
    """Size of the report of a run that was not shrunk: a screen if `only` restricts it, else everything."""
    return story.SCREEN if asked.only and asked.shrink_s > 0 else story.WHOLE


def with_bug(name: str) -> AbstractContextManager[object]:
    """Applies the named mutation, or none."""
    return planted(name) if name else nullcontext()


def tell_small(subject: Subject, first: Lived, shrink_s: float, say: Callable[[str], None]) -> Shrunk:
    """Shrinks a failed run within the time limit and prints its report."""
    say(f"shrinking, for at most {shrink_s:.0f} s (--whole prints everything without shrinking)")
    small = shrink(subject, first=first, told=_now_and_then(say), time_max_s=shrink_s)
    assert small is not None, "it has just failed"
    say("")
    say(f"Smallest reproduction ({small.runs} runs{'; ' + small.cut_short if small.cut_short else ''}):")
    for line in story.account(small.outcome):
        say(f"  {line}")
    faults, acts = small.of
    needed = f"{len(small.faults)} of {faults} faults and {len(small.acts)} of {acts} user actions"
    say(f"  {'needed':16}{needed}: {_named((*small.faults, *small.acts)) or 'none'}")
    _tell_lines(story.timeline(small.outcome, small.telling), say)
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
    say(story.LEGEND)
    for line in lines:
        say(line)


def _how_again(asked: Asked, only: tuple[str, ...] | None, say: Callable[[str], None]) -> None:
    """Prints commands to repeat the run. `only` are the needed faults and user actions; None means all."""
    bug = f" --mutation {asked.bug}" if asked.bug else ""
    names = "".join(f" --only {shlex.quote(name)}" for name in only or ("nothing",))
    say("")
    if only is not None and len(only) <= NAMES_SHOWN:
        say(f"reproduce:       python -m holdfast.sim --seed {asked.seed}{bug}{names}")
    say(f"full history:    python -m holdfast.sim --seed {asked.seed}{bug} --whole")
    say(f"other objects:   python -m holdfast.sim --seed {asked.seed}{bug} --about TEXT")


def _same_again(asked: Asked, outcome: Outcome, say: Callable[[str], None]) -> int:
    if not asked.twice:
        return 0
    why = runs.why_not_determined(outcome)
    say(why or "identical in another process with another hash seed")
    return int(bool(why))
