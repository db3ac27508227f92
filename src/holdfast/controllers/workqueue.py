"""Work queue of keys: deduplicated, fair between namespaces, with retry backoff, debounce and a size bound.

- A key is waiting, being processed, or neither. It is never processed twice at once.
- A key added while it is processed is queued again when that is done, so no wake-up is lost. A waiting key is not
  queued twice.
- With `min_interval_s`, a key is processed again only after that interval, unless it requested an immediate retry.
- With `debounce_s`, keys added during a burst wait that long, so intermediate states are skipped. Below the burst rate
  they wait `settle_s`, usually nothing.
- With `batch_delay_s`, the first key of a burst, or with `batches_always` every first key, waits that long for others,
  unless a whole batch is waiting.
- Namespaces are served round-robin: 10,000 keys of one tenant delay another tenant's key by one turn.
- At most `limit` keys are stored. Further keys are dropped and counted; a resync adds them again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable

from holdfast.foundation import metrics
from holdfast.foundation.backoff import delay_s
from holdfast.foundation.ports import Ports
from holdfast.foundation.retry_budget import RetryBudget
from holdfast.model import limits
from holdfast.model.meta import Key

# Keys in one controller queue. A further key is dropped; the next resync finds it. Twice the largest tested fleet.
QUEUE_KEYS_MAX = 200_000
# Keys per second that are neither debounced nor batched. Beyond that rate a key waits for its controller's debounce.
DEBOUNCE_FREE_KEYS_PER_S = 50.0
# Burst of DEBOUNCE_FREE_KEYS_PER_S.
DEBOUNCE_FREE_KEYS_BURST = 100

_STALE_ENTRIES = 64
"""Outdated heap entries, beyond twice the delayed keys, at which the heap is rebuilt. Bounds memory at little cost."""
_PAUSED_CLEANUP_MIN = 4_096
"""Keys with a `min_interval_s` pause at which expired pauses are first removed. Bounds memory at little cost."""


class QueueClosed(Exception):
    """The queue is closed and returns no more keys."""


class Workqueue:
    def __init__(
        self,
        name: str,
        ports: Ports,
        *,
        limit: int = QUEUE_KEYS_MAX,
        first_s: float = limits.BACKOFF_FIRST_S,
        max_s: float = limits.BACKOFF_MAX_S,
        min_interval_s: float = 0.0,
        debounce_s: float = 0.0,
        settle_s: float = 0.0,
        batch_delay_s: float = 0.0,
        batches_always: bool = False,
    ) -> None:
        self._ports = ports
        self._limit = limit
        self._first_s = first_s
        self._max_s = max_s
        self._batch_delay_s = batch_delay_s
        self._batches_always = batches_always
        self._by_namespace: dict[str, deque[Key]] = {}
        """Waiting keys by namespace, in round-robin order: the first namespace is served next."""
        self._waiting: dict[Key, float] = {}
        """The keys in `_by_namespace`, with the time each was queued."""
        self._working: dict[Key, bool] = {}
        """Keys being processed; True if the key was added again meanwhile."""
        self._min_interval_s = min_interval_s
        self._paused_until: dict[Key, float] = {}
        """With `min_interval_s`: the earliest time a processed key is processed again."""
        self._cleanup_at = _PAUSED_CLEANUP_MIN
        self._debounce_s = debounce_s
        self._settle_s = settle_s
        self._undelayed = RetryBudget(ports.clock, per_s=DEBOUNCE_FREE_KEYS_PER_S, burst=DEBOUNCE_FREE_KEYS_BURST)
        """With `debounce_s` or `batch_delay_s`: keys that are no burst yet."""
        self._debounced: dict[Key, None] = {}
        """Debounced keys. Adding one again does not extend its delay."""
        self._immediate: dict[Key, None] = {}
        """Keys being processed that requested an immediate retry."""
        self._due: list[tuple[float, int, Key]] = []
        """Heap of delayed keys. An entry is valid only if `_due_at` has the same time and number."""
        self._due_at: dict[Key, tuple[float, int]] = {}
        """The earliest due time of each delayed key, and the number of its heap entry."""
        self._failures: dict[Key, int] = {}
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._available = asyncio.Event()
        self._closed = False
        self.dropped = 0
        """Keys dropped because the queue was full."""
        self._depth = metrics.QUEUE_DEPTH.labels(name)
        self._wait = metrics.QUEUE_WAIT.labels(name)
        self._retries = metrics.QUEUE_RETRIES.labels(name)
        self._dropped = metrics.QUEUE_DROPPED.labels(name)

    def __len__(self) -> int:
        """Number of waiting keys, without delayed keys and keys being processed."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits or is processed; delayed keys do not count."""
        return not self._waiting and not self._working

    def add(self, key: Key) -> None:
        if key in self._waiting or self._closed:
            return
        if key in self._working:
            self._working[key] = True
            return
        if len(self._waiting) >= self._limit:
            self.dropped += 1
            self._dropped.inc()
            return
        now = self._ports.clock.monotonic()
        if self._paused_until and self._paused_until.get(key, 0.0) > now:
            self.add_after(key, self._paused_until[key] - now)
            return
        if self._debounce_s:
            delay_s = self._settle_s if self._undelayed.take() else self._debounce_s
            if delay_s:
                if key not in self._debounced:
                    self._debounced[key] = None
                    self.add_after(key, delay_s)
                return
        self._put(key, now)

    def _put(self, key: Key, now: float) -> None:
        if self._debounced:
            self._debounced.pop(key, None)
        if self._due_at:
            self._due_at.pop(key, None)
        self._waiting[key] = now
        keys_of_namespace = self._by_namespace.get(key.namespace)
        if keys_of_namespace is None:
            keys_of_namespace = self._by_namespace[key.namespace] = deque()
        keys_of_namespace.append(key)
        self._depth.set(len(self._waiting))
        self._available.set()

    def add_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Adds the key after a delay; the shortest of several delays applies."""
        if seconds <= 0.0:
            if key in self._working:
                self._immediate[key] = None
            self._paused_until.pop(key, None)
            self.add(key)
            return
        if self._closed or key in self._waiting:
            return
        at = self._ports.clock.monotonic() + seconds
        scheduled = self._due_at.get(key)
        if scheduled is not None and scheduled[0] <= at:
            return
        if scheduled is None and len(self._due_at) >= self._limit:
            self.dropped += 1
            self._dropped.inc()
            return
        self._sequence += 1
        self._due_at[key] = (at, self._sequence)
        heapq.heappush(self._due, (at, self._sequence, key))
        if len(self._due) > 2 * len(self._due_at) + _STALE_ENTRIES:
            self._due = [entry for entry in self._due if self._due_at.get(entry[2]) == entry[:2]]
            heapq.heapify(self._due)
        self._arm()

    def next_backoff_s(self, key: Key) -> float:
        """Counts one more failure of the key and returns its backoff."""
        failures = self._failures.get(key, 0) + 1
        if key in self._failures or len(self._failures) < self._limit:
            self._failures[key] = failures
        return delay_s(failures, self._ports.random, first_s=self._first_s, max_s=self._max_s)

    def retry(self, key: Key, *, least_s: float = 0.0) -> float:
        """Adds the key after its backoff, which grows with consecutive failures. Returns the delay."""
        pause_s = max(least_s, self.next_backoff_s(key))
        self._retries.inc()
        self.add_after(key, pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """Resets the key's failure count after a success."""
        if self._failures:
            self._failures.pop(key, None)

    async def take(self, most: int = 1) -> list[Key]:
        """Waits for a key, then returns up to `most` waiting keys. Call `done` for each."""
        await self._wait_for_key()
        if self._batch_delay_s and len(self._waiting) < most and self._is_burst():
            await self._ports.clock.sleep(self._batch_delay_s)
            await self._wait_for_key()
        now = self._ports.clock.monotonic()
        taken: list[Key] = []
        while self._waiting and len(taken) < most:
            namespace = next(iter(self._by_namespace))
            keys_of_namespace = self._by_namespace.pop(namespace)
            key = keys_of_namespace.popleft()
            if keys_of_namespace:
                self._by_namespace[namespace] = keys_of_namespace
            self._wait.observe(max(0.0, now - self._waiting.pop(key)))
            self._working[key] = False
            taken.append(key)
        self._depth.set(len(self._waiting))
        return taken

    def _is_burst(self) -> bool:
        """Whether the waiting keys wait for others: they exceed the rate at which keys are processed one by one."""
        return self._batches_always or not all([self._undelayed.take() for _ in self._waiting])

    async def _wait_for_key(self) -> None:
        while not self._waiting and not self._closed:
            self._available.clear()
            await self._available.wait()
        if self._closed:
            raise QueueClosed

    def done(self, key: Key, *, pause_s: float = 0.0) -> None:
        """Processing of the key has ended. If it was added meanwhile, it is queued again, at once or after the pause
        or `min_interval_s`."""
        added_again = self._working.pop(key)
        pause_s = max(pause_s, self._min_interval_s)
        if pause_s and key not in self._immediate:
            self._pause(key, pause_s)
        if self._immediate:
            self._immediate.pop(key, None)
        if added_again:
            self.add(key)

    def _pause(self, key: Key, pause_s: float) -> None:
        now = self._ports.clock.monotonic()
        if len(self._paused_until) >= self._cleanup_at:
            self._paused_until = {other: until for other, until in self._paused_until.items() if until > now}
            # Doubling keeps the scan from running for each of many paused keys.
            self._cleanup_at = max(_PAUSED_CLEANUP_MIN, 2 * len(self._paused_until))
        self._paused_until[key] = now + pause_s

    def clear(self) -> None:
        """Drops all waiting and delayed keys. Processing in progress continues."""
        self._by_namespace.clear()
        self._waiting.clear()
        self._due.clear()
        self._due_at.clear()
        self._failures.clear()
        self._paused_until.clear()
        self._debounced.clear()
        self._depth.set(0)

    def close(self) -> None:
        """Closes the queue: callers of `take` get `QueueClosed`."""
        self.clear()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._available.set()

    def _arm(self) -> None:
        at = self._due[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        pause_s = max(0.0, at - self._ports.clock.monotonic())
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._ports.clock.monotonic()
        while self._due and self._due[0][0] <= now:
            at, number, key = heapq.heappop(self._due)
            if self._due_at.get(key) == (at, number):
                del self._due_at[key]
                if self._debounced.pop(key, "") is None and key not in self._working:
                    self._put(key, now)
                else:
                    self.add(key)
        if self._due:
            self._arm()
