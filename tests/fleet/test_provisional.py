"""The provisional share of a grant: eligibility, withdrawal, and reclaim by time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, only, present
from tests.factories import assignment, cache_of, meta, region, with_new_revision

from holdfast.authority.grant_leases import GrantLeases
from holdfast.controllers.cache import Cache
from holdfast.fleet import grants
from holdfast.fleet.grant_epochs import PROVISIONAL_RECLAIM_MARGIN_S, reclaim_provisional
from holdfast.link import grant_sync
from holdfast.link.contact_clock import ContactClock
from holdfast.model import limits
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec, GrantCopyStatus
from holdfast.model.meta import Key
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quantity import amounts
from holdfast.model.quota import (
    Grant,
    GrantClass,
    GrantSpec,
    GrantStatus,
    Quota,
    QuotaSpec,
    grant_name,
    max_enforced_limit,
    validate_grant,
)
from holdfast.model.region import Region
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
from holdfast.model.writes import Create, SetStatus, Update
from holdfast.scheduling.eviction import provisional_excess

NOW = 1_800_000_000.0
UNIT = Template(command=("x",), resources={"cpu": "1"})
QUOTA = Key("acme", "quota")


def policy(mode: PartitionMode = PartitionMode.PROVISIONAL) -> PolicyRevision:
    spec = PolicyRevisionSpec(
        policy="default", sequence=1, stage=PromotionStage.ACTIVE, rules=PolicyRules(partition_mode=mode)
    )
    return PolicyRevision(metadata=meta("default-1"), spec=spec)


def world(*items: Any, hard: str = "10", mode: PartitionMode = PartitionMode.PROVISIONAL) -> Cache:
    quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(hard={"cpu": hard}))
    return cache_of(quota, policy(mode), region("a"), region("b"), *items)


def reclaimable_assignment(where: str, replicas: int, **spec: Any) -> Any:
    return assignment("spare", where, replicas=replicas, template=UNIT, **{"reclaimable": True, **spec})


def decided(cache: Cache, now: float = NOW) -> dict[str, Grant]:
    """Decides until nothing changes; every region acknowledges at once."""
    for _ in range(10):
        writes = grants.decide(QUOTA, cache, now).writes
        moved = [w for w in writes if isinstance(w, Create | Update)]
        if not moved:
            break
        for write in moved:
            item: Any = write.object
            status = GrantStatus(
                acknowledged_epoch=item.spec.epoch,
                limit=item.spec.limit,
                used=item.status.used,
                renewed_at=micro_text(now),
            )
            cache.put(with_new_revision(item, metadata=meta(item.metadata.name, "acme"), status=status))
    return {g.spec.region: g for g in cache.list(Grant)}


def test_provisional_share_comes_from_unneeded_quota() -> None:
    found = decided(world(reclaimable_assignment("a", 2)))
    assert (found["a"].spec.limit, found["a"].spec.provisional) == ({"cpu": "5"}, {"cpu": "2"})


def test_partition_mode_wait_has_no_provisional_share() -> None:
    found = decided(world(reclaimable_assignment("a", 2), mode=PartitionMode.WAIT))
    assert (found["a"].spec.limit, found["a"].spec.provisional) == ({"cpu": "3"}, {})


@pytest.mark.parametrize(
    "spec", [{"reclaimable": False}, {"exclusive": Exclusivity()}, {"placement": PlacementRules(residency=("eu",))}]
)
def test_firm_exclusive_and_residency_work_gets_no_provisional_share(spec: dict[str, Any]) -> None:
    assert not decided(world(reclaimable_assignment("a", 2, **spec)))["a"].spec.provisional


def test_provisional_share_is_withdrawn_first() -> None:
    cache = world(reclaimable_assignment("a", 2))
    decided(cache)
    cache.put(assignment("api", "b", replicas=6, template=UNIT))
    found = decided(cache)
    assert found["b"].spec.limit == {"cpu": "7"}
    assert (found["a"].spec.limit, found["a"].spec.provisional) == ({"cpu": "3"}, {})


def test_grants_of_a_deleted_quota_are_withdrawn_with_their_provisional_share() -> None:
    cache = world(reclaimable_assignment("a", 2))
    held = decided(cache)["a"]
    assert held.spec.provisional
    cache.remove(Quota, QUOTA, held.revision + 1)
    updates = [of_type(write, Update).object for write in grants.decide(QUOTA, cache, NOW).writes]
    lowered = next(grant for grant in updates if isinstance(grant, Grant) and grant.spec.region == "a")
    spec = lowered.spec
    assert (spec.limit, spec.provisional, spec.unacknowledged_peak) == ({}, {}, held.spec.limit)
    assert [cause.message for cause in validate_grant(lowered, held)] == []


def test_ordinary_share_covers_the_demand() -> None:
    for hard in range(1, 12):
        for grant in decided(
            world(reclaimable_assignment("a", 2), reclaimable_assignment("b", 1), hard=str(hard))
        ).values():
            ordinary = amounts(grant.spec.limit).get("cpu", 0) - amounts(grant.spec.provisional).get("cpu", 0)
            assert not grant.spec.provisional or ordinary >= {"a": 3000, "b": 2000}[grant.spec.region]


def out_of_contact(name: str, silent_s: float, *, unseen: bool = False) -> Region:
    made = region(name)
    health = msgspec.structs.replace(made.status.health, last_contact_at=micro_text(NOW - silent_s), last_sequence=1)
    report = msgspec.structs.replace(present(made.status.report), sequence=2 if unseen else 1)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, health=health, report=report))


def reclaimable_grant(*, used: str = "2", acknowledged: int = 4) -> Grant:
    return Grant(
        metadata=meta(grant_name("a"), "acme"),
        spec=GrantSpec(region="a", limit={"cpu": "6"}, provisional={"cpu": "3"}, epoch=4),
        status=GrantStatus(acknowledged_epoch=acknowledged, limit={"cpu": "6"}, used={"cpu": used}),
    )


LONG_S = limits.PROVISIONAL_MAX_S + PROVISIONAL_RECLAIM_MARGIN_S + 1.0


def test_provisional_share_is_reclaimed_by_time() -> None:
    back = reclaim_provisional(reclaimable_grant(), out_of_contact("a", LONG_S), NOW)
    assert back is not None
    assert (back.spec.limit, back.spec.provisional, back.spec.epoch) == ({"cpu": "3"}, {}, 5)
    assert max_enforced_limit(back) == {"cpu": 3000}
    late = msgspec.structs.replace(
        back, status=reclaimable_grant().status
    )  # the region still reports its previous limit
    assert max_enforced_limit(late) == {"cpu": 3000}


@pytest.mark.parametrize(
    ("grant", "where"),
    [
        (reclaimable_grant(), out_of_contact("a", LONG_S - 2)),
        (reclaimable_grant(), out_of_contact("a", LONG_S, unseen=True)),
        (reclaimable_grant(acknowledged=3), out_of_contact("a", LONG_S)),
        (reclaimable_grant(), None),
    ],
)
def test_provisional_share_is_not_reclaimed_on_weak_evidence(grant: Grant, where: Region | None) -> None:
    assert reclaim_provisional(grant, where, NOW) is None


def test_used_provisional_share_is_not_reclaimed() -> None:
    back = reclaim_provisional(reclaimable_grant(used="5"), out_of_contact("a", LONG_S), NOW)
    assert back is not None and back.spec.limit == {"cpu": "5"}


def test_share_of_a_resource_that_the_region_uses_up_is_not_reclaimed() -> None:
    """Of memory the region reports no limit yet, so that all of it may be in use."""
    grant = reclaimable_grant(used="6")
    spec = msgspec.structs.replace(
        grant.spec, limit={"cpu": "6", "memory": "2"}, provisional={"cpu": "3", "memory": "1"}
    )
    back = reclaim_provisional(msgspec.structs.replace(grant, spec=spec), out_of_contact("a", LONG_S), NOW)
    assert back is not None
    assert amounts(back.spec.limit) == amounts({"cpu": "6", "memory": "2"}) and not any(
        amounts(back.spec.reclaimed).values()
    )


def test_reclaimed_share_is_committed_before_it_is_granted_again() -> None:
    cache = world(reclaimable_grant(), assignment("api", "b", replicas=9, template=UNIT), hard="6")
    cache.put(with_new_revision(out_of_contact("a", LONG_S)))
    write = only(grants.decide(QUOTA, cache, NOW).writes, Update)
    assert of_type(write.object, Grant).spec.region == "a"


def copy(*, last_contact_s: float, used: str = "0", limit: str = "6", generation: int = 1) -> GrantCopy:
    return GrantCopy(
        metadata=meta("normal", "acme", generation=generation),
        spec=GrantCopySpec(
            limit={"cpu": limit},
            provisional={"cpu": "3"},
            epoch=4,
            last_contact_at=micro_text(last_contact_s),
            lease_expires_at=micro_text(last_contact_s + limits.GRANT_LEASE_S),
        ),
        status=GrantCopyStatus(used={"cpu": used}, observed_generation=1),
    )


def test_grant_lease_is_renewed_by_responses_only() -> None:
    key, grants_there = Key("acme", "normal"), cache_of(reclaimable_grant())
    here = cache_of(copy(last_contact_s=NOW))
    for _ in range(3):
        assert not list(grant_sync.copy_writes(key, grants_there, here, "a", NOW))
    (write,) = grant_sync.copy_writes(key, grants_there, here, "a", NOW + 100)
    assert isinstance(write, Update) and isinstance(write.object, GrantCopy)
    assert parse_time(write.object.spec.lease_expires_at) == NOW + 100 + reclaimable_grant().spec.lease_seconds


@pytest.mark.parametrize("stepped_s", [0.5, 5.0, 30.0, 50.0, 59.0, 61.0, 102.5, 500.0])
@pytest.mark.parametrize("at_s", [10, 50, 61, 100, 110, 119])
@pytest.mark.parametrize("restarts", [False, True])
def test_grant_lease_is_renewed_in_time_after_the_clock_was_stepped_back(
    stepped_s: float, at_s: int, restarts: bool
) -> None:
    """A report is answered every second. The authority measures the age of the lease on its monotonic clock."""
    key, there, here, leases = Key("acme", "normal"), cache_of(reclaimable_grant()), Cache(), GrantLeases()
    lease_s = reclaimable_grant().spec.lease_seconds
    contacts, ages, writes = ContactClock(), list[float](), 0
    for second in range(int(5 * lease_s)):
        wall_s, mono_s = NOW + second + (stepped_s if second < at_s else 0.0), float(second)
        if restarts and second == at_s:
            contacts = ContactClock()
        contacts.observe(wall_s, mono_s)
        steady_since_s = contacts.steady_since_s
        for write in grant_sync.copy_writes(key, there, here, "a", wall_s, steady_since_s=steady_since_s):
            assert isinstance(write, Create | Update)
            here.put(with_new_revision(of_type(write.object, GrantCopy)))
            writes += 1
        (held,) = here.list(GrantCopy)
        leases.observe([held], wall_s, mono_s)
        ages.append(leases.age_s(held, wall_s, mono_s))
    assert max(ages) < 0.6 * lease_s and writes <= 15


def test_grant_lease_without_contact_since_the_start_is_kept() -> None:
    key, here = Key("acme", "normal"), cache_of(copy(last_contact_s=NOW, limit="2"))
    (write,) = grant_sync.copy_writes(key, cache_of(reclaimable_grant()), here, "a", 0.0)
    assert isinstance(write, Update) and isinstance(write.object, GrantCopy)
    assert write.object.spec.limit == {"cpu": "6"} and parse_time(write.object.spec.last_contact_at) == NOW


def test_only_uncovered_provisional_work_is_withdrawn() -> None:
    assert provisional_excess.provisional_excess([copy(last_contact_s=NOW, used="5")], NOW) == {"cpu": 2000}
    assert not provisional_excess.provisional_excess([copy(last_contact_s=NOW, used="3")], NOW)
    assert not provisional_excess.provisional_excess([copy(last_contact_s=NOW - 1000, used="5")], NOW), (
        "partitioned: expiry ends it"
    )
    assert not provisional_excess.provisional_excess([copy(last_contact_s=NOW, used="5", generation=2)], NOW), (
        "counted for another limit"
    )


def test_quota_status_sums_all_shares() -> None:
    cache = world(reclaimable_assignment("a", 2))
    decided(cache)
    (status,) = [w for w in grants.decide(QUOTA, cache, NOW).writes if isinstance(w, SetStatus)]
    assert status.blocks["granted"] == {"cpu": "5"}
    assert {r.grant_class for r in status.blocks["regions"]} == {GrantClass.NORMAL}
