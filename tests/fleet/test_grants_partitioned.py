"""S3 under partitions: grants and acknowledgements arrive late, in any order, or never; processes crash, and regions
are restored from backups.

All classes take part: normal, recovery and emergency quota. The grant controller, both directions of grant-sync and the
authority's limit are real; the network is random. Planted bugs show that the search detects violations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.expected import present
from tests.factories import assignment, meta, region, with_new_revision

from holdfast.authority import restore_records
from holdfast.controllers.cache import Cache
from holdfast.fleet import grants
from holdfast.fleet.tenant_demand import is_lease_expired
from holdfast.link import grant_sync
from holdfast.model import codec
from holdfast.model.assignment import Purpose, assignment_name
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import spending_limit
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.quantity import amounts, amounts_text
from holdfast.model.quota import Grant, GrantClass, GrantSpec, Quota, QuotaSpec, grant_name, max_enforced_limit
from holdfast.model.region import HealthState, Region, UnknownGrant
from holdfast.model.template import Template
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Create, SetStatus, Update
from holdfast.store.contract import Put

REGIONS = ("a", "b", "c")
UNIT = Template(command=("x",), resources={"cpu": "1"})
HARD = 10
ALLOWANCE = 4
EMERGENCY = 3
SPENT = (GrantClass.NORMAL, GrantClass.RECOVERY)


class PartitionedQuota:
    """`seen` is each region's last received state of its grants; it may be old."""

    def __init__(self) -> None:
        self.home = Cache()
        self.now = 1_800_000_000.0
        quota = Quota(
            metadata=meta("quota", "acme"),
            spec=QuotaSpec(hard={"cpu": str(HARD)}, recovery_allowance={"cpu": str(ALLOWANCE)}),
        )
        for item in (quota, *(region(name) for name in REGIONS)):
            self.home.put(item)
        self.here = {name: Cache() for name in REGIONS}
        self.seen = {name: Cache() for name in REGIONS}
        self.used: dict[tuple[str, GrantClass], int] = {(r, c): 0 for r in REGIONS for c in SPENT}
        self.skew_s: dict[str, float] = dict.fromkeys(REGIONS, 0.0)
        self.last_contact_s: dict[str, float] = dict.fromkeys(REGIONS, 0.0)
        self.on_the_way: list[tuple[str, SetStatus]] = []
        self.most: dict[GrantClass, int] = dict.fromkeys(SPENT, 0)
        self._backups: dict[str, list[Put]] = {name: [] for name in REGIONS}

    def set_demand(self, where: str, replicas: int, purpose: Purpose) -> None:
        item = assignment("api", where, replicas=replicas, template=UNIT, purpose=purpose)
        named = msgspec.structs.replace(item.metadata, name=assignment_name("api", where, purpose))
        self.home.put(msgspec.structs.replace(item, metadata=named))

    def decide(self) -> None:
        for write in grants.decide(Key("acme", "quota"), self.home, self.now).writes:
            if isinstance(write, Create):
                self.home.put(with_new_revision(write.object, metadata=meta(write.object.metadata.name, "acme")))
            elif isinstance(write, Update):
                item: Any = write.object
                newer = msgspec.structs.replace(item.metadata, generation=item.metadata.generation + 1)
                self.home.put(with_new_revision(msgspec.structs.replace(item, metadata=newer)))

    def clock(self, where: str) -> float:
        return self.now + self.skew_s[where]

    def crash(self, where: str) -> None:
        """The region's process restarts: its cache of grants is lost, its store is not."""
        self.seen[where] = Cache()

    def back_up_region(self, where: str) -> None:
        """Backs up the copies of the region's grants."""
        self._backups[where] = [
            Put(kind_of(item).store_key("acme", item.metadata.name), codec.encode(item))
            for item in self.here[where].list(GrantCopy)
        ]

    def restore_region(self, where: str) -> None:
        """The region is restored from its last backup. Its work stops, and its cache of grants is lost."""
        self.crash(where)
        self.here[where] = Cache()
        for put in restore_records.restored_entries(where, self._backups[where], self.now, "uid", 1)[0]:
            if put.key.startswith("/grantcopies/"):
                self.here[where].put(codec.decode(kind_of(GrantCopy), put.value, 1))
        for cls in SPENT:
            self.used[where, cls] = 0

    def fetch(self, where: str) -> None:
        """The region's watch catches up; its grant lease counts from now."""
        self.last_contact_s[where] = self.clock(where)
        for item in self.home.list(Grant):
            if item.spec.region == where:
                self.seen[where].put(item)

    def enforce(self, where: str) -> None:
        for cls in GrantClass:
            key = Key("acme", grant_sync.grant_copy_name(cls))
            for write in grant_sync.copy_writes(
                key, self.seen[where], self.here[where], where, self.last_contact_s[where]
            ):
                item: Any = write.object  # type: ignore[union-attr]
                old = self.here[where].get(GrantCopy, key.name, "acme")
                generation = 1 if old is None else old.metadata.generation + (old.spec != item.spec)
                stored = meta(key.name, "acme", generation=generation)
                self.here[where].put(msgspec.structs.replace(item, metadata=stored))

    def spend(self, where: str, wanted: int) -> None:
        """The authority: usage changes within the limit and is then reported per class."""
        copies = self.here[where].list(GrantCopy, "acme")
        for cls in SPENT:
            limit = spending_limit(copies, cls, self.clock(where))
            before = self.used[where, cls]
            self.used[where, cls] = min(wanted, max(before, limit.spendable.get("cpu", 0) // 1000))
            self.most[cls] = max(self.most[cls], self.used[where, cls])
        normal = any(copy.spec.grant_class is GrantClass.NORMAL for copy in copies)
        for copy in copies:
            alone = copy.spec.grant_class is GrantClass.EMERGENCY and not normal
            told_as = GrantClass.NORMAL if alone else copy.spec.grant_class  # usage is counted once, on the normal copy
            count = self.used.get((where, told_as), 0)
            used = {"cpu": str(count)} if count else {}
            status = msgspec.structs.replace(copy.status, used=used, observed_generation=copy.metadata.generation)
            self.here[where].put(with_new_revision(copy, status=status))

    def declare_emergency(self, number: int) -> None:
        """Grants emergency quota for a while; an earlier one ends."""
        spec = OverrideSpec(
            kind=OverrideKind.EMERGENCY_QUOTA,
            scope=OverrideScope(tenant="acme"),
            reason="a test",
            requester="ann",
            quota={"cpu": str(EMERGENCY)},
        )
        status = OverrideStatus(phase="Active", expires_at=micro_text(self.now + number * 20))
        self.home.put(Override(metadata=meta("more"), spec=spec, status=status))

    def send_acknowledgement(self, where: str) -> None:
        """Sends an acknowledgement, which may arrive later."""
        for cls in GrantClass:
            key = Key("acme", grant_sync.grant_copy_name(cls))
            if grant_sync_ready(self.seen[where], where, cls):
                told = grant_sync.acknowledgement(key, self.seen[where], self.here[where], where, self.clock(where))
                self.on_the_way += [(grant_name(where, cls), write) for write in told if isinstance(write, SetStatus)]

    def deliver(self, number: int) -> None:
        """Delivers one acknowledgement in flight, in any order. The gate refuses older generations."""
        if not self.on_the_way:
            return
        name, write = self.on_the_way.pop(number % len(self.on_the_way))
        grant = self.home.get(Grant, name, "acme")
        if grant is None or write.observed_generation < grant.status.observed_generation:
            return
        status = msgspec.structs.replace(
            grant.status,
            acknowledged_epoch=write.blocks["acknowledgedEpoch"],
            limit=write.blocks["limit"],
            used=write.blocks["used"],
            renewed_at=write.blocks["renewedAt"],
            observed_generation=write.observed_generation,
        )
        self.home.put(with_new_revision(grant, status=status))

    def acknowledge(self, where: str) -> None:
        before = len(self.on_the_way)
        self.send_acknowledgement(where)
        for _ in range(len(self.on_the_way) - before):
            self.deliver(before)

    def check(self) -> None:
        totals = {GrantClass.NORMAL: HARD, GrantClass.RECOVERY: ALLOWANCE, GrantClass.EMERGENCY: EMERGENCY}
        held = {(w, c): self._limit(w, c) for w in REGIONS for c in GrantClass}
        for cls, total in totals.items():
            enforced = sum(held[where, cls] for where in REGIONS)
            assert enforced <= total, f"regions may enforce {enforced} of {total} of class {cls.value}"
        for where in REGIONS:
            ordinary = held[where, GrantClass.NORMAL] + max(held[where, GrantClass.EMERGENCY], EMERGENCY)
            assert self.used[where, GrantClass.NORMAL] <= ordinary, f"{where} uses more than it was ever granted"
            recovery = self.used[where, GrantClass.RECOVERY], held[where, GrantClass.RECOVERY]
            assert recovery[0] <= recovery[1], f"{where} uses {recovery[0]} of {recovery[1]} for recovery"
        everything = sum(self.used[where, GrantClass.NORMAL] for where in REGIONS)
        assert everything <= HARD + EMERGENCY, f"{everything} in use of {HARD} and {EMERGENCY}"

    def _limit(self, where: str, cls: GrantClass) -> int:
        copy = self.here[where].get(GrantCopy, grant_sync.grant_copy_name(cls), "acme")
        return amounts(copy.spec.limit).get("cpu", 0) // 1000 if copy is not None else 0


def grant_sync_ready(seen: Cache, where: str, cls: GrantClass) -> bool:
    return seen.get(Grant, grant_name(where, cls), "acme") is not None


ACTS = (
    "want",
    "want",
    "recover",
    "recover",
    "declare",
    "incident",
    "decide",
    "fetch",
    "enforce",
    "spend",
    "ack",
    "say",
    "arrive",
    "sync",
    "quiet",
    "shift",
    "time",
    "skew",
    "crash",
    "back up",
    "restore",
    "rejoin",
)
steps = st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(REGIONS), st.integers(0, 12)), max_size=60)


