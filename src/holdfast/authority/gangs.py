"""Gangs: members reserve, one compare-and-swap on their SchedulingRequest commits the gang, then members are bound.

- No member is bound before the gang commit, so no agent can start one.
- A reserve request that leaves a gang incomplete releases all its Reservations.
- Gangs reserve one after another, so two gangs never block each other with half their members.
- `commit_and_bind` is level-triggered; it repairs a crash between these steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.authority import bind_preconditions, records
from holdfast.authority.bind import BindHandler
from holdfast.authority.bind_preconditions import REQUEST, GangState
from holdfast.authority.claims import Claim
from holdfast.authority.commit_rounds import NOTHING, BackgroundJob, CommitRounds, CommitStep, RoundResult, rejected
from holdfast.authority.commits import Commits, stored
from holdfast.authority.release import free_step
from holdfast.authority.reserve import ReserveJob
from holdfast.authority.state import AuthorityState
from holdfast.gate import audit
from holdfast.model.binding import Intent
from holdfast.model.errors import Conflict, Refused
from holdfast.model.placement_api import BindItem, PlacementOutcome, PlacementResult, ReserveItem
from holdfast.model.principal import Principal
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import GangBlock, SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text

_GangKey = tuple[str, str, str]


class Gangs:
    def __init__(self, state: AuthorityState, rounds: CommitRounds, commits: Commits, caller: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._commits = commits
        self._caller = caller
        self._lock = asyncio.Lock()

    def has_uncommitted_gang(self, items: Iterable[ReserveItem]) -> bool:
        """Whether one of the items is a member of a gang that is not committed yet."""
        seen: dict[_GangKey, None] = {}
        for item in items:
            replica = self._state.replica(item.namespace, item.replica)
            if replica is None or _key(replica) in seen:
                continue
            seen[_key(replica)] = None
            gang = bind_preconditions.gang_state(self._state, replica)
            if gang is not None and not gang.committed:
                return True
        return False

    async def reserve(self, job: ReserveJob) -> RoundResult:
        """Reserves the members; then the gang is committed, or all are released."""
        async with self._lock:
            settled = await self._rounds.process(job)
            await self.commit_and_bind()
            incomplete = await self._release_incomplete(job)
        answers = [
            self._incomplete_result(item, answer, incomplete)
            for item, answer in zip(job.items, settled.results, strict=True)
        ]
        return RoundResult(answers, settled.revision)

    async def commit_and_bind(self) -> None:
        """Commits gangs with enough reserved members, and binds Reservations whose preconditions are met."""
        if not self._state.ledger.unbound:
            return
        waiting, without_gang = self._unbound_by_gang()
        for members in waiting.values():
            await self._commit(members)
        ready = [r for members in waiting.values() for r, claim in members if self._can_bind(r, claim)]
        ready += [r for r, claim in without_gang if self._can_bind(r, claim)]
        if ready:
            items = [_bind_item(replica) for replica in ready]
            await self._rounds.process(BindHandler(self._state, self._caller, items, None))

    # Inside

    def _unbound(self) -> list[tuple[Replica, Claim]]:
        found = []
        for claim in self._state.ledger.unbound.values():
            replica = self._state.replica(claim.namespace, claim.replica)
            if replica is not None and replica.uid == claim.replica_uid:
                found.append((replica, claim))
        return found

    def _unbound_by_gang(self) -> tuple[dict[_GangKey, list[tuple[Replica, Claim]]], list[tuple[Replica, Claim]]]:
        """The unbound claims by gang, and firm unbound claims without a gang (their victims were released)."""
        gangs: dict[_GangKey, list[tuple[Replica, Claim]]] = {}
        without_gang: list[tuple[Replica, Claim]] = []
        for replica, claim in self._unbound():
            assignment = bind_preconditions.assignment_of(self._state, replica)
            if assignment is not None and assignment.spec.gang is not None:
                gangs.setdefault(_key(replica), []).append((replica, claim))
            elif not claim.nominated:
                without_gang.append((replica, claim))
        return gangs, without_gang

    def _can_bind(self, replica: Replica, claim: Claim) -> bool:
        if claim.nominated or claim.bound:
            return False
        reservation = self._state.reservation(claim.namespace, claim.name)
        if reservation is None or not reservation.spec.auto_bind:
            return False
        gang = bind_preconditions.gang_state(self._state, replica)
        return gang is None or gang.committed

    async def _commit(self, members: Sequence[tuple[Replica, Claim]]) -> None:
        """The commit point of a gang. No other commit starts meanwhile, so that the counts stay valid."""
        replica = members[0][0]
        async with self._commits.exclusive():
            gang = bind_preconditions.gang_state(self._state, replica)
            if gang is None or gang.committed or gang.request is None:
                return
            firm = [c for _, c in members if not c.nominated and c.key in self._state.ledger.unbound]
            if any(self._rounds.in_flight(claim.key) for claim in firm):
                return  # the next run decides
            reserved_members = bind_preconditions.bound_members(self._state, replica) + len(firm)
            if reserved_members < gang.needed:
                return
            await self._write(gang, gang.request, reserved_members)

    async def _write(self, gang: GangState, request: SchedulingRequest, reserved_members: int) -> None:
        state = self._state
        block = GangBlock(committed_at=micro_text(state.now()), members=reserved_members)
        status = msgspec.structs.replace(request.status, gang=block)
        put = records.status_put(REQUEST, request, status)
        meta = request.metadata
        entry = audit.AuditEntry("update", REQUEST.name, meta.name, meta.namespace, meta.uid, request.revision)
        record = audit.commit_record(self._caller, state.now(), "commit-gang", [entry])
        try:
            await self._commits.commit({put.key: request.revision}, [put], (record,), stored(REQUEST, meta, _committed))
        except Conflict:
            return  # the request changed; the next run counts again

    async def _release_incomplete(self, job: ReserveJob) -> dict[str, tuple[int, int]]:
        """Releases the Reservations of incomplete gangs. Returns (reserved, needed) per replica uid."""
        requested = {item.intent.replica_uid for item in job.items}
        incomplete: dict[str, tuple[int, int]] = {}
        to_release: list[Claim] = []
        for members in self._unbound_by_gang()[0].values():
            gang = bind_preconditions.gang_state(self._state, members[0][0])
            if gang is None or gang.committed:
                continue
            reserved = bind_preconditions.bound_members(self._state, members[0][0]) + len(members)
            if reserved >= gang.needed:
                continue  # enough members are reserved; some wait for victims
            for replica, claim in members:
                if replica.uid in requested:
                    incomplete[replica.uid] = (reserved, gang.needed)
                    to_release.append(claim)
        if to_release:
            release_job = BackgroundJob(
                "release", self._caller, to_release, lambda claim: str(claim.replica_uid), self._plan_release
            )
            await self._rounds.process(release_job)
        return incomplete

    def _plan_release(self, claim: Claim) -> CommitStep | PlacementResult:
        replica = self._state.replica(claim.namespace, claim.replica)
        reserved = replica is not None and replica.uid == claim.replica_uid
        if replica is None or not reserved or replica.status.placement.reservation != claim.name:
            return NOTHING
        if replica.status.placement.binding:
            return NOTHING
        return free_step(self._state, replica, None, Reason.GANG_INCOMPLETE.value)

    def _incomplete_result(
        self, item: ReserveItem, answer: PlacementResult, incomplete: dict[str, tuple[int, int]]
    ) -> PlacementResult:
        found = incomplete.get(item.intent.replica_uid)
        if found is None or answer.result is not PlacementOutcome.ACCEPTED:
            return answer
        reserved, needed = found
        refused = Refused(
            Reason.GANG_INCOMPLETE,
            f"the gang needs {needed} members placed together (found {reserved}); all its reservations were released",
            {"reserved": reserved, "needed": needed},
        )
        return rejected(refused, attempt=item.intent.attempt + 1)


def _key(replica: Replica) -> _GangKey:
    return (replica.metadata.namespace, replica.spec.assignment, replica.spec.revision)


def _bind_item(replica: Replica) -> BindItem:
    meta, attempt = replica.metadata, replica.status.placement.attempt
    intent = Intent(replica_uid=replica.uid, template_hash=template_hash(replica.spec.template), attempt=attempt)
    return BindItem(meta.namespace, meta.name, intent)


def _committed(request: SchedulingRequest) -> bool:
    return request.status.gang is not None and bool(request.status.gang.committed_at)
