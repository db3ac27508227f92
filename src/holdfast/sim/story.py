"""What happened, told so that a stranger can follow it: what was promised, who broke it, what should have been; then
faults that struck and the history of what is at stake, in times before the breach.

A story fits a screen unless somebody asks for the whole; what is left out is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.sim.chaos import Struck
from holdfast.sim.history import Event
from holdfast.sim.words import PROMISES, act_says, fault_says, spoken
from holdfast.sim.world import Outcome, Telling


class Frame(NamedTuple):
    """How much is told: changes of objects, faults, acts of users, fields of one change, and characters of a line."""

    events: int
    faults: int
    acts: int
    fields: int
    chars: int


SCREEN = Frame(events=24, faults=12, acts=12, fields=4, chars=230)
WHOLE = Frame(events=1000, faults=1000, acts=1000, fields=12, chars=1000)
COMPLAINTS_SHOWN = 3
UNSETTLED_SHOWN = 5
OBJECTS_SHOWN = 4
LEGEND = (
    "seconds before (-) the breach, or the end; * a fault strikes (kind@where#occasion, or kind#number), > a user "
    "acts, ! a promise is broken,\n"
    "= nothing goes wrong any more; all else: in which cell, who wrote, which object, what changed (the words: "
    "docs/glossary.md)"
)
_NAME = re.compile(r"[a-z0-9]+/[a-z0-9]+")


def headline(outcome: Outcome) -> str:
    verdict = "ok" if outcome.ok else "FAILED"
    base = f", from scenario {outcome.base}" if outcome.base else ""
    return (
        f"seed {outcome.seed}{base}: {verdict}; {outcome.simulated_s:.0f} s simulated, settled in "
        f"{outcome.settled_in_s:.0f} s, {outcome.commits} commits, {outcome.steps} steps, "
        f"{sum(outcome.faults.values())} faults, digest {outcome.digest}"
    )


def complaints(outcome: Outcome, most: int = 1000) -> Iterator[str]:
    """What is wrong, most serious first; a promise is explained where it is first named."""
    told: set[str] = set()
    for violation in outcome.violations[:most]:
        yield str(violation)
        if violation.promise not in told and violation.promise in PROMISES:
            yield f"  ({violation.promise} means: never {PROMISES[violation.promise].never})"
        told.add(violation.promise)
    if len(outcome.violations) > most:
        yield f"… and {len(outcome.violations) - most} more, which follow"
    for line in outcome.unsettled:
        yield f"not settled after {outcome.settled_in_s:.0f} s: {line}"
    for line in outcome.failures:
        yield f"a part failed: {line}"


def account(outcome: Outcome) -> Iterator[str]:
    """The breach in four sentences: the promise, who broke it, what was seen, what should have been."""
    if outcome.violations:
        first = outcome.violations[0]
        where = "the global cell" if first.cell == "global" else first.cell
        kind, who = first.promise, f"{first.writer}, in {where}" if first.writer else f"not known; seen in {where}"
        when = f", {first.at_s:.3f} s after the world began"
        seen = [spoken(first.what)]
    elif outcome.failures:
        kind, who, when, seen = "failure", "a part of the product", "", list(outcome.failures)
    else:
        kind, who = "unsettled", "nobody did what was left to do"
        when, seen = f", for {outcome.settled_in_s:.0f} s without any fault", list(outcome.unsettled)
    promise = PROMISES.get(kind)
    if promise is not None:
        yield f"the promise     {kind}: never {promise.never}"
    yield f"who broke it    {who}{when}"
    for number, line in enumerate(seen[:UNSETTLED_SHOWN]):
        yield f"{'what was seen' if not number else '':16}{line}"
    if len(seen) > UNSETTLED_SHOWN:
        yield f"{'':16}… and {len(seen) - UNSETTLED_SHOWN} more like these"
    if promise is not None:
        yield f"what should be  {promise.instead}"
    for violation in outcome.violations[1:COMPLAINTS_SHOWN]:
        yield f"{'and then':16}{violation.promise} in {violation.cell}: {spoken(violation.what)}"
    if len(outcome.violations) > COMPLAINTS_SHOWN:
        yield f"{'':16}… and {len(outcome.violations) - COMPLAINTS_SHOWN} more, which follow"


def timeline(
    outcome: Outcome, telling: Telling, matching: Iterable[str] = (), frame: Frame = SCREEN
) -> Iterator[str]:  # fmt: skip
    """Faults, users' acts and the changes of the objects at stake, in one order of time, up to the first breach.

    `matching` adds objects by name, and then everything about them is told.
    """
    wanted = tuple(matching)
    frame = WHOLE if wanted else frame
    about = list(outcome.objects if frame is WHOLE else _at_stake(outcome))
    for text in wanted:
        about += [event.key for event in telling.history.matching(text)]
    breach_s = outcome.violations[0].at_s if outcome.violations else None
    ends_s = math.inf if wanted or breach_s is None else breach_s
    zero_s = breach_s if breach_s is not None else outcome.simulated_s
    events, left_out = _last(telling.history.of(about), ends_s, frame)
    if left_out:
        yield f"… ({left_out} earlier changes of these objects are left out: --whole tells all)"
    faults = [fault for fault in telling.struck if fault.at_s <= ends_s]
    if len(faults) > frame.faults:
        yield f"… ({len(faults) - frame.faults} earlier faults are left out: --whole tells all)"
        faults = faults[-frame.faults :]
    known: set[str] = set()
    rows = [
        *((f.at_s, "*", _explained(f, _once(fault_says(f.name), known))) for f in faults),
        *((a.at_s, ">", _explained(a, act_says(f"{a.name}: {a.what}"))) for a in _acts(telling, about, ends_s, frame)),
        *((e.at_s, " ", text) for e, text in events),
    ]
    if 0.0 < telling.healed_s <= ends_s:
        rows.append((telling.healed_s, "=", "no more faults, and users ask for nothing new: now all must come right"))
    for at_s, mark, text in sorted(rows, key=lambda row: row[0]):
        line = f"{mark} {at_s - zero_s:9.3f} s  {text}"
        yield line if len(line) <= frame.chars else f"{line[: frame.chars]}…"
    for violation in outcome.violations[:1]:
        yield f"! {0.0:9.3f} s  {violation.promise} is broken: {spoken(violation.what)}"
    if outcome.unsettled and not outcome.violations:
        yield f"! {0.0:9.3f} s  not come right: {'; '.join(outcome.unsettled[:COMPLAINTS_SHOWN])}"


def _at_stake(outcome: Outcome) -> tuple[str, ...]:
    """What the first breach is about; of what never came right the first few, which are as good as all."""
    return outcome.violations[0].objects if outcome.violations else outcome.objects[:OBJECTS_SHOWN]


def _last(events: list[Event], ends_s: float, frame: Frame) -> tuple[list[tuple[Event, str]], int]:
    """The last changes that say anything, in words, and how many earlier ones there are."""
    found: list[tuple[Event, str]] = []
    earlier = [event for event in events if event.at_s <= ends_s]
    while earlier and len(found) < frame.events:
        event = earlier.pop()
        if event.what(frame.fields):
            found.append((event, event.told(frame.fields)))
    return found[::-1], len(earlier)


def _once(says: str, known: set[str]) -> str:
    """What was explained already is not explained again."""
    if says in known:
        return ""
    known.add(says)
    return says


def _explained(thing: Struck, says: str) -> str:
    what = f": {thing.what}" if thing.what else ""
    return f"{thing.name}{what} ({says})" if says else f"{thing.name}{what}"


def _acts(telling: Telling, keys: list[str], ends_s: float, frame: Frame) -> list[Struck]:
    """What users did to what is at stake; everything they did when that is little."""
    acts = [act for act in telling.acts if act.at_s <= ends_s]
    if len(acts) <= frame.acts:
        return acts
    return [
        act
        for act in acts
        if any(f"/{name}" in key for name in _NAME.findall(f"{act.name} {act.what}") for key in keys)
    ]
