"""Gangs: members reserve in chunks, one compare-and-swap on their SchedulingRequest commits them, then they are bound.

What always holds: no member is bound before the commit, so no agent can start one; a request that leaves a gang
incomplete gives back every place it took; gangs reserve one after another, so that two never hold half each and wait
for the other. A crash in between is mended by `complete`, which looks at what is and not at what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.authority import bind_preconditions, records
from holdfast.authority.bind import BindHandler
from holdfast.authority.bind_preconditions import REQUEST, GangState
from holdfast.authority.claims import Claim
from holdfast.authority.commit_rounds import (
    NOTHING,
    BackgroundJob,
    CommitRounds,
    CommitStep,
    RoundResult,
    rejected,
)
from holdfast.authority.commits import Commits, stored
from holdfast.authority.release import free_step
from holdfast.authority.reserve import ReserveJob
from holdfast.authority.state import AuthorityState
from holdfast.gate import audit
from holdfast.gate.principal import Principal
from holdfast.model.binding import Intent
from holdfast.model.errors import Conflict, Refused
from holdfast.model.placement_api import BindItem, PlacementOutcome, PlacementResult, ReserveItem
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import GangBlock, SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text

_GangKey = tuple[str, str, str]


class Gangs:
    def __init__(self, state: AuthorityState, rounds: CommitRounds, commits: Commits, who: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._commits = commits
        self._who = who
        self._turn = asyncio.Lock()

    def has_uncommitted_gang(self, items: Iterable[ReserveItem]) -> bool:
        """Whether one of these is a member of a gang that does not stand yet."""
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
        """Reserves every member it can; then all are committed, or all let go."""
        async with self._turn:
            settled = await self._rounds.process(job)
            await self.commit_and_bind()
            short = await self._let_go(job)
        answers = [
            self._incomplete(item, answer, short) for item, answer in zip(job.items, settled.answers, strict=True)
        ]
        return RoundResult(answers, settled.revision)

    async def commit_and_bind(self) -> None:
        """Commits every gang of which enough members hold a place, and binds whatever waits for nothing any more."""
        if not self._state.ledger.unbound:
            return
        waiting, single = self._waiting()
        for members in waiting.values():
            await self._commit(members)
        ready = [r for members in waiting.values() for r, claim in members if self._ready(r, claim)]
        ready += [r for r, claim in single if self._ready(r, claim)]
        if ready:
            items = [_bind_item(replica) for replica in ready]
            await self._rounds.process(BindHandler(self._state, self._who, items, None))

    # Inside

    def _unbound(self) -> list[tuple[Replica, Claim]]:
        found = []
        for claim in self._state.ledger.unbound.values():
            replica = self._state.replica(claim.namespace, claim.replica)
            if replica is not None and replica.uid == claim.replica_uid:
                found.append((replica, claim))
        return found

    def _waiting(self) -> tuple[dict[_GangKey, list[tuple[Replica, Claim]]], list[tuple[Replica, Claim]]]:
        """The unbound claims of every gang, and those that are no gang's: of work whose victims have left."""
        gangs: dict[_GangKey, list[tuple[Replica, Claim]]] = {}
        single: list[tuple[Replica, Claim]] = []
        for replica, claim in self._unbound():
            assignment = bind_preconditions.assignment_of(self._state, replica)
            if assignment is not None and assignment.spec.gang is not None:
                gangs.setdefault(_key(replica), []).append((replica, claim))
            elif not claim.nominated:
                single.append((replica, claim))
        return gangs, single

    def _ready(self, replica: Replica, claim: Claim) -> bool:
        if claim.nominated or claim.bound:
            return False
        reservation = self._state.reservation(claim.namespace, claim.name)
        if reservation is None or not reservation.spec.auto_bind:
            return False
        gang = bind_preconditions.gang_state(self._state, replica)
        return gang is None or gang.committed

    async def _commit(self, members: Sequence[tuple[Replica, Claim]]) -> None:
        """The commit point of a gang. Nothing else is committed meanwhile, so that what was counted still holds."""
        first = members[0][0]
        async with self._commits.exclusive():
            gang = bind_preconditions.gang_state(self._state, first)
            if gang is None or gang.committed or gang.request is None:
                return
            firm = [c for _, c in members if not c.nominated and c.key in self._state.ledger.unbound]
            if any(self._rounds.in_flight(claim.key) for claim in firm):
                return  # the next look settles it
            standing = bind_preconditions.bound_members(self._state, first) + len(firm)
            if standing < gang.needed:
                return
            await self._write(gang, gang.request, standing)

    async def _write(self, gang: GangState, request: SchedulingRequest, standing: int) -> None:
        state = self._state
        block = GangBlock(committed_at=micro_text(state.now()), members=standing)
        status = msgspec.structs.replace(request.status, gang=block)
        put = records.status_put(REQUEST, request, status)
        meta = request.metadata
        entry = audit.AuditEntry("update", REQUEST.name, meta.name, meta.namespace, meta.uid, request.revision)
        record = audit.commit_record(self._who, state.now(), "commit-gang", [entry])
        try:
            await self._commits.commit({put.key: request.revision}, [put], (record,), stored(REQUEST, meta, _committed))
        except Conflict:
            return  # the request changed: the next look counts again

    async def _let_go(self, job: ReserveJob) -> dict[str, tuple[int, int]]:
        """Frees what members of incomplete gangs took; answers with (held, needed) per replica uid."""
        asked = {item.intent.replica_uid for item in job.items}
        short: dict[str, tuple[int, int]] = {}
        letting: list[Claim] = []
        for members in self._waiting()[0].values():
            gang = bind_preconditions.gang_state(self._state, members[0][0])
            if gang is None or gang.committed:
                continue
            held = bind_preconditions.bound_members(self._state, members[0][0]) + len(members)
            if held >= gang.needed:
                continue  # enough hold a place; some wait for victims
            for replica, claim in members:
                if replica.uid in asked:
                    short[replica.uid] = (held, gang.needed)
                    letting.append(claim)
        if letting:
            chore = BackgroundJob("release", self._who, letting, lambda claim: str(claim.replica_uid), self._plan_letting_go)
            await self._rounds.process(chore)
        return short

    def _plan_letting_go(self, claim: Claim) -> CommitStep | PlacementResult:
        replica = self._state.replica(claim.namespace, claim.replica)
        held = replica is not None and replica.uid == claim.replica_uid
        if replica is None or not held or replica.status.placement.reservation != claim.name:
            return NOTHING
        if replica.status.placement.binding:
            return NOTHING
        return free_step(self._state, replica, None, Reason.GANG_INCOMPLETE.value)

    def _incomplete(self, item: ReserveItem, answer: PlacementResult, short: dict[str, tuple[int, int]]) -> PlacementResult:
        found = short.get(item.intent.replica_uid)
        if found is None or answer.result is not PlacementOutcome.ACCEPTED:
            return answer
        held, needed = found
        refused = Refused(
            Reason.GANG_INCOMPLETE,
            f"{needed} members must be placed together and {held} could be; all of them let go",
            {"held": held, "needed": needed},
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
