"""Labels, taints, affinity and spread at the commit point: the authority never trusts the proposer (S4)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell

from holdfast.model.binding import Binding, Reservation
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome, PlacementResult, ReleaseAction
from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    Operator,
    PlacementRules,
    SpreadRule,
    Taint,
    TaintEffect,
    Toleration,
)
from holdfast.model.principal import controller
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import FilterName, PolicyRevision, PolicyRevisionSpec, PolicyRules

NEAR_DB = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}),))
NEAR_DB_ZONE = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, topology="zone"),))
APART_DB = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, apart=True),))
SPREAD_NODE = PlacementRules(spread=(SpreadRule(topology="node"),))
SPREAD_ZONE = PlacementRules(spread=(SpreadRule(topology="zone"),))


async def replica_of(cell: Cell, name: str, workload: str = "web", **more: Any) -> Replica:
    labels = more.pop("labels", {"app": workload})
    item = await cell.replica(name, template={"labels": labels, **more.pop("template", {})}, **more)
    await cell.put(msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, workload=workload)))
    return cell.get_replica(name)


async def labelled(cell: Cell, name: str, labels: dict[str, str]) -> None:
    node = cell.get_node(name)
    await cell.put(msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))


def outcome(answer: PlacementResult) -> str:
    return "" if answer.result is PlacementOutcome.ACCEPTED else answer.reason


@pytest.mark.parametrize(
    ("rules", "labels", "reason"),
    [
        (PlacementRules(node_selector={"disk": "ssd"}), {"disk": "ssd"}, ""),
        (PlacementRules(node_selector={"disk": "ssd"}), {"disk": "hdd"}, Reason.LABELS_DO_NOT_MATCH),
        (
            PlacementRules(expressions=(Expression(key="rack", operator=Operator.GT, values=("7",)),)),
            {"rack": "7"},
            Reason.LABELS_DO_NOT_MATCH,
        ),
    ],
)
async def test_node_whose_labels_do_not_match_is_refused(
    cell: Cell, rules: PlacementRules, labels: dict[str, str], reason: str
) -> None:
    await labelled(cell, "n1", labels)
    assert outcome(await cell.place(await cell.replica(placement=rules))) == reason
    cell.check_ledger()


async def test_node_with_untolerated_taint_is_refused(cell: Cell) -> None:
    await cell.change_node(taints=(Taint(key="gpu"), Taint(key="slow", effect=TaintEffect.PREFER_NO_SCHEDULE)))
    assert outcome(await cell.place(await cell.replica("web-0"))) == Reason.TAINT_NOT_TOLERATED
    tolerant = PlacementRules(tolerations=(Toleration(key="gpu", exists=True),))
    assert outcome(await cell.place(await cell.replica("web-1", placement=tolerant))) == ""


async def test_rule_that_the_active_policy_leaves_out_is_not_checked(cell: Cell) -> None:
    filters = tuple(f for f in FilterName if f not in (FilterName.LABELS, FilterName.AFFINITY, FilterName.SPREAD))
    revision = PolicyRevisionSpec(policy="p", rules=PolicyRules(filters=filters))
    await cell.put(PolicyRevision(ObjectMeta(name="p-1"), revision))
    rules = msgspec.structs.replace(NEAR_DB, node_selector={"disk": "ssd"}, spread=SPREAD_NODE.spread)
    assert outcome(await cell.place(await cell.replica(placement=rules))) == ""


async def test_affinity_without_neighbour_is_refused(cell: Cell) -> None:
    await cell.node("n2", zone="z1")
    await cell.node("n3", zone="z2")
    assert outcome(await cell.place(await replica_of(cell, "db-0", "db"), "n2")) == ""
    for rules, node, reason in (
        (NEAR_DB, "n1", Reason.AFFINITY_NOT_MET),
        (NEAR_DB, "n2", ""),
        (NEAR_DB_ZONE, "n1", ""),
        (NEAR_DB_ZONE, "n3", Reason.AFFINITY_NOT_MET),
    ):
        replica = await replica_of(cell, f"web-{node}-{rules.affinity[0].topology}", placement=rules)
        assert outcome(await cell.place(replica, node)) == reason, (node, rules)
    cell.check_ledger()


async def test_neighbour_that_is_stopping_is_not_relied_on(cell: Cell) -> None:
    db = await replica_of(cell, "db-0", "db")
    await cell.place(db)
    await cell.release(cell.get_replica("db-0"), ReleaseAction.STOP)
    answer = await cell.place(await replica_of(cell, "web-0", placement=NEAR_DB))
    assert outcome(answer) == Reason.AFFINITY_NOT_MET and "stays on node n1" in answer.message
    apart = await cell.place(await replica_of(cell, "web-1", placement=APART_DB))
    assert outcome(apart) == Reason.ANTI_AFFINITY_VIOLATED, "it may still run"
    cell.check_ledger()


async def test_neighbour_of_the_same_request_is_relied_on(cell: Cell) -> None:
    db, web = await replica_of(cell, "db-0", "db"), await replica_of(cell, "web-0", placement=NEAR_DB)
    answers = await cell.reserve(cell.item(db), cell.item(web))
    assert [outcome(a) for a in answers] == ["", ""]


async def test_neighbour_in_flight_is_waited_for(cell: Cell) -> None:
    db, web = await replica_of(cell, "db-0", "db"), await replica_of(cell, "web-0", placement=NEAR_DB)
    answers = await asyncio.gather(cell.reserve(cell.item(db)), cell.reserve(cell.item(web)))
    assert [outcome(a) for answer in answers for a in answer] == ["", ""]
    cell.check_ledger()


async def test_step_is_checked_again_if_its_neighbour_was_not_committed(cell: Cell) -> None:
    """The neighbour's replica changes before the commit: both are dropped, and only the second check decides."""
    db, web = await replica_of(cell, "db-0", "db"), await replica_of(cell, "web-0", placement=NEAR_DB)
    items = (cell.item(db), cell.item(web))
    inner_commit = cell.store.inner.commit
    deleted: list[bool] = []

    async def racing(txn: Any) -> Any:
        if not deleted and any(w.key.endswith("/web-0.1") for w in txn.writes):
            deleted.append(True)
            gone = cell.get_replica("db-0")
            terminating = msgspec.structs.replace(gone.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            await cell.put(msgspec.structs.replace(gone, metadata=terminating))
        return await inner_commit(txn)

    cell.store.commit = racing  # type: ignore[method-assign]
    answers = await cell.reserve(*items)
    assert [outcome(a) for a in answers] == [Reason.REPLICA_TERMINATING, Reason.AFFINITY_NOT_MET]
    assert not cell.every(Binding)
    cell.check_ledger()


async def test_anti_affinity_is_enforced_in_both_directions(cell: Cell) -> None:
    await cell.node("n2", zone="z1")
    assert outcome(await cell.place(await replica_of(cell, "db-0", "db"), "n1")) == ""
    web = await replica_of(cell, "web-0", placement=APART_DB)
    assert outcome(await cell.place(web, "n1")) == Reason.ANTI_AFFINITY_VIOLATED
    assert outcome(await cell.place(web, "n2")) == ""
    assert outcome(await cell.place(await replica_of(cell, "db-1", "db"), "n2")) == Reason.ANTI_AFFINITY_VIOLATED
    cell.check_ledger()


async def test_affinity_expressions_are_enforced_in_both_directions(cell: Cell) -> None:
    await cell.node("n2", zone="z1")
    loud = Expression("noise", Operator.GT, ("3",))
    quiet = PlacementRules(affinity=(AffinityRule(expressions=(loud,), apart=True),))
    near = PlacementRules(affinity=(AffinityRule(expressions=(loud,)),))
    assert outcome(await cell.place(await replica_of(cell, "a-0", "a", labels={"noise": "5"}), "n1")) == ""
    replica = await replica_of(cell, "q-0", "q", placement=quiet)
    assert outcome(await cell.place(replica, "n1")) == Reason.ANTI_AFFINITY_VIOLATED
    assert outcome(await cell.place(replica, "n2")) == ""
    second = await replica_of(cell, "b-0", "b", labels={"noise": "5"})
    assert outcome(await cell.place(second, "n2")) == Reason.ANTI_AFFINITY_VIOLATED
    follower = await replica_of(cell, "f-0", "f", placement=near)
    assert outcome(await cell.place(follower, "n2")) == Reason.AFFINITY_NOT_MET
    assert outcome(await cell.place(follower, "n1")) == ""
    cell.check_ledger()


async def test_spread_beyond_the_skew_is_refused(cell: Cell) -> None:
    await cell.node("n2", zone="z1")
    await cell.node("n3", zone="z2")
    for name, node, rules, reason in (
        ("a-0", "n1", SPREAD_NODE, ""),
        ("a-1", "n1", SPREAD_NODE, Reason.SPREAD_VIOLATED),
        ("a-1", "n2", SPREAD_NODE, ""),
        ("b-0", "n1", SPREAD_ZONE, ""),
        ("b-1", "n2", SPREAD_ZONE, Reason.SPREAD_VIOLATED),
        ("b-1", "n3", SPREAD_ZONE, ""),
        ("b-2", "n2", SPREAD_ZONE, ""),
    ):
        replica = await replica_of(cell, name, name[0], placement=rules)
        assert outcome(await cell.place(replica, node)) == reason, (name, node)
    cell.check_ledger()


async def test_spread_counts_only_nodes_that_the_workload_may_use(cell: Cell) -> None:
    await cell.node("n2", zone="z2")
    ssd = msgspec.structs.replace(SPREAD_ZONE, node_selector={"disk": "ssd"})
    await labelled(cell, "n1", {"disk": "ssd"})
    for name in ("web-0", "web-1"):
        assert outcome(await cell.place(await replica_of(cell, name, placement=ssd))) == ""
    await labelled(cell, "n2", {"disk": "ssd"})
    refused = await cell.place(await replica_of(cell, "web-2", placement=ssd))
    assert outcome(refused) == Reason.SPREAD_VIOLATED and "zone z1" in refused.message
    await cell.change_node("n2", unschedulable=True)
    assert outcome(await cell.place(await replica_of(cell, "web-2", placement=ssd))) == ""


async def test_stopping_replicas_do_not_count_for_spread(cell: Cell) -> None:
    await cell.node("n2", zone="z2")
    await cell.place(await replica_of(cell, "web-0", placement=SPREAD_ZONE))
    await cell.release(cell.get_replica("web-0"), ReleaseAction.STOP)
    assert outcome(await cell.place(await replica_of(cell, "web-1", placement=SPREAD_ZONE))) == ""
    cell.check_ledger()


async def test_nomination_whose_neighbour_is_its_victim_is_refused(cell: Cell) -> None:
    await cell.place(await replica_of(cell, "db-0", "db", template={"resources": {"cpu": "8"}}))
    urgent = await replica_of(cell, "web-0", placement=NEAR_DB, priority=9)
    answer = await cell.place(urgent, victims=(f"{TENANT}/db-0.1",))
    assert outcome(answer) == Reason.AFFINITY_NOT_MET
    other = await replica_of(cell, "web-1", "other", priority=9)
    assert outcome(await cell.place(other, victims=(f"{TENANT}/db-0.1",))) == ""
    later = await replica_of(cell, "web-2", "later", placement=NEAR_DB_ZONE)
    assert outcome(await cell.place(later)) == Reason.AFFINITY_NOT_MET, "its neighbour is the victim of web-1"


async def test_bind_is_refused_after_the_neighbour_has_left(cell: Cell) -> None:
    await cell.place(await replica_of(cell, "db-0", "db"))
    web = await replica_of(cell, "web-0", placement=NEAR_DB)
    item = cell.item(web)
    assert outcome((await cell.reserve(item, bind=False))[0]) == ""
    await cell.release(cell.get_replica("db-0"), ReleaseAction.STOP)
    caller = controller("scheduler", cell="us-east")
    answers = await cell.authority.bind(caller, BindRequest((BindItem(TENANT, "web-0", item.intent),)))
    assert [outcome(a) for a in answers.results] == [Reason.AFFINITY_NOT_MET]
    assert len(cell.every(Reservation)) == 1


def own_rules(topology: str, *, apart: bool = False) -> PlacementRules:
    rule = AffinityRule(workload_labels={"app": "web"}, topology=topology, apart=apart, own_replicas=True)
    return PlacementRules(affinity=(rule,))


async def test_affinity_to_own_replicas_lets_the_first_replica_choose(cell: Cell) -> None:
    await cell.node("n2", zone="z1")
    await cell.node("n3", zone="z2")
    near = own_rules("zone")
    for name, node, reason in (("web-0", "n1", ""), ("web-1", "n3", Reason.AFFINITY_NOT_MET), ("web-1", "n2", "")):
        replica = await replica_of(cell, name, placement=near)
        assert outcome(await cell.place(replica, node)) == reason, (name, node)
    for name in ("web-0", "web-1"):
        await cell.release(cell.get_replica(name), ReleaseAction.STOP)
    assert outcome(await cell.place(await replica_of(cell, "web-2", placement=near), "n3")) == "", "both others leave"
    cell.check_ledger()


async def test_affinity_to_own_replicas_needs_a_match_of_the_replica_itself(cell: Cell) -> None:
    other = await replica_of(cell, "web-0", labels={"app": "other"}, placement=own_rules("zone"))
    assert outcome(await cell.place(other)) == Reason.AFFINITY_NOT_MET


async def test_anti_affinity_to_own_replicas_allows_one_per_domain(cell: Cell) -> None:
    await cell.node("n2", zone="z1")
    await cell.node("n3", zone="z2")
    for name, node, topology, reason in (
        ("web-0", "n1", "node", ""),
        ("web-1", "n1", "node", Reason.ANTI_AFFINITY_VIOLATED),
        ("web-1", "n2", "node", ""),
        ("web-2", "n2", "zone", Reason.ANTI_AFFINITY_VIOLATED),
        ("web-2", "n3", "zone", ""),
    ):
        replica = await replica_of(cell, name, placement=own_rules(topology, apart=True))
        assert outcome(await cell.place(replica, node)) == reason, (name, node)
    later = await replica_of(cell, "web-3")
    assert outcome(await cell.place(later, "n3")) == Reason.ANTI_AFFINITY_VIOLATED, "the rule of web-2 guards its zone"
    cell.check_ledger()


@pytest.mark.parametrize("apart", [False, True])
async def test_reserved_replica_is_not_its_own_neighbour_at_the_bind(cell: Cell, apart: bool) -> None:
    web = await replica_of(cell, "web-0", placement=own_rules("zone", apart=apart))
    item = cell.item(web)
    assert outcome((await cell.reserve(item, bind=False))[0]) == ""
    caller = controller("scheduler", cell="us-east")
    answers = await cell.authority.bind(caller, BindRequest((BindItem(TENANT, "web-0", item.intent),)))
    assert [outcome(a) for a in answers.results] == [""]
    cell.check_ledger()


async def test_nomination_may_evict_the_neighbour_that_keeps_it_off(cell: Cell) -> None:
    """Both directions: a rule of the preemptor, and a rule of the victim. The bind checks again."""
    await cell.node("n2", zone="z1")
    against_web = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "web"}, apart=True),))
    for node, victim, rules in (("n1", "db", PlacementRules()), ("n2", "quiet", against_web)):
        assert outcome(await cell.place(await replica_of(cell, f"{victim}-0", victim, placement=rules), node)) == ""
    urgent = await replica_of(cell, "web-0", placement=APART_DB, priority=9)
    assert outcome(await cell.place(urgent, "n1")) == Reason.ANTI_AFFINITY_VIOLATED
    assert outcome(await cell.place(urgent, "n1", victims=(f"{TENANT}/db-0.1",))) == ""
    other = await replica_of(cell, "web-1", priority=9)
    assert outcome(await cell.place(other, "n2")) == Reason.ANTI_AFFINITY_VIOLATED
    assert outcome(await cell.place(other, "n2", victims=(f"{TENANT}/quiet-0.1",))) == ""
    assert {r.status.phase.value for r in cell.every(Reservation)} == {"Nominated"}
    cell.check_ledger()


