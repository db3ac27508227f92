"""Many proposals, one transaction: checks each item, commits what passed, and answers every item by itself.

What always holds: a claim is in the ledger from its check on, so that the next check counts it; it leaves again,
exactly, when its commit fails. Nothing is answered on a state that could still be lost: a refusal that rests on a
commit in flight waits for it, and is checked again if that commit failed. One bad item never spoils the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.authority.claims import Claim
from holdfast.authority.commits import CommitProbe, Commits, CommitTest, removed, stored
from holdfast.authority.concurrency import ItemSemaphore
from holdfast.authority.state import AuthorityState
from holdfast.gate import audit
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.errors import Conflict, Refused
from holdfast.model.kinds import Kind
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
from holdfast.model.quantity import Amounts
from holdfast.model.reasons import Reason
from holdfast.store.contract import Append, Put, Remove

CLAIM_DEPENDENT_REASONS = frozenset(
    {
        Reason.INSUFFICIENT_CPU,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_RESOURCE,
        Reason.INSUFFICIENT_DEVICES,
        Reason.DEVICE_IN_USE,
        Reason.PORT_IN_USE,
        Reason.PORTS_EXHAUSTED,
        Reason.QUOTA_EXCEEDED,
        Reason.GRANT_EXPIRED,
        Reason.NOT_ALLOWED_WHILE_PARTITIONED,
        Reason.WAITING,
    }
)
"""Refusals that other claims cause: only these can be undone by a failed commit."""


NOTHING = PlacementResult(result=PlacementOutcome.ALREADY)
"""The answer of a chore that finds nothing left to do for an item."""


class SlotBooking(msgspec.Struct, frozen=True, gc=False):
    """A recovery place that a step keeps: it counts from its check on, like a claim."""

    node: str
    name: str
    amounts: Amounts


class CommitStep(msgspec.Struct):
    """What one accepted item adds to the transaction, and what it does to the ledger.

    `claim` is booked at once. When the commit has landed, `keep` replaces it or, with `free`, it goes.
    """

    answer: PlacementResult
    compares: dict[str, int]
    writes: list[Put | Remove]
    probe: CommitProbe
    entry: audit.AuditEntry
    claim: Claim | None = None
    claim_after: Claim | None = None
    released_key: str = ""
    claim_before: Claim | None = None
    extra_write_count: int = 0
    """Writes the job adds for this step alone, such as a decision of its own."""
    slot: SlotBooking | None = None


def make_step(
    op: str,
    kind: Kind,
    meta: ObjectMeta,
    answer: PlacementResult,
    writes: list[Put | Remove],
    *,
    compares: dict[str, int] | None = None,
    landed: CommitTest | None = None,
    claim: Claim | None = None,
    keep: Claim | None = None,
    free: str = "",
) -> CommitStep:
    """The step of an item that passed its checks. `op` is `create`, `update`, `release` or `delete`.

    `meta` names the one object that stands for the step: the transaction compares its revision (unless `compares` has
    it already), the audit entry names it, and after an unknown outcome its record shows whether the step happened.
    `landed` tells the changed object from the unchanged one.
    """
    before = int(meta.resource_version or 0)
    compares = {} if compares is None else compares
    compares.setdefault(kind.store_key(meta.namespace, meta.name), before)
    probe = removed(kind, meta) if op == "delete" else stored(kind, meta, landed)
    entry = audit.AuditEntry(op, kind.name, meta.name, meta.namespace, meta.uid, before)
    return CommitStep(answer, compares, writes, probe, entry, claim, keep, free)


class ExtraWrites(msgspec.Struct):
    """What a transaction carries besides its items."""

    compares: dict[str, int] = {}
    writes: list[Put | Remove] = []


class RoundJob(Protocol):
    """One request: its items, and how each is checked against current state."""

    @property
    def verb(self) -> str: ...

    @property
    def who(self) -> Principal: ...

    @property
    def items(self) -> Sequence[Any]: ...

    def begin_round(self) -> None:
        """A new round: forget what was read for the last one."""

    def identity(self, item: Any) -> str:
        """What must not be in two commits at once: the replica's uid."""

    def plan(self, item: Any) -> CommitStep | PlacementResult: ...

    def extra_writes(self, taken: Sequence[tuple[int, CommitStep]], answers: Sequence[PlacementResult | None]) -> ExtraWrites: ...


class RoundResult(msgspec.Struct):
    answers: list[PlacementResult]
    revision: int


class _NodeRoom:
    """What a transaction of this store still has room for. The first item always fits: an item is never split."""

    def __init__(self, writes: int) -> None:
        # One write is for what the job itself adds, such as its decision.
        self._writes = writes - 1
        self._bytes = limits.BATCH_BYTES_MAX
        self._compared: set[str] = set()
        self._most_compared = writes
        self._empty = True
        self.full = False

    def take(self, step: CommitStep) -> bool:
        size = sum(len(write.value) for write in step.writes if isinstance(write, Put))
        writes = len(step.writes) + step.extra_write_count
        compared = len(self._compared) + sum(key not in self._compared for key in step.compares) + step.extra_write_count
        fits = writes <= self._writes and size <= self._bytes and compared < self._most_compared
        self.full = not fits and not self._empty
        if not self.full:
            self._writes -= writes
            self._most_compared -= step.extra_write_count
            self._bytes -= size
            self._compared.update(step.compares)
            self._empty = False
        return not self.full


