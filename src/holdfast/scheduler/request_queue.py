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

# After the authority refuses a preemption victim, the request does not nominate it again for this long, so that the
# planner finds another victim.
REFUSED_VICTIM_BACKOFF_S = 30.0
# Refused victims remembered per request. The oldest is forgotten.
REFUSED_VICTIMS_MAX = 64
# After a nomination expired although its victims still run, its replica does not nominate them again for this long,
# doubled with every repetition. Long: what prevents the eviction, such as a disruption budget that siblings in another
# region use up, is not visible here and rarely ends soon.
EXPIRED_VICTIM_BACKOFF_S = 600.0
EXPIRED_VICTIM_BACKOFF_MAX_S = 3600.0
# Replicas whose expired nominations are remembered. The oldest is forgotten.
EXPIRED_NOMINATIONS_MAX = 1_000
# Retry interval of a request whose capacity was taken by requests planned before it. Short: it may become free.
OUTCOMPETED_RETRY_S = 2.0
# Retry interval of a request that waits behind an identical one (jittered to 50 to 100 %). The result of the first
# request holds for all of them; the retry only guards against a wrong grouping.
GROUP_MEMBER_RETRY_S = 300.0
# Deleted requests whose attempts are remembered, so that a recreated one keeps its backoff. The oldest is forgotten.
RECENT_ATTEMPTS_MAX = 1_000

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
            newer = self.attempt_hints.get(member.uid, 0)
            yield msgspec.structs.replace(member, attempt=newer) if newer > member.attempt else member


