"""What happened, told so that a stranger can follow it: the faults that struck and the history of what is at stake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.sim.world import Outcome, Telling

EVENTS_SHOWN = 80
FAULTS_SHOWN = 60
LINE_CHARS = 260


def headline(outcome: Outcome) -> str:
    verdict = "ok" if outcome.ok else "FAILED"
    return (
        f"seed {outcome.seed}: {verdict}; {outcome.simulated_s:.0f} s simulated, settled in "
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
    "oscillation": "an object that goes to and fro while nobody asks for a change",
    "load": "more writes than what happens can explain",
    "tenancy": "one tenant seeing what is another's",
}
"""What each check says must never be, for whoever reads a story without the rest."""


def complaints(outcome: Outcome) -> Iterator[str]:
    """What is wrong, most serious first; a promise is explained where it is first named."""
    told: set[str] = set()
    for violation in outcome.violations:
        yield str(violation)
        if violation.promise not in told and violation.promise in NEVER:
            yield f"  ({violation.promise} means: never {NEVER[violation.promise]})"
        told.add(violation.promise)
    for line in outcome.unsettled:
        yield f"not settled after {outcome.settled_in_s:.0f} s: {line}"
    for line in outcome.failures:
        yield f"a part failed: {line}"


def timeline(outcome: Outcome, telling: Telling, matching: Iterable[str] = ()) -> Iterator[str]:
    """Faults and the changes of the objects at stake, in one order of time. `matching` adds objects by name."""
    about = list(outcome.objects)
    for text in matching:
        about += [event.key for event in telling.history.matching(text)]
    events = telling.history.of(about)
    faults = [(f.at_s, f"{f}"[:LINE_CHARS]) for f in telling.struck]
    if not tuple(matching) and len(events) > EVENTS_SHOWN:
        events = events[-EVENTS_SHOWN:]
        yield f"… (the last {EVENTS_SHOWN} changes; --about TEXT shows all of some object)"
    if len(faults) > FAULTS_SHOWN and events:
        first_s = events[0].at_s
        faults = [row for row in faults if row[0] >= first_s - 5.0][:FAULTS_SHOWN]
    rows = [*((at_s, f"* {text}") for at_s, text in faults), *((e.at_s, f"  {e}"[:LINE_CHARS]) for e in events)]
    for _, text in sorted(rows, key=lambda row: row[0]):
        yield text
