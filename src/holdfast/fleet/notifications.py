"""The queue of notifications as decisions on stored objects: what to announce, to send next, to retry, to delete. Pure.

- An event that goes on has one open Notification. Its end resolves that one and makes another, in one transaction.
- An event without an end is announced once: its key stays known for longer than the event is looked at.
- A full queue announces nothing more until something was delivered or given up. Events that go on are not lost then.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.fleet.notable_events import EVENT_AGE_MAX_S, NotableEvent
from holdfast.model.meta import ObjectMeta
from holdfast.model.notification import (
    NOTIFICATION_MESSAGE_CHARS_MAX,
    RECEIVERS_MAX,
    SEVERITY_ORDER,
    Delivery,
    EventState,
    Notification,
    NotificationReceiver,
    NotificationReceiverStatus,
    NotificationSpec,
    delivery_to,
    is_open,
    is_pending,
    wants,
)
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Create, Delete, SetStatus, Write

# Stored Notifications. With more, new events wait until older ones are delivered and deleted.
NOTIFICATIONS_MAX = 1_000
# Notifications that one look creates. Further events follow at the next look.
NOTIFICATIONS_PER_LOOK_MAX = 50
# Notifications about one cell in an hour that the cell itself asked for: a broken region must not fill the queue.
CELL_EVENTS_PER_HOUR_MAX = 30
# Shortest time between two announcements of the same event, so that one that comes and goes is not announced each time.
REPEAT_MIN_S = 300.0
# How long a Notification is kept after its event. Longer than events are looked at, so that none is announced twice.
NOTIFICATION_KEPT_S = 3 * 86400.0
# Time after which a delivery that keeps failing is given up and counted as dropped.
DELIVERY_AGE_MAX_S = 86400.0


class QueuePlan(msgspec.Struct, frozen=True):
    """`waiting` events have no room in the queue."""

    writes: tuple[Write, ...] = ()
    waiting: int = 0


def active_receivers(receivers: Iterable[NotificationReceiver]) -> list[NotificationReceiver]:
    """The receivers that are served: the first ones by name, up to the limit."""
    return sorted(receivers, key=lambda r: r.metadata.name)[:RECEIVERS_MAX]


def plan_queue(
    events: Sequence[NotableEvent],
    notifications: Sequence[Notification],
    receivers: Sequence[NotificationReceiver],
    now: float,
) -> QueuePlan:
    """Announces new events, resolves ended ones and deletes old Notifications. `receivers` are the active ones."""
    names = {r.metadata.name for r in receivers}
    writes: list[Write] = list(_resolutions(events, notifications, names, now))
    old = [n for n in notifications if _is_finished(n, names, now, full=len(notifications) >= NOTIFICATIONS_MAX)]
    writes += (Delete("Notification", n.key, n.uid) for n in old)
    room = NOTIFICATIONS_MAX - len(notifications) + len(old)
    created = _announcements(events, notifications, receivers, now)
    taken = created[: max(0, min(room, NOTIFICATIONS_PER_LOOK_MAX))]
    writes += (Create(notification) for notification in taken)
    return QueuePlan(tuple(writes), len(created) - len(taken))


def _announcements(
    events: Sequence[NotableEvent],
    notifications: Sequence[Notification],
    receivers: Sequence[NotificationReceiver],
    now: float,
) -> list[Notification]:
    """New Notifications, the most severe first."""
    last: dict[str, float] = {}
    by_cell: Counter[str] = Counter()
    for n in notifications:
        last[n.spec.key] = max(last.get(n.spec.key, 0.0), parse_time(n.spec.at))
        by_cell[n.spec.subject.name] += n.spec.subject.kind == "Cell" and now - parse_time(n.spec.at) < 3600.0
    open_keys = {n.spec.key for n in notifications if is_open(n)}
    created = []
    for event in sorted(events, key=lambda e: (-SEVERITY_ORDER[e.type.severity], e.key)):
        occurred = event.state is EventState.OCCURRED
        if event.key in open_keys or (occurred and event.key in last):
            continue
        if event.key in last and now - last[event.key] < REPEAT_MIN_S:
            continue
        targets = tuple(r.metadata.name for r in receivers if wants(r, event.type) and _was_there(r, event))
        if not targets:
            continue
        if event.subject.kind == "Cell":
            if by_cell[event.subject.name] >= CELL_EVENTS_PER_HOUR_MAX:
                continue
            by_cell[event.subject.name] += 1
        spec = NotificationSpec(
            type=event.type.value,
            severity=event.type.severity,
            state=event.state,
            message=event.message,
            at=micro_text(now),
            subject=event.subject,
            key=event.key,
            receivers=targets,
        )
        created.append(_notification(spec))
    return created


def _was_there(receiver: NotificationReceiver, event: NotableEvent) -> bool:
    """A new receiver gets the events that go on, and none that were over before it existed."""
    return not event.at_s or parse_time(receiver.metadata.creation_timestamp) <= event.at_s + 1.0


def _resolutions(
    events: Sequence[NotableEvent], notifications: Sequence[Notification], names: set[str], now: float
) -> Iterable[Write]:
    present = {event.key for event in events}
    for raised in notifications:
        if not is_open(raised) or raised.spec.key in present:
            continue
        yield SetStatus("Notification", raised.key, raised.uid, blocks={"resolvedAt": micro_text(now)})
        targets = tuple(name for name in raised.spec.receivers if name in names)
        if targets:
            ended = msgspec.structs.replace(
                raised.spec,
                state=EventState.RESOLVED,
                message=f"ended: {raised.spec.message}"[:NOTIFICATION_MESSAGE_CHARS_MAX],
                at=micro_text(now),
                receivers=targets,
                resolves=raised.metadata.name,
            )
            yield Create(_notification(ended))


def _is_finished(notification: Notification, names: set[str], now: float, *, full: bool) -> bool:
    """Whether the Notification can be deleted: its event is over, and no delivery is left."""
    kept_s = EVENT_AGE_MAX_S + 3600.0 if full else NOTIFICATION_KEPT_S
    if is_open(notification) or now - parse_time(notification.spec.at) < kept_s:
        return False
    return not any(is_pending(notification, name) for name in names)


def _notification(spec: NotificationSpec) -> Notification:
    digest = hashlib.blake2b("\0".join((spec.key, spec.at, spec.state)).encode(), digest_size=8).hexdigest()
    return Notification(metadata=ObjectMeta(name=f"{spec.type.lower()}-{digest}"), spec=spec)


# --- deliveries ------------------------------------------------------------------------------------------------


def next_delivery(
    receiver: NotificationReceiver, notifications: Iterable[Notification], now: float
) -> Notification | None:
    """What to send to the receiver now. A refused notification goes behind the others, so that it blocks none."""
    status = receiver.status
    if receiver.spec.suspend or (status.next_attempt_at and now < parse_time(status.next_attempt_at)):
        return None
    pending = [n for n in notifications if is_pending(n, receiver.metadata.name)]
    name = receiver.metadata.name
    return min(pending, key=lambda n: (delivery_to(n, name).attempts, n.spec.at, n.metadata.name), default=None)


def record_attempt(
    receiver: NotificationReceiver, notification: Notification, now: float, *, error: str, pause_s: float, left: int
) -> tuple[Write, ...]:
    """The writes after one attempt. `error` is empty after a success; `left` are further pending notifications."""
    name, status = receiver.metadata.name, receiver.status
    before = delivery_to(notification, name)
    gone = bool(error) and now - parse_time(notification.spec.at) > DELIVERY_AGE_MAX_S
    state = "Delivered" if not error else "Dropped" if gone else "Pending"
    row = Delivery(receiver=name, state=state, attempts=before.attempts + 1, at=micro_text(now), error=error)
    rows = (*(d for d in notification.status.deliveries if d.receiver != name), row)
    after = msgspec.structs.replace(
        status,
        pending=left + (state == "Pending"),
        delivered=status.delivered + (not error),
        failures=status.failures + 1 if error else 0,
        dropped=status.dropped + gone,
        last_success_at=status.last_success_at if error else micro_text(now),
        last_failure_at=micro_text(now) if error else status.last_failure_at,
        next_attempt_at=micro_text(now + pause_s) if error else "",
        problem=error,
    )
    return (
        SetStatus(
            "Notification",
            notification.key,
            notification.uid,
            blocks={"deliveries": rows},
            if_revision=notification.revision,
        ),
        receiver_status(receiver, after),
    )


def receiver_status(receiver: NotificationReceiver, status: NotificationReceiverStatus) -> SetStatus:
    fields = {field.encode_name: getattr(status, field.name) for field in msgspec.structs.fields(status)}
    blocks = {name: value for name, value in fields.items() if name != "observedGeneration"}
    return SetStatus(
        "NotificationReceiver",
        receiver.key,
        receiver.uid,
        blocks=blocks,
        observed_generation=receiver.metadata.generation,
    )
