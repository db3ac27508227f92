"""Every placement rule as a table of cases. Each case runs through every consumer of the rule: all must agree.

A row reads: the situation, whether the workload may have a new replica there. The consumers are in `consumers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from tests import factories
from tests.authority.cell import TENANT, WHO, Cell
from tests.expected import only, present
from tests.rules.consumers import (
    EVERYWHERE,
    IN_REGION,
    NOW,
    OTHER,
    REGION,
    WORKLOAD,
    ZONE,
    Situation,
    authority,
    node_pool,
    objects_that_back,
    obstacles,
    outlook,
    planner,
    recovery_backing,
    recovery_slots,
    what_if,
    why_not,
)

from holdfast.fleet import autoscale, grants
from holdfast.fleet.recovery.need import TargetSelector, critical_workload, reported_headroom
from holdfast.gate.admission import AdmissionCase, budget_backs_objectives
from holdfast.model.active_policy import active_policy
from holdfast.model.assignment import AssignmentStatus
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.node import ContactBlock, ContactState, FenceBlock, Node, Quarantine
from holdfast.model.override import (
    Override,
    OverrideKind,
    OverrideScope,
    OverrideSpec,
    OverrideStatus,
    active_avoidances,
    validate_override,
)
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quantity import Amount
from holdfast.model.quota import Grant, GrantClass, Quota, QuotaSpec, grant_name
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRevisionSpec, PolicyRules, PromotionStage
from holdfast.model.template import DriverName
from holdfast.model.workload import Autoscale, RecoveryObjective
from holdfast.model.writes import Create, SetStatus

YES, NO = True, False
AVOID_REGION, AVOID_ZONE = OverrideKind.AVOID_REGION, OverrideKind.AVOID_ZONE
Consumer = Callable[[Situation], bool]


def table(rows: dict[str, tuple[Situation, bool]], consumers: Iterable[Consumer]) -> pytest.MarkDecorator:
    """One test per row and consumer, named after both."""
    cases = [
        pytest.param(consumer, asked, allowed, id=f"{name}-{consumer.__name__}")
        for name, (asked, allowed) in rows.items()
        for consumer in consumers
    ]
    return pytest.mark.parametrize(("consumer", "asked", "allowed"), cases)


def rules(**placement: Any) -> Situation:
    return Situation(placement=PlacementRules(**placement))


REGIONS = {
    "no rule": (rules(), YES),
    "region is listed": (rules(regions=(REGION, "eu-west")), YES),
    "region is not listed": (rules(regions=("eu-west",)), NO),
    "region is excluded": (rules(excluded_regions=(REGION,)), NO),
    "another region is excluded": (rules(excluded_regions=("eu-west",)), YES),
}


@table(REGIONS, EVERYWHERE)
def test_region_rule_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


def resident(wanted: tuple[str, ...], tags: tuple[str, ...]) -> Situation:
    return Situation(placement=PlacementRules(residency=wanted), residency=tags)


RESIDENCY = {
    "no tag is required": (resident((), ()), YES),
    "the region has the tag": (resident(("us",), ("us",)), YES),
    "the region has one of the tags": (resident(("us", "eu"), ("us", "gov")), YES),
    "the region has another tag": (resident(("eu",), ("us",)), NO),
    "the region has no tag": (resident(("eu",), ()), NO),
}


@table(RESIDENCY, EVERYWHERE)
def test_residency_rule_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


ZONES = {
    "no rule": (rules(), YES),
    "zone is listed": (rules(zones=(ZONE, "eu-west-a")), YES),
    "zone is not listed": (rules(zones=("eu-west-a",)), NO),
}


@table(ZONES, (*EVERYWHERE, node_pool))
def test_zone_rule_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


def pooled(*pools: str) -> Situation:
    return Situation(placement=PlacementRules(pools=pools), node_spec={"pool": "gpu"})


POOLS = {
    "no rule": (pooled(), YES),
    "pool is listed": (pooled("gpu", "cpu"), YES),
    "pool is not listed": (pooled("cpu"), NO),
}


@table(POOLS, (*IN_REGION, what_if, node_pool))
def test_pool_rule_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


DRIVERS = {
    "the node has the driver": (Situation(driver=DriverName.OCI, node_spec={"drivers": ("process", "oci")}), YES),
    "the node lacks the driver": (Situation(driver=DriverName.OCI, node_spec={"drivers": ("process",)}), NO),
}


@table(DRIVERS, (*IN_REGION, what_if))
def test_driver_rule_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


def owned(owner: str, *, dedicated: bool) -> Situation:
    return Situation(dedicated=dedicated, node_spec={"tenant": owner})


TENANCY = {
    "shared tenant on a shared node": (owned("", dedicated=False), YES),
    "shared tenant on a node of its own name": (owned(TENANT, dedicated=False), NO),
    "shared tenant on the node of a dedicated tenant": (owned("rival", dedicated=False), NO),
    "dedicated tenant on its own node": (owned(TENANT, dedicated=True), YES),
    "dedicated tenant on a shared node": (owned("", dedicated=True), NO),
    "dedicated tenant on the node of another": (owned("rival", dedicated=True), NO),
}


@table(TENANCY, (*IN_REGION, what_if, recovery_slots))
def test_tenancy_rule_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


def budget(*tenants: str, dedicated: bool) -> Situation:
    return Situation(dedicated=dedicated, budget_tenants=tenants)


RECOVERY_SLOTS = {
    "budget for every tenant, shared tenant": (budget(dedicated=False), YES),
    "budget for every tenant, dedicated tenant": (budget(dedicated=True), NO),
    "budget for the tenant, shared": (budget(TENANT, dedicated=False), YES),
    "budget for the tenant, dedicated": (budget(TENANT, dedicated=True), YES),
    "budget for two tenants, shared": (budget(TENANT, "rival", dedicated=False), YES),
    "budget for two tenants, dedicated": (budget(TENANT, "rival", dedicated=True), NO),
    "budget for another tenant": (budget("rival", dedicated=False), NO),
}


@table(RECOVERY_SLOTS, (recovery_backing,))
def test_recovery_slots_back_only_tenants_of_the_budget(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


def changed(**status: Any) -> Situation:
    return Situation(
        change_node=lambda node: msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, **status))
    )


def terminating(node: Node) -> Node:
    return factories.with_new_revision(
        node, metadata=msgspec.structs.replace(node.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )


def ran(**execution: Any) -> Situation:
    def change(node: Node) -> Node:
        block = msgspec.structs.replace(node.status.execution, **execution)
        return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=block))

    return Situation(change_node=change)


NODE_STATE = {
    "ready": (Situation(), YES),
    "cordoned": (Situation(node_spec={"unschedulable": True}), NO),
    "draining": (Situation(node_spec={"drain": True}), NO),
    "terminating": (Situation(change_node=terminating), NO),
    "unreachable": (changed(contact=ContactBlock(state=ContactState.EXPIRED)), NO),
    "fenced": (changed(fence=FenceBlock(fenced_epoch=1)), NO),
    "reconciling": (ran(reconciled=False), NO),
    "quarantined": (ran(quarantine=Quarantine("StartFailed")), NO),
}


@table(NODE_STATE, (*IN_REGION, what_if, recovery_slots))
def test_node_not_ready_is_refused_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


FUTURE, PAST = "2099-01-01T00:00:00Z", "2020-01-01T00:00:00Z"


def override(
    kind: OverrideKind, scope: OverrideScope, *, phase: str = "Active", ends: str = FUTURE, **spec: Any
) -> Override:
    given = OverrideSpec(kind, scope, "cooling failed", **spec)
    return Override(factories.meta("avoid"), given, OverrideStatus(phase=phase, expires_at=ends))


def avoid(kind: OverrideKind = AVOID_REGION, *, given: dict[str, Any] | None = None, **scope: Any) -> Situation:
    return Situation(overrides=(override(kind, OverrideScope(**{"region": REGION, **scope}), **(given or {})),))


AVOIDANCE = {
    "the region": (avoid(), NO),
    "another region": (avoid(region="eu-west"), YES),
    "the region, for this tenant": (avoid(tenant=TENANT), NO),
    "the region, for another tenant": (avoid(tenant="rival"), YES),
    "the region, for this workload": (avoid(tenant=TENANT, workload=WORKLOAD), NO),
    "the region, for another workload": (avoid(tenant=TENANT, workload="batch"), YES),
    "the region, expired": (avoid(given={"ends": PAST}), YES),
    "the region, expiry unknown": (avoid(given={"ends": ""}), YES),
    "the region, not yet approved": (avoid(given={"phase": "Pending"}), YES),
    "the region, revoked": (avoid(given={"revoked": True}), YES),
    "the zone": (avoid(AVOID_ZONE, zone=ZONE), NO),
    "another zone": (avoid(AVOID_ZONE, zone="us-east-b"), YES),
    "the zone, for another tenant": (avoid(AVOID_ZONE, zone=ZONE, tenant="rival"), YES),
    "the zone, expired": (avoid(AVOID_ZONE, zone=ZONE, given={"ends": PAST}), YES),
    "a zone of the same name elsewhere": (avoid(AVOID_ZONE, region="eu-west", zone=ZONE), YES),
    "the other region": (avoid(region=OTHER), YES),
}


@table(AVOIDANCE, EVERYWHERE)
def test_avoid_override_is_obeyed_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


def test_what_if_sends_no_replica_to_an_avoided_region() -> None:
    asked = avoid()
    (placing,) = outlook(asked, asked.other_region()).placings
    assert placing.region == OTHER


def test_why_not_names_the_override_that_closes_the_zone_of_the_node() -> None:
    other = factories.with_new_revision(override(AVOID_ZONE, OverrideScope(region=REGION, zone="us-east-b")))
    mine = msgspec.structs.replace(
        override(AVOID_ZONE, OverrideScope(region=REGION, zone=ZONE)), metadata=factories.meta("z")
    )
    (obstacle,) = obstacles(Situation(overrides=(other, mine)))
    assert "override z" in obstacle.message and "override z" in obstacle.fix


def grant(cpu: str, kind: GrantClass = GrantClass.NORMAL, **spec: Any) -> GrantCopy:
    given: dict[str, Amount] = {"memory": "64Gi", "cpu": cpu}
    return GrantCopy(factories.meta(grant_name(REGION, kind), TENANT), GrantCopySpec(kind, given, **spec))


def granted(*grants: GrantCopy, emergency: OverrideScope | None = None) -> Situation:
    """The replica needs one CPU. `emergency` is the scope of an active EmergencyQuota."""
    kind, more = OverrideKind.EMERGENCY_QUOTA, {"cpu": "4"}
    return Situation(grants=grants, overrides=(override(kind, emergency, quota=more),) if emergency else ())


EXTRA = grant("4", GrantClass.EMERGENCY, lease_expires_at=FUTURE)
QUOTA_HEADROOM = {
    "no grant": (granted(), NO),
    "enough": (granted(grant("1")), YES),
    "too little": (granted(grant("500m")), NO),
    "too little without the provisional part": (granted(grant("1", provisional={"cpu": "500m"})), NO),
    "enough, for recovery only": (granted(grant("4", GrantClass.RECOVERY)), NO),
    "emergency quota": (granted(grant("500m"), EXTRA, emergency=OverrideScope(tenant=TENANT)), YES),
    "emergency quota here": (granted(grant("500m"), EXTRA, emergency=OverrideScope(REGION, tenant=TENANT)), YES),
}


@table(QUOTA_HEADROOM, (planner, why_not, authority))
def test_quota_headroom_is_enforced_by_every_consumer(consumer: Consumer, asked: Situation, allowed: bool) -> None:
    assert consumer(asked) is allowed


GRANTS_NOT_IN_FORCE = {
    "lease ended": granted(grant("4", lease_expires_at=PAST)),
    "emergency quota without an override": granted(grant("500m"), EXTRA),
    "emergency quota elsewhere": granted(grant("500m"), EXTRA, emergency=OverrideScope(OTHER, tenant=TENANT)),
    "emergency quota of another tenant": granted(grant("500m"), EXTRA, emergency=OverrideScope(tenant="rival")),
}


@pytest.mark.parametrize("asked", GRANTS_NOT_IN_FORCE.values(), ids=GRANTS_NOT_IN_FORCE)
def test_grant_not_in_force_is_refused_by_authority_only(asked: Situation) -> None:
    assert planner(asked) and not authority(asked)


# Overrides of the other kinds: which region, tenant and workload each is about.

SCOPES = {
    "everything": (OverrideScope(), YES),
    "this region": (OverrideScope(region=REGION), YES),
    "another region": (OverrideScope(region="eu-west"), NO),
    "this tenant": (OverrideScope(tenant=TENANT), YES),
    "another tenant": (OverrideScope(tenant="rival"), NO),
    "this workload": (OverrideScope(tenant=TENANT, workload=WORKLOAD), YES),
    "another workload": (OverrideScope(tenant=TENANT, workload="batch"), NO),
}


@pytest.mark.parametrize(("scope", "covered"), SCOPES.values(), ids=SCOPES)
def test_autoscaler_is_paused_where_the_scope_covers_the_workload(scope: OverrideScope, covered: bool) -> None:
    scaled = Situation().workload(replicas=2, autoscale=Autoscale(min_replicas=1, max_replicas=9))
    held = factories.assignment(WORKLOAD, REGION, namespace=TENANT, replicas=2)
    paused = override(OverrideKind.PAUSE_AUTOSCALER, scope)
    write = only(autoscale.decide(scaled.key, factories.cache_of(scaled, held, paused), NOW).writes, SetStatus)
    assert ("override" in write.blocks["scale"].message) is covered


@pytest.mark.parametrize(("scope", "covered"), SCOPES.values(), ids=SCOPES)
def test_policy_is_pinned_for_whole_regions_only(scope: OverrideScope, covered: bool) -> None:
    unpromoted = PolicyRevisionSpec(policy="default", sequence=1, stage=PromotionStage.SHADOW, rules=PolicyRules())
    revision = PolicyRevision(factories.meta("r1"), unpromoted)
    pin = override(OverrideKind.PIN_POLICY, scope, policy_revision="r1")
    chosen = active_policy([revision], [pin], REGION, NOW).revision
    assert (chosen == "r1") is (covered and not scope.tenant)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (OverrideKind.AVOID_REGION, "zone"),
        (OverrideKind.DECLARE_REGION_LOST, "zone"),
        (OverrideKind.DECLARE_REGION_LOST, "tenant"),
        (OverrideKind.EMERGENCY_QUOTA, "workload"),
        (OverrideKind.PIN_POLICY, "tenant"),
        (OverrideKind.PAUSE_REPAIR, "zone"),
    ],
)
def test_scope_field_that_a_kind_would_ignore_is_refused(kind: OverrideKind, field: str) -> None:
    given = override(kind, OverrideScope(**{field: "x"}))
    causes = {cause.field: cause.message for cause in validate_override(given, None)}
    assert f"cannot be limited to a {field}" in causes[f"spec.scope.{field}"]


@pytest.mark.parametrize(("bound", "stays"), [(3, NO), (4, YES)])
def test_avoided_recovery_target_stays_only_with_all_its_replicas_bound(bound: int, stays: bool) -> None:
    asked = avoid()
    work = asked.workload(replicas=4, recovery=RecoveryObjective(min_serving=4))
    held = AssignmentStatus(observed_epoch=1, replicas=4, bound=bound)
    there = factories.assignment(WORKLOAD, REGION, namespace=TENANT, replicas=4, status=held)
    critical = critical_workload(work, present(work.spec.recovery), asked.fleet(work, there))
    targets = TargetSelector([asked.region], active_avoidances(asked.overrides, NOW), reported_headroom)
    assert bool(targets.refusal(critical, REGION)) is not stays


@pytest.mark.parametrize(
    ("scope", "regions"),
    [
        (OverrideScope(tenant=TENANT), {REGION, OTHER}),
        (OverrideScope(REGION, tenant=TENANT), {REGION}),
        (OverrideScope("eu-west", tenant=TENANT), set()),
        (OverrideScope(tenant="rival"), set()),
    ],
)
def test_emergency_quota_is_granted_in_the_regions_of_its_scope(scope: OverrideScope, regions: set[str]) -> None:
    asked = granted(emergency=scope)
    quota = Quota(factories.meta("quota", TENANT), QuotaSpec(hard={"cpu": "1", "memory": "64Gi"}))
    needs = [factories.assignment(WORKLOAD, where, namespace=TENANT, replicas=4) for where in (REGION, OTHER)]
    writes = grants.decide(quota.key, asked.fleet(asked.other_region(), quota, *needs), NOW).writes
    made = [w.object for w in writes if isinstance(w, Create) and isinstance(w.object, Grant)]
    assert {g.spec.region for g in made if g.spec.grant_class is GrantClass.EMERGENCY} == regions


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (None, NO),
        (OverrideScope(REGION), YES),
        (OverrideScope(OTHER), NO),
        (OverrideScope(REGION, tenant=TENANT), YES),
        (OverrideScope(REGION, tenant="rival"), NO),
    ],
)
async def test_budget_shrinks_below_an_objective_that_the_override_covers(
    scope: OverrideScope | None, allowed: bool
) -> None:
    asked = Situation(overrides=(override(OverrideKind.SHRINK_BUDGET, scope),) if scope else ())
    cell = await Cell.open()
    await cell.put(*objects_that_back(asked))
    (budget,) = cell.every(RecoveryBudget)
    case = AdmissionCase(WHO, kind_of(budget), budget, None, cell.objects, "global", deleting=True, now=NOW)
    assert (not list(budget_backs_objectives(case))) is allowed
    await cell.close()