class _Flight:
    """A commit under way. `done` says whether everything in it landed."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


def rejected(refused: Refused, *, attempt: int = 0) -> PlacementResult:
    return PlacementResult(
        result=PlacementOutcome.REJECTED,
        reason=refused.reason,
        message=refused.message,
        facts=refused.facts,
        attempt=attempt,
    )


class CommitRounds:
    """The rounds of one leadership. Another begins with rounds, and a ledger, of its own."""

    def __init__(self, state: AuthorityState, commits: Commits) -> None:
        self._state = state
        self._commits = commits
        self._token = commits.token
        self._ledger = state.ledger
        self._seats = ItemSemaphore(limits.BATCHES_IN_FLIGHT_MAX * limits.PLACEMENT_BATCH_MAX)
        self._flights: dict[_Flight, None] = {}
        self._busy: dict[str, _Flight] = {}
        self._busy_claims: dict[str, None] = {}
        self._busy_places: dict[str, SlotBooking] = {}
        self._gone: dict[str, None] = {}
        """Claims and places in flight whose records were seen to be removed: looked at again when they have landed."""

    def in_flight(self, claim_key: str) -> bool:
        return claim_key in self._busy_claims

    def claim_removed(self, namespace: str, name: str) -> None:
        """Someone else removed a record of a claim, or may have: the ledger follows, now or after what is in flight."""
        key = f"{namespace}/{name}"
        if key in self._busy_claims:
            self._gone[key] = None
        elif key in self._ledger.claims:
            self._state.reload_claim(namespace, name)

    def slots_changed(self, node: str, gone: str = "") -> None:
        """Someone else changed what is held on a node. A place in flight counts until it has landed, even if it was
        given up meanwhile: then it is looked at once more."""
        if gone in self._busy_places:
            self._gone[gone] = None
        in_flight = {name: place.amounts for name, place in self._busy_places.items() if place.node == node}
        self._state.reload_slots(node, in_flight)

    def reload_all(self) -> None:
        """Nobody knows what was removed: everything is read anew, what is in flight when it has landed."""
        for claim in list(self._ledger.claims.values()):
            self.claim_removed(claim.namespace, claim.name)
        self._gone.update(dict.fromkeys(self._busy_places))
        for node in list(self._ledger.nodes):
            self.slots_changed(node)

    async def process(self, job: RoundJob) -> RoundResult:
        """Answers every item, in order. Returns when all that was accepted is durable and readable."""
        answers: list[PlacementResult | None] = [None] * len(job.items)
        revision = 0
        todo = list(range(len(job.items)))
        barren = 0
        while todo and barren < limits.COMMIT_ROUNDS_MAX:
            before = len(todo)
            todo, landed_at = await self._round(job, todo, answers)
            revision = max(revision, landed_at)
            barren += len(todo) == before
        for index in todo:
            answers[index] = rejected(
                Refused(Reason.WAITING, f"what the item rests on changed {limits.COMMIT_ROUNDS_MAX} times over; ask again")
            )
        return RoundResult([a for a in answers if a is not None], revision)

    async def _round(self, job: RoundJob, todo: list[int], answers: list[PlacementResult | None]) -> tuple[list[int], int]:
        """One pass: answers what it can and returns what is left, with the revision that was reached."""
        later: list[int] = todo[limits.PLACEMENT_BATCH_MAX :]
        waits: dict[_Flight, None] = {}
        async with self._seats.acquire(min(len(todo), limits.PLACEMENT_BATCH_MAX)):
            await self._commits.wait_ready(self._token)
            # From here to the commit nothing is awaited: what is checked is what is committed against.
            earlier = dict(self._flights)
            flight = _Flight()
            taken: list[tuple[int, CommitStep]] = []
            unsure: list[tuple[int, PlacementResult]] = []
            room = _NodeRoom(self._state.objects.max_writes)
            self._flights[flight] = None
            try:
                job.begin_round()
                for index in todo[: limits.PLACEMENT_BATCH_MAX]:
                    if room.full:
                        later.append(index)
                        continue
                    identity = job.identity(job.items[index])
                    other = self._busy.get(identity)
                    if other is not None:
                        waits[other] = None
                        later.append(index)
                        continue
                    out = job.plan(job.items[index])
                    if isinstance(out, CommitStep) and not room.take(out):
                        later.append(index)
                    elif isinstance(out, CommitStep):
                        self._book(identity, out, flight)
                        taken.append((index, out))
                    elif out.reason in CLAIM_DEPENDENT_REASONS and (earlier or taken):
                        unsure.append((index, out))
                    else:
                        answers[index] = out
            except BaseException:
                self._undo(taken)
                self._end(job, flight, taken, landed=False)
                raise
            lost: list[int] = []
            revision, conflict = 0, None
            if taken:
                lost, revision, conflict = await self._fly(job, flight, taken, answers)
            else:
                self._end(job, flight, taken, landed=True)
        if conflict is not None:
            await self._commits.wait_published(conflict)
        later += lost
        stands = not lost
        for other in earlier if unsure else ():
            stands = await _outcome(other) and stands
        for index, answer in unsure:
            if stands:
                answers[index] = answer
            else:
                later.append(index)
        for other in waits:
            await _outcome(other)
        return sorted(later), revision

    def _book(self, identity: str, step: CommitStep, flight: _Flight) -> None:
        self._busy[identity] = flight
        if step.claim is not None:
            step.claim_before = self._ledger.put(step.claim)
            self._busy_claims[step.claim.key] = None
        if step.slot is not None:
            self._ledger.put_slot(step.slot.node, step.slot.name, step.slot.amounts)
            self._busy_places[step.slot.name] = step.slot

    def _undo(self, steps: Sequence[tuple[int, CommitStep]]) -> None:
        for _, step in reversed(steps):
            if step.claim is not None:
                self._ledger.restore(step.claim.key, step.claim_before)
            if step.slot is not None:
                self._ledger.drop_slot(step.slot.node, step.slot.name)

    async def _fly(
        self, job: RoundJob, flight: _Flight, taken: list[tuple[int, CommitStep]], answers: list[PlacementResult | None]
    ) -> tuple[list[int], int, Conflict | None]:
        """Commits the steps; those whose objects moved are taken out and the others go on without them."""
        left, lost, revision = taken, list[int](), 0
        conflict: Conflict | None = None
        try:
            for attempt in range(limits.COMMIT_ROUNDS_MAX):
                if not left:
                    break
                if attempt:
                    await self._commits.wait_ready(self._token)
                try:
                    revision = await self._commit(job, left, answers)
                except Conflict as found:
                    conflict = found
                    hit = self._hit(left, str(found.facts.get("key", "")))
                    self._undo(hit)
                    lost += [index for index, _ in hit]
                    gone = {index for index, _ in hit}
                    left = [pair for pair in left if pair[0] not in gone]
                    continue
                self._land(left, answers)
                left = []
            return lost + [index for index, _ in left], revision, conflict
        finally:
            self._undo(left)
            self._end(job, flight, taken, landed=not lost and not left)

    def _end(self, job: RoundJob, flight: _Flight, taken: list[tuple[int, CommitStep]], *, landed: bool) -> None:
        del self._flights[flight]
        for index, step in taken:
            self._busy.pop(job.identity(job.items[index]), None)
            if step.claim is not None:
                self._busy_claims.pop(step.claim.key, None)
                if self._gone and step.claim.key in self._gone:
                    del self._gone[step.claim.key]
                    self._state.reload_claim(step.claim.namespace, step.claim.name)
            if step.slot is not None:
                self._busy_places.pop(step.slot.name, None)
                if self._gone and step.slot.name in self._gone:
                    del self._gone[step.slot.name]
                    self.slots_changed(step.slot.node)
        flight.done.set_result(landed)

    async def _commit(self, job: RoundJob, steps: list[tuple[int, CommitStep]], answers: list[PlacementResult | None]) -> int:
        extra = job.extra_writes(steps, answers)
        compares = dict(extra.compares)
        writes = list(extra.writes)
        entries = []
        for _, step in steps:
            compares.update(step.compares)
            writes += step.writes
            entries.append(step.entry)
        record: Append = audit.commit_record(job.who, self._state.now(), job.verb, entries)
        done = await self._commits.commit(compares, writes, (record,), steps[0][1].probe, under=self._token)
        return done.revision

    def _hit(self, steps: list[tuple[int, CommitStep]], key: str) -> list[tuple[int, CommitStep]]:
        """The steps that rest on the key in the way; all of them if that cannot be told."""
        return [pair for pair in steps if key in pair[1].compares] or steps

    def _land(self, steps: list[tuple[int, CommitStep]], answers: list[PlacementResult | None]) -> None:
        ledger = self._ledger
        for index, step in steps:
            if step.released_key:
                ledger.drop(step.released_key)
            if step.claim_after is not None:
                ledger.put(step.claim_after)
            answers[index] = step.answer


async def _outcome(flight: _Flight) -> bool:
    return await asyncio.shield(flight.done)


class BackgroundJob:
    """A job of the authority's own: items of any type, and a function that plans one."""

    def __init__(
        self,
        verb: str,
        who: Principal,
        items: Sequence[Any],
        identity: Callable[[Any], str],
        plan: Callable[[Any], CommitStep | PlacementResult],
    ) -> None:
        self.verb = verb
        self.who = who
        self.items = items
        self.identity = identity
        self.plan = plan

    def begin_round(self) -> None:
        """Chores read everything anew for each item."""

    def extra_writes(self, taken: Sequence[tuple[int, CommitStep]], answers: Sequence[PlacementResult | None]) -> ExtraWrites:
        return ExtraWrites()
