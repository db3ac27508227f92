"""Background jobs of the authority: expiry, promotion, cleanup after fences, usage reports, pruning of Decisions.

Every job is level-triggered: it reads the present state, so a lost event costs only time. Each uses the same checks and
commits as a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.authority import device_allocation, provisional, records
from holdfast.authority.claims import ENDED_PHASES, Claim, ClaimRequest, victim_key
from holdfast.authority.commit_rounds import NOTHING, BackgroundJob, CommitRounds, CommitStep, make_step
from holdfast.authority.commits import Commits, CommitTest, removed, stored
from holdfast.authority.release import free_step, is_fenced
from holdfast.authority.reserve import RESERVATION_TTL_S, ReserveJob, RoundState
from holdfast.authority.state import BINDING, GRANT_COPY, RESERVATION, AuthorityState
from holdfast.foundation.batches import batches
from holdfast.gate import audit
from holdfast.model import limits
from holdfast.model.binding import Binding, DesiredRunState, Reservation, ReservationPhase
from holdfast.model.decision import Decision
from holdfast.model.errors import Conflict, Refused
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import Kind, kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
from holdfast.model.principal import Principal
from holdfast.model.quantity import Amount, amounts_text
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.template import udp_ports
from holdfast.model.times import micro_text, parse_time
from holdfast.store.contract import Put, Remove

# Decisions kept per region. The oldest are deleted.
DECISIONS_MAX = 5_000

_DECISION = kind_of(Decision)


class BackgroundJobs:
    def __init__(self, state: AuthorityState, rounds: CommitRounds, commits: Commits, caller: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._commits = commits
        self._caller = caller

    async def _run(
        self, verb: str, claims: Iterable[Claim], plan: Callable[[Claim], CommitStep | PlacementResult]
    ) -> None:
        items = [c for c in claims if not self._rounds.in_flight(c.key)]
        if items:
            await self._rounds.process(BackgroundJob(verb, self._caller, items, lambda claim: claim.replica_uid, plan))

    async def expire(self) -> None:
        """Releases expired Reservations, and those whose replica is deleted."""
        now = self._state.now()
        due = [c for c in self._state.ledger.unbound.values() if c.expires_at and parse_time(c.expires_at) <= now]
        await self._run("expire", due, self.plan_expiry)

    def plan_expiry(self, claim: Claim) -> CommitStep | PlacementResult:
        state = self._state
        reservation = state.reservation(claim.namespace, claim.name)
        if reservation is None or state.binding(claim.namespace, claim.name) is not None:
            return NOTHING
        if reservation.spec.expires_at and parse_time(reservation.spec.expires_at) > state.now():
            return NOTHING
        replica = state.replica(claim.namespace, claim.replica)
        uid_matches = replica is not None and replica.uid == claim.replica_uid
        if replica is not None and uid_matches and replica.status.placement.binding == claim.name:
            return NOTHING  # its Binding was lost; the task may run (`lost_claims`)
        if uid_matches and self._can_extend(claim, reservation):
            return self._extended(claim, reservation)
        if replica is not None and uid_matches and replica.status.placement.reservation == claim.name:
            return free_step(state, replica, None, Reason.RESERVATION_EXPIRED.value)
        return self._removal(claim)

    def _can_extend(self, claim: Claim, reservation: Reservation) -> bool:
        """Whether the Reservation waits for victims that are stopping, and is younger than RESERVATION_MAX_S."""
        age_s = self._state.now() - parse_time(reservation.metadata.creation_timestamp)
        if not claim.nominated or age_s >= limits.RESERVATION_MAX_S:
            return False
        for victim in claim.victims:
            key = victim_key(claim.namespace, victim)
            binding = self._state.binding(*key.split("/", 1)) if key in self._state.ledger.claims else None
            if binding is not None and binding.spec.desired is DesiredRunState.STOP:
                return True
        return False

    def _extended(self, claim: Claim, reservation: Reservation) -> CommitStep:
        expires_at = micro_text(self._state.now() + RESERVATION_TTL_S)
        spec = msgspec.structs.replace(reservation.spec, expires_at=expires_at)
        change = records.reservation_change(reservation, reservation.status.phase, spec)
        step = _change(claim, reservation, change, lambda found: found.spec.expires_at >= expires_at)
        step.claim = msgspec.structs.replace(claim, expires_at=expires_at)
        return step

    async def promote(self) -> None:
        """Makes nominated Reservations firm after all their victims are released."""
        ledger = self._state.ledger
        promotable = [
            c
            for c in ledger.unbound.values()
            if c.nominated and not any(victim_key(c.namespace, v) in ledger.claims for v in c.victims)
        ]
        await self._run("promote", promotable, self.plan_promotion)

    def plan_promotion(self, claim: Claim) -> CommitStep | PlacementResult:
        state = self._state
        reservation = state.reservation(claim.namespace, claim.name)
        replica = state.replica(claim.namespace, claim.replica)
        node = state.node(claim.node)
        if reservation is None or replica is None or node is None:
            return NOTHING
        if reservation.status.phase is not ReservationPhase.NOMINATED:
            return NOTHING
        template = replica.spec.template
        claim_request = ClaimRequest(
            claim.namespace,
            claim.name,
            claim.replica,
            claim.replica_uid,
            claim.attempt,
            claim.amounts,
            claim.capacity_class,
            template.gpu_models,
            tuple((p.name, p.port) for p in template.ports),
            recovery_slots=claim.recovery_slots,
            udp_ports=udp_ports(template),
        )
        before = state.ledger.drop(claim.key)
        try:
            account = state.ledger.account_for(node)
            devices, ports = (
                device_allocation.allocate_devices(account, claim_request),
                device_allocation.allocate_ports(account, claim_request),
            )
            if account.shortage(claim_request) or isinstance(devices, Refused) or isinstance(ports, Refused):
                return NOTHING  # another claim took the capacity; the nomination waits until it expires
        finally:
            if before is not None:
                state.ledger.put(before)
        expires_at = micro_text(state.now() + RESERVATION_TTL_S)
        spec = msgspec.structs.replace(
            reservation.spec, victims=(), devices=devices, ports=ports, expires_at=expires_at
        )
        change = records.reservation_change(reservation, ReservationPhase.FIRM, spec)
        step = _change(claim, reservation, change, lambda f: f.status.phase is not ReservationPhase.NOMINATED)
        step.claim = msgspec.structs.replace(
            claim, nominated=False, victims=(), devices=devices, ports=ports, expires_at=expires_at
        )
        return step

    async def remove_ended(self) -> None:
        """Removes Bindings whose quota is released and whose task cannot run any more."""
        state = self._state
        ended = [c for c in state.ledger.quota_released.values() if self._has_ended(c)]
        await self._run("clean", ended, self.plan_removal)

    def _has_ended(self, claim: Claim) -> bool:
        binding = self._state.binding(claim.namespace, claim.name)
        if binding is None or binding.status.phase in ENDED_PHASES:
            return True
        return self._state.node(claim.node) is None and not self._state.leases.may_be_live(claim.node)

    def plan_removal(self, claim: Claim) -> CommitStep | PlacementResult:
        return self._removal(claim) if self._has_ended(claim) else NOTHING

    async def confirm_provisional(self) -> None:
        """Confirms provisional claims that a live grant covers, and renews them until then.

        Claims that no grant covers are left alone: `release` evicts them, or they end at `runUntil`.
        """
        claims = list(self._state.ledger.provisional_claims.values())
        if claims:
            await self._run("confirm", claims, self.plan_provisional)

    def plan_provisional(self, claim: Claim) -> CommitStep | PlacementResult:
        binding = self._state.binding(claim.namespace, claim.name)
        if binding is None or binding.spec.desired is DesiredRunState.STOP or binding.status.phase in ENDED_PHASES:
            return NOTHING
        world = RoundState(self._state)
        limit, rests_on = world.limit(claim.namespace, claim.capacity_class)
        run_until = provisional.next_run_until(claim, self._state.ledger, limit, world.partition_mode(), world.now)
        if run_until is None:
            return NOTHING
        spec = msgspec.structs.replace(binding.spec, run_until=run_until)
        change = records.binding_change(binding, spec)
        step = _change(claim, binding, change, lambda found: found.spec.run_until == run_until, compares=dict(rests_on))
        step.claim = msgspec.structs.replace(claim, run_until=run_until)
        return step

    async def release_orphans(self) -> None:
        """Releases claims whose replica is deleted: Reservations at once, Bindings after a proven stop."""
        state = self._state
        orphans = [c for c in state.ledger.claims.values() if c.quota_held and self._is_orphan(c)]
        await self._run("release", orphans, self.plan_orphan)
        for name in [n for n in state.ledger.nodes if state.node(n) is None]:
            state.ledger.forget(name)

    def _is_orphan(self, claim: Claim) -> bool:
        replica = self._state.replica(claim.namespace, claim.replica)
        if replica is None or replica.uid != claim.replica_uid:
            return True
        placed = replica.status.placement
        return claim.name not in (placed.reservation, placed.binding)

    def plan_orphan(self, claim: Claim) -> CommitStep | PlacementResult:
        if not self._is_orphan(claim):
            return NOTHING
        binding = self._state.binding(claim.namespace, claim.name)
        if binding is None or binding.status.phase in ENDED_PHASES:
            return self._removal(claim)
        fenced = is_fenced(self._state, binding)
        if binding.spec.desired is DesiredRunState.STOP and not fenced:
            return NOTHING
        spec = msgspec.structs.replace(
            binding.spec,
            desired=DesiredRunState.STOP,
            stop_reason=binding.spec.stop_reason or Reason.OWNER_DELETED.value,
            quota_released=fenced,
        )
        step = _change(claim, binding, records.binding_change(binding, spec), lambda found: found.spec == spec)
        step.claim_after = msgspec.structs.replace(claim, quota_held=not spec.quota_released, stopping=True)
        return step

    def _removal(self, claim: Claim) -> CommitStep:
        """Deletes the objects of a claim; its replica is deleted or has a later attempt."""
        state = self._state
        compares: dict[str, int] = {}
        writes: list[Put | Remove] = []
        own = BINDING if claim.bound else RESERVATION
        meta = ObjectMeta(name=claim.name, namespace=claim.namespace)
        for kind, item in (
            (BINDING, state.binding(claim.namespace, claim.name)),
            (RESERVATION, state.reservation(claim.namespace, claim.name)),
        ):
            key = kind.store_key(claim.namespace, claim.name)
            compares[key] = item.revision if item is not None else 0
            if item is not None:
                writes.append(Remove(key))
                # The audit record names the removed version: a later attempt may have the same name.
                meta = item.metadata if kind is own else meta
        answer = _accepted(claim, RESERVATION)
        return make_step("delete", own, meta, answer, writes, compares=compares, free=claim.key)

    async def report_usage(self) -> None:
        """Writes each tenant's usage to its GrantCopy, with the generation of the limit in force.

        An observed generation proves that no claim is accepted under an older, higher limit any more. No other commit
        starts meanwhile, because all of them compare these objects.
        """
        self._state.observe_grants()
        if all(self._is_usage_reported(copy) for copy in self._state.list_all(GrantCopy)):
            return
        async with self._commits.exclusive():
            state = self._state
            compares: dict[str, int] = {}
            writes: list[Put | Remove] = []
            entries: list[audit.AuditEntry] = []
            for copy in state.list_all(GrantCopy):
                if self._is_usage_reported(copy):
                    continue
                new_status = msgspec.structs.replace(
                    copy.status, used=self._usage(copy), observed_generation=copy.metadata.generation
                )
                put = records.status_put(GRANT_COPY, copy, new_status)
                compares[put.key] = copy.revision
                writes.append(put)
                meta = copy.metadata
                entries.append(
                    audit.AuditEntry("update", "GrantCopy", meta.name, meta.namespace, copy.uid, copy.revision)
                )
                if len(writes) == limits.BATCH_WRITES_MAX:
                    break
            if not writes:
                return
            first = writes[0]
            assert isinstance(first, Put)
            meta, status = first.attached.metadata, first.attached.status
            probe = stored(GRANT_COPY, meta, lambda found: found.status == status)
            record = audit.commit_record(self._caller, state.now(), "update", entries)
            try:
                await self._commits.commit(compares, writes, (record,), probe)
            except Conflict:
                return  # the limit changed; the next tick reports under it

    def _usage(self, copy: GrantCopy) -> dict[str, Amount]:
        """Usage to report on this GrantCopy. Emergency quota extends the Normal limit, so usage is reported once, on
        the Normal copy if there is one."""
        tenant, grant_class = copy.metadata.namespace, copy.spec.grant_class
        if grant_class is GrantClass.EMERGENCY:
            if any(c.spec.grant_class is GrantClass.NORMAL for c in self._state.list_all(GrantCopy, tenant)):
                return {}
            grant_class = GrantClass.NORMAL
        return dict(amounts_text(self._state.ledger.used.get((tenant, grant_class), {})))

    def _is_usage_reported(self, copy: GrantCopy) -> bool:
        status = copy.status
        return status.observed_generation == copy.metadata.generation and status.used == self._usage(copy)

    async def record_decision(self, job: ReserveJob, answers: Sequence[PlacementResult]) -> None:
        """Stores a Decision of which no item was accepted, so that its reasons can be explained."""
        await self._commits.wait_ready()
        job.begin_round()
        extra = job.extra_writes((), answers)
        put = extra.writes[0]
        assert isinstance(put, Put)
        meta = put.attached.metadata
        entry = audit.AuditEntry("create", "Decision", meta.name, meta.namespace, meta.uid)
        record = audit.commit_record(job.caller, self._state.now(), "record", [entry])
        try:
            await self._commits.commit(extra.compares, extra.writes, (record,), stored(_DECISION, meta))
        except Conflict:
            return  # the Decision is already stored

    async def prune_decisions(self) -> None:
        """Deletes the oldest Decisions beyond DECISIONS_MAX."""
        decisions = sorted(self._state.list_all(Decision), key=lambda d: d.revision)
        oldest = decisions[: max(0, len(decisions) - DECISIONS_MAX)]
        for some in batches(oldest, limits.BATCH_WRITES_MAX):
            await self._commits.wait_ready()
            keys = [_DECISION.store_key(d.metadata.namespace, d.metadata.name) for d in some]
            compares = {key: d.revision for key, d in zip(keys, some, strict=True)}
            writes: list[Put | Remove] = [Remove(key) for key in keys]
            entry = audit.AuditEntry("delete", "Decision", f"{len(some)} oldest")
            record = audit.commit_record(self._caller, self._state.now(), "prune", [entry])
            try:
                await self._commits.commit(compares, writes, (record,), removed(_DECISION, some[0].metadata))
            except Conflict:
                return


def _accepted(claim: Claim, kind: Kind) -> PlacementResult:
    binding, reservation = (claim.name, "") if kind is BINDING else ("", claim.name)
    return PlacementResult(
        result=PlacementOutcome.ACCEPTED,
        node=claim.node,
        binding=binding,
        reservation=reservation,
        attempt=claim.attempt,
    )


def _change(
    claim: Claim,
    item: Reservation | Binding,
    change: Put,
    landed: CommitTest,
    *,
    compares: dict[str, int] | None = None,
) -> CommitStep:
    """The step that changes one record of a claim."""
    kind = kind_of(item)
    answer = _accepted(claim, kind)
    return make_step("update", kind, item.metadata, answer, [change], compares=compares, landed=landed)
