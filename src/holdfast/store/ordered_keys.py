"""A sorted set of keys, cheap to change, for lists and pages.

Keys are in buckets of bounded length, so that adding or removing a key moves at most one bucket.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

# Keys per bucket. A bucket of twice the size is split, so that an insert moves few keys.
BUCKET_KEYS = 512


class OrderedKeys:
    """A sorted set of strings, ordered by code point, as SQLite and etcd order UTF-8."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._buckets = [ordered[i : i + BUCKET_KEYS] for i in range(0, len(ordered), BUCKET_KEYS)]
        self._last = [bucket[-1] for bucket in self._buckets]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def add(self, key: str) -> None:
        """Adds a key that is not in the set."""
        if not self._buckets:
            self._buckets.append([key])
            self._last.append(key)
            return
        at = min(bisect_left(self._last, key), len(self._buckets) - 1)
        bucket = self._buckets[at]
        bucket.insert(bisect_left(bucket, key), key)
        if len(bucket) > 2 * BUCKET_KEYS:
            self._buckets.insert(at + 1, bucket[BUCKET_KEYS:])
            self._last.insert(at, bucket[BUCKET_KEYS - 1])
            del bucket[BUCKET_KEYS:]
            at += 1
        self._last[at] = self._buckets[at][-1]

    def remove(self, key: str) -> None:
        """Removes a key that is in the set."""
        at = bisect_left(self._last, key)
        bucket = self._buckets[at]
        place = bisect_left(bucket, key)
        if bucket[place] != key:
            raise KeyError(key)
        del bucket[place]
        if bucket:
            self._last[at] = bucket[-1]
        else:
            del self._buckets[at], self._last[at]

    def walk(self, prefix: str, after: str = "") -> Iterator[str]:
        """The keys that start with `prefix` and sort after `after`, in order. The set must not change meanwhile."""
        exclusive = after >= prefix and after != ""
        low = after if exclusive else prefix
        find = bisect_right if exclusive else bisect_left
        at = find(self._last, low)
        if at == len(self._buckets):
            return
        place = find(self._buckets[at], low)
        for bucket in range(at, len(self._buckets)):
            keys = self._buckets[bucket]
            for i in range(place, len(keys)):
                if not keys[i].startswith(prefix):
                    return
                yield keys[i]
            place = 0

    def count(self, prefix: str, after: str = "") -> int:
        """The number of keys that `walk` would yield, without walking them."""
        end = upper_bound(prefix)
        high = len(self) if end is None else self._below(end)
        low = self._below(prefix)
        if after >= prefix and after != "":
            low = self._below(after + "\0")
        return max(0, high - low)

    def _below(self, key: str) -> int:
        """The number of keys that sort below this one."""
        at = bisect_left(self._last, key)
        if at == len(self._buckets):
            return len(self)
        return sum(map(len, self._buckets[:at])) + bisect_left(self._buckets[at], key)


def upper_bound(prefix: str) -> str | None:
    """The smallest string above everything that starts with `prefix`; None if there is none."""
    for i in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[i])
        if point < 0x10FFFF:
            # Skips the surrogates, which cannot be encoded in UTF-8.
            following = 0xE000 if point == 0xD7FF else point + 1
            return prefix[:i] + chr(following)
    return None
