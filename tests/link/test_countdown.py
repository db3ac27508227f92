"""Overrides in a region end by the time that has passed, whatever its wall clock says; and what a restart forgets."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.contract import Committed
from holdfast.link import break_glass, grant_sync, mirror
from holdfast.link.countdown import Countdown
from holdfast.link.global_clock import GlobalClock
from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.override import ACTIVE, EXPIRED, REVOKED, Override, OverrideKind, OverrideScope, OverrideSpec, acts
from holdfast.model.override import OverrideStatus as Status
from holdfast.model.quota import Grant, GrantClass, GrantSpec, grant_name
from holdfast.model.region import RegionHealth
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Create, SetStatus, Update
from holdfast.runtime.cache import Cache
from making import again, meta, region, view

TRUE_S = 1_800_000_000.0


class Clock:
    """A machine's two clocks in one true time."""

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
        self.ids = None


class Nobody:
    """What decides is looked at, and nothing is sent: `look` and `copied` only say what should be written."""

    cell = "east"

    async def commit(self, writes: object, **more: object) -> Committed:
        raise AssertionError("nothing is committed here")


class East:
    """A region beside a global cell whose clock is the true one; what the link would write is applied here."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.ports = Ports()
        self.ports.clock.skew_s = skew_s
        self.here = Cache()
        self.revision = 0
        self.boot()

    def boot(self) -> None:
        self.countdown = Countdown(self.here, Nobody(), self.ports, Nobody())
        self.cut = False

    def report(self) -> None:
        """One report and its answer."""
        clock = self.ports.clock
        self.countdown.clock.sending(int(clock.true_s * 1000), clock.monotonic())
        health = RegionHealth(heard_at=micro_text(TRUE_S + clock.true_s), heard_sequence=int(clock.true_s * 1000))
        own = region("east")
        self.countdown.clock.learn(again(own, status=msgspec.structs.replace(own.status, health=health)))

    def mirror(self, source: Override) -> None:
        writes = mirror.mirror_writes(
            (Override, source.key), view(source), self.here, 0.0, region="east", timed=self.countdown.copied
        )
        for write in writes:
            assert isinstance(write, Create | Update)
            self.put(write.object)

    def put(self, item: Override) -> None:
        self.revision += 1
        self.here.put(again(item, metadata=msgspec.structs.replace(item.metadata, resource_version=str(self.revision))))

    def look(self) -> None:
        for write in self.countdown.look():
            assert isinstance(write, Update), "a copy is replaced as a whole"
            self.put(write.object)

    def acts(self) -> bool:
        copy = self.here.get(Override, "o")
        return copy is not None and acts(copy, self.ports.clock.now())


def given_at(true_s: float, ttl_s: float, kind: OverrideKind = OverrideKind.AVOID_REGION) -> Override:
    spec = OverrideSpec(kind=kind, scope=OverrideScope(region="east"), reason="x", ttl_seconds=ttl_s)
    status = Status(phase=ACTIVE, expires_at=micro_text(TRUE_S + true_s + ttl_s))
    return Override(metadata=meta("o"), spec=spec, status=status)


@given(
    skew_s=st.floats(-7200, 7200),
    ttl_s=st.floats(5, 3600),
    steps=st.lists(st.tuples(st.floats(0.1, 400), st.floats(-3600, 3600), st.booleans()), max_size=12),
)
def test_it_never_acts_past_its_time_however_the_clock_is_stepped(skew_s, ttl_s, steps):
    east = East(skew_s)
    east.report()
    source = given_at(0.0, ttl_s)
    east.mirror(source)
    assert east.acts(), "skew alone ends nothing"
    for passed_s, step_s, heard in steps:
        east.ports.clock.true_s += passed_s
        east.ports.clock.skew_s += step_s
        if heard:
            east.report()
            east.mirror(source)
        east.look()
        if east.ports.clock.true_s >= ttl_s:
            assert not east.acts()
        elif east.ports.clock.true_s * (1 + 2 * limits.CLOCK_DRIFT) + 1 < ttl_s:
            assert east.acts(), "nor does a step end it early"


def test_nothing_is_copied_as_acting_before_the_global_clock_is_known():
    east = East()
    east.mirror(given_at(0.0, 60.0))
    assert east.here.get(Override, "o") is None
    east.report()
    east.mirror(given_at(0.0, 60.0))
    assert east.acts()


def test_a_report_counts_from_its_sending_however_late_it_was_heard():
    clock = GlobalClock()
    assert clock.left_s(TRUE_S + 100, 0.0) is None
    clock.sending(7, 1_000.0)
    late = RegionHealth(heard_at=micro_text(TRUE_S + 30), heard_sequence=7)
    own = region("east")
    assert clock.learn(again(own, status=msgspec.structs.replace(own.status, health=late)))
    assert clock.left_s(TRUE_S + 100, 1_000.0) == pytest.approx(70.0)
    stale = msgspec.structs.replace(late, heard_sequence=8)
    assert not clock.learn(again(own, status=msgspec.structs.replace(own.status, health=stale)))


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
def test_after_a_restart_that_lost_count_what_allows_more_is_over_and_what_forbids_is_not(kind):
    east = East()
    east.report()
    source = given_at(0.0, 600.0, kind)
    east.mirror(source)
    east.ports.clock.true_s = 100.0
    east.boot()
    east.mirror(source)
    east.look()
    assert east.acts() is (kind is OverrideKind.AVOID_REGION)
    east.report()
    east.mirror(source)
    assert east.acts(), "the global cell is heard and says that it stands"
    east.ports.clock.true_s = 601.0
    east.ports.clock.skew_s = -3600.0
    east.look()
    assert not east.acts()


@pytest.mark.parametrize("lost", [False, True])
def test_one_that_was_taken_back_and_is_over_here_stays_over_while_the_global_status_is_late(lost):
    """Else the copy is ended and made active again by turns, as long as the global cell's controllers are away."""
    east = East()
    east.report()
    source = given_at(0.0, 60.0, OverrideKind.RAISE_PRIORITY)
    east.mirror(source)
    source = again(source, spec=msgspec.structs.replace(source.spec, revoked=True))
    east.mirror(source)
    assert not east.acts()
    if lost:
        east.boot()
    else:
        east.ports.clock.true_s = 61.0
    east.look()
    ended = east.here.get(Override, "o")
    assert ended is not None and (ended.spec.revoked, ended.status.phase) == (True, EXPIRED)
    for _ in range(3):
        east.mirror(source)
        east.look()
    assert east.here.get(Override, "o") is ended, "and nothing more is written"
    final = again(source, status=msgspec.structs.replace(source.status, phase=REVOKED))
    east.mirror(final)
    assert east.here.get(Override, "o").status.phase == REVOKED


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
def test_one_whose_time_has_passed_here_stays_over_though_the_global_cell_lost_count(kind):
    """It was restarted, and its clock had been put back: there it still acts, and has time left by that clock."""
    east = East()
    east.report()
    source = given_at(0.0, 60.0, kind)
    east.mirror(source)
    east.ports.clock.true_s = 61.0
    east.look()
    assert not east.acts()
    east.boot()
    health = RegionHealth(heard_at=micro_text(TRUE_S + 10.0), heard_sequence=7)
    east.countdown.clock.sending(7, east.ports.clock.monotonic())
    own = region("east")
    assert east.countdown.clock.learn(again(own, status=msgspec.structs.replace(own.status, health=health)))
    ended = east.here.get(Override, "o")
    east.mirror(source)
    east.look()
    assert not east.acts() and east.here.get(Override, "o") is ended


