"""Queue of status reports to the region: collected briefly and sent in one commit.

- Of several reports about one object only the newest is sent, merged with unsent blocks.
- A report that the region already has is not sent again.
- One refused report does not block the others.
- No report is lost in an outage.
- Every execution block that is sent has a higher sequence number than all before it, over restarts of the agent. The
  gate compares it, so a report that was delayed on its way never replaces a newer one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from holdfast.agent.limits import AGENT_CALL_TIMEOUT_S, AGENT_FLUSH_EVERY_S, AGENT_RETRY_FIRST_S, AGENT_RETRY_MAX_S
from holdfast.client.contract import Client
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.batches import send_divided
from holdfast.foundation.ports import Ports
from holdfast.model import limits
from holdfast.model.errors import Conflict, Fault, Final, Unauthorized
from holdfast.model.meta import Key
from holdfast.model.writes import SetStatus

# Delay before the agent resends an accepted report. Needed because an earlier, unanswered report may arrive after it,
# and a cell of an earlier release does not compare sequence numbers.
REPORT_RESEND_AFTER_S = 5.0
# Sequence numbers per second since the agent's start. An agent never sends as many, so a later start has higher ones.
REPORT_SEQUENCES_PER_S = 2**20

ReportKey = tuple[str, Key, str]

_log = structlog.get_logger()
_accepted = metrics.AGENT_REPORTS.labels(result="accepted")
_refused = metrics.AGENT_REPORTS.labels(result="refused")
_delayed = metrics.AGENT_REPORTS.labels(result="delayed")


def first_sequence(start_s: int) -> int:
    """Sequence numbers of an agent process that started at this second, which no other start of this node had."""
    return start_s * REPORT_SEQUENCES_PER_S


class ReportQueue:
    """`started_s` is the second of the agent's start; 0: now."""

    def __init__(self, client: Client, ports: Ports, *, started_s: int = 0) -> None:
        self._client = client
        self._sequence = first_sequence(started_s or int(ports.clock.now()))
        self._clock = ports.clock
        self._backoff = Backoff(ports.random, first_s=AGENT_RETRY_FIRST_S, max_s=AGENT_RETRY_MAX_S)
        self._pending: dict[ReportKey, SetStatus] = {}
        self._delayed_reports: dict[ReportKey, SetStatus] = {}
        """Delayed reports. A newer report about the same object replaces them."""
        self._sent: dict[ReportKey, SetStatus] = {}
        self._numbers: dict[ReportKey, tuple[Any, int]] = {}
        """Object → the execution block that was sent last, answered or not, and its sequence number."""
        self._unanswered: dict[ReportKey, float] = {}
        """Object → until when an unanswered report may still arrive and overwrite newer ones. Infinite until a later
        report is accepted, then REPORT_RESEND_AFTER_S. Reports sent before that time are sent again."""
        self._due = asyncio.Event()
        self._flushing = asyncio.Lock()

    def put(self, write: SetStatus, *, wait_s: float = 0.0) -> None:
        """Queues a report. It waits up to `wait_s` for a newer one to replace it."""
        address = (write.kind, write.key, write.uid)
        if wait_s and address not in self._pending:
            if address not in self._delayed_reports:
                asyncio.get_running_loop().call_later(wait_s, self._delay_passed, address)
            self._delayed_reports[address] = _merge(self._delayed_reports.get(address), write)
            return
        merged = _merge(self._delayed_reports.pop(address, None) or self._pending.get(address), write)
        if _is_duplicate(self._sent.get(address), merged):
            self._pending.pop(address, None)
            return
        self._pending[address] = merged
        self._due.set()

    def _delay_passed(self, address: ReportKey) -> None:
        write = self._delayed_reports.pop(address, None)
        if write is not None:  # no newer report replaced it
            self.put(write)

    def resend(self, write: SetStatus) -> None:
        """Sends a report even if it was accepted before: the region was observed to have another value."""
        self._sent.pop((write.kind, write.key, write.uid), None)
        self.put(write)

    def forget(self, kind: str, key: Key, uid: str) -> None:
        """The object is gone: drops its reports."""
        self._delayed_reports.pop((kind, key, uid), None)
        self._sent.pop((kind, key, uid), None)
        self._numbers.pop((kind, key, uid), None)
        self._unanswered.pop((kind, key, uid), None)

    async def run(self) -> None:
        while True:
            await self._due.wait()
            await self._clock.sleep(AGENT_FLUSH_EVERY_S)
            if not await self.flush():
                await self._clock.sleep(self._backoff.next_s())

    async def flush(self) -> bool:
        """Sends everything queued. Returns False if the region was unreachable; the caller then retries."""
        async with self._flushing:
            while self._pending:
                batch = [self._pending[a] for a in list(self._pending)[: limits.BATCH_WRITES_MAX]]
                for write in batch:
                    del self._pending[(write.kind, write.key, write.uid)]
                if not await self._deliver(batch):
                    return False
            self._due.clear()
            self._backoff.reset()
            return True

    async def _deliver(self, batch: Sequence[SetStatus]) -> bool:
        delayed = False

        async def send(some: Sequence[SetStatus]) -> None:
            nonlocal delayed
            if delayed:
                self._requeue(some)
            else:
                delayed = not await self._send(some)

        # A node that was fenced or replaced reports on many Bindings that are gone.
        await send_divided(batch, send, _count_refusal, (Final, Conflict), singly=True)
        return not delayed

    async def _send(self, batch: Sequence[SetStatus]) -> bool:
        """Sends the batch; False when it is put back. Raises a refusal that one write may cause."""
        sent_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(AGENT_CALL_TIMEOUT_S):
                await self._client.commit([self._numbered(write) for write in batch], brief=True)
        except Unauthorized as refusal:
            # The agent's credential was rejected, not the report: it is kept until the agent has joined again.
            return self._delay(batch, refusal)
        except (Final, Conflict):
            raise
        except (Fault, TimeoutError, OSError) as fault:
            self._unanswered.update(dict.fromkeys(((w.kind, w.key, w.uid) for w in batch), math.inf))
            return self._delay(batch, fault)
        except asyncio.CancelledError:
            self._requeue(batch)
            raise
        _accepted.inc(len(batch))
        for write in batch:
            address = (write.kind, write.key, write.uid)
            if sent_s < self._unanswered.get(address, 0.0):
                self._resend_later(address, write)
            else:
                self._unanswered.pop(address, None)
                self._sent[address] = _merge(self._sent.get(address), write)
        return True

    def _numbered(self, write: SetStatus) -> SetStatus:
        """The report with its sequence number: the next one, unless it repeats the report that was sent last."""
        block = write.blocks.get("execution")
        if block is None:
            return write
        address = (write.kind, write.key, write.uid)
        last, number = self._numbers.get(address, (None, 0))
        if block != last:  # else it is the newest report already, and the region need not store it again
            number = self._sequence = self._sequence + 1
            self._numbers[address] = (block, number)
        numbered = msgspec.structs.replace(block, sequence=number)
        return msgspec.structs.replace(write, blocks={**write.blocks, "execution": numbered})

    def _resend_later(self, address: ReportKey, write: SetStatus) -> None:
        """Schedules a second send of an accepted report. An earlier report got no response; if it arrives late, it
        would overwrite this one. A newer queued report replaces the resend.
        """
        self._sent.pop(address, None)
        now_s = self._clock.monotonic()
        until_s = min(self._unanswered[address], now_s + REPORT_RESEND_AFTER_S)
        self._unanswered[address] = until_s
        if address not in self._pending and address not in self._delayed_reports:
            self.put(write, wait_s=max(0.0, until_s - now_s))

    def _delay(self, batch: Sequence[SetStatus], fault: BaseException) -> bool:
        _delayed.inc(len(batch))
        _log.warning("report_delayed", writes=len(batch), error=str(fault) or type(fault).__name__)
        self._requeue(batch)
        return False

    def _requeue(self, batch: Sequence[SetStatus]) -> None:
        """Requeues the batch underneath newer reports about the same objects."""
        for write in batch:
            address = (write.kind, write.key, write.uid)
            newer = self._pending.get(address)
            self._pending[address] = write if newer is None else _merge(write, newer)
        self._due.set()


def _count_refusal(write: SetStatus, refusal: Fault) -> None:
    _refused.inc()
    _log.info("report_refused", kind=write.kind, object=str(write.key), reason=refusal.reason, message=refusal.message)


def _merge(older: SetStatus | None, newer: SetStatus) -> SetStatus:
    if older is None:
        return newer
    newer_types = {condition.type for condition in newer.conditions}
    kept = tuple(condition for condition in older.conditions if condition.type not in newer_types)
    return msgspec.structs.replace(
        newer, blocks={**older.blocks, **newer.blocks}, conditions=(*kept, *newer.conditions)
    )


def _is_duplicate(sent: SetStatus | None, write: SetStatus) -> bool:
    if sent is None:
        return False
    return all(name in sent.blocks and sent.blocks[name] == value for name, value in write.blocks.items())
