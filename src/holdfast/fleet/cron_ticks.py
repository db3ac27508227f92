"""Ticks: the instants at which a schedule is due in a time zone. Pure; the zone comes in as a value.

When clocks change, a schedule for certain hours keeps one tick for each time of day, as in Vixie cron:
- A time that the clocks skip is due at the first instant after the gap. Several skipped times become one tick.
- A time that occurs twice is due at its first occurrence.
A schedule for every hour follows elapsed time instead: skipped times are no ticks, and repeated ones are due twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from holdfast.model.cron_schedule import CronSchedule

# Days searched for the next tick. 29 February can be eight years away.
NEXT_TICK_DAYS_MAX = 9 * 366
# Days searched back for due ticks. Older ones are not looked at.
DUE_TICK_DAYS_MAX = 9 * 366
# Days whose ticks are cached. A schedule uses one or two at a time; above the bound they are computed again.
DAYS_CACHED_MAX = 1024
_DAY = timedelta(days=1)


def next_tick(schedule: CronSchedule, zone: tzinfo, after_s: float) -> int | None:
    """The first tick after an instant, or None if none is near."""
    day = _local_day(zone, after_s) - _DAY
    for _ in range(NEXT_TICK_DAYS_MAX):
        for tick in _ticks_of_day(schedule, zone, day):
            if tick > after_s:
                return tick
        day += _DAY
    return None


def due_ticks(
    schedule: CronSchedule, zone: tzinfo, after_s: float, until_s: float, limit: int
) -> tuple[list[int], bool]:
    """The newest ticks in (after, until], oldest first, and whether there may be more than `limit`."""
    if until_s <= after_s:
        return [], False
    found: list[int] = []
    day, first = _local_day(zone, until_s) + _DAY, _local_day(zone, after_s) - _DAY
    for _ in range(DUE_TICK_DAYS_MAX):
        if day < first:
            return found[::-1], False
        for tick in reversed(_ticks_of_day(schedule, zone, day)):
            if after_s < tick <= until_s and (not found or tick < found[-1]):
                if len(found) == limit:
                    return found[::-1], True
                found.append(tick)
        day -= _DAY
    return found[::-1], True


def _local_day(zone: tzinfo, at_s: float) -> date:
    return datetime.fromtimestamp(at_s, UTC).astimezone(zone).date()


@lru_cache(DAYS_CACHED_MAX)
def _ticks_of_day(schedule: CronSchedule, zone: tzinfo, day: date) -> tuple[int, ...]:
    """The ticks whose time of day is on a local day, in order."""
    if not schedule.matches_day(day):
        return ()
    found: set[int] = set()
    for hour in schedule.hours:
        for minute in schedule.minutes:
            found.update(_instants(datetime.combine(day, time(hour, minute)), zone, schedule.every_hour))
    return tuple(sorted(found))


def _instants(local: datetime, zone: tzinfo, every_hour: bool) -> Iterator[int]:
    """The instants at which a local time is due."""
    first, second = (_instant(local.replace(fold=fold), zone) for fold in (0, 1))
    if first == second:
        yield first
    elif first < second:  # the time occurs twice
        yield first
        if every_hour:
            yield second
    elif not every_hour:  # the clocks skip the time: `second` lies before the change, `first` after it
        yield _change_between(zone, second, first)


def _instant(local: datetime, zone: tzinfo) -> int:
    return int(local.replace(tzinfo=zone).timestamp())


def _change_between(zone: tzinfo, before_s: int, after_s: int) -> int:
    """The first instant at which the offset of `after_s` holds, to the minute."""
    offset = _offset(zone, after_s)
    low, high = before_s // 60, after_s // 60
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle * 60) == offset:
            high = middle
        else:
            low = middle
    return high * 60


def _offset(zone: tzinfo, at_s: int) -> timedelta | None:
    return datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()
