"""The parts of Holdfast that judge whether a workload may have a new replica somewhere, each asked the same question.

A `Situation` has one region with one node, in one zone, and one workload. A consumer answers whether the workload gets
a new replica there. Every consumer is the production code, from its entry point on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from tests import factories
from tests.authority.cell import START_S, TENANT, Cell
from tests.expected import present

from holdfast.fleet import assign, node_pools
from holdfast.fleet.recovery import backing, recover
from holdfast.insight.region_clients import RegionClient, RegionClients
from holdfast.insight.what_if import ManifestWorkload, WhatIfResult, what_if_applied
from holdfast.insight.why_not import Blocker, WhyNotQuery
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason, Purpose
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object
from holdfast.model.node import Node
from holdfast.model.node_pool import NodePool, NodePoolSpec
from holdfast.model.override import Override, has_emergency_quota
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, RecoverySlotReport, Region, RegionSpec
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import DriverName, Template
from holdfast.model.tenant import Isolation, Tenant, TenantSpec
from holdfast.model.workload import RecoveryObjective, RegionWait, SpilloverStatus, Workload
from holdfast.model.writes import Create, Update
from holdfast.scheduling import slot_requests
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.quota_headroom import headroom_of
from holdfast.scheduling.snapshot.builder import build_snapshot

NOW = START_S
REGION, ZONE, WORKLOAD = "us-east", "us-east-a", "web"
OTHER = "us-west"
"""A region that the workload may always use: the one that is full, or lost, or whose loss is foreseen."""
KEY = Key(TENANT, WORKLOAD)
SHAPE: dict[str, Amount] = {"cpu": "1", "memory": "1Gi"}


class Situation(msgspec.Struct, frozen=True):
    placement: PlacementRules = PlacementRules()
    overrides: tuple[Override, ...] = ()
    residency: tuple[str, ...] = ("us",)
    dedicated: bool = False
    driver: DriverName = DriverName.PROCESS
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
        return Tenant(factories.meta(TENANT), TenantSpec(isolation))

    @property
    def node(self) -> Node:
        return self.change_node(factories.node("n1", **{"zone": ZONE, **self.node_spec}))

    @property
    def region(self) -> Region:
        known = factories.region(REGION)
        slots = (RecoverySlotReport(budget="budget", zone=ZONE, resources=SHAPE, admitted=4),)
        report = msgspec.structs.replace(present(known.status.report), recovery_slots=slots)
        status = msgspec.structs.replace(known.status, report=report)
        return factories.with_new_revision(
            known, spec=RegionSpec(zones=(ZONE,), residency=self.residency), status=status
        )

    @property
    def request(self) -> SchedulingRequest:
        spec = SchedulingRequestSpec(
            workload=WORKLOAD,
            assignment="a",
            revision="1",
            template=self.template,
            placement=self.placement,
            dedicated=self.dedicated,
            members=(RequestMember("web-0", "u0"),),
        )
        return SchedulingRequest(factories.meta("web", TENANT), spec)

    def other_region(self, state: HealthState = HealthState.HEALTHY) -> Region:
        known = factories.region(OTHER, state=state)
        zones = (*self.placement.zones, "us-west-a")
        return factories.with_new_revision(
            known, spec=RegionSpec(zones=zones, residency=(*self.placement.residency, "any"))
        )

    def workload(self, **spec: Any) -> Workload:
        rules = self.placement
        if rules.regions:
            rules = msgspec.structs.replace(rules, regions=(*rules.regions, OTHER))
        return factories.workload(WORKLOAD, TENANT, placement=rules, template=self.template, **spec)

    def fleet(self, *more: Object) -> Any:
        """The global cell's objects."""
        return factories.cache_of(self.tenant, factories.priority(), self.region, *self.overrides, *more)


# Inside the region


def headroom(asked: Situation) -> dict[str, int] | None:
    if asked.grants is None:
        return None
    emergency = has_emergency_quota(asked.overrides, region=REGION, tenant=TENANT, now=NOW)
    return headroom_of(asked.grants, {}, NOW, emergency=emergency)


def planner(asked: Situation) -> bool:
    snapshot = build_snapshot(REGION, [asked.node, asked.region, *asked.overrides])
    return bool(
        plan(snapshot, [requirements_of(asked.request, quota_headroom=headroom(asked))], PolicyRules(), NOW, 1)
        .request_plans[0]
        .proposals
    )


def why_not(asked: Situation) -> bool:
    return not obstacles(asked)


def obstacles(asked: Situation) -> tuple[Blocker, ...]:
    snapshot = build_snapshot(REGION, [asked.node, asked.region, *asked.overrides])
    wanted = requirements_of(asked.request, quota_headroom=headroom(asked))
    verdict = WhyNotQuery(snapshot, wanted, PolicyRules(), NOW).explain_node("n1")
    assert verdict is not None
    return verdict.blockers


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
        return answer.result is PlacementOutcome.ACCEPTED

    return asyncio.run(placed())


def recovery_slots(asked: Situation) -> bool:
    """Whether a recovery slot for the tenant is put on the node."""
    view = factories.cache_of(asked.tenant, asked.node, _budget(asked))
    return bool(slot_requests.decider(REGION)(Key("", "budget"), view, NOW).writes)


