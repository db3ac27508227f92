"""region-health: how well a region is heard. Owns Region.status but for the region's own report.

Graded evidence. Silence makes a region Suspect, which stops new assignments and nothing else. Lost needs silence here
and towards most of the regions that still report. "Is it me?" comes first: when nobody is heard, nothing is concluded.
Without a witness it is `AwaitingWitness`, and only an operator's override goes further.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model import ages, limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import Condition, Key, with_condition
from holdfast.model.override import Override, OverrideKind, in_force, is_about
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, scaled, shortfall
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region, RegionHealth
from holdfast.model.template import requests
from holdfast.model.times import micro_text, parse_time, seconds_text
from holdfast.model.view import View
from holdfast.model.writes import NOTHING, Notice, Outcome, SetStatus

CAPACITY_LOST = "CapacityLost"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    state: HealthState
    reason: Reason
    message: str
    next_s: float


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one region."""
    region = view.get(Region, key.name)
    if region is None:
        return NOTHING
    declared = _declared_lost(region, view, now)
    if region.status.report is None and not declared:
        return NOTHING
    old, report = region.status.health, region.status.report
    sequence = report.sequence if report is not None else 0
    news = report is not None and sequence != old.heard_sequence
    heard_s = now if news or not old.heard_at else parse_time(old.heard_at)
    verdict = declared or grade(region, now - heard_s, view, now)
    condition = _capacity(region, view)
    known = region.status.conditions
    same = verdict.state is old.state and verdict.reason == old.reason and not news
    if same and with_condition(known, condition, seconds_text(now)) == known:
        return Outcome(again_in_s=verdict.next_s)
    health = RegionHealth(
        state=verdict.state,
        since=old.since if verdict.state is old.state else micro_text(now),
        heard_at=micro_text(heard_s),
        heard_sequence=sequence,
        reason=verdict.reason,
        message=verdict.message,
    )
    write = SetStatus("Region", region.key, region.uid, blocks={"health": health}, conditions=(condition,))
    notices: tuple[Notice, ...] = ()
    if verdict.state is not old.state:
        said = f"{old.state.value} → {verdict.state.value}: {verdict.message}"
        notices = (Notice(region, verdict.reason, said, warning=verdict.state is not HealthState.HEALTHY),)
    return Outcome(writes=(write,), notices=notices, again_in_s=verdict.next_s)


def suspect_after_s(region: Region) -> float:
    """A summary past its age assigns nothing, however patient the region's own setting is."""
    return min(region.spec.lost_after_seconds * limits.REGION_SUSPECT_PART, ages.REGION_SUMMARY.seconds)


def silence_s(region: Region, now: float) -> float:
    """How long ago its report last moved, by this cell's own clock; endless before the first."""
    heard_at = region.status.health.heard_at
    return now - parse_time(heard_at) if heard_at else float("inf")


def grade(region: Region, silent_s: float, view: View, now: float) -> Verdict:
    """What this silence allows to conclude, and when it would allow another conclusion."""
    ago = f"last report {silent_s:.0f} s ago"
    suspect_s, lost_s = suspect_after_s(region), region.spec.lost_after_seconds
    if silent_s < suspect_s:
        return Verdict(HealthState.HEALTHY, Reason.HEARD, "it reports", suspect_s - silent_s + 0.05)
    if silent_s < lost_s:
        return Verdict(HealthState.SUSPECT, Reason.SILENT, ago, lost_s - silent_s + 0.05)
    others = [r for r in view.list(Region) if r.metadata.name != region.metadata.name and r.status.report is not None]
    heard = [r for r in others if silence_s(r, now) < suspect_after_s(r)]
    again_s = limits.REGION_LOOK_EVERY_S
    if others and not heard:
        message = f"{ago}, and none of the other {len(others)} region(s) is heard either"
        return Verdict(HealthState.SUSPECT, Reason.IS_IT_ME, message, again_s)
    seeing = {r.metadata.name: _sees(r, region.metadata.name) for r in heard}
    against = sorted(name for name, reaches in seeing.items() if reaches is False)
    still = sorted(name for name, reaches in seeing.items() if reaches)
    if 2 * len(against) > len(heard):
        message = f"{ago}; {', '.join(against)} cannot reach it either"
        return Verdict(HealthState.LOST, Reason.WITNESSED, message, again_s)
    if still:
        message = f"{ago}; {', '.join(still)} still reach(es) it: probably only its link to the global cell is cut"
        return Verdict(HealthState.AWAITING_WITNESS, Reason.WITNESS_DISAGREES, message, again_s)
    message = f"{ago}; no other region says what it sees. An Override of kind DeclareRegionLost proceeds"
    return Verdict(HealthState.AWAITING_WITNESS, Reason.NO_WITNESS, message, again_s)


def _sees(witness: Region, name: str) -> bool | None:
    """Whether a region's last probes reached another one; None when it has not said."""
    report = witness.status.report
    peers = report.peers if report is not None else ()
    return next((p.reachable for p in peers if p.region == name), None)


def _declared_lost(region: Region, view: View, now: float) -> Verdict | None:
    for override in in_force(view.list(Override), OverrideKind.DECLARE_REGION_LOST, now):
        if is_about(override, region=region.metadata.name, tenant=None, workload=None):
            message = f"override {override.metadata.name} by {override.spec.requester}: {override.spec.reason}"
            return Verdict(HealthState.LOST, Reason.DECLARED_LOST, message, limits.REGION_LOOK_EVERY_S)
    return None


def lost_zones(region: Region) -> tuple[str, ...]:
    """Zones that have nodes, none of which is heard: the region's own word."""
    report = region.status.report
    if report is None:
        return ()
    return tuple(z.zone for z in report.zones if z.nodes and not z.live_nodes)


def _capacity(region: Region, view: View) -> Condition:
    """Whether the region, by its own report, can still hold what it was given."""
    report = region.status.report
    zones = lost_zones(region)
    short: Amounts = {}
    if report is not None and report.nodes and report.live_nodes < report.nodes:
        given: Amounts = {}
        for item in view.by(Assignment, "region", region.metadata.name):
            if item.spec.purpose is Purpose.NORMAL and not item.spec.reclaimable and item.spec.batch is None:
                add(given, scaled(requests(item.spec.template), item.spec.replicas))
        short = shortfall(given, amounts(report.capacity))
    lost = bool(zones or short)
    parts = [f"zone {zone} is gone" for zone in zones]
    parts += [f"{name} is short by {text}" for name, text in amounts_text(short).items()]
    return Condition(
        type=CAPACITY_LOST,
        status="True" if lost else "False",
        reason=Reason.CAPACITY_LOST if lost else Reason.CAPACITY_PRESENT,
        message="; ".join(parts) or "all zones have live nodes",
        observed_generation=region.metadata.generation,
    )


def keys(view: View) -> Iterable[Key]:
    return [r.key for r in view.list(Region)]


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    if new is None or (old is not None and new.status.report == old.status.report and new.spec == old.spec):
        return ()
    return (new.key,)


def woken_by_override(new: object, old: object, view: View) -> Iterable[Key]:
    return keys(view)
