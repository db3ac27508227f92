"""Drills on a schedule: which are asked for, when they are due, and what came of the last one.

Operators write the schedules (`holdfast drill schedule`); the supervisor alone writes the ticks that it has handled. So
neither overwrites the other, and a restarted supervisor starts no drill twice.
"""

from __future__ import annotations

import msgspec

from holdfast.fleet.cron_ticks import due_ticks, next_tick
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.foundation.time_zones import find_zone
from holdfast.model.cron_schedule import BadSchedule, parse_schedule
from holdfast.platform.layout import Layout, write_atomically

SCHEDULES_MAX = 50
"""Scheduled drills of one platform. One drill runs at a time, so more would only wait for each other."""
LATE_MAX_S = 600.0
"""A drill is started at most this long after its time. If the platform was down then, the time counts as missed."""


class DrillSchedule(msgspec.Struct, frozen=True, rename="camel"):
    """`cron` is a schedule as of a CronWorkload, in local time of `timeZone`."""

    name: str
    drill: str
    region: str
    cron: str
    created_at_s: float
    time_zone: str = "UTC"


class HandledTick(msgspec.Struct, frozen=True, rename="camel"):
    at_s: float
    outcome: str


def read_schedules(layout: Layout) -> tuple[DrillSchedule, ...]:
    try:
        return msgspec.json.decode(layout.drill_schedules.read_bytes(), type=tuple[DrillSchedule, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        text = f"{layout.drill_schedules}: cannot be read ({error})"
        raise CommandError(text, next_step="move the file away and add the schedules again") from None


def add_schedule(layout: Layout, entry: DrillSchedule) -> None:
    """Adds the schedule, or replaces the one of that name. Raises CommandError if its time is not one."""
    check_times(entry)
    others = [known for known in read_schedules(layout) if known.name != entry.name]
    if len(others) >= SCHEDULES_MAX:
        text = f"drill schedule {entry.name}: not added (limit {SCHEDULES_MAX} schedules)"
        raise CommandError(text, next_step="holdfast drill schedule remove NAME", code=ExitCode.CONFLICT)
    _write(layout, (*others, entry))


def remove_schedule(layout: Layout, name: str) -> None:
    known = read_schedules(layout)
    left = tuple(entry for entry in known if entry.name != name)
    if len(left) == len(known):
        names = ", ".join(entry.name for entry in known) or "none"
        text = f"drill schedule {name}: not found (expected one of {names})"
        raise CommandError(text, next_step="holdfast drill schedule list", code=ExitCode.USAGE)
    _write(layout, left)


def check_times(entry: DrillSchedule) -> None:
    try:
        parse_schedule(entry.cron)
    except BadSchedule as bad:
        raise CommandError(f"drill schedule {entry.name}: --cron {entry.cron}: {bad}", code=ExitCode.USAGE) from None
    if find_zone(entry.time_zone) is None:
        text = f"drill schedule {entry.name}: unknown time zone {entry.time_zone} (expected one such as Europe/Berlin)"
        raise CommandError(text, code=ExitCode.USAGE)


def _write(layout: Layout, entries: tuple[DrillSchedule, ...]) -> None:
    write_atomically(layout.drill_schedules, msgspec.json.encode(sorted(entries, key=lambda entry: entry.name)))


def read_handled(layout: Layout) -> dict[str, HandledTick]:
    """The last tick of each schedule that the supervisor has handled. An unreadable file counts as none."""
    try:
        return msgspec.json.decode(layout.drill_ticks.read_bytes(), type=dict[str, HandledTick])
    except (OSError, msgspec.MsgspecError):
        return {}


def write_handled(layout: Layout, handled: dict[str, HandledTick]) -> None:
    write_atomically(layout.drill_ticks, msgspec.json.encode(handled))


def due_tick(entry: DrillSchedule, handled: HandledTick | None, now: float) -> float | None:
    """The newest tick that has come and was not handled; None if there is none. Older ones are left out."""
    zone = find_zone(entry.time_zone)
    if zone is None:
        return None
    after_s = max(entry.created_at_s, handled.at_s if handled is not None else 0.0)
    try:
        ticks, _ = due_ticks(parse_schedule(entry.cron), zone, after_s, now, 1)
    except BadSchedule:
        return None
    return ticks[-1] if ticks else None


def next_time(entry: DrillSchedule, now: float) -> float | None:
    zone = find_zone(entry.time_zone)
    return next_tick(parse_schedule(entry.cron), zone, now) if zone is not None else None