def test_at_home_a_clock_that_goes_back_does_not_prolong_it():
    ports, here = Ports(), Cache()
    home = Countdown(here, Nobody(), ports)
    here.put(given_at(0.0, 60.0))
    assert home.look() == []
    ports.clock.true_s, ports.clock.skew_s = 61.0, -300.0
    (write,) = home.look()
    assert isinstance(write, SetStatus) and write.blocks["phase"] == EXPIRED


@pytest.mark.parametrize("skew_s", [-26.0, 26.0])
def test_at_home_an_end_follows_a_clock_that_is_put_back_and_nobody_who_counts_next_prolongs_it(skew_s):
    ports, here = Ports(), Cache()
    home = Countdown(here, Nobody(), ports)
    here.put(given_at(0.0, 60.0))
    assert home.look() == []
    ports.clock.true_s, ports.clock.skew_s = 20.0, skew_s
    writes = home.look()
    if skew_s > 0:
        assert writes == [], "an end is never put off, whatever the clock says"
        return
    (write,) = writes
    assert write.blocks == {"phase": ACTIVE, "expiresAt": micro_text(TRUE_S + 60.0 + skew_s)}
    status = msgspec.structs.replace(here.get(Override, "o").status, expires_at=write.blocks["expiresAt"])
    here.put(again(here.get(Override, "o"), status=status))
    assert home.look() == [], "once is enough"
    following = Countdown(here, Nobody(), ports)
    following.lost()
    ports.clock.true_s = 59.0
    assert following.look() == []
    ports.clock.true_s = 61.0
    assert [w.blocks["phase"] for w in following.look()] == [EXPIRED]


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
def test_at_home_a_clock_that_went_back_while_nobody_counted_prolongs_nothing_that_allows_more(kind):
    ports, here = Ports(), Cache()
    here.put(given_at(0.0, 60.0, kind))
    own = region("east")
    health = RegionHealth(heard_at=micro_text(TRUE_S + 59.0), heard_sequence=1)
    here.put(again(own, status=msgspec.structs.replace(own.status, health=health)))
    following = Countdown(here, Nobody(), ports)
    following.lost()
    ports.clock.true_s, ports.clock.skew_s = 61.0, -30.0
    following.look()
    ports.clock.true_s = 63.0
    ended = [w.blocks["phase"] for w in following.look()] == [EXPIRED]
    assert ended is (kind is OverrideKind.RAISE_PRIORITY)


