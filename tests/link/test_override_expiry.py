"""Override expiry on the monotonic clock: wall clock skew, clock steps and restarts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.scripted import ScriptedCell, ScriptedClient
from tests.expected import of_type, only, present
from tests.factories import cache_of, meta, region, with_new_revision
from tests.gate.conftest import OPERATOR, World, by, make_world

from holdfast.client.contract import CommitReceipt
from holdfast.controllers.cache import Cache
from holdfast.foundation.ports import SystemIds, SystemPorts
from holdfast.gate.local_client import LocalClient
from holdfast.link import break_glass, grant_sync, mirror
from holdfast.link.global_clock import GlobalClock
from holdfast.link.override_expiry import OverrideExpiry
from holdfast.model import limits
from holdfast.model.errors import Invalid
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key, Object, ObjectMeta
from holdfast.model.override import (
    ACTIVE,
    EXPIRED,
    REVOKED,
    Override,
    OverrideKind,
    OverrideScope,
    OverrideSpec,
    is_in_force,
)
from holdfast.model.override import OverrideStatus as Status
from holdfast.model.quota import Grant, GrantClass, GrantSpec, grant_name
from holdfast.model.region import Region, RegionHealth, RegionSpec
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Create, SetStatus, Update

TRUE_S = 1_800_000_000.0


class Clock:
    """Wall clock and monotonic clock of one machine."""

    def __init__(self) -> None:
        self.true_s, self.skew_s = 0.0, 0.0

    def now(self) -> float:
        return TRUE_S + self.true_s + self.skew_s

    def monotonic(self) -> float:
        return 5_000.0 + self.true_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


class Ports:
    def __init__(self) -> None:
        self.clock = Clock()
        self.random = random.Random(1)
        self.ids = SystemIds()


class UnusedClient(ScriptedClient):
    """A client that must not be used: the tests only read the writes that are due."""

    cell = "east"

    def __init__(self) -> None:
        super().__init__(ScriptedCell(), SystemPorts())

    async def commit(self, writes: object, **more: object) -> CommitReceipt:
        raise AssertionError("nothing is committed here")


class RegionHarness:
    """A region and the global cell, whose clock is exact. Writes of the link are applied here."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.ports = Ports()
        self.ports.clock.skew_s = skew_s
        self.here = Cache()
        self.revision = 0
        self.boot()

    def boot(self) -> None:
        self.expiry = OverrideExpiry(self.here, UnusedClient(), self.ports, UnusedClient())
        self.cut = False

    def report(self) -> None:
        """Sends one report and processes the response."""
        clock = self.ports.clock
        self.expiry.clock.record_sent(int(clock.true_s * 1000), clock.monotonic())
        health = RegionHealth(last_contact_at=micro_text(TRUE_S + clock.true_s), last_sequence=int(clock.true_s * 1000))
        own = region("east")
        self.expiry.clock.observe(with_new_revision(own, status=msgspec.structs.replace(own.status, health=health)))

    def mirror(self, source: Override) -> None:
        writes = mirror.mirror_writes(
            (Override, source.key), cache_of(source), self.here, 0.0, region="east", timed=self.expiry.mirrored_override
        )
        for write in writes:
            assert isinstance(write, Create | Update)
            self.put(write.object)

    def put(self, item: Object) -> None:
        self.revision += 1
        self.here.put(
            with_new_revision(
                item, metadata=msgspec.structs.replace(item.metadata, resource_version=str(self.revision))
            )
        )

    def apply_due_writes(self) -> None:
        for write in self.expiry.due_writes():
            assert isinstance(write, Update), "a mirrored copy is replaced as a whole"
            self.put(write.object)

    def acts(self) -> bool:
        copy = self.here.get(Override, "o")
        return copy is not None and is_in_force(copy, self.ports.clock.now())


def override_created_at(true_s: float, ttl_s: float, kind: OverrideKind = OverrideKind.AVOID_REGION) -> Override:
    spec = OverrideSpec(kind=kind, scope=OverrideScope(region="east"), reason="x", ttl_seconds=ttl_s)
    status = Status(phase=ACTIVE, expires_at=micro_text(TRUE_S + true_s + ttl_s))
    return Override(metadata=meta("o"), spec=spec, status=status)


