"""Indexes and refusals of the ledger, spread domains, placement checks and the size of a transaction, as tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.test_claim_rules import FIRM, RECLAIMABLE, RECOVERY, claim, request
from tests.authority.test_ledger import make_node
from tests.factories import meta, node, replica

from holdfast.authority import placement_checks
from holdfast.authority.claims import Claim
from holdfast.authority.commit_rounds import CommitStep, _WriteBudget
from holdfast.authority.commits import CommitProbe
from holdfast.authority.grant_leases import GrantLeases
from holdfast.authority.ledger import Ledger
from holdfast.authority.neighbours import NeighbourIndex
from holdfast.authority.restore_records import epochs_of_previous_incarnations
from holdfast.authority.spread_domains import Domains
from holdfast.gate.audit import AuditEntry
from holdfast.model import limits
from holdfast.model.binding import CapacityClass, Intent
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.errors import Refused
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.grant_limit import SpendingLimit
from holdfast.model.kinds import kind_of
from holdfast.model.node import ContactState, Node
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
from holdfast.model.placement_eligibility import selector_of
from holdfast.model.placement_rules import AffinityRule, PlacementRules
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.template import template_hash
from holdfast.model.times import micro_text
from holdfast.store.contract import Put, Remove

replace = msgspec.structs.replace
NORMAL = GrantClass.NORMAL
NOW_S = 1_790_000_000.0

# Indexes


@pytest.mark.parametrize(
    ("item", "where"),
    [
        (claim(cpu=1, bound=True), set()),
        (claim(cpu=1), {"unbound"}),
        (claim(cpu=1, bound=True, quota_held=False), {"quota_released"}),
        (claim(cpu=1, bound=True, run_until="2026"), {"provisional"}),
        (claim(cpu=1, bound=True, run_until="2026", quota_held=False), {"quota_released"}),
        (claim(cpu=1, bound=True, needs_tenure=True), {"tenured"}),
        (claim(cpu=1, needs_tenure=True), {"unbound"}),
    ],
)
def test_claim_is_in_the_indexes_of_its_state_until_it_is_dropped(item: Claim, where: set[str]) -> None:
    ledger = Ledger()

    def found() -> set[str]:
        indexes = {
            "unbound": item.key in ledger.unbound,
            "quota_released": item.key in ledger.quota_released,
            "provisional": item.key in ledger.provisional_claims,
            "tenured": item.key in ledger.tenured_claims.get("n1", {}),
        }
        return {name for name, there in indexes.items() if there}

    assert ledger.put(item) is None
    assert found() == where
    assert ledger.used.get(("a", NORMAL), {}) == ({"cpu": 1} if item.quota_held else {})
    assert ledger.provisional_use.get("a", {}) == ({"cpu": 1} if "provisional" in where else {})
    assert ledger.put(item) == item, "it replaces itself"
    assert ledger.drop(item.key) == item and ledger.drop(item.key) is None
    assert ledger == Ledger() and not ledger.tenured_claims and not ledger.used and not ledger.provisional_use


def test_node_keeps_its_other_tenured_claims_when_one_ends() -> None:
    ledger = Ledger()
    one, two = (claim(name, 1, bound=True, needs_tenure=True) for name in ("one", "two"))
    ledger.put(one)
    ledger.put(two)
    ledger.drop(one.key)
    assert ledger.tenured_claims == {"n1": {two.key: two}}


def test_stopping_claim_does_not_move_the_search_for_ports_and_a_new_one_does() -> None:
    ledger = Ledger()
    account = ledger.account_for(make_node("n1", 1, 10, 0))
    first = claim(ports={"x": 3001}, bound=True)
    ledger.put(first)
    ledger.put(claim("two", ports={"x": 3003}))
    assert account.port_cursor == 3004
    ledger.put(replace(first, stopping=True))
    assert account.port_cursor == 3004
    ledger.put(claim("three", ports={"x": 3000}, stopping=True))
    assert account.port_cursor == 3001, "it was not there before"


def test_account_of_a_removed_node_is_forgotten_when_it_is_empty() -> None:
    ledger = Ledger()
    ledger.put(claim(cpu=1))
    ledger.forget("n1")
    ledger.forget("unknown")
    assert "n1" in ledger.nodes
    ledger.drop("a/old")
    ledger.put_slot("n1", "s", {"cpu": 1})
    ledger.forget("n1")
    assert "n1" in ledger.nodes
    ledger.drop_slot("n1", "s")
    ledger.forget("n1")
    assert "n1" not in ledger.nodes


APART = AffinityRule(workload_labels={"app": "db"}, apart=True)


def test_neighbours_are_claims_with_quota_and_a_workload() -> None:
    index = NeighbourIndex()
    labels = (("app", "web"),)
    stays = claim("one", workload="web", labels=labels, anti_affinity=(APART,))
    stops = claim("two", workload="web", labels=labels, stopping=True)
    for item in (stays, stops, claim("three", workload="web", quota_held=False), claim("four")):
        index.put(item)
    assert list(index.groups("a")) == [("web", labels, {"n1": {stays.key: stays, stops.key: stops}})]
    assert index.staying("a", "web") == {"n1": 1}
    assert list(index.guards("a")) == [("web", APART.topology, selector_of(APART), {"n1": 1})]
    assert index.has_guards("a") and not index.has_guards("b")
    other = replace(stays, key="a/five", name="five")
    index.put(other)
    assert index.staying("a", "web") == {"n1": 2} and next(index.guards("a"))[3] == {"n1": 2}
    index.drop(stays)
    assert index.staying("a", "web") == {"n1": 1} and next(index.guards("a"))[3] == {"n1": 1}
    assert index.comparable_state() != NeighbourIndex().comparable_state()
    for item in (other, stops, claim("three", workload="web", quota_held=False), claim("four")):
        index.drop(item)
    assert index.comparable_state() == NeighbourIndex().comparable_state() == ({}, {}, {})


# Refusals of the ledger

LIMIT = SpendingLimit({"cpu": 6}, {"cpu": 8}, ("normal", "emergency"), ("emergency",), {}, {"cpu": 8})


@pytest.mark.parametrize(
    ("used", "cpu", "kind", "limit", "reason"),
    [
        (0, 6, FIRM, LIMIT, None),
        (4, 2, FIRM, LIMIT, None),
        (4, 3, FIRM, LIMIT, "GrantExpired"),
        (4, 5, FIRM, LIMIT, "QuotaExceeded"),
        (4, 2, RECOVERY, LIMIT, None),
        (0, 1, FIRM, SpendingLimit({}, {}), "NoGrant"),
        (0, 1, FIRM, SpendingLimit({}, {"cpu": 8}, ("normal",), ("normal",)), "GrantExpired"),
    ],
)
def test_claim_must_fit_the_spending_limit(
    used: int, cpu: int, kind: CapacityClass, limit: SpendingLimit, reason: str | None
) -> None:
    ledger = Ledger()
    if used:
        ledger.put(claim(cpu=used, bound=True))
    found = ledger.limit_refusal(request(cpu, kind), limit)
    assert (found.reason if found is not None else None) == reason
    if reason == "QuotaExceeded" and found is not None:
        assert found.facts["shortfall"] == {"cpu": "3m"} and found.facts["used"] == {"cpu": "4m"}


@pytest.mark.parametrize(
    ("on_trust", "ordinary", "cpu", "fits"),
    [(1, 2, 1, True), (1, 2, 2, True), (1, 2, 3, False), (1, 6, 1, True), (1, 6, 2, False), (0, 0, 3, True)],
)
def test_provisional_claims_fit_their_share_and_all_claims_the_limit(
    on_trust: int, ordinary: int, cpu: int, *, fits: bool
) -> None:
    ledger = Ledger()
    if on_trust:
        ledger.put(claim("trust", on_trust, RECLAIMABLE, bound=True, run_until="2026"))
    if ordinary:
        ledger.put(claim("plain", ordinary, bound=True))
    limit = SpendingLimit({}, {"cpu": 8}, ("normal",), ("normal",), {"cpu": 3}, {"cpu": 8})
    found = ledger.limit_refusal(request(cpu, RECLAIMABLE, run_until="2026"), limit)
    assert (found is None) is fits
    assert found is None or found.reason is Reason.NOT_ALLOWED_WHILE_PARTITIONED


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({"cpu": 11}, "InsufficientCpu"),
        ({"memory": 1}, "InsufficientMemory"),
        ({"storage": 1}, "InsufficientStorage"),
        ({"licences": 1}, "InsufficientResource"),
        ({"gpu": 1000}, "InsufficientDevices"),
        ({"memory": 1, "cpu": 11}, "InsufficientCpu"),
    ],
)
def test_capacity_refusal_names_the_resource_and_the_figures(amounts: dict[str, int], reason: str) -> None:
    ledger = Ledger()
    machine = make_node("n1", 1, 10, 0)
    limit = dict.fromkeys(amounts, 10_000)
    found = ledger.check(machine, request(amounts=amounts), SpendingLimit(limit, limit, ("normal",)))
    assert isinstance(found, Refused) and found.reason == reason


def test_capacity_refusal_lists_claims_slots_and_nominations() -> None:
    ledger = Ledger()
    machine = make_node("n1", 1, 10, 0)
    ledger.account_for(machine)
    limit = SpendingLimit({"cpu": 99}, {"cpu": 99}, ("normal",))
    for item in (claim("f", 3), claim("r", 2, RECLAIMABLE)):
        ledger.put(item)
    plain = ledger.check(machine, request(6), limit)
    assert isinstance(plain, Refused)
    assert plain.facts == {
        "node": "n1",
        "shortfall": {"cpu": "1m"},
        "requested": {"cpu": "6m"},
        "capacity": {"cpu": "10m"},
        "firm": {"cpu": "3m"},
        "reclaimable": {"cpu": "2m"},
    }
    ledger.put_slot("n1", "s", {"cpu": 4})
    ledger.put(claim("n", 1, nominated=True))
    full = ledger.check(machine, request(6), limit)
    assert isinstance(full, Refused)
    assert (full.facts["recoveryReserved"], full.facts["nominated"]) == ({"cpu": "4m"}, {"cpu": "1m"})


# Spread domains


def in_zone(name: str, zone: str, **labels: str) -> Node:
    return replace(node(name, zone=zone), metadata=meta(name, labels=labels))


def test_domains_follow_added_changed_and_removed_nodes() -> None:
    def eligible(item: Node) -> bool:
        return not item.spec.unschedulable

    domains = Domains()
    one, two, three = in_zone("n1", "a", rack="r1"), in_zone("n2", "a", rack="r2"), in_zone("n3", "b")
    domains.update([one, two, three], eligible)
    assert (domains.nodes, domains.zones) == ({"n1": "a", "n2": "a", "n3": "b"}, {"a": 2, "b": 1})
    assert domains.values("rack") == {"r1", "r2"} and domains.values("room") == frozenset()
    cordoned = replace(two, metadata=meta("n2"), spec=replace(two.spec, unschedulable=True))
    domains.update([one, cordoned], eligible)
    assert (domains.nodes, domains.zones) == ({"n1": "a"}, {"a": 1})
    assert domains.values("rack") == {"r1"}
    domains.update([in_zone("n1", "b", rack="r9"), cordoned], eligible)
    assert domains.zones == {"b": 1} and domains.values("rack") == {"r9"}


# Ages of grant leases


def test_age_of_a_grant_counts_on_the_monotonic_clock_from_its_renewal() -> None:
    def copy(ago_s: float) -> GrantCopy:
        return GrantCopy(meta("normal", "a"), GrantCopySpec(last_contact_at=micro_text(NOW_S - ago_s)))

    leases, renewed = GrantLeases(), copy(20.0)
    assert leases.age_s(renewed, NOW_S, 100.0) == pytest.approx(20.0), "by the wall clock before it is observed"
    leases.observe([renewed, GrantCopy(meta("emergency", "a"), GrantCopySpec())], NOW_S, 100.0)
    leases.observe([renewed], NOW_S + 500.0, 130.0)
    assert leases.age_s(renewed, NOW_S + 500.0, 130.0) == pytest.approx(50.0), "a jump of the wall clock is no age"
    future = copy(-60.0)
    leases.observe([future], NOW_S, 200.0)
    assert leases.age_s(future, NOW_S, 200.0) == pytest.approx(0.0)
    leases.observe([], NOW_S, 300.0)
    assert leases.age_s(future, NOW_S, 300.0) == pytest.approx(-60.0), "it is forgotten"


# Placement checks

WORK = replica(0)
INTENT = Intent(WORK.uid, template_hash(WORK.spec.template), 1)


@pytest.mark.parametrize(
    ("item", "intent", "reason"),
    [
        (WORK, INTENT, None),
        (None, INTENT, "ReplicaNotFound"),
        (WORK, replace(INTENT, replica_uid="other"), "ReplicaNotFound"),
        (replica(0, terminating=True), INTENT, "ReplicaTerminating"),
        (WORK, replace(INTENT, template_hash="old"), "TemplateChanged"),
        (WORK, replace(INTENT, attempt=0), "StaleAttempt"),
        (WORK, replace(INTENT, attempt=2), "StaleAttempt"),
    ],
)
def test_intent_must_be_about_the_current_replica(item: Any, intent: Intent, reason: str | None) -> None:
    found = placement_checks.replica_refusal(item, "acme", "api", intent)
    assert (found.reason if found is not None else None) == reason
    if reason == "ReplicaNotFound" and found is not None:
        assert found.facts["uid"] == (item.uid if item is not None else "")


@pytest.mark.parametrize(
    ("item", "epoch", "live", "reason"),
    [
        (node(), 1, True, None),
        (None, 1, True, "NodeNotFound"),
        (node(), 1, False, "NodeUnreachable"),
        (node(), 2, True, "NodeReconciling"),
        (node(unschedulable=True), 2, False, "NodeCordoned"),
        (node(contact=ContactState.EXPIRED), 2, True, "NodeUnreachable"),
    ],
)
def test_node_must_be_live_and_reconciled(item: Node | None, epoch: int, reason: str | None, *, live: bool) -> None:
    found = placement_checks.node_refusal(item, "n1", epoch, live=live)
    assert (found.reason if found is not None else None) == reason
    if item is not None and found is not None:
        assert (found.facts["epoch"], found.facts["leaseEpoch"], found.facts["fencedEpoch"]) == (1, epoch, 0)


@pytest.mark.parametrize(
    ("names", "phase", "revoked", "refused"),
    [
        ((), ACTIVE, False, False),
        (("o",), ACTIVE, False, False),
        (("o",), "Expired", False, True),
        (("o",), ACTIVE, True, True),
        (("gone",), ACTIVE, False, True),
        (("o", "gone"), ACTIVE, False, True),
    ],
)
def test_proposal_under_an_ended_override_is_refused(
    names: tuple[str, ...], phase: str, *, revoked: bool, refused: bool
) -> None:
    spec = OverrideSpec(kind=OverrideKind.PAUSE_REPAIR, revoked=revoked)
    override = Override(meta("o"), spec, OverrideStatus(phase=phase))
    decision = Decision(meta("d", "acme"), DecisionSpec(request="r", workload="api", overrides=names))
    found = placement_checks.ended_override_refusal(decision, [override])
    assert (found is not None) is refused
    assert placement_checks.ended_override_refusal(None, [override]) is None


@pytest.mark.parametrize(
    ("rules", "forbidden"),
    [
        (PlacementRules(), None),
        (PlacementRules(regions=("west",)), "region east"),
        (PlacementRules(residency=("eu",)), "residency unknown of region east"),
        (PlacementRules(zones=("other",)), "zone z"),
        (PlacementRules(pools=("gpu",)), "pool default"),
    ],
)
def test_placement_rules_are_checked_in_order(rules: PlacementRules, forbidden: str | None) -> None:
    item = replace(WORK, spec=replace(WORK.spec, placement=rules))
    found = placement_checks.placement_rules_refusal(node(), item, "east", None)
    assert (found.facts["forbidden"] if found is not None else None) == forbidden


@pytest.mark.parametrize(
    ("owner", "dedicated", "refused"),
    [("", False, False), ("acme", False, True), ("acme", True, False), ("", True, True)],
)
def test_node_of_a_dedicated_tenant_is_its_own(owner: str, *, dedicated: bool, refused: bool) -> None:
    item = replace(WORK, spec=replace(WORK.spec, dedicated=dedicated))
    found = placement_checks.tenancy_refusal(node(tenant=owner), item, None)
    assert (found is not None) is refused
    assert found is None or (found.facts["dedicated"], found.facts["nodeTenant"]) == (dedicated, owner)


@pytest.mark.parametrize(
    ("term", "epochs"),
    [(None, 0), (1, 0), (2, 2 * limits.EPOCHS_PER_INCARNATION), (3, 3 * limits.EPOCHS_PER_INCARNATION)],
)
def test_epochs_of_a_restored_region_start_above_all_former_ones(term: int | None, epochs: int) -> None:
    item = Term(meta("incarnation"), TermSpec(holder="x", term=term)) if term is not None else None
    assert epochs_of_previous_incarnations(item) == epochs


# Size of a transaction


def step(writes: int = 1, compares: tuple[str, ...] = (), *, size: int = 1, extra: int = 0) -> CommitStep:
    puts: list[Put | Remove] = [Put(f"/x/{n}", b"x" * size) for n in range(writes)]
    probe = CommitProbe(kind_of(Node), "", "n", lambda found: True)
    entry = AuditEntry("create", "Node", "n", "", "", 0)
    result = PlacementResult(result=PlacementOutcome.ACCEPTED)
    return CommitStep(result, dict.fromkeys(compares, 1), puts, probe, entry, extra_write_count=extra)


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        pytest.param([step(4), step(5)], [True, True], id="all but the write of the job"),
        pytest.param([step(4), step(6)], [True, False], id="one write too many"),
        pytest.param([step(50)], [True], id="the first always fits"),
        pytest.param([step(4), step(4, extra=1)], [True, True], id="with an extra write"),
        pytest.param([step(4), step(5, extra=1)], [True, False], id="an extra write too many"),
        pytest.param([step(1, ("a", "b")), step(1, tuple("cdefghi"))], [True, True], id="nine compares"),
        pytest.param([step(1, ("a", "b")), step(1, tuple("cdefghij"))], [True, False], id="ten compares"),
        pytest.param([step(1, tuple("abcde")), step(1, tuple("abcdefghi"))], [True, True], id="shared compares"),
        pytest.param([step(size=limits.BATCH_BYTES_MAX - 1), step(size=1)], [True, True], id="all bytes"),
        pytest.param([step(size=limits.BATCH_BYTES_MAX), step(size=1)], [True, False], id="a byte too many"),
    ],
)
def test_transaction_takes_steps_up_to_its_bounds(steps: list[CommitStep], taken: list[bool]) -> None:
    budget = _WriteBudget(10)
    assert [budget.take(item) for item in steps] == taken
    assert budget.full is (not taken[-1])
