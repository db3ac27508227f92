"""Who is spared as a victim: what a tenant's quota protects from others, and whose mates do not serve."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT
from tests.flow.test_preemption import assigned, binding, nodes, request, waiting
from tests.flow.test_replay import all_the_same
from tests.flow.test_scheduler import Region, in_region
from tests.runtime.virtual import until

import making
from holdfast.flow.plan import AskPlan, ask_of, plan
from holdfast.flow.plan.sparing import Recorded
from holdfast.flow.retreat.preempt import Mates
from holdfast.flow.snapshot import SnapshotBuilder
from holdfast.flow.snapshot.builder import built
from holdfast.model import limits
from holdfast.model.binding import Binding, Desired, Reservation
from holdfast.model.decision import Decision, Weighed
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase, Replica, TrafficBlock
from holdfast.model.scheduler_policy import Rules
from holdfast.runtime.informer import Informers

replace = msgspec.structs.replace


def theirs(number: int, node: int, cpu: int = 4, *, rank: int = 0, tenant: str = "other", **spec: Any) -> Binding:
    made = binding(number, (node, cpu, rank, False))
    return replace(made, metadata=making.meta(f"low-{number}.1", tenant), spec=replace(made.spec, **spec))


def protects(cpu: str, tenant: str = "other", grant_class: GrantClass = GrantClass.NORMAL) -> GrantCopy:
    protected: dict[str, Any] = {"cpu": cpu} if cpu else {}
    return GrantCopy(making.meta("normal", tenant), GrantCopySpec(grant_class=grant_class, protected=protected))


def planned(*items: Any, cpu: int = 4, replicas: int = 1, standing: Any = None, **spec: Any) -> AskPlan:
    snapshot = built("us-east", items)
    more = {"standing": standing} if standing is not None else {}
    asked = ask_of(request(cpu, replicas=replicas, **spec), evictions=1000)
    return plan(snapshot, [asked], Rules(), 0.0, 7, **more).asks[0]


def victims(made: AskPlan) -> list[tuple[str, ...]]:
    return [proposal.victims for proposal in made.proposals]


# What a quota protects


def test_work_within_its_tenants_protected_part_makes_way_for_no_other_tenant() -> None:
    items = [*nodes(2), theirs(0, 0), theirs(1, 1)]
    assert len(victims(planned(*items, replicas=2))) == 2
    made = planned(*items, protects("4"), replicas=2)
    assert len(made.proposals) == 1 and len(made.unplaced) == 1, "one of two is beyond the protected part"
    assert made.refusals[-1].reason == Reason.NO_VICTIMS
    assert "what other runs within its protected quota stays" in made.refusals[-1].message
    assert not planned(*items, protects("8"), replicas=2).proposals
    assert not planned(*items, protects("5"), replicas=2).proposals, "what would be left is less than protected"


def test_a_tenant_takes_its_own_places_whatever_is_protected() -> None:
    made = planned(*nodes(1), theirs(0, 0, tenant="acme"), protects("4", "acme"))
    assert victims(made) == [("acme/low-0.1",)]


def test_the_unprotected_are_found_though_the_others_are_weaker() -> None:
    made = planned(*nodes(2), theirs(0, 0, rank=0), theirs(1, 1, rank=3, tenant="third"), protects("4"))
    assert victims(made) == [("third/low-1.1",)]


@pytest.mark.parametrize("away", [{"desired": Desired.STOP}, {"quota_released": True}])
def test_what_leaves_already_is_not_counted_as_the_protected_part(away: dict[str, Any]) -> None:
    items = [*nodes(2), theirs(0, 0), protects("4")]
    assert planned(*items, theirs(1, 1), replicas=1).proposals
    assert not planned(*items, theirs(1, 1, **away), cpu=3).proposals


def test_what_is_on_loan_is_not_protected_and_does_not_count_as_such() -> None:
    loan = binding(1, (1, 4, 0, True))
    loan = replace(loan, metadata=making.meta("low-1.1", "other"))
    made = planned(*nodes(2), theirs(0, 0), loan, protects("4"), replicas=2)
    assert victims(made) == [("other/low-1.1",)]


def test_only_an_ordinary_grant_protects() -> None:
    assert planned(*nodes(1), theirs(0, 0), protects("4", grant_class=GrantClass.RECOVERY)).proposals


def test_the_hash_of_a_snapshot_stands_for_what_is_protected_and_for_no_other_change_of_a_grant() -> None:
    builder = SnapshotBuilder("us-east")
    empty = builder.freeze(1).hash
    builder.upsert(protects("4"))
    four = builder.freeze(1).hash
    again = protects("4")
    builder.upsert(replace(again, spec=replace(again.spec, limit={"cpu": "9"}, heard_at="later")))
    assert builder.freeze(1).hash == four != empty
    builder.upsert(protects("5"))
    assert builder.freeze(1).hash not in (four, empty)
    builder.delete(protects("5"))
    assert builder.freeze(1).hash == empty and not builder.freeze(1).protected


# Whose mates serve


class Told:
    """How work stands, by workload: replicas here, and those that serve; `idle` are claims that do not."""

    def __init__(self, idle: tuple[str, ...] = (), **mates: tuple[int, int]) -> None:
        self._mates = {name.replace("_", "-"): Mates(*counts) for name, counts in mates.items()}
        self._idle = idle

    def mates(self, namespace: str, workload: str) -> Mates | None:
        return self._mates.get(workload)

    def serves(self, claim: str) -> bool:
        return claim not in self._idle


def web(number: int, node: int, workload: str, budget: int = 1) -> Binding:
    return binding(number, (node, 4, 0, False), workload=workload, budget=budget)


def test_nobody_is_a_victim_whose_mates_are_away_already() -> None:
    items = [*nodes(2), web(0, 0, "hurt"), web(1, 1, "well")]
    made = planned(*items, replicas=2, standing=Told(hurt=(3, 2), well=(3, 3)))
    assert victims(made) == [("acme/low-1.1",)] and made.unplaced
    assert len(victims(planned(*items, replicas=2))) == 2, "where nothing is known of them, all count as serving"


def test_who_does_not_serve_itself_costs_nothing_of_its_budget() -> None:
    items = [*nodes(2), web(0, 0, "web"), web(1, 1, "web")]
    made = planned(*items, replicas=2, standing=Told(("acme/low-0.1",), web=(2, 1)))
    assert victims(made) == [("acme/low-0.1",)]
    assert made.unplaced, "the other one is all that serves"


def test_one_that_was_chosen_before_counts_as_away() -> None:
    items = [*nodes(3), *(web(i, i, "web") for i in range(3))]
    assert len(victims(planned(*items, replicas=3, standing=Told(web=(3, 3))))) == 1
    loose = [*nodes(3), *(web(i, i, "web", 2) for i in range(3))]
    assert len(victims(planned(*loose, replicas=3, standing=Told(web=(3, 3))))) == 2


@pytest.mark.parametrize("seed_node", [0, 1])
def test_of_equals_the_one_is_taken_whose_loss_hurts_least(seed_node: int) -> None:
    items = [*nodes(2), web(0, seed_node, "few", 5), web(1, 1 - seed_node, "many", 5)]
    assert victims(planned(*items, standing=Told(few=(2, 2), many=(20, 20)))) == [("acme/low-1.1",)]
    assert victims(planned(*items, standing=Told(few=(20, 20), many=(20, 16)))) == [("acme/low-0.1",)]
    idle = Told(("acme/low-0.1",), few=(2, 1), many=(20, 20))
    assert victims(planned(*items, standing=idle)) == [("acme/low-0.1",)], "it does not serve"


def test_a_lower_rank_goes_before_a_smaller_hurt() -> None:
    high = binding(1, (1, 4, 2, False), workload="many")
    made = planned(*nodes(2), web(0, 0, "few"), high, standing=Told(few=(1, 1), many=(20, 20)))
    assert victims(made) == [("acme/low-0.1",)]


def test_what_was_weighed_is_noted_and_plans_the_same_again() -> None:
    items = [*nodes(3), web(0, 0, "hurt"), web(1, 1, "well"), web(2, 2, "lame")]
    made = planned(*items, standing=Told(("acme/low-2.1",), hurt=(3, 2), well=(3, 3), lame=(1, 0)))
    assert made.weighed is not None
    assert made.weighed.idle == ("acme/low-2.1",)
    assert victims(made) == [("acme/low-2.1",)]
    assert "acme/lame" in {w.workload for w in made.weighed.workloads}
    again = planned(*items, standing=Recorded(made.weighed))
    assert again.proposals == made.proposals and again.weighed == made.weighed
    assert planned(*items).weighed is None, "nothing was known"
    assert planned(*nodes(4), *items[3:], standing=Told(hurt=(3, 2))).weighed is None, "nobody had to make way"


def test_a_plan_reads_about_no_more_workloads_than_a_decision_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKLOADS_WEIGHED", 2)
    standing = Told(tuple(f"acme/low-{i}.1" for i in range(4)), **{f"w{i}": (1, 0) for i in range(4)})
    items = [*nodes(1, 16), *(web(i, 0, f"w{i}") for i in range(4))]
    made = planned(*items, cpu=12, standing=standing)
    assert made.weighed is not None
    assert (len(made.weighed.workloads), len(made.weighed.idle)) == (2, 2)
    assert planned(*items, cpu=12, standing=Recorded(made.weighed)).proposals == made.proposals


def test_an_empty_note_knows_nobody() -> None:
    known = Recorded(Weighed())
    assert known.mates("acme", "web") is None and known.serves("acme/web-0.1")


# With a real authority


async def serving(region: Region, name: str, number: int, *, serves: bool = True) -> None:
    now = region.cell.get_replica(f"{name}-{number}")
    ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
    traffic = TrafficBlock(serving=serves, attempt=1)
    await region.cell.put(replace(now, status=replace(now.status, execution=ran, traffic=traffic)))


async def neighbour(region: Region, count: int) -> None:
    """Another tenant's replicas, one on each of so many nodes."""
    await region.cell.grant("other")
    for number in range(count):
        made = await region.cell.replica(f"api-{number}", tenant="other", template={"resources": {"cpu": "6"}})
        (answer,) = await region.cell.reserve(region.cell.item(made, f"n{number}"))
        assert answer.binding, answer