@pytest.mark.parametrize("kind", [OverrideKind.RAISE_PRIORITY, OverrideKind.AVOID_REGION])
@pytest.mark.parametrize("skew_s", [0.0, -3600.0])
def test_what_was_given_in_a_region_and_allows_more_is_over_after_a_restart_of_it(kind, skew_s):
    """The wall clock may have been put back meanwhile: nobody knows how long it has acted."""
    ports, here = Ports(), Cache()
    override = given_at(0.0, 600.0, kind)
    named = msgspec.structs.replace(override.metadata, name="break-glass-east-1")
    here.put(msgspec.structs.replace(override, metadata=named))
    home = Countdown(here, Nobody(), ports, Nobody())
    home.lost()
    ports.clock.true_s, ports.clock.skew_s = 100.0, skew_s
    writes = home.look()
    if kind is OverrideKind.AVOID_REGION:
        ends = [(w.blocks["phase"], w.blocks["expiresAt"]) for w in writes]
        whole = (ACTIVE, micro_text(TRUE_S + 100.0 + skew_s + 600.0))
        assert ends == ([whole] if skew_s else []), "what forbids goes on, for its whole time at most"
        return
    (write,) = writes
    assert isinstance(write, SetStatus) and write.blocks["phase"] == EXPIRED
    assert "give it again" in write.conditions[0].message


def test_what_is_given_in_a_region_while_it_counts_has_its_time():
    ports, here = Ports(), Cache()
    home = Countdown(here, Nobody(), ports, Nobody())
    home.lost()
    assert home.look() == []
    override = given_at(0.0, 600.0, OverrideKind.RAISE_PRIORITY)
    named = msgspec.structs.replace(override.metadata, name="break-glass-east-1")
    here.put(msgspec.structs.replace(override, metadata=named))
    assert home.look() == []
    ports.clock.true_s, ports.clock.skew_s = 601.0, -3600.0
    (write,) = home.look()
    assert isinstance(write, SetStatus) and write.blocks["phase"] == EXPIRED