@given(
    skew_s=st.floats(-7200, 7200),
    ttl_s=st.floats(5, 3600),
    steps=st.lists(st.tuples(st.floats(0.1, 400), st.floats(-3600, 3600), st.booleans()), max_size=12),
)
def test_override_expires_in_time_whatever_the_wall_clock_does(
    skew_s: float, ttl_s: float, steps: list[tuple[float, float, bool]]
) -> None:
    east = RegionHarness(skew_s)
    east.report()
    source = override_created_at(0.0, ttl_s)
    east.mirror(source)
    assert east.acts(), "clock skew alone does not end it"
    for passed_s, step_s, heard in steps:
        east.ports.clock.true_s += passed_s
        east.ports.clock.skew_s += step_s
        if heard:
            east.report()
            east.mirror(source)
        east.apply_due_writes()
        if east.ports.clock.true_s >= ttl_s:
            assert not east.acts()
        elif east.ports.clock.true_s * (1 + 2 * limits.CLOCK_DRIFT) + 1 < ttl_s:
            assert east.acts(), "a clock step does not end it early"


def test_override_is_not_mirrored_as_active_without_global_clock() -> None:
    east = RegionHarness()
    east.mirror(override_created_at(0.0, 60.0))
    assert east.here.get(Override, "o") is None
    east.report()
    east.mirror(override_created_at(0.0, 60.0))
    assert east.acts()


def test_remaining_time_counts_from_sending_the_report() -> None:
    clock = GlobalClock()
    assert clock.remaining_s(TRUE_S + 100, 0.0) is None
    clock.record_sent(7, 1_000.0)
    late = RegionHealth(last_contact_at=micro_text(TRUE_S + 30), last_sequence=7)
    own = region("east")
    assert clock.observe(with_new_revision(own, status=msgspec.structs.replace(own.status, health=late)))
    assert clock.remaining_s(TRUE_S + 100, 1_000.0) == pytest.approx(70.0)
    stale = msgspec.structs.replace(late, last_sequence=8)
    assert not clock.observe(with_new_revision(own, status=msgspec.structs.replace(own.status, health=stale)))


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
def test_restart_ends_permissive_overrides_and_keeps_forbidding_ones(kind: OverrideKind) -> None:
    east = RegionHarness()
    east.report()
    source = override_created_at(0.0, 600.0, kind)
    east.mirror(source)
    east.ports.clock.true_s = 100.0
    east.boot()
    east.mirror(source)
    east.apply_due_writes()
    assert east.acts() is (kind is OverrideKind.AVOID_REGION)
    east.report()
    east.mirror(source)
    assert east.acts(), "in contact with the global cell, it is in force again"
    east.ports.clock.true_s = 601.0
    east.ports.clock.skew_s = -3600.0
    east.apply_due_writes()
    assert not east.acts()


@pytest.mark.parametrize("lost", [False, True])
def test_revoked_override_stays_ended_while_global_status_lags(lost: bool) -> None:
    """Otherwise the copy would alternate between ended and active while the global controllers are down."""
    east = RegionHarness()
    east.report()
    source = override_created_at(0.0, 60.0, OverrideKind.RAISE_PRIORITY)
    east.mirror(source)
    source = with_new_revision(source, spec=msgspec.structs.replace(source.spec, revoked=True))
    east.mirror(source)
    assert not east.acts()
    if lost:
        east.boot()
    else:
        east.ports.clock.true_s = 61.0
    east.apply_due_writes()
    ended = east.here.get(Override, "o")
    assert ended is not None and (ended.spec.revoked, ended.status.phase) == (True, EXPIRED)
    for _ in range(3):
        east.mirror(source)
        east.apply_due_writes()
    assert east.here.get(Override, "o") is ended, "nothing more is written"
    final = with_new_revision(source, status=msgspec.structs.replace(source.status, phase=REVOKED))
    east.mirror(final)
    assert present(east.here.get(Override, "o")).status.phase == REVOKED


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
def test_expired_override_stays_ended_if_global_clock_steps_back(kind: OverrideKind) -> None:
    """The global cell restarted with its clock stepped back, so its status still shows remaining time."""
    east = RegionHarness()
    east.report()
    source = override_created_at(0.0, 60.0, kind)
    east.mirror(source)
    east.ports.clock.true_s = 61.0
    east.apply_due_writes()
    assert not east.acts()
    east.boot()
    health = RegionHealth(last_contact_at=micro_text(TRUE_S + 10.0), last_sequence=7)
    east.expiry.clock.record_sent(7, east.ports.clock.monotonic())
    own = region("east")
    assert east.expiry.clock.observe(with_new_revision(own, status=msgspec.structs.replace(own.status, health=health)))
    ended = east.here.get(Override, "o")
    east.mirror(source)
    east.apply_due_writes()
    assert not east.acts() and east.here.get(Override, "o") is ended