def run_events(events: list[tuple[str, str, int]]) -> PartitionedQuota:
    world = PartitionedQuota()
    for act, where, number in events:
        other = REGIONS[(REGIONS.index(where) + 1) % len(REGIONS)]
        match act:
            case "want":
                world.set_demand(where, number, Purpose.NORMAL)
            case "recover":
                world.set_demand(where, number, Purpose.RECOVERY)
            case "decide":
                world.decide()
            case "fetch":
                world.fetch(where)
            case "enforce":
                world.enforce(where)
            case "spend":
                world.spend(where, number)
            case "ack":
                world.acknowledge(where)
            case "say":
                world.send_acknowledgement(where)
            case "arrive":
                world.deliver(number)
            case "sync":
                world.decide()
                world.fetch(where)
                world.enforce(where)
                world.spend(where, number)
                world.acknowledge(where)
            case "declare":
                world.declare_emergency(number)
            case "incident":  # recovery and emergency quota go to two regions in turn, one of them out of contact
                world.declare_emergency(number)
                for there in (where, other):
                    world.set_demand(there, 12, Purpose.RECOVERY)
                    world.set_demand(there, 12, Purpose.NORMAL)
                    for _ in range(2):
                        world.decide()
                    world.fetch(there)
                    world.enforce(there)
                    world.spend(there, number)
                    world.set_demand(there, 0, Purpose.RECOVERY)
                    world.set_demand(there, 0, Purpose.NORMAL)
            case "quiet":  # it receives a limit and is partitioned before it acknowledges
                world.set_demand(where, number, Purpose.NORMAL)
                world.decide()
                world.fetch(where)
                world.enforce(where)
                world.spend(where, number)
            case "shift":  # the demand moves to another region
                world.set_demand(where, 0, Purpose.NORMAL)
                world.set_demand(other, number, Purpose.NORMAL)
                for _ in range(2):
                    world.decide()
                world.fetch(other)
                world.enforce(other)
                world.spend(other, number)
            case "time":
                world.now += number * 20
            case "skew":
                world.skew_s[where] = number - 6.0
            case "crash":
                world.crash(where)
            case "back up":
                world.back_up_region(where)
            case "restore":
                world.restore_region(where)
            case "rejoin":  # it acknowledges what it enforces after a restore, and enforces its grant again
                world.back_up_region(where)
                world.restore_region(where)
                world.fetch(where)
                world.spend(where, 0)
                world.acknowledge(where)
                world.enforce(where)
        world.check()
    return world


