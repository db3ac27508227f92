"""The stability checker on Grants: an alternating limit is found, unless it follows the health of a region."""

from __future__ import annotations

import msgspec
from tests.factories import meta, region, with_new_revision

from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.quota import Grant, GrantSpec
from holdfast.model.region import HealthState
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.churn import FLIPS_MAX, ChurnChecker
from holdfast.store.contract import Txn


class AlternatingGrant:
    """A Grant whose limit alternates, and its region, committed to the checker."""

    def __init__(self) -> None:
        self.checker = ChurnChecker()
        self.disk: dict[str, Object] = {}
        self.region = region("west")
        self.grant = Grant(metadata=meta("west.normal", "acme"), spec=GrantSpec(region="west", limit={"cpu": "1"}))
        assert not self.commit(self.region) and not self.commit(self.grant)

    def commit(self, item: Object) -> list[str]:
        kind = kind_of(type(item))
        key = kind.store_key(item.metadata.namespace, item.metadata.name)
        changed = ObservedChange(key, kind, self.disk.get(key), item)
        self.disk[key] = item
        found = self.checker.check(ObservedCommit("global", 0.0, 0.0, Txn(), (changed,), self.disk))
        return [invariant for invariant, _, _ in found]

    def limit(self, cpu: str) -> list[str]:
        self.grant = with_new_revision(self.grant, spec=msgspec.structs.replace(self.grant.spec, limit={"cpu": cpu}))
        return self.commit(self.grant)

    def health(self, state: HealthState) -> None:
        health = msgspec.structs.replace(self.region.status.health, state=state)
        status = msgspec.structs.replace(self.region.status, health=health)
        self.region = with_new_revision(self.region, status=status)
        assert not self.commit(self.region)


def test_limit_that_alternates_without_cause_is_an_oscillation() -> None:
    grant = AlternatingGrant()
    found = [grant.limit("2" if number % 2 else "1") for number in range(1, FLIPS_MAX + 4)]
    assert found.count(["oscillation"]) == 1


def test_limit_that_follows_the_contact_with_a_region_is_no_oscillation() -> None:
    grant = AlternatingGrant()
    for _ in range(FLIPS_MAX + 2):
        grant.health(HealthState.LOST)
        assert not grant.limit("2")
        grant.health(HealthState.HEALTHY)
        assert not grant.limit("1")
