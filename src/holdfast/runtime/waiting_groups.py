"""Requests that wait for the same thing, as one: the first of them is tried, the others wait behind it.

What always holds: the group is asked by its first, the oldest; when that one goes (it found a place, changed, or was
deleted), the next are tried at once, twice as many each time, until one finds nothing again. Each of the others is
still tried by itself from time to time (`limits.BEHIND_AGAIN_S`): a group saves work, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from holdfast.model import limits

Item = TypeVar("Item")


class GroupKey(NamedTuple):
    """What is asked for, and the events that may cure its being refused. `alike` names a request that is like none."""

    alike: bytes
    wake_on: tuple[str, ...]


class _Group(Generic[Item]):
    def __init__(self) -> None:
        self.members: dict[str, Item] = {}
        self.by_age: list[tuple[str, str]] = []
        """A heap of (creation time, name); names that are no longer members are passed over."""
        self.width = 1
        """How many are tried when the first goes."""

    def first(self) -> Item:
        while self.by_age[0][1] not in self.members:
            heappop(self.by_age)
        return self.members[self.by_age[0][1]]

    def oldest(self, count: int) -> list[Item]:
        """The first few, in order."""
        taken: list[tuple[str, str]] = []
        while self.by_age and len(taken) < count:
            entry = heappop(self.by_age)
            if entry[1] in self.members and (not taken or taken[-1] != entry):
                taken.append(entry)
        for entry in taken:
            heappush(self.by_age, entry)
        return [self.members[name] for _, name in taken]


class WaitingGroups(Generic[Item]):
    """Every member is in one group; names are of the whole region (tenant/name)."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group[Item]] = {}
        self._group_of: dict[str, GroupKey] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def join(self, name: str, created: str, item: Item, key: GroupKey) -> list[Item]:
        """Puts an item in a group; those of the group it leaves for it that are to be tried now."""
        if self._group_of.get(name) == key:
            self._groups[key].width = 1  # tried, and in vain again
            return []
        freed = self.leave(name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.width = 1
        group.members[name] = item
        heappush(group.by_age, (created, name))
        self._group_of[name] = key
        return freed

    def leave(self, name: str) -> list[Item]:
        """Takes an item out; if it was the first, those that are to be tried in its place."""
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
        found = group.oldest(group.width)
        group.width = min(group.width * 2, limits.BATCH)
        return found

    def behind(self, name: str) -> bool:
        """Whether another of its group is tried before it."""
        key = self._group_of.get(name)
        if key is None:
            return False
        group = self._groups[key]
        return group.first() is not group.members[name]

    def waiting_for(self, events: frozenset[str], *, everyone: bool) -> Iterator[Item]:
        """The first of every group that one of these events may help, or all of each."""
        for key, group in self._groups.items():
            if not events.isdisjoint(key.wake_on):
                yield from group.members.values() if everyone else (group.first(),)
