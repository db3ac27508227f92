"""Answers `report.QUESTIONS` about an incident from recorded object changes, events, decisions and counters. Pure.

If nothing was recorded for a question, the answer says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.drills.change_recorder import RecordedChange, group_value
from holdfast.drills.counters import CounterReadings
from holdfast.drills.ongoing_work import without_ongoing_work
from holdfast.drills.platform_observer import Item
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.override import is_break_glass
from holdfast.model.replica import Replica

FIELDS_MAX = 4
TEXT_CHARS_MAX = 240
LIST_CHARS_MAX = 80
DESIRED_STATE_KINDS = frozenset(
    {"Workload", "Assignment", "Override", "SchedulerPolicy", "PolicyRevision", "RecoveryBudget", "Quota", "Node"}
)
NON_CONTROLLER_ROLES = frozenset({"agent", "region", "link", "operator", "user"})
"""Roles that report or request. All other roles are controllers."""
SUMMARIES: dict[str, frozenset[str]] = {
    "GrantCopy": frozenset({"metadata", "spec", "status"}),
    "Grant": frozenset({"metadata", "status"}),
    "Quota": frozenset({"status"}),
    "RecoveryBudget": frozenset({"status"}),
    "SchedulerPolicy": frozenset({"status"}),
    "Workload": frozenset({"metadata", "status", "status.backing"}),
}
"""Field groups that only summarize or copy other changes, by kind. Writing them is no decision."""
HEARTBEAT_FIELDS = frozenset({"lastContactAt", "lastSequence", "at", "sequence", "attempts", "nextRetryAt", "position"})
"""Status fields that change without any event."""


def desired_state_changes(steps: Sequence[RecordedChange]) -> list[str]:
    """Spec changes with their writer; created and deleted replicas as counts."""
    answers = [
        f"+{s.at_s:.1f} s {s.cell}: {writer_text(s)}{s.op} {s.subject}{changed_fields(s, 'spec')}"
        for s in steps
        if s.kind in DESIRED_STATE_KINDS
        and s.op not in ("lost", "found")
        and (s.op != "changed" or any(g.startswith("spec") for g in s.groups))
    ]
    answers += _replaced_stores(steps)
    counted = Counter((s.cell, s.op) for s in steps if s.kind == "Replica" and s.op != "changed")
    told_last = [f"{cell}: replicate {op} {n} replica(s)" for (cell, op), n in sorted(counted.items())]
    return [*answers, *told_last] or ["none: no spec changed in any cell"]


def _replaced_stores(steps: Sequence[RecordedChange]) -> Iterator[str]:
    """Objects that a cell lost or got back because its store was replaced."""
    groups: dict[tuple[str, str, int], list[RecordedChange]] = {}
    for step in steps:
        if step.op in ("lost", "found"):
            groups.setdefault((step.cell, step.op, step.lineage), []).append(step)
    for (cell, op, _), group in groups.items():
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(s.kind for s in group).items()))
        done = "the store was replaced and lacks" if op == "lost" else "the replaced store has again"
        yield f"+{group[0].at_s:.1f} s {cell}: {done} {kinds}"


def first_controllers(steps: Sequence[RecordedChange]) -> list[str]:
    """The controllers that wrote after the failure, in order, each with its first write. Work that goes on by itself
    meanwhile is left out."""
    first_changes: dict[str, RecordedChange] = {}
    for step in without_ongoing_work(steps):
        if held_work_text(step):
            for role in step.roles:
                first_changes.setdefault(role, step)
        elif is_controller_decision(step):
            for role in step.roles:
                if role not in NON_CONTROLLER_ROLES:
                    first_changes.setdefault(role, step)
    lines = [
        f"+{s.at_s:.1f} s {role} ({s.cell}) {s.op} {s.subject}{_held_fields(s) or changed_fields(s)}{_asked_by(s)}"
        for role, s in first_changes.items()
    ]
    return [*(lines or ["none: no controller wrote"]), *_unobserved(steps)]


def held_work_text(step: RecordedChange) -> str:
    """The decision of a region to hold its work or to let it go, because it does not recognize the global cell; empty
    if the change is none. It is the one decision of the link. Other regions' copies say the same."""
    old, new = condition(step.before, "HoldsWork"), condition(step.after, "HoldsWork")
    if step.kind != "Region" or step.name != step.cell or step.after is None or old == new:
        return ""
    return f"HoldsWork {_condition_text(old)} → {_condition_text(new)}"


