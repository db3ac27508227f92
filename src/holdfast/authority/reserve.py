"""reserve: turns proposals into claims, bound at once on the ordinary path.

Each item is checked against the current state, never against the proposer's snapshot. The transaction compares the
Term, each Node, each Replica, each GrantCopy and each recovery place that is drawn, so that a cordon, a deletion, a
lower limit or the end of a place never races a bind.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.authority import bind_preconditions, placement_checks, provisional, records, slot_admission
from holdfast.authority.claims import Claim, ClaimRequest, capacity_class, grant_class
from holdfast.authority.commit_rounds import CommitStep, ExtraWrites, make_step, rejected
from holdfast.authority.protected_quota import ProtectedQuota
from holdfast.authority.state import (
    ASSIGNMENT,
    BINDING,
    GRANT_COPY,
    HOLD,
    NODE,
    REPLICA,
    RESERVATION,
    AuthorityState,
)
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.binding import CapacityClass, DeviceClaim, Reservation, ReservationPhase, claim_name
from holdfast.model.decision import Decision, DecisionEntry
from holdfast.model.errors import Refused
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import SpendingLimit, spending_limit
from holdfast.model.kinds import kind_of
from holdfast.model.node import Node
from holdfast.model.override import active_avoidances, has_emergency_quota
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, ReserveItem
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import Region
from holdfast.model.replica import PlacementBlock, Replica
from holdfast.model.scheduler_policy import PartitionMode, PolicyRevision
from holdfast.model.template import requests
from holdfast.model.tenant import Tenant
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import micro_text, seconds_text
from holdfast.scheduling.active_policy import active_policy
from holdfast.scheduling.eviction import preempted
from holdfast.store.contract import Put, Remove

_DECISION = kind_of(Decision)


class RoundState:
    """What a round reads once for all of its items."""

    def __init__(self, state: AuthorityState) -> None:
        self.now = state.now()
        self.at = micro_text(self.now)
        self.created = seconds_text(self.now)
        self.monotonic_s = state.ports.clock.monotonic()
        self.avoidances = active_avoidances(state.overrides(), self.now)
        self.region: Region | None = state.this_region()
        self._state = state
        self._limits: dict[tuple[str, str], tuple[SpendingLimit, dict[str, int]]] = {}
        self._tenants: dict[str, Tenant | None] = {}
        self._gangs: dict[str, bind_preconditions.GangState | None] = {}
        self._mates: dict[tuple[str, str], preempted.SiblingCounts] = {}
        self._partition_mode: PartitionMode | None = None
        self.protected = ProtectedQuota(state)

    def limit(self, tenant: str, spent: CapacityClass) -> tuple[SpendingLimit, dict[str, int]]:
        """The limit a claim of this class counts against, and the revisions it rests on."""
        spent_as = grant_class(spent)
        key = (tenant, spent_as.value)
        found = self._limits.get(key)
        if found is None:
            copies = list(self._state.list_all(GrantCopy, tenant))
            rests_on = {GRANT_COPY.store_key(tenant, c.metadata.name): c.revision for c in copies}
            overrides, region = self._state.overrides(), self._state.region
            emergency = has_emergency_quota(overrides, region=region, tenant=tenant, now=self.now)
            limit = spending_limit(copies, spent_as, self.now, emergency=emergency, age_s=self._state.grant_age_s)
            found = self._limits[key] = (limit, rests_on)
        return found

    def partition_mode(self) -> PartitionMode:
        """What the region's policy says of placing while it is cut off."""
        if self._partition_mode is None:
            revisions = self._state.list_all(PolicyRevision)
            policy = active_policy(revisions, self._state.overrides(), self._state.region, self.now)
            self._partition_mode = policy.rules.partition_mode
        return self._partition_mode

    def gang(self, replica: Replica) -> bind_preconditions.GangState | None:
        key = f"{replica.metadata.namespace}/{replica.spec.assignment}/{replica.spec.revision}"
        if key not in self._gangs:
            self._gangs[key] = bind_preconditions.gang_state(self._state, replica)
        return self._gangs[key]

    def siblings(self, replica: Replica) -> preempted.SiblingCounts:
        """The replicas of a workload, counted once for a whole round."""
        key = (replica.metadata.namespace, replica.spec.workload)
        if key not in self._mates:
            self._mates[key] = bind_preconditions.sibling_counts(self._state, replica)
        return self._mates[key]

    def tenant(self, name: str) -> Tenant | None:
        if name not in self._tenants:
            self._tenants[name] = self._state.tenant(name)
        return self._tenants[name]


