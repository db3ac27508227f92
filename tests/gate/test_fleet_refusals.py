"""Invalid or dangerous input about the fleet: each is refused with the next step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import cache_of

from holdfast.link import break_glass
from holdfast.model import connectivity
from holdfast.model.assignment import Assignment, AssignmentSpec, assignment_name
from holdfast.model.binding import Intent, Reservation, ReservationPhase, ReservationSpec, ReservationStatus
from holdfast.model.errors import Fault, Forbidden, Invalid
from holdfast.model.meta import ObjectMeta
from holdfast.model.override import BreakGlass, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.principal import OPERATORS, from_identity
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec
from holdfast.model.region import Region, RegionSpec
from holdfast.model.scheduler_policy import FilterExpression, PolicyRules, SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.tenant import Tenant, TenantSpec
from holdfast.model.times import micro_text
from holdfast.model.workload import LoadBlock, LoadMetric, ScaleBlock, Workload, WorkloadSpec
from holdfast.model.writes import Create, Delete, SetStatus, Update

from .conftest import OPERATOR, TEMPLATE, USER, World, by, link_at_global

SECOND = from_identity("sue", (OPERATORS,), credential="token:sue")


def override(name: str = "o1", **spec: Any) -> Override:
    given = {"kind": OverrideKind.AVOID_REGION, "scope": OverrideScope(region="north"), "reason": "incident 7", **spec}
    return Override(ObjectMeta(name=name), OverrideSpec(**given))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"reason": ""}, "spec.reason.*explain why"),
        ({"reason": "   "}, "spec.reason"),
        ({"ttl_seconds": 90_000.0}, "spec.ttlSeconds"),
        ({"ttl_seconds": 0.0}, "spec.ttlSeconds"),
        (
            {"kind": OverrideKind.SHRINK_BUDGET, "ttl_seconds": 7200.0},
            "must be at most 3600 for ShrinkBudget; create another override when it expires",
        ),
        ({"scope": OverrideScope(region="atlantis")}, 'spec.scope.region.*atlantis.*"?north"?'),
        ({"scope": OverrideScope()}, "spec.scope.region.*required for AvoidRegion"),
        ({"kind": OverrideKind.AVOID_ZONE, "scope": OverrideScope(region="north", zone="z9")}, "spec.scope.zone"),
        (
            {"kind": OverrideKind.EMERGENCY_QUOTA, "scope": OverrideScope(tenant="nobody"), "quota": {"cpu": "1"}},
            'supported values: "shop"',
        ),
        (
            {"kind": OverrideKind.EMERGENCY_QUOTA, "scope": OverrideScope(tenant="shop")},
            "spec.quota.*the resources to add",
        ),
        ({"approver": "sue"}, "approval and revocation are separate requests"),
    ],
)
async def test_incomplete_override_is_refused(world: World, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        await world.create(OPERATOR, override(**spec))


async def test_override_approval_by_requester_is_refused(world: World) -> None:
    kind = OverrideKind.DECLARE_REGION_LOST
    stored = await world.create(OPERATOR, override(kind=kind))
    assert stored.spec.requester == "ann", "the requester is the authenticated user"
    with pytest.raises(Fault, match="the requester cannot approve it"):
        await approve(world, OPERATOR, stored, "ann")
    approved = await approve(world, SECOND, stored, "sue")
    assert approved.spec.approver == "sue"


async def approve(world: World, who: Any, stored: Override, name: str) -> Any:
    spec = msgspec.structs.replace(stored.spec, approver=name)
    return await world.do(who, Update(msgspec.structs.replace(stored, spec=spec)))


async def test_override_approval_counts_in_the_name_of_its_sender(world: World) -> None:
    stored = await world.create(OPERATOR, override(kind=OverrideKind.DECLARE_REGION_LOST))
    with pytest.raises(Fault, match="the requester cannot approve it"):
        await approve(world, OPERATOR, stored, "sue")
    assert world.get(Override, stored.metadata.name).spec.approver == ""
    approved = await approve(world, SECOND, stored, "bob")
    assert approved.spec.approver == "sue"


async def test_override_spec_is_immutable(world: World) -> None:
    stored = await world.create(OPERATOR, override())
    longer = msgspec.structs.replace(stored.spec, ttl_seconds=7200.0)
    with pytest.raises(Fault, match="is immutable except for approval and revocation; revoke it"):
        await world.do(OPERATOR, Update(msgspec.structs.replace(stored, spec=longer)))


@pytest.mark.parametrize("phase", ["", "Pending", "Active"])
async def test_override_in_force_is_revoked_not_deleted(world: World, phase: str) -> None:
    """An active exception must not vanish without a trace. After its end it may be deleted."""
    made = await world.create(OPERATOR, override())
    if phase:
        made = await world.do(by("override"), SetStatus("Override", made.key, made.uid, blocks={"phase": phase}))
    with pytest.raises(Fault, match="can only be revoked; next: holdfast override revoke o1"):
        await world.do(OPERATOR, Delete("Override", made.key, made.uid))
    revoked = await world.do(
        OPERATOR, Update(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, revoked=True)))
    )
    assert revoked.spec.revoked
    ended = await world.do(by("override"), SetStatus("Override", made.key, made.uid, blocks={"phase": "Revoked"}))
    assert await world.do(OPERATOR, Delete("Override", ended.key, ended.uid)) is None


def given_in_region(name: str = "break-glass-north-1", **spec: Any) -> Override:
    given = {"kind": OverrideKind.PAUSE_REPAIR, "scope": OverrideScope(region="north"), "reason": "cut off", **spec}
    return Override(ObjectMeta(name=name), OverrideSpec(**{"ttl_seconds": 600.0, **given}))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (given_in_region("o1"), r"read-only copy in region north .* name it break-glass-north-"),
        (given_in_region("break-glass-south-1"), "name it break-glass-north-"),
        (given_in_region(kind=OverrideKind.EMERGENCY_QUOTA, quota={"cpu": "1"}), 'spec.kind.*"AvoidZone"'),
        (given_in_region(kind=OverrideKind.DECLARE_REGION_LOST), "spec.kind"),
        (given_in_region(kind=OverrideKind.SHRINK_BUDGET), "spec.kind"),
        (given_in_region(ttl_seconds=3600.0), "must be at most 1800 for break-glass"),
        (given_in_region(scope=OverrideScope()), "applies only to its own region"),
        (given_in_region(reason=""), "explain why"),
    ],
)
async def test_break_glass_override_outside_rules_is_refused(north: World, made: Override, message: str) -> None:
    await north.plant(Region(ObjectMeta(name="north"), RegionSpec(zones=("a",))))
    with pytest.raises(Fault, match=message):
        await north.create(OPERATOR, made)


async def test_break_glass_override_is_accepted_only_while_partitioned(north: World) -> None:
    await north.plant(Region(ObjectMeta(name="north"), RegionSpec(zones=("a",))))
    since_s = north.ports.clock.now()
    await north.plant(connectivity.connectivity_lease(since_s, connected=True))
    with pytest.raises(Fault, match=r"is connected to the global cell since"):
        await north.create(OPERATOR, given_in_region())
    await north.plant(connectivity.connectivity_lease(since_s, connected=False))
    taken = await north.create(OPERATOR, given_in_region(requester="someone else"))
    assert (taken.spec.requester, taken.spec.break_glass.region) == ("ann", "north")
    status = SetStatus("Override", taken.key, taken.uid, blocks={"phase": "Active"})
    assert (await north.do(by("override", "north"), status)).status.phase == "Active"
    for other in (USER, link_at_global()):
        with pytest.raises(Fault):
            await north.create(other, given_in_region("break-glass-north-2"))


async def test_insisted_break_glass_override_is_accepted_with_contact_and_recorded(north: World) -> None:
    """A hung global cell is noticed after seconds. A person who sees it does not have to wait, and says so."""
    await north.plant(Region(ObjectMeta(name="north"), RegionSpec(zones=("a",))))
    await north.plant(connectivity.connectivity_lease(north.ports.clock.now(), connected=True))
    with pytest.raises(Fault, match="add --insist if the global cell does not answer you"):
        await north.create(OPERATOR, given_in_region())
    insisted = BreakGlass(region="south", uid="made up", insisted=True)
    taken = await north.create(OPERATOR, given_in_region(break_glass=insisted))
    assert taken.spec.break_glass == BreakGlass(region="north", insisted=True)
    with pytest.raises(Fault, match=r"reason|explain why"):
        await north.create(OPERATOR, given_in_region("break-glass-north-2", break_glass=insisted, reason=""))
    local = msgspec.structs.replace(taken, status=OverrideStatus(phase="Active", expires_at="2027-01-01T00:00:00Z"))
    (record,) = break_glass.record_writes(local.key, cache_of(), cache_of(local), "north", 0.0)
    assert present(of_type(of_type(record, Create).object, Override).spec.break_glass).insisted


async def test_region_can_report_only_its_own_break_glass_overrides(world: World) -> None:
    break_glass_record = BreakGlass(region="north", uid="u", requested_ttl_seconds=600.0)
    record = await world.create(link_at_global(), given_in_region(requester="ann", break_glass=break_glass_record))
    assert record.spec.requester == "ann", "the region reports the requester"
    wrong = (
        given_in_region(
            "break-glass-north-2", break_glass=break_glass_record, kind=OverrideKind.EMERGENCY_QUOTA, quota={"cpu": "9"}
        ),
        given_in_region("break-glass-north-3", break_glass=break_glass_record, ttl_seconds=9000.0),
        given_in_region("break-glass-north-4", break_glass=break_glass_record, approver="ann"),
        given_in_region("break-glass-south-1", break_glass=BreakGlass(region="south")),
        override("o9"),
    )
    for made in wrong:
        with pytest.raises(Fault):
            await world.create(link_at_global(), made)
    with pytest.raises(Invalid, match="reserved for overrides created in a region"):
        await world.create(OPERATOR, given_in_region("break-glass-north-5"))


async def test_quota_below_current_use_is_refused(world: World) -> None:
    made = Quota(ObjectMeta(name="quota", namespace="shop"), QuotaSpec(hard={"cpu": "8"}))
    stored = await world.create(OPERATOR, made)
    used = SetStatus("Quota", stored.key, stored.uid, blocks={"used": {"cpu": "5"}})
    stored = await world.do(by("grant"), used)
    lower = msgspec.structs.replace(stored, spec=QuotaSpec(hard={"cpu": "3"}))
    with pytest.raises(Invalid, match="below current use \\(5\\); scale the tenant's workloads down first"):
        await world.do(OPERATOR, Update(lower))
    enough = msgspec.structs.replace(stored, spec=QuotaSpec(hard={"cpu": "5"}))
    assert (await world.do(OPERATOR, Update(enough))).spec.hard == {"cpu": "5"}


async def test_template_user_is_refused_unless_its_tenant_allows_it(world: World) -> None:
    def workload(user: str) -> Workload:
        spec = WorkloadSpec(template=msgspec.structs.replace(TEMPLATE, user=user))
        return Workload(ObjectMeta(name=f"as-{user}", namespace="shop"), spec)

    for user in ("root", "postgres"):
        with pytest.raises(
            Invalid, match=rf"spec.template.user.*{user}.*may not choose this user.*each task has a user"
        ):
            await world.create(USER, workload(user))
    tenant = world.get(Tenant, "shop")
    allowed = msgspec.structs.replace(tenant, spec=TenantSpec(allowed_users=("postgres",)))
    with pytest.raises(Forbidden):
        await world.do(USER, Update(allowed))
    await world.do(OPERATOR, Update(allowed))
    assert (await world.create(USER, workload("postgres"))).spec.template.user == "postgres"
    with pytest.raises(Invalid, match=r"spec\.template\.user"):
        await world.create(USER, workload("root"))


async def test_delete_of_region_with_assignments_is_refused(world: World) -> None:
    spec = AssignmentSpec(workload="web", workload_uid="u", region="north", revision="1", template=TEMPLATE)
    meta = ObjectMeta(name=assignment_name("web", "north"), namespace="shop")
    await world.create(by("assign"), Assignment(meta, spec))
    region = world.get(Region, "north")
    with pytest.raises(Fault, match=r"in use by 1 assignments, for example"):
        await world.do(OPERATOR, Delete("Region", region.key, region.uid))


async def test_delete_of_consumed_recovery_slot_is_refused(north: World) -> None:
    spec = RecoverySlotSpec(budget="b", shape_index=0, node="n1", zone="a", resources={"cpu": "1"})
    await north.plant(RecoverySlot(ObjectMeta(name="b-0-0"), spec))
    intent = Intent(replica_uid="u", template_hash="h", attempt=1)
    claim = ReservationSpec(replica="web-0", intent=intent, node="n1", recovery_slots=("b-0-0",))
    firm, gone = ReservationStatus(phase=ReservationPhase.CONSUMED), ReservationStatus(phase=ReservationPhase.RELEASED)
    meta = ObjectMeta(name="web-0.1", namespace="shop")
    await north.plant(Reservation(meta, claim, firm))
    place = north.get(RecoverySlot, "b-0-0")
    with pytest.raises(Fault, match=r"in use by claim shop/web-0.1; it can be deleted after"):
        await north.do(by("recovery-slots"), Delete("RecoverySlot", place.key, place.uid))
    await north.plant(Reservation(meta, claim, gone))
    await north.do(by("recovery-slots"), Delete("RecoverySlot", place.key, place.uid))
    assert north.get(RecoverySlot, "b-0-0") is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("false", "false for every node"),
        ("1 > 2", "false for every node"),
        ("node.zone == 'nowhere'", r"false in every zone \(a\)"),
    ],
)
async def test_policy_filter_that_matches_no_node_is_refused(world: World, expression: str, message: str) -> None:
    rules = PolicyRules(filter_expressions=(FilterExpression(name="mine", expression=expression),))
    with pytest.raises(Invalid, match=f"{message}.*write a condition that nodes can meet"):
        await world.create(OPERATOR, SchedulerPolicy(ObjectMeta(name="p"), SchedulerPolicySpec(rules=rules)))


@pytest.mark.parametrize(
    "expression", ["true", "node.zone == 'a'", "node.pool == 'gpu'", "request.tenant == 'x'", "'gpu' in node.labels"]
)
async def test_policy_filter_that_may_match_is_accepted(world: World, expression: str) -> None:
    rules = PolicyRules(filter_expressions=(FilterExpression(name="mine", expression=expression),))
    await world.create(OPERATOR, SchedulerPolicy(ObjectMeta(name="p"), SchedulerPolicySpec(rules=rules)))


async def test_load_block_is_written_by_users_and_scale_block_by_autoscale(world: World) -> None:
    made = Workload(ObjectMeta(name="web", namespace="shop"), WorkloadSpec(template=TEMPLATE))
    stored = await world.create(USER, made)
    load = LoadBlock(metrics=(LoadMetric("cpuPercent", 80.0, micro_text(world.ports.clock.now())),))
    pushed = await world.do(USER, SetStatus("Workload", stored.key, stored.uid, blocks={"load": load}))
    assert pushed.status.load.metrics[0].value == 80.0
    with pytest.raises(Forbidden):
        await world.do(USER, SetStatus("Workload", stored.key, stored.uid, blocks={"scale": ScaleBlock(9)}))
    other = LoadBlock(metrics=(LoadMetric("cpuPercent", 5.0, micro_text(world.ports.clock.now())),))
    with pytest.raises(Forbidden):
        await world.do(by("autoscale"), SetStatus("Workload", stored.key, stored.uid, blocks={"load": other}))
