"""maintenance: turns each occurrence of a MaintenanceWindow into an Override, and ends it. Owns
MaintenanceWindow.status.

- The Override is created `noticeSeconds` before the start, so that the region has it even if it is cut off later. It
  expires at the end by itself, in every cell and on a monotonic clock.
- A window that is changed, suspended or deleted has its Override revoked.
- At most one occurrence is in force at a time. One that would begin before the one before it ended is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import tzinfo

import msgspec

from holdfast.fleet.cron_ticks import due_ticks, next_tick
from holdfast.model.cron_schedule import BadSchedule, CronSchedule, parse_schedule
from holdfast.model.maintenance_window import (
    MaintenanceWindow,
    MaintenanceWindowSpec,
    MaintenanceWindowStatus,
    WindowPhase,
    duration_s,
    local_time,
)
from holdfast.model.meta import Condition, Key, ObjectMeta
from holdfast.model.override import (
    EXPIRED,
    REVOKED,
    Override,
    OverrideKind,
    OverrideScope,
    OverrideSpec,
    PlannedMaintenance,
)
from holdfast.model.reasons import Reason
from holdfast.model.times import micro_text, seconds_text
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Notice, Outcome, SetStatus, Update, Write

FindZone = Callable[[str], tzinfo | None]

# Interval at which windows are looked at again, besides the timer of the next phase.
RECHECK_S = 60.0
# Recurring starts that one decision looks at. An occurrence that lasts longer than so many periods is cut to them.
_STARTS_MAX = 50


class Occurrence(msgspec.Struct, frozen=True):
    starts_s: float
    ends_s: float


def decider(find_zone: FindZone) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function. `find_zone` finds a loaded time zone by name."""

    def decide(key: Key, view: View, now: float) -> Outcome:
        window: MaintenanceWindow | None = view.get(MaintenanceWindow, key.name)
        mine = [o for o in view.list(Override) if o.spec.maintenance is not None and not _has_ended(o)]
        mine = [o for o in mine if o.spec.maintenance is not None and o.spec.maintenance.window == key.name]
        if window is None or window.metadata.terminating:
            return Outcome(writes=tuple(_revoke(o) for o in mine)) if mine else NO_CHANGES
        return _decide(window, mine, view, now, find_zone)

    return decide


def _decide(window: MaintenanceWindow, mine: list[Override], view: View, now: float, find_zone: FindZone) -> Outcome:
    spec, zone = window.spec, find_zone(window.spec.time_zone)
    found: Occurrence | None = None
    problem = ""
    if zone is None:
        problem = f"time zone {spec.time_zone} is not in this release's time zone data"
    else:
        try:
            found = occurrence(spec, zone, now)
        except (BadSchedule, ValueError) as bad:  # stored by another release
            problem = str(bad)
    phase = _phase(spec, found, now)
    wanted = _override(window, found, now) if found is not None and phase in _IN_FORCE else None
    name = wanted.metadata.name if wanted is not None else ""
    writes: list[Write] = [_revoke(o) for o in mine if o.metadata.name != name]
    notices: list[Notice] = []
    if wanted is not None and not any(o.metadata.name == name for o in mine):
        ended_early = window.status.override == name and window.status.phase == WindowPhase.ENDED
        if ended_early or view.get(Override, name) is not None:
            phase = WindowPhase.ENDED  # an operator revoked its Override: this occurrence is over
        else:
            writes.append(Create(wanted))
    condition = _condition(window, phase, problem)
    status = MaintenanceWindowStatus(
        phase=phase.value,
        starts_at=seconds_text(found.starts_s) if found is not None else "",
        ends_at=seconds_text(found.ends_s) if found is not None else "",
        override=name,
    )
    if phase.value != window.status.phase and window.status.phase:
        said = f"{window.status.phase} → {phase.value}: {condition.message}"
        notices.append(Notice(window, condition.reason, said))
    writes += _status_write(window, status, condition)
    return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=_next_s(spec, found, now))


_IN_FORCE = frozenset({WindowPhase.NOTICE, WindowPhase.ACTIVE})


def occurrence(spec: MaintenanceWindowSpec, zone: tzinfo, now: float) -> Occurrence | None:
    """The occurrence that goes on now or has been announced, else the next one; None if there is none any more."""
    first_s, lasts_s = local_time(spec.start).replace(tzinfo=zone).timestamp(), duration_s(spec)
    if now < first_s + lasts_s or not spec.recurrence:
        return Occurrence(first_s, first_s + lasts_s) if now < first_s + lasts_s else None
    schedule: CronSchedule = parse_schedule(spec.recurrence)
    recent, _ = due_ticks(schedule, zone, max(first_s, now - lasts_s), now, _STARTS_MAX)
    begun_s = next((tick for tick in recent if tick >= first_s + lasts_s and tick + lasts_s > now), None)
    if begun_s is not None:
        return Occurrence(float(begun_s), begun_s + lasts_s)
    tick = next_tick(schedule, zone, now)
    return Occurrence(float(tick), tick + lasts_s) if tick is not None else None


