"""reserve: turns proposals into claims, bound at once on the ordinary path.

Each item is checked against the current state, never against the proposer's snapshot. The transaction compares the
Term, each Node, each Replica, each GrantCopy and each recovery place that is drawn, so that a cordon, a deletion, a
lower limit or the end of a place never races a bind.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.authority import checks, places, provisional, records, waits
from holdfast.authority.claims import Claim, Want, capacity_class, grant_class
from holdfast.authority.protecting import Protected
from holdfast.authority.rounds import Extra, Step, make_step, rejected
from holdfast.authority.state import ASSIGNMENT, BINDING, GRANT_COPY, HOLD, NODE, REPLICA, RESERVATION, State
from holdfast.flow.active_policy import active_policy
from holdfast.flow.retreat import preempt
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.binding import CapacityClass, DeviceClaim, Reservation, ReservationPhase, claim_name
from holdfast.model.decision import Decision, DecisionEntry
from holdfast.model.errors import Refused
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import Limit, limit_of
from holdfast.model.hold import Hold
from holdfast.model.kinds import kind_of
from holdfast.model.node import Node
from holdfast.model.override import active_avoidances, has_emergency_quota
from holdfast.model.placement import Answer, PlaceItem, Result
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.replica import PlacementBlock, Replica
from holdfast.model.scheduler_policy import PartitionMode, PolicyRevision
from holdfast.model.template import requests
from holdfast.model.tenant import Tenant
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import micro_text, seconds_text
from holdfast.store.contract import Put, Remove

_DECISION = kind_of(Decision)


class World:
    """What a round reads once for all of its items."""

    def __init__(self, state: State) -> None:
        self.now = state.now()
        self.at = micro_text(self.now)
        self.created = seconds_text(self.now)
        self.monotonic_s = state.ports.clock.monotonic()
        self.avoidances = active_avoidances(state.overrides(), self.now)
        self.region: Region | None = state.this_region()
        self._state = state
        self._limits: dict[tuple[str, str], tuple[Limit, dict[str, int]]] = {}
        self._tenants: dict[str, Tenant | None] = {}
        self._gangs: dict[str, waits.GangState | None] = {}
        self._mates: dict[tuple[str, str], preempt.Mates] = {}
        self._partition_mode: PartitionMode | None = None
        self.protected = Protected(state)

    def limit(self, tenant: str, spent: CapacityClass) -> tuple[Limit, dict[str, int]]:
        """The limit a claim of this class counts against, and the revisions it rests on."""
        spent_as = grant_class(spent)
        key = (tenant, spent_as.value)
        found = self._limits.get(key)
        if found is None:
            copies = list(self._state.every(GrantCopy, tenant))
            rests_on = {GRANT_COPY.store_key(tenant, c.metadata.name): c.revision for c in copies}
            overrides, region = self._state.overrides(), self._state.region
            emergency = has_emergency_quota(overrides, region=region, tenant=tenant, now=self.now)
            limit = limit_of(copies, spent_as, self.now, emergency=emergency, age_s=self._state.grant_age_s)
            found = self._limits[key] = (limit, rests_on)
        return found

    def partition_mode(self) -> PartitionMode:
        """What the region's policy says of placing while it is cut off."""
        if self._partition_mode is None:
            revisions = self._state.every(PolicyRevision)
            policy = active_policy(revisions, self._state.overrides(), self._state.region, self.now)
            self._partition_mode = policy.rules.partition_mode
        return self._partition_mode

    def gang(self, replica: Replica) -> waits.GangState | None:
        key = f"{replica.metadata.namespace}/{replica.spec.assignment}/{replica.spec.revision}"
        if key not in self._gangs:
            self._gangs[key] = waits.gang_of(self._state, replica)
        return self._gangs[key]

    def mates(self, replica: Replica) -> preempt.Mates:
        """The replicas of a workload, counted once for a whole round."""
        key = (replica.metadata.namespace, replica.spec.workload)
        if key not in self._mates:
            self._mates[key] = waits.mates_of(self._state, replica)
        return self._mates[key]

    def tenant(self, name: str) -> Tenant | None:
        if name not in self._tenants:
            self._tenants[name] = self._state.tenant(name)
        return self._tenants[name]


