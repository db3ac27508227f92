"""The scheduler's queue: which requests wait, for what, and until when. Holds no truth: all of it can be lost.

What always holds: a request that still has members without a place is tried again, at the latest when its backoff
ends; events that may cure its reasons only make that sooner. Nothing here decides where anything goes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from holdfast.flow.queue_order import backoff_s, wake_pause_s
from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.scheduling_request import Member, RefusalCount, SchedulingRequest

NEVER = float("inf")


class Waiting(msgspec.Struct):
    """One request. Times are monotonic seconds; `due_at` is NEVER while nothing in it needs a place."""

    request: SchedulingRequest
    due_at: float
    tried_at: float = 0.0
    attempts: int = 0
    position: int = 0
    next_try_at: str = ""
    refusals: tuple[RefusalCount, ...] = ()
    wake_on: tuple[str, ...] = ()
    decision: str = ""
    rank: int = 0
    recorded: tuple[str, ...] = ()
    recorded_at: float = float("-inf")
    """Reasons and time of the last try in vain that left a Decision."""
    refused_at: float = float("-inf")
    """When the authority last refused what was planned."""
    found_room: bool = False
    """The last try found room, and the authority said no."""
    announced: tuple[str, ...] = ()
    gone: dict[str, None] = {}
    """Members the authority does not know any more, until the request changes or a resync asks again."""
    hints: dict[str, int] = {}
    """Attempts the authority told us of, where they are newer than the request's."""

    @property
    def key(self) -> Key:
        return self.request.key

    def members(self) -> Iterable[Member]:
        """Those that may need a place, each with the newest attempt known."""
        for member in self.request.spec.members:
            if member.uid in self.gone:
                continue
            hint = self.hints.get(member.uid, 0)
            yield msgspec.structs.replace(member, attempt=hint) if hint > member.attempt else member


class RequestQueue:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._waiting: dict[Key, Waiting] = {}
        self._by_uid: dict[str, Key] = {}
        self._tried: dict[Key, Waiting] = {}
        """Requests that went in the middle of a pause. One that comes back under its name goes on from there: work that
        is given a place and loses it again at once must not be tried at full speed."""

    def __len__(self) -> int:
        return len(self._waiting)

    def all(self) -> Iterable[Waiting]:
        return self._waiting.values()

    def get(self, key: Key) -> Waiting | None:
        return self._waiting.get(key)

    def of_member(self, uid: str) -> Waiting | None:
        key = self._by_uid.get(uid)
        return self._waiting.get(key) if key is not None else None

    def put(self, request: SchedulingRequest, now: float) -> bool:
        """Takes in a request's newest state; whether there is something new to plan."""
        if request.metadata.terminating:
            self.drop(request)
            return False
        waiting = self._waiting.get(request.key)
        if waiting is not None and waiting.request.uid == request.uid:
            changed = waiting.request.spec != request.spec
            if changed:
                self._forget_members(waiting)
                waiting.gone = {}
                # Members that only lost the place they had go on with the pause they are in.
                known = {member.uid for member in waiting.request.spec.members}
                newcomers = any(member.uid not in known for member in request.spec.members)
                if newcomers or not waiting.attempts or waiting.due_at == NEVER:
                    waiting.due_at = now
            waiting.request = request
        else:
            changed = True
            if waiting is not None:
                self._forget_members(waiting)
            attempts = request.status.attempts if request.status.pending else 0
            waiting = self._waiting[request.key] = Waiting(request, due_at=now, attempts=attempts, gone={}, hints={})
            before = self._tried.pop(request.key, None)
            if before is not None:
                waiting.due_at, waiting.tried_at = max(now, before.due_at), before.tried_at
                waiting.attempts, waiting.wake_on = max(attempts, before.attempts), before.wake_on
        if changed:
            for member in request.spec.members:
                self._by_uid[member.uid] = request.key
            uids = {member.uid for member in request.spec.members}
            waiting.hints = {uid: attempt for uid, attempt in waiting.hints.items() if uid in uids}
        return changed

    def drop(self, request: SchedulingRequest) -> None:
        waiting = self._waiting.pop(request.key, None)
        if waiting is not None:
            self._forget_members(waiting)
            if waiting.attempts and waiting.due_at != NEVER:
                self._tried.pop(waiting.key, None)
                self._tried[waiting.key] = waiting
                if len(self._tried) > limits.TRIES_REMEMBERED:
                    del self._tried[next(iter(self._tried))]

    def due(self, now: float) -> list[Waiting]:
        return [w for w in self._waiting.values() if w.due_at <= now]

    def next_due(self) -> float:
        return min((w.due_at for w in self._waiting.values()), default=NEVER)

    def wake(self, events: Iterable[str], now: float) -> bool:
        """Makes requests due whose reasons one of these events may cure, each at most so often."""
        heard = frozenset(events)
        woken = False
        for waiting in self._waiting.values():
            if waiting.due_at > now and waiting.due_at != NEVER and not heard.isdisjoint(waiting.wake_on):
                waiting.due_at = min(waiting.due_at, max(now, waiting.tried_at + wake_pause_s(waiting.attempts)))
                woken = True
        return woken

    def in_vain(
        self, waiting: Waiting, refusals: tuple[RefusalCount, ...], now: float, *, within_s: float = NEVER
    ) -> float:
        """Counts a try that left someone without a place; says how long it is until the next, at most `within_s`."""
        waiting.attempts += 1
        waiting.tried_at = now
        waiting.refusals = refusals
        pause_s = min(within_s, backoff_s(waiting.attempts, self._chance.random()))
        waiting.due_at = now + pause_s
        return pause_s

    def look_again(self, waiting: Waiting, now: float) -> None:
        """Tries once more soon; what was found out before stays said until then."""
        waiting.found_room = False
        waiting.due_at = now + limits.CONTESTED_AGAIN_S

    def resync(self, now: float) -> None:
        """Looks again at everything that was left idle, and asks again about members that were thought gone."""
        for waiting in self._waiting.values():
            waiting.gone = {}
            if waiting.due_at == NEVER:
                waiting.due_at = now

    def _forget_members(self, waiting: Waiting) -> None:
        for member in waiting.request.spec.members:
            if self._by_uid.get(member.uid) == waiting.key:
                del self._by_uid[member.uid]