def node_refusal(state: AuthorityState, world: RoundState, who: Replica, node: Node | None, name: str) -> Refused | None:
    """Every check of the node that does not count anything."""
    refused = placement_checks.node_refusal(node, name, state.leases.epoch(name), live=state.leases.is_live(name, world.monotonic_s))
    if refused is not None or node is None:
        return refused
    return (
        placement_checks.override_refusal(node, who, state.region, world.avoidances)
        or placement_checks.driver_refusal(node, who)
        or placement_checks.placement_rules_refusal(node, who, state.region, world.region)
        or placement_checks.tenancy_refusal(node, who, world.tenant(who.metadata.namespace))
    )


class ReserveJob:
    """One reserve request."""

    def __init__(
        self, state: AuthorityState, who: Principal, items: Sequence[ReserveItem], decision: Decision | None, *, bind: bool
    ) -> None:
        self.verb = "bind" if bind else "reserve"
        self.who = who
        self.items = items
        self._state = state
        self._bind = bind
        self._decision = decision
        self._world: RoundState
        self.decision_name = ""
        self._base_name = self._namespace = ""
        if decision is not None:
            self._base_name = decision.metadata.name or f"decision-{state.ports.ids.uid()}"
            self._namespace = decision.metadata.namespace or (items[0].namespace if items else "")

    def identity(self, item: ReserveItem) -> str:
        return item.intent.replica_uid

    def begin_round(self, world: RoundState | None = None) -> None:
        """`world` is what the whole round reads, where requests share one."""
        self._world = world or RoundState(self._state)
        self.decision_name = self._name_decision()

    def plan(self, item: ReserveItem) -> CommitStep | PlacementResult:
        state, world = self._state, self._world
        replica = state.replica(item.namespace, item.replica)
        refused = placement_checks.replica_refusal(replica, item.namespace, item.replica, item.intent)
        if refused is not None or replica is None:
            return rejected(refused or Refused(Reason.REPLICA_NOT_FOUND), attempt=_attempt(replica))
        placed = replica.status.placement
        if placed.reservation or placed.binding:
            return already_placed(state, replica, item.devices)
        refused = self._name_in_use(item)
        if refused is not None:
            return rejected(refused, attempt=item.intent.attempt)
        node = state.node(item.node)
        refused = node_refusal(state, world, replica, node, item.node)
        if refused is not None or node is None:
            return rejected(refused or Refused(Reason.NODE_NOT_FOUND), attempt=item.intent.attempt)
        refused = self._why_not_evicted(item, replica) if item.victims else None
        if refused is not None:
            return rejected(refused, attempt=item.intent.attempt)
        want = self._drawing(self._want(item, replica), node)
        limit, rests_on = world.limit(item.namespace, want.capacity_class)
        claim = state.ledger.check(node, want, limit)
        if isinstance(claim, Refused) and claim.reason == Reason.GRANT_EXPIRED:
            claim = self._provisionally(replica, node, want, limit, claim)
        if isinstance(claim, Refused):
            return rejected(claim, attempt=item.intent.attempt)
        if item.victims:
            named = bind_preconditions.victim_claims(state, item)
            rests_on = {**rests_on, **world.protected.compared_revisions(item.namespace, named)}
        return self._step(item, replica, node, claim, rests_on)

    def _why_not_evicted(self, item: ReserveItem, replica: Replica) -> Refused | None:
        world = self._world
        return bind_preconditions.victim_refusal(
            self._state, item, replica, world.now, mates=world.siblings, protected=world.protected
        )

    def _provisionally(
        self, replica: Replica, node: Node, want: ClaimRequest, limit: SpendingLimit, expired: Refused
    ) -> Refused | Claim:
        """Cut off from the global cell for a lease: the policy decides whether anything may still be placed."""
        state, world = self._state, self._world
        assigned = state.get(ASSIGNMENT, replica.metadata.namespace, replica.spec.assignment)
        alone = self._bind and world.gang(replica) is None
        asked = provisional.ProvisionalRequest(replica, want, binds_at_once=alone, assigned=assigned is not None)
        terms = provisional.provisional_terms(world.partition_mode(), asked, limit, world.now, expired)
        if isinstance(terms, Refused):
            return terms
        return state.ledger.check(node, msgspec.structs.replace(want, run_until=terms), limit)

    def _name_in_use(self, item: ReserveItem) -> Refused | None:
        """A replica that was deleted and made anew waits until the old one's claim of the same name is proven gone."""
        other = self._state.ledger.claims.get(f"{item.namespace}/{claim_name(item.replica, item.intent.attempt)}")
        if other is None:
            return None
        return Refused(
            Reason.ALREADY_CLAIMED,
            f"claim {other.key} on node {other.node} is still held by uid {other.replica_uid}; release it first",
            {"node": other.node, "winner": other.facts()},
        )

    def _want(self, item: ReserveItem, replica: Replica) -> ClaimRequest:
        template, kind = replica.spec.template, capacity_class(replica)
        victims = bind_preconditions.live_victims(self._state, item) if item.victims else ()
        return ClaimRequest(
            namespace=item.namespace,
            name=claim_name(item.replica, item.intent.attempt),
            replica=item.replica,
            replica_uid=replica.uid,
            attempt=item.intent.attempt,
            amounts=requests(template),
            capacity_class=kind,
            gpu_models=template.gpu_models,
            ports=tuple((p.name, p.port) for p in template.ports),
            devices=item.devices,
            victims=victims,
            recovery_slots=item.recovery_slots if kind is CapacityClass.RECOVERY else (),
            nominated=bool(victims),
        )

    def _drawing(self, want: ClaimRequest, node: Node) -> ClaimRequest:
        """A recovery claim uses the places kept for it first: those it names, or the closest fit on the node."""
        if want.capacity_class is not CapacityClass.RECOVERY:
            return want
        allowed = self._state.slots_for_tenant(node.metadata.name, want.namespace)
        named = tuple(name for name in want.recovery_slots if name in allowed)
        plain = msgspec.structs.replace(want, recovery_slots=())
        holds = named or self._state.ledger.account_for(node).choose_slots(plain, allowed)
        return msgspec.structs.replace(want, recovery_slots=holds)

    def _step(self, item: ReserveItem, replica: Replica, node: Node, claim: Claim, rests_on: dict[str, int]) -> CommitStep:
        world, ids = self._world, self._state.ports.ids
        waiting_for = self._waiting_for(replica, claim)
        binds = self._bind and not waiting_for
        expires_at = "" if binds else micro_text(world.now + limits.RESERVATION_TTL_S)
        claim = msgspec.structs.replace(
            claim,
            bound=binds,
            node_epoch=self._state.leases.epoch(node.metadata.name) if binds else 0,
            expires_at=expires_at,
            victims=() if binds else claim.victims,
            needs_tenure=needs_tenure(replica.spec.exclusive),
        )
        # What is bound at once was never held without being bound: a Reservation would be consumed in the transaction
        # that makes it, and be a quarter of the rows (docs/decisions/0019). Only places it draws have to be on record.
        held = not binds or bool(claim.recovery_slots)
        placement = PlacementBlock(
            attempt=claim.attempt,
            node=claim.node,
            zone=node.spec.zone,
            reservation=claim.name if held else "",
            binding=claim.name if binds else "",
            epoch=claim.attempt,
            reserved_at=world.at,
            bound_at=world.at if binds else "",
            decision=self.decision_name,
        )
        compares = {
            **rests_on,
            REPLICA.store_key(item.namespace, item.replica): replica.revision,
            NODE.store_key("", claim.node): node.revision,
        }
        writes: list[Put | Remove] = []
        if held:
            reservation = self._reservation(item, replica, claim)
            compares[reservation.key] = 0
            writes.append(reservation)
        if binds:
            binding = records.binding_put(
                claim, replica, node, item.intent, uid=ids.uid(), created=world.created,
                decision=self.decision_name, policy=item.policy_revision,
            )  # fmt: skip
            compares[binding.key] = 0
            writes.append(binding)
        writes.append(records.replica_put(replica, placement))
        made = binding if binds else reservation
        for hold in self._drawn(claim):
            drawn = slot_admission.consumer_put(hold, claim, world.at)
            compares[drawn.key] = hold.revision
            writes.append(drawn)
        return make_step(
            "create",
            BINDING if binds else RESERVATION,
            made.attached.metadata,
            PlacementResult(
                result=PlacementOutcome.ACCEPTED, reason=waiting_for, node=claim.node, devices=claim.devices, ports=claim.ports,
                reservation=placement.reservation, binding=placement.binding, attempt=claim.attempt,
                epoch=claim.attempt,
            ),
            writes,
            compares=compares,
            claim=claim,
        )  # fmt: skip

    def _reservation(self, item: ReserveItem, replica: Replica, claim: Claim) -> Put:
        phase = (
            ReservationPhase.CONSUMED if claim.bound
            else ReservationPhase.NOMINATED if claim.nominated
            else ReservationPhase.FIRM
        )  # fmt: skip
        return records.reservation_put(
            claim, replica, item.intent, phase, uid=self._state.ports.ids.uid(), created=self._world.created,
            policy=item.policy_revision, bind_when_firm=self._bind and not claim.bound,
        )  # fmt: skip

    def _drawn(self, claim: Claim) -> list[RecoverySlot]:
        """The places a claim draws. They say so in the same transaction, so that none is given up at that moment."""
        found = (self._state.get(HOLD, "", name) for name in claim.recovery_slots)
        return [hold for hold in found if hold is not None]

    def _waiting_for(self, replica: Replica, claim: Claim) -> str:
        """Why the claim cannot be bound in the same transaction; empty when it can."""
        if claim.nominated:
            return Reason.WAITING_FOR_VICTIMS.value
        gang = self._world.gang(replica)
        return "" if gang is None or gang.committed else Reason.WAITING_FOR_GANG.value

    def _name_decision(self) -> str:
        """The name given, or a new one; a part that is committed later gets a number behind it."""
        if self._decision is None:
            return ""
        for number in range(1, limits.COMMIT_ROUNDS_MAX + 1):
            name = self._base_name if number == 1 else f"{self._base_name}.{number}"
            if self._state.get(_DECISION, self._namespace, name) is None:
                return name
        return f"{self._base_name}.{self._state.ports.ids.uid()}"

    def recorded(self) -> bool:
        """Whether the decision was stored with one of the items."""
        return self._state.get(_DECISION, self._namespace, self._base_name) is not None

    def extra_writes(self, taken: Sequence[tuple[int, CommitStep]], answers: Sequence[PlacementResult | None]) -> ExtraWrites:
        """The decision, with what became of each replica it speaks of."""
        if self._decision is None:
            return ExtraWrites()
        outcome = {self.items[i].intent.replica_uid: a for i, a in enumerate(answers) if a is not None}
        outcome.update({self.items[i].intent.replica_uid: step.answer for i, step in taken})
        entries = tuple(_with_result(e, outcome.get(e.uid)) for e in self._decision.spec.entries)
        meta = msgspec.structs.replace(
            self._decision.metadata,
            name=self.decision_name,
            namespace=self._namespace,
            uid=self._state.ports.ids.uid(),
            generation=1,
            resource_version="",
            creation_timestamp=self._world.created,
        )
        spec = msgspec.structs.replace(self._decision.spec, entries=entries)
        write = records.put_object(_DECISION, Decision(meta, spec, self._decision.status))
        return ExtraWrites({write.key: 0}, [write])


