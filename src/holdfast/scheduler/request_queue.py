"""The scheduler's queue of pending requests: retry times, reasons and retry events. In memory only; it can be lost.

- A request with pending members is retried when its backoff ends at the latest. Events that may resolve its reasons
  only make that earlier.
- Of equivalent requests only the first is tried, the others wait behind it (`request_groups`).
- The queue never decides a placement.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.scheduling_request import RefusalCount, RequestMember, SchedulingRequest
from holdfast.scheduler.request_groups import GroupKey, RequestGroups
from holdfast.scheduling.queue_order import min_retry_interval_s, retry_backoff_s
from holdfast.scheduling.refusal_summary import RetryEvent

NEVER = float("inf")
_STALE_ENTRIES = 1_000
"""Outdated heap entries, beyond twice the requests, at which the heap is rebuilt. Bounds memory at little cost."""


class PendingRequest(msgspec.Struct):
    """One request. Times are monotonic seconds. `due_at` is NEVER while no member is pending; only the queue makes it
    earlier, because its heap is ordered by it."""

    request: SchedulingRequest
    due_at: float
    last_tried_at: float = 0.0
    attempts: int = 0
    position: int = 0
    next_retry_at: str = ""
    refusals: tuple[RefusalCount, ...] = ()
    retry_on: tuple[str, ...] = ()
    decision: str = ""
    priority: int = 0
    recorded_reasons: tuple[str, ...] = ()
    recorded_at: float = float("-inf")
    """Reasons and time of the last failed attempt that was recorded as a Decision."""
    refused_at: float = float("-inf")
    """When the authority last rejected a proposal of this request."""
    planned_but_refused: bool = False
    """Whether the last attempt found nodes and the authority rejected the proposal."""
    reported_reasons: tuple[str, ...] = ()
    excluded_victims: dict[str, float] = {}
    """Victims that the authority refused, and until when they are not nominated again."""
    absent_members: dict[str, None] = {}
    """Members that the authority no longer knows, until the request changes or a resync."""
    attempt_hints: dict[str, int] = {}
    """Attempt numbers learned from the authority that are newer than the request's."""

    @property
    def key(self) -> Key:
        return self.request.key

    def members(self) -> Iterable[RequestMember]:
        """Members that may be pending, each with the newest known attempt."""
        for member in self.request.spec.members:
            if member.uid in self.absent_members:
                continue
            hint = self.attempt_hints.get(member.uid, 0)
            yield msgspec.structs.replace(member, attempt=hint) if hint > member.attempt else member


