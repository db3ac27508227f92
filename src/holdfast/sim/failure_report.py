"""Failure report: the violated invariant, its writer and the expected behaviour, then a timeline of faults, user
actions and changes of the involved objects, in seconds before the violation.

The report fits on a screen unless the full one is requested. It says how much is omitted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.sim.commit_history import HistoryEvent
from holdfast.sim.fault_injection import InjectedFault
from holdfast.sim.report_wording import INVARIANTS, describe_fault, describe_user_action, with_object_names
from holdfast.sim.simulation import RunOutcome, RunRecording


class ReportSize(NamedTuple):
    """Limits of a report: object changes, faults, user actions, fields per change, and characters per line."""

    events: int
    faults: int
    user_actions: int
    fields: int
    chars: int


SCREEN = ReportSize(events=24, faults=12, user_actions=12, fields=4, chars=230)
FULL = ReportSize(events=1000, faults=1000, user_actions=1000, fields=12, chars=1000)
FAILURES_SHOWN = 3
UNCONVERGED_SHOWN = 5
OBJECTS_SHOWN = 4
LEGEND = (
    "times: seconds before (-) the violation or the end; * fault (kind@site#operation or kind#number), > user action, "
    "! violation,\n"
    "= end of the fault phase; other lines: cell, writer, object, change (terms: docs/glossary.md)"
)
_NAME = re.compile(r"[a-z0-9]+/[a-z0-9]+")


def headline(outcome: RunOutcome) -> str:
    verdict = "ok" if outcome.ok else "FAILED"
    base = f", from scenario {outcome.base_scenario}" if outcome.base_scenario else ""
    return (
        f"seed {outcome.seed}{base}: {verdict}; {outcome.simulated_s:.0f} s simulated, converged in "
        f"{outcome.converged_in_s:.0f} s, {outcome.commits} commits, {outcome.steps} steps, "
        f"{sum(outcome.faults.values())} faults, digest {outcome.digest}"
    )


def failure_lines(outcome: RunOutcome, most: int = 1000) -> Iterator[str]:
    """The failures, most serious first. An invariant is explained where it is first named."""
    explained: set[str] = set()
    for violation in outcome.violations[:most]:
        yield str(violation)
        if violation.invariant not in explained and violation.invariant in INVARIANTS:
            yield f"  ({violation.invariant} forbids {INVARIANTS[violation.invariant].forbids})"
        explained.add(violation.invariant)
    if len(outcome.violations) > most:
        yield f"… and {len(outcome.violations) - most} later violations"
    for line in outcome.unconverged:
        yield f"not converged after {outcome.converged_in_s:.0f} s: {line}"
    for line in outcome.failures:
        yield f"a component failed: {line}"


def summary_lines(outcome: RunOutcome) -> Iterator[str]:
    """The first failure in four rows: invariant, writer, observation and expectation."""
    if outcome.violations:
        first = outcome.violations[0]
        where = "the global cell" if first.cell == "global" else first.cell
        kind, writer = (
            first.invariant,
            f"{first.writer}, in {where}" if first.writer else f"unknown; observed in {where}",
        )
        when = f", {first.at_s:.3f} s after the start"
        observed = [with_object_names(first.message)]
    elif outcome.failures:
        kind, writer, when, observed = "failure", "a component", "", list(outcome.failures)
    else:
        kind, writer = "convergence", "none"
        when, observed = f", for {outcome.converged_in_s:.0f} s without faults", list(outcome.unconverged)
    invariant = INVARIANTS.get(kind)
    if invariant is not None:
        yield f"invariant       {kind}: no {invariant.forbids.removeprefix('a ').removeprefix('an ')}"
    yield f"violated by     {writer}{when}"
    for number, line in enumerate(observed[:UNCONVERGED_SHOWN]):
        yield f"{'observed' if not number else '':16}{line}"
    if len(observed) > UNCONVERGED_SHOWN:
        yield f"{'':16}… and {len(observed) - UNCONVERGED_SHOWN} more of these"
    if invariant is not None:
        yield f"expected        {invariant.requires}"
    for violation in outcome.violations[1:FAILURES_SHOWN]:
        yield f"{'later':16}{violation.invariant} in {violation.cell}: {with_object_names(violation.message)}"
    if len(outcome.violations) > FAILURES_SHOWN:
        yield f"{'':16}… and {len(outcome.violations) - FAILURES_SHOWN} later violations"


def timeline(
    outcome: RunOutcome, recording: RunRecording, matching: Iterable[str] = (), frame: ReportSize = SCREEN
) -> Iterator[str]:
    """Faults, user actions and changes of the involved objects in order of time, up to the first violation.

    `matching` adds objects by name and selects the full report.
    """
    selected = tuple(matching)
    frame = FULL if selected else frame
    about = list(outcome.objects if frame is FULL else _involved_objects(outcome))
    for text in selected:
        about += [event.key for event in recording.history.matching(text)]
    violation_s = outcome.violations[0].at_s if outcome.violations else None
    ends_s = math.inf if selected or violation_s is None else violation_s
    zero_s = violation_s if violation_s is not None else outcome.simulated_s
    events, left_out = _last_changes(recording.history.events_of(about), ends_s, frame)
    if left_out:
        yield f"… ({left_out} earlier changes of these objects are omitted; --whole prints all)"
    faults = [fault for fault in recording.injected if fault.at_s <= ends_s]
    if len(faults) > frame.faults:
        yield f"… ({len(faults) - frame.faults} earlier faults are omitted; --whole prints all)"
        faults = faults[-frame.faults :]
    known: set[str] = set()
    rows = [
        *((f.at_s, "*", _explained(f, _text_once(describe_fault(f.name), known))) for f in faults),
        *(
            (a.at_s, ">", _explained(a, describe_user_action(f"{a.name}: {a.detail}")))
            for a in _user_actions_shown(recording, about, ends_s, frame)
        ),
        *((e.at_s, " ", text) for e, text in events),
    ]
    if 0.0 < recording.healed_s <= ends_s:
        rows.append((recording.healed_s, "=", "the fault phase ends; the system must converge"))
    for at_s, mark, text in sorted(rows, key=lambda row: row[0]):
        line = f"{mark} {at_s - zero_s:9.3f} s  {text}"
        yield line if len(line) <= frame.chars else f"{line[: frame.chars]}…"
    for violation in outcome.violations[:1]:
        yield f"! {0.0:9.3f} s  {violation.invariant} is violated: {with_object_names(violation.message)}"
    if outcome.unconverged and not outcome.violations:
        yield f"! {0.0:9.3f} s  not converged: {'; '.join(outcome.unconverged[:FAILURES_SHOWN])}"


def _involved_objects(outcome: RunOutcome) -> tuple[str, ...]:
    """Objects of the first violation, or the first few objects that did not converge."""
    return outcome.violations[0].objects if outcome.violations else outcome.objects[:OBJECTS_SHOWN]


def _last_changes(
    events: list[HistoryEvent], ends_s: float, frame: ReportSize
) -> tuple[list[tuple[HistoryEvent, str]], int]:
    """The last significant changes as text, and the number of earlier ones."""
    found: list[tuple[HistoryEvent, str]] = []
    earlier = [event for event in events if event.at_s <= ends_s]
    while earlier and len(found) < frame.events:
        event = earlier.pop()
        if event.changes_text(frame.fields):
            found.append((event, event.line(frame.fields)))
    return found[::-1], len(earlier)


def _text_once(text: str, known: set[str]) -> str:
    """The text on its first use, later an empty string."""
    if text in known:
        return ""
    known.add(text)
    return text


def _explained(thing: InjectedFault, text: str) -> str:
    what = f": {thing.detail}" if thing.detail else ""
    return f"{thing.name}{what} ({text})" if text else f"{thing.name}{what}"


def _user_actions_shown(
    recording: RunRecording, keys: list[str], ends_s: float, frame: ReportSize
) -> list[InjectedFault]:
    """User actions on the involved objects; all actions if they are few."""
    acts = [act for act in recording.user_actions if act.at_s <= ends_s]
    if len(acts) <= frame.user_actions:
        return acts
    return [
        act
        for act in acts
        if any(f"/{name}" in key for name in _NAME.findall(f"{act.name} {act.detail}") for key in keys)
    ]
