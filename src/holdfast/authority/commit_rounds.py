"""Commit rounds: checks each proposal, commits the accepted ones in one transaction, responds per proposal.

- A claim enters the ledger when its check passes, so the next check counts it. If the commit fails, it is removed.
- A refusal caused by an uncommitted claim is held until that commit completes, and rechecked if the commit failed.
- One invalid proposal does not fail the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.authority.claims import Claim, VolumeHold
from holdfast.authority.commits import CommitProbe, Commits, CommitTest, removed, stored
from holdfast.authority.concurrency import ItemSemaphore
from holdfast.authority.state import AuthorityState
from holdfast.gate import audit
from holdfast.model import limits
from holdfast.model.errors import Conflict, Refused
from holdfast.model.kinds import Kind
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
from holdfast.model.principal import Principal
from holdfast.model.quantity import Amounts
from holdfast.model.reasons import Reason
from holdfast.store.contract import Append, Put, Remove

CLAIM_DEPENDENT_REASONS = frozenset(
    {
        Reason.INSUFFICIENT_CPU,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_RESOURCE,
        Reason.INSUFFICIENT_DEVICES,
        Reason.INSUFFICIENT_STORAGE,
        Reason.VOLUME_IN_USE,
        Reason.DEVICE_IN_USE,
        Reason.PORT_IN_USE,
        Reason.PORTS_EXHAUSTED,
        Reason.QUOTA_EXCEEDED,
        Reason.GRANT_EXPIRED,
        Reason.NOT_ALLOWED_WHILE_PARTITIONED,
        Reason.AFFINITY_NOT_MET,
        Reason.ANTI_AFFINITY_VIOLATED,
        Reason.SPREAD_VIOLATED,
        Reason.WAITING,
    }
)
"""Refusal reasons that other claims cause. Only these are rechecked after a failed commit."""


NOTHING = PlacementResult(result=PlacementOutcome.ALREADY)
"""Result of a background job that has nothing to do for an item."""


class SlotBooking(msgspec.Struct, frozen=True, gc=False):
    """A recovery slot that a step admits. It counts from its check on, like a claim."""

    node: str
    name: str
    amounts: Amounts


class CommitStep(msgspec.Struct):
    """One accepted item: its part of the transaction and its effect on the ledger.

    `claim` is booked at once. After the commit, `claim_after` replaces it, and the claim of `released_key` is dropped.
    """

    result: PlacementResult
    compares: dict[str, int]
    writes: list[Put | Remove]
    probe: CommitProbe
    entry: audit.AuditEntry
    claim: Claim | None = None
    claim_after: Claim | None = None
    released_key: str = ""
    claim_before: Claim | None = None
    extra_write_count: int = 0
    """Writes that the job adds for this step alone, such as its Decision."""
    slot: SlotBooking | None = None
    relies_on: tuple[str, ...] = ()
    """Claims of commits in flight that must be committed first, or with this step."""
    reads_claims: bool = False
    """Its check counted other claims. After a conflict it is checked again, because some of them may be gone."""
    volumes: tuple[VolumeHold, ...] = ()
    """Volumes that it creates. They count from its check on."""


def make_step(
    op: str,
    kind: Kind,
    meta: ObjectMeta,
    result: PlacementResult,
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
    return CommitStep(result, compares, writes, probe, entry, claim, keep, free)


class ExtraWrites(msgspec.Struct):
    """Compares and writes of a transaction besides those of its items."""

    compares: dict[str, int] = {}
    writes: list[Put | Remove] = []


class RoundJob(Protocol):
    """One request: its items, and how each item is checked against current state."""

    @property
    def verb(self) -> str: ...

    @property
    def caller(self) -> Principal: ...

    @property
    def items(self) -> Sequence[Any]: ...

    def begin_round(self) -> None:
        """Starts a round: drops state read for the last one."""

    def identity(self, item: Any) -> str:
        """The key that must not be in two commits at once: the replica's uid."""

    def plan(self, item: Any) -> CommitStep | PlacementResult: ...

    def extra_writes(
        self, accepted: Sequence[tuple[int, CommitStep]], results: Sequence[PlacementResult | None]
    ) -> ExtraWrites: ...


