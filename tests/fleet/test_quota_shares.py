"""Division of a quota: demand first, then protected quota; each class is a separate pool."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, meta, region, with_new_revision

from holdfast.fleet import grants
from holdfast.fleet.protected_shares import protected_shares
from holdfast.link import grant_sync
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose, assignment_name
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.quantity import amounts
from holdfast.model.quota import Grant, GrantClass, GrantStatus, Quota, QuotaSpec
from holdfast.model.template import Template
from holdfast.model.times import micro_text
from holdfast.model.workload import Rollout
from holdfast.model.writes import Create, Delete, SetStatus, Update

NOW = 1_800_000_000.0
UNIT = Template(command=("x",), resources={"cpu": "1"})
STILL = Rollout(max_surge=0)


class Tenant:
    """One tenant's quota in two regions that acknowledge every grant at once."""

    def __init__(self, **spec: Any) -> None:
        quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(hard={"cpu": "12"}, **spec))
        self.cache = cache_of(quota, region("a"), region("b"))
        self.now = NOW
        self.status: dict[str, Any] = {}
        self.conditions: dict[str, str] = {}

    def need(self, where: str, replicas: int, purpose: Purpose = Purpose.NORMAL) -> None:
        item = assignment("api", where, replicas=replicas, template=UNIT, purpose=purpose, rollout=STILL)
        named = msgspec.structs.replace(item.metadata, name=assignment_name("api", where, purpose))
        self.cache.put(msgspec.structs.replace(item, metadata=named))

    def settle(self, used: dict[tuple[str, GrantClass], int] | None = None) -> None:
        for _ in range(4):
            for write in grants.decide(Key("acme", "quota"), self.cache, self.now).writes:
                match write:
                    case Create():
                        self.cache.put(
                            with_new_revision(write.object, metadata=meta(write.object.metadata.name, "acme"))
                        )
                    case Update():
                        self.cache.put(with_new_revision(write.object))
                    case SetStatus():
                        self.status = dict(write.blocks)
                        self.conditions = {c.type: c.status for c in write.conditions}
            for grant in self.cache.list(Grant):
                spent = (used or {}).get((grant.spec.region, grant.spec.grant_class), 0)
                status = GrantStatus(
                    acknowledged_epoch=grant.spec.epoch,
                    limit=grant.spec.limit,
                    renewed_at=micro_text(self.now),
                    used={"cpu": str(spent)} if spent else {},
                )
                self.cache.put(with_new_revision(grant, status=status))

    def granted(self, cls: GrantClass = GrantClass.NORMAL) -> dict[str, int]:
        found = [g for g in self.cache.list(Grant) if g.spec.grant_class is cls]
        return {g.spec.region: amounts(g.spec.limit).get("cpu", 0) // 1000 for g in found}

    def emergency(self, cpu: int, seconds: float) -> None:
        spec = OverrideSpec(
            kind=OverrideKind.EMERGENCY_QUOTA,
            scope=OverrideScope(tenant="acme"),
            reason="a test",
            requester="ann",
            quota={"cpu": str(cpu)},
        )
        status = OverrideStatus(phase="Active", expires_at=micro_text(self.now + seconds))
        self.cache.put(Override(metadata=meta("more"), spec=spec, status=status))


def test_protected_quota_stays_in_regions_without_other_demand() -> None:
    tenant = Tenant(protected={"cpu": "4"})
    tenant.need("a", 5)
    tenant.settle()
    assert tenant.granted() == {"a": 5, "b": 2}, "b could start two replicas while partitioned"


def test_unneeded_protected_quota_is_withdrawn_first() -> None:
    tenant = Tenant(protected={"cpu": "4"})
    tenant.settle()
    assert tenant.granted() == {"a": 2, "b": 2}
    tenant.need("a", 12)
    tenant.settle()
    assert tenant.granted() == {"a": 12, "b": 0}
    tenant.need("a", 3)
    tenant.settle()
    assert tenant.granted()["b"] == 2, "it is granted again when there is room"


def protected(tenant: Tenant) -> dict[str, int]:
    """Protected share of each region, in CPUs."""
    return {g.spec.region: amounts(g.spec.protected).get("cpu", 0) // 1000 for g in tenant.cache.list(Grant)}


def test_protected_shares_follow_regional_demand() -> None:
    tenant = Tenant(protected={"cpu": "6"})
    tenant.settle()
    assert protected(tenant) == {"a": 3, "b": 3}
    tenant.need("a", 4)
    tenant.settle()
    assert protected(tenant) == {"a": 5, "b": 1}, "demand plus an even share of the rest"
    tenant.need("b", 8)
    tenant.settle()
    assert protected(tenant) == {"a": 2, "b": 4}, "demand exceeds the protected quota: proportional shares"


def test_protected_share_changes_without_an_epoch() -> None:
    tenant = Tenant(protected={"cpu": "6"})
    tenant.need("a", 6)
    tenant.settle()
    (before,) = [g for g in tenant.cache.list(Grant) if g.spec.region == "a"]
    quota = tenant.cache.get(Quota, "quota", "acme")
    assert quota is not None
    tenant.cache.put(with_new_revision(quota, spec=msgspec.structs.replace(quota.spec, protected={"cpu": "2"})))
    tenant.settle()
    (after,) = [g for g in tenant.cache.list(Grant) if g.spec.region == "a"]
    assert after.spec.protected == {"cpu": "2"} and after.spec.epoch == before.spec.epoch
    key, here = Key("acme", "normal"), cache_of()
    (made,) = grant_sync.copy_writes(key, cache_of(before), here, "a", NOW)
    assert (
        isinstance(made, Create) and isinstance(made.object, GrantCopy) and made.object.spec.protected == {"cpu": "6"}
    )
    here.put(with_new_revision(made.object, metadata=meta("normal", "acme")))
    (lowered,) = grant_sync.copy_writes(key, cache_of(after), here, "a", NOW)
    assert isinstance(lowered, Update) and isinstance(lowered.object, GrantCopy)
    assert lowered.object.spec.protected == {"cpu": "2"}
    assert lowered.object.spec.limit == made.object.spec.limit
    (closed,) = grant_sync.copy_writes(key, cache_of(), here, "a", NOW)
    assert isinstance(closed, Update) and not of_type(closed.object, GrantCopy).spec.protected


def test_unused_rollout_surge_does_not_keep_quota_from_replicas_of_another_region() -> None:
    tenant = Tenant()
    for number in range(6):
        item = assignment(f"api{number}", "a", replicas=1, template=UNIT, rollout=Rollout(max_surge=1))
        named = msgspec.structs.replace(item.metadata, name=assignment_name(f"api{number}", "a", Purpose.NORMAL))
        tenant.cache.put(msgspec.structs.replace(item, metadata=named))
    tenant.settle({("a", GrantClass.NORMAL): 6})
    tenant.need("b", 1)
    tenant.settle({("a", GrantClass.NORMAL): 6})
    given = {g.spec.region: amounts(g.spec.limit).get("cpu", 0) for g in tenant.cache.list(Grant)}
    assert given.get("b", 0) >= 1000, "6 of 12 are used, and no rollout runs"


@pytest.mark.parametrize("whole", [0, 1, 5, 7, 12])
@pytest.mark.parametrize("need", [{}, {"a": 1}, {"a": 3, "b": 4}, {"a": 9, "b": 1, "c": 5}])
def test_protected_shares_never_exceed_the_protected_quota(whole: int, need: dict[str, int]) -> None:
    wanted = {region: {"cpu": amount} for region, amount in need.items()}
    found = protected_shares({"cpu": whole}, wanted, ["a", "b", "c"])
    told = {region: part.get("cpu", 0) for region, part in found.items()}
    assert sum(told.values()) <= whole
    if sum(need.values()) <= whole:
        assert all(told[region] >= amount for region, amount in need.items())
    assert protected_shares({"cpu": whole}, wanted, []) == {}


def test_excess_grant_shrinks_only_by_shortfall_of_another_region() -> None:
    tenant = Tenant()
    tenant.need("a", 10)
    tenant.settle()
    tenant.need("a", 4)
    tenant.settle()
    assert tenant.granted()["a"] == 10, "no other region needs it, so it stays and nothing is written"
    tenant.need("b", 5)
    tenant.settle()
    assert tenant.granted() == {"a": 7, "b": 5}
    tenant.need("b", 12)
    tenant.settle()
    assert tenant.granted() == {"a": 4, "b": 8}, "never below the region's own demand"


@pytest.mark.parametrize(("cap", "expected"), [("3", {"a": 3, "b": 6}), ("20", {"a": 6, "b": 6})])
def test_region_cap_limits_the_grant(cap: str, expected: dict[str, int]) -> None:
    tenant = Tenant(region_caps={"a": {"cpu": cap}})
    tenant.need("a", 6)
    tenant.need("b", 6)
    tenant.settle()
    assert tenant.granted() == expected


def test_grant_classes_are_separate_pools_in_the_quota_status() -> None:
    tenant = Tenant(recovery_allowance={"cpu": "4"})
    tenant.need("a", 14)
    tenant.need("b", 6, Purpose.RECOVERY)
    tenant.emergency(3, seconds=600)
    tenant.settle({("a", GrantClass.NORMAL): 13, ("b", GrantClass.RECOVERY): 4})
    assert tenant.granted() == {"a": 12}
    assert tenant.granted(GrantClass.RECOVERY) == {"b": 4}, "at most the allowance"
    assert tenant.granted(GrantClass.EMERGENCY) == {"a": 2}, "at most the shortfall"
    tenant.settle({("a", GrantClass.NORMAL): 13, ("b", GrantClass.RECOVERY): 3})
    rows = {(r.region, r.grant_class): (r.granted, r.used) for r in tenant.status["regions"]}
    assert rows["a", GrantClass.NORMAL] == ({"cpu": "12"}, {"cpu": "13"})
    assert rows["b", GrantClass.RECOVERY] == ({"cpu": "4"}, {"cpu": "3"})
    assert rows["a", GrantClass.EMERGENCY][0] == {"cpu": "2"}
    assert tenant.conditions["OverQuota"] == "False"


def test_usage_after_emergency_quota_ends_is_over_quota() -> None:
    tenant = Tenant()
    tenant.need("a", 14)
    tenant.emergency(3, seconds=60)
    tenant.settle({("a", GrantClass.NORMAL): 14})
    assert tenant.granted(GrantClass.EMERGENCY) == {"a": 2} and tenant.conditions["OverQuota"] == "False"
    tenant.now += 61
    tenant.settle({("a", GrantClass.NORMAL): 14})
    assert tenant.granted(GrantClass.EMERGENCY) == {"a": 0}
    assert tenant.conditions["OverQuota"] == "True"


def test_unneeded_recovery_quota_is_returned_at_once() -> None:
    tenant = Tenant(recovery_allowance={"cpu": "4"})
    tenant.need("b", 4, Purpose.RECOVERY)
    tenant.settle()
    tenant.need("b", 0, Purpose.RECOVERY)
    tenant.settle()
    assert tenant.granted(GrantClass.RECOVERY) == {"b": 0}


def test_rollout_surge_of_recovery_replicas_uses_unneeded_allowance() -> None:
    tenant = Tenant(recovery_allowance={"cpu": "6"})
    tenant.need("a", 4, Purpose.RECOVERY)
    tenant.settle()
    assert tenant.granted(GrantClass.RECOVERY) == {"a": 4}
    name = assignment_name("api", "a", Purpose.RECOVERY)
    stored = present(tenant.cache.get(Assignment, name, "acme"))
    spec = msgspec.structs.replace(stored.spec, rollout=Rollout(max_surge=1), revision="next")
    tenant.cache.put(with_new_revision(stored, spec=spec, status=AssignmentStatus(replicas=4, bound=4, serving=4)))
    tenant.settle()
    assert tenant.granted(GrantClass.RECOVERY) == {"a": 5}
    tenant.need("b", 2, Purpose.RECOVERY)
    tenant.settle()
    assert tenant.granted(GrantClass.RECOVERY) == {"a": 4, "b": 2}, "recovery demand comes first"
    turned = AssignmentStatus(revision="next", replicas=4, bound=4, serving=4, updated=4, updated_serving=4)
    tenant.need("b", 0, Purpose.RECOVERY)
    tenant.cache.put(with_new_revision(present(tenant.cache.get(Assignment, name, "acme")), status=turned))
    tenant.settle()
    assert tenant.granted(GrantClass.RECOVERY) == {"a": 4, "b": 0}


def test_grant_of_deleted_quota_is_deleted_only_when_its_region_enforces_nothing() -> None:
    tenant = Tenant()
    tenant.need("a", 2)
    tenant.settle()
    tenant.cache.remove(Quota, Key("acme", "quota"), 10**6)
    [lowered] = grants.decide(Key("acme", "quota"), tenant.cache, NOW).writes
    assert isinstance(lowered, Update) and isinstance(lowered.object, Grant)
    assert not lowered.object.spec.limit, "first the limit is withdrawn"
    tenant.cache.put(with_new_revision(lowered.object))
    assert not grants.decide(Key("acme", "quota"), tenant.cache, NOW).writes, "the region may still enforce the limit"
    status = GrantStatus(acknowledged_epoch=lowered.object.spec.epoch)
    tenant.cache.put(with_new_revision(lowered.object, status=status))
    [deleted] = grants.decide(Key("acme", "quota"), tenant.cache, NOW).writes
    assert isinstance(deleted, Delete)