async def test_victims_that_do_not_remove_every_obstacle_do_not_help(cell: Cell) -> None:
    for name in ("db-0", "db-1"):
        assert outcome(await cell.place(await replica_of(cell, name, "db"))) == ""
    urgent = await replica_of(cell, "web-0", placement=APART_DB, priority=9)
    one = await cell.place(urgent, victims=(f"{TENANT}/db-0.1",))
    assert outcome(one) == Reason.ANTI_AFFINITY_VIOLATED
    assert outcome(await cell.place(urgent, victims=(f"{TENANT}/db-0.1", f"{TENANT}/db-1.1"))) == ""


async def test_nomination_may_evict_a_weaker_replica_of_the_workload_for_spread(cell: Cell) -> None:
    await cell.node("n2", zone="z2")
    assert outcome(await cell.place(await replica_of(cell, "web-0", placement=SPREAD_ZONE))) == ""
    urgent = await replica_of(cell, "web-1", placement=SPREAD_ZONE, priority=9)
    assert outcome(await cell.place(urgent)) == Reason.SPREAD_VIOLATED
    assert outcome(await cell.place(urgent, victims=(f"{TENANT}/web-0.1",))) == ""
    cell.check_ledger()


async def test_spread_and_affinity_by_a_node_label_are_enforced(cell: Cell) -> None:
    """Nodes n1 and n2 are in rack 1, n3 is in rack 2, n4 has no rack."""
    for name, labels in (("n1", {"rack": "1"}), ("n2", {"rack": "1"}), ("n3", {"rack": "2"}), ("n4", {})):
        if name != "n1":
            await cell.node(name, zone="z1")
        await labelled(cell, name, labels)
    spread = PlacementRules(spread=(SpreadRule(topology="rack"),))
    near = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, topology="rack"),))
    apart = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, topology="rack", apart=True),))
    for name, workload, node, rules, reason in (
        ("web-0", "web", "n4", spread, Reason.SPREAD_VIOLATED),
        ("web-0", "web", "n1", spread, ""),
        ("web-1", "web", "n2", spread, Reason.SPREAD_VIOLATED),
        ("web-1", "web", "n3", spread, ""),
        ("web-2", "web", "n2", spread, ""),
        ("db-0", "db", "n1", PlacementRules(), ""),
        ("db-1", "db", "n4", PlacementRules(), ""),
        ("near-0", "near", "n3", near, Reason.AFFINITY_NOT_MET),
        ("near-0", "near", "n4", near, Reason.AFFINITY_NOT_MET),
        ("near-0", "near", "n2", near, ""),
        ("far-0", "far", "n2", apart, Reason.ANTI_AFFINITY_VIOLATED),
        ("far-0", "far", "n4", apart, ""),
        ("far-1", "far", "n3", apart, ""),
        ("db-2", "db", "n3", PlacementRules(), Reason.ANTI_AFFINITY_VIOLATED),
    ):
        replica = await replica_of(cell, name, workload, placement=rules)
        assert outcome(await cell.place(replica, node)) == reason, (name, node)
    cell.check_ledger()


async def test_too_few_domains_limit_each_to_the_skew(cell: Cell) -> None:
    await cell.node("n2", zone="z2")
    three = PlacementRules(spread=(SpreadRule(topology="zone", min_domains=3),))
    for name, node, reason in (("web-0", "n1", ""), ("web-1", "n2", ""), ("web-2", "n1", Reason.SPREAD_VIOLATED)):
        assert outcome(await cell.place(await replica_of(cell, name, placement=three), node)) == reason, (name, node)
    await cell.node("n3", zone="z3")
    assert outcome(await cell.place(await replica_of(cell, "web-2", placement=three), "n3")) == ""
    assert outcome(await cell.place(await replica_of(cell, "web-3", placement=three), "n1")) == ""
