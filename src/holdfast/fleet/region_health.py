"""region-health: failure detector for regions. Owns Region.status except `report`, which the region writes.

- A region that stops reporting is Suspect. It gets no new Assignments; nothing else changes.
- If it is also unreachable for a majority of the regions that still report, it is Lost.
- Without that majority it is AwaitingWitness. Only an operator's override declares it lost.
- No other region reports either: the global cell may be isolated, so the region stays Suspect (GlobalCellIsolated).
- Planned maintenance of the region changes none of this, because what still runs there must be recovered. Its absence
  is only reported as planned: no warning, and no alert.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model import input_freshness
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import Condition, Key, with_condition
from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope, maintenance_of_region
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, scaled, shortfall
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region, RegionHealth
from holdfast.model.template import requests
from holdfast.model.times import micro_text, parse_time, seconds_text
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus

# Fraction of `lostAfterSeconds` without a report that makes a region Suspect, bounded by the maximum age of a region
# summary. With the default of 45 s, two reports are missing then.
REGION_SUSPECT_FRACTION = 4 / 9
# Interval at which the health of a region that does not report is assessed again.
REGION_CHECK_EVERY_S = 1.0

CAPACITY_LOST = "CapacityLost"


class HealthAssessment(msgspec.Struct, frozen=True, gc=False):
    state: HealthState
    reason: Reason
    message: str
    next_s: float


def decide(key: Key, view: View, now: float) -> Outcome:
    """The health and the CapacityLost condition of one region."""
    region = view.get(Region, key.name)
    if region is None:
        return NO_CHANGES
    declared = _declared_lost(region, view, now)
    if region.status.report is None and not declared:
        return NO_CHANGES
    old, report = region.status.health, region.status.report
    sequence = report.sequence if report is not None else 0
    news = report is not None and sequence != old.last_sequence
    last_contact_s = now if news or not old.last_contact_at else parse_time(old.last_contact_at)
    assessment = declared or assess(region, now - last_contact_s, view, now)
    condition = _capacity(region, view)
    known = region.status.conditions
    same = assessment.state is old.state and assessment.reason == old.reason and not news
    if same and with_condition(known, condition, seconds_text(now)) == known:
        return Outcome(requeue_after_s=assessment.next_s)
    health = RegionHealth(
        state=assessment.state,
        since=old.since if assessment.state is old.state else micro_text(now),
        last_contact_at=micro_text(last_contact_s),
        last_sequence=sequence,
        reason=assessment.reason,
        message=assessment.message,
    )
    write = SetStatus(
        "Region",
        region.key,
        region.uid,
        blocks={"health": health},
        conditions=(condition,),
        observed_generation=region.metadata.generation,
    )
    notices: tuple[Notice, ...] = ()
    if assessment.state is not old.state:
        message = f"{old.state.value} → {assessment.state.value}: {assessment.message}"
        planned = maintenance_of_region(view.list(Override), region.metadata.name, now)
        if planned is not None:
            message += f"; planned: {planned.spec.reason}, until {planned.status.expires_at}"
        unhealthy = assessment.state is not HealthState.HEALTHY
        notices = (Notice(region, assessment.reason, message, warning=unhealthy and planned is None),)
    return Outcome(writes=(write,), notices=notices, requeue_after_s=assessment.next_s)


def suspect_after_s(region: Region) -> float:
    """Seconds without a report after which a region is Suspect; at most the maximum age of a region summary."""
    return min(region.spec.lost_after_seconds * REGION_SUSPECT_FRACTION, input_freshness.REGION_SUMMARY.seconds)


def silence_s(region: Region, now: float) -> float:
    """Time since the report's sequence last changed, by this cell's clock; infinite before the first report."""
    last_contact_at = region.status.health.last_contact_at
    return now - parse_time(last_contact_at) if last_contact_at else float("inf")


def assess(region: Region, silent_s: float, view: View, now: float) -> HealthAssessment:
    """Health of a region that last reported `silent_s` ago, and the delay until the next assessment."""
    silence = f"no report for {silent_s:.0f} s"
    suspect_s, lost_s = suspect_after_s(region), region.spec.lost_after_seconds
    if silent_s < suspect_s:
        return HealthAssessment(
            HealthState.HEALTHY, Reason.REPORTING, "the region reports", suspect_s - silent_s + 0.05
        )
    if silent_s < lost_s:
        return HealthAssessment(HealthState.SUSPECT, Reason.NOT_REPORTING, silence, lost_s - silent_s + 0.05)
    others = [r for r in view.list(Region) if r.metadata.name != region.metadata.name and r.status.report is not None]
    reporting = [r for r in others if silence_s(r, now) < suspect_after_s(r)]
    again_s = REGION_CHECK_EVERY_S
    if others and not reporting:
        message = f"{silence}, and none of the other {len(others)} region(s) reports either"
        return HealthAssessment(HealthState.SUSPECT, Reason.GLOBAL_CELL_ISOLATED, message, again_s)
    probes = {r.metadata.name: _probe_result(r, region.metadata.name) for r in reporting}
    against = sorted(name for name, reaches in probes.items() if reaches is False)
    still = sorted(name for name, reaches in probes.items() if reaches)
    if 2 * len(against) > len(reporting):
        message = f"{silence}; {', '.join(against)} cannot reach it either"
        return HealthAssessment(HealthState.LOST, Reason.UNREACHABLE_CONFIRMED, message, again_s)
    if still:
        message = f"{silence}; still reached by {', '.join(still)}: probably only its link to the global cell is down"
        return HealthAssessment(HealthState.AWAITING_WITNESS, Reason.WITNESS_DISAGREES, message, again_s)
    if against:
        message = (
            f"{silence}; {', '.join(against)} cannot reach it, but most of the {len(reporting)} reporting regions send "
            "no probes of it. An Override of kind DeclareRegionLost declares it lost"
        )
        return HealthAssessment(HealthState.AWAITING_WITNESS, Reason.TOO_FEW_WITNESSES, message, again_s)
    message = f"{silence}; no other region reports probes of it. An Override of kind DeclareRegionLost declares it lost"
    return HealthAssessment(HealthState.AWAITING_WITNESS, Reason.NO_WITNESS, message, again_s)


def _probe_result(witness: Region, name: str) -> bool | None:
    """Whether the witness reached the region with its last probes; None if it reports none."""
    report = witness.status.report
    peers = report.peers if report is not None else ()
    return next((p.reachable for p in peers if p.region == name), None)


def _declared_lost(region: Region, view: View, now: float) -> HealthAssessment | None:
    for override in in_force(view.list(Override), OverrideKind.DECLARE_REGION_LOST, now):
        if is_in_scope(override, region=region.metadata.name, tenant=None, workload=None):
            message = f"override {override.metadata.name} by {override.spec.requester}: {override.spec.reason}"
            return HealthAssessment(HealthState.LOST, Reason.DECLARED_LOST, message, REGION_CHECK_EVERY_S)
    return None


def lost_zones(region: Region) -> tuple[str, ...]:
    """Zones with nodes but without live nodes, by the region's report."""
    report = region.status.report
    if report is None:
        return ()
    return tuple(z.zone for z in report.zones if z.nodes and not z.live_nodes)


def _capacity(region: Region, view: View) -> Condition:
    """Condition CapacityLost: whether the reported capacity is below the assigned work, or a zone is lost."""
    report = region.status.report
    zones = lost_zones(region)
    short: Amounts = {}
    if report is not None and report.nodes and report.live_nodes < report.nodes:
        assigned: Amounts = {}
        for item in view.by(Assignment, "region", region.metadata.name):
            if item.spec.purpose is Purpose.NORMAL and not item.spec.reclaimable and item.spec.batch is None:
                add(assigned, scaled(requests(item.spec.template), item.spec.replicas))
        short = shortfall(assigned, amounts(report.capacity))
    lost = bool(zones or short)
    parts = [f"zone {zone} has no live node" for zone in zones]
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
