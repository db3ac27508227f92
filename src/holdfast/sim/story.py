"""Failure report: the violated invariant, its writer and the expected behaviour, then a timeline of faults, user
actions and changes of the involved objects, in seconds before the violation.

The report fits on a screen unless the full one is requested. It says how much is omitted.
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
    """Limits of a report: object changes, faults, user actions, fields per change, and characters per line."""

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
    "times: seconds before (-) the violation or the end; * fault (kind@site#operation or kind#number), > user action, "
    "! violation,\n"
    "= end of the fault phase; other lines: cell, writer, object, change (terms: docs/glossary.md)"
)
_NAME = re.compile(r"[a-z0-9]+/[a-z0-9]+")


def headline(outcome: Outcome) -> str:
    verdict = "ok" if outcome.ok else "FAILED"
    base = f", from scenario {outcome.base}" if outcome.base else ""
    return (
        f"seed {outcome.seed}{base}: {verdict}; {outcome.simulated_s:.0f} s simulated, converged in "
        f"{outcome.settled_in_s:.0f} s, {outcome.commits} commits, {outcome.steps} steps, "
        f"{sum(outcome.faults.values())} faults, digest {outcome.digest}"
    )


def complaints(outcome: Outcome, most: int = 1000) -> Iterator[str]:
    """The failures, most serious first. An invariant is explained where it is first named."""
    told: set[str] = set()
    for violation in outcome.violations[:most]:
        yield str(violation)
        if violation.promise not in told and violation.promise in PROMISES:
            yield f"  ({violation.promise} forbids {PROMISES[violation.promise].never})"
        told.add(violation.promise)
    if len(outcome.violations) > most:
        yield f"… and {len(outcome.violations) - most} later violations"
    for line in outcome.unsettled:
        yield f"not converged after {outcome.settled_in_s:.0f} s: {line}"
    for line in outcome.failures:
        yield f"a component failed: {line}"


def account(outcome: Outcome) -> Iterator[str]:
    """The first failure in four rows: invariant, writer, observation and expectation."""
    if outcome.violations:
        first = outcome.violations[0]
        where = "the global cell" if first.cell == "global" else first.cell
        kind, who = first.promise, f"{first.writer}, in {where}" if first.writer else f"unknown; observed in {where}"
        when = f", {first.at_s:.3f} s after the start"
        seen = [spoken(first.what)]
    elif outcome.failures:
        kind, who, when, seen = "failure", "a component", "", list(outcome.failures)
    else:
        kind, who = "convergence", "none"
        when, seen = f", for {outcome.settled_in_s:.0f} s without faults", list(outcome.unsettled)
    promise = PROMISES.get(kind)
    if promise is not None:
        yield f"invariant       {kind}: no {promise.never.removeprefix('a ').removeprefix('an ')}"
    yield f"violated by     {who}{when}"
    for number, line in enumerate(seen[:UNSETTLED_SHOWN]):
        yield f"{'observed' if not number else '':16}{line}"
    if len(seen) > UNSETTLED_SHOWN:
        yield f"{'':16}… and {len(seen) - UNSETTLED_SHOWN} more of these"
    if promise is not None:
        yield f"expected        {promise.instead}"
    for violation in outcome.violations[1:COMPLAINTS_SHOWN]:
        yield f"{'later':16}{violation.promise} in {violation.cell}: {spoken(violation.what)}"
    if len(outcome.violations) > COMPLAINTS_SHOWN:
        yield f"{'':16}… and {len(outcome.violations) - COMPLAINTS_SHOWN} later violations"


def timeline(
    outcome: Outcome, telling: Telling, matching: Iterable[str] = (), frame: Frame = SCREEN
) -> Iterator[str]:  # fmt: skip
    """Faults, user actions and changes of the involved objects in order of time, up to the first violation.

    `matching` adds objects by name and selects the full report.
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
        yield f"… ({left_out} earlier changes of these objects are omitted; --whole prints all)"
    faults = [fault for fault in telling.struck if fault.at_s <= ends_s]
    if len(faults) > frame.faults:
        yield f"… ({len(faults) - frame.faults} earlier faults are omitted; --whole prints all)"
        faults = faults[-frame.faults :]
    known: set[str] = set()
    rows = [
        *((f.at_s, "*", _explained(f, _once(fault_says(f.name), known))) for f in faults),
        *((a.at_s, ">", _explained(a, act_says(f"{a.name}: {a.what}"))) for a in _acts(telling, about, ends_s, frame)),
        *((e.at_s, " ", text) for e, text in events),
    ]
    if 0.0 < telling.healed_s <= ends_s:
        rows.append((telling.healed_s, "=", "the fault phase ends; the system must converge"))
    for at_s, mark, text in sorted(rows, key=lambda row: row[0]):
        line = f"{mark} {at_s - zero_s:9.3f} s  {text}"
        yield line if len(line) <= frame.chars else f"{line[: frame.chars]}…"
    for violation in outcome.violations[:1]:
        yield f"! {0.0:9.3f} s  {violation.promise} is violated: {spoken(violation.what)}"
    if outcome.unsettled and not outcome.violations:
        yield f"! {0.0:9.3f} s  not converged: {'; '.join(outcome.unsettled[:COMPLAINTS_SHOWN])}"


def _at_stake(outcome: Outcome) -> tuple[str, ...]:
    """Objects of the first violation, or the first few objects that did not converge."""
    return outcome.violations[0].objects if outcome.violations else outcome.objects[:OBJECTS_SHOWN]


def _last(events: list[Event], ends_s: float, frame: Frame) -> tuple[list[tuple[Event, str]], int]:
    """The last significant changes as text, and the number of earlier ones."""
    found: list[tuple[Event, str]] = []
    earlier = [event for event in events if event.at_s <= ends_s]
    while earlier and len(found) < frame.events:
        event = earlier.pop()
        if event.what(frame.fields):
            found.append((event, event.told(frame.fields)))
    return found[::-1], len(earlier)


def _once(says: str, known: set[str]) -> str:
    """The text on its first use, later an empty string."""
    if says in known:
        return ""
    known.add(says)
    return says


def _explained(thing: Struck, says: str) -> str:
    what = f": {thing.what}" if thing.what else ""
    return f"{thing.name}{what} ({says})" if says else f"{thing.name}{what}"


def _acts(telling: Telling, keys: list[str], ends_s: float, frame: Frame) -> list[Struck]:
    """User actions on the involved objects; all actions if they are few."""
    acts = [act for act in telling.acts if act.at_s <= ends_s]
    if len(acts) <= frame.acts:
        return acts
    return [
        act
        for act in acts
        if any(f"/{name}" in key for name in _NAME.findall(f"{act.name} {act.what}") for key in keys)
    ]
