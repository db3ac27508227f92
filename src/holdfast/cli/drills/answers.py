"""The six questions, answered from what was recorded: the history of the objects, events, decisions and counters.

Pure: steps and readings go in, lines come out. What nothing was recorded about says so; no line is made up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.cli.drills.chronicle import Step, part_of
from holdfast.cli.drills.meters import Readings
from holdfast.cli.drills.world import Item
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.override import is_break_glass
from holdfast.model.replica import Replica

LINES = 8
FIELDS = 4
CHARS = 160
DESIRED = frozenset(
    {"Workload", "Assignment", "Override", "SchedulerPolicy", "PolicyRevision", "RecoveryBudget", "Quota", "Node"}
)
NOT_CONTROLLERS = frozenset({"agent", "region", "link", "operator", "user"})
"""Who reports or wishes; everybody else decides."""
BOOKKEEPERS = frozenset({"workload-status", "grant", "backing", "grant-sync", "policy", "rollout"})
"""Controllers that sum up what others did; they act first only where nobody else acts."""

SUMS = frozenset({"GrantCopy", "Grant", "Quota", "RecoveryBudget"})
"""Kinds whose changes add up what others do."""
HEARTBEATS = frozenset({"heardAt", "heardSequence", "at", "sequence"})
"""Fields that move while nothing happens."""


def desired_state(steps: Sequence[Step]) -> list[str]:
    """Changes of what is wanted, by whom; replicas as numbers."""
    told = [
        f"+{s.at_s:.1f} s {s.cell}: {_who(s)}{s.op} {s.subject}{_what(s, 'spec')}"
        for s in steps
        if s.kind in DESIRED and (s.op != "changed" or any(g.startswith("spec") for g in s.groups))
    ]
    counted = Counter((s.cell, s.op) for s in steps if s.kind == "Replica" and s.op != "changed")
    told_last = [f"{cell}: replicate {op} {n} replica(s)" for (cell, op), n in sorted(counted.items())]
    return [*_few(told), *told_last] or ["nothing: no spec changed in any cell"]


def acted_first(steps: Sequence[Step]) -> list[str]:
    """The first controller that wrote after the failure, and who came next, each with its first write."""
    seen: dict[str, Step] = {}
    for step in steps:
        if decided(step):
            for role in step.roles:
                if role not in NOT_CONTROLLERS:
                    seen.setdefault(role, step)
    first = [(r, s) for r, s in seen.items() if r not in BOOKKEEPERS] or list(seen.items())
    lines = [f"+{s.at_s:.1f} s {role} ({s.cell}) {s.op} {s.subject}{_what(s)}" for role, s in first]
    return _few(lines) or ["no controller wrote anything"]


def decided(step: Step) -> bool:
    """Whether a change is a controller's act: not a report, not a sum, not a pulse, not the end of a deletion."""
    if step.op == "deleted" or step.kind in SUMS or only_beats(step):
        return False
    return any(role not in NOT_CONTROLLERS for role in step.roles)


def partial_progress(steps: Sequence[Step]) -> list[str]:
    """Stages that replicas reached and when; what requests waited for; how far recoveries were."""
    lines = [*_stages(steps), *_waits(steps), *_recoveries(steps), *_repairs(steps)]
    return lines or ["nothing was under way"]


def _stages(steps: Sequence[Step]) -> Iterator[str]:
    reached: dict[str, list[float]] = {}
    last: dict[str, Stage] = {}
    for step in steps:
        if step.kind != "Replica" or step.after is None:
            continue
        now = stage(msgspec.convert(step.after, Replica))
        uid = step.after["metadata"]["uid"]
        was = last.get(uid)
        if was is None and step.before is not None:
            was = stage(msgspec.convert(step.before, Replica))
        if now is not was:
            reached.setdefault(now.value, []).append(step.at_s)
        last[uid] = now
    order = {s.value: i for i, s in enumerate(Stage)}
    for name, times in sorted(reached.items(), key=lambda pair: order[pair[0]]):
        yield f"{name}: {len(times)} replica(s), first +{times[0]:.1f} s, last +{times[-1]:.1f} s"


def _waits(steps: Sequence[Step]) -> list[str]:
    found: dict[str, float] = {}
    for step in steps:
        if step.kind == "SchedulingRequest" and step.after is not None:
            for reason in step.after.get("status", {}).get("reasons", []):
                found.setdefault(f"{step.namespace}/{step.name} waits: {reason['reason']}", step.at_s)
    return _few([f"+{at_s:.1f} s {text}" for text, at_s in found.items()])


def _recoveries(steps: Sequence[Step]) -> Iterator[str]:
    latest: dict[str, Item] = {s.name: s.after for s in steps if s.kind == "Recovery" and s.after is not None}
    for name, recovery in latest.items():
        for row in recovery.get("status", {}).get("workloads", [])[:LINES]:
            known = {k: v for k, v in row.items() if isinstance(v, int | str) and k not in ("tenant", "workload")}
            yield f"Recovery {name}: {row['tenant']}/{row['workload']} {_brief(known)}"


def _repairs(steps: Sequence[Step]) -> list[str]:
    found = []
    for step in steps:
        if step.kind == "Replica" and "status.repair" in step.groups and step.after is not None:
            block = step.after.get("status", {}).get("repair") or {}
            said = f"{block.get('reason')} {block.get('state')}: {block.get('message')}" if block else "taken back"
            found.append(f"+{step.at_s:.1f} s repair of {step.namespace}/{step.name}: {said}")
    return _few(found)