async def protect(region: Region, cpu: str) -> None:
    copy = next(c for c in region.cell.every(GrantCopy) if c.metadata.namespace == "other")
    await region.cell.put(replace(copy, spec=replace(copy.spec, protected={"cpu": cpu})))


def test_the_authority_lets_nobody_take_what_is_protected_whatever_is_proposed() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await neighbour(region, 3)
        await protect(region, "7")
        for name in ("one", "two"):
            await cell.replica(name, rank=9, template={"resources": {"cpu": "6"}})
        one, two = cell.get_replica("one"), cell.get_replica("two")
        (taken,) = await cell.reserve(cell.item(one, "n0", victims=("other/api-0.1",)))
        assert taken.reason == Reason.WAITING_FOR_VICTIMS, "12 of 18 are left"
        (refused,) = await cell.reserve(cell.item(two, "n1", victims=("other/api-1.1",)))
        assert refused.reason == Reason.VICTIM_NOT_ALLOWED, "6 would be left, the first nomination counted"
        assert "tenant other protects 7 cpu here" in refused.message
        assert refused.facts["victim"] == "other/api-1.1"
        await protect(region, "6")
        (taken,) = await cell.reserve(cell.item(two, "n1", victims=("other/api-1.1",)))
        assert taken.reason == Reason.WAITING_FOR_VICTIMS

    in_region(test, chores=True)


