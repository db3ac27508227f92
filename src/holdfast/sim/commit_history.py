"""History of all commits of a run by key, and its description: who changed which field, and when.

Texts are computed only on request. Changes of timestamps and renewals alone are not described.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec

from holdfast.model.lifecycle import stage
from holdfast.model.replica import Replica
from holdfast.sim.checkers import ObservedCommit
from holdfast.sim.checkers.ownership import TERM_KEY
from holdfast.sim.report_wording import object_name
from holdfast.store.contract import Txn

FIELDS_MAX = 5
VALUE_CHARS_MAX = 90
TIME_FIELDS = frozenset(
    {
        "lastTransitionTime",
        "since",
        "at",
        "lastContactAt",
        "lastStepAt",
        "renewTime",
        "renewedAt",
        "acquireTime",
        "startedAt",
        "boundAt",
        "reservedAt",
        "assignedAt",
        "queuedAt",
        "readyAt",
        "readySince",
        "servingAt",
        "progressedAt",
        "lastProgressAt",
        "nextRetryAt",
        "nextAt",
        "wakeUpAt",
        "requestedAt",
        "detectedAt",
        "stableSince",
        "idleSince",
        "lastObservedTime",
        "leaseExpiresAt",
        "agentVersion",
        "position",
        "creationTimestamp",
        "generation",
    }
)
"""Timestamps and counters, which change with every write."""
SHOWN_ON_CREATE = (
    ("replicas", "{} replicas"),
    ("ordinals", "ordinals {}"),
    ("region", "in {}"),
    ("replica", "for replica {}"),
    ("node", "on node {}"),
    ("attempt", "attempt {}"),
    ("recoverySlots", "consuming {}"),
    ("limit", "limit {}"),
    ("hard", "hard {}"),
    ("sequence", "sequence {}"),
    ("scores", "weighing {}"),
    ("policyRevision", "by policy {}"),
    ("kind", "{}"),
    ("ttlSeconds", "for {} s"),
    ("epoch", "epoch {}"),
    ("expiresAt", "until {}"),
)


def writer_label(txn: Txn, writer: str) -> str:
    """Short name of the writer. A commit that compares the authority's term is the authority's, for a caller."""
    name = _short_name(writer)
    if any(compare.key == TERM_KEY for compare in txn.compares) and name != "authority":
        return f"authority, for {name}" if name else "authority"
    return name or "unknown"


@cache
def _short_name(writer: str) -> str:
    parts = writer.removeprefix("holdfast:").removeprefix("controller:").split(":")
    return {"node": "agent {}", "hollow": "agent {}", "region": "link of {}"}.get(parts[0], "{}").format(parts[-1])


class HistoryEvent(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    cell: str
    writer: str
    key: str
    old: Any
    new: Any

    def changes_text(self, most: int = FIELDS_MAX) -> str:
        """The changed fields, at most `most`; empty if only timestamps or the observed generation changed."""
        if self.new is None:
            return "removed"
        after = _plain(self.new)
        if self.old is None:
            return ", ".join(("created", *_creation_details(after)))
        before = _plain(self.old)
        rows = list(_differences(before, after))
        if len(rows) == 1 and _is_generation_catch_up(before, after):
            return ""
        rows = [*_stage_transition(self.old, self.new), *rows] if rows else rows
        more = f" … {len(rows) - most} more" if len(rows) > most else ""
        return "; ".join(rows[:most]) + more

    def line(self, most: int = FIELDS_MAX) -> str:
        return f"{self.cell:7} {self.writer:24} {object_name(self.key)}: {self.changes_text(most)}"


class CommitHistory:
    def __init__(self) -> None:
        self._by_key: dict[str, list[HistoryEvent]] = {}

    def add(self, commit: ObservedCommit, writer: str) -> None:
        for change in commit.changes:
            event = HistoryEvent(commit.at_s, commit.cell, writer, change.key, change.old, change.new)
            self._by_key.setdefault(change.key, []).append(event)

    def events_of(self, keys: Iterable[str]) -> list[HistoryEvent]:
        """Changes of these objects in all cells, in order."""
        found = [event for key in dict.fromkeys(keys) for event in self._by_key.get(key, ())]
        return sorted(found, key=lambda event: event.at_s)

    def matching(self, text: str) -> list[HistoryEvent]:
        return self.events_of(key for key in self._by_key if text in key)


def _stage_transition(old: Any, new: Any) -> Iterator[str]:
    """The stage transition of a replica."""
    if isinstance(old, Replica) and stage(old) is not stage(new):
        yield f"{stage(old)} → {stage(new)}"


def _is_generation_catch_up(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the change only sets observedGeneration to the newest generation."""
    old_generation, new_generation = (tree.get("status", {}).get("observedGeneration", 0) for tree in (before, after))
    return bool(old_generation < new_generation == after.get("metadata", {}).get("generation"))


def _creation_details(tree: dict[str, Any]) -> Iterator[str]:
    spec = tree.get("spec", {})
    weights = {row["name"]: row["weight"] for row in spec.get("rules", {}).get("scores", ())}
    found = {**spec, "attempt": spec.get("intent", {}).get("attempt"), "scores": weights}
    for name, template in SHOWN_ON_CREATE:
        value = found.get(name)
        if value:
            yield template.format(_short(value))


def _plain(item: Any) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(item)
    tree.get("metadata", {}).pop("resourceVersion", None)
    return tree


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if _is_condition(old) or _is_condition(new):
        before, new_generation = _condition(old), _condition(new)
        if before != new_generation:
            yield f"condition {(new or old)['type']}: {before} → {new_generation}"
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            if old.get(name) != new.get(name) and name not in TIME_FIELDS:
                yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif _named(old) is not None or _named(new) is not None:
        yield from _differences(_named(old) or {}, _named(new) or {}, path)
    else:
        before, new_generation = _short(old), _short(new)
        if before != new_generation or len(before) > VALUE_CHARS_MAX:
            yield f"{path}: {before} → {new_generation}"


def _is_condition(value: Any) -> bool:
    return isinstance(value, dict) and "type" in value and "status" in value


def _condition(value: Any) -> str:
    if value is None:
        return "none"
    why = ": ".join(text for text in (value.get("reason", ""), value.get("message", "")) if text)
    return f"{value['status']} ({_short(why)})"


def _named(value: Any) -> dict[str, Any] | None:
    """A list of named items, such as conditions, as a dict by name, so that only changed items are described."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, dict) for item in value):
        return None
    for name in ("type", "replica", "region", "name", "reason"):
        if all(name in item for item in value):
            return {f"[{item[name]}]": item for item in value}
    return None


def _short(value: Any) -> str:
    """Short text of a value, without timestamps."""
    match value:
        case None:
            text = "none"
        case dict():
            text = (
                ", ".join(f"{name} {_short(item)}" for name, item in value.items() if name not in TIME_FIELDS) or "set"
            )
        case list() | tuple():
            text = ", ".join(_short(item) for item in value) or "none"
        case _:
            text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
