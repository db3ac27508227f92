"""reserve: turns proposals into claims; on the ordinary path they are bound in the same transaction.

Each item is checked against the current state, never against the proposer's snapshot. The transaction compares the
Term, each Node, Replica, GrantCopy and consumed RecoverySlot, so that a cordon, a deletion, a lower limit or a deleted
slot never races a bind.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.authority import bind_preconditions, placement_checks, provisional, records, slot_admission
from holdfast.authority.bind_preconditions import assignment_of
from holdfast.authority.claims import Claim, ClaimRequest, capacity_class, grant_class
from holdfast.authority.commit_rounds import CommitStep, ExtraWrites, make_step, rejected
from holdfast.authority.placement_gates import NO_RELIANCE, PlacementGates, RelianceOnClaims, labels_of
from holdfast.authority.protected_quota import ProtectedQuota
from holdfast.authority.state import ASSIGNMENT, BINDING, GRANT_COPY, HOLD, NODE, REPLICA, RESERVATION, AuthorityState
from holdfast.authority.volumes import VolumeUse, new_volume_refusal, plan_volumes, requested_amounts, without_volumes
from holdfast.model import limits
from holdfast.model.active_policy import active_policy
from holdfast.model.binding import CapacityClass, DeviceClaim, Reservation, ReservationPhase, claim_name
from holdfast.model.decision import Decision, DecisionEntry, decided_status
from holdfast.model.errors import Refused
from holdfast.model.fencing_token import fencing_token
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import SpendingLimit, spending_limit
from holdfast.model.kinds import kind_of
from holdfast.model.node import Node
from holdfast.model.override import active_avoidances, has_emergency_quota
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, ReserveItem
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.principal import Principal
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import Region
from holdfast.model.replica import PlacementBlock, Replica
from holdfast.model.scheduler_policy import PartitionMode, PolicyRevision, PolicyRules
from holdfast.model.template import udp_ports
from holdfast.model.tenant import Tenant
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import micro_text, seconds_text
from holdfast.scheduling.eviction import preempted
from holdfast.store.contract import Put, Remove

# Lifetime of a Reservation that is not bound. After that, the authority releases it.
RESERVATION_TTL_S = 60.0

_DECISION = kind_of(Decision)


class RoundState:
    """State that a round reads once for all its items."""

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
        self._siblings: dict[tuple[str, str], preempted.SiblingCounts] = {}
        self.protected = ProtectedQuota(state)
        self._rules: PolicyRules | None = None
        self.gates = PlacementGates(state, self.rules, self.avoidances, self.now)

    def limit(self, tenant: str, spent: CapacityClass) -> tuple[SpendingLimit, dict[str, int]]:
        """The limit for claims of this class, and the revisions it was read from."""
        spent_as = grant_class(spent)
        key = (tenant, spent_as.value)
        found = self._limits.get(key)
        if found is None:
            copies = list(self._state.list_all(GrantCopy, tenant))
            revisions = {GRANT_COPY.store_key(tenant, c.metadata.name): c.revision for c in copies}
            overrides, region = self._state.overrides(), self._state.region
            emergency = has_emergency_quota(overrides, region=region, tenant=tenant, now=self.now)
            limit = spending_limit(copies, spent_as, self.now, emergency=emergency, age_s=self._state.grant_age_s)
            found = self._limits[key] = (limit, revisions)
        return found

    def partition_mode(self) -> PartitionMode:
        """The policy's mode for placement during a partition."""
        return self.rules().partition_mode

    def rules(self) -> PolicyRules:
        """The rules of the active policy."""
        if self._rules is None:
            revisions = self._state.list_all(PolicyRevision)
            self._rules = active_policy(revisions, self._state.overrides(), self._state.region, self.now).rules
        return self._rules

    def gang(self, replica: Replica) -> bind_preconditions.GangState | None:
        key = f"{replica.metadata.namespace}/{replica.spec.assignment}/{replica.spec.revision}"
        if key not in self._gangs:
            self._gangs[key] = bind_preconditions.gang_state(self._state, replica)
        return self._gangs[key]

    def siblings(self, replica: Replica) -> preempted.SiblingCounts:
        """Sibling counts of the replica's workload, counted once per round."""
        key = (replica.metadata.namespace, replica.spec.workload)
        if key not in self._siblings:
            self._siblings[key] = bind_preconditions.sibling_counts(self._state, replica)
        return self._siblings[key]

    def tenant(self, name: str) -> Tenant | None:
        if name not in self._tenants:
            self._tenants[name] = self._state.tenant(name)
        return self._tenants[name]


