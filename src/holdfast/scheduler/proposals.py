"""In-flight proposals: assumed in the snapshot, sent to the authority, resolved by its response.

- An assumption ends when the Binding or Reservation is observed, when the authority rejects the proposal, or when an
  accepted placement is not observed within ASSUMED_TTL_S. In the last case the request is scheduled again.
- If a call gets no response, the scheduler reads the claim back. It never guesses the result.
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

# How long the scheduler assumes an accepted placement that no watch has shown. After that, the request is scheduled
# again.
ASSUMED_TTL_S = 30.0

_IN_FLIGHT = float("inf")
_NOT_PENDING_REASONS = frozenset(
    {Reason.REPLICA_NOT_FOUND, Reason.REPLICA_TERMINATING, Reason.REPLICA_ENDED, Reason.TEMPLATE_CHANGED}
)


class SentProposals(msgspec.Struct, frozen=True):
    """The proposals of one request in one batch; `claims` are the keys of their assumed claims."""

    pending: PendingRequest
    plan: RequestPlan
    request: ReserveRequest
    claims: tuple[ClaimKey, ...]


class _ProposalBatch(msgspec.Struct):
    """The proposals of one batch, and how many are still assumed."""

    decisions: int = 0
    claims: dict[ClaimKey, str] = {}
    """Claim key → replica uid."""
    remaining: int = 0


class InFlightProposals:
    """`refused` is called with the reasons for every request that was rejected or got no response."""

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
        """Expiry of each assumption; infinite until the response."""
        self._replica_uid: dict[ClaimKey, str] = {}
        """Replica uid of each assumption."""
        self._batches: dict[str, _ProposalBatch] = {}
        """Batches with remaining assumptions."""
        self._batch_of: dict[ClaimKey, str] = {}
        """Batch of each assumption; adopted claims have none."""
        self._log = structlog.get_logger().bind(controller="scheduler", cell=client.cell)

    def assume(self, key: ClaimKey, claim: SnapshotClaim, batch: str = "") -> None:
        self._end_assumption(key)
        self._builder.assume(key, claim)
        self._assumed[key] = _IN_FLIGHT
        self._replica_uid[key] = claim.replica_uid
        if batch:
            known = self._batches.setdefault(batch, _ProposalBatch(claims={}))
            known.claims[key] = claim.replica_uid
            known.remaining += 1
            self._batch_of[key] = batch

    def count_decision(self, batch: str) -> None:
        """Counts a decision of this batch that has proposals."""
        self._batches.setdefault(batch, _ProposalBatch(claims={})).decisions += 1

    def assumed_batches(self) -> tuple[tuple[AssumedBatch, ...], int]:
        """The batches whose proposals are assumed in the snapshot, and the number of adopted claims."""
        builder = self._builder
        found = []
        for name, batch in self._batches.items():
            ended = ((key, uid) for key, uid in batch.claims.items() if self._batch_of.get(key) != name)
            names = tuple(sorted(f"{k.namespace}/{k.name}" for k, uid in ended if not builder.is_recorded(k, uid)))
            found.append(AssumedBatch(batch=name, decisions=batch.decisions, excluded=names))
        adopted = sum(key not in self._batch_of and builder.is_assumed(key) for key in self._assumed)
        return tuple(found), adopted

    def confirm(self, key: ClaimKey) -> None:
        """The claim was observed; the snapshot has dropped the assumption."""
        self._end_assumption(key)
        if self._assumed.get(key, _IN_FLIGHT) != _IN_FLIGHT:
            self._forget(key)

    def _end_assumption(self, key: ClaimKey) -> None:
        """Ends an assumption; a batch without assumptions is dropped."""
        name = self._batch_of.pop(key, "")
        batch = self._batches.get(name)
        if batch is not None:
            batch.remaining -= 1
            if not batch.remaining:
                del self._batches[name]

    def expire(self, now: float) -> None:
        """Ends assumptions whose claim was not observed in time: the watch lags, or the claim was released at once."""
        metrics.SCHEDULER_ASSUMED.set(len(self._assumed))
        for key in [key for key, until in self._assumed.items() if until <= now]:
            pending = self._queue.find_by_member(self._replica_uid.get(key, ""))
            self._reject(key)
            if pending is not None:
                self._queue.retry_by(pending, now)
            metrics.SCHEDULER_ASSUMED_EXPIRED.inc()
            self._log.warning("assumption_expired", claim=f"{key.namespace}/{key.name}")

    def next_expiry(self) -> float:
        """Expiry of the first accepted assumption; infinite if all wait for responses."""
        return min(self._assumed.values(), default=_IN_FLIGHT)

    async def send(self, batch: list[SentProposals]) -> None:
        """Sends the requests of a batch concurrently; each is resolved alone."""
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
            self._fail(sent, fault.message)
        except Exception:
            self._log.exception("proposals_failed", request=str(sent.pending.key), reason="Failed")
            self._fail(sent, "the call to the authority failed")
        else:
            await self._settle(sent, answers.results)

    def _fail(self, sent: SentProposals, message: str) -> None:
        """The call had no effect: the request is retried later."""
        for key in sent.claims:
            self._reject(key)
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
                self._await_observation(key)
                sent.pending.attempts = 0
            elif answer.result is PlacementOutcome.ALREADY or answer.reason == Reason.INTENT_MISMATCH:
                self._adopt(sent, proposal, key, answer)
            else:
                self._reject(key)
                if answer.reason in _NOT_PENDING_REASONS:
                    self._drop_member(sent.pending, proposal.member)
                elif answer.reason == Reason.STALE_ATTEMPT:
                    stale.append(proposal.member)
                elif answer.reason == Reason.OVERRIDE_EXPIRED:  # the next plan does without the override
                    self._queue.retry_soon(sent.pending, self._ports.clock.monotonic())
                else:
                    refusals.setdefault(answer.reason, []).append((proposal, answer))
                    if answer.reason == Reason.VICTIM_NOT_ALLOWED:
                        victim = str(answer.facts.get("victim", ""))
                        self._queue.exclude_victim(sent.pending, victim, self._ports.clock.monotonic())
        if refusals:
            self._refused(sent.pending, _counted(refusals))
        # Last, because it awaits: rejected proposals must no longer be assumed meanwhile.
        for member in stale:
            await self._refresh_attempt(sent.pending, member)

    def _await_observation(self, key: ClaimKey) -> None:
        """Accepted: the assumption stays until the claim is observed, unless it was already."""
        if key in self._assumed:
            if self._builder.is_assumed(key):
                self._assumed[key] = self._ports.clock.monotonic() + ASSUMED_TTL_S
            else:
                self._forget(key)

    def _forget(self, key: ClaimKey) -> None:
        self._assumed.pop(key, None)
        self._replica_uid.pop(key, None)

    def _reject(self, key: ClaimKey) -> None:
        """Drops a rejected assumption, and requeues requests that were outcompeted by it."""
        self._end_assumption(key)
        self._forget(key)
        self._builder.drop_assumption(key)
        self._queue.requeue_outcompeted(self._ports.clock.monotonic())

    def _adopt(self, sent: SentProposals, proposal: Proposal, key: ClaimKey, answer: PlacementResult) -> None:
        """The replica was placed before, perhaps by this process: assumes the committed claim."""
        self._reject(key)
        if self._builder.has_claim(proposal.member.uid) or not answer.node:
            return
        stored = ClaimKey(key.namespace, answer.binding or answer.reservation or key.name)
        self.assume(stored, sent.plan.requirements.claim(answer.node, proposal.member, answer.devices))
        self._await_observation(stored)

    async def _refresh_attempt(self, pending: PendingRequest, member: RequestMember) -> None:
        """The attempt is stale: reads the replica to see whether it is pending again."""
        try:
            replica = await self._client.get(Replica, member.name, pending.request.metadata.namespace)
        except Fault as fault:
            # The next attempt gets the same response and reads again.
            message = f"replica {member.name}: could not be read ({fault.message})"
            self._refused(pending, (RefusalCount(reason=Reason.WAITING, message=message),))
            return
        if replica is None or replica.uid != member.uid or stage(replica) is not Stage.QUEUED:
            self._drop_member(pending, member)
            return
        pending.attempt_hints[member.uid] = replica.status.placement.attempt
        if pending.request.spec.gang is None:  # a gang keeps its backoff: its members are placed together
            self._queue.retry_by(pending, self._ports.clock.monotonic())

    def _drop_member(self, pending: PendingRequest, member: RequestMember) -> None:
        """Drops a member that is not pending. The other members are planned again, because its capacity is free."""
        pending.absent_members[member.uid] = None
        self._queue.retry_by(pending, self._ports.clock.monotonic())

    async def _read_back(self, sent: SentProposals, unknown: Ambiguous) -> None:
        """Reads back each claim of an unanswered call, by its name.

        Missing claims are proposed again later. If the lost call takes effect after all, the authority responds to the
        repeated intent with the stored claim.
        """
        missing = False
        for proposal, key in zip(sent.plan.proposals, sent.claims, strict=True):
            if await self._is_committed(key, proposal.member, unknown):
                self._await_observation(key)
            else:
                self._reject(key)
                missing = True
        if missing:
            message = "the authority did not respond; uncommitted proposals are repeated"
            self._refused(sent.pending, (RefusalCount(reason=Reason.WAITING, message=message),))

    async def _is_committed(self, key: ClaimKey, member: RequestMember, unknown: Ambiguous) -> bool:
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
    """The authority's refusals per reason: node count, example nodes, and the message of the first."""
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
