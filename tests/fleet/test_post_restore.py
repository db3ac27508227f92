"""S3 and S7 across restores of the global cell: limits that regions hold count before the backup's records.

Controllers, restore and both directions of the link are real; the network and the time of the backup are random.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expected import of_type, only, present
from tests.factories import assignment, cache_of, meta, region, replica, with_new_revision
from tests.fleet.test_grants_partitioned import HARD, REGIONS, PartitionedQuota

from holdfast.authority import restore_records as restoring
from holdfast.controllers.cache import Cache
from holdfast.fleet import grants, post_restore
from holdfast.link import mirror, restore_handshake
from holdfast.model import codec
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.cell_identity import CellIdentity, identity_term
from holdfast.model.election_term import INCARNATION_TERM, RESTORE_IN_PROGRESS, Term, TermSpec
from holdfast.model.errors import StaleToken
from holdfast.model.grant_copy import NOT_RENEWED, GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of, kind_of_store_key
from holdfast.model.meta import Key
from holdfast.model.quantity import amounts
from holdfast.model.quota import Grant, GrantClass, Quota
from holdfast.model.region import Region
from holdfast.model.workload import Exclusivity
from holdfast.model.writes import Create, Delete, SetStatus, Update
from holdfast.store.contract import Put

KINDS: tuple[type[Any], ...] = (Quota, Grant, Assignment, Region)


class Restored(PartitionedQuota):
    """Adds a backup, its restore, and the regions' reports."""

    def __init__(self) -> None:
        super().__init__()
        self._incarnation = 1
        self.saved = self._save()

    def _save(self) -> list[Put]:
        return [
            Put(kind_of(item).store_key(item.metadata.namespace, item.metadata.name), codec.encode(item))
            for kind in KINDS
            for item in self.home.list(kind)
        ]

    def save(self) -> None:
        self.saved = self._save()

    def restore_global(self) -> None:
        puts, self._incarnation = restoring.restored_entries("global", self.saved, self.now, "uid", self._incarnation)
        self.home = Cache()
        for revision, put in enumerate(puts, 1):
            kind = kind_of_store_key(put.key)
            assert kind is not None
            self.home.put(codec.decode(kind, put.value, revision))

    def fetch(self, where: str) -> None:
        """The region's watches restart; deleted objects disappear."""
        self.last_contact_s[where] = self.clock(where)
        self.seen[where] = self._seen_now(where)

    def _seen_now(self, where: str) -> Cache:
        now = Cache()
        for item in (*self.home.list(Grant), *self.home.list(Region)):
            if not isinstance(item, Grant) or item.spec.region == where:
                now.put(item)
        return now

    def fetch_regions(self, where: str) -> None:
        """One watch may be ahead of another."""
        for item in self.home.list(Region):
            self.seen[where].put(item)

    def acknowledge(self, where: str) -> None:
        """An acknowledgement of a grant that the restored cell lacks is refused by its uid."""
        if all(self.home.get(Grant, g.metadata.name, "acme") is not None for g in self.seen[where].list(Grant)):
            super().acknowledge(where)

    def report(self, where: str) -> None:
        """The report that the link builds from the region's caches. A report to another incarnation is ignored."""
        known = self.home.get(Region, where)
        assert known is not None and known.status.report is not None
        there, here, fresh = self.seen[where], self.here[where], self._seen_now(where)
        said = msgspec.structs.replace(
            known.status.report,
            restore_acknowledged=restore_handshake.acknowledged_incarnation(there, here, where, fresh),
            unknown_grants=restore_handshake.unknown_grants(there, here, where),
        )
        self.home.put(with_new_revision(known, status=msgspec.structs.replace(known.status, report=said)))

    def settle(self) -> None:
        for _ in range(6):
            for where in REGIONS:
                self.fetch(where)
                self.enforce(where)
                self.spend(where, self.used[where, GrantClass.NORMAL])
                self.acknowledge(where)
                self.fetch(where)
                self.report(where)
            self.decide()
            self.check()


WISH = st.tuples(st.just("want"), st.sampled_from(REGIONS), st.integers(0, 12))
SYNC = st.tuples(st.just("sync"), st.sampled_from(REGIONS), st.integers(0, 12))
SINGLE = st.tuples(
    st.sampled_from(["decide", "fetch", "fetch_regions", "enforce", "spend", "ack", "report"]),
    st.sampled_from(REGIONS),
    st.integers(0, 12),
)
PART = st.lists(st.one_of(WISH, SYNC, SYNC, SYNC, SINGLE), min_size=4, max_size=40)
"""What happens before a backup, between it and its restore, and afterwards."""


def run_events(world: Restored, events: list[tuple[str, str, int]]) -> None:
    for act, where, number in events:
        match act:
            case "want":
                world.set_demand(where, number, Purpose.NORMAL)
            case "spend":
                world.spend(where, number)
            case "decide":
                world.decide()
            case "sync":
                world.fetch(where)
                world.enforce(where)
                world.spend(where, number)
                world.acknowledge(where)
                world.fetch(where)
                world.report(where)
                world.decide()
            case _:
                getattr(world, {"ack": "acknowledge"}.get(act, act))(where)
        world.check()