def node_refusal(
    state: AuthorityState, round_state: RoundState, replica: Replica, node: Node | None, name: str
) -> Refused | None:
    """Why the replica may not use the node, apart from capacity and quota; None if it may."""
    refused = placement_checks.node_refusal(
        node, name, state.leases.epoch(name), live=state.leases.is_live(name, round_state.monotonic_s)
    )
    if refused is not None or node is None:
        return refused
    return (
        placement_checks.override_refusal(node, replica, state.region, round_state.avoidances, round_state.now)
        or placement_checks.driver_refusal(node, replica)
        or placement_checks.placement_rules_refusal(node, replica, state.region, round_state.region)
        or placement_checks.tenancy_refusal(node, replica, round_state.tenant(replica.metadata.namespace))
    )


class ReserveJob:
    """One reserve request."""

    def __init__(
        self,
        state: AuthorityState,
        caller: Principal,
        items: Sequence[ReserveItem],
        decision: Decision | None,
        *,
        bind: bool,
    ) -> None:
        self.verb = "bind" if bind else "reserve"
        self.caller = caller
        self.items = items
        self._state = state
        self._bind = bind
        self._decision = decision
        self._round_state: RoundState
        self._ended_override: Refused | None = None
        self.decision_name = ""
        self._base_name = self._namespace = ""
        if decision is not None:
            self._base_name = decision.metadata.name or f"decision-{state.ports.ids.uid()}"
            self._namespace = decision.metadata.namespace or (items[0].namespace if items else "")

    def identity(self, item: ReserveItem) -> str:
        return item.intent.replica_uid

    def begin_round(self, round_state: RoundState | None = None) -> None:
        """`round_state` is the shared state if several requests are processed in one round."""
        self._round_state = round_state or RoundState(self._state)
        self.decision_name = self._name_decision()
        self._ended_override = placement_checks.ended_override_refusal(self._decision, self._state.overrides())

    def plan(self, item: ReserveItem) -> CommitStep | PlacementResult:
        state, round_state = self._state, self._round_state
        replica = state.replica(item.namespace, item.replica)
        refused = placement_checks.replica_refusal(replica, item.namespace, item.replica, item.intent)
        if refused is not None or replica is None:
            return rejected(refused or Refused(Reason.REPLICA_NOT_FOUND), attempt=_attempt(replica))
        placement = replica.status.placement
        if placement.reservation or placement.binding:
            return already_placed(state, replica, item.devices)
        refused = self._ended_override or self._name_in_use(item)
        if refused is not None:
            return rejected(refused, attempt=item.intent.attempt)
        node = state.node(item.node)
        refused = node_refusal(state, round_state, replica, node, item.node)
        if refused is not None or node is None:
            return rejected(refused or Refused(Reason.NODE_NOT_FOUND), attempt=item.intent.attempt)
        refused = self._victim_refusal(item, replica) if item.victims else None
        if refused is not None:
            return rejected(refused, attempt=item.intent.attempt)
        reliance = round_state.gates.check(replica, node, item.victims, new_claim=True)
        if isinstance(reliance, Refused):
            return rejected(reliance, attempt=item.intent.attempt)
        use = plan_volumes(state, replica, node.metadata.name, round_state.created)
        if isinstance(use, VolumeUse) and use.created and (item.victims or not self._bind):
            use = new_volume_refusal(replica)
        if isinstance(use, Refused):
            return rejected(use, attempt=item.intent.attempt)
        request = self._with_slots(self._claim_request(item, replica, use), node)
        limit, revisions = round_state.limit(item.namespace, request.capacity_class)
        claim = state.ledger.check(node, request, limit)
        if isinstance(claim, Refused) and claim.reason == Reason.GRANT_EXPIRED and not use.created:
            claim = self._check_provisional(replica, node, request, limit, claim)
        if isinstance(claim, Refused):
            return rejected(claim, attempt=item.intent.attempt)
        if item.victims:
            named = bind_preconditions.victim_claims(state, item)
            revisions = {**revisions, **round_state.protected.compared_revisions(item.namespace, named)}
        step = self._step(item, replica, node, claim, revisions=revisions, use=use)
        if reliance is not NO_RELIANCE:
            rely_on(step, reliance)
        return step

    def _victim_refusal(self, item: ReserveItem, replica: Replica) -> Refused | None:
        round_state = self._round_state
        return bind_preconditions.victim_refusal(
            self._state, item, replica, round_state.now, siblings=round_state.siblings, protected=round_state.protected
        )

    def _check_provisional(
        self, replica: Replica, node: Node, request: ClaimRequest, limit: SpendingLimit, expired: Refused
    ) -> Refused | Claim:
        """The grant lease expired: checks the claim as provisional work, if the policy allows that."""
        state, round_state = self._state, self._round_state
        assigned = state.get(ASSIGNMENT, replica.metadata.namespace, replica.spec.assignment)
        binds_alone = self._bind and round_state.gang(replica) is None
        proposal = provisional.ProvisionalRequest(
            replica, request, binds_at_once=binds_alone, assigned=assigned is not None
        )
        terms = provisional.provisional_terms(round_state.partition_mode(), proposal, limit, round_state.now, expired)
        if isinstance(terms, Refused):
            return terms
        return state.ledger.check(node, msgspec.structs.replace(request, run_until=terms), limit)

    def _name_in_use(self, item: ReserveItem) -> Refused | None:
        """A recreated replica waits until the claim of its predecessor, which has the same name, is released."""
        other = self._state.ledger.claims.get(f"{item.namespace}/{claim_name(item.replica, item.intent.attempt)}")
        if other is None:
            return None
        return Refused(
            Reason.ALREADY_CLAIMED,
            f"claim {other.key} on node {other.node}: still held by a replica with uid {other.replica_uid}; "
            "next: wait for its release",
            {"node": other.node, "winner": other.facts()},
        )

    def _claim_request(self, item: ReserveItem, replica: Replica, use: VolumeUse) -> ClaimRequest:
        template, kind = replica.spec.template, capacity_class(replica)
        victims = bind_preconditions.live_victims(self._state, item) if item.victims else ()
        return ClaimRequest(
            namespace=item.namespace,
            name=claim_name(item.replica, item.intent.attempt),
            replica=item.replica,
            replica_uid=replica.uid,
            attempt=item.intent.attempt,
            amounts=requested_amounts(replica, use),
            capacity_class=kind,
            gpu_models=template.gpu_models,
            ports=tuple((p.name, p.port) for p in template.ports),
            udp_ports=udp_ports(template),
            devices=item.devices,
            victims=victims,
            recovery_slots=item.recovery_slots if kind is CapacityClass.RECOVERY else (),
            nominated=bool(victims),
            workload=replica.spec.workload,
            labels=labels_of(replica),
            anti_affinity=required_anti_affinity(replica.spec.placement) if replica.spec.placement.affinity else (),
        )

    def _with_slots(self, request: ClaimRequest, node: Node) -> ClaimRequest:
        """Adds the recovery slots that a recovery claim consumes: the named ones, or the closest fit on the node."""
        if request.capacity_class is not CapacityClass.RECOVERY:
            return request
        allowed = self._state.slots_for_tenant(node.metadata.name, request.namespace)
        named = tuple(name for name in request.recovery_slots if name in allowed)
        plain = msgspec.structs.replace(request, recovery_slots=())
        slots = named or self._state.ledger.account_for(node).choose_slots(plain, allowed)
        return msgspec.structs.replace(request, recovery_slots=slots)

    def _step(
        self,
        item: ReserveItem,
        replica: Replica,
        node: Node,
        claim: Claim,
        *,
        revisions: dict[str, int],
        use: VolumeUse,
    ) -> CommitStep:
        round_state, ids = self._round_state, self._state.ports.ids
        precondition = self._pending_precondition(replica, claim)
        binds = self._bind and not precondition
        expires_at = "" if binds else micro_text(round_state.now + RESERVATION_TTL_S)
        claim = msgspec.structs.replace(
            claim,
            bound=binds,
            node_epoch=self._state.leases.epoch(node.metadata.name) if binds else 0,
            expires_at=expires_at,
            victims=() if binds else claim.victims,
            needs_tenure=needs_tenure(replica.spec.exclusive),
            volumes=use.names if binds else (),
            amounts=without_volumes(claim.amounts, use),
        )
        # A claim that is bound at once needs no Reservation: it would be consumed by the transaction that creates it
        # (docs/decisions/0019). Only consumed recovery slots must be recorded on one.
        needs_reservation = not binds or bool(claim.recovery_slots)
        placement = PlacementBlock(
            attempt=claim.attempt,
            node=claim.node,
            zone=node.spec.zone,
            reservation=claim.name if needs_reservation else "",
            binding=claim.name if binds else "",
            epoch=claim.attempt,
            reserved_at=round_state.at,
            bound_at=round_state.at if binds else "",
            decision=self.decision_name,
            last_node=replica.status.placement.last_node,
            devices=tuple(device.id for device in claim.devices) if binds else (),
            ports=claim.ports if binds else {},
        )
        compares = {
            **revisions,
            **use.compares,
            REPLICA.store_key(item.namespace, item.replica): replica.revision,
            NODE.store_key("", claim.node): node.revision,
        }
        writes: list[Put | Remove] = list(use.created)
        if needs_reservation:
            reservation = self._reservation(item, replica, claim)
            compares[reservation.key] = 0
            writes.append(reservation)
        if binds:
            binding = records.binding_put(
                claim,
                replica,
                node,
                item.intent,
                uid=ids.uid(),
                created=round_state.created,
                decision=self.decision_name,
                policy=item.policy_revision,
                fencing_token=fencing_token(assignment_of(self._state, replica), replica),
                gang_min=gang.needed if (gang := round_state.gang(replica)) is not None else 0,
                annotations=self._state.trace_annotations(replica),
                volumes=use.bound,
            )
            compares[binding.key] = 0
            writes.append(binding)
        writes.append(records.replica_put(replica, placement))
        stored = binding if binds else reservation
        for slot in self._consumed_slots(claim):
            slot_write = slot_admission.consumer_put(slot, claim, round_state.at)
            compares[slot_write.key] = slot.revision
            writes.append(slot_write)
        done = _accepted(claim, placement, precondition)
        meta, kind = stored.attached.metadata, BINDING if binds else RESERVATION
        step = make_step("create", kind, meta, done, writes, compares=compares, claim=claim)
        step.volumes = use.holds
        return step

    def _reservation(self, item: ReserveItem, replica: Replica, claim: Claim) -> Put:
        phase = (
            ReservationPhase.CONSUMED
            if claim.bound
            else ReservationPhase.NOMINATED
            if claim.nominated
            else ReservationPhase.FIRM
        )
        return records.reservation_put(
            claim,
            replica,
            item.intent,
            phase,
            uid=self._state.ports.ids.uid(),
            created=self._round_state.created,
            policy=item.policy_revision,
            auto_bind=self._bind and not claim.bound,
        )

    def _consumed_slots(self, claim: Claim) -> list[RecoverySlot]:
        """The slots that the claim consumes. They are marked in the same transaction, so that none is deleted."""
        found = (self._state.get(HOLD, "", name) for name in claim.recovery_slots)
        return [slot for slot in found if slot is not None]

    def _pending_precondition(self, replica: Replica, claim: Claim) -> str:
        """Why the claim cannot be bound in the same transaction; empty if it can."""
        if claim.nominated:
            return Reason.WAITING_FOR_VICTIMS.value
        gang = self._round_state.gang(replica)
        return "" if gang is None or gang.committed else Reason.WAITING_FOR_GANG.value

    def _name_decision(self) -> str:
        """The given or generated name; a part that is committed later gets a numbered suffix."""
        if self._decision is None:
            return ""
        for number in range(1, limits.COMMIT_ROUNDS_MAX + 1):
            name = self._base_name if number == 1 else f"{self._base_name}.{number}"
            if self._state.get(_DECISION, self._namespace, name) is None:
                return name
        return f"{self._base_name}.{self._state.ports.ids.uid()}"

    def recorded(self) -> bool:
        """Whether the Decision was stored with one of the items."""
        return self._state.get(_DECISION, self._namespace, self._base_name) is not None

    def extra_writes(
        self, accepted: Sequence[tuple[int, CommitStep]], results: Sequence[PlacementResult | None]
    ) -> ExtraWrites:
        """The Decision, with the result of each replica in it."""
        if self._decision is None:
            return ExtraWrites()
        outcome = {self.items[i].intent.replica_uid: a for i, a in enumerate(results) if a is not None}
        outcome.update({self.items[i].intent.replica_uid: step.result for i, step in accepted})
        entries = tuple(_with_result(e, outcome.get(e.uid)) for e in self._decision.spec.entries)
        meta = msgspec.structs.replace(
            self._decision.metadata,
            name=self.decision_name,
            namespace=self._namespace,
            uid=self._state.ports.ids.uid(),
            generation=1,
            resource_version="",
            creation_timestamp=self._round_state.created,
        )
        spec = msgspec.structs.replace(self._decision.spec, entries=entries)
        write = records.put_object(_DECISION, Decision(meta, spec, decided_status(entries, self._round_state.created)))
        return ExtraWrites({write.key: 0}, [write])