class RequestQueue:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._waiting: dict[Key, PendingRequest] = {}
        self._by_uid: dict[str, Key] = {}
        self._tried: dict[Key, PendingRequest] = {}
        """Requests deleted during their backoff. A new request of the same name continues that backoff, so that a
        replica that is placed and lost in a loop is not scheduled at full speed."""
        self._groups: RequestGroups[PendingRequest] = RequestGroups()
        self._moments: list[tuple[float, int, PendingRequest]] = []
        """Heap of due times. An entry is valid only while its request still has that due time."""
        self._number = 0
        self._due: dict[Key, PendingRequest] = {}
        """Requests that became due; entries may be outdated."""
        self._beaten: dict[Key, PendingRequest] = {}
        """Requests whose last attempt failed behind proposals that were still in flight."""

    def __len__(self) -> int:
        return len(self._waiting)

    def all(self) -> Iterable[PendingRequest]:
        return self._waiting.values()

    def get(self, key: Key) -> PendingRequest | None:
        return self._waiting.get(key)

    def find_by_member(self, uid: str) -> PendingRequest | None:
        key = self._by_uid.get(uid)
        return self._waiting.get(key) if key is not None else None

    def put(self, request: SchedulingRequest, now: float) -> bool:
        """Applies the newest state of a request. Returns whether there is something new to plan."""
        if request.metadata.terminating:
            self.drop(request, now)
            return False
        waiting = self._waiting.get(request.key)
        if waiting is not None and waiting.request.uid == request.uid:
            changed = waiting.request.spec != request.spec
            if changed:
                self._forget_members(waiting)
                waiting.absent_members = {}
                # Members that lost their node continue the backoff of the request.
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
            waiting = self._waiting[request.key] = PendingRequest(
                request, due_at=now, attempts=attempts, excluded_victims={}, absent_members={}, attempt_hints={}
            )
            before = self._tried.pop(request.key, None)
            if before is not None:
                waiting.due_at, waiting.last_tried_at = before.due_at, before.last_tried_at
                waiting.attempts, waiting.retry_on = max(attempts, before.attempts), before.retry_on
                self._wait_alone(waiting)
                waiting.due_at = max(now, waiting.due_at)
            self._set(waiting, waiting.due_at)
        if changed:
            for member in request.spec.members:
                self._by_uid[member.uid] = request.key
            uids = {member.uid for member in request.spec.members}
            waiting.attempt_hints = {uid: attempt for uid, attempt in waiting.attempt_hints.items() if uid in uids}
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
                if len(self._tried) > limits.RECENT_ATTEMPTS_MAX:
                    del self._tried[next(iter(self._tried))]

    def due(self, now: float) -> list[PendingRequest]:
        """All due requests, unordered."""
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

    def exclude_victim(self, waiting: PendingRequest, victim: str, now: float) -> None:
        """Excludes a refused victim for REFUSED_VICTIM_BACKOFF_S. Beyond REFUSED_VICTIMS_MAX the oldest is dropped."""
        waiting.excluded_victims.pop(victim, None)
        waiting.excluded_victims[victim] = now + limits.REFUSED_VICTIM_BACKOFF_S
        if len(waiting.excluded_victims) > limits.REFUSED_VICTIMS_MAX:
            del waiting.excluded_victims[next(iter(waiting.excluded_victims))]

    def requeue_outcompeted(self, now: float) -> None:
        """Requeues requests that failed because proposals planned before them had taken the capacity, now that those
        proposals were rejected. A rejection changes no stored object, so no watch event wakes them. One per group, with
        backoff."""
        beaten, self._beaten = self._beaten, {}
        for waiting in beaten.values():
            waits = waiting.due_at != NEVER and RetryEvent.CAPACITY_FREED in waiting.retry_on
            if waits and self._waiting.get(waiting.key) is waiting and not self._groups.is_behind_leader(_name(waiting)):
                self.retry_by(waiting, max(now, waiting.last_tried_at + min_retry_interval_s(waiting.attempts)))

    def set_idle(self, waiting: PendingRequest, now: float) -> None:
        """No member is pending: the request becomes idle, and the next of its group are tried."""
        waiting.due_at = NEVER
        self._due.pop(waiting.key, None)
        self._beaten.pop(waiting.key, None)
        self._let_go(waiting, now)

    def retry_by(self, waiting: PendingRequest, at: float) -> None:
        """Makes the request due at `at` at the latest."""
        if at < waiting.due_at:
            self._set(waiting, at)

    def retry_on_events(self, events: Iterable[str], now: float) -> bool:
        """Makes requests due that one of these events may help, with a minimum interval. Returns whether any was."""
        heard = frozenset(events)
        woken = False
        # An override may affect a single workload of a group; any other event affects the first member first.
        for waiting in list(self._groups.affected_by(heard, everyone=RetryEvent.OVERRIDE_CHANGED in heard)):
            if waiting.due_at > now and waiting.due_at != NEVER:
                self.retry_by(waiting, max(now, waiting.last_tried_at + min_retry_interval_s(waiting.attempts)))
                woken = True
        return woken

    def record_failure(
        self,
        waiting: PendingRequest,
        refusals: tuple[RefusalCount, ...],
        now: float,
        *,
        wake_on: tuple[str, ...] = (),
        alike: bytes = b"",
        within_s: float = NEVER,
        beaten: bool = False,
    ) -> float:
        """Records an attempt that left members pending. Returns the delay until the next one, at most `within_s`.

        Requests with the same `alike` key form a group; all but the first wait GROUP_MEMBER_RETRY_S. `beaten` requests
        failed behind proposals in flight, and are retried if those are rejected.
        """
        self._beaten.pop(waiting.key, None)
        if beaten:
            self._beaten[waiting.key] = waiting
        waiting.attempts += 1
        waiting.last_tried_at = now
        waiting.refusals = refusals
        waiting.retry_on = wake_on
        group = GroupKey(alike, wake_on) if alike else _alone(waiting)
        for other in self._groups.join(_name(waiting), _created(waiting), waiting, group):
            self._in_turn(other, now)
        chance = self._chance.random()
        if self._groups.is_behind_leader(_name(waiting)):
            pause_s = limits.GROUP_MEMBER_RETRY_S * (0.5 + 0.5 * chance)
        else:
            pause_s = retry_backoff_s(waiting.attempts, chance)
        pause_s = min(within_s, pause_s)
        self._set(waiting, now + pause_s)
        return pause_s

    def retry_soon(self, waiting: PendingRequest, now: float) -> None:
        """Retries after OUTCOMPETED_RETRY_S; the reported reasons stay."""
        waiting.planned_but_refused = False
        self._set(waiting, now + limits.OUTCOMPETED_RETRY_S)

    def resync(self, now: float) -> None:
        """Makes idle requests due, and includes members again that the authority did not know."""
        for waiting in self._waiting.values():
            waiting.absent_members = {}
            if waiting.due_at == NEVER:
                self._set(waiting, now)

    def _set(self, waiting: PendingRequest, at: float) -> None:
        waiting.due_at = at
        self._number += 1
        heappush(self._moments, (at, self._number, waiting))
        if len(self._moments) > 2 * len(self._waiting) + _STALE_ENTRIES:
            self._moments = [entry for entry in self._moments if self._counts(entry[0], entry[2])]
            heapify(self._moments)

    def _counts(self, at: float, waiting: PendingRequest) -> bool:
        return waiting.due_at == at and self._waiting.get(waiting.key) is waiting

    def _wait_alone(self, waiting: PendingRequest) -> None:
        """Moves a changed request into a group of its own; its backoff continues."""
        self._groups.join(_name(waiting), _created(waiting), waiting, _alone(waiting))
        self.retry_by(waiting, waiting.last_tried_at + limits.QUEUE_BACKOFF_MAX_S)

    def _let_go(self, waiting: PendingRequest, now: float) -> None:
        for other in self._groups.leave(_name(waiting)):
            self._in_turn(other, now)

    def _in_turn(self, waiting: PendingRequest, now: float) -> None:
        """Tries a request whose group leader left, with the minimum interval."""
        if waiting.due_at != NEVER:
            self.retry_by(waiting, max(now, waiting.last_tried_at + min_retry_interval_s(waiting.attempts)))

    def _forget_members(self, waiting: PendingRequest) -> None:
        for member in waiting.request.spec.members:
            if self._by_uid.get(member.uid) == waiting.key:
                del self._by_uid[member.uid]


def _name(waiting: PendingRequest) -> str:
    return f"{waiting.key.namespace}/{waiting.key.name}"


def _created(waiting: PendingRequest) -> str:
    return waiting.request.metadata.creation_timestamp


def _alone(waiting: PendingRequest) -> GroupKey:
    """A group of its own."""
    return GroupKey(_name(waiting).encode(), waiting.retry_on)
