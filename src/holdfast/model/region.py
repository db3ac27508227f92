"""Region: a failure domain with its own cell.

The region writes `status.report`; the global cell writes `status.health`.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.quota import GrantClass
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_range,
    check_unique,
    forbidden,
    invalid,
    required,
    too_long,
)

# Warnings in one report of a region. More are refused: a region reports a few about its own cell.
WARNINGS_MAX = 16
# Length of the message of a warning, and of its key. A longer one is refused.
WARNING_CHARS_MAX = 500
# Servers of one region's cell. More are refused: etcd is no faster with more than a handful.
ENDPOINTS_MAX = 16


class RegionSpec(ApiStruct, frozen=True):
    """Other regions probe `endpoint`. A region that does not report for `lostAfterSeconds` can be declared lost."""

    zones: tuple[str, ...] = ()
    residency: tuple[str, ...] = ()
    endpoint: str = ""
    cost: int = visible_default(100)
    lost_after_seconds: float = visible_default(45.0)
    endpoints: tuple[str, ...] = ()
    """URLs of all servers of the region's cell, if it has more than one."""
    revoked_before: str = ""
    """Link certificates without the name of a server that were issued before this time are refused."""

    @property
    def servers(self) -> tuple[str, ...]:
        return self.endpoints or ((self.endpoint,) if self.endpoint else ())


class PeerProbeResult(ApiStruct, frozen=True):
    """Result of one region's probes of another. `latencyMs` is the shortest round trip of the last probes that were
    answered; 0 if none was."""

    region: str
    reachable: bool = visible_default(False)
    at: str = ""
    latency_ms: float = 0.0


class ZoneReport(ApiStruct, frozen=True):
    """Nodes of one zone, and the capacity of its live nodes."""

    zone: str
    nodes: int = visible_default(0)
    live_nodes: int = visible_default(0)
    capacity: dict[str, Amount] = {}


class NodeShape(ApiStruct, frozen=True):
    """`nodes` nodes of one zone and pool, each with at least `resources`; `tenant` owns them if it is not empty.

    `recoveryReserved` is further capacity of each node, in recovery slots. `gpu` counts GPUs that nobody uses;
    `sharedGpu` is the largest free part of a GPU that is shared, in thousandths."""

    zone: str
    pool: str = visible_default("default")
    tenant: str = ""
    nodes: int = visible_default(0)
    resources: dict[str, Amount] = {}
    recovery_reserved: dict[str, Amount] = {}
    shared_gpu: int = 0


class RecoverySlotReport(ApiStruct, frozen=True):
    """Recovery slots of one shape in one zone: how many are admitted, and how many of these are in use."""

    budget: str
    zone: str
    shape_index: int = visible_default(0)
    resources: dict[str, Amount] = {}
    admitted: int = visible_default(0)
    consumed: int = visible_default(0)


class UnknownGrant(ApiStruct, frozen=True):
    """A limit that the region enforces for a tenant without a Grant in the restored global cell."""

    tenant: str
    grant_class: GrantClass = visible_default(GrantClass.NORMAL)
    amounts: dict[str, Amount] = {}


class PolicyTrial(ApiStruct, frozen=True):
    """Outcomes of a guarded policy revision in this region, within the window of its guard.

    Counts of replicas: `proposed` to the authority, `refused` by it, `unplaced` for lack of a node."""

    revision: str
    decisions: int = visible_default(0)
    proposed: int = visible_default(0)
    refused: int = visible_default(0)
    unplaced: int = visible_default(0)
    oldest_pending_seconds: float = visible_default(0.0)


class CellWarning(ApiStruct, frozen=True):
    """Something about the region's own cell that people must hear of. `key` tells two events of one type apart.

    `atSeconds` is the Unix time of an event without an end; 0 for one that goes on."""

    type: str
    key: str = ""
    message: str = ""
    at_s: float = msgspec.field(default=0.0, name="atSeconds")


