"""Keys that wait for a decision: each once, tenants in turn, failures with a pause.

What always holds:

- A key is in at most one of three places: waiting, or being worked on, or neither. It is never worked on twice at once.
- A key added while it is worked on is waiting again as soon as that work is done: no wake-up is lost.
- A key added while it waits is not added again.
- With a pace, a key is handed out again only so long after its last work ended, unless that work asked for more at
  once: what happens meanwhile is decided about together.
- With a moment of calm, a key that is added while many are waits that long first, so that the states a burst only
  passes through are skipped; a few keys a second never wait.
- With a gathering time, the first key waits that long for others, unless there are enough for a whole batch.
- Namespaces take turns, so that one tenant's ten thousand keys delay another tenant's one key by one turn.
- At most `limit` keys are known. Beyond that an added key is refused and counted; a resync finds it again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable

from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.runtime import metrics
from holdfast.runtime.backoff import delay_s
from holdfast.runtime.ports import Ports
from holdfast.runtime.retry_budget import RetryBudget

_STALE_ENTRIES = 64
"""How many outdated entries of the heap are put up with before it is rebuilt."""
_RESTING_MAX = 4_096
"""How many keys' pauses are remembered, at least, before those that are over are forgotten."""


class Closed(Exception):
    """The queue is closed and hands out no more keys."""


