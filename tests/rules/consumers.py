"""The parts of Holdfast that judge whether a workload may have a new replica somewhere, each asked the same question.

A `Situation` has one region with one node, in one zone, and one workload. A consumer answers whether the workload gets
a new replica there. Every consumer is the production code, from its entry point on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.authority.cell import START_S, TENANT, Cell

import making
from holdfast.cli.platform import foresight
from holdfast.cli.platform.regions import Region as RegionSeen
from holdfast.fleet import assign, backing, node_pools, recover
from holdfast.flow import hold
from holdfast.flow.plan import ask_of, plan
from holdfast.flow.purse import room_of
from holdfast.flow.snapshot.builder import built
from holdfast.flow.why_not import Obstacle, Question
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason, Purpose
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object
from holdfast.model.node import Node
from holdfast.model.node_pool import NodePool, NodePoolSpec
from holdfast.model.override import Override, has_emergency_quota
from holdfast.model.placement import Result
from holdfast.model.placement_rules import Placement
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, Slot
from holdfast.model.region import HealthState, HeldPlaces, Region, RegionSpec
from holdfast.model.scheduler_policy import Rules
from holdfast.model.scheduling_request import (
    Member,
    RefusalCount,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import Driver, Template
from holdfast.model.tenant import Isolation, Tenant, TenantSpec
from holdfast.model.workload import MovesBlock, RecoveryPromise, RegionWait, Workload
from holdfast.model.writes import Create, Update

NOW = START_S
REGION, ZONE, WORKLOAD = "us-east", "us-east-a", "web"
OTHER = "us-west"
"""A region that the workload may always use: the one that is full, or lost, or whose loss is foreseen."""
KEY = Key(TENANT, WORKLOAD)
SHAPE = {"cpu": "1", "memory": "1Gi"}


class Situation(msgspec.Struct, frozen=True):
    placement: Placement = Placement()
    overrides: tuple[Override, ...] = ()
    residency: tuple[str, ...] = ("us",)
    dedicated: bool = False
    driver: Driver = Driver.PROCESS
    node_spec: dict[str, Any] = {}
    change_node: Callable[[Node], Node] = lambda node: node
    budget_tenants: tuple[str, ...] = (TENANT,)
    grants: tuple[GrantCopy, ...] | None = None
    """The tenant's grants in the region. None is more than enough."""

    @property
    def template(self) -> Template:
        return Template(command=("true",), resources=SHAPE, driver=self.driver)

    @property
    def tenant(self) -> Tenant:
        isolation = Isolation.DEDICATED if self.dedicated else Isolation.SHARED
        return Tenant(making.meta(TENANT), TenantSpec(isolation))

    @property
    def node(self) -> Node:
        return self.change_node(making.node("n1", **{"zone": ZONE, **self.node_spec}))

    @property
    def region(self) -> Region:
        known = making.region(REGION)
        slots = (HeldPlaces(budget="budget", zone=ZONE, resources=SHAPE, kept=4),)
        report = msgspec.structs.replace(known.status.report, places=slots)
        status = msgspec.structs.replace(known.status, report=report)
        return making.again(known, spec=RegionSpec(zones=(ZONE,), residency=self.residency), status=status)

    @property
    def request(self) -> SchedulingRequest:
        spec = SchedulingRequestSpec(
            workload=WORKLOAD, assignment="a", revision="1", template=self.template, placement=self.placement,
            dedicated=self.dedicated, members=(Member("web-0", "u0"),),
        )  # fmt: skip
        return SchedulingRequest(making.meta("web", TENANT), spec)

    def other_region(self, state: HealthState = HealthState.HEALTHY) -> Region:
        known = making.region(OTHER, state=state)
        zones = (*self.placement.zones, "us-west-a")
        return making.again(known, spec=RegionSpec(zones=zones, residency=(*self.placement.residency, "any")))

    def workload(self, **spec: Any) -> Workload:
        rules = self.placement
        if rules.regions:
            rules = msgspec.structs.replace(rules, regions=(*rules.regions, OTHER))
        return making.workload(WORKLOAD, TENANT, placement=rules, template=self.template, **spec)

    def fleet(self, *more: Object) -> Any:
        """The global cell's objects."""
        return making.view(self.tenant, making.priority(), self.region, *self.overrides, *more)


# Inside the region


def planner(asked: Situation) -> bool:
    snapshot = built(REGION, [asked.node, asked.region, *asked.overrides])
    headroom = None
    if asked.grants is not None:
        emergency = has_emergency_quota(asked.overrides, region=REGION, tenant=TENANT, now=NOW)
        headroom = room_of(asked.grants, {}, NOW, emergency=emergency)
    return bool(plan(snapshot, [ask_of(asked.request, room=headroom)], Rules(), NOW, 1).asks[0].proposals)


def why_not(asked: Situation) -> bool:
    return not obstacles(asked)


def obstacles(asked: Situation) -> tuple[Obstacle, ...]:
    snapshot = built(REGION, [asked.node, asked.region, *asked.overrides])
    verdict = Question(snapshot, ask_of(asked.request), Rules(), NOW).verdict("n1")
    assert verdict is not None
    return verdict.obstacles


def authority(asked: Situation) -> bool:
    async def placed() -> bool:
        cell = await Cell.open()
        await cell.node("n1")
        if asked.grants is None:
            await cell.grant()
        await cell.put(*asked.grants or (), asked.node, asked.region, asked.tenant, *asked.overrides)
        await cell.lead()
        template = msgspec.structs.asdict(asked.template)
        replica = await cell.replica(template=template, placement=asked.placement, dedicated=asked.dedicated)
        answer = await cell.place(replica)
        await cell.close()
        return answer.result is Result.ACCEPTED

    return asyncio.run(placed())