def test_global_clock_stepped_back_does_not_extend_an_override() -> None:
    ports, here = Ports(), Cache()
    home = OverrideExpiry(here, UnusedClient(), ports)
    here.put(override_created_at(0.0, 60.0))
    assert home.due_writes() == []
    ports.clock.true_s, ports.clock.skew_s = 61.0, -300.0
    (write,) = home.due_writes()
    assert isinstance(write, SetStatus) and write.blocks["phase"] == EXPIRED


@pytest.mark.parametrize("skew_s", [-26.0, 26.0])
def test_stored_expiry_follows_global_clock_stepped_back(skew_s: float) -> None:
    ports, here = Ports(), Cache()
    home = OverrideExpiry(here, UnusedClient(), ports)
    here.put(override_created_at(0.0, 60.0))
    assert home.due_writes() == []
    ports.clock.true_s, ports.clock.skew_s = 20.0, skew_s
    writes = home.due_writes()
    if skew_s > 0:
        assert writes == [], "an expiry is never extended, whatever the clock says"
        return
    write = only(writes, SetStatus)
    assert write.blocks == {"phase": ACTIVE, "expiresAt": micro_text(TRUE_S + 60.0 + skew_s)}
    status = msgspec.structs.replace(present(here.get(Override, "o")).status, expires_at=write.blocks["expiresAt"])
    here.put(with_new_revision(present(here.get(Override, "o")), status=status))
    assert home.due_writes() == [], "written once"
    following = OverrideExpiry(here, UnusedClient(), ports)
    following.reset()
    ports.clock.true_s = 59.0
    assert following.due_writes() == []
    ports.clock.true_s = 61.0
    assert [of_type(w, SetStatus).blocks["phase"] for w in following.due_writes()] == [EXPIRED]


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
def test_clock_stepped_back_while_down_extends_no_permissive_override(kind: OverrideKind) -> None:
    ports, here = Ports(), Cache()
    here.put(override_created_at(0.0, 60.0, kind))
    own = region("east")
    health = RegionHealth(last_contact_at=micro_text(TRUE_S + 59.0), last_sequence=1)
    here.put(with_new_revision(own, status=msgspec.structs.replace(own.status, health=health)))
    following = OverrideExpiry(here, UnusedClient(), ports)
    following.reset()
    ports.clock.true_s, ports.clock.skew_s = 61.0, -30.0
    following.due_writes()
    ports.clock.true_s = 63.0
    ended = [of_type(w, SetStatus).blocks["phase"] for w in following.due_writes()] == [EXPIRED]
    assert ended is (kind is OverrideKind.RAISE_PRIORITY)


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
@pytest.mark.parametrize("skew_s", [0.0, -3600.0])
def test_permissive_break_glass_override_ends_with_a_restart(kind: OverrideKind, skew_s: float) -> None:
    """The wall clock may have been stepped back meanwhile, so the time in force is unknown."""
    ports, here = Ports(), Cache()
    override = override_created_at(0.0, 600.0, kind)
    named = msgspec.structs.replace(override.metadata, name="break-glass-east-1")
    here.put(msgspec.structs.replace(override, metadata=named))
    home = OverrideExpiry(here, UnusedClient(), ports, UnusedClient())
    home.reset()
    ports.clock.true_s, ports.clock.skew_s = 100.0, skew_s
    writes = home.due_writes()
    if kind is OverrideKind.AVOID_REGION:
        blocks = [of_type(w, SetStatus).blocks for w in writes]
        ends = [(block["phase"], block["expiresAt"]) for block in blocks]
        whole = (ACTIVE, micro_text(TRUE_S + 100.0 + skew_s + 600.0))
        assert ends == ([whole] if skew_s else []), "a forbidding override stays, for its full time at most"
        return
    (write,) = writes
    assert isinstance(write, SetStatus) and write.blocks["phase"] == EXPIRED
    assert "create it again" in write.conditions[0].message