def _held_fields(step: RecordedChange) -> str:
    return f" ({text})" if (text := held_work_text(step)) else ""


def condition(item: Item | None, name: str) -> tuple[str, str] | None:
    """Status and reason of a condition; None if the object does not have it."""
    conditions: list[dict[str, Any]] = (item or {}).get("status", {}).get("conditions", [])
    return next(((c["status"], c.get("reason", "")) for c in conditions if c["type"] == name), None)


def _condition_text(found: tuple[str, str] | None) -> str:
    return "unset" if found is None else " ".join(found)


def _unobserved(steps: Sequence[RecordedChange]) -> Iterator[str]:
    """Cells whose store was replaced: their commits until the next list were not observed."""
    latest = {s.cell: s.at_s for s in steps if s.op in ("lost", "found")}
    for cell, at_s in latest.items():
        yield f"not observed: some changes in {cell} before +{at_s:.1f} s, because its store was replaced"


def _asked_by(step: RecordedChange) -> str:
    return f", for {_person_or_role(step.requested_by)}" if step.requested_by else ""


def is_controller_decision(step: RecordedChange) -> bool:
    """Whether the change is a controller's decision: no report, summary, heartbeat or completed deletion."""
    if (
        step.op in ("deleted", "lost", "found")
        or is_heartbeat_only(step)
        or set(step.groups) <= SUMMARIES.get(step.kind, frozenset())
    ):
        return False
    return any(role not in NON_CONTROLLER_ROLES for role in step.roles)


def partial_progress(steps: Sequence[RecordedChange]) -> list[str]:
    """Stages that replicas reached with times, pending reasons, progress of recoveries, and repairs."""
    lines = [*_stages(steps), *_pending_lines(steps), *_recoveries(steps), *_repairs(steps)]
    return lines or ["none: nothing was in progress"]


def _stages(steps: Sequence[RecordedChange]) -> Iterator[str]:
    reached: dict[str, list[float]] = {}
    last: dict[str, Stage] = {}
    for step in steps:
        if step.kind != "Replica" or step.after is None:
            continue
        new = stage(msgspec.convert(step.after, Replica))
        uid = step.after["metadata"]["uid"]
        old = last.get(uid)
        if old is None and step.before is not None:
            old = stage(msgspec.convert(step.before, Replica))
        if new is not old:
            reached.setdefault(new.value, []).append(step.at_s)
        last[uid] = new
    order = {s.value: i for i, s in enumerate(Stage)}
    for name, times in sorted(reached.items(), key=lambda pair: order[pair[0]]):
        yield f"{name}: {len(times)} replica(s), first +{times[0]:.1f} s, last +{times[-1]:.1f} s"


def _pending_lines(steps: Sequence[RecordedChange]) -> list[str]:
    found: dict[str, float] = {}
    for step in steps:
        if step.kind == "SchedulingRequest" and step.after is not None:
            for reason in step.after.get("status", {}).get("reasons", []):
                found.setdefault(f"{step.namespace}/{step.name} pending: {reason['reason']}", step.at_s)
    return [f"+{at_s:.1f} s {text}" for text, at_s in found.items()]


def _recoveries(steps: Sequence[RecordedChange]) -> Iterator[str]:
    latest: dict[str, Item] = {s.name: s.after for s in steps if s.kind == "Recovery" and s.after is not None}
    for name, recovery in latest.items():
        for row in recovery.get("status", {}).get("workloads", []):
            known = {k: v for k, v in row.items() if isinstance(v, int | str) and k not in ("tenant", "workload")}
            yield f"Recovery {name}: {row['tenant']}/{row['workload']} {_pairs_text(known)}"


def _repairs(steps: Sequence[RecordedChange]) -> list[str]:
    found = []
    for step in steps:
        if step.kind == "Replica" and "status.repair" in step.groups and step.after is not None:
            block = step.after.get("status", {}).get("repair") or {}
            text = f"{block.get('reason')} {block.get('state')}: {block.get('message')}" if block else "withdrawn"
            found.append(f"+{step.at_s:.1f} s repair of {step.namespace}/{step.name}: {text}")
    return found


