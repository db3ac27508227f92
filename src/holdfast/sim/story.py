"""What happened, told so that a stranger can follow it: the faults that struck and the history of what is at stake."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from holdfast.sim.chaos import Struck
from holdfast.sim.world import Outcome, Telling

EVENTS_SHOWN = 40
FAULTS_SHOWN = 40
ACTS_SHOWN = 12
COMPLAINTS_SHOWN = 3
LINE_CHARS = 320
LEGEND = (
    "timeline: * a fault strikes (kind@where#occasion, or kind#number), > a user acts, ! a promise is broken; "
    "all else: in which cell, who wrote, what object, what changed"
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


NEVER = {
    "S1": "two live accepted bindings for one replica identity",
    "S2": "two owners of one exclusive device or recovery place, or a node claimed above its capacity",
    "S3": "a region spending above its limit, or grants above the quota",
    "S4": "a workload bound where its rules forbid",
    "S5": "a placement written by anyone but the region's authority, or on a stale token",
    "S6": "a field written by anyone but its owner",
    "S7": "two running instances of an exclusive replica at the same time",
    "S8": "a reservation, draw, emergency quota or override acting past its end",
    "S9": "an acknowledged write lost, or a watch with a gap",
    "S10": "a policy change that alters what was already decided",
    "identity": "an act on whoever bears a name now instead of the one that was meant",
    "observedGeneration": "a status about a generation that does not exist, or older than the one before",
    "budget": "more replicas of a workload let go by choice at once, over all regions, than its disruption budget",
    "oscillation": "an object that goes to and fro while nobody asks for a change",
    "load": "more writes than what happens can explain",
    "tenancy": "one tenant seeing what is another's",
}
"""What each check says must never be, for whoever reads a story without the rest."""


def complaints(outcome: Outcome, most: int = 1000) -> Iterator[str]:
    """What is wrong, most serious first; a promise is explained where it is first named."""
    told: set[str] = set()
    for violation in outcome.violations[:most]:
        yield str(violation)
        if violation.promise not in told and violation.promise in NEVER:
            yield f"  ({violation.promise} means: never {NEVER[violation.promise]})"
        told.add(violation.promise)
    if len(outcome.violations) > most:
        yield f"… and {len(outcome.violations) - most} more, which follow"
    for line in outcome.unsettled:
        yield f"not settled after {outcome.settled_in_s:.0f} s: {line}"
    for line in outcome.failures:
        yield f"a part failed: {line}"


def timeline(outcome: Outcome, telling: Telling, matching: Iterable[str] = ()) -> Iterator[str]:
    """Faults, users' acts and the changes of the objects at stake, in one order of time, up to the first breach.

    `matching` adds objects by name, and then everything about them is told.
    """
    wanted = tuple(matching)
    about = list(outcome.objects)
    for text in wanted:
        about += [event.key for event in telling.history.matching(text)]
    ends_s = math.inf if wanted or not outcome.violations else outcome.violations[0].at_s
    events = [event for event in telling.history.of(about) if event.at_s <= ends_s]
    if not wanted and len(events) > EVENTS_SHOWN:
        left_out = len(events) - EVENTS_SHOWN
        events = events[-EVENTS_SHOWN:]
        yield f"… ({left_out} earlier changes of these objects are left out; --about TEXT shows all of some object)"
    faults, acts = [f for f in telling.struck if f.at_s <= ends_s], _acts_about(telling, about, ends_s)
    if len(faults) > FAULTS_SHOWN and events:
        faults = [fault for fault in faults if fault.at_s >= events[0].at_s - 5.0][-FAULTS_SHOWN:]
    rows = [
        *((f.at_s, f"* {f}") for f in faults),
        *((a.at_s, f"> {a}") for a in acts),
        *((e.at_s, f"  {e}") for e in events),
    ]
    for _, text in sorted(rows, key=lambda row: row[0]):
        yield text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]}…"
    for violation in outcome.violations[:1]:
        yield f"! {violation.at_s:9.3f} s  {violation.promise}: {violation.what}"


def _acts_about(telling: Telling, keys: list[str], ends_s: float) -> list[Struck]:
    """What users did to what is at stake; everything they did when that is little."""
    acts = [act for act in telling.acts if act.at_s <= ends_s]
    if len(acts) <= ACTS_SHOWN:
        return acts
    return [
        act
        for act in acts
        if any(f"/{name}" in key for name in _NAME.findall(f"{act.name} {act.what}") for key in keys)
    ]