def test_break_glass_override_lasts_its_full_time() -> None:
    ports, here = Ports(), Cache()
    home = OverrideExpiry(here, UnusedClient(), ports, UnusedClient())
    home.reset()
    assert home.due_writes() == []
    override = override_created_at(0.0, 600.0, OverrideKind.RAISE_PRIORITY)
    named = msgspec.structs.replace(override.metadata, name="break-glass-east-1")
    here.put(msgspec.structs.replace(override, metadata=named))
    assert home.due_writes() == []
    ports.clock.true_s, ports.clock.skew_s = 601.0, -3600.0
    (write,) = home.due_writes()
    assert isinstance(write, SetStatus) and write.blocks["phase"] == EXPIRED


@given(skew_s=st.floats(-7200, 7200), sent_ago_s=st.floats(0, 30))
def test_emergency_grant_ends_in_time_with_a_skewed_clock(skew_s: float, sent_ago_s: float) -> None:
    east = RegionHarness(skew_s)
    ends = micro_text(TRUE_S + 90.0)
    meant = Grant(
        metadata=meta(grant_name("east", GrantClass.EMERGENCY), "acme"),
        spec=GrantSpec(region="east", grant_class=GrantClass.EMERGENCY, limit={"cpu": "4"}, ends_at=ends),
    )

    def until_s(last_contact_s: float) -> float:
        (write,) = grant_sync.copy_writes(
            Key("acme", "emergency"), cache_of(meant), cache_of(), "east", last_contact_s, ends_s=east.expiry.to_local_s
        )
        return parse_time(of_type(of_type(write, Create).object, GrantCopy).spec.lease_expires_at)

    assert until_s(east.ports.clock.now()) < east.ports.clock.now(), "nothing is spent before the global clock is known"
    east.report()
    east.ports.clock.true_s += sent_ago_s
    left_s = until_s(east.ports.clock.now()) - east.ports.clock.now()
    assert left_s <= 90.0 - sent_ago_s + 1e-3
    assert left_s >= 90.0 - sent_ago_s * (1 + 2 * limits.CLOCK_DRIFT) - 1e-3, "the lease is not much shorter"


# Break-glass overrides


def local_override(**status: Any) -> Override:
    spec = OverrideSpec(
        kind=OverrideKind.PAUSE_REPAIR,
        scope=OverrideScope(region="east"),
        reason="x",
        requester="ann",
        ttl_seconds=600.0,
    )
    return Override(metadata=meta("break-glass-east-1"), spec=spec, status=Status(**status))


def test_break_glass_record_carries_the_remaining_time() -> None:
    now = TRUE_S + 200
    mine = local_override(phase=ACTIVE, expires_at=micro_text(TRUE_S + 600))
    assert not list(break_glass.record_writes(mine.key, cache_of(), cache_of(local_override()), "east", now)), (
        "not active yet"
    )
    write = only(break_glass.record_writes(mine.key, cache_of(), cache_of(mine), "east", now), Create)
    told = of_type(write.object, Override).spec
    assert told.break_glass is not None
    assert (told.requester, told.ttl_seconds, told.revoked) == ("ann", 400.0, False)
    assert (told.break_glass.region, told.break_glass.uid, told.break_glass.requested_ttl_seconds) == (
        "east",
        mine.uid,
        600.0,
    )


def test_break_glass_override_ended_before_contact_is_recorded_as_ended() -> None:
    over = local_override(phase=EXPIRED, expires_at=micro_text(TRUE_S + 600))
    write = only(break_glass.record_writes(over.key, cache_of(), cache_of(over), "east", TRUE_S + 900), Create)
    assert of_type(write.object, Override).spec.revoked
    long_ago = TRUE_S + 600 + limits.ENDED_OVERRIDE_RETENTION_S
    assert not list(break_glass.record_writes(over.key, cache_of(), cache_of(over), "east", long_ago))


