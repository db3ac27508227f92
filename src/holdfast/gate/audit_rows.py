"""Audit rows that wait for their append: equal ones are summed, and requests wait for the rows that they counted.

A row is in one batch until the batch is appended. `RequestRecords` collects the batches of one request, so that its
answer is sent after its records are durable. `CallerAllowances` bounds how many refusals of one caller are appended at
once; the refusals beyond it are summed for longer. Nothing here reads or writes a store.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import TracebackType

import msgspec

from holdfast.model.errors import Unavailable

# Refusals of one caller that are appended at once, before they are summed. Enough for a person or a test that tries
# every verb on every kind.
AUDIT_PROMPT_BURST = 1_000
# Refusals per second that a caller regains. The audit log holds AUDIT_RECORDS_MAX records, so one caller needs hours
# to displace them.
AUDIT_PROMPT_PER_S = 10.0
# Callers with an allowance of their own. At the limit, the refusals of further callers are summed.
AUDIT_CALLERS_MAX = 1_024
# Distinct rows per batch. Further ones share one row per reason, so that the count stays true.
AUDIT_REFUSALS_MAX = 1024
# Distinct rows of one caller in one batch. Further ones share one row, which has the correct count.
AUDIT_ROWS_PER_CALLER_MAX = 64
# Time that an answer waits for the append of its record. After that, the caller gets 503, and the record is appended
# when the store accepts it.
AUDIT_ANSWER_WAIT_S = 10.0

ANONYMOUS = "system:anonymous"
"""Callers without a known credential share one allowance: they can choose their addresses."""

RowKey = tuple[str, str, str, str, str, str]
"""Principal, verb, resource, reason, result, and the text that tells uses apart."""


class AuditRow(msgspec.Struct, gc=False):
    """Equal refusals or uses, summed."""

    first_s: float
    last_s: float
    count: int
    credential: str
    message: str
    request: str


class RowBatch:
    """Rows that are appended together. `settled` ends when they are durable, with a fault if they are not yet."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, AuditRow] = {}
        self._of_caller: dict[str, int] = {}
        self.settled: asyncio.Future[None] | None = None

    def add(self, key: RowKey, row: AuditRow) -> None:
        """Adds a row, or its count to an equal row. At a limit, the rest share a row with the correct count."""
        caller = key[0]
        if key not in self.rows:
            if len(self.rows) >= AUDIT_REFUSALS_MAX:
                key = ("*", "*", "*", *key[3:5], "")
            elif self._of_caller.get(caller, 0) >= AUDIT_ROWS_PER_CALLER_MAX:
                key = (caller, "*", "*", *key[3:5], "")
        held = self.rows.get(key)
        if held is None:
            self.rows[key] = row
            self._of_caller[caller] = self._of_caller.get(caller, 0) + 1
        else:
            held.first_s, held.last_s = min(held.first_s, row.first_s), max(held.last_s, row.last_s)
            held.count += row.count

    @property
    def counted(self) -> int:
        """Refusals and uses in this batch."""
        return sum(row.count for row in self.rows.values())

    def settle(self, fault: Exception | None = None) -> None:
        """Ends the wait of every request with a row in this batch."""
        if self.settled is None or self.settled.done():
            return
        if fault is None:
            self.settled.set_result(None)
        else:
            self.settled.set_exception(fault)
            self.settled.exception()  # a request whose client left no longer waits for it


class RequestRecords:
    """The records of one request. A context manager: records that are counted inside it belong to the request."""

    def __init__(self) -> None:
        self._batches: list[RowBatch] = []
        self._is_open = False

    def __enter__(self) -> RequestRecords:
        self._is_open = True
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._is_open = False  # tasks that the request started may still count rows
        _CURRENT.reset(self._token)
        self._batches.clear()

    @property
    def has_any(self) -> bool:
        return bool(self._batches)

    def add(self, batch: RowBatch) -> None:
        if self._is_open and batch not in self._batches:
            if batch.settled is None:
                batch.settled = asyncio.get_running_loop().create_future()
            self._batches.append(batch)

    async def durable(self) -> None:
        """Returns when every record of the request is durable. Raises Unavailable if that fails or takes too long."""
        try:
            async with asyncio.timeout(AUDIT_ANSWER_WAIT_S):
                for batch in self._batches:
                    if batch.settled is not None:
                        await asyncio.shield(batch.settled)
        except TimeoutError as slow:
            raise Unavailable(
                f"the audit log did not accept the record of this request within {AUDIT_ANSWER_WAIT_S:g} s; "
                "next: retry, and see the health of the store in /readyz?verbose"
            ) from slow


_CURRENT: ContextVar[RequestRecords | None] = ContextVar("audit_request_records", default=None)


def current_records() -> RequestRecords | None:
    """The records of the request that this task serves; None outside of requests."""
    return _CURRENT.get()


class CallerAllowances:
    """How many more refusals of each caller are appended at once: a token bucket per caller."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str, now_s: float) -> bool:
        """Whether a refusal of this caller may be appended at once. Costs one token."""
        if caller not in self._buckets and len(self._buckets) >= AUDIT_CALLERS_MAX:
            self._forget_full(now_s)
            if len(self._buckets) >= AUDIT_CALLERS_MAX:
                return False
        left, at_s = self._buckets.get(caller, (float(AUDIT_PROMPT_BURST), now_s))
        left = min(AUDIT_PROMPT_BURST, left + (now_s - at_s) * AUDIT_PROMPT_PER_S)
        may = left >= 1
        self._buckets[caller] = (left - 1 if may else left, now_s)
        return may

    def _forget_full(self, now_s: float) -> None:
        """Forgets callers with a full allowance: a new bucket is equal to theirs."""
        self._buckets = {
            caller: (left, at_s)
            for caller, (left, at_s) in self._buckets.items()
            if left + (now_s - at_s) * AUDIT_PROMPT_PER_S < AUDIT_PROMPT_BURST
        }
