"""The ledger alone: its invariants under random sequences of events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.authority.claims import Claim, ClaimRequest, grant_class
from holdfast.authority.ledger import Ledger, rebuild_ledger
from holdfast.authority.records import claim_meta
from holdfast.model.binding import (
    Binding,
    BindingSpec,
    CapacityClass,
    Intent,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.errors import Refused
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.grant_limit import SpendingLimit, spending_limit
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Device, Node, NodeSpec, node_capacity
from holdfast.model.quantity import add, amounts_text
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, RecoverySlotStatus, SlotAdmissionStatus
from holdfast.model.template import Template

CLASSES = st.sampled_from(list(CapacityClass))
TENANTS = ("a", "b")
LIMIT = {"cpu": 9000, "gpu": 3000}


def make_node(name: str, revision: int, cpu: int, gpus: int) -> Node:
    meta = ObjectMeta(name=name, resource_version=str(revision))
    devices = tuple(Device(f"g{i}") for i in range(gpus))
    return Node(meta, NodeSpec("z", capacity={"cpu": f"{cpu}m"}, devices=devices, port_range=(3000, 3004)))


class LedgerMachine(RuleBasedStateMachine):
    """Random claims, bindings, releases, fences, resizes and recovery slots, with the objects they would store."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.revision = 10
        self.nodes: dict[str, Node] = {}
        self.slots: dict[str, RecoverySlot] = {}
        self.reservations: dict[str, Reservation] = {}
        self.bindings: dict[str, Binding] = {}
        self.count = 0
        for name in ("n1", "n2"):
            self._resize(name, 6000, 2)

    def _resize(self, name: str, cpu: int, gpus: int) -> None:
        self.revision += 1
        self.nodes[name] = make_node(name, self.revision, cpu, gpus)
        self.ledger.account_for(self.nodes[name])

    @rule(name=st.sampled_from(["n1", "n2"]), cpu=st.integers(0, 9000), gpus=st.integers(0, 3))
    def resize(self, name: str, cpu: int, gpus: int) -> None:
        self._resize(name, cpu, gpus)

    @rule(
        node=st.sampled_from(["n1", "n2"]),
        tenant=st.sampled_from(TENANTS),
        kind=CLASSES,
        cpu=st.integers(0, 5000),
        gpu=st.sampled_from([0, 0, 300, 500, 1000, 2000]),
        ports=st.lists(st.sampled_from([0, 0, 3001, 80]), max_size=2),
        lands=st.booleans(),
        binds=st.booleans(),
        victim=st.integers(0, 30),
        draws=st.booleans(),
    )
    def reserve(
        self,
        *,
        node: str,
        tenant: str,
        kind: CapacityClass,
        cpu: int,
        gpu: int,
        ports: list[int],
        lands: bool,
        binds: bool,
        victim: int,
        draws: bool,
    ) -> None:
        self.count += 1
        sums = {name: amount for name, amount in (("cpu", cpu), ("gpu", gpu)) if amount}
        victims = tuple(key for key in list(self.bindings)[victim : victim + 1] if not binds)
        slots = tuple(self.slots) if draws and kind is CapacityClass.RECOVERY else ()
        want = ClaimRequest(
            tenant,
            f"r{self.count}.1",
            f"r{self.count}",
            f"u{self.count}",
            1,
            sums,
            kind,
            (),
            tuple((f"p{i}", p) for i, p in enumerate(ports)),
            (),
            victims,
            slots,
            bool(victims),
        )
        before = self._state()
        found = self.ledger.check(self.nodes[node], want, SpendingLimit(LIMIT, LIMIT, ("x",)))
        assert self._state() == before, "a check changed the ledger"
        if isinstance(found, Refused):
            assert found.reason and found.message and found.facts
            return
        self._fits(self.nodes[node], found)
        claim = msgspec.structs.replace(found, bound=binds, victims=() if binds else found.victims)
        undo = self.ledger.put(claim)
        if not lands:
            self.ledger.restore(claim.key, undo)
            assert self._state() == before, "an undo left something behind"
            return
        self._record(claim)

    def _state(self) -> dict[str, Any]:
        return msgspec.json.decode(msgspec.json.encode(_plain(self.ledger.comparable_state())), type=dict[str, Any])

    def _fits(self, node: Node, claim: Claim) -> None:
        """Independent check of the capacity rule, the devices and the limit. A node may have shrunk below its claims in
        a resource that this claim does not ask for."""
        capacity = node_capacity(node)
        firm: dict[str, int] = {}
        loose: dict[str, int] = {}
        nominated: dict[str, int] = {}
        drawn: set[str] = set()
        victims: set[str] = set()
        here = [c for c in self.ledger.claims.values() if c.node == claim.node] + [claim]
        for each in here:
            into = nominated if each.nominated else loose if each.capacity_class == "Reclaimable" else firm
            add(into, each.amounts)
            drawn |= set(each.recovery_slots)
            if each.nominated:
                victims |= set(each.victims)
        slot_amounts: dict[str, int] = {}
        for hold in self.slots.values():
            if hold.spec.node == claim.node and hold.metadata.name not in drawn:
                add(slot_amounts, {"cpu": int(str(hold.spec.resources["cpu"])[:-1])})
        leaving: dict[str, int] = {}
        leaving_firm: dict[str, int] = {}
        for each in here:
            if each.key in victims and not each.nominated:
                add(leaving, each.amounts)
                if each.capacity_class != "Reclaimable":
                    add(leaving_firm, each.amounts)
        solid = claim.nominated or claim.capacity_class != "Reclaimable"
        for name in sorted(name for name, amount in claim.amounts.items() if amount):
            f, k, n, cap = firm.get(name, 0), loose.get(name, 0), nominated.get(name, 0), capacity.get(name, 0)
            if solid:
                assert f + slot_amounts.get(name, 0) + n - leaving_firm.get(name, 0) <= cap
            assert f + k + n - leaving.get(name, 0) <= cap
            assert f + k <= cap
        used = dict(self.ledger.used.get((claim.namespace, grant_class(claim.capacity_class)), {}))
        add(used, claim.amounts)
        assert all(amount <= LIMIT.get(name, 0) for name, amount in used.items())

    def _record(self, claim: Claim) -> None:
        meta = ObjectMeta(name=claim.name, namespace=claim.namespace)
        intent = Intent(claim.replica_uid, "h", claim.attempt)
        phase = (
            ReservationPhase.CONSUMED
            if claim.bound
            else ReservationPhase.NOMINATED
            if claim.nominated
            else ReservationPhase.FIRM
        )
        common: dict[str, Any] = {
            "replica": claim.replica,
            "intent": intent,
            "node": claim.node,
            "resources": amounts_text(claim.amounts),
            "capacity_class": claim.capacity_class,
            "devices": claim.devices,
            "ports": claim.ports,
        }
        spec = ReservationSpec(**common, victims=claim.victims, recovery_slots=claim.recovery_slots)
        self.reservations[claim.key] = Reservation(meta, spec, ReservationStatus(phase=phase))
        if claim.bound:
            self.bindings[claim.key] = Binding(meta, BindingSpec(**common, template=Template()))

    @precondition(lambda self: self.reservations)
    @rule(which=st.integers(0, 100))
    def free(self, which: int) -> None:
        key = list(self.reservations)[which % len(self.reservations)]
        self.ledger.drop(key)
        self.ledger.drop(key)
        self.reservations.pop(key, None)
        self.bindings.pop(key, None)

    @precondition(lambda self: self.bindings)
    @rule(which=st.integers(0, 100))
    def fence(self, which: int) -> None:
        key = list(self.bindings)[which % len(self.bindings)]
        binding = self.bindings[key]
        if binding.spec.quota_released:
            self.ledger.drop(key)
            del self.bindings[key]
            return
        self.bindings[key] = msgspec.structs.replace(
            binding, spec=msgspec.structs.replace(binding.spec, quota_released=True)
        )
        self.reservations.pop(key, None)
        self.ledger.put(msgspec.structs.replace(self.ledger.claims[key], quota_held=False, recovery_slots=()))

    @rule(node=st.sampled_from(["n1", "n2"]), cpu=st.integers(1, 3000), number=st.integers(0, 3))
    def hold(self, node: str, cpu: int, number: int) -> None:
        old = self.slots.pop(f"h{number}", None)
        if old is None:
            self.slots[f"h{number}"] = RecoverySlot(
                ObjectMeta(name=f"h{number}"),
                RecoverySlotSpec("b", node, resources={"cpu": f"{cpu}m"}),
                RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True)),
            )
        for name in self.nodes:
            self.ledger.set_slots(name, [h for h in self.slots.values() if h.spec.node == name])

    @invariant()
    def equals_rebuilt_ledger(self) -> None:
        again = rebuild_ledger(
            self.nodes.values(), self.slots.values(), self.reservations.values(), self.bindings.values()
        )
        assert self.ledger == again

    @invariant()
    def no_device_has_two_owners(self) -> None:
        for account in self.ledger.nodes.values():
            for owners in account.device_use.values():
                assert sum(owners.values()) <= 1000
                assert len(owners) == 1 or 1000 not in owners.values()
            assert len({p for c in account.claims.values() for p in c.ports.values()}) == sum(
                len(c.ports) for c in account.claims.values()
            )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


LedgerMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedger = LedgerMachine.TestCase


@pytest.mark.parametrize("held", ["firm claim", "nominated claim", "recovery slot"])
def test_claim_on_overcommitted_node_is_checked_only_for_requested_resources(held: str) -> None:
    """The node's capacity shrank below its claims. Found by `LedgerMachine`: a claim without cpu was refused beside a
    firm claim, and accepted beside a nomination or recovery slot. The planner too checks only requested resources."""
    ledger, limit = Ledger(), SpendingLimit(LIMIT, LIMIT, ("x",))
    whole, shrunk = make_node("n1", 1, 3000, 1), make_node("n1", 2, 1000, 1)

    def request(name: str, sums: dict[str, int], *, victims: tuple[str, ...] = ()) -> ClaimRequest:
        firm = CapacityClass.FIRM
        return ClaimRequest("a", name, name, name, 1, sums, firm, (), (), (), victims, (), bool(victims))

    if held == "recovery slot":
        admitted = RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True))
        spec = RecoverySlotSpec("b", "n1", resources={"cpu": "3000m"})
        ledger.account_for(whole)
        ledger.set_slots("n1", [RecoverySlot(ObjectMeta(name="s"), spec, admitted)])
    else:
        victims = ("a/gone",) if held == "nominated claim" else ()
        found = ledger.check(whole, request("r1", {"cpu": 3000}, victims=victims), limit)
        assert isinstance(found, Claim)
        ledger.put(found)
    for sums in ({}, {"cpu": 0}, {"gpu": 1000}):
        assert isinstance(ledger.check(shrunk, request("r2", sums), limit), Claim), sums
    refused = ledger.check(shrunk, request("r2", {"cpu": 1}), limit)
    assert isinstance(refused, Refused) and refused.reason == Reason.INSUFFICIENT_CPU