def _attempt(replica: Replica | None) -> int:
    return replica.status.placement.attempt if replica is not None else 0


def _with_result(entry: DecisionEntry, answer: PlacementResult | None) -> DecisionEntry:
    if answer is None:
        return entry
    message = answer.message
    if entry.node and answer.node and answer.node != entry.node:
        message = f"it was on node {answer.node} already"
    node = entry.node or answer.node
    return msgspec.structs.replace(entry, node=node, result=answer.result.value, reason=answer.reason, message=message)


def already_placed(state: AuthorityState, replica: Replica, asked: tuple[DeviceClaim, ...]) -> PlacementResult:
    """The claim this very intent made before; the caller adopts it. Other devices than those are a contradiction."""
    placed = replica.status.placement
    namespace = replica.metadata.namespace
    binding = state.binding(namespace, placed.binding) if placed.binding else None
    reservation: Reservation | None = state.reservation(namespace, placed.reservation)
    devices, ports = (
        (binding.spec.devices, binding.spec.ports) if binding is not None
        else (reservation.spec.devices, reservation.spec.ports) if reservation is not None
        else ((), {})
    )  # fmt: skip
    facts = {}
    if asked and asked != devices:
        facts = {"claim": f"{namespace}/{placed.binding or placed.reservation}", "node": placed.node}
    return PlacementResult(
        result=PlacementOutcome.REJECTED if facts else PlacementOutcome.ALREADY,
        reason=Reason.INTENT_MISMATCH if facts else "",
        message=f"{replica.key} was placed on {placed.node} with other devices; adopt those" if facts else "",
        facts=facts,
        node=placed.node,
        devices=devices,
        ports=ports,
        reservation=placed.reservation,
        binding=placed.binding,
        attempt=placed.attempt,
        epoch=placed.epoch,
    )