def rely_on(step: CommitStep, reliance: RelianceOnClaims) -> None:
    """Adds to the step what its placement relies on."""
    step.compares.update(reliance.compares)
    step.relies_on, step.reads_claims = reliance.in_flight, reliance.reads_claims


def _attempt(replica: Replica | None) -> int:
    return replica.status.placement.attempt if replica is not None else 0


def _with_result(entry: DecisionEntry, result: PlacementResult | None) -> DecisionEntry:
    if result is None:
        return entry
    message = result.message
    if entry.node and result.node and result.node != entry.node:
        message = f"already placed on node {result.node}"
    node = entry.node or result.node
    return msgspec.structs.replace(entry, node=node, result=result.result.value, reason=result.reason, message=message)


def already_placed(state: AuthorityState, replica: Replica, devices_named: tuple[DeviceClaim, ...]) -> PlacementResult:
    """The response for an intent that was placed before: the caller adopts the claim. Other named devices are
    rejected."""
    placement = replica.status.placement
    namespace = replica.metadata.namespace
    binding = state.binding(namespace, placement.binding) if placement.binding else None
    reservation: Reservation | None = state.reservation(namespace, placement.reservation)
    devices, ports = (
        (binding.spec.devices, binding.spec.ports)
        if binding is not None
        else (reservation.spec.devices, reservation.spec.ports)
        if reservation is not None
        else ((), {})
    )
    facts = {}
    if devices_named and devices_named != devices:
        facts = {"claim": f"{namespace}/{placement.binding or placement.reservation}", "node": placement.node}
    return PlacementResult(
        result=PlacementOutcome.REJECTED if facts else PlacementOutcome.ALREADY,
        reason=Reason.INTENT_MISMATCH if facts else "",
        message=f"replica {replica.key}: already placed on node {placement.node} with other devices" if facts else "",
        facts=facts,
        node=placement.node,
        devices=devices,
        ports=ports,
        reservation=placement.reservation,
        binding=placement.binding,
        attempt=placement.attempt,
        epoch=placement.epoch,
    )


def _accepted(claim: Claim, placement: PlacementBlock, precondition: str) -> PlacementResult:
    return PlacementResult(
        result=PlacementOutcome.ACCEPTED,
        reason=precondition,
        node=claim.node,
        devices=claim.devices,
        ports=claim.ports,
        reservation=placement.reservation,
        binding=placement.binding,
        attempt=claim.attempt,
        epoch=claim.attempt,
    )
