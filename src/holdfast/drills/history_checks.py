"""Invariants checked on the whole recorded history: every version of every recorded object."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.drills.change_recorder import RecordedChange


def check_unique_bindings(steps: Sequence[RecordedChange]) -> tuple[list[str], int]:
    """S1: no replica identity has two live Bindings at any revision. Returns violations and the number of versions."""
    live: dict[tuple[str, str], dict[str, None]] = {}
    where: dict[str, str] = {}
    found: list[str] = []
    checked = 0
    for step in steps:
        if step.kind != "Binding":
            continue
        checked += 1
        shown = step.after or step.before
        if shown is None:
            continue
        binding = shown["metadata"]["uid"]
        spec = shown["spec"]
        key = (step.cell, spec["intent"]["replicaUid"])
        where[binding] = f"{step.name} on {spec['node']}"
        stands = step.after is not None and not spec.get("quotaReleased") and spec.get("desired", "Run") == "Run"
        if stands:
            live.setdefault(key, {})[binding] = None
        else:
            live.get(key, {}).pop(binding, None)
        if len(live.get(key, {})) > 1:
            both = " and ".join(where[b] for b in live[key])
            found.append(f"S1: replica {key[1]} was bound twice in {step.cell} at revision {step.revision}: {both}")
    return found, checked


def check_immutable_decisions(steps: Sequence[RecordedChange]) -> tuple[list[str], int]:
    """S10: Decisions, and node, intent and policy revision of Bindings never change."""
    found: list[str] = []
    checked = 0
    for step in steps:
        if step.op != "changed" or step.before is None or step.after is None:
            continue
        if step.kind == "Decision":
            checked += 1
            if step.before["spec"] != step.after["spec"]:
                found.append(f"S10: {step.subject} in {step.cell} was changed at revision {step.revision}")
        if step.kind in ("Binding", "Reservation"):
            checked += 1
            for field in ("node", "intent", "policyRevision", "devices"):
                old, new = step.before["spec"].get(field), step.after["spec"].get(field)
                if old != new:
                    found.append(f"S10: {field} of {step.subject} in {step.cell} changed from {old} to {new}")
    return found, checked


def check_attempts_increase(steps: Sequence[RecordedChange]) -> tuple[list[str], int]:
    """A replica's attempt never decreases, so an old intent stays invalid."""
    highest: dict[str, int] = {}
    found: list[str] = []
    checked = 0
    for step in steps:
        if step.kind != "Replica" or step.after is None:
            continue
        checked += 1
        uid = step.after["metadata"]["uid"]
        attempt = int(step.after.get("status", {}).get("placement", {}).get("attempt", 1))
        if attempt < highest.get(uid, 0):
            found.append(f"the attempt of {step.subject} decreased from {highest[uid]} to {attempt}")
        highest[uid] = max(attempt, highest.get(uid, 0))
    return found, checked