def node_pool(asked: Situation) -> bool:
    """Whether a pool of the node's name and zone grows for the pending replica."""
    shape = NodePoolSpec(zones=(ZONE,), capacity={"cpu": "8", "memory": "8Gi"})
    pool = NodePool(factories.meta(asked.node.spec.pool), shape)
    status = SchedulingRequestStatus(pending=1, reasons=(RefusalCount(reason=Reason.NO_NODES),))
    waiting = msgspec.structs.replace(asked.request, status=status)
    return node_pools.pool_shortfall(pool, REGION, factories.cache_of(pool, waiting)).replicas == 1


# Above the regions


def assigner(asked: Situation) -> bool:
    outcome = assign.decide(KEY, asked.fleet(asked.workload(replicas=1)), NOW)
    return _is_given(outcome.writes, Purpose.NORMAL)


def spillover(asked: Situation) -> bool:
    """Whether replicas that have waited long enough in a full region move to this one."""
    since = "2020-01-01T00:00:00Z"
    moves = SpilloverStatus(pending=(RegionWait(region=OTHER, reason=Reason.INSUFFICIENT_CPU, since=since),))
    work = asked.workload(replicas=1)
    work = factories.with_new_revision(work, status=msgspec.structs.replace(work.status, spillover=moves))
    pending = (PendingReason(reason=Reason.INSUFFICIENT_CPU, count=1),)
    status = AssignmentStatus(observed_epoch=1, replicas=1, queued=1, pending=pending)
    full = factories.assignment(WORKLOAD, OTHER, namespace=TENANT, replicas=1, template=asked.template, status=status)
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
                view.put(factories.with_new_revision(write.object))
    return False


def recovery_backing(asked: Situation) -> bool:
    """Whether the recovery slots of this region back the workload's recovery objective."""
    return KEY not in backing.unbacked_objectives(factories.cache_of(*objects_that_back(asked)), NOW)


def objects_that_back(asked: Situation) -> tuple[Object, ...]:
    """The global cell's objects, the recovery budget and the allowance among them."""
    allowance = QuotaSpec(hard={"cpu": "16"}, recovery_allowance={"cpu": "16", "memory": "64Gi"})
    quota = Quota(factories.meta("quota", TENANT), allowance)
    regions = (asked.region, asked.other_region())
    return (asked.tenant, factories.priority(), *regions, *asked.overrides, *_critical(asked), _budget(asked), quota)


# Across both


class StoredCell:
    """Answers list requests as a cell's API does, from the objects it was given."""

    def __init__(self, *objects: Object) -> None:
        self._objects = objects

    def request(self, method: str, path: str, *, query: dict[str, str]) -> dict[str, Any]:
        plural = path.rpartition("/")[2]
        return {"items": [msgspec.to_builtins(o) for o in self._objects if kind_of(o).plural == plural]}

    def text(self, path: str) -> tuple[int, str]:
        return 200, "ok"

    def apply(self, document: dict[str, Any], plural: str, *, manager: str, dry_run: bool) -> None:
        """Admits everything."""


def what_if(asked: Situation) -> bool:
    return any(placing.node for placing in outlook(asked).placings)


def outlook(asked: Situation, *more: Object) -> WhatIfResult:
    """What `holdfast plan` foresees. `more` are further objects of the global cell."""
    ample = Quota(factories.meta("quota", TENANT), QuotaSpec({"cpu": "1000", "memory": "1Ti", "gpu": "8"}))
    quota = () if any(isinstance(item, Quota) for item in more) else (ample,)
    above: Any = StoredCell(asked.tenant, factories.priority(), asked.region, *asked.overrides, *quota, *more)
    inside: Any = StoredCell(asked.node, asked.region, *asked.overrides)
    cells = RegionClients(above, [RegionClient(inside, REGION)])
    return what_if_applied(cells, [ManifestWorkload(asked.workload(replicas=1), {})])


def _budget(asked: Situation) -> RecoveryBudget:
    slots = (SlotShape(resources=SHAPE, count=4),)
    spec = RecoveryBudgetSpec(region=REGION, slot_shapes=slots, tenants=asked.budget_tenants)
    return RecoveryBudget(factories.meta("budget"), spec)


def _critical(asked: Situation) -> tuple[Object, ...]:
    """The workload with a recovery objective, all of it in the other region."""
    status = AssignmentStatus(observed_epoch=1, replicas=4, bound=4, ready=4, serving=4)
    held = factories.assignment(WORKLOAD, OTHER, namespace=TENANT, replicas=4, template=asked.template, status=status)
    return asked.workload(replicas=4, recovery=RecoveryObjective(min_serving=4)), held


def _is_given(writes: Any, purpose: Purpose) -> bool:
    made = [w.object for w in writes if isinstance(w, Create | Update) and isinstance(w.object, Assignment)]
    return any(a.spec.region == REGION and a.spec.purpose is purpose and a.spec.replicas for a in made)


IN_REGION = (planner, why_not, authority)
ABOVE_REGIONS = (assigner, spillover, recovery_target, recovery_backing)
EVERYWHERE = (*IN_REGION, *ABOVE_REGIONS, what_if)
