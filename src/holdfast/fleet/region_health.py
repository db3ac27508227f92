"""region-health: how well a region is heard. Owns Region.status but for the region's own report.

Graded evidence: silence makes a region Suspect, which stops new assignments and nothing else. Long silence without
other regions' witness is `AwaitingWitness`. It never concludes loss from silence towards itself alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region, RegionHealth
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import NOTHING, Notice, Outcome, SetStatus


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one region."""
    region = view.get(Region, key.name)
    if region is None or region.status.report is None:
        return NOTHING
    old, report = region.status.health, region.status.report
    news = report.sequence != old.heard_sequence
    heard_s = now if news or not old.heard_at else parse_time(old.heard_at)
    state, reason, next_s = _grade(now - heard_s)
    if state is old.state and not news:
        return Outcome(again_in_s=next_s)
    health = RegionHealth(
        state=state,
        since=old.since if state is old.state else micro_text(now),
        heard_at=micro_text(heard_s),
        heard_sequence=report.sequence,
        reason=reason,
        message=f"last report {now - heard_s:.0f} s ago",
    )
    write = SetStatus("Region", region.key, region.uid, blocks={"health": health})
    notices: tuple[Notice, ...] = ()
    if state is not old.state:
        said = f"{old.state.value} → {state.value}: last report {now - heard_s:.0f} s ago"
        notices = (Notice(region, reason, said, warning=state is not HealthState.HEALTHY),)
    return Outcome(writes=(write,), notices=notices, again_in_s=next_s)


def _grade(silence_s: float) -> tuple[HealthState, Reason, float]:
    """The state silence allows, and when it would allow another."""
    if silence_s < limits.REGION_SUSPECT_AFTER_S:
        return HealthState.HEALTHY, Reason.HEARD, limits.REGION_SUSPECT_AFTER_S - silence_s + 0.05
    if silence_s < limits.REGION_SILENT_AFTER_S:
        return HealthState.SUSPECT, Reason.SILENT, limits.REGION_SILENT_AFTER_S - silence_s + 0.05
    return HealthState.AWAITING_WITNESS, Reason.SILENT, limits.RESYNC_S


def keys(view: View) -> Iterable[Key]:
    return [r.key for r in view.list(Region)]


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    if new is None or (old is not None and new.status.report == old.status.report):
        return ()
    return (new.key,)
