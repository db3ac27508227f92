"""Decisions of a busy region replay identically from the store's history, on both stores."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell
from tests.controllers.virtual import VirtualClock, run, until
from tests.insight.replay_state import fetch
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.foundation.ports import SystemClock
from holdfast.insight.replay import NotReplayable, ReplayResult, oldest_revision_needed, replay
from holdfast.model.decision import Decision, parse_newer_object
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRules, ScoreName, WeightedScore
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.times import micro_text
from holdfast.store.objects import Objects

LONG_DAY = 1_000 if os.environ.get("HOLDFAST_PROVE") else 300
"""Decisions of the test on disk with a real clock."""


async def replayed(objects: Objects, decision: Decision, **more: Any) -> ReplayResult | NotReplayable:
    past = await fetch(objects, decision)
    return past if isinstance(past, NotReplayable) else replay("us-east", decision, past, **more)


async def assert_all_replay(objects: Objects) -> int:
    """Replays every Decision; returns their number."""
    decisions = objects.list(kind_of(Decision))[0]
    for decision in decisions:
        assert isinstance(decision, Decision)
        found = await replayed(objects, decision)
        assert isinstance(found, ReplayResult), (decision.metadata.name, found)
        assert found.identical, (decision.metadata.name, found.differences)
    return len(decisions)


def test_replayed_decision_is_identical() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(6))
        await until(lambda: len(region.bound()) == 6)
        assert await assert_all_replay(region.cell.objects) == 1

    in_region(test)


def test_replay_with_other_policy_differs() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(3))
        await until(lambda: len(region.bound()) == 3)
        (decision,) = region.cell.every(Decision)
        rules = PolicyRules(scores=(WeightedScore(name=ScoreName.PACKING, weight=10),))
        found = await replayed(region.cell.objects, decision, rules=rules)
        assert isinstance(found, ReplayResult) and not found.identical
        assert len({p.node for p in found.plan.proposals}) == 1
        assert "recorded node" in found.differences[0]

    in_region(test)


def test_unschedulable_request_records_one_replayable_decision() -> None:
    async def test(region: Region) -> None:
        await region.request("big", await region.replicas(2, template={"resources": {"cpu": "100"}}))
        await until(lambda: bool(region.cell.every(Decision)))
        (decision,) = region.cell.every(Decision)
        entry = decision.spec.entries[0]
        assert (entry.result, entry.node, entry.reason) == ("Unplaced", "", Reason.INSUFFICIENT_CPU)
        assert decision.spec.next_owner == "scheduler" and decision.spec.wake_up_at
        await until(lambda: region.stored("big").status.decision == decision.metadata.name)
        await asyncio.sleep(120.0)
        assert len(region.cell.every(Decision)) == 1, "unchanged reasons are not recorded again"
        assert await assert_all_replay(region.cell.objects) == 1

    in_region(test)


def test_unreplayable_decision_returns_its_reason() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(3))
        await until(lambda: len(region.bound()) == 3)
        (decision,) = region.cell.every(Decision)
        objects = region.cell.objects

        async def reason(**changes: Any) -> str:
            spec = msgspec.structs.replace(decision.spec, **changes)
            found = await replayed(objects, msgspec.structs.replace(decision, spec=spec))
            assert isinstance(found, NotReplayable)
            assert found.message
            return found.reason

        assert await reason(planner="0") == "PlannerChanged"
        assert await reason(revisions={}) == "NotRecorded"
        assert await reason(adopted_claims=1) == "AdoptedClaims"
        assert await reason(request="other") == "RequestMissing"
        assert await reason(policy_revision="other") == "PolicyMissing"
        assert await reason(snapshot_hash="0") == "SnapshotDiffers"
        assert await reason(ordinal=3) == "EarlierDecisionMissing"
        needed = oldest_revision_needed([decision])
        assert 0 < needed <= min(decision.spec.revisions.values())
        await region.cell.store.compact(needed)
        assert isinstance(await replayed(objects, decision), ReplayResult), "history from the needed revision is enough"
        older = msgspec.structs.replace(decision, spec=msgspec.structs.replace(decision.spec, planner="0"))
        assert oldest_revision_needed([older]) == 0, "unreplayable decisions need no history"
        await region.cell.store.compact(region.cell.store.head)
        assert await reason() == "HistoryCompacted"

    in_region(test)


def test_newer_object_text_is_parsed() -> None:
    ahead = parse_newer_object("Binding/acme/web-0.1@17")
    assert (ahead.kind, ahead.key.namespace, ahead.key.name, ahead.revision) == ("Binding", "acme", "web-0.1", 17)
    assert parse_newer_object("Node//n1@3").key.namespace == ""


class RandomLoad:
    """A load generator: requests arrive, replicas end, nodes are cordoned and uncordoned, zones are avoided."""

    def __init__(self, region: Region, seed: int) -> None:
        self.region = region
        self.cell = region.cell
        self.chance = random.Random(seed)
        self.made = 0

    async def generate(self, decisions: int) -> None:
        while len(self.cell.every(Decision)) < decisions:
            await self.chance.choice((self.arrive, self.arrive, self.arrive, self.leave, self.cordon, self.avoid))()
            await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.01, 0.3)))

    async def arrive(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            self.made += 1
            name = f"w{self.made}"
            shape = chance.choice(
                ({"cpu": "500m", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}, {"cpu": "64", "memory": "1Gi"})
            )
            template = {"resources": shape, "labels": {"app": chance.choice("ab")}}
            rules = chance.choice(
                (
                    PlacementRules(),
                    PlacementRules(spread=(SpreadRule(),)),
                    PlacementRules(affinity=(AffinityRule(workload_labels={"app": "a"}, apart=True),)),
                )
            )
            replicas = [
                await self.cell.replica(f"{name}-{i}", template=template, placement=rules)
                for i in range(chance.randint(1, 4))
            ]
            members = tuple(RequestMember(r.metadata.name, r.uid, r.status.placement.attempt) for r in replicas)
            meta = ObjectMeta(name=name, namespace=TENANT, generation=1, creation_timestamp="2026-01-01T00:00:00Z")
            spec = SchedulingRequestSpec(
                workload=name,
                assignment=name,
                revision="1",
                template=replicas[0].spec.template,
                placement=rules,
                members=members,
                priority=chance.randint(0, 3),
                reclaimable=False,
            )
            await self.cell.put(SchedulingRequest(meta, spec))

    async def leave(self) -> None:
        bound = [r for r in self.cell.every(Replica) if r.status.placement.binding]
        for replica in self.chance.sample(bound, min(len(bound), 12)):
            await self.cell.acknowledge(replica.status.placement.binding)
            await self.cell.release(replica, ReleaseAction.FREE)
            await self.cell.remove(self.cell.get_replica(replica.metadata.name))
            for request in self.cell.every(SchedulingRequest):
                if any(m.uid == replica.uid for m in request.spec.members):
                    await self.cell.remove(request)

    async def cordon(self) -> None:
        node = self.chance.choice(self.cell.every(Node))
        spec = msgspec.structs.replace(node.spec, unschedulable=not node.spec.unschedulable)
        await self.cell.put(msgspec.structs.replace(node, spec=spec))

    async def avoid(self) -> None:
        zone = self.chance.choice(("z0", "z1", "z2"))
        scope = OverrideScope(region="us-east", zone=zone)
        spec = OverrideSpec(OverrideKind.AVOID_ZONE, scope, reason="too warm", ttl_seconds=2)
        status = OverrideStatus(phase="Active", expires_at=micro_text(self.cell.clock.now() + 2))
        await self.cell.put(Override(ObjectMeta(name=f"avoid-{self.made}"), spec, status))


async def replay_random_load(path: Path | None, decisions: int, *, clock: Any = None) -> None:
    await replay_random_load_in(await Cell.open(path, clock=clock or VirtualClock()), decisions)


async def replay_random_load_in(cell: Cell, decisions: int) -> None:
    """Generates load in a new cell until it has made `decisions`; all must replay. Closes the cell."""
    for number in range(12):
        await cell.node(f"n{number}", zone=f"z{number % 3}")
    await cell.grant()
    await cell.lead()
    region = Region(cell)
    leases = asyncio.create_task(region.renew_leases())
    await region.informers.start()
    await region.scheduler.start()
    try:
        await RandomLoad(region, 4).generate(decisions)
        assert await assert_all_replay(cell.objects) >= decisions
    finally:
        await region.scheduler.stop()
        await region.informers.stop()
        leases.cancel()
        await cell.close()


def test_150_decisions_of_busy_region_replay_identically() -> None:
    run(lambda: replay_random_load(None, 150))


@pytest.mark.parametrize("decisions", [60, pytest.param(LONG_DAY, marks=pytest.mark.slow)])
def test_decisions_replay_identically_from_file_and_after_restart(tmp_path: Path, decisions: int) -> None:
    async def main() -> None:
        path = tmp_path / "cell.db"
        await replay_random_load(path, decisions, clock=SystemClock())
        again = await Cell.open(path, clock=SystemClock())
        try:
            assert await assert_all_replay(again.objects) >= decisions
        finally:
            await again.close()

    asyncio.run(main())


@pytest.mark.slow
def test_1000_decisions_replay_identically() -> None:
    run(lambda: replay_random_load(None, 1000))