@settings(max_examples=300, deadline=None)
@given(steps)
def test_enforced_limits_never_exceed_the_quota(events: list[tuple[str, str, int]]) -> None:
    run_events(events)


@pytest.mark.parametrize(
    "events",
    [
        [("quiet", "a", 5), ("incident", "b", 5), ("sync", "b", 5), ("quiet", "b", 4)],
        [("quiet", "a", 5), ("incident", "b", 6), ("sync", "b", 6), ("quiet", "c", 3)],
        [("want", "c", 1), ("quiet", "a", 7), ("incident", "b", 2), ("sync", "b", 2), ("quiet", "c", 5)],
    ],
    ids=["granted again as normal", "granted to two regions", "reported by no region"],
)
def test_emergency_usage_counts_as_emergency_after_its_limit_ended(events: list[tuple[str, str, int]]) -> None:
    run_events(events)


def test_region_that_enforces_its_limit_again_after_a_restore_keeps_it_counted() -> None:
    """Region a acknowledges that it enforces nothing, and then enforces the limit of the same epoch again."""
    run_events([("want", "a", 10), ("sync", "a", 9), ("sync", "a", 9), ("rejoin", "a", 0), ("shift", "a", 10)])


@pytest.mark.slow
def test_search_detects_dropped_unacknowledged_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a region acknowledges an epoch, it may enforce the old limit. Without the peak, quota is granted twice."""

    def without_peak(stored: Grant, limit: Mapping[str, int]) -> GrantSpec:
        text = dict(amounts_text(limit))
        return msgspec.structs.replace(stored.spec, limit=text, unacknowledged_peak={}, epoch=stored.spec.epoch + 1)

    monkeypatch.setattr(grants, "next_epoch", without_peak)

    @settings(max_examples=600, deadline=None, derandomize=True, database=None, phases=(Phase.generate,))
    @given(steps)
    def search(events: list[tuple[str, str, int]]) -> None:
        run_events(events)

    with pytest.raises(AssertionError, match="regions may enforce"):
        search()


@pytest.mark.slow
@pytest.mark.parametrize("cls", [GrantClass.RECOVERY, GrantClass.EMERGENCY])
def test_search_detects_a_grant_class_granted_twice(monkeypatch: pytest.MonkeyPatch, cls: GrantClass) -> None:
    """Planted bug: enforced limits of that class are not counted."""
    honest = max_enforced_limit
    monkeypatch.setattr(grants, "max_enforced_limit", lambda g: {} if g.spec.grant_class is cls else honest(g))

    @settings(max_examples=600, deadline=None, derandomize=True, database=None, phases=(Phase.generate,))
    @given(steps)
    def search(events: list[tuple[str, str, int]]) -> None:
        run_events(events)

    with pytest.raises(AssertionError, match=f"of class {cls.value}"):
        search()


@pytest.mark.slow
def test_search_detects_recovery_quota_spent_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(wanted: Mapping[str, dict[str, int]], current: object, used: object) -> dict[str, dict[str, int]]:
        return dict(wanted)

    monkeypatch.setattr(grant_sync, "_not_below_use", careless)

    @settings(max_examples=600, deadline=None, derandomize=True, database=None, phases=(Phase.generate,))
    @given(steps)
    def search(events: list[tuple[str, str, int]]) -> None:
        run_events(events)

    with pytest.raises(AssertionError, match="for recovery"):
        search()


def test_incident_uses_every_grant_class() -> None:
    world = run_events([("want", "a", 12), ("incident", "a", 6), ("sync", "b", 12)])
    assert world.most[GrantClass.RECOVERY] > 0 and world.most[GrantClass.NORMAL] > 0
    copies = world.here["a"].list(GrantCopy, "acme")
    assert {c.spec.grant_class for c in copies} == set(GrantClass)


def test_unacknowledged_limit_counts_after_grant_is_lowered() -> None:
    """The region may enforce the higher limit although it did not acknowledge it."""
    world = PartitionedQuota()
    world.set_demand("a", 8, Purpose.NORMAL)
    world.decide()
    world.fetch("a")
    world.enforce("a")  # enforced, and the acknowledgement is lost
    world.set_demand("a", 0, Purpose.NORMAL)
    world.set_demand("b", 9, Purpose.NORMAL)
    for _ in range(3):
        world.decide()
        world.fetch("b")
        world.enforce("b")
        world.check()
    assert amounts(present(world.here["b"].get(GrantCopy, "normal", "acme")).spec.limit).get("cpu", 0) <= 2000


def record_report(world: PartitionedQuota, name: str) -> None:
    """Records a report of this region at the global cell's current time."""
    known = region(name)
    health = msgspec.structs.replace(known.status.health, last_contact_at=micro_text(world.now))
    world.home.put(with_new_revision(known, status=msgspec.structs.replace(known.status, health=health)))