class RegionReport(ApiStruct, frozen=True):
    """The region's heartbeat.

    After a restore of the global cell, `restoreAcknowledged` is the newest incarnation to which the region has reported
    everything it holds, and `unknownGrants` are limits that this incarnation had no record of. `identity` and `era` are
    those of the region's cell. `holding` says why the region keeps work that the global cell does not contain.

    `freeShapes` are the free resources of schedulable nodes, and `nodeShapes` the capacity of its largest nodes and of
    those that its pools may add. Both are bounded samples that never promise more than there is.

    `claimsWithoutData` are uids of VolumeClaims whose data was ordered to be deleted and of which the region has no
    Volume left."""

    at: str = ""
    sequence: int = 0
    incarnation: int = 0
    identity: str = ""
    era: str = ""
    nodes: int = visible_default(0)
    live_nodes: int = visible_default(0)
    capacity: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    recovery_reserved: dict[str, Amount] = {}
    pending: int = visible_default(0)
    peers: tuple[PeerProbeResult, ...] = ()
    policy: str = ""
    zones: tuple[ZoneReport, ...] = ()
    free_shapes: tuple[NodeShape, ...] = ()
    node_shapes: tuple[NodeShape, ...] = ()
    recovery_slots: tuple[RecoverySlotReport, ...] = ()
    restore_acknowledged: int = 0
    unknown_grants: tuple[UnknownGrant, ...] = ()
    policy_trial: PolicyTrial | None = None
    holding: str = ""
    warnings: tuple[CellWarning, ...] = ()
    claims_without_data: tuple[str, ...] = ()


HOLDS_WORK = "HoldsWork"
"""Condition of a Region in its own regional cell: the region keeps work that the global cell does not contain."""


class HealthState(enum.StrEnum):
    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    LOST = "Lost"
    AWAITING_WITNESS = "AwaitingWitness"


class RegionHealth(ApiStruct, frozen=True):
    """`lastContactAt` is when the report's sequence number last changed, by the global cell's clock."""

    state: HealthState = visible_default(HealthState.UNKNOWN)
    since: str = ""
    last_contact_at: str = ""
    last_sequence: int = 0
    reason: str = ""
    message: str = ""


class RegionCertificate(ApiStruct, frozen=True):
    """The newest certificates that the global cell signed for the region's cell.

    `serial` and `key` are those of the link certificate, which the region shows to the global cell. `hosts` are the
    names of the server certificate. `issuer` is the SHA-256 of the CA certificate that signed both."""

    serial: str
    key: str
    expires_at: str = ""
    issuer: str = ""
    hosts: tuple[str, ...] = ()


class RegionStatus(ApiStruct, frozen=True):
    """`restoreIncarnation` is set by a restore of the global cell. The region must acknowledge it."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    report: RegionReport | None = None
    health: RegionHealth = msgspec.field(default_factory=RegionHealth)
    restore_incarnation: int = 0
    certificate: RegionCertificate | None = None


class Region(Object, frozen=True):
    spec: RegionSpec = msgspec.field(default_factory=RegionSpec)
    status: RegionStatus = msgspec.field(default_factory=RegionStatus)


def lacks_live_nodes(region: Region) -> bool:
    """Whether the region reports nodes, and none of them is live."""
    report = region.status.report
    return report is not None and bool(report.nodes) and not report.live_nodes


def health_text(region: Region) -> str:
    """The health for tables. A region that reports and has no live node is not shown as healthy."""
    state = region.status.health.state
    if state is HealthState.HEALTHY and lacks_live_nodes(region):
        return "NoLiveNodes"
    return state.value


def current_report(region: Region) -> RegionReport | None:
    """The report for tables; None for a lost region, of whose nodes nothing is known any more."""
    return None if region.status.health.state is HealthState.LOST else region.status.report


def validate_region(region: Region, old: Region | None) -> Causes:
    yield from check_dns_label("metadata.name", region.metadata.name)
    if not region.spec.zones:
        yield required("spec.zones", "at least one zone")
    yield from check_unique("spec.zones", region.spec.zones)
    for index, zone in enumerate(region.spec.zones):
        yield from check_dns_label(f"spec.zones[{index}]", zone)
    yield from check_range("spec.endpoints", len(region.spec.endpoints), 0, ENDPOINTS_MAX)
    yield from check_range("spec.lostAfterSeconds", region.spec.lost_after_seconds, 5, 3600)
    for index, tag in enumerate(region.spec.residency):
        yield from check_dns_label(f"spec.residency[{index}]", tag)
    known = old.status.report if old is not None else None
    report = region.status.report
    if report is not None and len(report.warnings) > WARNINGS_MAX:
        yield invalid("status.report.warnings", len(report.warnings), f"must be at most {WARNINGS_MAX}")
    if report is not None and any(
        len(text) > WARNING_CHARS_MAX for w in report.warnings for text in (w.key, w.message)
    ):
        yield too_long("status.report.warnings", WARNING_CHARS_MAX)
    if known is not None and report is not None and report.incarnation < known.incarnation:
        # The reporting process still uses the state that a restore replaced.
        yield forbidden("status.report.incarnation", f"must not decrease; the stored one is {known.incarnation}")