@settings(max_examples=120, deadline=None)
@given(PART, PART, PART, PART)
def test_restored_global_cell_never_overspends_quota(
    before: list[tuple[str, str, int]],
    between: list[tuple[str, str, int]],
    after: list[tuple[str, str, int]],
    later: list[tuple[str, str, int]],
) -> None:
    world = Restored()
    run_events(world, before)
    world.save()
    run_events(world, between)
    world.restore_global()
    run_events(world, after)
    world.restore_global()  # the same backup once more
    run_events(world, later)
    world.settle()
    assert not post_restore.regions_not_restored(world.home, world.now), "every region reported, and it still waits"


def test_share_moved_after_the_backup_is_not_granted_twice() -> None:
    world = Restored()
    world.set_demand("a", 8, Purpose.NORMAL)
    world.decide()
    world.settle()
    world.spend("a", 8)
    world.settle()
    world.save()
    world.set_demand("a", 0, Purpose.NORMAL)
    world.set_demand("b", 9, Purpose.NORMAL)
    world.spend("a", 0)
    world.settle()
    world.spend("b", 9)
    world.settle()
    assert world.used["b", GrantClass.NORMAL] == 9
    world.restore_global()
    decided = grants.decide(Key("acme", "quota"), world.home, world.now)
    assert not [w for w in decided.writes if isinstance(w, Create | Update)], "no region reported, and it grants"
    (status,) = [w for w in decided.writes if isinstance(w, SetStatus)]
    assert (status.conditions[0].reason, "a, b, c" in status.conditions[0].message) == ("RestoreInProgress", True)
    world.settle()
    limit = amounts(present(world.here["a"].get(GrantCopy, "normal", "acme")).spec.limit).get("cpu", 0)
    assert limit <= (HARD - 9) * 1000, "the backup grants eight to a, but b uses nine"
    world.set_demand("b", 1, Purpose.NORMAL)
    world.spend("b", 1)
    world.settle()
    world.spend("a", 8)
    world.settle()
    used = {where: world.used[where, GrantClass.NORMAL] for where in REGIONS}
    assert used == {"a": 8, "b": 1, "c": 0}, "once returned, it goes to the region of the backup"


def test_grant_missing_from_the_backup_is_counted() -> None:
    world = Restored()
    world.save()
    world.set_demand("b", 9, Purpose.NORMAL)
    world.decide()
    world.settle()
    world.spend("b", 9)
    world.settle()
    world.restore_global()
    world.set_demand("a", 9, Purpose.NORMAL)
    world.settle()
    held = {g.spec.region: amounts(g.spec.unacknowledged_peak or g.status.limit) for g in world.home.list(Grant)}
    assert held["b"] == {"cpu": 9000}
    world.spend("a", 9)
    world.check()
    assert world.used["a", GrantClass.NORMAL] <= 1


def awaited(name: str, incarnation: int, answered: int) -> Region:
    known = region(name)
    report = msgspec.structs.replace(present(known.status.report), restore_acknowledged=answered)
    return with_new_revision(
        known, status=msgspec.structs.replace(known.status, report=report, restore_incarnation=incarnation)
    )


def test_assignments_only_shrink_until_all_regions_acknowledge() -> None:
    exclusive: dict[str, Any] = {"exclusive": Exclusivity(), "type": "Service"}
    copy = assignment("db", "us-east", ordinals=(0, 1), replicas=2, **exclusive)
    source = assignment("db", "us-east", ordinals=(1, 2), replicas=2, epoch=1_000_001, **exclusive)
    fresh = assignment("new", "us-east", replicas=3)
    waiting = (awaited("us-east", 2, 2), awaited("eu-west", 2, 0))
    there, here = cache_of(source, fresh, *waiting), cache_of(copy)
    (write,) = mirror.mirror_writes((Assignment, copy.key), there, here, 0.0)
    assert isinstance(write, Update) and isinstance(write.object, Assignment) and write.object.spec.ordinals == (1,)
    assert 1 < write.object.spec.epoch < source.spec.epoch
    assert mirror.mirror_writes((Assignment, fresh.key), there, here, 0.0) == ()
    stray = assignment("gone", "us-east")
    assert mirror.mirror_writes((Assignment, stray.key), there, cache_of(stray), 0.0) == (), "no deletion was ordered"
    empty = assignment("gone", "us-east", replicas=0)
    (gone,) = mirror.mirror_writes((Assignment, stray.key), there, cache_of(empty), 0.0)
    assert isinstance(gone, Delete)
    heard = cache_of(source, fresh, awaited("us-east", 2, 2), awaited("eu-west", 2, 2))
    whole = only(mirror.mirror_writes((Assignment, copy.key), heard, here, 0.0), Update)
    assert of_type(whole.object, Assignment).spec.ordinals == (1, 2)
    only(mirror.mirror_writes((Assignment, fresh.key), heard, here, 0.0), Create)