def telemetry(moved: Readings, events: Iterable[tuple[str, Item]], steps: Sequence[Step]) -> list[str]:
    """Counters that moved, events that were said, decisions that were recorded."""
    lines = [f"{cell}: {series} +{value:g}" for (cell, series), value in sorted(moved.items()) if _telling(series)]
    said = Counter((cell, e.get("reportingComponent", ""), e["reason"]) for cell, e in events)
    spoken = [f"{cell}: event {reason} by {who}, {_times(n)}" for (cell, who, reason), n in said.most_common(LINES)]
    made = Counter(
        (s.cell, s.after["spec"].get("policyRevision", ""))
        for s in steps if s.kind == "Decision" and s.op == "created" and s.after is not None
    )  # fmt: skip
    decided = [f"{cell}: {n} Decision(s) by policy revision {revision}" for (cell, revision), n in made.items()]
    return [*_few(lines, LINES * 2), *spoken, *decided] or ["no counter moved and no event was said"]


def _telling(series: str) -> bool:
    """Not what moves in any minute anyway."""
    usual = 'result="Accepted",verb="renew"' in series
    return not usual and not series.startswith(("holdfast_store_", "holdfast_gate_commits"))


def way_back(steps: Sequence[Step], left: Sequence[str]) -> list[str]:
    """How things went back: what was ended, lifted or freed after the failure was over, and what the check found."""
    lines = []
    freed: Counter[str] = Counter()
    for step in steps:
        if step.op == "deleted" and step.kind in ("Binding", "Reservation", "Replica"):
            freed[f"{step.cell}: {step.kind}s freed"] += 1
        elif step.kind == "Recovery" and _was(step, "status", "phase") != _is(step, "status", "phase"):
            lines.append(f"+{step.at_s:.1f} s recover: {step.subject} {_is(step, 'status', 'phase')}")
        elif step.kind == "Override" and _was(step, "status", "phase") != _is(step, "status", "phase"):
            now = _is(step, "status", "phase") or "removed from the records"
            lines.append(f"+{step.at_s:.1f} s override: {step.subject} {now}")
        elif step.kind in DESIRED - {"Node"} and (step.op == "deleted" or step.kind == "SchedulerPolicy"):
            lines.append(f"+{step.at_s:.1f} s {step.cell}: {_who(step)}{step.op} {step.subject}{_what(step, 'spec')}")
    checked = "cleanup check: nothing left over" if not left else f"cleanup check: {len(left)} left over"
    return [*_few(lines, LINES * 2), *(f"{what}, {_times(n)}" for what, n in freed.items()), checked]


def _who(step: Step) -> str:
    """The writer, where there is no doubt about it. Whatever people own, a person changed."""
    people = {"operator", "user"}
    if step.kind == "Override" and not is_break_glass(step.name):
        people.add("region")  # a region writes only of those that were given in it
    if step.roles and set(step.roles) <= people:
        return "a person "
    return f"{step.roles[0]} " if len(step.roles) == 1 else ""


def _was(step: Step, *path: str) -> Any:
    return _at(step.before, path)


def _is(step: Step, *path: str) -> Any:
    return _at(step.after, path)


def _at(item: Any, path: Sequence[str]) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _what(step: Step, under: str = "") -> str:
    """The fields that changed, with their old and new values; for a new object what it says first."""
    if step.op != "changed" or step.after is None:
        return ""
    groups = [g for g in step.groups if g.startswith(under)] if under else list(step.groups)
    found: list[str] = []
    for group in groups:
        was, now = part_of(step.kind, step.before or {}, group), part_of(step.kind, step.after, group)
        found += [text for text in _differences(was, now, group.rpartition(".")[2]) if not _beats(text)]
    shown = "; ".join(found[:FIELDS])
    return f" ({shown[:CHARS]})" if shown else ""


def _beats(text: str) -> bool:
    return text.partition(" ")[0].rpartition(".")[2] in HEARTBEATS


def only_beats(step: Step) -> bool:
    """Whether a change says no more than that somebody was heard again."""
    if step.op != "changed" or step.after is None:
        return False
    for group in step.groups:
        was, now = part_of(step.kind, step.before or {}, group), part_of(step.kind, step.after, group)
        if not all(_beats(text) for text in _differences(was, now, group.rpartition(".")[2])):
            return False
    return True


def _differences(was: Any, now: Any, name: str) -> Iterator[str]:
    if isinstance(was, dict) or isinstance(now, dict):
        old, new = was or {}, now or {}
        if isinstance(old, dict) and isinstance(new, dict):
            for key in sorted({*old, *new}):
                if old.get(key) != new.get(key):
                    yield from _differences(old.get(key), new.get(key), f"{name}.{key}")
            return
    if isinstance(was, list) or isinstance(now, list):
        yield f"{name} changed"
    else:
        yield f"{name} {was if was is not None else 'nothing'} → {now if now is not None else 'nothing'}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _brief(known: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in known.items())


def _few(lines: Sequence[str], most: int = LINES) -> list[str]:
    if len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"… and {len(lines) - most} more"]
