"""Reports pending requests and their reasons in SchedulingRequest.status and events. Advisory: writes may be lost.

A request that is placed at the first attempt is never written. A pending one is written after each failed attempt, and
once more when none of its members is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from holdfast.client.contract import Client
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.model import limits
from holdfast.model.errors import Conflict, Fault, Final
from holdfast.model.meta import Condition, Key
from holdfast.model.reasons import Reason
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.writes import Notice, SetStatus
from holdfast.scheduler.request_queue import PendingRequest, RequestQueue
from holdfast.scheduling.queue_order import deadline_reason
from holdfast.scheduling.refusal_summary import pending_summary

# Statuses of scheduling requests written in one transaction. The rest follows in the next one.
STATUS_WRITES_PER_COMMIT = limits.BATCH_WRITES_MAX

# Age of a request below which a missing grant is not announced: an Assignment and its Grant reach a region separately.
GRANT_ARRIVAL_S = 15.0

_COMPONENT = "scheduler"


class StatusReporter:
    """`pending` returns the number of members without a claim in the scheduler's own state."""

    def __init__(
        self, client: Client, ports: Ports, queue: RequestQueue, pending: Callable[[PendingRequest], int]
    ) -> None:
        self._client = client
        self._ports = ports
        self._queue = queue
        self._pending = pending
        self._marked: dict[Key, None] = {}
        self._marked_event = asyncio.Event()
        self._log = structlog.get_logger().bind(controller=_COMPONENT, cell=client.cell)

    def mark_stale(self, key: Key) -> None:
        """Marks the request's status as out of date."""
        self._marked[key] = None
        self._marked_event.set()

    async def run(self) -> None:
        backoff = Backoff(self._ports.random)
        while True:
            await self._marked_event.wait()
            self._marked_event.clear()
            while self._marked:
                keys = list(self._marked)[:STATUS_WRITES_PER_COMMIT]
                for key in keys:
                    del self._marked[key]
                if await self._reported(keys):
                    backoff.reset()
                else:
                    for key in keys:
                        self._marked[key] = None
                    await self._ports.clock.sleep(backoff.next_s())

    async def _reported(self, keys: list[Key]) -> bool:
        try:
            return await self._report(keys)
        except Exception:
            # Reporting is advisory: a failure must not stop later reports, and these are not retried.
            self._log.exception("status_report_failed", requests=len(keys))
            return True

    async def _report(self, keys: list[Key]) -> bool:
        """Writes the statuses. Returns False if they must be retried."""
        writes: list[SetStatus] = []
        notices: list[Notice] = []
        for key in keys:
            pending_request = self._queue.get(key)
            write = self._write(pending_request) if pending_request is not None else None
            if pending_request is None or write is None:
                continue
            writes.append(write)
            notices.extend(self._events(pending_request))
        if not writes:
            return True
        try:
            await self._client.commit(writes)
        except (Final, Conflict):
            await self._one_by_one(writes)
        except Fault as fault:
            self._log.info("status_write_failed", reason=fault.reason, message=fault.message, requests=len(writes))
            return False
        if notices:
            await self._announce(notices)
        return True

    async def _one_by_one(self, writes: list[SetStatus]) -> None:
        """Writes each status alone, after one for a deleted request failed the whole commit."""
        for write in writes:
            try:
                await self._client.commit([write])
            except Fault as fault:
                self._log.info("status_write_dropped", request=str(write.key), reason=fault.reason)

    async def _announce(self, notices: list[Notice]) -> None:
        try:
            await self._client.notify(notices, component=_COMPONENT)
        except Fault as fault:
            self._log.info("notices_dropped", reason=fault.reason, notices=len(notices))

    def _write(self, pending_request: PendingRequest) -> SetStatus | None:
        request = pending_request.request
        pending = self._pending(pending_request)
        blocks: dict[str, Any] = {"pending": pending}
        if pending:
            blocks |= {
                "attempts": pending_request.attempts,
                "position": pending_request.position,
                "reasons": pending_request.refusals,
                "retryOn": pending_request.retry_on,
                "nextRetryAt": pending_request.next_retry_at,
            }
        else:
            blocks |= {"attempts": 0, "position": 0, "reasons": (), "retryOn": (), "nextRetryAt": ""}
        if pending_request.decision:
            blocks["decision"] = pending_request.decision
        status = request.status
        now = {
            "pending": status.pending,
            "attempts": status.attempts,
            "position": status.position,
            "reasons": status.reasons,
            "retryOn": status.retry_on,
            "nextRetryAt": status.next_retry_at,
            "decision": status.decision,
        }
        conditions = self._deadline_conditions(pending_request, pending)
        same = all(now[name] == value for name, value in blocks.items() if name != "decision")
        if same and all(c in status.conditions for c in conditions):
            return None
        return SetStatus(
            "SchedulingRequest",
            request.key,
            request.uid,
            blocks,
            conditions,
            observed_generation=request.metadata.generation,
        )

    def _deadline_conditions(self, pending_request: PendingRequest, pending: int) -> tuple[Condition, ...]:
        """The DeadlineAtRisk and DeadlineMissed conditions; both False if no member is pending."""
        request = pending_request.request
        now = self._ports.clock.now()
        reason = deadline_reason(request, now) if pending else None
        found = []
        for kind in (Reason.DEADLINE_AT_RISK, Reason.DEADLINE_MISSED):
            old = next((c for c in request.status.conditions if c.type == kind.value), None)
            status = "True" if reason is kind else "False"
            if old is None and status == "False":
                continue
            since = old.last_transition_time if old is not None and old.status == status else seconds_text(now)
            message = f"{pending} replicas pending; deadline {request.spec.deadline}" if status == "True" else ""
            found.append(
                Condition(
                    type=kind.value,
                    status=status,
                    reason=kind.value if status == "True" else "NotAtRisk",
                    message=message,
                    last_transition_time=since,
                    observed_generation=request.metadata.generation,
                )
            )
        return tuple(found)

    def _age_s(self, pending_request: PendingRequest) -> float:
        created = pending_request.request.metadata.creation_timestamp
        return self._ports.clock.now() - parse_time(created) if created else GRANT_ARRIVAL_S

    def _events(self, pending_request: PendingRequest) -> list[Notice]:
        reasons = (
            tuple(refusal.reason for refusal in pending_request.refusals) if self._pending(pending_request) else ()
        )
        if reasons == pending_request.reported_reasons or (
            reasons == (Reason.NO_GRANT,) and self._age_s(pending_request) < GRANT_ARRIVAL_S
        ):
            return []
        pending_request.reported_reasons = reasons
        if not reasons:
            return []
        message = pending_summary(pending_request.refusals, self._pending(pending_request))
        return [Notice(pending_request.request, Reason.UNSCHEDULABLE, message, warning=True)]
