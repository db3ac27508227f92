"""NotificationReceiver and Notification: webhooks for events that people must hear of.

Operators write receivers. The component `notify` of the global cell writes a Notification for each event, with the
receivers that it goes to, and delivers it. A stored Notification is the queue: it survives a killed process, and it is
deleted only when every delivery has ended. `metadata.name` is the id by which a receiver drops duplicates.
"""

from __future__ import annotations

import enum
import re

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.times import parse_time
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_subdomain,
    check_unique,
    has_control_characters,
    invalid,
    required,
    too_long,
    unsupported,
)

# Length of a receiver's URL. A longer one is refused.
RECEIVER_URL_CHARS_MAX = 2_000
# Size of a receiver's own CA certificates. More are refused.
RECEIVER_CA_CHARS_MAX = 64 * 1024
# Receivers of one fleet. Further ones, by name, get nothing and say so: each costs a request per event.
RECEIVERS_MAX = 16
# Length of a notification's message. A longer one is cut off.
NOTIFICATION_MESSAGE_CHARS_MAX = 1_000
# Length of what identifies an event. A longer one is refused.
NOTIFICATION_KEY_CHARS_MAX = 400

_URL = re.compile(r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(/[!-~]*)?", re.IGNORECASE)
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class Severity(enum.StrEnum):
    INFO = "Info"
    WARNING = "Warning"
    CRITICAL = "Critical"


SEVERITY_ORDER = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class NotificationType(enum.StrEnum):
    """What happened. Each has one severity, which filters use."""

    def __new__(cls, value: str, severity: Severity, says: str) -> NotificationType:
        member = str.__new__(cls, value)
        member._value_ = value
        member.severity = severity
        member.sentence = says
        return member

    severity: Severity
    sentence: str

    REGION_LOST = "RegionLost", Severity.CRITICAL, "A region is lost. Not during its planned maintenance."
    REGION_HOLDS_WORK = (
        "RegionHoldsWork",
        Severity.CRITICAL,
        "A region keeps work that the global cell does not contain: the mass-deletion guard has paused it.",
    )
    RECOVERY_STARTED = "RecoveryStarted", Severity.WARNING, "Recovery from the loss of a region or zone has begun."
    RECOVERY_MISSED = "RecoveryMissed", Severity.CRITICAL, "A recovery is not complete at its deadline."
    RECOVERED = "Recovered", Severity.INFO, "All critical workloads of a recovery serve again."
    PROMISE_UNBACKED = (
        "PromiseUnbacked",
        Severity.WARNING,
        "Recovery objectives of a tenant are not backed by recovery slots.",
    )
    PROMISE_NOT_PROVEN = (
        "PromiseNotProven",
        Severity.WARNING,
        "No drill or real loss has proven a RecoveryBudget for 30 days.",
    )
    OVERRIDE_EXPIRES = "OverrideExpires", Severity.WARNING, "An override ends soon."
    OVERRIDE_OVERDUE = "OverrideOverdue", Severity.CRITICAL, "An override has ended, and its effect is not reverted."
    BREAK_GLASS_USED = "BreakGlassUsed", Severity.CRITICAL, "A person opened break-glass access."
    DRILL_FAILED = "DrillFailed", Severity.CRITICAL, "A drill failed, or a scheduled drill could not start."
    BACKUP_FAILED = "BackupFailed", Severity.WARNING, "The last attempt to back up a cell failed."
    BACKUP_TOO_OLD = "BackupTooOld", Severity.WARNING, "The last backup of a cell is older than a day."
    CERTIFICATE_EXPIRES = (
        "CertificateExpires",
        Severity.WARNING,
        "A certificate of a cell expires soon and was not renewed.",
    )
    TEST = "Test", Severity.INFO, "Made by `holdfast notify test`. Goes to one receiver, whatever its filters."


REGIONAL_TYPES = frozenset(
    {
        NotificationType.BACKUP_FAILED,
        NotificationType.BACKUP_TOO_OLD,
        NotificationType.CERTIFICATE_EXPIRES,
        NotificationType.BREAK_GLASS_USED,
    }
)
"""What a region may report about its own cell."""


class EventState(enum.StrEnum):
    """`Raised` events go on until they are `Resolved`. `Occurred` events have no end."""

    RAISED = "Raised"
    RESOLVED = "Resolved"
    OCCURRED = "Occurred"


class ReceiverSecret(ApiStruct, frozen=True):
    """A tenant's Secret with the signing key, and with the URL if that is a secret itself."""

    tenant: str
    name: str
    key: str = visible_default("signingKey")
    url_key: str = ""


class NotificationReceiverSpec(ApiStruct, frozen=True):
    """With `minSeverity` and `types` a receiver gets only a part of the events; empty `types` means all."""

    secret: ReceiverSecret
    url: str = ""
    min_severity: Severity = visible_default(Severity.WARNING)
    types: tuple[str, ...] = ()
    allow_loopback: bool = False
    ca_certificates: str = ""
    suspend: bool = visible_default(False)


class NotificationReceiverStatus(ApiStruct, frozen=True):
    """`failures` counts failed attempts since the last success. `problem` is empty while deliveries can be made."""

    observed_generation: int = 0
    pending: int = visible_default(0)
    delivered: int = visible_default(0)
    failures: int = visible_default(0)
    dropped: int = visible_default(0)
    last_success_at: str = ""
    last_failure_at: str = ""
    next_attempt_at: str = ""
    problem: str = ""


class NotificationReceiver(Object, frozen=True):
    spec: NotificationReceiverSpec
    status: NotificationReceiverStatus = msgspec.field(default_factory=NotificationReceiverStatus)


class EventSubject(ApiStruct, frozen=True):
    kind: str = ""
    tenant: str = ""
    name: str = ""


class NotificationSpec(ApiStruct, frozen=True):
    """`key` identifies the event: an event that goes on has one Notification. `receivers` are those that get it.

    `type` is a NotificationType. It is stored as text, so that a later release can add one."""

    type: str
    state: EventState = visible_default(EventState.OCCURRED)
    message: str = ""
    at: str = ""
    subject: EventSubject = msgspec.field(default_factory=EventSubject)
    key: str = ""
    receivers: tuple[str, ...] = ()
    resolves: str = ""
    severity: Severity = visible_default(Severity.INFO)


class Delivery(ApiStruct, frozen=True):
    """Delivery to one receiver. `state` is Pending, Delivered or Dropped."""

    receiver: str
    state: str = visible_default("Pending")
    attempts: int = visible_default(0)
    at: str = ""
    error: str = ""


class NotificationStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    deliveries: tuple[Delivery, ...] = ()
    resolved_at: str = ""


class Notification(Object, frozen=True):
    spec: NotificationSpec
    status: NotificationStatus = msgspec.field(default_factory=NotificationStatus)


def delivery_to(notification: Notification, receiver: str) -> Delivery:
    return next((d for d in notification.status.deliveries if d.receiver == receiver), Delivery(receiver))


def is_pending(notification: Notification, receiver: str) -> bool:
    return receiver in notification.spec.receivers and delivery_to(notification, receiver).state == "Pending"


def is_open(notification: Notification) -> bool:
    """Whether the event of the notification goes on."""
    return notification.spec.state is EventState.RAISED and not notification.status.resolved_at


def wants(receiver: NotificationReceiver, kind: NotificationType) -> bool:
    spec = receiver.spec
    if spec.suspend or receiver.metadata.terminating or (spec.types and kind.value not in spec.types):
        return False
    return SEVERITY_ORDER[kind.severity] >= SEVERITY_ORDER[spec.min_severity]


def url_problem(url: str, *, allow_loopback: bool) -> str:
    """Why nothing is sent to this URL; empty if it may be used. Only https, or http to this machine if allowed."""
    found = _URL.fullmatch(url)
    if found is None:
        return "must be https://HOST[:PORT]/PATH without user, spaces or non-ASCII characters"
    scheme, host, port, path = found.groups()
    if port is not None and not 0 < int(port) <= 65535:
        return "the port must be between 1 and 65535"
    if "#" in (path or ""):
        return "must have no fragment"
    if scheme.lower() == "http" and not (allow_loopback and host.lower() in _LOOPBACK_HOSTS):
        return "must be https; http only to 127.0.0.1, [::1] or localhost with spec.allowLoopback"
    return ""


def validate_receiver(receiver: NotificationReceiver, old: NotificationReceiver | None) -> Causes:
    spec = receiver.spec
    if old is not None and old.spec == spec:
        return
    yield from check_dns_label("metadata.name", receiver.metadata.name)
    if len(spec.url) > RECEIVER_URL_CHARS_MAX:
        yield too_long("spec.url", RECEIVER_URL_CHARS_MAX)
    elif bool(spec.url) == bool(spec.secret.url_key):
        yield invalid("spec.url", spec.url, "name either spec.url, or spec.secret.urlKey for a URL that is a secret")
    elif spec.url and (problem := url_problem(spec.url, allow_loopback=spec.allow_loopback)):
        yield invalid("spec.url", spec.url, problem)
    yield from check_subdomain("spec.secret.tenant", spec.secret.tenant)
    yield from check_subdomain("spec.secret.name", spec.secret.name)
    if not spec.secret.key:
        yield required("spec.secret.key", "the key of the Secret that holds the signing key")
    known = [kind.value for kind in NotificationType]
    for index, name in enumerate(spec.types[: len(known) + 1]):
        if name not in known:
            yield unsupported(f"spec.types[{index}]", name, known)
    yield from check_unique("spec.types", spec.types)
    if len(spec.ca_certificates) > RECEIVER_CA_CHARS_MAX:
        yield too_long("spec.caCertificates", RECEIVER_CA_CHARS_MAX)
    elif spec.ca_certificates and "-----BEGIN CERTIFICATE-----" not in spec.ca_certificates:
        yield invalid("spec.caCertificates", spec.ca_certificates[:40], "must be certificates in PEM form")


def validate_notification(notification: Notification, old: Notification | None) -> Causes:
    spec = notification.spec
    if old is not None and old.spec == spec:
        return
    if old is not None:
        yield invalid("spec", notification.metadata.name, "must not change: a receiver may have it already")
    if spec.type not in {kind.value for kind in NotificationType}:
        yield unsupported("spec.type", spec.type, [kind.value for kind in NotificationType])
    try:
        parse_time(spec.at)
    except ValueError:
        yield invalid("spec.at", spec.at, "must be a time such as 2026-12-01T22:00:00Z")
    if len(spec.message) > NOTIFICATION_MESSAGE_CHARS_MAX:
        yield too_long("spec.message", NOTIFICATION_MESSAGE_CHARS_MAX)
    if has_control_characters(spec.message):
        yield invalid("spec.message", spec.message[:40], "must be one line of text")
    if len(spec.key) > NOTIFICATION_KEY_CHARS_MAX:
        yield too_long("spec.key", NOTIFICATION_KEY_CHARS_MAX)
    if len(spec.receivers) > RECEIVERS_MAX:
        yield invalid("spec.receivers", len(spec.receivers), f"must be at most {RECEIVERS_MAX}")
    yield from check_unique("spec.receivers", spec.receivers)