def recovery_slots(asked: Situation) -> bool:
    """Whether a recovery slot for the tenant is put on the node."""
    view = making.view(asked.tenant, asked.node, _budget(asked))
    return bool(hold.decider(REGION)(Key("", "budget"), view, NOW).writes)


def node_pool(asked: Situation) -> bool:
    """Whether a pool of the node's name and zone grows for the pending replica."""
    shape = NodePoolSpec(zones=(ZONE,), capacity={"cpu": "8", "memory": "8Gi"})
    pool = NodePool(making.meta(asked.node.spec.pool), shape)
    status = SchedulingRequestStatus(pending=1, reasons=(RefusalCount(reason=Reason.NO_NODES),))
    waiting = msgspec.structs.replace(asked.request, status=status)
    return node_pools.lacking(pool, REGION, making.view(pool, waiting)).replicas == 1


# Above the regions


def assigner(asked: Situation) -> bool:
    outcome = assign.decide(KEY, asked.fleet(asked.workload(replicas=1)), NOW)
    return _is_given(outcome.writes, Purpose.NORMAL)


def spillover(asked: Situation) -> bool:
    """Whether replicas that have waited long enough in a full region move to this one."""
    since = "2020-01-01T00:00:00Z"
    moves = MovesBlock(waits=(RegionWait(region=OTHER, reason=Reason.INSUFFICIENT_CPU, since=since),))
    work = asked.workload(replicas=1)
    work = making.again(work, status=msgspec.structs.replace(work.status, moves=moves))
    pending = (PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),)
    status = AssignmentStatus(observed_epoch=1, replicas=1, queued=1, pending=pending)
    full = making.assignment(WORKLOAD, OTHER, namespace=TENANT, replicas=1, template=asked.template, status=status)
    outcome = assign.decide(KEY, asked.fleet(asked.other_region(), work, full), NOW)
    return _is_given(outcome.writes, Purpose.NORMAL)


def recovery_target(asked: Situation) -> bool:
    """Whether the workload is recovered in this region when the other one is lost."""
    view = asked.fleet(asked.other_region(HealthState.LOST), *_critical(asked), _budget(asked))
    for step in range(3):
        writes = recover.decide(Key("", OTHER), view, NOW + step).writes
        if _is_given(writes, Purpose.RECOVERY):
            return True
        for write in writes:
            if isinstance(write, Create):
                view.put(making.again(write.object))
    return False


def recovery_backing(asked: Situation) -> bool:
    """Whether the recovery slots of this region back the workload's recovery objective."""
    return KEY not in backing.unbacked(making.view(*objects_that_back(asked)), NOW)


def objects_that_back(asked: Situation) -> tuple[Object, ...]:
    """The global cell's objects, the recovery budget and the allowance among them."""
    allowance = QuotaSpec(hard={"cpu": "16"}, recovery_allowance={"cpu": "16", "memory": "64Gi"})
    quota = Quota(making.meta("quota", TENANT), allowance)
    regions = (asked.region, asked.other_region())
    return (asked.tenant, making.priority(), *regions, *asked.overrides, *_critical(asked), _budget(asked), quota)


# Across both


class StoredCell:
    """Answers list requests as a cell's API does, from the objects it was given."""

    def __init__(self, *objects: Object) -> None:
        self._objects = objects

    def request(self, method: str, path: str, *, query: dict[str, str]) -> dict[str, Any]:
        plural = path.rpartition("/")[2]
        return {"items": [msgspec.to_builtins(o) for o in self._objects if kind_of(o).plural == plural]}

    def apply(self, document: dict[str, Any], plural: str, *, manager: str, dry_run: bool) -> None:
        """Admits everything."""


def what_if(asked: Situation) -> bool:
    return any(placing.node for placing in outlook(asked).placings)


def outlook(asked: Situation, *more: Object) -> foresight.Outlook:
    """What `holdfast plan` foresees. `more` are further objects of the global cell."""
    above = StoredCell(asked.tenant, making.priority(), asked.region, *asked.overrides, *more)
    inside: Any = StoredCell(asked.node, asked.region, *asked.overrides)
    cells: Any = SimpleNamespace(global_api=above, heard=[RegionSeen(inside, REGION)])
    return foresight.outlook_of_file(cells, [foresight.Given(asked.workload(replicas=1), {})])


def _budget(asked: Situation) -> RecoveryBudget:
    slots = (Slot(resources=SHAPE, count=4),)
    spec = RecoveryBudgetSpec(region=REGION, slots=slots, tenants=asked.budget_tenants)
    return RecoveryBudget(making.meta("budget"), spec)


def _critical(asked: Situation) -> tuple[Object, ...]:
    """The workload with a recovery objective, all of it in the other region."""
    status = AssignmentStatus(observed_epoch=1, replicas=4, bound=4, ready=4, serving=4)
    held = making.assignment(WORKLOAD, OTHER, namespace=TENANT, replicas=4, template=asked.template, status=status)
    return asked.workload(replicas=4, recovery=RecoveryPromise(min_serving=4)), held


def _is_given(writes: Any, purpose: Purpose) -> bool:
    made = [w.object for w in writes if isinstance(w, Create | Update) and isinstance(w.object, Assignment)]
    return any(a.spec.region == REGION and a.spec.purpose is purpose and a.spec.replicas for a in made)


IN_REGION = (planner, why_not, authority)
ABOVE_REGIONS = (assigner, spillover, recovery_target, recovery_backing)
EVERYWHERE = (*IN_REGION, *ABOVE_REGIONS, what_if)
