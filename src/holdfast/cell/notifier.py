"""Announces events to NotificationReceivers, as a component of the global cell's elected process.

The store is the queue: an event is announced and an attempt recorded by a commit, so a killed process continues where
it stopped. A notification may then arrive twice, with the same id. Nothing waits for this component: it reads published
objects, and each receiver is served by an attempt of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from holdfast.cell.cell import Cell
from holdfast.client.contract import FencingToken
from holdfast.fleet import notifications as queue
from holdfast.fleet.notable_events import notable_events
from holdfast.foundation import metrics
from holdfast.foundation.backoff import delay_s
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.foundation.webhooks import WebhookTarget, post, signing_key
from holdfast.gate.published_view import PublishedView
from holdfast.gate.sealing import CannotOpen
from holdfast.model.errors import Fault
from holdfast.model.kinds import kind_of
from holdfast.model.notification import RECEIVERS_MAX, Notification, NotificationReceiver, is_pending
from holdfast.model.region import CellWarning
from holdfast.model.secret import Secret
from holdfast.model.times import parse_time

# Interval at which events are looked for. An announcement is later by at most this much.
NOTIFY_LOOK_EVERY_S = 2.0
# A look is followed by a pause of this many times its own duration, so that a large fleet is looked at less often.
NOTIFY_LOOK_REST = 20.0
# Interval at which due deliveries are begun.
NOTIFY_SEND_EVERY_S = 0.25
# First and longest pause after a failed attempt. Doubles with every failure of the receiver in a row.
DELIVERY_BACKOFF_FIRST_S = 2.0
DELIVERY_BACKOFF_MAX_S = 600.0

_log = structlog.get_logger()
_NOTIFICATION, _RECEIVER, _SECRET = map(kind_of, (Notification, NotificationReceiver, Secret))


class Notifier:
    """A component of `Lifetime`. `warnings` are those of the global cell's process about itself."""

    def __init__(self, cell: Cell, identity: str, warnings: Callable[[], tuple[CellWarning, ...]]) -> None:
        self._cell = cell
        self._identity = identity
        self._warnings = warnings
        self._ports = cell.ports
        self._client = cell.client_of("notify")
        self._view = PublishedView(cell.objects)
        self._attempts: dict[str, asyncio.Task[None]] = {}
        """Receiver → the attempt that goes on."""
        self._writing = asyncio.Lock()
        self._token: FencingToken | None = None

    async def start(self) -> None:
        for result in ("delivered", "failed", "dropped"):
            metrics.NOTIFICATION_ATTEMPTS.labels(result)

    async def stop(self) -> None:
        """Nothing to release: attempts end with `run`."""

    async def run(self) -> None:
        await self._cell.election.while_leading(self._lead)

    async def _lead(self, token: FencingToken) -> None:
        self._token = token
        next_look_s = 0.0
        try:
            while True:
                try:
                    began_s = self._ports.clock.monotonic()
                    if began_s >= next_look_s:
                        await self._look()
                        took_s = self._ports.clock.monotonic() - began_s
                        next_look_s = began_s + max(NOTIFY_LOOK_EVERY_S, NOTIFY_LOOK_REST * took_s)
                    self._begin_attempts()
                except Fault as fault:
                    _log.warning("notifications_not_written", reason=fault.reason, message=fault.message)
                except Exception:  # a cell must not stop because people cannot be told
                    _log.exception("notifications_failed")
                await self._ports.clock.sleep(NOTIFY_SEND_EVERY_S)
        finally:
            await cancel_and_wait(*self._attempts.values())
            self._attempts.clear()

    async def _look(self) -> None:
        """Announces new events. Without receivers and notifications it costs two empty lists."""
        receivers = self._view.list(NotificationReceiver)
        stored = self._view.list(Notification)
        if not receivers and not stored:
            return
        now = self._ports.clock.now()
        active = queue.active_receivers(receivers)
        await self._say_surplus(active)
        warnings = await run_in_thread(self._warnings)
        plan = queue.plan_queue(notable_events(self._view, now, warnings), stored, active, now)
        metrics.NOTIFICATIONS_WAITING.set(plan.waiting)
        if plan.writes:
            async with self._writing:
                await self._client.commit(plan.writes, token=self._token, brief=True)
        await self._count_pending(active, now)

    async def _count_pending(self, receivers: list[NotificationReceiver], now: float) -> None:
        """Keeps the counts of the receivers and of the metrics current, also while nothing is sent."""
        stored = self._view.list(Notification)
        total, oldest_s = 0, now
        for receiver in receivers:
            pending = [n for n in stored if is_pending(n, receiver.metadata.name)]
            total += len(pending)
            oldest_s = min((oldest_s, *(parse_time(n.spec.at) for n in pending)))
            if receiver.status.pending != len(pending):
                await self._correct_pending(receiver.metadata.name)
        metrics.NOTIFICATIONS_PENDING.set(total)
        metrics.NOTIFICATION_OLDEST.set(now - oldest_s)

    async def _correct_pending(self, name: str) -> None:
        """Reads again under the lock: an attempt may have been recorded meanwhile, with its counts."""
        async with self._writing:
            receiver = self._view.get(NotificationReceiver, name)
            pending = sum(is_pending(n, name) for n in self._view.list(Notification))
            if receiver is None or receiver.status.pending == pending:
                return
            status = msgspec.structs.replace(receiver.status, pending=pending)
            await self._client.commit((queue.receiver_status(receiver, status),), token=self._token, brief=True)

    async def _say_surplus(self, active: list[NotificationReceiver]) -> None:
        names = {r.metadata.name for r in active}
        problem = f"not served: there are more than {RECEIVERS_MAX} receivers; next: delete one"
        for receiver in self._view.list(NotificationReceiver):
            if receiver.metadata.name not in names and receiver.status.problem != problem:
                status = msgspec.structs.replace(receiver.status, problem=problem)
                await self._client.commit((queue.receiver_status(receiver, status),), token=self._token, brief=True)

    # Deliveries ----------------------------------------------------------------------------------------------------

    def _begin_attempts(self) -> None:
        stored = self._view.list(Notification)
        if not stored:
            return
        now = self._ports.clock.now()
        for receiver in queue.active_receivers(self._view.list(NotificationReceiver)):
            name = receiver.metadata.name
            if name in self._attempts:
                continue
            due = queue.next_delivery(receiver, stored, now)
            if due is not None:
                attempt = asyncio.create_task(self._attempt(receiver, due), name=f"notify:{name}")
                self._attempts[name] = attempt
                attempt.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, attempt: asyncio.Task[None]) -> None:
        self._attempts.pop(name, None)
        if not attempt.cancelled() and (error := attempt.exception()) is not None:
            _log.error("notification_attempt_crashed", receiver=name, error=str(error))

    async def _attempt(self, receiver: NotificationReceiver, notification: Notification) -> None:
        try:
            target = self._target(receiver)
        except ValueError as problem:
            error = str(problem)
        else:
            body = payload(notification, self._identity)
            now_s = self._ports.clock.now()
            error = await run_in_thread(lambda: post(target, notification.metadata.name, body, now_s))
        try:
            async with self._writing:
                await self._record(receiver, notification, error)
        except Fault as fault:
            # The attempt is made again, with the same id.
            _log.warning("notification_not_recorded", notification=notification.metadata.name, reason=fault.reason)
            await self._ports.clock.sleep(DELIVERY_BACKOFF_FIRST_S)

    async def _record(self, receiver: NotificationReceiver, notification: Notification, error: str) -> None:
        name = receiver.metadata.name
        latest = self._view.get(Notification, notification.metadata.name)
        holder = self._view.get(NotificationReceiver, name)
        if latest is None or holder is None:
            return
        left = sum(is_pending(n, name) for n in self._view.list(Notification) if n.uid != latest.uid)
        pause_s = delay_s(
            holder.status.failures + 1,
            self._ports.random,
            first_s=DELIVERY_BACKOFF_FIRST_S,
            max_s=DELIVERY_BACKOFF_MAX_S,
        )
        now = self._ports.clock.now()
        writes = queue.record_attempt(holder, latest, now, error=error, pause_s=pause_s, left=left)
        await self._client.commit(writes, token=self._token, brief=True)
        metrics.NOTIFICATION_ATTEMPTS.labels("failed" if error else "delivered").inc()
        if error:
            _log.warning("notification_attempt_failed", receiver=name, notification=latest.metadata.name, error=error)
            if now - parse_time(latest.spec.at) > queue.DELIVERY_AGE_MAX_S:
                metrics.NOTIFICATION_ATTEMPTS.labels("dropped").inc()

    def _target(self, receiver: NotificationReceiver) -> WebhookTarget:
        """The target with its signing key. Raises ValueError with what is wrong with the Secret."""
        spec, where = receiver.spec, receiver.spec.secret
        secret_name = f"secret {where.tenant}/{where.name}"
        item = self._cell.objects.get(_SECRET, where.tenant, where.name)
        if not isinstance(item, Secret):
            raise ValueError(f"{secret_name}: not found; next: create it, or correct spec.secret")
        try:
            data = self._cell.gate.sealer.open(item).data
        except CannotOpen as fault:
            raise ValueError(fault.message) from None
        for name in filter(None, (where.key, where.url_key)):
            if name not in data:
                raise ValueError(f"{secret_name}: has no key {name}; next: add it, or correct spec.secret")
        try:
            key = signing_key(data[where.key])
            url = data[where.url_key].decode("ascii").strip() if where.url_key else spec.url
        except UnicodeDecodeError:
            raise ValueError(f"{secret_name}, key {where.url_key}: not a URL") from None
        except ValueError as error:
            raise ValueError(f"{secret_name}, key {where.key}: {error}") from None
        return WebhookTarget(url, key, spec.allow_loopback, spec.ca_certificates)


def payload(notification: Notification, cell_identity: str) -> bytes:
    """The body of a request. It is the same in every attempt."""
    spec = notification.spec
    return msgspec.json.encode(
        {
            "type": spec.type,
            "timestamp": spec.at,
            "data": {
                "id": notification.metadata.name,
                "state": spec.state.value,
                "severity": spec.severity.value,
                "message": spec.message,
                "subject": {"kind": spec.subject.kind, "tenant": spec.subject.tenant, "name": spec.subject.name},
                "resolves": spec.resolves,
                "fleet": cell_identity,
            },
        }
    )
