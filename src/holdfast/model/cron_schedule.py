"""Cron schedules: parses the five fields, and says which local days and times match. Pure; knows no time zone.

- The syntax is that of Kubernetes: `*`, `?`, numbers, names, lists, ranges, steps, and `@hourly` to `@yearly`.
- If both the day of the month and the day of the week are restricted, a day that matches either one matches.
"""

from __future__ import annotations

import calendar
from datetime import date

import msgspec

# Characters of one schedule. A longer one is refused: no real schedule needs more, and every decision parses it.
SCHEDULE_CHARS_MAX = 200

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EXAMPLE = "for example '30 2 * * MON-FRI' or '@hourly'"
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
# Longest day of each month, February in a leap year.
_LAST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class BadSchedule(ValueError):
    """The text is not a schedule. The message says what is wrong and shows an example."""


class _Field(msgspec.Struct, frozen=True):
    name: str
    low: int
    high: int
    names: dict[str, int] = {}


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


class CronSchedule(msgspec.Struct, frozen=True):
    """The parsed schedule. Weekdays count from Sunday, 0. `any_day` and `any_weekday`: the field is `*` or `?`."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    any_day: bool
    any_weekday: bool

    @property
    def every_hour(self) -> bool:
        """Whether the schedule follows elapsed time, not the time of day, when clocks change."""
        return len(self.hours) == 24

    def matches_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month and in_week if self.any_day or self.any_weekday else in_month or in_week


def parse_schedule(text: str) -> CronSchedule:
    """The schedule. Raises BadSchedule."""
    if len(text) > SCHEDULE_CHARS_MAX:
        raise BadSchedule(f"must be at most {SCHEDULE_CHARS_MAX} characters, found {len(text)}")
    if text.lstrip().upper().startswith(("TZ=", "CRON_TZ=")):
        raise BadSchedule("must not name a time zone; set spec.timeZone instead")
    written = text.strip()
    if written.startswith("@"):
        macro = MACROS.get(written.lower())
        if macro is None:
            raise BadSchedule(f"unknown macro {written!r}; use one of {', '.join(MACROS)}")
        written = macro
    parts = written.split()
    if len(parts) != len(_FIELDS):
        raise BadSchedule(f"must have five fields (minute hour day month weekday), found {len(parts)}; {EXAMPLE}")
    minutes, hours, days, months, weekdays = (
        _parse_field(part, field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    made = CronSchedule(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=tuple(sorted({number % 7 for number in weekdays})),
        any_day=parts[2] in ("*", "?"),
        any_weekday=parts[4] in ("*", "?"),
    )
    if made.any_weekday and not any(_LAST_DAYS[month - 1] >= made.days[0] for month in made.months):
        raise BadSchedule("never matches: none of its months has such a day")
    return made


def _parse_field(text: str, field: _Field) -> tuple[int, ...]:
    found: set[int] = set()
    for item in text.split(","):
        found.update(_parse_item(item, field))
    return tuple(sorted(found))


def _parse_item(item: str, field: _Field) -> range:
    """One element of a list: `*`, `5`, `1-5`, each with an optional `/step`."""
    span, slash, step_text = item.partition("/")
    step = _number(step_text, field, "step") if slash else 1
    if step < 1:
        raise BadSchedule(f"{field.name}: step {step_text!r} must be at least 1; {EXAMPLE}")
    if span in ("*", "?"):
        # The weekday 7 is Sunday again; a step over all days must not count it twice.
        return range(field.low, (6 if field.high == 7 else field.high) + 1, step)
    first, dash, last = span.partition("-")
    low = _value(first, field)
    high = _value(last, field) if dash else field.high if slash else low
    if high < low:
        raise BadSchedule(f"{field.name}: range {span!r} ends before it begins; write it as two ranges")
    return range(low, high + 1, step)


def _value(text: str, field: _Field) -> int:
    named = field.names.get(text.lower())
    number = named if named is not None else _number(text, field, "value")
    if not field.low <= number <= field.high:
        raise BadSchedule(f"{field.name}: {number} is not in {field.low}-{field.high}; {EXAMPLE}")
    return number


def _number(text: str, field: _Field, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise BadSchedule(
            f"{field.name}: {what} {text!r} is not a number{' or name' if field.names else ''}; {EXAMPLE}"
        )
    return int(text)