def test_region_acknowledges_only_without_foreign_exclusive_work() -> None:
    mine = assignment("db", "us-east", ordinals=(0,), exclusive=Exclusivity())
    running = replica(1, mine)
    assert running.spec.exclusive is not None and running.spec.ordinal == 1
    there = cache_of(mine, awaited("us-east", 2, 0))
    own = cache_of(mine, replica(0, mine))
    assert restore_handshake.acknowledged_incarnation(there, cache_of(mine, running), "us-east", there) == 0
    assert restore_handshake.acknowledged_incarnation(there, own, "us-east", there) == 2
    assert restore_handshake.acknowledged_incarnation(there, own, "us-east") == 0, "the global cell was not read"
    restoring_term = Term(meta(INCARNATION_TERM), TermSpec(holder=RESTORE_IN_PROGRESS, term=2))
    restored = cache_of(mine, replica(0, mine), restoring_term)
    assert restore_handshake.acknowledged_incarnation(there, restored, "us-east", there) == 0, (
        "the region was restored too, and its agents may run what its backup does not contain"
    )
    moved = cache_of(awaited("us-east", 2, 0))
    assert restore_handshake.acknowledged_incarnation(there, own, "us-east", moved) == 0, (
        "the link still uses deleted objects"
    )
    assert not restore_handshake.exclusive_work_agrees(cache_of(), own), (
        "an Assignment that the global cell does not have"
    )


def test_restored_region_spends_nothing_with_foreign_exclusive_work() -> None:
    mine = assignment("db", "us-east", ordinals=(0,), exclusive=Exclusivity())
    copy = GrantCopy(metadata=meta("normal", "acme"), spec=GrantCopySpec(lease_expires_at=NOT_RENEWED))
    waiting = replica(0, mine)
    gone = cache_of(region("us-east"))
    assert not restore_handshake.can_renew_grants(gone, cache_of(mine, waiting, copy)), (
        "it was assigned to another region since"
    )
    assert restore_handshake.can_renew_grants(cache_of(mine), cache_of(mine, waiting, copy))
    leaving = with_new_revision(waiting, metadata=meta("db-0", "acme", deletion_timestamp="2026-01-01T00:00:00Z"))
    assert restore_handshake.can_renew_grants(gone, cache_of(mine, leaving, copy)), (
        "a replica being deleted is not bound again"
    )
    spent = msgspec.structs.replace(
        copy, spec=msgspec.structs.replace(copy.spec, lease_expires_at="2026-01-01T00:00:00Z")
    )
    assert restore_handshake.can_renew_grants(gone, cache_of(mine, waiting, spent)), (
        "a region that was not restored continues"
    )


def test_previous_incarnation_is_refused_on_both_sides() -> None:
    here = Cache()
    for write in restore_handshake.record_incarnation(cache_of(awaited("us-east", 3, 0)), here, "us-east"):
        assert isinstance(write, Create)
        here.put(with_new_revision(write.object, metadata=meta(write.object.metadata.name)))
    restore_handshake.check_incarnations(cache_of(awaited("us-east", 3, 0)), here, "us-east")
    with pytest.raises(StaleToken, match="expected incarnation 3"):
        restore_handshake.check_incarnations(cache_of(awaited("us-east", 2, 0)), here, "us-east")
    known = awaited("us-east", 3, 3)
    report = msgspec.structs.replace(present(known.status.report), incarnation=4)
    there = cache_of(with_new_revision(known, status=msgspec.structs.replace(known.status, report=report)))
    here.put(Term(metadata=meta(INCARNATION_TERM), spec=TermSpec(holder="joined", term=4)))
    restore_handshake.check_incarnations(there, here, "us-east")
    here.put(Term(metadata=meta(INCARNATION_TERM), spec=TermSpec(holder="joined", term=3)))
    with pytest.raises(StaleToken, match="expected incarnation 4, found 3"):
        restore_handshake.check_incarnations(there, here, "us-east")


def test_region_with_the_store_of_another_cell_does_not_exchange() -> None:
    """A swapped store: the region reported another identity before."""
    known = awaited("us-east", 0, 0)
    report = msgspec.structs.replace(present(known.status.report), identity="one", era="first")
    there = cache_of(with_new_revision(known, status=msgspec.structs.replace(known.status, report=report)))
    for identity, refused in (("one", False), ("two", True)):
        here = Cache()
        here.put(with_new_revision(identity_term(CellIdentity("us-east", identity, "second"), 0.0)))
        if refused:
            with pytest.raises(StaleToken, match=r"store is that of another cell .expected identity one"):
                restore_handshake.check_incarnations(there, here, "us-east")
        else:
            restore_handshake.check_incarnations(there, here, "us-east")
    restore_handshake.check_incarnations(there, Cache(), "us-east")


def test_incarnation_is_read_from_its_term_and_is_one_without_it() -> None:
    term = Term(metadata=meta(INCARNATION_TERM), spec=TermSpec(term=4))
    assert restoring.incarnation_in([Put(restoring.incarnation_key(), codec.encode(term))]) == 4
    assert restoring.incarnation_in([]) == 1
