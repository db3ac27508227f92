"""MaintenanceWindow: planned work on a region, a zone or some nodes, once or again and again.

The operator writes `spec`, the controller maintenance `status`. For each occurrence the controller creates an Override
(AvoidRegion or AvoidZone with `spec.maintenance`), which everything that places work respects. Times are local times of
`timeZone`, so that a recurring window keeps its time of day when clocks change.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from holdfast.model.cron_schedule import BadSchedule, parse_schedule
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.validation import Causes, check_dns_label, check_range, check_unique, forbidden, invalid, required

# Longest window. A region that is away for longer is removed instead.
WINDOW_MAX_S = 14 * 86400.0
# Longest notice before a window.
NOTICE_MAX_S = 86400.0
# Nodes that one window names. For more, name their zone.
WINDOW_NODES_MAX = 100
# Length of a window's name. A longer one is refused: the name of its Override adds up to 34 characters.
WINDOW_NAME_MAX = 29
# Length of an IANA time zone name. A longer one is refused.
_TIME_ZONE_CHARS_MAX = 64


class WindowPhase(enum.StrEnum):
    SCHEDULED = "Scheduled"
    NOTICE = "Notice"
    ACTIVE = "Active"
    SUSPENDED = "Suspended"
    ENDED = "Ended"


class MaintenanceWindowSpec(ApiStruct, frozen=True):
    """`start` and `end` are local times of the first occurrence, as 2026-12-01T22:00. `recurrence` is a cron schedule
    of the later starts; each occurrence lasts as long as the first.

    For `noticeSeconds` before it, no replica is placed there that can neither finish nor move before the start. With
    `drain` the nodes are drained from the start on, within disruption budgets; otherwise they only get no new work.
    """

    region: str
    start: str
    end: str
    reason: str
    owner: str
    zone: str = ""
    nodes: tuple[str, ...] = ()
    time_zone: str = visible_default("UTC")
    recurrence: str = ""
    notice_seconds: float = visible_default(3600.0)
    drain: bool = visible_default(True)
    suspend: bool = visible_default(False)


class MaintenanceWindowStatus(ApiStruct, frozen=True):
    """The present occurrence, or the next one, and the Override that stands for it."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    starts_at: str = ""
    ends_at: str = ""
    override: str = ""


class MaintenanceWindow(Object, frozen=True):
    spec: MaintenanceWindowSpec
    status: MaintenanceWindowStatus = msgspec.field(default_factory=MaintenanceWindowStatus)


def local_time(text: str) -> datetime:
    """The local time. Raises ValueError for other texts, also for one that names an offset."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("must not name an offset; set spec.timeZone instead")
    return found


def duration_s(spec: MaintenanceWindowSpec) -> float:
    """How long each occurrence lasts, by the clock on the wall of a day without a change of clocks."""
    return (local_time(spec.end) - local_time(spec.start)).total_seconds()


def validate_maintenance_window(window: MaintenanceWindow, old: MaintenanceWindow | None) -> Causes:
    spec, name = window.spec, window.metadata.name
    if old is not None and old.spec == spec:
        return
    if len(name) > WINDOW_NAME_MAX or "." in name:
        most = f"must be at most {WINDOW_NAME_MAX} characters without dots: names of Overrides contain it"
        yield invalid("metadata.name", name, most)
    yield from check_dns_label("spec.region", spec.region)
    if spec.zone:
        yield from check_dns_label("spec.zone", spec.zone)
    if spec.zone and spec.nodes:
        yield forbidden("spec.nodes", "name either a zone or nodes")
    if len(spec.nodes) > WINDOW_NODES_MAX:
        yield invalid("spec.nodes", len(spec.nodes), f"must be at most {WINDOW_NODES_MAX} nodes; name their zone")
    yield from check_unique("spec.nodes", spec.nodes)
    for index, node in enumerate(spec.nodes):
        yield from check_dns_label(f"spec.nodes[{index}]", node)
    if not spec.reason.strip():
        yield required("spec.reason", "what is done there, for those who see its effect")
    if not spec.owner.strip():
        yield required("spec.owner", "who to ask: a person or a team")
    yield from _validate_times(spec)
    yield from check_range("spec.noticeSeconds", spec.notice_seconds, 0, NOTICE_MAX_S)


def _validate_times(spec: MaintenanceWindowSpec) -> Causes:
    readable = True
    for field, text in (("spec.start", spec.start), ("spec.end", spec.end)):
        try:
            local_time(text)
        except ValueError as error:
            why = str(error) if "offset" in str(error) else "must be a local time, for example 2026-12-01T22:00"
            yield invalid(field, text, why)
            readable = False
    if readable and not 60 <= duration_s(spec) <= WINDOW_MAX_S:
        yield invalid("spec.end", spec.end, "must be between a minute and 14 days after spec.start")
    if not spec.time_zone or len(spec.time_zone) > _TIME_ZONE_CHARS_MAX:
        yield invalid("spec.timeZone", spec.time_zone, "must be an IANA name, for example Europe/Berlin")
    if spec.recurrence:
        try:
            parse_schedule(spec.recurrence)
        except BadSchedule as bad:
            yield invalid("spec.recurrence", spec.recurrence, str(bad))
