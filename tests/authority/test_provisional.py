"""Provisional placement in a partitioned region: eligibility, renewal, and confirmation after reconnection."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell

from holdfast.authority.provisional import PROVISIONAL_RUN_S
from holdfast.model import limits
from holdfast.model.assignment import Assignment, AssignmentSpec, Purpose
from holdfast.model.binding import Binding
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import (
    PartitionMode,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
)
from holdfast.model.template import Template
from holdfast.model.times import micro_text, parse_time
from holdfast.model.workload import Exclusivity

LEASE_S = limits.GRANT_LEASE_S


async def partition(
    cell: Cell, *, mode: PartitionMode = PartitionMode.PROVISIONAL, limit: str = "8", provisional: str = "3"
) -> None:
    """Partitions the region: its last contact is longer ago than a grant lease."""
    contact_s = cell.clock.now() - LEASE_S - 1.0
    both = {"cpu": limit, "memory": "1000Gi"}, {"cpu": provisional, "memory": "500Gi"}
    await cell.grant(
        limit=both[0],
        provisional=both[1] if provisional else {},
        last_contact_at=micro_text(contact_s),
        lease_expires_at=micro_text(contact_s + LEASE_S),
    )
    rules = PolicyRules(partition_mode=mode)
    spec = PolicyRevisionSpec(policy="default", sequence=1, stage=PromotionStage.ACTIVE, rules=rules)
    assigned = AssignmentSpec(
        workload="web", workload_uid="w", region="us-east", revision="1", template=Template(command=("true",))
    )
    await cell.put(
        PolicyRevision(ObjectMeta(name="default-1"), spec),
        Assignment(ObjectMeta(name="web.us-east.normal", namespace=TENANT), assigned),
    )


async def reconnect(cell: Cell, **spec: Any) -> None:
    """Reconnects the region: the link renews the grant lease, with other limits if given."""
    copy = cell.objects.get(kind_of(GrantCopy), TENANT, "us-east.normal")
    assert isinstance(copy, GrantCopy)
    now = cell.clock.now()
    lease = {"last_contact_at": micro_text(now), "lease_expires_at": micro_text(now + LEASE_S)}
    meta = msgspec.structs.replace(copy.metadata, generation=copy.metadata.generation + 1)
    changed = msgspec.structs.replace(copy.spec, **lease, **spec)
    await cell.put(msgspec.structs.replace(copy, metadata=meta, spec=changed))


async def reclaimable_replica(cell: Cell, name: str = "web-0", **spec: Any) -> Replica:
    return await cell.replica(name, **{"reclaimable": True, **spec})


def run_until_s(cell: Cell, name: str) -> float:
    binding = cell.binding(name)
    assert isinstance(binding, Binding)
    return parse_time(binding.spec.run_until) if binding.spec.run_until else 0.0


async def test_reclaimable_work_in_partition_is_placed_provisionally(cell: Cell) -> None:
    await partition(cell)
    answer = await cell.place(await reclaimable_replica(cell))
    assert answer.result is PlacementOutcome.ACCEPTED
    assert run_until_s(cell, "web-0.1") == pytest.approx(cell.clock.now() + PROVISIONAL_RUN_S)
    cell.check_ledger()


async def test_partition_mode_wait_refuses_with_grant_expired(cell: Cell) -> None:
    await partition(cell, mode=PartitionMode.WAIT)
    answer = await cell.place(await reclaimable_replica(cell))
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, "GrantExpired")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"reclaimable": False}, "is not reclaimable"),
        ({"placement": PlacementRules(residency=("eu",))}, "residency eu"),
        ({"exclusive": Exclusivity()}, "exclusive"),
        ({"assignment": "other.us-east.normal"}, "assignment is not known"),
        ({"purpose": Purpose.RECOVERY, "reclaimable": False}, ""),
    ],
)
async def test_ineligible_work_in_partition_is_refused_with_reason(cell: Cell, spec: dict[str, Any], says: str) -> None:
    from holdfast.model.region import Region, RegionSpec

    await partition(cell)
    await cell.put(Region(ObjectMeta(name="us-east"), RegionSpec(zones=("z1",), residency=("eu",))))
    name = spec.pop("assignment", None)
    replica = await reclaimable_replica(cell, **spec)
    if name is not None:
        changed = msgspec.structs.replace(replica.spec, assignment=name)
        await cell.put(msgspec.structs.replace(replica, spec=changed))
        replica = cell.get_replica()
    answer = await cell.place(replica)
    assert answer.result is PlacementOutcome.REJECTED
    if says:
        assert answer.reason == "NotAllowedWhilePartitioned" and says in answer.message
    else:
        assert answer.reason == "NoGrant"  # recovery work needs a Recovery grant
    assert not cell.every(Binding)


async def test_grant_without_provisional_quota_refuses_in_partition(cell: Cell) -> None:
    await partition(cell, provisional="")
    answer = await cell.place(await reclaimable_replica(cell))
    assert answer.reason == "NotAllowedWhilePartitioned" and "no provisional quota" in answer.message


async def test_provisional_claims_stay_within_provisional_quota(cell: Cell) -> None:
    await partition(cell, provisional="3")
    answers = await cell.reserve(*[cell.item(await reclaimable_replica(cell, f"web-{n}")) for n in range(5)])
    assert [a.result for a in answers].count(PlacementOutcome.ACCEPTED) == 3
    assert {a.reason for a in answers if a.result is PlacementOutcome.REJECTED} == {"NotAllowedWhilePartitioned"}
    cell.check_ledger()


async def test_ordinary_claims_do_not_spend_provisional_quota(cell: Cell) -> None:
    await partition(cell, limit="4", provisional="3")
    await reconnect(cell)
    answers = await cell.reserve(*[cell.item(await cell.replica(f"web-{n}")) for n in range(3)])
    assert [a.result for a in answers].count(PlacementOutcome.ACCEPTED) == 1
    assert {a.reason for a in answers if a.result is PlacementOutcome.REJECTED} == {"QuotaExceeded"}


async def test_provisional_claim_is_renewed_up_to_maximum(cell: Cell) -> None:
    await partition(cell)
    contact_s = cell.clock.now() - LEASE_S - 1.0
    await cell.place(await reclaimable_replica(cell))
    first_s = run_until_s(cell, "web-0.1")
    await cell.clock.advance(PROVISIONAL_RUN_S / 2 - 10)
    await cell.authority.tick()
    assert run_until_s(cell, "web-0.1") == first_s, "it is renewed only in its second half"
    for _ in range(20):
        await cell.clock.advance(200)
        await cell.authority.tick()
        assert run_until_s(cell, "web-0.1") <= contact_s + limits.PROVISIONAL_MAX_S + 0.001
    assert run_until_s(cell, "web-0.1") == pytest.approx(contact_s + limits.PROVISIONAL_MAX_S, abs=1.0)
    await cell.node("n2")
    late = await cell.place(await reclaimable_replica(cell, "web-1"), "n2")
    assert late.reason == "NotAllowedWhilePartitioned" and "partitioned for longer" in late.message


async def test_provisional_claims_are_confirmed_as_far_as_grant_covers(cell: Cell) -> None:
    await partition(cell, limit="8", provisional="3")
    for n in range(3):
        await cell.place(await reclaimable_replica(cell, f"web-{n}"))
    await cell.authority.tick()
    assert all(run_until_s(cell, f"web-{n}.1") for n in range(3))
    await reconnect(cell, limit={"cpu": "5", "memory": "1000Gi"})  # two of them fit beside the provisional quota
    await cell.authority.tick()
    await cell.authority.tick()
    confirmed = [n for n in range(3) if not run_until_s(cell, f"web-{n}.1")]
    assert len(confirmed) == 2
    assert cell.authority.ledger.used[(TENANT, GrantClass.NORMAL)]["cpu"] == 3000
    assert cell.authority.ledger.provisional_use[TENANT]["cpu"] == 1000
    cell.check_ledger()


async def test_new_authority_counts_provisional_usage(cell: Cell) -> None:
    await partition(cell, provisional="1")
    assert (await cell.place(await reclaimable_replica(cell))).result is PlacementOutcome.ACCEPTED
    await cell.lead()
    assert (await cell.place(await reclaimable_replica(cell, "web-1"))).reason == "NotAllowedWhilePartitioned"
    cell.check_ledger()


async def test_provisional_claims_beyond_a_lowered_share_count_against_the_ordinary_limit(cell: Cell) -> None:
    await partition(cell, limit="8", provisional="3")
    for n in range(3):
        await cell.place(await reclaimable_replica(cell, f"web-{n}"))
    await reconnect(cell, limit={"cpu": "3", "memory": "1000Gi"}, provisional={})
    refused = await cell.place(await reclaimable_replica(cell, "web-3"))
    assert refused.reason == "QuotaExceeded" and "used 3" in refused.message
    cell.check_ledger()