@given(st.lists(st.tuples(st.sampled_from(list(GrantClass)), st.integers(0, 5), st.booleans()), max_size=5))
def test_spending_limit_is_sum_of_live_grants_of_class(rows: list[tuple[GrantClass, int, bool]]) -> None:
    copies = [
        GrantCopy(
            ObjectMeta(name=str(i)),
            GrantCopySpec(c, {"cpu": n}, lease_expires_at="2026-01-01T00:00:00Z" if ended else ""),
        )
        for i, (c, n, ended) in enumerate(rows)
    ]
    now = 1_800_000_000.0
    for spent_as, classes in (
        (GrantClass.NORMAL, (GrantClass.NORMAL, GrantClass.EMERGENCY)),
        (GrantClass.RECOVERY, (GrantClass.RECOVERY,)),
    ):
        limit = spending_limit(copies, spent_as, now)
        assert limit.spendable.get("cpu", 0) == 1000 * sum(n for c, n, e in rows if c in classes and not e)
        assert limit.with_expired.get("cpu", 0) == 1000 * sum(n for c, n, _ in rows if c in classes)


def ported(name: str, port: int, **more: Any) -> Claim:
    return Claim(f"a/{name}", "a", name, name, name, 1, "n1", {}, CapacityClass.FIRM, ports={"http": port}, **more)


