"""The maximum ages of inputs in a running authority: it refuses an input just past its age."""

from __future__ import annotations

import msgspec
from tests.authority.cell import TENANT, Cell

from holdfast.controllers.cache import Cache
from holdfast.link import grant_sync
from holdfast.model import input_freshness
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
from holdfast.model.quota import Grant, GrantClass, GrantSpec, grant_name
from holdfast.model.scheduler_policy import (
    PartitionMode,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
)
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, Update

REGION = "us-east"


def outcome_of(answer: PlacementResult) -> str:
    return answer.reason if answer.result is PlacementOutcome.REJECTED else answer.result.value


async def test_reserve_on_node_past_report_age_is_refused(cell: Cell) -> None:
    fresh, late = await cell.replica("fresh-0"), await cell.replica("late-0")
    node = cell.get_node()
    await cell.renew("n1", node.status.execution.epoch)
    await cell.clock.advance(input_freshness.NODE_REPORT.seconds - 1)
    assert outcome_of(await cell.place(fresh)) == "Accepted"
    await cell.clock.advance(2)
    assert outcome_of(await cell.place(late)) == "NodeUnreachable"


async def renew_grant_copy(cell: Cell, contact_s: float, limit: str = "4") -> None:
    """Renews the GrantCopy with the link's own function."""
    meta = ObjectMeta(name=grant_name(REGION, GrantClass.NORMAL), namespace=TENANT, uid="g", resource_version="1")
    grants, here = Cache(), Cache()
    grants.put(Grant(meta, GrantSpec(region=REGION, limit={"cpu": limit, "memory": "8Gi"})))
    for known in cell.every(GrantCopy):
        here.put(known)
    for write in grant_sync.copy_writes(Key(TENANT, "normal"), grants, here, REGION, contact_s):
        assert isinstance(write, Create | Update)
        await cell.put(write.object)


async def test_grant_past_lease_age_is_refused_until_renewed(cell: Cell) -> None:
    for known in cell.every(GrantCopy):
        await cell.remove(known)
    replicas = [await cell.replica(f"r-{n}") for n in range(3)]
    await renew_grant_copy(cell, cell.clock.now())
    await renew_leases(cell, input_freshness.GRANT.seconds - 1)
    assert outcome_of(await cell.place(replicas[0])) == "Accepted"
    await renew_leases(cell, 2)
    assert outcome_of(await cell.place(replicas[1])) == "GrantExpired"
    await renew_grant_copy(cell, cell.clock.now())
    assert outcome_of(await cell.place(replicas[1])) == "Accepted"


async def test_proposal_of_stale_policy_is_refused_by_expired_grant(cell: Cell) -> None:
    """Policies and grants come over the same link: when the policy is too old, the grant lease has expired too."""
    for known in cell.every(GrantCopy):
        await cell.remove(known)
    rules = PolicyRules(partition_mode=PartitionMode.WAIT)
    spec = PolicyRevisionSpec(policy="default", sequence=7, stage=PromotionStage.ACTIVE, rules=rules)
    await cell.put(PolicyRevision(ObjectMeta(name="last-known"), spec))
    await renew_grant_copy(cell, cell.clock.now())
    fresh, late = await cell.replica("fresh-0"), await cell.replica("late-0")
    assert outcome_of(await cell.place(fresh, policy_revision="last-known")) == "Accepted"
    await renew_leases(cell, input_freshness.POLICY.seconds + 1)
    assert outcome_of(await cell.place(late, policy_revision="last-known")) == "GrantExpired"


async def test_emergency_quota_after_override_expiry_is_not_spent(cell: Cell) -> None:
    for known in cell.every(GrantCopy):
        await cell.remove(known)
    far = micro_text(cell.clock.now() + 7200)  # the grant's expiry, as seen after the wall clock was set back
    more = GrantCopySpec(grant_class=GrantClass.EMERGENCY, limit={"cpu": "4", "memory": "8Gi"}, lease_expires_at=far)
    await cell.put(GrantCopy(ObjectMeta(name="emergency", namespace=TENANT, generation=1), more))
    spec = OverrideSpec(OverrideKind.EMERGENCY_QUOTA, OverrideScope(tenant=TENANT), "sale", quota={"cpu": "4"})
    acting = Override(ObjectMeta(name="e"), spec, OverrideStatus(phase="Active", expires_at=far))
    await cell.put(acting)
    assert outcome_of(await cell.place(await cell.replica("during-0"))) == "Accepted"
    # The override expired on the monotonic clock.
    ended = msgspec.structs.replace(cell.every(Override)[0], status=OverrideStatus(phase="Expired", expires_at=far))
    await cell.put(ended)
    assert outcome_of(await cell.place(await cell.replica("after-0"))) in ("GrantExpired", "QuotaExceeded")


async def renew_leases(cell: Cell, seconds: float) -> None:
    """Advances time while the node keeps renewing."""
    epoch = cell.get_node().status.execution.epoch
    left = seconds
    while left > 0:
        step = min(left, input_freshness.NODE_REPORT.seconds / 2)
        await cell.clock.advance(step)
        await cell.renew("n1", epoch)
        left -= step
