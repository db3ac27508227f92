"""Proposals on their way: assumed in the snapshot, sent to the authority, and settled by its answers.

What always holds: an assumption ends when its record is seen, when the answer is no, or when an accepted place does not
show up within `limits.ASSUMED_TTL_S`; whoever it was made for is then looked at again, as nobody else would. A call
without an answer is settled by reading the claim, never by guessing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.foundation.unknown_outcome import NoProof, resolve
from holdfast.model import limits
from holdfast.model.binding import Binding, Reservation
from holdfast.model.decision import AssumedBatch
from holdfast.model.errors import Ambiguous, Fault
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, ReserveRequest
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import RefusalCount, RequestMember
from holdfast.scheduler.request_queue import PendingRequest, RequestQueue
from holdfast.scheduling.plan import Proposal, RequestPlan
from holdfast.scheduling.snapshot import ClaimKey, SnapshotBuilder, SnapshotClaim

_IN_FLIGHT = float("inf")
_GONE = frozenset({Reason.REPLICA_NOT_FOUND, Reason.REPLICA_TERMINATING, Reason.TEMPLATE_CHANGED})


class SentProposals(msgspec.Struct, frozen=True):
    """The proposals of one request in one batch; `claims` names the assumption of each."""

    pending: PendingRequest
    plan: RequestPlan
    request: ReserveRequest
    claims: tuple[ClaimKey, ...]


class _Batch(msgspec.Struct):
    """What one batch proposed: all of it, and how much of that is still assumed."""

    decisions: int = 0
    claims: dict[ClaimKey, str] = {}
    """With the uid of the replica that each is for."""
    left: int = 0


class InFlightProposals:
    """`refused` is told of every request that got a no, or no answer, with the reasons."""

    def __init__(
        self,
        client: Client,
        ports: Ports,
        builder: SnapshotBuilder,
        queue: RequestQueue,
        *,
        refused: Callable[[PendingRequest, tuple[RefusalCount, ...]], None],
    ) -> None:
        self._client = client
        self._ports = ports
        self._builder = builder
        self._queue = queue
        self._refused = refused
        self._assumed: dict[ClaimKey, float] = {}
        """Until when each assumption lasts; without end while its answer is awaited."""
        self._member_of: dict[ClaimKey, str] = {}
        """The uid of the replica each assumption is for."""
        self._batches: dict[str, _Batch] = {}
        """Batches with assumptions left."""
        self._batch_of: dict[ClaimKey, str] = {}
        """Of every assumption that a batch made; adopted ones are not in here."""
        self._log = structlog.get_logger().bind(controller="scheduler", cell=client.cell)

    def assume(self, key: ClaimKey, claim: SnapshotClaim, batch: str = "") -> None:
        self._ended(key)
        self._builder.assume(key, claim)
        self._assumed[key] = _IN_FLIGHT
        self._member_of[key] = claim.replica_uid
        if batch:
            known = self._batches.setdefault(batch, _Batch(claims={}))
            known.claims[key] = claim.replica_uid
            known.left += 1
            self._batch_of[key] = batch

    def count_decision(self, batch: str) -> None:
        """One more decision of this batch has proposals."""
        self._batches.setdefault(batch, _Batch(claims={})).decisions += 1

    def assumed_batches(self) -> tuple[tuple[AssumedBatch, ...], int]:
        """The batches whose proposals count in the snapshot now, and how many assumptions come from elsewhere."""
        builder = self._builder
        found = []
        for name, batch in self._batches.items():
            ended = ((key, uid) for key, uid in batch.claims.items() if self._batch_of.get(key) != name)
            names = tuple(sorted(f"{k.namespace}/{k.name}" for k, uid in ended if not builder.is_recorded(k, uid)))
            found.append(AssumedBatch(batch=name, decisions=batch.decisions, excluded=names))
        adopted = sum(key not in self._batch_of and builder.is_assumed(key) for key in self._assumed)
        return tuple(found), adopted

    def confirm(self, key: ClaimKey) -> None:
        """The record is there; the snapshot has dropped the assumption."""
        self._ended(key)
        if self._assumed.get(key, _IN_FLIGHT) != _IN_FLIGHT:
            self._drop(key)

    def _ended(self, key: ClaimKey) -> None:
        """The assumption no longer counts; a batch without any is forgotten."""
        name = self._batch_of.pop(key, "")
        batch = self._batches.get(name)
        if batch is not None:
            batch.left -= 1
            if not batch.left:
                del self._batches[name]

    def expire(self, now: float) -> None:
        """Ends assumptions whose record never came: the watch is behind, or the place was given up at once."""
        metrics.SCHEDULER_ASSUMED.set(len(self._assumed))
        for key in [key for key, until in self._assumed.items() if until <= now]:
            waiting = self._queue.find_by_member(self._member_of.get(key, ""))
            self._forget(key)
            if waiting is not None:
                self._queue.retry_by(waiting, now)
            metrics.SCHEDULER_ASSUMED_EXPIRED.inc()
            self._log.warning("assumption_expired", claim=f"{key.namespace}/{key.name}")

    def next_expiry(self) -> float:
        """When the first assumption ends that no record has confirmed; never while all answers are awaited."""
        return min(self._assumed.values(), default=_IN_FLIGHT)

    async def send(self, batch: list[SentProposals]) -> None:
        """Sends every request of a batch at once; each is settled by itself."""
        await asyncio.gather(*(self._send(sent) for sent in batch))

    async def _send(self, sent: SentProposals) -> None:
        try:
            answers = await self._client.reserve(sent.request)
        except Ambiguous as fault:
            metrics.SCHEDULER_UNANSWERED.labels(fault.reason).inc()
            await self._read_back(sent, fault)
        except Fault as fault:
            metrics.SCHEDULER_UNANSWERED.labels(fault.reason).inc()
            self._log.info(
                "proposals_failed", request=str(sent.pending.key), reason=fault.reason, message=fault.message
            )
            self._give_up(sent, fault.message)
        except Exception:
            self._log.exception("proposals_failed", request=str(sent.pending.key), reason="Failed")
            self._give_up(sent, "the call to the authority failed")
        else:
            await self._settle(sent, answers.results)

    def _give_up(self, sent: SentProposals, message: str) -> None:
        """Nothing was answered and nothing can have happened: the whole request waits and tries again."""
        for key in sent.claims:
            self._forget(key)
        self._refused(sent.pending, (RefusalCount(reason=Reason.WAITING, message=message),))

    async def _settle(self, sent: SentProposals, answers: tuple[PlacementResult, ...]) -> None:
        refusals: dict[str, list[tuple[Proposal, PlacementResult]]] = {}
        stale: list[RequestMember] = []
        stored = sent.request.record_refused or any(answer.result is PlacementOutcome.ACCEPTED for answer in answers)
        if sent.request.decision is not None and stored:
            sent.pending.decision = sent.request.decision.metadata.name
        for (result, reason), count in Counter((answer.result.value, answer.reason) for answer in answers).items():
            metrics.SCHEDULER_RESPONSES.labels(result, reason).inc(count)
        for proposal, key, answer in zip(sent.plan.proposals, sent.claims, answers, strict=True):
            if answer.result is PlacementOutcome.ACCEPTED:
                self._keep(key)
                sent.pending.attempts = 0
            elif answer.result is PlacementOutcome.ALREADY or answer.reason == Reason.INTENT_MISMATCH:
                self._adopt(sent, proposal, key, answer)
            else:
                self._forget(key)
                if answer.reason in _GONE:
                    self._leave_out(sent.pending, proposal.member)
                elif answer.reason == Reason.STALE_ATTEMPT:
                    stale.append(proposal.member)
                else:
                    refusals.setdefault(answer.reason, []).append((proposal, answer))
                    if answer.reason == Reason.VICTIM_NOT_ALLOWED:
                        victim = str(answer.facts.get("victim", ""))
                        self._queue.exclude_victim(sent.pending, victim, self._ports.clock.monotonic())
        if refusals:
            self._refused(sent.pending, _counted(refusals))
        # Only now, as this takes time: while it lasts nothing of this request may count that was not accepted.
        for member in stale:
            await self._ask_attempt(sent.pending, member)

    def _keep(self, key: ClaimKey) -> None:
        """Accepted: the assumption stands until its record is seen, which may have been already."""
        if key in self._assumed:
            if self._builder.is_assumed(key):
                self._assumed[key] = self._ports.clock.monotonic() + limits.ASSUMED_TTL_S
            else:
                self._drop(key)

    def _drop(self, key: ClaimKey) -> None:
        self._assumed.pop(key, None)
        self._member_of.pop(key, None)

    def _forget(self, key: ClaimKey) -> None:
        """It came to nothing, or to something else: whoever was planned behind it may find room now."""
        self._ended(key)
        self._drop(key)
        self._builder.drop_assumption(key)
        self._queue.requeue_outcompeted(self._ports.clock.monotonic())

    def _adopt(self, sent: SentProposals, proposal: Proposal, key: ClaimKey, answer: PlacementResult) -> None:
        """Someone placed it before, perhaps ourselves: take over the place that is on record."""
        self._forget(key)
        if self._builder.has_claim(proposal.member.uid) or not answer.node:
            return
        stored = ClaimKey(key.namespace, answer.binding or answer.reservation or key.name)
        self.assume(stored, sent.plan.requirements.claim(answer.node, proposal.member, answer.devices))
        self._keep(stored)

    async def _ask_attempt(self, waiting: PendingRequest, member: RequestMember) -> None:
        """The member was released since: read the replica, as only it says whether another place is wanted."""
        try:
            replica = await self._client.get(Replica, member.name, waiting.request.metadata.namespace)
        except Fault as fault:
            # Tried again after a pause: the next try gets the same answer and asks again.
            message = f"the replica could not be read: {fault.message}"
            self._refused(waiting, (RefusalCount(reason=Reason.WAITING, message=message),))
            return
        if replica is None or replica.uid != member.uid or stage(replica) is not Stage.QUEUED:
            self._leave_out(waiting, member)
            return
        waiting.attempt_hints[member.uid] = replica.status.placement.attempt
        if waiting.request.spec.gang is None:  # a gang keeps its pause: none of it is placed before the others
            self._queue.retry_by(waiting, self._ports.clock.monotonic())

    def _leave_out(self, waiting: PendingRequest, member: RequestMember) -> None:
        """The member needs no place. Its mates went without what was planned for it, so they are planned again now."""
        waiting.absent_members[member.uid] = None
        self._queue.retry_by(waiting, self._ports.clock.monotonic())

    async def _read_back(self, sent: SentProposals, unknown: Ambiguous) -> None:
        """No answer: each claim is looked up by the name its intent gives it.

        What is not there is proposed again later; if the lost call still arrives, the authority answers the repeated
        intent with what it stored.
        """
        missing = False
        for proposal, key in zip(sent.plan.proposals, sent.claims, strict=True):
            if await self._on_record(key, proposal.member, unknown):
                self._keep(key)
            else:
                self._forget(key)
                missing = True
        if missing:
            message = "the authority's answer was lost; what it did not commit is proposed again"
            self._refused(sent.pending, (RefusalCount(reason=Reason.WAITING, message=message),))

    async def _on_record(self, key: ClaimKey, member: RequestMember, unknown: Ambiguous) -> bool:
        async def look() -> bool | NoProof:
            binding = await self._client.get(Binding, key.name, key.namespace)
            found = binding or await self._client.get(Reservation, key.name, key.namespace)
            return NoProof.ABSENT if found is None or found.spec.intent.replica_uid != member.uid else True

        backoff = Backoff(self._ports.random)
        try:
            return await resolve(f"reserve of {key}", unknown, look, clock=self._ports.clock, pause_s=backoff.next_s)
        except Fault:
            return False


def _counted(refusals: dict[str, list[tuple[Proposal, PlacementResult]]]) -> tuple[RefusalCount, ...]:
    """The authority's refusals as a histogram: how many nodes, which, and its own words for the first."""
    rows = []
    for reason, pairs in refusals.items():
        nodes = sorted({proposal.node for proposal, _ in pairs})
        rows.append(
            RefusalCount(
                reason=reason,
                nodes=len(nodes),
                examples=tuple(nodes[: limits.REASON_EXAMPLES_MAX]),
                message=pairs[0][1].message,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.nodes, row.reason)))