def test_search_for_ports_continues_after_the_newest_claim() -> None:
    """A promoted nomination gets ports when it is stored again. A stopping claim gives its ports back, so the search
    does not continue there."""
    ledger = Ledger()
    account = ledger.account_for(make_node("n1", 1, 3000, 0))
    ledger.put(ported("r1", 3000))
    ledger.put(msgspec.structs.replace(ported("r2", 3000), ports={}, nominated=True))
    ledger.put(ported("r2", 3002))
    assert account.port_cursor == 3003
    ledger.put(ported("r1", 3000, stopping=True))
    assert account.port_cursor == 3003
    rebuilt = Ledger()
    account = rebuilt.account_for(make_node("n1", 1, 3000, 0))
    rebuilt.put(ported("r1", 3000, stopping=True))
    assert account.port_cursor == 3001, "a rebuilt ledger does not know the order"


@pytest.mark.parametrize(("ports", "cursor"), [((3000, 3004), 3003), ((3003, 3009), 3003), ((4000, 4009), 4000)])
def test_search_for_ports_starts_again_only_outside_the_node_s_range(ports: tuple[int, int], cursor: int) -> None:
    ledger = Ledger()
    account = ledger.account_for(make_node("n1", 1, 3000, 0))
    ledger.put(ported("r1", 3002))
    changed = make_node("n1", 2, 3000, 0)
    ledger.account_for(msgspec.structs.replace(changed, spec=msgspec.structs.replace(changed.spec, port_range=ports)))
    assert account.port_range == ports and account.port_cursor == cursor


@pytest.mark.parametrize(("length", "labelled"), [(63, True), (64, False)])
def test_claim_is_labelled_with_its_workload_unless_the_name_is_too_long(length: int, labelled: bool) -> None:
    meta = claim_meta("acme", "r1.1", "n1", "w" * length, uid="uid", created="2027-01-01T00:00:00Z")
    assert ("w" * length in meta.labels.values()) is labelled and "n1" in meta.labels.values()


def test_provisional_claims_count_beside_the_ordinary_use_of_their_class_alone() -> None:
    def claim(name: str, kind: CapacityClass, **more: Any) -> Claim:
        return Claim(
            key=f"a/{name}",
            namespace="a",
            name=name,
            replica=name,
            replica_uid=name,
            attempt=1,
            node="n1",
            amounts={"cpu": 1000},
            capacity_class=kind,
            bound=True,
            **more,
        )

    ledger = Ledger()
    ledger.put(claim("ordinary", CapacityClass.FIRM))
    ledger.put(claim("provisional", CapacityClass.RECLAIMABLE, run_until="2026-01-01T00:00:00Z"))
    ledger.put(claim("recovery", CapacityClass.RECOVERY))
    assert ledger.used["a", GrantClass.NORMAL] == {"cpu": 2000}
    assert ledger.ordinary_use("a", GrantClass.NORMAL) == {"cpu": 1000}
    assert ledger.ordinary_use("a", GrantClass.RECOVERY) == {"cpu": 1000}
    ledger.drop("a/provisional")
    assert ledger.provisional_use == {} and ledger.used["a", GrantClass.NORMAL] == {"cpu": 1000}
    ledger.drop("a/ordinary")
    assert ("a", GrantClass.NORMAL) not in ledger.used
