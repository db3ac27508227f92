"""Answers which repair or rollback path an incident took, from recorded object changes and counters. Pure.

The path is what the platform and its users did between the failure and the drill's own undo: states of nodes, regions,
recoveries, overrides, policies, elections and the autoscaler, released and replaced replicas, refused proposals, and
the time at which each workload served fully again. The drill's undo is listed apart, after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.drills.change_recorder import RecordedChange
from holdfast.drills.counters import CounterReadings
from holdfast.drills.incident_questions import (
    changed_fields,
    condition,
    held_work_text,
    new_value,
    old_value,
    writer_text,
)
from holdfast.drills.platform_observer import Item
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.quantity import Amounts, amounts, amounts_text
from holdfast.model.replica import Replica

NO_REPAIR = "none: no repair or rollback was recorded"
STATE_FIELDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Node": (("status", "contact", "state"), ("status", "fence", "fencedEpoch"), ("spec", "drain")),
    "Region": (("status", "health", "state"), ("status", "report", "policy")),
    "Recovery": (("status", "phase"),),
    "Override": (("status", "phase"), ("spec", "revoked")),
    "Workload": (("status", "scale", "reason"), ("status", "scale", "replicas")),
    "Assignment": (("spec", "suspended"), ("spec", "replicas")),
}
"""Fields whose changes are steps of a path, by kind."""
ELECTIONS = ("authority", "controllers")
"""Terms of elections. The others count identities of the global cell."""
ANSWERED = "holdfast_authority_responses_total"
UNCHANGED_RESULTS = ("Rejected", "Already")
"""Answers of the authority that change nothing: a refused proposal, and a repeated one."""


class _Line(msgspec.Struct, frozen=True):
    at_s: float
    text: str


def recovery_path(
    steps: Sequence[RecordedChange], answers: CounterReadings, undone: Sequence[str], left: Sequence[str]
) -> list[str]:
    """`steps` are the changes until the undo, `answers` the counters increased by then, `undone` the drill's own undo,
    `left` the resources that are not returned."""
    found = [
        *_states(steps),
        *_terms(steps),
        *_policies(steps),
        *_reverted(steps),
        *_grants(steps),
        *_releases(steps),
        *_replacements(steps),
        *_serving_again(steps),
    ]
    lines = [f"+{line.at_s:.1f} s {line.text}" for line in sorted(found, key=lambda line: line.at_s)]
    lines += _unchanged_answers(answers)
    checked = "cleanup check: all resources returned" if not left else f"cleanup check: {len(left)} not returned"
    return [*(lines or [NO_REPAIR]), *(f"undone by the drill: {what}" for what in undone), checked]


def _states(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    """Changed states, and deleted or new recovery Assignments."""
    for step in steps:
        if step.kind == "Region" and step.cell != "global":
            yield from _held_work(step)
            continue
        for path in STATE_FIELDS.get(step.kind, ()):
            old, new = old_value(step, *path), new_value(step, *path)
            if step.op == "changed" and old != new:
                change = f"{path[-1]} {_shown(old)} → {_shown(new)}"
                yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): {step.subject} {change}")
        created = step.op == "created" and step.kind in ("Recovery", "Override")
        recovers = step.kind == "Assignment" and new_value(step, "spec", "purpose") == "Recovery"
        if created or (recovers and step.op == "created"):
            replicas = new_value(step, "spec", "replicas")
            amount = f", {replicas} replica(s)" if recovers else ""
            yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): created {step.subject}{amount}")


def _held_work(step: RecordedChange) -> Iterator[_Line]:
    if text := held_work_text(step):
        yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): {step.subject} {text}")


def _terms(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    for step in steps:
        if step.kind == "Term" and step.op in ("created", "changed"):
            old, new = old_value(step, "spec", "term"), new_value(step, "spec", "term")
            what = "a new leader of" if step.name in ELECTIONS else "recognizes another"
            yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): {what} {step.name}, term {old} → {new}")


def _policies(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    for step in steps:
        if step.kind == "SchedulerPolicy" and step.op in ("created", "changed") and "spec" in step.groups:
            yield _Line(
                step.at_s, f"{writer_text(step)}({step.cell}): {step.op} {step.subject}{changed_fields(step, 'spec')}"
            )
        if step.kind == "PolicyRevision" and step.op in ("created", "changed"):
            sequence = new_value(step, "spec", "sequence")
            if sequence != old_value(step, "spec", "sequence"):
                what = f"{writer_text(step)}({step.cell}): published {step.name} as sequence {sequence}"
                yield _Line(step.at_s, what)


def _reverted(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    for step in steps:
        if step.kind == "Override" and step.after is not None:
            old, new = condition(step.before, "Reverted"), condition(step.after, "Reverted")
            if new and old != new:
                what = f"{step.subject} Reverted {new[0]}, {new[1]}"
                yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): {what}")


def _grants(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    """Changed limits of recovery and emergency grants, which end with the incident."""
    for step in steps:
        which = new_value(step, "spec", "grantClass") or old_value(step, "spec", "grantClass")
        if step.kind == "Grant" and which in ("Recovery", "Emergency"):
            old = amounts(old_value(step, "spec", "limit") or {})
            new = amounts(new_value(step, "spec", "limit") or {})
            if old != new:
                change = f"{_amounts(old)} → {_amounts(new)}"
                yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): {which} {step.subject} {change}")


def _amounts(found: Amounts) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts_text(found).items()) or "nothing"


def _releases(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    """Release decisions and repair findings, summed by writer, cell and reason."""
    found: dict[tuple[str, str, str, str], list[RecordedChange]] = {}
    for step in steps:
        if step.kind != "Replica" or step.op != "changed":
            continue
        for block, fields in (("release", ("reason",)), ("repair", ("reason", "state"))):
            new, old = new_value(step, "status", block), old_value(step, "status", block)
            if new and new != old:
                text = " ".join(str(new.get(field, "")) for field in fields)
                found.setdefault((writer_text(step), step.cell, block, text), []).append(step)
    for (writer, cell, block, text), group in found.items():
        names = _names(f"{step.namespace}/{step.name}" for step in group)
        decided = "released" if block == "release" else "repair of"
        yield _Line(group[0].at_s, f"{writer}({cell}): {decided} {names}: {text}{_until(group)}")


def _replacements(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    """Replicas bound again after a release, summed by cell, old and new node."""
    found: dict[tuple[str, str, str, str], list[RecordedChange]] = {}
    last: dict[str, str] = {}
    for step in steps:
        if step.kind != "Replica" or step.after is None:
            continue
        uid = step.after["metadata"]["uid"]
        old, new = old_value(step, "status", "placement") or {}, new_value(step, "status", "placement") or {}
        if old.get("node"):
            last[uid] = old["node"]
        if new.get("node") and not old.get("node") and (uid in last or new.get("attempt", 1) > 1):
            found.setdefault((writer_text(step), step.cell, last.get(uid, "?"), new["node"]), []).append(step)
    for (writer, cell, source, target), group in found.items():
        names = _names(f"{step.namespace}/{step.name}" for step in group)
        yield _Line(group[0].at_s, f"{writer}({cell}): bound {names} again, {source} → {target}{_until(group)}")


def _serving_again(steps: Iterable[RecordedChange]) -> Iterator[_Line]:
    """When as many replicas of a workload began to serve in a region as had stopped, and when the workload served all
    its replicas by the global cell's summary."""
    stopped: dict[tuple[str, str], int] = {}
    missing: dict[tuple[str, str], int] = {}
    short: dict[str, int] = {}
    for step in steps:
        if step.kind == "Replica":
            before, after = _serves(step.before), _serves(step.after)
            key = (step.cell, f"{step.namespace}/{(step.after or step.before or {})['spec']['workload']}")
            missing[key] = max(0, missing.get(key, 0) + before - after)
            stopped[key] = max(stopped.get(key, 0), missing[key])
            if stopped[key] and not missing[key]:
                what = f"{key[1]} serves with as many replicas again ({stopped.pop(key)} had stopped)"
                yield _Line(step.at_s, f"serve ({key[0]}): {what}")
        elif step.kind == "Workload" and step.after is not None and new_value(step, "status", "summary"):
            if old_value(step, "spec") != new_value(step, "spec"):
                short.pop(f"{step.namespace}/{step.name}", None)
                continue
            wanted, serving = step.after["spec"].get("replicas", 1), _serving(step.after)
            name = f"{step.namespace}/{step.name}"
            if serving < min(wanted, _serving(step.before)):
                short[name] = min(short.get(name, wanted), serving)
            if serving >= wanted and name in short:
                what = f"{name} serves {serving} of {wanted} replicas again (fewest {short.pop(name)})"
                yield _Line(step.at_s, f"{writer_text(step)}({step.cell}): {what}")


