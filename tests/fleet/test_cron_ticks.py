"""Ticks against a brute-force oracle that looks at every minute, over changes of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fleet.cron_ticks import due_ticks, next_tick
from holdfast.foundation.time_zones import find_zone, zone_names
from holdfast.model.cron_schedule import parse_schedule

# A day around each change of the clocks in 2026, in UTC, and one ordinary day.
WINDOWS = {
    "Europe/Berlin": ("2026-03-28T12:00", "2026-10-24T12:00", "2026-06-01T00:00"),
    "America/New_York": ("2026-03-07T20:00", "2026-10-31T20:00", "2026-12-31T12:00"),
    "Australia/Lord_Howe": ("2026-04-04T00:00", "2026-10-03T00:00", "2026-02-27T12:00"),
    "UTC": ("2026-02-28T00:00", "2028-02-28T12:00", "2026-12-31T00:00"),
    "America/Sao_Paulo": ("2018-11-03T12:00", "2019-02-16T12:00", "2026-01-01T00:00"),
    "Pacific/Apia": ("2011-12-29T12:00", "2011-12-30T00:00", "2026-01-01T00:00"),
}
WINDOW_MINUTES = 36 * 60


def expanded(text: str, low: int, high: int) -> set[int]:
    """The numbers of one field, parsed in another way than the parser under test does."""
    names = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6} if high == 7 else {}
    if high == 12:
        names = {"jan": 1, "feb": 2, "mar": 3, "apr": 4, "oct": 10, "nov": 11}
    found = set()
    for number in range(low, high + 1):
        for item in text.lower().split(","):
            span, _, step = item.partition("/")
            ends = [int(names.get(end, end)) for end in span.split("-")] if span not in "*?" else [low, high]
            last = ends[1] if len(ends) == 2 else high if step else ends[0]
            if ends[0] <= number <= last and (number - ends[0]) % int(step or 1) == 0:
                found.add(number)
    return found


def matches(text: str, local: datetime) -> bool:
    minute, hour, day, month, weekday = text.split()
    days = {n % 7 for n in expanded(weekday, 0, 7)} if weekday != "*/2" else {0, 2, 4, 6}
    on_day, on_weekday = local.day in expanded(day, 1, 31), (local.weekday() + 1) % 7 in days
    either = day not in "*?" and weekday not in "*?"
    return (
        local.minute in expanded(minute, 0, 59)
        and local.hour in expanded(hour, 0, 23)
        and local.month in expanded(month, 1, 12)
        and ((on_day or on_weekday) if either else (on_day and on_weekday))
    )


def oracle(text: str, zone_name: str, start: datetime, minutes: int) -> list[int]:
    """Every tick of the window: walks the minutes and compares the wall clock with that of the minute before."""
    zone = find_zone(zone_name)
    every_hour = expanded(text.split()[1], 0, 23) == set(range(24))
    found, shown = [], set()
    for offset in range(-26 * 60, minutes):
        at = start + timedelta(minutes=offset)
        local, before = (t.astimezone(zone).replace(tzinfo=None, fold=0) for t in (at, at - timedelta(minutes=1)))
        skipped = [before + timedelta(minutes=n) for n in range(1, int((local - before).total_seconds() // 60))]
        first_time = local not in shown
        shown.add(local)
        due = matches(text, local) and (first_time or every_hour)
        due = due or (not every_hour and any(matches(text, gone) for gone in skipped))
        if due and offset > 0:
            found.append(int(at.timestamp()))
    return found


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda p: f"{min(p)}-{max(p)}")
    step = st.integers(1, 30)
    item = st.one_of(
        number.map(str),
        span,
        st.tuples(span, step).map(lambda p: f"{p[0]}/{p[1]}"),
        st.tuples(number, step).map(lambda p: f"{p[0]}/{p[1]}"),
    )
    return st.one_of(
        st.just("*"), st.sampled_from(("*/5", "*/2", "*/15")), st.lists(item, min_size=1, max_size=3).map(",".join)
    )


SCHEDULES = st.tuples(
    field(0, 59),
    field(0, 23),
    st.one_of(st.just("*"), field(1, 28)),
    st.one_of(st.just("*"), field(1, 12), st.sampled_from(("jan-mar", "OCT,NOV", "apr"))),
    st.one_of(st.just("*"), field(0, 6), st.sampled_from(("mon-fri", "SUN", "5-7", "sat,sun"))),
).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(text=SCHEDULES, zone=st.sampled_from(sorted(WINDOWS)), window=st.integers(0, 2))
def test_ticks_of_a_window_equal_the_brute_force_oracle(text: str, zone: str, window: int) -> None:
    start = datetime.fromisoformat(WINDOWS[zone][window]).replace(tzinfo=UTC)
    found, more = due_ticks(
        parse_schedule(text),
        find_zone(zone) or UTC,
        start.timestamp(),
        start.timestamp() + 60 * (WINDOW_MINUTES - 1),
        WINDOW_MINUTES,
    )
    assert not more
    assert found == oracle(text, zone, start, WINDOW_MINUTES)


@settings(max_examples=40, deadline=None)
@given(text=SCHEDULES, zone=st.sampled_from(sorted(WINDOWS)), minutes=st.integers(0, 525_600))
def test_next_tick_is_the_first_of_the_due_ticks(text: str, zone: str, minutes: int) -> None:
    schedule, tz = parse_schedule(text), find_zone(zone) or UTC
    after_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 60 * minutes + 0.5
    tick = next_tick(schedule, tz, after_s)
    assert tick is not None and tick > after_s
    found, _ = due_ticks(schedule, tz, after_s, tick, 5)
    assert found == [tick]


def test_due_ticks_above_the_limit_are_the_newest_and_say_that_more_exist() -> None:
    found, more = due_ticks(parse_schedule("* * * * *"), UTC, 0.0, 6000.0, 10)
    assert more and found == [5460 + 60 * n for n in range(10)]


def times(text: str, zone: str, day: str, hours: int = 24) -> list[str]:
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    found, _ = due_ticks(
        parse_schedule(text), find_zone(zone) or UTC, start.timestamp(), start.timestamp() + 3600 * hours, 500
    )
    return [datetime.fromtimestamp(tick, UTC).strftime("%H:%M") for tick in found]


@pytest.mark.parametrize(
    ("text", "zone", "day", "expected"),
    [
        # Skipped local times run once at the first instant after the gap; repeated ones run at their first occurrence.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["01:00"]),
        ("*/15 2 29 3 *", "Europe/Berlin", "2026-03-29", ["01:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T22:00", ["00:30"]),
        ("30 1 * * *", "America/New_York", "2026-11-01", ["05:30"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["15:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["14:45"]),
        ("0 0 * * *", "UTC", "2026-03-28T12:00", ["00:00"]),
    ],
)
def test_fixed_time_when_the_clocks_change_is_due_once(text: str, zone: str, day: str, expected: list[str]) -> None:
    assert times(text, zone, day) == expected


def test_hourly_schedule_when_the_clocks_change_follows_elapsed_time() -> None:
    for day in ("2026-03-29", "2026-10-25"):
        assert len(times("30 * * * *", "Europe/Berlin", day)) == 24


def test_leap_day_is_found_eight_years_ahead() -> None:
    tick = next_tick(parse_schedule("0 0 29 2 *"), UTC, datetime(2096, 3, 1, tzinfo=UTC).timestamp())
    assert tick == int(datetime(2104, 2, 29, tzinfo=UTC).timestamp())


def test_time_zone_that_is_not_listed_is_not_found() -> None:
    assert find_zone("../../etc/passwd") is None and find_zone("Europe/Nowhere") is None
    assert {"Europe/Berlin", "America/New_York", "Australia/Lord_Howe"} <= zone_names()