def _phase(spec: MaintenanceWindowSpec, found: Occurrence | None, now: float) -> WindowPhase:
    if spec.suspend:
        return WindowPhase.SUSPENDED
    if found is None:
        return WindowPhase.ENDED
    if now >= found.starts_s:
        return WindowPhase.ACTIVE
    return WindowPhase.NOTICE if now >= found.starts_s - spec.notice_seconds else WindowPhase.SCHEDULED


def _override(window: MaintenanceWindow, found: Occurrence, now: float) -> Override:
    """The Override of the occurrence. Its name has the start and the generation, so that a changed window gets a new
    one."""
    spec = window.spec
    name = f"maintenance-{window.metadata.name}-{int(found.starts_s) // 60}-g{window.metadata.generation}"
    kind = OverrideKind.AVOID_ZONE if spec.zone else OverrideKind.AVOID_REGION
    return Override(
        metadata=ObjectMeta(name=name),
        spec=OverrideSpec(
            kind=kind,
            scope=OverrideScope(region=spec.region, zone=spec.zone),
            reason=f"maintenance by {spec.owner}: {spec.reason}",
            ttl_seconds=max(1.0, found.ends_s - now),
            maintenance=PlannedMaintenance(
                window=window.metadata.name, starts_at=micro_text(found.starts_s), nodes=spec.nodes, drain=spec.drain
            ),
        ),
    )


def _revoke(override: Override) -> Write:
    return Update(msgspec.structs.replace(override, spec=msgspec.structs.replace(override.spec, revoked=True)))


def _has_ended(override: Override) -> bool:
    return override.spec.revoked or override.status.phase in (EXPIRED, REVOKED)


def _condition(window: MaintenanceWindow, phase: WindowPhase, problem: str) -> Condition:
    spec = window.spec
    where = f"nodes {', '.join(spec.nodes)}" if spec.nodes else f"zone {spec.zone}" if spec.zone else "region"
    texts = {
        WindowPhase.SCHEDULED: "no effect yet",
        WindowPhase.NOTICE: f"{where} of {spec.region}: gets no work that cannot finish or move before the start",
        WindowPhase.ACTIVE: f"{where} of {spec.region}: gets no work" + (", and is drained" if spec.drain else ""),
        WindowPhase.SUSPENDED: "spec.suspend is set",
        WindowPhase.ENDED: "no occurrence is left, or it was ended early",
    }
    reason = Reason.MAINTENANCE_ACTIVE if phase is WindowPhase.ACTIVE else Reason.MAINTENANCE_PLANNED
    if problem:
        reason = Reason.SCHEDULE_UNUSABLE
    return Condition(
        type="Active",
        status="True" if phase is WindowPhase.ACTIVE else "False",
        reason=reason,
        message=problem or texts[phase],
        observed_generation=window.metadata.generation,
    )


def _status_write(window: MaintenanceWindow, status: MaintenanceWindowStatus, condition: Condition) -> list[Write]:
    old = window.status
    known = {c.type: (c.status, c.reason, c.message) for c in old.conditions}
    same = known.get(condition.type) == (condition.status, condition.reason, condition.message)
    fields = ("phase", "starts_at", "ends_at", "override")
    current = old.observed_generation == window.metadata.generation
    if same and current and all(getattr(old, name) == getattr(status, name) for name in fields):
        return []
    blocks = {"phase": status.phase, "startsAt": status.starts_at, "endsAt": status.ends_at}
    return [
        SetStatus(
            "MaintenanceWindow",
            window.key,
            window.uid,
            blocks={**blocks, "override": status.override},
            conditions=(condition,),
            observed_generation=window.metadata.generation,
        )
    ]


def _next_s(spec: MaintenanceWindowSpec, found: Occurrence | None, now: float) -> float | None:
    if found is None or spec.suspend:
        return None
    moments = (found.starts_s - spec.notice_seconds, found.starts_s, found.ends_s)
    return min(RECHECK_S, min((at_s - now + 0.01 for at_s in moments if at_s > now), default=RECHECK_S))


def keys(view: View) -> Iterable[Key]:
    """All windows, and deleted ones whose Override is still in force."""
    found = {w.key for w in view.list(MaintenanceWindow)}
    for override in view.list(Override):
        if override.spec.maintenance is not None and not _has_ended(override):
            found.add(Key("", override.spec.maintenance.window))
    return sorted(found)


def woken_by_window(new: MaintenanceWindow | None, old: MaintenanceWindow | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None or (new is not None and old is not None and new.metadata.generation == old.metadata.generation):
        return ()
    return (item.key,)


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    """Wakes the window when its Override ends."""
    item = new or old
    if item is None or item.spec.maintenance is None:
        return ()
    return (Key("", item.spec.maintenance.window),)
