"""The table of ages on the real inputs: a running authority refuses what it would have taken a moment before."""

from __future__ import annotations

import msgspec
from tests.authority.cell import TENANT, Cell

from holdfast.link import grant_sync
from holdfast.model import ages
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement import Answer, Result
from holdfast.model.quota import Grant, GrantClass, GrantSpec, grant_name
from holdfast.model.scheduler_policy import PartitionMode, PolicyRevision, PolicyRevisionSpec, PromotionStage, Rules
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, Update
from holdfast.runtime.cache import Cache

REGION = "us-east"


def why(answer: Answer) -> str:
    return answer.reason if answer.result is Result.REJECTED else answer.result.value


async def test_a_node_that_has_not_renewed_for_its_age_gets_nothing_new(cell: Cell) -> None:
    fresh, late = await cell.replica("fresh-0"), await cell.replica("late-0")
    node = cell.get_node()
    await cell.renew("n1", node.status.execution.epoch)
    await cell.clock.advance(ages.NODE_REPORT.seconds - 1)
    assert why(await cell.place(fresh)) == "Accepted"
    await cell.clock.advance(2)
    assert why(await cell.place(late)) == "NodeUnreachable"


async def heard(cell: Cell, heard_s: float, limit: str = "4") -> None:
    """The link hears the global cell, and brings its grant as it does: by the very function it runs."""
    meta = ObjectMeta(name=grant_name(REGION, GrantClass.NORMAL), namespace=TENANT, uid="g", resource_version="1")
    grants, here = Cache(), Cache()
    grants.put(Grant(meta, GrantSpec(region=REGION, limit={"cpu": limit, "memory": "8Gi"})))
    for known in cell.every(GrantCopy):
        here.put(known)
    for write in grant_sync.copy_writes(Key(TENANT, "normal"), grants, here, REGION, heard_s):
        assert isinstance(write, Create | Update)
        await cell.put(write.object)


async def test_a_grant_that_was_not_heard_of_for_its_age_is_not_spent_and_is_again_once_it_is_heard(cell: Cell) -> None:
    for known in cell.every(GrantCopy):
        await cell.remove(known)
    replicas = [await cell.replica(f"r-{n}") for n in range(3)]
    await heard(cell, cell.clock.now())
    await keep_alive(cell, ages.GRANT.seconds - 1)
    assert why(await cell.place(replicas[0])) == "Accepted"
    await keep_alive(cell, 2)
    assert why(await cell.place(replicas[1])) == "GrantExpired"
    await heard(cell, cell.clock.now())
    assert why(await cell.place(replicas[1])) == "Accepted"


async def test_what_an_old_policy_chooses_is_refused_with_the_grant_it_would_spend(cell: Cell) -> None:
    """Policies come over the same link: an authority that would still act on one that is too old has no grant left."""
    for known in cell.every(GrantCopy):
        await cell.remove(known)
    rules = Rules(partition_mode=PartitionMode.WAIT)
    spec = PolicyRevisionSpec(policy="default", sequence=7, stage=PromotionStage.ACTIVE, rules=rules)
    await cell.put(PolicyRevision(ObjectMeta(name="last-known"), spec))
    await heard(cell, cell.clock.now())
    fresh, late = await cell.replica("fresh-0"), await cell.replica("late-0")
    assert why(await cell.place(fresh, policy_revision="last-known")) == "Accepted"
    await keep_alive(cell, ages.POLICY.seconds + 1)
    assert why(await cell.place(late, policy_revision="last-known")) == "GrantExpired"


async def test_emergency_quota_is_not_spent_once_its_override_is_over_whatever_the_clock_says(cell: Cell) -> None:
    for known in cell.every(GrantCopy):
        await cell.remove(known)
    far = micro_text(cell.clock.now() + 7200)  # what a clock that was put back makes of the end that was set
    more = GrantCopySpec(grant_class=GrantClass.EMERGENCY, limit={"cpu": "4", "memory": "8Gi"}, spend_until=far)
    await cell.put(GrantCopy(ObjectMeta(name="emergency", namespace=TENANT, generation=1), more))
    spec = OverrideSpec(OverrideKind.EMERGENCY_QUOTA, OverrideScope(tenant=TENANT), "sale", quota={"cpu": "4"})
    acting = Override(ObjectMeta(name="e"), spec, OverrideStatus(phase="Active", expires_at=far))
    await cell.put(acting)
    assert why(await cell.place(await cell.replica("during-0"))) == "Accepted"
    # The count of its time, which the clock does not touch, has ended it.
    ended = msgspec.structs.replace(cell.every(Override)[0], status=OverrideStatus(phase="Expired", expires_at=far))
    await cell.put(ended)
    assert why(await cell.place(await cell.replica("after-0"))) in ("GrantExpired", "QuotaExceeded")


async def keep_alive(cell: Cell, seconds: float) -> None:
    """Time passes while the node goes on renewing: only what is looked at gets old."""
    epoch = cell.get_node().status.execution.epoch
    left = seconds
    while left > 0:
        step = min(left, ages.NODE_REPORT.seconds / 2)
        await cell.clock.advance(step)
        await cell.renew("n1", epoch)
        left -= step