class Workqueue:
    def __init__(
        self,
        name: str,
        ports: Ports,
        *,
        limit: int = limits.QUEUE_KEYS_MAX,
        first_s: float = limits.BACKOFF_FIRST_S,
        max_s: float = limits.BACKOFF_MAX_S,
        pace_s: float = 0.0,
        calm_s: float = 0.0,
        gather_s: float = 0.0,
    ) -> None:
        self._ports = ports
        self._limit = limit
        self._first_s = first_s
        self._max_s = max_s
        self._gather_s = gather_s
        self._turns: dict[str, deque[Key]] = {}
        """Waiting keys by namespace. The first namespace is the next to be served; a served one goes to the end."""
        self._waiting: dict[Key, float] = {}
        """Exactly the keys in `_turns`, with the moment each was due."""
        self._working: dict[Key, bool] = {}
        """Keys handed out and not yet done; True when the key was added again in the meantime."""
        self._pace_s = pace_s
        self._rests_until: dict[Key, float] = {}
        """With a pace: until when a key that was worked on is left alone."""
        self._forget_at = _RESTING_MAX
        self._calm_s = calm_s
        self._at_once = RetryBudget(ports.clock, per_s=limits.CALM_KEYS_PER_S, burst=limits.CALM_KEYS_BURST)
        """With a moment of calm: how many more keys need not wait for it."""
        self._calming: dict[Key, None] = {}
        """Keys that wait for their moment of calm: added again, they go on waiting for it."""
        self._hurried: dict[Key, None] = {}
        """Keys being worked on whose work asked for more at once."""
        self._due: list[tuple[float, int, Key]] = []
        """A heap of delayed keys. An entry counts only if `_due_at` still has its moment and number."""
        self._due_at: dict[Key, tuple[float, int]] = {}
        """The earliest moment each delayed key is due, and the number of that entry."""
        self._failures: dict[Key, int] = {}
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._something = asyncio.Event()
        self._closed = False
        self.dropped = 0
        """How many keys a full queue has refused."""
        self._depth = metrics.QUEUE_DEPTH.labels(name)
        self._wait = metrics.QUEUE_WAIT.labels(name)
        self._retries = metrics.QUEUE_RETRIES.labels(name)
        self._dropped = metrics.QUEUE_DROPPED.labels(name)

    def __len__(self) -> int:
        """Keys that wait now, without those that are delayed or worked on."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is worked on; delayed keys do not count."""
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
        if self._rests_until and self._rests_until.get(key, 0.0) > now:
            self.add_after(key, self._rests_until[key] - now)
            return
        if self._calm_s and not self._at_once.take():
            if key not in self._calming:
                self._calming[key] = None
                self.add_after(key, self._calm_s)
            return
        self._put(key, now)

    def _put(self, key: Key, now: float) -> None:
        if self._calming:
            self._calming.pop(key, None)
        if self._due_at:
            self._due_at.pop(key, None)
        self._waiting[key] = now
        turn = self._turns.get(key.namespace)
        if turn is None:
            turn = self._turns[key.namespace] = deque()
        turn.append(key)
        self._depth.set(len(self._waiting))
        self._something.set()

    def add_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Adds the key after a pause; of several pauses the shortest counts."""
        if seconds <= 0.0:
            if key in self._working:
                self._hurried[key] = None
            self._rests_until.pop(key, None)
            self.add(key)
            return
        if self._closed or key in self._waiting:
            return
        at = self._ports.clock.monotonic() + seconds
        known = self._due_at.get(key)
        if known is not None and known[0] <= at:
            return
        if known is None and len(self._due_at) >= self._limit:
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

    def pause_s(self, key: Key) -> float:
        """Counts one more failure of the key, and answers how long to leave it alone."""
        failures = self._failures.get(key, 0) + 1
        if key in self._failures or len(self._failures) < self._limit:
            self._failures[key] = failures
        return delay_s(failures, self._ports.random, first_s=self._first_s, max_s=self._max_s)

    def retry(self, key: Key, *, least_s: float = 0.0) -> float:
        """Adds the key after a pause that grows with its failures in a row. Answers the pause."""
        pause_s = max(least_s, self.pause_s(key))
        self._retries.inc()
        self.add_after(key, pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """The key's work went well: its next failure counts as the first."""
        if self._failures:
            self._failures.pop(key, None)

    async def take(self, most: int = 1) -> list[Key]:
        """Waits for a key, then hands out up to `most` that wait now. Each must be given back with `done`."""
        await self._until_waiting()
        if self._gather_s and len(self._waiting) < most:
            await self._ports.clock.sleep(self._gather_s)
            await self._until_waiting()
        now = self._ports.clock.monotonic()
        taken: list[Key] = []
        while self._waiting and len(taken) < most:
            namespace = next(iter(self._turns))
            turn = self._turns.pop(namespace)
            key = turn.popleft()
            if turn:
                self._turns[namespace] = turn
            self._wait.observe(max(0.0, now - self._waiting.pop(key)))
            self._working[key] = False
            taken.append(key)
        self._depth.set(len(self._waiting))
        return taken

    async def _until_waiting(self) -> None:
        while not self._waiting and not self._closed:
            self._something.clear()
            await self._something.wait()
        if self._closed:
            raise Closed

    def done(self, key: Key) -> None:
        """The work on a key is over; if it was added in the meantime, it waits again."""
        again = self._working.pop(key)
        if self._pace_s and key not in self._hurried:
            self._rest(key)
        if self._hurried:
            self._hurried.pop(key, None)
        if again:
            self.add(key)

    def _rest(self, key: Key) -> None:
        now = self._ports.clock.monotonic()
        if len(self._rests_until) >= self._forget_at:
            self._rests_until = {other: until for other, until in self._rests_until.items() if until > now}
            # Ten thousand keys at rest at once must not be gone through for each that joins them.
            self._forget_at = max(_RESTING_MAX, 2 * len(self._rests_until))
        self._rests_until[key] = now + self._pace_s

    def clear(self) -> None:
        """Forgets everything that waits or is delayed. Work under way goes on."""
        self._turns.clear()
        self._waiting.clear()
        self._due.clear()
        self._due_at.clear()
        self._failures.clear()
        self._rests_until.clear()
        self._calming.clear()
        self._depth.set(0)

    def close(self) -> None:
        """Whoever waits in `take` gets `Closed`."""
        self.clear()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._something.set()

    def _arm(self) -> None:
        at = self._due[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        pause_s = max(0.0, at - self._ports.clock.monotonic())
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._ports.clock.monotonic()
        while self._due and self._due[0][0] <= now:
            at, number, key = heapq.heappop(self._due)
            if self._due_at.get(key) == (at, number):
                del self._due_at[key]
                if self._calming.pop(key, "") is None and key not in self._working:
                    self._put(key, now)
                else:
                    self.add(key)
        if self._due:
            self._arm()
