"""Latency between regions, as their links measure it, and the regions that meet a workload's latency target. Pure.

A measurement that is too old, or of a peer that does not answer, counts as unknown; an unknown latency meets no target.
The target orders regions when replicas are assigned. It never forbids one: if no region is known to meet it, all count.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model import input_freshness
from holdfast.model.region import PeerProbeResult, Region
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.workload import Workload


def latency_ms(region: str, to: str, view: View, now: float) -> float | None:
    """Round trip between two regions in milliseconds, measured by either; None if it is unknown."""
    if region == to:
        return 0.0
    found = [
        probe.latency_ms
        for here, there in ((region, to), (to, region))
        if (probe := _probe(view.get(Region, here), there)) is not None and _is_usable(probe, now)
    ]
    return min(found, default=None)


def _probe(region: Region | None, peer: str) -> PeerProbeResult | None:
    report = region.status.report if region is not None else None
    return next((probe for probe in report.peers if probe.region == peer), None) if report is not None else None


def _is_usable(probe: PeerProbeResult, now: float) -> bool:
    fresh = bool(probe.at) and abs(now - parse_time(probe.at)) <= input_freshness.PEER_LATENCY.seconds
    return probe.reachable and probe.latency_ms > 0 and fresh


def near_regions(workload: Workload, regions: Sequence[Region], view: View, now: float) -> list[Region]:
    """The regions that meet the workload's latency target; all of them if it has none or no region is known to."""
    target = workload.spec.placement.latency
    if target is None:
        return list(regions)
    near = [r for r in regions if meets_target(workload, r.metadata.name, view, now)]
    return near or list(regions)


def meets_target(workload: Workload, region: str, view: View, now: float) -> bool:
    target = workload.spec.placement.latency
    if target is None:
        return True
    measured = latency_ms(region, target.to_region, view, now)
    return measured is not None and measured <= target.max_ms


def latency_text(workload: Workload, region: str, view: View, now: float) -> str:
    """The measured latency and the target, for the reason of an Assignment; empty without a target."""
    target = workload.spec.placement.latency
    if target is None:
        return ""
    measured = latency_ms(region, target.to_region, view, now)
    found = "unknown" if measured is None else f"{measured:g} ms"
    missed = "" if measured is not None and measured <= target.max_ms else ", missed"
    return f"latency to {target.to_region} {found} (target {target.max_ms:g} ms{missed})"