def test_revoking_either_side_of_a_break_glass_override_ends_both() -> None:
    mine = local_override(phase=ACTIVE, expires_at=micro_text(TRUE_S + 600))
    made = only(break_glass.record_writes(mine.key, cache_of(), cache_of(mine), "east", TRUE_S), Create)
    record = with_new_revision(
        of_type(made.object, Override), status=Status(phase=ACTIVE, expires_at=micro_text(TRUE_S + 600))
    )
    key = (Override, mine.key)
    assert not list(mirror.mirror_writes(key, cache_of(record), cache_of(mine), 0.0, region="east"))
    assert not list(mirror.mirror_writes(key, cache_of(), cache_of(mine), 0.0, region="east")), (
        "unreported is not deleted"
    )
    revoked = with_new_revision(record, spec=msgspec.structs.replace(record.spec, revoked=True))
    write = only(mirror.mirror_writes(key, cache_of(revoked), cache_of(mine), 0.0, region="east"), Update)
    mirrored = of_type(write.object, Override).spec
    assert mirrored.revoked and mirrored.reason == mine.spec.reason
    ended = local_override(phase="Revoked", expires_at=micro_text(TRUE_S + 5))
    write = only(break_glass.record_writes(mine.key, cache_of(record), cache_of(ended), "east", TRUE_S + 5), Update)
    assert of_type(write.object, Override).spec.revoked


@pytest.fixture
async def global_cell() -> AsyncIterator[World]:
    """A global cell with an override `o` that is active for 60 s."""
    world = await make_world("global")
    await world.create(OPERATOR, Region(metadata=ObjectMeta(name="east"), spec=RegionSpec(zones=("a",))))
    requested = msgspec.structs.replace(override_created_at(0.0, 60.0), status=Status(), metadata=ObjectMeta(name="o"))
    await world.create(OPERATOR, requested)
    await set_status(world, ACTIVE, 60.0)
    yield world
    await world.gate.close()
    await world.objects.close()


async def set_status(world: World, phase: str, ends_s: float) -> None:
    """Writes phase and expiry as the override controller does."""
    stored = world.get(Override, "o")
    blocks = {"phase": phase, "expiresAt": micro_text(TRUE_S + ends_s)}
    await world.do(by("override"), SetStatus("Override", stored.key, stored.uid, blocks=blocks))


async def test_expiry_is_not_prolonged_from_a_view_whose_watch_stalled(global_cell: World) -> None:
    """Seed 700076: an earlier end was stored, the view still had the later one, and the later one was written again."""
    ports, stalled = Ports(), Cache()
    home = OverrideExpiry(stalled, LocalClient(global_cell.gate, by("override")), ports)
    stalled.put(global_cell.get(Override, "o"))
    await home.commit_due()
    ports.clock.true_s, ports.clock.skew_s = 20.0, -30.0
    await home.commit_due()
    earlier = global_cell.get(Override, "o").status.expires_at
    assert earlier == micro_text(TRUE_S + 30.0)
    ports.clock.skew_s = -10.0
    await home.commit_due()
    assert global_cell.get(Override, "o").status.expires_at == earlier, "the view still has the first expiry"
    ports.clock.true_s = 61.0
    await home.commit_due()
    ended = global_cell.get(Override, "o").status
    assert (ended.phase, ended.expires_at) == (EXPIRED, earlier), "the end is written in spite of the stalled view"


@pytest.mark.parametrize("phase", [ACTIVE, EXPIRED])
async def test_gate_refuses_a_later_expiry_from_any_writer(global_cell: World, phase: str) -> None:
    with pytest.raises(Invalid, match="must not be later"):
        await set_status(global_cell, phase, 61.0)


@pytest.mark.parametrize("phase", [EXPIRED, REVOKED])
async def test_gate_refuses_to_activate_an_ended_override(global_cell: World, phase: str) -> None:
    await set_status(global_cell, phase, 60.0)
    with pytest.raises(Invalid, match=f"is {phase} cannot become Active"):
        await set_status(global_cell, ACTIVE, 60.0)
