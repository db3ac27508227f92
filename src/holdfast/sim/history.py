"""Everything that was written, key by key, and how to tell it: who changed what, when, and from what to what.

Objects are kept as they are; words are made only when someone asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.sim.checkers import Commit

FIELDS_SHOWN = 8
VALUE_CHARS = 90


class Event(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    cell: str
    writer: str
    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        who = self.writer.removeprefix("holdfast:").removeprefix("controller:") or "nobody"
        return f"{self.at_s:9.3f} s  {self.cell:7} {who:22} {self.key}  {_told(self.old, self.new)}"


class History:
    def __init__(self) -> None:
        self._by_key: dict[str, list[Event]] = {}

    def add(self, commit: Commit, writer: str) -> None:
        for change in commit.changed:
            event = Event(commit.at_s, commit.cell, writer, change.key, change.old, change.new)
            self._by_key.setdefault(change.key, []).append(event)

    def of(self, keys: Iterable[str]) -> list[Event]:
        """What happened to these objects, in every cell, in order."""
        found = [event for key in dict.fromkeys(keys) for event in self._by_key.get(key, ())]
        return sorted(found, key=lambda event: event.at_s)

    def matching(self, text: str) -> list[Event]:
        return self.of(key for key in self._by_key if text in key)


def _told(old: Any, new: Any) -> str:
    if new is None:
        return "removed"
    after = _plain(new)
    if old is None:
        node = after.get("spec", {}).get("node")
        return f"created, on node {node}" if node else "created"
    rows = list(_differences(_plain(old), after))
    more = f" … {len(rows) - FIELDS_SHOWN} more" if len(rows) > FIELDS_SHOWN else ""
    return "; ".join(rows[:FIELDS_SHOWN]) + more


def _plain(item: Any) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(item)
    tree.get("metadata", {}).pop("resourceVersion", None)
    return tree


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif _named(old) is not None or _named(new) is not None:
        yield from _differences(_named(old) or {}, _named(new) or {}, path)
    else:
        yield f"{path}: {_short(old)} → {_short(new)}"


def _named(value: Any) -> dict[str, Any] | None:
    """A list whose items have names, such as conditions, by name: what changed in it is told, not the whole of it."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, dict) for item in value):
        return None
    for name in ("type", "replica", "region", "name"):
        if all(name in item for item in value):
            return {f"[{item[name]}]": item for item in value}
    return None


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}…"