def spend_all(world: PartitionedQuota, name: str, cpus: int) -> None:
    """Requests, grants, spends and acknowledges in one step."""
    world.set_demand(name, cpus, Purpose.NORMAL)
    world.decide()
    world.fetch(name)
    world.enforce(name)
    world.spend(name, cpus)
    world.acknowledge(name)


def test_expired_grant_lease_still_counts_in_full() -> None:
    world = PartitionedQuota()
    spend_all(world, "a", 8)
    record_report(world, "a")
    world.now += 1000
    world.set_demand("b", 8, Purpose.NORMAL)
    world.decide()
    quota = present(world.home.get(Quota, "quota", "acme"))
    outcome = grants.decide(quota.key, world.home, world.now)
    (status,) = [w for w in outcome.writes if isinstance(w, SetStatus)]
    rows = {r.region: r for r in status.blocks["regions"] if r.grant_class is GrantClass.NORMAL}
    assert rows["a"].lease_expired and rows["a"].granted == {"cpu": "9"}
    assert {c.type: c.reason for c in status.conditions}["Granted"] == "GrantLeaseExpired"


@pytest.mark.parametrize("skew_s", [-600.0, 600.0])
def test_region_with_wrong_clock_keeps_its_lease_while_it_reports(skew_s: float) -> None:
    """`renewedAt` is a time of the region's clock; only arriving reports show contact."""
    world = PartitionedQuota()
    world.skew_s["a"] = skew_s
    spend_all(world, "a", 8)
    (grant,) = [g for g in world.home.list(Grant) if g.spec.region == "a"]
    record_report(world, "a")
    known = world.home.get(Region, "a")
    assert abs(parse_time(grant.status.renewed_at) - world.now - skew_s) < 1
    assert not is_lease_expired(grant, known, world.now + grant.spec.lease_seconds - 1)
    assert is_lease_expired(grant, known, world.now + grant.spec.lease_seconds + 1)