class RequestQueue:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._requests: dict[Key, PendingRequest] = {}
        self._by_uid: dict[str, Key] = {}
        self._deleted_in_backoff: dict[Key, PendingRequest] = {}
        """Requests deleted during their backoff. A new request of the same name continues that backoff, so that a
        replica that is placed and lost in a loop is not scheduled at full speed."""
        self._groups: RequestGroups[PendingRequest] = RequestGroups()
        self._due_heap: list[tuple[float, int, PendingRequest]] = []
        """Heap of due times. An entry is valid only while its request still has that due time."""
        self._number = 0
        self._due: dict[Key, PendingRequest] = {}
        """Requests that became due; entries may be outdated."""
        self._outcompeted: dict[Key, PendingRequest] = {}
        """Requests whose last attempt failed behind proposals that were still in flight."""
        self._unreleased_victims: dict[str, dict[str, tuple[float, float]]] = {}
        """Replica uid → victims of its expired nominations, with the end and the length of their exclusion. A request
        is deleted while its replica has a nomination, so this outlives it."""

    def __len__(self) -> int:
        return len(self._requests)

    def all(self) -> Iterable[PendingRequest]:
        return self._requests.values()

    def get(self, key: Key) -> PendingRequest | None:
        return self._requests.get(key)

    def find_by_member(self, uid: str) -> PendingRequest | None:
        key = self._by_uid.get(uid)
        return self._requests.get(key) if key is not None else None

    def put(self, request: SchedulingRequest, now: float) -> bool:
        """Applies the newest state of a request. Returns whether there is something new to plan."""
        if request.metadata.terminating:
            self.drop(request, now)
            return False
        pending = self._requests.get(request.key)
        if pending is not None and pending.request.uid == request.uid:
            changed = pending.request.spec != request.spec
            if changed:
                self._forget_members(pending)
                pending.absent_members = {}
                # Members that lost their node continue the backoff of the request.
                former = {member.uid for member in pending.request.spec.members}
                new_members = any(member.uid not in former for member in request.spec.members)
                self._leave_group(pending, now)
                if new_members or not pending.attempts or pending.due_at == NEVER:
                    self._set_due(pending, now)
                else:
                    self._join_own_group(pending)
            pending.request = request
        else:
            changed = True
            if pending is not None:
                self._forget_members(pending)
                self._leave_group(pending, now)
            attempts = request.status.attempts if request.status.pending else 0
            pending = self._requests[request.key] = PendingRequest(
                request, due_at=now, attempts=attempts, excluded_victims={}, absent_members={}, attempt_hints={}
            )
            former_request = self._deleted_in_backoff.pop(request.key, None)
            if former_request is not None:
                pending.due_at, pending.last_tried_at = former_request.due_at, former_request.last_tried_at
                pending.attempts, pending.retry_on = max(attempts, former_request.attempts), former_request.retry_on
                self._join_own_group(pending)
                pending.due_at = max(now, pending.due_at)
            self._set_due(pending, pending.due_at)
        if changed:
            for member in request.spec.members:
                self._by_uid[member.uid] = request.key
            uids = {member.uid for member in request.spec.members}
            pending.attempt_hints = {uid: attempt for uid, attempt in pending.attempt_hints.items() if uid in uids}
        return changed

    def drop(self, request: SchedulingRequest, now: float) -> None:
        pending = self._requests.pop(request.key, None)
        if pending is not None:
            self._forget_members(pending)
            self._leave_group(pending, now)
            self._due.pop(pending.key, None)
            self._outcompeted.pop(pending.key, None)
            if pending.attempts and pending.due_at != NEVER:
                self._deleted_in_backoff.pop(pending.key, None)
                self._deleted_in_backoff[pending.key] = pending
                if len(self._deleted_in_backoff) > RECENT_ATTEMPTS_MAX:
                    del self._deleted_in_backoff[next(iter(self._deleted_in_backoff))]

    def due(self, now: float) -> list[PendingRequest]:
        """All due requests, unordered."""
        heap = self._due_heap
        while heap and heap[0][0] <= now:
            at, _, pending = heappop(heap)
            if self._is_current(at, pending):
                self._due[pending.key] = pending
        found = [pending for pending in self._due.values() if pending.due_at <= now]
        if len(found) < len(self._due):
            self._due = {pending.key: pending for pending in found}
        return found

    def next_due(self) -> float:
        heap = self._due_heap
        while heap and not self._is_current(heap[0][0], heap[0][2]):
            heappop(heap)
        return min((w.due_at for w in self._due.values()), default=heap[0][0] if heap else NEVER)

    def exclude_victim(self, pending: PendingRequest, victim: str, now: float) -> None:
        """Excludes a refused victim for REFUSED_VICTIM_BACKOFF_S. Beyond REFUSED_VICTIMS_MAX the oldest is dropped."""
        pending.excluded_victims.pop(victim, None)
        pending.excluded_victims[victim] = now + REFUSED_VICTIM_BACKOFF_S
        if len(pending.excluded_victims) > REFUSED_VICTIMS_MAX:
            del pending.excluded_victims[next(iter(pending.excluded_victims))]

    def nomination_expired(self, uid: str, victims: Iterable[str], now: float) -> None:
        """Excludes the victims that a nomination of this replica has waited for in vain."""
        known = self._unreleased_victims.pop(uid, {})
        for victim in victims:
            _, last_s = known.get(victim, (0.0, EXPIRED_VICTIM_BACKOFF_S / 2))
            backoff_s = min(2 * last_s, EXPIRED_VICTIM_BACKOFF_MAX_S)
            known[victim] = (now + backoff_s, backoff_s)
        if known:
            self._unreleased_victims[uid] = known
        if len(self._unreleased_victims) > EXPIRED_NOMINATIONS_MAX:
            del self._unreleased_victims[next(iter(self._unreleased_victims))]

    def excluded_victims(self, pending: PendingRequest, now: float) -> tuple[str, ...]:
        """Victims that this request must not nominate now: refused ones, and those of expired nominations."""
        found = {victim for victim, until in pending.excluded_victims.items() if until > now}
        for member in pending.request.spec.members if self._unreleased_victims else ():
            unreleased = self._unreleased_victims.get(member.uid, {})
            found.update(victim for victim, (until, _) in unreleased.items() if until > now)
        return tuple(sorted(found))

    def requeue_outcompeted(self, now: float) -> None:
        """Requeues requests that failed because proposals planned before them had taken the capacity, now that those
        proposals were rejected. A rejection changes no stored object, so no watch event wakes them. One per group, with
        backoff."""
        outcompeted, self._outcompeted = self._outcompeted, {}
        for pending in outcompeted.values():
            wants_capacity = pending.due_at != NEVER and RetryEvent.CAPACITY_FREED in pending.retry_on
            if (
                wants_capacity
                and self._requests.get(pending.key) is pending
                and not self._groups.is_behind_leader(_name(pending))
            ):
                self.retry_by(pending, max(now, pending.last_tried_at + min_retry_interval_s(pending.attempts)))

    def set_idle(self, pending: PendingRequest, now: float) -> None:
        """No member is pending: the request becomes idle, and the next of its group are tried."""
        pending.due_at = NEVER
        self._due.pop(pending.key, None)
        self._outcompeted.pop(pending.key, None)
        self._leave_group(pending, now)

    def retry_by(self, pending: PendingRequest, at: float) -> None:
        """Makes the request due at `at` at the latest."""
        if at < pending.due_at:
            self._set_due(pending, at)

    def retry_on_events(self, events: Iterable[str], now: float) -> bool:
        """Makes requests due that one of these events may help, with a minimum interval. Returns whether any was."""
        received = frozenset(events)
        any_woken = False
        # An override may affect a single workload of a group; any other event affects the first member first.
        for pending in list(self._groups.affected_by(received, everyone=RetryEvent.OVERRIDE_CHANGED in received)):
            if pending.due_at > now and pending.due_at != NEVER:
                self.retry_by(pending, max(now, pending.last_tried_at + min_retry_interval_s(pending.attempts)))
                any_woken = True
        return any_woken

    def record_failure(
        self,
        pending: PendingRequest,
        refusals: tuple[RefusalCount, ...],
        now: float,
        *,
        retry_on: tuple[str, ...] = (),
        equivalence: bytes = b"",
        within_s: float = NEVER,
        outcompeted: bool = False,
    ) -> float:
        """Records an attempt that left members pending. Returns the delay until the next one, at most `within_s`.

        Requests with the same `equivalence` key form a group; all but the first wait GROUP_MEMBER_RETRY_S. An
        `outcompeted` request failed behind proposals in flight, and is retried if those are rejected.
        """
        self._outcompeted.pop(pending.key, None)
        if outcompeted:
            self._outcompeted[pending.key] = pending
        pending.attempts += 1
        pending.last_tried_at = now
        pending.refusals = refusals
        pending.retry_on = retry_on
        group = GroupKey(equivalence, retry_on) if equivalence else _own_group(pending)
        for other in self._groups.join(_name(pending), _created(pending), pending, group):
            self._try_next(other, now)
        chance = self._chance.random()
        if self._groups.is_behind_leader(_name(pending)):
            pause_s = GROUP_MEMBER_RETRY_S * (0.5 + 0.5 * chance)
        else:
            pause_s = retry_backoff_s(pending.attempts, chance)
        pause_s = min(within_s, pause_s)
        self._set_due(pending, now + pause_s)
        return pause_s

    def retry_soon(self, pending: PendingRequest, now: float) -> None:
        """Retries after OUTCOMPETED_RETRY_S; the reported reasons stay."""
        pending.planned_but_refused = False
        self._set_due(pending, now + OUTCOMPETED_RETRY_S)

    def resync(self, now: float) -> None:
        """Makes idle requests due, and includes members again that the authority did not know."""
        for pending in self._requests.values():
            pending.absent_members = {}
            if pending.due_at == NEVER:
                self._set_due(pending, now)

    def _set_due(self, pending: PendingRequest, at: float) -> None:
        pending.due_at = at
        self._number += 1
        heappush(self._due_heap, (at, self._number, pending))
        if len(self._due_heap) > 2 * len(self._requests) + _STALE_ENTRIES:
            self._due_heap = [entry for entry in self._due_heap if self._is_current(entry[0], entry[2])]
            heapify(self._due_heap)

    def _is_current(self, at: float, pending: PendingRequest) -> bool:
        return pending.due_at == at and self._requests.get(pending.key) is pending

    def _join_own_group(self, pending: PendingRequest) -> None:
        """Moves a changed request into a group of its own; its backoff continues."""
        self._groups.join(_name(pending), _created(pending), pending, _own_group(pending))
        self.retry_by(pending, pending.last_tried_at + limits.QUEUE_BACKOFF_MAX_S)

    def _leave_group(self, pending: PendingRequest, now: float) -> None:
        for other in self._groups.leave(_name(pending)):
            self._try_next(other, now)

    def _try_next(self, pending: PendingRequest, now: float) -> None:
        """Tries a request whose group leader left, with the minimum interval."""
        if pending.due_at != NEVER:
            self.retry_by(pending, max(now, pending.last_tried_at + min_retry_interval_s(pending.attempts)))

    def _forget_members(self, pending: PendingRequest) -> None:
        for member in pending.request.spec.members:
            if self._by_uid.get(member.uid) == pending.key:
                del self._by_uid[member.uid]


def _name(pending: PendingRequest) -> str:
    return f"{pending.key.namespace}/{pending.key.name}"


def _created(pending: PendingRequest) -> str:
    return pending.request.metadata.creation_timestamp


def _own_group(pending: PendingRequest) -> GroupKey:
    """A group of its own."""
    return GroupKey(_name(pending).encode(), pending.retry_on)
