"""Region: a failure domain with a cell of its own. `report` is what the region says, `health` what global concludes."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount
from holdfast.model.quota import GrantClass
from holdfast.model.validation import Causes, check_dns_label, check_range, check_unique, forbidden, required


class RegionSpec(Part, frozen=True):
    """`endpoint` is where other regions look for it; `lostAfterSeconds` of silence everywhere make it count as lost."""

    zones: tuple[str, ...] = ()
    residency: tuple[str, ...] = ()
    endpoint: str = ""
    cost: int = shown(100)
    lost_after_seconds: float = shown(45.0)


class SeenPeer(Part, frozen=True):
    """What one region's probe of another found."""

    region: str
    reachable: bool = shown(False)
    at: str = ""


class ZoneReport(Part, frozen=True):
    """One zone's part of the region: how many nodes, and what those that are heard can hold."""

    zone: str
    nodes: int = shown(0)
    live_nodes: int = shown(0)
    capacity: dict[str, Amount] = {}


class HeldPlaces(Part, frozen=True):
    """Recovery places of one shape in one zone, as the region really keeps them."""

    budget: str
    zone: str
    slot: int = shown(0)
    resources: dict[str, Amount] = {}
    kept: int = shown(0)
    drawn: int = shown(0)


class StrayGrant(Part, frozen=True):
    """What a region holds for a tenant though the global cell has no Grant that says so: it was restored since."""

    tenant: str
    grant_class: GrantClass = shown(GrantClass.NORMAL)
    held: dict[str, Amount] = {}


class PolicyTrial(Part, frozen=True):
    """How a guarded policy revision does in this region, over its guard's window: replicas for which a place was
    proposed, those of them the authority refused, those without a place, and how long the oldest request has waited."""

    revision: str
    decisions: int = shown(0)
    proposed: int = shown(0)
    refused: int = shown(0)
    unplaced: int = shown(0)
    oldest_pending_seconds: float = shown(0.0)


class RegionReport(Part, frozen=True):
    """Written by the region itself with each heartbeat; its age is evidence, nothing more. `answered` is the newest
    incarnation of the global cell that the region has told all it holds, `strays` what that cell did not know of."""

    at: str = ""
    sequence: int = 0
    incarnation: int = 0
    nodes: int = shown(0)
    live_nodes: int = shown(0)
    capacity: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    held: dict[str, Amount] = {}
    pending: int = shown(0)
    peers: tuple[SeenPeer, ...] = ()
    policy: str = ""
    zones: tuple[ZoneReport, ...] = ()
    places: tuple[HeldPlaces, ...] = ()
    answered: int = 0
    strays: tuple[StrayGrant, ...] = ()
    trial: PolicyTrial | None = None


class HealthState(enum.StrEnum):
    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    LOST = "Lost"
    AWAITING_WITNESS = "AwaitingWitness"


class RegionHealth(Part, frozen=True):
    """`heardAt` is when global saw the report's sequence move, on its own clock: regions' clocks are not compared."""

    state: HealthState = shown(HealthState.UNKNOWN)
    since: str = ""
    heard_at: str = ""
    heard_sequence: int = 0
    reason: str = ""
    message: str = ""


class RegionStatus(Part, frozen=True):
    """`awaited` is set by a restore of the global cell: its incarnation, for which the region must answer first."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    report: RegionReport | None = None
    health: RegionHealth = msgspec.field(default_factory=RegionHealth)
    awaited: int = 0


class Region(Object, frozen=True):
    spec: RegionSpec = msgspec.field(default_factory=RegionSpec)
    status: RegionStatus = msgspec.field(default_factory=RegionStatus)


def validate_region(region: Region, old: Region | None) -> Causes:
    yield from check_dns_label("metadata.name", region.metadata.name)
    if not region.spec.zones:
        yield required("spec.zones", "at least one zone")
    yield from check_unique("spec.zones", region.spec.zones)
    for index, zone in enumerate(region.spec.zones):
        yield from check_dns_label(f"spec.zones[{index}]", zone)
    yield from check_range("spec.lostAfterSeconds", region.spec.lost_after_seconds, 5, 3600)
    for index, tag in enumerate(region.spec.residency):
        yield from check_dns_label(f"spec.residency[{index}]", tag)
    known = old.status.report if old is not None else None
    report = region.status.report
    if known is not None and report is not None and report.incarnation < known.incarnation:
        # A process that still works on what a restore replaced.
        yield forbidden("status.report.incarnation", f"incarnations only rise; {known.incarnation} was heard")
