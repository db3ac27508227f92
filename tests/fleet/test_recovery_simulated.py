"""Simulated platform: one or two regions are lost; the recovery objective holds and everything is returned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
from tests.expected import present
from tests.fleet.staged_simulation import ASKS, REPLICAS, Staged, template

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, RecoveryPhase
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Disruption, RecoveryObjective, Rollout, RolloutPhase, Workload, WorkloadSpec
from holdfast.model.writes import Update
from holdfast.sim import actors
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.workload_profiles import BEHAVIOUR_ENV, NEVER_READY

REGIONS = ("east", "west", "north")


class Loss(Staged):
    """The `lost` regions are lost one after the other and return together."""

    lost: tuple[str, ...] = ()
    seconds: float = 0.0
    closed: int = 0

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        await self.until(self._backed, 60)
        died = self.loop.time()
        for name in self.lost:
            self._kill(name)
            await asyncio.sleep(20.0)
        await self.until(self._recovered, 300)
        self.seconds = self.loop.time() - died
        for name in self.lost:
            self._revive(name)
        await self.until(self._closed, 400)
        return await self._converge()

    def work(self) -> Iterator[Object]:
        yield from self.tenant(recovery_allowance={"cpu": "4", "memory": "16Gi"})
        for name in REGIONS:
            slots = (SlotShape(resources=ASKS, count=4, min_zones=2),)
            yield RecoveryBudget(
                metadata=ObjectMeta(name=name), spec=RecoveryBudgetSpec(region=name, slot_shapes=slots)
            )
        yield Workload(
            metadata=ObjectMeta(name="risk", namespace="pay"),
            spec=WorkloadSpec(
                replicas=REPLICAS,
                template=template(),
                priority_class_name="high",
                placement=PlacementRules(spread_regions=2),
                recovery=RecoveryObjective(min_serving=4),
            ),
        )

    def _kill(self, name: str) -> None:
        host = self.cell(name)
        host.held_down = True
        host.crash()
        for agent in self.agents:
            if agent.region is host:
                agent.held_down = True
                agent.lose_power()

    def _revive(self, name: str) -> None:
        host = self.cell(name)
        host.held_down = False
        host.boot()
        for agent in self.agents:
            if agent.region is host:
                agent.held_down = False
                agent.boot()

    async def standing(self) -> object:
        return [r.status for r in (await self.operator.list(Recovery)).items], await super().standing()

    async def _backed(self) -> bool:
        risk = present(await self.operator.get(Workload, "risk", "pay"))
        return risk.status.backing is not None and risk.status.backing.backed

    async def _recovered(self) -> bool:
        found = (await self.operator.list(Recovery)).items
        done = (RecoveryPhase.RECOVERED, RecoveryPhase.FAILING_BACK)
        held = (await self.operator.list(Assignment)).items
        for region in REGIONS:
            if region in self.lost:
                continue
            here = [a for a in held if a.spec.workload == "risk" and a.spec.region == region]
            if sum(a.status.serving for a in here) >= 4 and {r.spec.region for r in found} == set(self.lost):
                return all(r.status.phase in done for r in found)
        return False

    async def _closed(self) -> bool:
        found = (await self.operator.list(Recovery)).items
        borrowed = [a for a in (await self.operator.list(Assignment)).items if a.spec.purpose is Purpose.RECOVERY]
        return not borrowed and all(r.status.phase is RecoveryPhase.CLOSED for r in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("lost", [("east",), ("east", "west")])
def test_simulated_region_loss_is_recovered_and_fails_back(seed: int, lost: tuple[str, ...]) -> None:
    world = Loss(seed, SimulationSize(regions=REGIONS, nodes_per_region=4), enabled=())
    world.lost = lost
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unconverged == ()
    assert world.seconds < 200


class Renewed(Loss):
    """While a region is lost, its workload gets a broken revision and then a good one."""

    allowance = "4"
    revisions: frozenset[str] = frozenset()

    def work(self) -> Iterator[Object]:
        replace = msgspec.structs.replace
        for item in super().work():
            match item:
                case Quota():
                    allowance = {"cpu": self.allowance, "memory": "16Gi"}
                    yield replace(item, spec=replace(item.spec, recovery_allowance=allowance))
                case Workload():
                    yield replace(item, spec=replace(item.spec, disruption=Disruption(max_unavailable=4)))
                case _:
                    yield item

    async def _recovered(self) -> bool:
        if not await super()._recovered():
            return False
        if not self.revisions:
            await self._change({BEHAVIOUR_ENV: NEVER_READY}, deadline_s=30.0)
            await self.until(self._gone_back, 120)
            self.revisions = await self._running()
            await self._change({"NEW": "1"}, deadline_s=600.0)
        now = await self._running()
        return len(now) == 1 and not now & self.revisions

    async def _change(self, env: dict[str, str], *, deadline_s: float) -> None:
        async def change() -> None:
            risk = present(await self.operator.get(Workload, "risk", "pay"))
            template = msgspec.structs.replace(risk.spec.template, env=env)
            rollout = Rollout(progress_deadline_seconds=deadline_s)
            spec = msgspec.structs.replace(risk.spec, template=template, rollout=rollout)
            await self.operator.commit([Update(msgspec.structs.replace(risk, spec=spec))])

        await self._persist(change)

    async def _gone_back(self) -> bool:
        risk = present(await self.operator.get(Workload, "risk", "pay"))
        return present(risk.status.rollout).phase == RolloutPhase.ROLLED_BACK

    async def _running(self) -> frozenset[str]:
        """The revisions that all reachable Assignments fully serve."""
        held = [a for a in (await self.operator.list(Assignment)).items if a.spec.workload == "risk"]
        heard = [a for a in held if a.spec.region not in self.lost]
        served = all(a.status.updated_serving >= a.spec.replicas for a in heard)
        assert any(a.spec.purpose is Purpose.RECOVERY for a in heard)
        return frozenset(a.spec.revision for a in heard) if served else frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("allowance", ["4", "100m"], ids=["with surge", "in place"])
def test_simulated_rollout_reaches_recovery_replicas(allowance: str) -> None:
    world = Renewed(1, SimulationSize(regions=REGIONS, nodes_per_region=4), enabled=())
    world.lost, world.allowance = ("east",), allowance
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unconverged == ()
    assert world.revisions


class Stuck(Loss):
    """One of two regions is lost, and the other accepts the recovery replicas but starts none."""

    stuck = ""
    target = ""
    left: tuple[str, ...] = ()
    serving: tuple[int, ...] = ()

    async def _backed(self) -> bool:
        held = (await self.operator.list(Assignment)).items
        dies, self.stuck = sorted({a.spec.region for a in held if a.spec.workload == "risk"})
        self.lost = (dies,)
        return await super()._backed()

    def _kill(self, name: str) -> None:
        super()._kill(name)
        for agent in self.agents:
            agent.machine.start_disabled = agent.region.name == self.stuck

    async def _recovered(self) -> bool:
        held = (await self.operator.list(Assignment)).items
        here = [a for a in held if (a.spec.workload, a.spec.region) == ("risk", self.stuck)]
        self.serving += (sum(a.status.serving for a in here),)
        if not await super()._recovered():
            return False
        (found,) = (await self.operator.list(Recovery)).items
        (row,) = found.status.workloads
        self.target, self.left = row.target, tuple(left.region for left in row.abandoned_targets)
        return True

    def _revive(self, name: str) -> None:
        for agent in self.agents:
            agent.machine.start_disabled = False
        super()._revive(name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_stalled_target_is_abandoned(seed: int) -> None:
    world = Stuck(seed, SimulationSize(regions=REGIONS, nodes_per_region=4), enabled=())
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unconverged == ()
    assert world.left == (world.stuck,) and world.target not in (world.stuck, *world.lost) and world.seconds < 300
    assert min(world.serving) >= 3, "replicas that served in the abandoned target kept serving"


class OnLoan(Loss):
    """Reclaimable work uses every recovery slot and fills the regions, once the workload with a promise serves."""

    async def bring_up(self) -> None:
        await super().bring_up()
        for item in self.fillers():
            await self._persist(partial(actors.create_object, self.operator, item))

    def fillers(self) -> Iterator[Object]:
        yield Tenant(metadata=ObjectMeta(name="spare"))
        yield Quota(
            metadata=ObjectMeta(name="quota", namespace="spare"), spec=QuotaSpec(hard={"cpu": "30", "memory": "64Gi"})
        )
        template = Template(command=("serve",), resources={"cpu": "100m", "memory": "16Mi"})
        for region in REGIONS:
            yield Workload(
                metadata=ObjectMeta(name=f"filler-{region}", namespace="spare"),
                spec=WorkloadSpec(
                    replicas=90,
                    template=template,
                    priority_class_name="spare",
                    placement=PlacementRules(regions=(region,)),
                ),
            )

    async def _backed(self) -> bool:
        """Waits until every region is full and has pending replicas."""
        for region in REGIONS:
            held = present(await self.operator.get(Assignment, f"filler-{region}.{region}.normal", "spare"))
            if not held.status.queued or held.status.bound < 10:
                return False
        return await super()._backed()


@pytest.mark.slow
def test_simulated_recovery_evicts_only_reclaimable_work() -> None:
    world = OnLoan(3, SimulationSize(regions=REGIONS, nodes_per_region=4), enabled=())
    world.lost = ("east",)
    court = world.checkers
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert world.seconds < 60
    replicas = [e.new for e in court.history.matching("/replicas/") if e.new is not None]
    went = [r for r in replicas if r.status.release is not None]
    evicted = {r.key: r.spec.reclaimable for r in went if r.status.release.reason == Reason.PREEMPTED}
    assert evicted and all(evicted.values()), evicted
    drawn = [
        e.new
        for e in court.history.matching("/recoveryslots/")
        if e.new is not None and e.new.status.consumer is not None
    ]
    assert len({h.metadata.name for h in drawn}) >= 1