def _serving(workload: Item | None) -> int:
    return int((workload or {}).get("status", {}).get("summary", {}).get("serving", 0))


def _unchanged_answers(answers: CounterReadings) -> list[str]:
    """Proposals that the authority refused, or answered from its records."""
    lines = []
    for (cell, series), value in sorted(answers.items()):
        labels = _labels(series)
        if series.startswith(ANSWERED) and labels.get("result") in UNCHANGED_RESULTS:
            reason = f", {labels['reason']}" if labels.get("reason") else ""
            lines.append(
                f"authority ({cell}): answered {labels['verb']} with {labels['result']}{reason}, {value:g} time(s)"
            )
    return lines


def _labels(series: str) -> dict[str, str]:
    inner = series.partition("{")[2].rstrip("}")
    pairs = (part.partition("=") for part in inner.split(",") if part)
    return {name: value.strip('"') for name, _, value in pairs}


def _serves(replica: Item | None) -> bool:
    return replica is not None and stage(msgspec.convert(replica, Replica)) is Stage.SERVING


def _names(names: Iterable[str]) -> str:
    """One name, or a number of objects with the first name."""
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else f"{len(unique)} replicas ({unique[0]} …)"


def _until(group: Sequence[RecordedChange]) -> str:
    return f", the last at +{group[-1].at_s:.1f} s" if group[-1].at_s - group[0].at_s >= 0.1 else ""


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
