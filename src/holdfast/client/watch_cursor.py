"""The position of a watch that resumes, and conditions to wait for. Pure: lists and events go in, changes come out.

- Every change of the watched objects is reported in order. Objects that exist at the start are reported as added.
- If the server has compacted the position (410), the cursor compares the next list with what it has reported. Changes
  in between are then reported once, and an object deleted meanwhile is reported as deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.client.contract import WatchEvent
from holdfast.client.refusal_text import NEXT
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object, find_condition

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object

RESUME_S, RESUME_S_MAX = 0.2, 5.0
"""Delay before a broken watch is resumed; doubled after each failure up to the maximum."""


class ChangeType(enum.StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"


class WatchedChange(msgspec.Struct, Generic[O], frozen=True):
    """One change. `object` is the new state, or the last known state if it was deleted."""

    type: ChangeType
    object: O


class WaitTimedOut(TimeoutError):
    """A wait ended without its condition. The object is unchanged by that."""


class WatchCursor(Generic[O]):
    def __init__(self) -> None:
        self._known: dict[Key, O] = {}
        self.revision: int | None = None
        """Position of the next watch; None: list first."""

    def listed(self, items: Sequence[O], revision: int) -> Iterator[WatchedChange[O]]:
        """The differences between the list and what was reported before."""
        found = {item.key: item for item in items}
        gone = [item for key, item in self._known.items() if key not in found]
        self.revision = revision
        for item in gone:
            del self._known[item.key]
            yield WatchedChange(ChangeType.DELETED, item)
        for item in items:
            yield from self._stored(item)

    def received(self, events: Sequence[WatchEvent[O]]) -> Iterator[WatchedChange[O]]:
        for event in events:
            self.revision = event.revision
            if event.object is None:
                continue
            if event.deleted:
                if self._known.pop(event.object.key, None) is not None:
                    yield WatchedChange(ChangeType.DELETED, event.object)
            else:
                yield from self._stored(event.object)

    def expire(self) -> None:
        """The position is compacted: list again."""
        self.revision = None

    def _stored(self, item: O) -> Iterator[WatchedChange[O]]:
        before = self._known.get(item.key)
        self._known[item.key] = item
        if before is None:
            yield WatchedChange(ChangeType.ADDED, item)
        elif before.uid != item.uid:
            yield WatchedChange(ChangeType.DELETED, before)
            yield WatchedChange(ChangeType.ADDED, item)
        elif before.revision != item.revision:
            yield WatchedChange(ChangeType.CHANGED, item)


def resume_delay_s(failures: int) -> float:
    """Delay before the next attempt after so many failures in a row."""
    return min(RESUME_S * 2.0 ** min(failures, 10), RESUME_S_MAX)


class Goal(Generic[O]):
    """What a wait is for: a condition such as `Available` or `Failed=False`, or a predicate of the object.

    A condition that was observed for an older generation of the object does not count.
    """

    def __init__(self, condition: str, until: Callable[[O], bool] | None) -> None:
        if bool(condition) == (until is not None):
            raise ValueError("wait: pass either condition or until")
        self._type, _, status = condition.partition("=")
        self._status = status or "True"
        self._until = until

    def is_met(self, item: O) -> bool:
        if self._until is not None:
            return self._until(item)
        found = find_condition(_conditions(item), self._type)
        if found is None or found.status != self._status:
            return False
        return not found.observed_generation or found.observed_generation >= item.metadata.generation

    def timed_out(self, kind: type[O], name: str, namespace: str, timeout_s: float, last: O | None) -> WaitTimedOut:
        row = kind_of(kind)
        subject = f"{row.singular} {f'{namespace}/' if namespace else ''}{name}"
        wanted = f"condition {self._type}={self._status}" if self._type else "the given predicate"
        step = f"holdfast explain {namespace}/{name}" if row.name == "Workload" else f"holdfast get {row.plural}"
        text = f"{subject}: {wanted} not met within {timeout_s:g} s (found {self._found(last)}){NEXT}{step}"
        return WaitTimedOut(text)

    def _found(self, last: O | None) -> str:
        if last is None:
            return "no such object"
        found = find_condition(_conditions(last), self._type) if self._type else None
        if found is not None:
            return f"{found.type}={found.status}: {found.reason} {found.message}".strip()
        return f"the object at revision {last.revision}"


def deletion_timed_out(kind: type[O], item: O, timeout_s: float) -> WaitTimedOut:
    """`item` is the object as last seen, while it is deleted."""
    left = ", ".join(item.metadata.finalizers) or "none"
    text = f"{kind_of(kind).singular} {item.key}: not deleted within {timeout_s:g} s (finalizers left: {left})"
    return WaitTimedOut(f"{text}{NEXT}holdfast repair list")


def _conditions(item: Any) -> Any:
    return getattr(getattr(item, "status", None), "conditions", ())