@pytest.mark.parametrize("renewed_at", ["", "2026-01-01T00:00:00Z"])
def test_grant_of_a_deleted_region_expires_only_if_it_was_ever_enforced(renewed_at: str) -> None:
    """A region that never acknowledged it keeps nothing back."""
    world = PartitionedQuota()
    spend_all(world, "a", 8)
    grant = world.home.list(Grant)[0]
    grant = msgspec.structs.replace(grant, status=msgspec.structs.replace(grant.status, renewed_at=renewed_at))
    assert is_lease_expired(grant, None, world.now) is bool(renewed_at)


def test_region_contact_changes_wake_the_grant_controller() -> None:
    world = PartitionedQuota()
    well, silent = region("a"), region("a", state=HealthState.SUSPECT)
    for new, old in ((silent, well), (well, silent)):
        assert list(grants.woken_by_region(new, old, world.home)) == [Key("acme", "quota")]
    assert list(grants.woken_by_region(well, well, world.home)) == []


def test_region_wakes_the_grant_controller_by_its_first_report_and_its_unknown_grants() -> None:
    world, well, suspect = PartitionedQuota(), region("a"), region("a", state=HealthState.SUSPECT)
    unheard = msgspec.structs.replace(suspect, status=msgspec.structs.replace(suspect.status, report=None))
    for new, old in ((well, None), (None, well), (unheard, well)):
        assert list(grants.woken_by_region(new, old, world.home)) == [], "nothing is known about its limits"
    first = msgspec.structs.replace(well, status=msgspec.structs.replace(well.status, report=None))
    assert list(grants.woken_by_region(well, first, world.home)) == [Key("acme", "quota")]
    report = msgspec.structs.replace(present(well.status.report), unknown_grants=(UnknownGrant("acme"),))
    unknown = msgspec.structs.replace(well, status=msgspec.structs.replace(well.status, report=report))
    for new, old in ((unknown, well), (well, unknown)):
        assert list(grants.woken_by_region(new, old, world.home)) == [Key("acme", "quota")]
    assert list(grants.woken_by_region(unknown, unknown, world.home)) == []