@given(skew_s=st.floats(-7200, 7200), sent_ago_s=st.floats(0, 30))
def test_what_ends_by_itself_at_the_global_cell_is_spent_no_longer_by_a_skewed_clock(skew_s, sent_ago_s):
    east = East(skew_s)
    ends = micro_text(TRUE_S + 90.0)
    meant = Grant(
        metadata=meta(grant_name("east", GrantClass.EMERGENCY), "acme"),
        spec=GrantSpec(region="east", grant_class=GrantClass.EMERGENCY, limit={"cpu": "4"}, ends_at=ends),
    )

    def until_s(heard_s: float) -> float:
        (write,) = grant_sync.copy_writes(
            Key("acme", "emergency"), view(meant), view(), "east", heard_s, ends_s=east.countdown.here_s
        )
        return parse_time(write.object.spec.spend_until)

    assert until_s(east.ports.clock.now()) < east.ports.clock.now(), "nothing is spent before that clock is known"
    east.report()
    east.ports.clock.true_s += sent_ago_s
    left_s = until_s(east.ports.clock.now()) - east.ports.clock.now()
    assert left_s <= 90.0 - sent_ago_s + 1e-3
    assert left_s >= 90.0 - sent_ago_s * (1 + 2 * limits.CLOCK_DRIFT) - 1e-3, "and not much less"


# Given in a region


def given_here(**status: str) -> Override:
    spec = OverrideSpec(
        kind=OverrideKind.PAUSE_REPAIR, scope=OverrideScope(region="east"), reason="x", requester="ann",
        ttl_seconds=600.0,
    )  # fmt: skip
    return Override(metadata=meta("break-glass-east-1"), spec=spec, status=Status(**status))


def test_the_global_cell_is_told_what_was_given_and_what_is_left_of_it():
    now = TRUE_S + 200
    mine = given_here(phase=ACTIVE, expires_at=micro_text(TRUE_S + 600))
    assert not list(break_glass.record_writes(mine.key, view(), view(given_here()), "east", now)), "not accepted yet"
    (write,) = break_glass.record_writes(mine.key, view(), view(mine), "east", now)
    told = write.object.spec
    assert (told.requester, told.ttl_seconds, told.revoked) == ("ann", 400.0, False)
    assert (told.break_glass.region, told.break_glass.uid, told.break_glass.asked_seconds) == ("east", mine.uid, 600.0)


def test_one_that_was_over_before_anyone_heard_of_it_is_on_record_and_does_not_act():
    over = given_here(phase=EXPIRED, expires_at=micro_text(TRUE_S + 600))
    (write,) = break_glass.record_writes(over.key, view(), view(over), "east", TRUE_S + 900)
    assert write.object.spec.revoked
    long_ago = TRUE_S + 600 + limits.OVERRIDES_KEPT_S
    assert not list(break_glass.record_writes(over.key, view(), view(over), "east", long_ago))


def test_whoever_revokes_one_side_ends_the_other():
    mine = given_here(phase=ACTIVE, expires_at=micro_text(TRUE_S + 600))
    (made,) = break_glass.record_writes(mine.key, view(), view(mine), "east", TRUE_S)
    record = again(made.object, status=Status(phase=ACTIVE, expires_at=micro_text(TRUE_S + 600)))
    key = (Override, mine.key)
    assert not list(mirror.mirror_writes(key, view(record), view(mine), 0.0, region="east"))
    assert not list(mirror.mirror_writes(key, view(), view(mine), 0.0, region="east")), "not told yet is not deleted"
    revoked = again(record, spec=msgspec.structs.replace(record.spec, revoked=True))
    (write,) = mirror.mirror_writes(key, view(revoked), view(mine), 0.0, region="east")
    assert write.object.spec.revoked and write.object.spec.reason == mine.spec.reason
    ended = given_here(phase="Revoked", expires_at=micro_text(TRUE_S + 5))
    (write,) = break_glass.record_writes(mine.key, view(record), view(ended), "east", TRUE_S + 5)
    assert write.object.spec.revoked
