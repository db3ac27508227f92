"""Victim selection: protected quota, and disruption budgets by serving siblings."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from tests import factories
from tests.authority.cell import TENANT
from tests.controllers.virtual import until
from tests.insight.test_replay import assert_all_replay
from tests.scheduling.test_preemption import assigned, binding, nodes, request, waiting
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.controllers.informer import Informers
from holdfast.model.binding import Binding, DesiredRunState, Reservation
from holdfast.model.decision import Decision, PreemptionEvidence
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase, Replica, TrafficBlock
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.scheduling.eviction.preempted import SiblingCounts
from holdfast.scheduling.plan import RequestPlan, plan, requirements_of
from holdfast.scheduling.plan.victim_selection import RecordedSiblings
from holdfast.scheduling.snapshot import SnapshotBuilder
from holdfast.scheduling.snapshot.builder import build_snapshot

replace = msgspec.structs.replace


def other_binding(
    number: int, node: int, cpu: int = 4, *, priority: int = 0, tenant: str = "other", **spec: Any
) -> Binding:
    made = binding(number, (node, cpu, priority, False))
    return replace(made, metadata=factories.meta(f"low-{number}.1", tenant), spec=replace(made.spec, **spec))


def protected_grant(cpu: str, tenant: str = "other", grant_class: GrantClass = GrantClass.NORMAL) -> GrantCopy:
    protected: dict[str, Any] = {"cpu": cpu} if cpu else {}
    return GrantCopy(factories.meta("normal", tenant), GrantCopySpec(grant_class=grant_class, protected=protected))


def planned(*items: Any, cpu: int = 4, replicas: int = 1, sibling_status: Any = None, **spec: Any) -> RequestPlan:
    snapshot = build_snapshot("us-east", items)
    more = {"sibling_status": sibling_status} if sibling_status is not None else {}
    requirements = requirements_of(request(cpu, replicas=replicas, **spec), evictions_left=1000)
    return plan(snapshot, [requirements], PolicyRules(), 0.0, 7, **more).request_plans[0]


def victims(made: RequestPlan) -> list[tuple[str, ...]]:
    return [proposal.victims for proposal in made.proposals]


# Protected quota


@pytest.mark.parametrize("away", [{"desired": DesiredRunState.STOP}, {"quota_released": True}])
def test_stopping_claims_do_not_count_toward_protected_quota(away: dict[str, Any]) -> None:
    items = [*nodes(2), other_binding(0, 0), protected_grant("4")]
    assert planned(*items, other_binding(1, 1), replicas=1).proposals
    assert not planned(*items, other_binding(1, 1, **away), cpu=3).proposals


def test_snapshot_hash_changes_with_protected_quota_only() -> None:
    builder = SnapshotBuilder("us-east")
    empty = builder.freeze(1).hash
    builder.upsert(protected_grant("4"))
    four = builder.freeze(1).hash
    again = protected_grant("4")
    builder.upsert(replace(again, spec=replace(again.spec, limit={"cpu": "9"}, last_contact_at="later")))
    assert builder.freeze(1).hash == four != empty
    builder.upsert(protected_grant("5"))
    assert builder.freeze(1).hash not in (four, empty)
    builder.delete(protected_grant("5"))
    assert builder.freeze(1).hash == empty and not builder.freeze(1).protected


# Serving siblings


class FixedSiblings:
    """Fixed sibling counts by workload: total and serving; `idle` lists claims that do not serve."""

    def __init__(self, idle: tuple[str, ...] = (), **siblings: tuple[int, int]) -> None:
        self._siblings = {name.replace("_", "-"): SiblingCounts(*counts) for name, counts in siblings.items()}
        self._idle = idle

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        return self._siblings.get(workload)

    def counts_as_serving(self, claim: str) -> bool:
        return claim not in self._idle


def web(number: int, node: int, workload: str, budget: int = 1) -> Binding:
    return binding(number, (node, 4, 0, False), workload=workload, budget=budget)


def test_workload_with_unavailable_siblings_is_not_a_victim() -> None:
    items = [*nodes(2), web(0, 0, "hurt"), web(1, 1, "well")]
    made = planned(*items, replicas=2, sibling_status=FixedSiblings(hurt=(3, 2), well=(3, 3)))
    assert victims(made) == [("acme/low-1.1",)] and made.unplaced
    assert len(victims(planned(*items, replicas=2))) == 2, "unknown replicas count as serving"


def test_not_serving_victim_does_not_use_disruption_budget() -> None:
    items = [*nodes(2), web(0, 0, "web"), web(1, 1, "web")]
    made = planned(*items, replicas=2, sibling_status=FixedSiblings(("acme/low-0.1",), web=(2, 1)))
    assert victims(made) == [("acme/low-0.1",)]
    assert made.unplaced, "the other replica is the only serving one"


def test_victim_already_selected_in_plan_counts_against_disruption_budget() -> None:
    items = [*nodes(3), *(web(i, i, "web") for i in range(3))]
    assert len(victims(planned(*items, replicas=3, sibling_status=FixedSiblings(web=(3, 3))))) == 1
    loose = [*nodes(3), *(web(i, i, "web", 2) for i in range(3))]
    assert len(victims(planned(*loose, replicas=3, sibling_status=FixedSiblings(web=(3, 3))))) == 2


@pytest.mark.parametrize("seed_node", [0, 1])
def test_equal_victims_are_chosen_by_disruption_cost(seed_node: int) -> None:
    items = [*nodes(2), web(0, seed_node, "few", 5), web(1, 1 - seed_node, "many", 5)]
    assert victims(planned(*items, sibling_status=FixedSiblings(few=(2, 2), many=(20, 20)))) == [("acme/low-1.1",)]
    assert victims(planned(*items, sibling_status=FixedSiblings(few=(20, 20), many=(20, 16)))) == [("acme/low-0.1",)]
    idle = FixedSiblings(("acme/low-0.1",), few=(2, 1), many=(20, 20))
    assert victims(planned(*items, sibling_status=idle)) == [("acme/low-0.1",)], (
        "a victim that does not serve costs nothing"
    )


def test_lower_priority_victim_precedes_lower_disruption_cost() -> None:
    high = binding(1, (1, 4, 2, False), workload="many")
    made = planned(*nodes(2), web(0, 0, "few"), high, sibling_status=FixedSiblings(few=(1, 1), many=(20, 20)))
    assert victims(made) == [("acme/low-0.1",)]


def test_recorded_preemption_evidence_gives_same_plan() -> None:
    items = [*nodes(3), web(0, 0, "hurt"), web(1, 1, "well"), web(2, 2, "lame")]
    made = planned(*items, sibling_status=FixedSiblings(("acme/low-2.1",), hurt=(3, 2), well=(3, 3), lame=(1, 0)))
    assert made.preemption_evidence is not None
    assert made.preemption_evidence.not_serving == ("acme/low-2.1",)
    assert victims(made) == [("acme/low-2.1",)]
    assert "acme/lame" in {w.workload for w in made.preemption_evidence.workloads}
    again = planned(*items, sibling_status=RecordedSiblings(made.preemption_evidence))
    assert again.proposals == made.proposals and again.preemption_evidence == made.preemption_evidence
    assert planned(*items).preemption_evidence is None, "no counts were known"
    assert planned(*nodes(4), *items[3:], sibling_status=FixedSiblings(hurt=(3, 2))).preemption_evidence is None, (
        "no victims were needed"
    )


def test_preemption_evidence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.scheduling.plan.victim_selection.PREEMPTION_WORKLOADS_READ_MAX", 2)
    sibling_status = FixedSiblings(tuple(f"acme/low-{i}.1" for i in range(4)), **{f"w{i}": (1, 0) for i in range(4)})
    items = [*nodes(1, 16), *(web(i, 0, f"w{i}") for i in range(4))]
    made = planned(*items, cpu=12, sibling_status=sibling_status)
    assert made.preemption_evidence is not None
    assert (len(made.preemption_evidence.workloads), len(made.preemption_evidence.not_serving)) == (2, 2)
    assert (
        planned(*items, cpu=12, sibling_status=RecordedSiblings(made.preemption_evidence)).proposals == made.proposals
    )


def test_empty_preemption_evidence_has_unknown_siblings() -> None:
    known = RecordedSiblings(PreemptionEvidence())
    assert known.siblings("acme", "web") is None and known.counts_as_serving("acme/web-0.1")


# With a real authority


async def serving(region: Region, name: str, number: int, *, serves: bool = True) -> None:
    now = region.cell.get_replica(f"{name}-{number}")
    ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
    traffic = TrafficBlock(serving=serves, attempt=1)
    await region.cell.put(replace(now, status=replace(now.status, execution=ran, traffic=traffic)))


async def place_other_tenant(region: Region, count: int) -> None:
    """Binds replicas of another tenant, one per node."""
    await region.cell.grant("other")
    for number in range(count):
        made = await region.cell.replica(f"api-{number}", tenant="other", template={"resources": {"cpu": "6"}})
        (answer,) = await region.cell.reserve(region.cell.item(made, f"n{number}"))
        assert answer.binding, answer


async def put_protected_grant(region: Region, cpu: str) -> None:
    copy = next(c for c in region.cell.every(GrantCopy) if c.metadata.namespace == "other")
    await region.cell.put(replace(copy, spec=replace(copy.spec, protected={"cpu": cpu})))


def test_authority_refuses_nomination_within_protected_quota() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await place_other_tenant(region, 3)
        await put_protected_grant(region, "7")
        for name in ("one", "two"):
            await cell.replica(name, priority=9, template={"resources": {"cpu": "6"}})
        one, two = cell.get_replica("one"), cell.get_replica("two")
        (taken,) = await cell.reserve(cell.item(one, "n0", victims=("other/api-0.1",)))
        assert taken.reason == Reason.WAITING_FOR_VICTIMS, "12 of 18 cpu remain"
        (refused,) = await cell.reserve(cell.item(two, "n1", victims=("other/api-1.1",)))
        assert refused.reason == Reason.VICTIM_NOT_ALLOWED, "6 cpu would remain after both nominations"
        assert "tenant other protects 7 cpu here" in refused.message
        assert refused.facts["victim"] == "other/api-1.1"
        await put_protected_grant(region, "6")
        (taken,) = await cell.reserve(cell.item(two, "n1", victims=("other/api-1.1",)))
        assert taken.reason == Reason.WAITING_FOR_VICTIMS

    in_region(test, chores=True)


def test_nominations_of_one_reserve_request_count_each_other() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await place_other_tenant(region, 2)
        await put_protected_grant(region, "6")
        made = [await cell.replica(n, priority=9, template={"resources": {"cpu": "6"}}) for n in ("one", "two")]
        items = [cell.item(r, f"n{i}", victims=(f"other/api-{i}.1",)) for i, r in enumerate(made)]
        answers = await cell.reserve(*items)
        assert [a.reason for a in answers] == [Reason.WAITING_FOR_VICTIMS, Reason.VICTIM_NOT_ALLOWED]

    in_region(test, chores=True)


def test_scheduler_nominates_after_protected_quota_is_lowered() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await place_other_tenant(region, 3)
        await put_protected_grant(region, "18")
        await until(lambda: len(region.informers.cache.list(Binding)) == 3)
        await until(lambda: any(c.spec.protected for c in region.informers.cache.list(GrantCopy)))
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(d.spec.workload == "hi" for d in cell.every(Decision)))
        (stored_decision,) = [d for d in cell.every(Decision) if d.spec.workload == "hi"]
        assert "protected quota exempts replicas of other" in stored_decision.spec.refusals[-1].message
        assert not [r for r in cell.every(Reservation) if r.spec.victims]
        await put_protected_grant(region, "12")
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)), within_s=10)
        await assert_all_replay(cell.objects)

    in_region(test, chores=True)


def test_scheduler_nominates_no_victim_with_unavailable_siblings() -> None:
    """Two workloads have an unavailable replica, the third has none: it is nominated first."""

    async def test(region: Region) -> None:
        cell = region.cell

        def is_bound(name: str) -> bool:
            return name in region.bound()

        for name in "abc":
            await waiting(region, name, 1)
            await until(partial(is_bound, f"{name}-0"))
            await serving(region, name, 0)
            if name != "c":
                await cell.replica(f"{name}-1")
                made = cell.get_replica(f"{name}-1")
                await cell.put(replace(made, spec=replace(made.spec, workload=name, assignment=name)))
        settled = region.informers
        await until(lambda: _known(settled) == 5)
        proposed = len(region.scheduler_client.proposed)
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)), within_s=10)
        requirements = [
            item.victims for call in region.scheduler_client.proposed[proposed:] for item in call.items if item.victims
        ]
        assert requirements == [(f"{TENANT}/c-0.1",)], "it was the only proposed victim"
        (stored_decision,) = [d for d in cell.every(Decision) if d.spec.workload == "hi"]
        assert stored_decision.spec.preemption_evidence is not None
        by_name = {w.workload: (w.total, w.serving) for w in stored_decision.spec.preemption_evidence.workloads}
        assert by_name[f"{TENANT}/a"] == (2, 1) and by_name[f"{TENANT}/c"] == (1, 1)
        await assert_all_replay(cell.objects)

    in_region(test, chores=True)


def _known(informers: Informers) -> int:
    replicas = informers.cache.list(Replica)
    served = sum(r.status.traffic is not None and r.status.traffic.serving for r in replicas)
    return len(replicas) if served == 3 else 0
