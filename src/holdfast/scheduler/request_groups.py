"""Groups equivalent pending requests, so that 10,000 unschedulable requests cost one scheduling attempt.

- Only the oldest request of a group, its leader, is scheduled.
- When the leader is placed, changed or deleted, the next requests are tried at once, doubling in number, until one
  fails.
- Every other member is still retried every GROUP_MEMBER_RETRY_S. Grouping saves work; it never decides a placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from holdfast.model import limits

Item = TypeVar("Item")


class GroupKey(NamedTuple):
    """Equivalence class of the requests and the events that may help them. A request without a class uses its name."""

    equivalence: bytes
    retry_on: tuple[str, ...]


class _Group(Generic[Item]):
    def __init__(self) -> None:
        self.members: dict[str, Item] = {}
        self.by_age: list[tuple[str, str]] = []
        """Heap of (creation time, name); entries of former members are skipped."""
        self.burst = 1
        """Requests tried when the leader leaves."""

    def first(self) -> Item:
        while self.by_age[0][1] not in self.members:
            heappop(self.by_age)
        return self.members[self.by_age[0][1]]

    def oldest(self, count: int) -> list[Item]:
        """The oldest members, in order."""
        oldest: list[tuple[str, str]] = []
        while self.by_age and len(oldest) < count:
            entry = heappop(self.by_age)
            if entry[1] in self.members and (not oldest or oldest[-1] != entry):
                oldest.append(entry)
        for entry in oldest:
            heappush(self.by_age, entry)
        return [self.members[name] for _, name in oldest]


class RequestGroups(Generic[Item]):
    """Every request is in one group; names are tenant/name."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group[Item]] = {}
        self._group_of: dict[str, GroupKey] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def join(self, name: str, created: str, item: Item, key: GroupKey) -> list[Item]:
        """Moves an item to a group. Returns the members of its former group that must be tried now."""
        if self._group_of.get(name) == key:
            self._groups[key].burst = 1  # it failed again
            return []
        to_try = self.leave(name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.burst = 1
        group.members[name] = item
        heappush(group.by_age, (created, name))
        self._group_of[name] = key
        return to_try

    def leave(self, name: str) -> list[Item]:
        """Removes an item. If it was the leader, returns the members that must be tried now."""
        key = self._group_of.pop(name, None)
        if key is None:
            return []
        group = self._groups[key]
        was_first = group.first() is group.members[name]
        del group.members[name]
        if not group.members:
            del self._groups[key]
            return []
        if not was_first:
            return []
        found = group.oldest(group.burst)
        group.burst = min(group.burst * 2, limits.PLACEMENT_BATCH_MAX)
        return found

    def is_behind_leader(self, name: str) -> bool:
        """Whether the item is in a group and not its leader."""
        key = self._group_of.get(name)
        if key is None:
            return False
        group = self._groups[key]
        return group.first() is not group.members[name]

    def affected_by(self, events: frozenset[str], *, everyone: bool) -> Iterator[Item]:
        """The leader of every group that one of these events may help, or all members."""
        for key, group in self._groups.items():
            if not events.isdisjoint(key.retry_on):
                yield from group.members.values() if everyone else (group.first(),)