def test_two_nominations_of_one_request_count_each_other() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await neighbour(region, 2)
        await protect(region, "6")
        made = [await cell.replica(n, rank=9, template={"resources": {"cpu": "6"}}) for n in ("one", "two")]
        items = [cell.item(r, f"n{i}", victims=(f"other/api-{i}.1",)) for i, r in enumerate(made)]
        answers = await cell.reserve(*items)
        assert [a.reason for a in answers] == [Reason.WAITING_FOR_VICTIMS, Reason.VICTIM_NOT_ALLOWED]

    in_region(test, chores=True)


def test_the_scheduler_waits_while_all_are_protected_and_nominates_when_they_are_not() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await neighbour(region, 3)
        await protect(region, "18")
        await until(lambda: len(region.informers.cache.list(Binding)) == 3)
        await until(lambda: any(c.spec.protected for c in region.informers.cache.list(GrantCopy)))
        await assigned(region, "hi", may_preempt=True, rank=9)
        await waiting(region, "hi", 1, rank=9, may_preempt=True)
        await until(lambda: any(d.spec.workload == "hi" for d in cell.every(Decision)))
        (told,) = [d for d in cell.every(Decision) if d.spec.workload == "hi"]
        assert "what other runs within its protected quota stays" in told.spec.refusals[-1].message
        assert not [r for r in cell.every(Reservation) if r.spec.victims]
        await protect(region, "12")
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)), within_s=10)
        await all_the_same(cell.objects)

    in_region(test, chores=True)


def test_the_scheduler_names_no_victim_whose_mates_do_not_serve() -> None:
    """Of each of two workloads one replica is away; of the third none is. The first proposal is for that one."""

    async def test(region: Region) -> None:
        cell = region.cell
        for name in "abc":
            await waiting(region, name, 1)
            await until(lambda name=name: f"{name}-0" in region.bound())
            await serving(region, name, 0)
            if name != "c":
                await cell.replica(f"{name}-1")
                made = cell.get_replica(f"{name}-1")
                await cell.put(replace(made, spec=replace(made.spec, workload=name, assignment=name)))
        settled = region.informers
        await until(lambda: _known(settled) == 5)
        proposed = len(region.outlet.proposed)
        await assigned(region, "hi", may_preempt=True, rank=9)
        await waiting(region, "hi", 1, rank=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)), within_s=10)
        asked = [item.victims for call in region.outlet.proposed[proposed:] for item in call.items if item.victims]
        assert asked == [(f"{TENANT}/c-0.1",)], "it was the first to be proposed, and the only one"
        (told,) = [d for d in cell.every(Decision) if d.spec.workload == "hi"]
        assert told.spec.weighed is not None
        by_name = {w.workload: (w.staying, w.serving) for w in told.spec.weighed.workloads}
        assert by_name[f"{TENANT}/a"] == (2, 1) and by_name[f"{TENANT}/c"] == (1, 1)
        await all_the_same(cell.objects)

    in_region(test, chores=True)


def _known(informers: Informers) -> int:
    replicas = informers.cache.list(Replica)
    served = sum(r.status.traffic is not None and r.status.traffic.serving for r in replicas)
    return len(replicas) if served == 3 else 0