def telemetry_lines(
    moved: CounterReadings, events: Iterable[tuple[str, Item]], steps: Sequence[RecordedChange]
) -> list[str]:
    """Increased counters, emitted events and recorded decisions."""
    lines = [
        f"{cell}: {series} +{value:g}" for (cell, series), value in sorted(moved.items()) if _is_informative(series)
    ]
    counts = Counter((cell, e.get("reportingComponent", ""), e["reason"]) for cell, e in events)
    spoken = [
        f"{cell}: event {reason} by {component}, {_times(n)}" for (cell, component, reason), n in counts.most_common()
    ]
    made = Counter(
        (s.cell, s.after["spec"].get("policyRevision", ""))
        for s in steps
        if s.kind == "Decision" and s.op == "created" and s.after is not None
    )
    decided = [f"{cell}: {n} Decision(s) by policy revision {revision}" for (cell, revision), n in made.items()]
    return [*lines, *spoken, *decided] or ["none: no counter increased and no event was emitted"]


def _is_informative(series: str) -> bool:
    """Whether the series is significant. Some counters increase all the time."""
    usual = 'result="Accepted",verb="renew"' in series
    return not usual and not series.startswith(("holdfast_store_", "holdfast_gate_commits"))


def writer_text(step: RecordedChange) -> str:
    """The writer with a trailing space; empty if it is unknown. The authority is named with the role that asked it."""
    human_roles = {"operator", "user"}
    if not step.audited and step.kind == "Override" and not is_break_glass(step.name):
        human_roles.add("region")  # a region writes only break-glass overrides
    if step.roles and set(step.roles) <= human_roles:
        return "a user "
    asked = f"for {_person_or_role(step.requested_by)} " if step.requested_by else ""
    return f"{step.roles[0]} {asked}" if len(step.roles) == 1 else ""


def _person_or_role(role: str) -> str:
    return "a user" if role in ("operator", "user") else role


def old_value(step: RecordedChange, *path: str) -> Any:
    return _at(step.before, path)


def new_value(step: RecordedChange, *path: str) -> Any:
    return _at(step.after, path)


def _at(item: Any, path: Sequence[str]) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def changed_fields(step: RecordedChange, under: str = "") -> str:
    """The changed fields with old and new values."""
    if step.op != "changed" or step.after is None:
        return ""
    groups = [g for g in step.groups if g.startswith(under)] if under else list(step.groups)
    found: list[str] = []
    for group in groups:
        old, new = group_value(step.kind, step.before or {}, group), group_value(step.kind, step.after, group)
        found += [text for text in _differences(old, new, group.rpartition(".")[2]) if not _is_minor(group, text)]
    shown = "; ".join(found[:FIELDS_MAX])
    return f" ({shown[:TEXT_CHARS_MAX]})" if shown else ""


def _is_heartbeat(group: str, text: str) -> bool:
    return group.startswith("status") and text.partition(" ")[0].rpartition(".")[2] in HEARTBEAT_FIELDS


def _is_minor(group: str, text: str) -> bool:
    """Whether a changed field says nothing about the change: heartbeats, and conditions, which repeat other fields."""
    return _is_heartbeat(group, text) or text.startswith("status.conditions ")


def is_heartbeat_only(step: RecordedChange) -> bool:
    """Whether the change updates only heartbeat fields."""
    if step.op != "changed" or step.after is None:
        return False
    for group in step.groups:
        old, new = group_value(step.kind, step.before or {}, group), group_value(step.kind, step.after, group)
        if not all(_is_heartbeat(group, text) for text in _differences(old, new, group.rpartition(".")[2])):
            return False
    return True


def _differences(old: Any, new: Any, name: str) -> Iterator[str]:
    if isinstance(old, dict) or isinstance(new, dict):
        old_fields, new_fields = old or {}, new or {}
        if isinstance(old_fields, dict) and isinstance(new_fields, dict):
            for key in sorted({*old_fields, *new_fields}):
                if old_fields.get(key) != new_fields.get(key):
                    yield from _differences(old_fields.get(key), new_fields.get(key), f"{name}.{key}")
            return
    if isinstance(old, list) or isinstance(new, list):
        yield f"{name} {_list_text(old)} → {_list_text(new)}"
    else:
        yield f"{name} {old if old is not None else 'unset'} → {new if new is not None else 'unset'}"


def _list_text(value: Any) -> str:
    """A list as compact JSON, cut to `LIST_CHARS_MAX`."""
    text = msgspec.json.encode(value).decode() if value else "none"
    return text if len(text) <= LIST_CHARS_MAX else f"{text[:LIST_CHARS_MAX]}…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _pairs_text(known: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in known.items())