class RoundResult(msgspec.Struct):
    results: list[PlacementResult]
    revision: int


class _WriteBudget:
    """Remaining size of a transaction. The first item always fits, because an item is never split."""

    def __init__(self, writes: int) -> None:
        # One write is reserved for the job itself, such as its Decision.
        self._writes_left = writes - 1
        self._bytes_left = limits.BATCH_BYTES_MAX
        self._compared: set[str] = set()
        self._compares_left = writes
        self._empty = True
        self.full = False

    def take(self, step: CommitStep) -> bool:
        size = sum(len(write.value) for write in step.writes if isinstance(write, Put))
        writes = len(step.writes) + step.extra_write_count
        compared = (
            len(self._compared) + sum(key not in self._compared for key in step.compares) + step.extra_write_count
        )
        fits = writes <= self._writes_left and size <= self._bytes_left and compared < self._compares_left
        self.full = not fits and not self._empty
        if not self.full:
            self._writes_left -= writes
            self._compares_left -= step.extra_write_count
            self._bytes_left -= size
            self._compared.update(step.compares)
            self._empty = False
        return not self.full


class _CommitInFlight:
    """A commit in flight. `done` tells whether all its steps were committed."""

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
    """The rounds of one leadership; the next leadership has its own rounds and ledger."""

    def __init__(self, state: AuthorityState, commits: Commits) -> None:
        self._state = state
        self._commits = commits
        self._token = commits.token
        self._ledger = state.ledger
        self._semaphore = ItemSemaphore(limits.BATCHES_IN_FLIGHT_MAX * limits.PLACEMENT_BATCH_MAX)
        self._in_flight: dict[_CommitInFlight, None] = {}
        self._busy_identities: dict[str, _CommitInFlight] = {}
        self._busy_claims: dict[str, _CommitInFlight] = {}
        self._busy_slots: dict[str, SlotBooking] = {}
        self._busy_volumes: dict[str, None] = {}
        self._removed_in_flight: dict[str, None] = {}
        """Claims and slots in flight whose objects were removed meanwhile; reloaded after their commit."""

    def in_flight(self, claim_key: str) -> bool:
        return claim_key in self._busy_claims

    def claim_removed(self, namespace: str, name: str) -> None:
        """Reloads a claim whose object another writer removed, now or after its commit in flight."""
        key = f"{namespace}/{name}"
        if key in self._busy_claims:
            self._removed_in_flight[key] = None
        elif key in self._ledger.claims:
            self._state.reload_claim(namespace, name)

    def volume_removed(self, namespace: str, name: str) -> None:
        if f"{namespace}/{name}" not in self._busy_volumes:
            self._state.reload_volume(namespace, name)

    def slots_changed(self, node: str, removed: str = "") -> None:
        """Reloads the recovery slots of a node after another writer changed them. A slot in flight counts until its
        commit completes; if it was removed meanwhile (`removed`), it is reloaded then."""
        if removed in self._busy_slots:
            self._removed_in_flight[removed] = None
        in_flight = {name: place.amounts for name, place in self._busy_slots.items() if place.node == node}
        self._state.reload_slots(node, in_flight)

    def reload_all(self) -> None:
        """Reloads all claims and slots after watch events were lost; those in flight after their commit."""
        for claim in list(self._ledger.claims.values()):
            self.claim_removed(claim.namespace, claim.name)
        for hold in list(self._ledger.volumes.values()):
            self.volume_removed(hold.namespace, hold.name)
        self._removed_in_flight.update(dict.fromkeys(self._busy_slots))
        for node in list(self._ledger.nodes):
            self.slots_changed(node)

    async def process(self, job: RoundJob) -> RoundResult:
        """Processes every item, in order. Returns when all accepted items are durable and readable."""
        results: list[PlacementResult | None] = [None] * len(job.items)
        revision = 0
        remaining = list(range(len(job.items)))
        rounds_without_progress = 0
        while remaining and rounds_without_progress < limits.COMMIT_ROUNDS_MAX:
            before = len(remaining)
            remaining, landed_at = await self._round(job, remaining, results)
            revision = max(revision, landed_at)
            rounds_without_progress += len(remaining) == before
        for index in remaining:
            results[index] = rejected(
                Refused(Reason.WAITING, f"its objects changed {limits.COMMIT_ROUNDS_MAX} times in a row; next: retry")
            )
        return RoundResult([a for a in results if a is not None], revision)

    async def _round(
        self, job: RoundJob, remaining: list[int], results: list[PlacementResult | None]
    ) -> tuple[list[int], int]:
        """One round. Returns the items that are left, and the committed revision."""
        retry: list[int] = remaining[limits.PLACEMENT_BATCH_MAX :]
        waiting_for: dict[_CommitInFlight, None] = {}
        async with self._semaphore.acquire(min(len(remaining), limits.PLACEMENT_BATCH_MAX)):
            await self._commits.wait_ready(self._token)
            # There is no await from here to the commit, so the checked state is the compared state.
            earlier_commits = dict(self._in_flight)
            commit = _CommitInFlight()
            accepted: list[tuple[int, CommitStep]] = []
            provisional_refusals: list[tuple[int, PlacementResult]] = []
            budget = _WriteBudget(self._state.objects.max_writes)
            self._in_flight[commit] = None
            try:
                job.begin_round()
                for index in remaining[: limits.PLACEMENT_BATCH_MAX]:
                    if budget.full:
                        retry.append(index)
                        continue
                    identity = job.identity(job.items[index])
                    other = self._busy_identities.get(identity)
                    if other is not None:
                        waiting_for[other] = None
                        retry.append(index)
                        continue
                    planned = job.plan(job.items[index])
                    earlier = self._relied_on(planned, commit)
                    if earlier is not None:
                        waiting_for[earlier] = None
                        retry.append(index)
                    elif isinstance(planned, CommitStep) and not budget.take(planned):
                        retry.append(index)
                    elif isinstance(planned, CommitStep):
                        self._book_step(identity, planned, commit)
                        accepted.append((index, planned))
                    elif planned.reason in CLAIM_DEPENDENT_REASONS and (earlier_commits or accepted):
                        provisional_refusals.append((index, planned))
                    else:
                        results[index] = planned
            except BaseException:
                self._undo(accepted)
                self._finish(job, commit, accepted, landed=False)
                raise
            dropped: list[int] = []
            revision, conflict = 0, None
            if accepted:
                dropped, revision, conflict = await self._commit_steps(job, commit, accepted, results)
            else:
                self._finish(job, commit, accepted, landed=True)
        if conflict is not None:
            await self._commits.wait_published(conflict)
        retry += dropped
        refusals_stand = not dropped
        for other in earlier_commits if provisional_refusals else ():
            refusals_stand = await _outcome(other) and refusals_stand
        for index, result in provisional_refusals:
            if refusals_stand:
                results[index] = result
            else:
                retry.append(index)
        for other in waiting_for:
            await _outcome(other)
        return sorted(retry), revision

    def _book_step(self, identity: str, step: CommitStep, commit: _CommitInFlight) -> None:
        self._busy_identities[identity] = commit
        if step.claim is not None:
            step.claim_before = self._ledger.put(step.claim)
            self._busy_claims[step.claim.key] = commit
        if step.slot is not None:
            self._ledger.put_slot(step.slot.node, step.slot.name, step.slot.amounts)
            self._busy_slots[step.slot.name] = step.slot
        for hold in step.volumes:
            self._ledger.put_volume(hold)
            self._busy_volumes[hold.key] = None

    def _undo(self, steps: Sequence[tuple[int, CommitStep]]) -> None:
        for _, step in reversed(steps):
            if step.claim is not None:
                self._ledger.restore(step.claim.key, step.claim_before)
            if step.slot is not None:
                self._ledger.drop_slot(step.slot.node, step.slot.name)
            for hold in step.volumes:
                self._ledger.drop_volume(hold.key)

    async def _commit_steps(
        self,
        job: RoundJob,
        commit: _CommitInFlight,
        accepted: list[tuple[int, CommitStep]],
        results: list[PlacementResult | None],
    ) -> tuple[list[int], int, Conflict | None]:
        """Commits the steps. Steps whose objects changed are dropped, and the others are committed without them."""
        left, dropped, revision = accepted, list[int](), 0
        conflict: Conflict | None = None
        try:
            for attempt in range(limits.COMMIT_ROUNDS_MAX):
                if not left:
                    break
                if attempt:
                    await self._commits.wait_ready(self._token)
                try:
                    revision = await self._commit(job, left, results)
                except Conflict as found:
                    conflict = found
                    conflicting = self._conflicting(left, str(found.facts.get("key", "")))
                    self._undo(conflicting)
                    dropped += [index for index, _ in conflicting]
                    removed = {index for index, _ in conflicting}
                    left = [pair for pair in left if pair[0] not in removed]
                    continue
                self._apply_committed(left, results)
                left = []
            return dropped + [index for index, _ in left], revision, conflict
        finally:
            self._undo(left)
            self._finish(job, commit, accepted, landed=not dropped and not left)

    def _finish(
        self, job: RoundJob, commit: _CommitInFlight, accepted: list[tuple[int, CommitStep]], *, landed: bool
    ) -> None:
        del self._in_flight[commit]
        for index, step in accepted:
            self._busy_identities.pop(job.identity(job.items[index]), None)
            if step.claim is not None:
                self._busy_claims.pop(step.claim.key, None)
                if self._removed_in_flight and step.claim.key in self._removed_in_flight:
                    del self._removed_in_flight[step.claim.key]
                    self._state.reload_claim(step.claim.namespace, step.claim.name)
            for hold in step.volumes:
                self._busy_volumes.pop(hold.key, None)
            if step.slot is not None:
                self._busy_slots.pop(step.slot.name, None)
                if self._removed_in_flight and step.slot.name in self._removed_in_flight:
                    del self._removed_in_flight[step.slot.name]
                    self.slots_changed(step.slot.node)
        commit.done.set_result(landed)

    async def _commit(
        self, job: RoundJob, steps: list[tuple[int, CommitStep]], results: list[PlacementResult | None]
    ) -> int:
        extra = job.extra_writes(steps, results)
        compares = dict(extra.compares)
        writes = list(extra.writes)
        entries = []
        for _, step in steps:
            compares.update(step.compares)
            writes += step.writes
            entries.append(step.entry)
        record: Append = audit.commit_record(job.caller, self._state.now(), job.verb, entries)
        done = await self._commits.commit(compares, writes, (record,), steps[0][1].probe, under=self._token)
        return done.revision

    def _relied_on(self, planned: CommitStep | PlacementResult, commit: _CommitInFlight) -> _CommitInFlight | None:
        """Another commit in flight that must complete before the step can be committed."""
        keys = planned.relies_on if isinstance(planned, CommitStep) else ()
        busy = (self._busy_claims.get(key) for key in keys)
        return next((other for other in busy if other is not None and other is not commit), None)

    def _conflicting(self, steps: list[tuple[int, CommitStep]], key: str) -> list[tuple[int, CommitStep]]:
        """The steps that compare the conflicting key, and those that counted other claims; all if it is unknown."""
        found = [pair for pair in steps if key in pair[1].compares]
        return [pair for pair in steps if key in pair[1].compares or pair[1].reads_claims] if found else steps

    def _apply_committed(self, steps: list[tuple[int, CommitStep]], results: list[PlacementResult | None]) -> None:
        ledger = self._ledger
        for index, step in steps:
            if step.released_key:
                ledger.drop(step.released_key)
            if step.claim_after is not None:
                ledger.put(step.claim_after)
            results[index] = step.result


async def _outcome(commit: _CommitInFlight) -> bool:
    return await asyncio.shield(commit.done)


class BackgroundJob:
    """A job of the authority itself: items of any type, and a function that plans one."""

    def __init__(
        self,
        verb: str,
        caller: Principal,
        items: Sequence[Any],
        identity: Callable[[Any], str],
        plan: Callable[[Any], CommitStep | PlacementResult],
    ) -> None:
        self.verb = verb
        self.caller = caller
        self.items = items
        self.identity = identity
        self.plan = plan

    def begin_round(self) -> None:
        """Nothing to do: background jobs read state per item."""

    def extra_writes(
        self, accepted: Sequence[tuple[int, CommitStep]], results: Sequence[PlacementResult | None]
    ) -> ExtraWrites:
        return ExtraWrites()
