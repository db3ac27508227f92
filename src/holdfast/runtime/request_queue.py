"""The scheduler's queue: which requests wait, for what, and until when. Holds no truth: all of it can be lost.

What always holds: a request that still has members without a place is tried again, at the latest when its backoff
ends; events that may cure its reasons only make that sooner. Of requests that ask for the same the first is tried, and
the others wait behind it (`waiting_groups`): ten thousand that fit nowhere cost what one costs. Nothing here decides
where anything goes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from holdfast.flow.explain import Wake
from holdfast.flow.queue_order import backoff_s, wake_pause_s
from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.scheduling_request import Member, RefusalCount, SchedulingRequest
from holdfast.runtime.waiting_groups import GroupKey, WaitingGroups

NEVER = float("inf")
_STALE_ENTRIES = 1_000
"""The heap of moments is tidied when so many more of its entries than requests are out of date."""


class Waiting(msgspec.Struct):
    """One request. Times are monotonic seconds; `due_at` is NEVER while nothing in it needs a place. Only the queue
    makes it earlier, as it keeps the order of these moments."""

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
    spared: dict[str, float] = {}
    """Victims the authority refused to let go for it, and until when they are not named again."""
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
        self._groups: WaitingGroups[Waiting] = WaitingGroups()
        self._moments: list[tuple[float, int, Waiting]] = []
        """A heap of what will be due. An entry counts only while its request still has that moment."""
        self._number = 0
        self._due: dict[Key, Waiting] = {}
        """What has become due and was not dealt with yet, among others."""
        self._beaten: dict[Key, Waiting] = {}
        """Whose last try in vain stood behind proposals that nobody had answered yet."""

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
            self.drop(request, now)
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
                self._let_go(waiting, now)
                if newcomers or not waiting.attempts or waiting.due_at == NEVER:
                    self._set(waiting, now)
                else:
                    self._wait_alone(waiting)
            waiting.request = request
        else:
            changed = True
            if waiting is not None:
                self._forget_members(waiting)
                self._let_go(waiting, now)
            attempts = request.status.attempts if request.status.pending else 0
            waiting = self._waiting[request.key] = Waiting(
                request, due_at=now, attempts=attempts, spared={}, gone={}, hints={}
            )
            before = self._tried.pop(request.key, None)
            if before is not None:
                waiting.due_at, waiting.tried_at = before.due_at, before.tried_at
                waiting.attempts, waiting.wake_on = max(attempts, before.attempts), before.wake_on
                self._wait_alone(waiting)
                waiting.due_at = max(now, waiting.due_at)
            self._set(waiting, waiting.due_at)
        if changed:
            for member in request.spec.members:
                self._by_uid[member.uid] = request.key
            uids = {member.uid for member in request.spec.members}
            waiting.hints = {uid: attempt for uid, attempt in waiting.hints.items() if uid in uids}
        return changed

    def drop(self, request: SchedulingRequest, now: float) -> None:
        waiting = self._waiting.pop(request.key, None)
        if waiting is not None:
            self._forget_members(waiting)
            self._let_go(waiting, now)
            self._due.pop(waiting.key, None)
            self._beaten.pop(waiting.key, None)
            if waiting.attempts and waiting.due_at != NEVER:
                self._tried.pop(waiting.key, None)
                self._tried[waiting.key] = waiting
                if len(self._tried) > limits.TRIES_REMEMBERED:
                    del self._tried[next(iter(self._tried))]

    def due(self, now: float) -> list[Waiting]:
        """All that are to be tried now, in no order that means anything."""
        moments = self._moments
        while moments and moments[0][0] <= now:
            at, _, waiting = heappop(moments)
            if self._counts(at, waiting):
                self._due[waiting.key] = waiting
        found = [waiting for waiting in self._due.values() if waiting.due_at <= now]
        if len(found) < len(self._due):
            self._due = {waiting.key: waiting for waiting in found}
        return found

    def next_due(self) -> float:
        moments = self._moments
        while moments and not self._counts(moments[0][0], moments[0][2]):
            heappop(moments)
        return min((w.due_at for w in self._due.values()), default=moments[0][0] if moments else NEVER)

    def spare(self, waiting: Waiting, victim: str, now: float) -> None:
        """The victim is not to be named again for a while; the oldest of too many may be."""
        waiting.spared.pop(victim, None)
        waiting.spared[victim] = now + limits.SPARED_S
        if len(waiting.spared) > limits.SPARED_VICTIMS:
            del waiting.spared[next(iter(waiting.spared))]

    def given_back(self, now: float) -> None:
        """What others were planned into is free after all, and no record will tell: who was tried behind them looks
        again, if room is what it waits for; of those that ask for the same the first, each at most so often."""
        beaten, self._beaten = self._beaten, {}
        for waiting in beaten.values():
            waits = waiting.due_at != NEVER and Wake.CAPACITY_FREED in waiting.wake_on
            if waits and self._waiting.get(waiting.key) is waiting and not self._groups.behind(_name(waiting)):
                self.hasten(waiting, max(now, waiting.tried_at + wake_pause_s(waiting.attempts)))

    def rest(self, waiting: Waiting, now: float) -> None:
        """Nothing in it needs a place. Who waited for the same may find one too."""
        waiting.due_at = NEVER
        self._due.pop(waiting.key, None)
        self._beaten.pop(waiting.key, None)
        self._let_go(waiting, now)

    def hasten(self, waiting: Waiting, at: float) -> None:
        """It is tried at that moment at the latest."""
        if at < waiting.due_at:
            self._set(waiting, at)

    def wake(self, events: Iterable[str], now: float) -> bool:
        """Makes requests due whose reasons one of these events may cure, each at most so often."""
        heard = frozenset(events)
        woken = False
        # An override may be for one workload alone; everything else helps the first of a group before the others.
        for waiting in list(self._groups.waiting_for(heard, everyone=Wake.OVERRIDE_CHANGED in heard)):
            if waiting.due_at > now and waiting.due_at != NEVER:
                self.hasten(waiting, max(now, waiting.tried_at + wake_pause_s(waiting.attempts)))
                woken = True
        return woken

    def in_vain(
        self,
        waiting: Waiting,
        refusals: tuple[RefusalCount, ...],
        now: float,
        *,
        wake_on: tuple[str, ...] = (),
        alike: bytes = b"",
        within_s: float = NEVER,
        beaten: bool = False,
    ) -> float:
        """Counts a try that left someone without a place; says how long it is until the next, at most `within_s`.

        Requests with the same `alike` get the same answers: all but the first of them wait for long. One that was
        `beaten` by proposals under way looks again if they come to nothing.
        """
        self._beaten.pop(waiting.key, None)
        if beaten:
            self._beaten[waiting.key] = waiting
        waiting.attempts += 1
        waiting.tried_at = now
        waiting.refusals = refusals
        waiting.wake_on = wake_on
        group = GroupKey(alike, wake_on) if alike else _alone(waiting)
        for other in self._groups.join(_name(waiting), _created(waiting), waiting, group):
            self._in_turn(other, now)
        chance = self._chance.random()
        if self._groups.behind(_name(waiting)):
            pause_s = limits.BEHIND_AGAIN_S * (0.5 + 0.5 * chance)
        else:
            pause_s = backoff_s(waiting.attempts, chance)
        pause_s = min(within_s, pause_s)
        self._set(waiting, now + pause_s)
        return pause_s

    def look_again(self, waiting: Waiting, now: float) -> None:
        """Tries once more soon; what was found out before stays said until then."""
        waiting.found_room = False
        self._set(waiting, now + limits.CONTESTED_AGAIN_S)

    def resync(self, now: float) -> None:
        """Looks again at everything that was left idle, and asks again about members that were thought gone."""
        for waiting in self._waiting.values():
            waiting.gone = {}
            if waiting.due_at == NEVER:
                self._set(waiting, now)

    def _set(self, waiting: Waiting, at: float) -> None:
        waiting.due_at = at
        self._number += 1
        heappush(self._moments, (at, self._number, waiting))
        if len(self._moments) > 2 * len(self._waiting) + _STALE_ENTRIES:
            self._moments = [entry for entry in self._moments if self._counts(entry[0], entry[2])]
            heapify(self._moments)

    def _counts(self, at: float, waiting: Waiting) -> bool:
        return waiting.due_at == at and self._waiting.get(waiting.key) is waiting

    def _wait_alone(self, waiting: Waiting) -> None:
        """It may not be what it was: it goes on with its pause, and behind nobody."""
        self._groups.join(_name(waiting), _created(waiting), waiting, _alone(waiting))
        self.hasten(waiting, waiting.tried_at + limits.QUEUE_BACKOFF_MAX_S)

    def _let_go(self, waiting: Waiting, now: float) -> None:
        for other in self._groups.leave(_name(waiting)):
            self._in_turn(other, now)

    def _in_turn(self, waiting: Waiting, now: float) -> None:
        """The one it waited behind is out of the way."""
        if waiting.due_at != NEVER:
            self.hasten(waiting, max(now, waiting.tried_at + wake_pause_s(waiting.attempts)))

    def _forget_members(self, waiting: Waiting) -> None:
        for member in waiting.request.spec.members:
            if self._by_uid.get(member.uid) == waiting.key:
                del self._by_uid[member.uid]


def _name(waiting: Waiting) -> str:
    return f"{waiting.key.namespace}/{waiting.key.name}"


def _created(waiting: Waiting) -> str:
    return waiting.request.metadata.creation_timestamp


def _alone(waiting: Waiting) -> GroupKey:
    """A group of its own."""
    return GroupKey(_name(waiting).encode(), waiting.wake_on)