def why_not_here(state: State, world: World, who: Replica, node: Node | None, name: str) -> Refused | None:
    """Every check of the node that does not count anything."""
    refused = checks.node(node, name, state.leases.epoch(name), live=state.leases.live(name, world.monotonic_s))
    if refused is not None or node is None:
        return refused
    return (
        checks.avoided(node, who, state.region, world.avoidances)
        or checks.driver(node, who)
        or checks.rules(node, who, state.region, world.region)
        or checks.tenancy(node, who, world.tenant(who.metadata.namespace))
    )


class Placing:
    """One reserve request."""

    def __init__(
        self, state: State, who: Principal, items: Sequence[PlaceItem], decision: Decision | None, *, bind: bool
    ) -> None:
        self.verb = "bind" if bind else "reserve"
        self.who = who
        self.items = items
        self._state = state
        self._bind = bind
        self._decision = decision
        self._world: World
        self.decision_name = ""
        self._base_name = self._namespace = ""
        if decision is not None:
            self._base_name = decision.metadata.name or f"decision-{state.ports.ids.uid()}"
            self._namespace = decision.metadata.namespace or (items[0].namespace if items else "")

    def identity(self, item: PlaceItem) -> str:
        return item.intent.replica_uid

    def begin(self, world: World | None = None) -> None:
        """`world` is what the whole round reads, where requests share one."""
        self._world = world or World(self._state)
        self.decision_name = self._name_decision()

    def plan(self, item: PlaceItem) -> Step | Answer:
        state, world = self._state, self._world
        replica = state.replica(item.namespace, item.replica)
        refused = checks.replica(replica, item.namespace, item.replica, item.intent)
        if refused is not None or replica is None:
            return rejected(refused or Refused(Reason.REPLICA_GONE), attempt=_attempt(replica))
        placed = replica.status.placement
        if placed.reservation or placed.binding:
            return already(state, replica, item.devices)
        refused = self._name_in_use(item)
        if refused is not None:
            return rejected(refused, attempt=item.intent.attempt)
        node = state.node(item.node)
        refused = why_not_here(state, world, replica, node, item.node)
        if refused is not None or node is None:
            return rejected(refused or Refused(Reason.NODE_GONE), attempt=item.intent.attempt)
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
            named = waits.claims_named(state, item)
            rests_on = {**rests_on, **world.protected.rests_on(item.namespace, named)}
        return self._step(item, replica, node, claim, rests_on)

    def _why_not_evicted(self, item: PlaceItem, replica: Replica) -> Refused | None:
        world = self._world
        return waits.why_not_evicted(
            self._state, item, replica, world.now, mates=world.mates, protected=world.protected
        )

    def _provisionally(
        self, replica: Replica, node: Node, want: Want, limit: Limit, expired: Refused
    ) -> Refused | Claim:
        """Cut off from the global cell for a lease: the policy decides whether anything may still be placed."""
        state, world = self._state, self._world
        assigned = state.get(ASSIGNMENT, replica.metadata.namespace, replica.spec.assignment)
        alone = self._bind and world.gang(replica) is None
        asked = provisional.Asked(replica, want, binds=alone, assigned=assigned is not None)
        terms = provisional.terms(world.partition_mode(), asked, limit, world.now, expired)
        if isinstance(terms, Refused):
            return terms
        return state.ledger.check(node, msgspec.structs.replace(want, run_until=terms), limit)

    def _name_in_use(self, item: PlaceItem) -> Refused | None:
        """A replica that was deleted and made anew waits until the old one's claim of the same name is proven gone."""
        other = self._state.ledger.claims.get(f"{item.namespace}/{claim_name(item.replica, item.intent.attempt)}")
        if other is None:
            return None
        return Refused(
            Reason.ALREADY_CLAIMED,
            f"claim {other.key} on node {other.node} is still held by uid {other.replica_uid}; release it first",
            {"node": other.node, "winner": other.facts()},
        )

    def _want(self, item: PlaceItem, replica: Replica) -> Want:
        template, kind = replica.spec.template, capacity_class(replica)
        victims = waits.live_victims(self._state, item) if item.victims else ()
        return Want(
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
            holds=item.holds if kind is CapacityClass.RECOVERY else (),
            nominated=bool(victims),
        )

    def _drawing(self, want: Want, node: Node) -> Want:
        """A recovery claim uses the places kept for it first: those it names, or the closest fit on the node."""
        if want.capacity_class is not CapacityClass.RECOVERY:
            return want
        allowed = self._state.drawable(node.metadata.name, want.namespace)
        named = tuple(name for name in want.holds if name in allowed)
        plain = msgspec.structs.replace(want, holds=())
        holds = named or self._state.ledger.see(node).drawable(plain, allowed)
        return msgspec.structs.replace(want, holds=holds)

    def _step(self, item: PlaceItem, replica: Replica, node: Node, claim: Claim, rests_on: dict[str, int]) -> Step:
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
            tenured=needs_tenure(replica.spec.exclusive),
        )
        # What is bound at once was never held without being bound: a Reservation would be consumed in the transaction
        # that makes it, and be a quarter of the rows (docs/decisions/0019). Only places it draws have to be on record.
        held = not binds or bool(claim.holds)
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
            drawn = places.drawn_put(hold, claim, world.at)
            compares[drawn.key] = hold.revision
            writes.append(drawn)
        return make_step(
            "create",
            BINDING if binds else RESERVATION,
            made.attached.metadata,
            Answer(
                result=Result.ACCEPTED, reason=waiting_for, node=claim.node, devices=claim.devices, ports=claim.ports,
                reservation=placement.reservation, binding=placement.binding, attempt=claim.attempt,
                epoch=claim.attempt,
            ),
            writes,
            compares=compares,
            claim=claim,
        )  # fmt: skip

    def _reservation(self, item: PlaceItem, replica: Replica, claim: Claim) -> Put:
        phase = (
            ReservationPhase.CONSUMED if claim.bound
            else ReservationPhase.NOMINATED if claim.nominated
            else ReservationPhase.FIRM
        )  # fmt: skip
        return records.reservation_put(
            claim, replica, item.intent, phase, uid=self._state.ports.ids.uid(), created=self._world.created,
            policy=item.policy_revision, bind_when_firm=self._bind and not claim.bound,
        )  # fmt: skip

    def _drawn(self, claim: Claim) -> list[Hold]:
        """The places a claim draws. They say so in the same transaction, so that none is given up at that moment."""
        found = (self._state.get(HOLD, "", name) for name in claim.holds)
        return [hold for hold in found if hold is not None]

    def _waiting_for(self, replica: Replica, claim: Claim) -> str:
        """Why the claim cannot be bound in the same transaction; empty when it can."""
        if claim.nominated:
            return Reason.WAITING_FOR_VICTIMS.value
        gang = self._world.gang(replica)
        return "" if gang is None or gang.standing else Reason.WAITING_FOR_GANG.value

    def _name_decision(self) -> str:
        """The name given, or a new one; a part that is committed later gets a number behind it."""
        if self._decision is None:
            return ""
        for number in range(1, limits.COMMIT_ROUNDS + 1):
            name = self._base_name if number == 1 else f"{self._base_name}.{number}"
            if self._state.get(_DECISION, self._namespace, name) is None:
                return name
        return f"{self._base_name}.{self._state.ports.ids.uid()}"

    def recorded(self) -> bool:
        """Whether the decision was stored with one of the items."""
        return self._state.get(_DECISION, self._namespace, self._base_name) is not None

    def extra(self, taken: Sequence[tuple[int, Step]], answers: Sequence[Answer | None]) -> Extra:
        """The decision, with what became of each replica it speaks of."""
        if self._decision is None:
            return Extra()
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
        write = records.put(_DECISION, Decision(meta, spec, self._decision.status))
        return Extra({write.key: 0}, [write])


def _attempt(replica: Replica | None) -> int:
    return replica.status.placement.attempt if replica is not None else 0


def _with_result(entry: DecisionEntry, answer: Answer | None) -> DecisionEntry:
    if answer is None:
        return entry
    message = answer.message
    if entry.node and answer.node and answer.node != entry.node:
        message = f"it was on node {answer.node} already"
    node = entry.node or answer.node
    return msgspec.structs.replace(entry, node=node, result=answer.result.value, reason=answer.reason, message=message)


def already(state: State, replica: Replica, asked: tuple[DeviceClaim, ...]) -> Answer:
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
    return Answer(
        result=Result.REJECTED if facts else Result.ALREADY,
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
