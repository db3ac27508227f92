"""CronWorkload: runs a batch Workload at the times of a schedule. The user writes `spec`, the controller cron `status`.

The name of a run is derived from the CronWorkload's uid and the tick, so a tick has at most one run.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from holdfast.model.cron_schedule import BadSchedule, parse_schedule
from holdfast.model.labels import LABEL_CRON_WORKLOAD
from holdfast.model.meta import API_VERSION, ApiStruct, Condition, Object, ObjectMeta, OwnerReference, visible_default
from holdfast.model.times import seconds_text
from holdfast.model.validation import Causes, check_annotations, check_labels, check_range, invalid, required
from holdfast.model.workload import Workload, WorkloadSpec, WorkloadType, default_workload, validate_workload

# Length of a CronWorkload's name. A longer one is refused: a run's name adds 11 characters and may have 40.
CRON_NAME_MAX = 29
# Upper end of both history limits. More finished runs are not kept.
RUN_HISTORY_MAX = 100
# Length of an IANA time zone name. A longer one is refused.
TIME_ZONE_CHARS_MAX = 64
ANNOTATION_SCHEDULED_AT = "holdfast.dev/scheduled-at"
"""The tick of a run, or the time at which a person started it."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ConcurrencyPolicy(enum.StrEnum):
    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


class RunMetadata(ApiStruct, frozen=True):
    """Labels and annotations of every run."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RunTemplate(ApiStruct, frozen=True):
    """The Workload that every run creates. Its type is Batch."""

    metadata: RunMetadata = msgspec.field(default_factory=RunMetadata)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)


class CronWorkloadSpec(ApiStruct, frozen=True):
    schedule: str
    workload: RunTemplate = msgspec.field(default_factory=RunTemplate)
    time_zone: str = visible_default("UTC")
    concurrency_policy: ConcurrencyPolicy = visible_default(ConcurrencyPolicy.ALLOW)
    starting_deadline_seconds: float | None = None
    successful_runs_history_limit: int = visible_default(3)
    failed_runs_history_limit: int = visible_default(1)
    suspend: bool = visible_default(False)


class ActiveRun(ApiStruct, frozen=True):
    """A run that has not finished."""

    workload: str
    scheduled_at: str = ""


class MissedTicks(ApiStruct, frozen=True):
    """Ticks without a run. `count` is over the lifetime of the CronWorkload; the rest describes the newest ones."""

    count: int = visible_default(0)
    last_time: str = ""
    message: str = ""


class CronWorkloadStatus(ApiStruct, frozen=True):
    """`decidedThrough`: every tick up to this time was run or counted as missed. It never decreases, so that a clock
    that steps back runs no tick again. `decidedSchedule` is the schedule that these ticks belong to."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    active: tuple[ActiveRun, ...] = ()
    last_schedule_time: str = ""
    last_successful_time: str = ""
    next_schedule_time: str = ""
    started: int = 0
    missed: MissedTicks | None = None
    decided_through: str = ""
    decided_schedule: str = ""
    decided_time_zone: str = ""
    decided_suspended: bool = False


class CronWorkload(Object, frozen=True):
    spec: CronWorkloadSpec
    status: CronWorkloadStatus = msgspec.field(default_factory=CronWorkloadStatus)


def run_name(cron: CronWorkload, tick_s: float) -> str:
    """The name of the run of a tick: the minute in base 36, so that names sort by time, and a digest of the uid."""
    minute, digits = int(tick_s) // 60, ""
    while minute:
        minute, digit = divmod(minute, 36)
        digits = _DIGITS[digit] + digits
    digest = hashlib.sha256(f"{cron.uid}/{int(tick_s)}".encode()).hexdigest()
    return f"{cron.metadata.name}-{digits}{digest[: 10 - len(digits)]}"


def run_of(cron: CronWorkload, name: str, scheduled_s: float) -> Workload:
    """The Workload of one run."""
    made = cron.spec.workload
    owner = OwnerReference(
        api_version=API_VERSION, kind="CronWorkload", name=cron.metadata.name, uid=cron.uid, controller=True
    )
    meta = ObjectMeta(
        name=name,
        namespace=cron.metadata.namespace,
        labels={**made.metadata.labels, LABEL_CRON_WORKLOAD: cron.metadata.name},
        annotations={**made.metadata.annotations, ANNOTATION_SCHEDULED_AT: seconds_text(scheduled_s)},
        owner_references=(owner,),
    )
    return Workload(metadata=meta, spec=made.spec)


def default_cron_workload(cron: CronWorkload) -> CronWorkload:
    made = cron.spec.workload
    defaulted = default_workload(run_of(cron, "", 0.0)).spec
    if defaulted is made.spec:
        return cron
    spec = msgspec.structs.replace(cron.spec, workload=msgspec.structs.replace(made, spec=defaulted))
    return msgspec.structs.replace(cron, spec=spec)


def validate_cron_workload(cron: CronWorkload, old: CronWorkload | None) -> Causes:
    spec = cron.spec
    if old is not None and old.spec == spec:
        return
    name = cron.metadata.name
    if len(name) > CRON_NAME_MAX or "." in name:
        yield invalid(
            "metadata.name", name, f"must be at most {CRON_NAME_MAX} characters without dots: run names contain it"
        )
    if not spec.schedule.strip():
        yield required("spec.schedule", "five fields (minute hour day month weekday), for example '30 2 * * *'")
    else:
        try:
            parse_schedule(spec.schedule)
        except BadSchedule as bad:
            yield invalid("spec.schedule", spec.schedule, str(bad))
    if not spec.time_zone or len(spec.time_zone) > TIME_ZONE_CHARS_MAX:
        yield invalid("spec.timeZone", spec.time_zone, "must be an IANA name, for example Europe/Berlin")
    if spec.starting_deadline_seconds is not None:
        yield from check_range("spec.startingDeadlineSeconds", spec.starting_deadline_seconds, 1, 366 * 86400)
    yield from check_range("spec.successfulRunsHistoryLimit", spec.successful_runs_history_limit, 0, RUN_HISTORY_MAX)
    yield from check_range("spec.failedRunsHistoryLimit", spec.failed_runs_history_limit, 0, RUN_HISTORY_MAX)
    yield from _validate_template(cron)


def _validate_template(cron: CronWorkload) -> Causes:
    made = cron.spec.workload
    yield from check_labels("spec.workload.metadata.labels", made.metadata.labels)
    yield from check_annotations("spec.workload.metadata.annotations", made.metadata.annotations)
    if made.spec.type is not WorkloadType.BATCH:
        yield invalid("spec.workload.spec.type", made.spec.type.value, "must be Batch: a run must end")
    for cause in validate_workload(run_of(cron, "run", 0.0), None):
        yield msgspec.structs.replace(cause, field=f"spec.workload.{cause.field}")
