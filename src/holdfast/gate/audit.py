"""Audit log: one record per commit, in the commit's own transaction; every refusal, and every other use, counted.

A committed write always has its record: both are one transaction. A refusal is durable before the caller is told of it.
Refusals are summed per (principal, verb, resource, reason) and appended in groups, so that a flood shares each append.
So are uses that write nothing durable: Events, notices, and commands executed in tasks. Records contain names,
identities and revisions, never object content or secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.gate.audit_rows import ANONYMOUS, AuditRow, CallerAllowances, RowBatch, RowKey, current_records
from holdfast.model import limits
from holdfast.model.errors import Ambiguous, Fault, Unavailable
from holdfast.model.principal import COMPONENT_GROUPS, Principal
from holdfast.model.times import micro_text
from holdfast.store.contract import Append, LogRecord, Store, Txn

# Writes listed in one audit record. The rest is only counted.
AUDIT_WRITES_PER_RECORD_MAX = 256
# Length of a text in an audit record. The rest is cut off.
AUDIT_TEXT_CHARS_MAX = 1000
# Interval at which summed rows are appended to the audit log: those of callers without an allowance, and those that no
# request waits for. A crash loses at most this much of the latter.
AUDIT_FLUSH_EVERY_S = 1.0
# Pause after an append that several requests shared, so that concurrent refusals cost at most 50 appends per second. A
# caller that sends one request after the other does not wait; its allowance bounds its appends.
AUDIT_COMMIT_EVERY_S = 0.02
# Records that one read examines to find out whether an unanswered append happened.
AUDIT_SCAN_RECORDS = 1_000
# Audit records appended before the log is trimmed to AUDIT_RECORDS_MAX.
AUDIT_TRIM_EVERY_RECORDS = 5_000
# Audit records held per cell. The oldest are deleted.
AUDIT_RECORDS_MAX = 200_000

AUDIT_LOG = "audit"

_log = structlog.get_logger()
_encoder = msgspec.json.Encoder()


class AuditEntry(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One object of a commit. `before` is the revision it replaced; 0 for a new object."""

    op: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    before: int = 0


class AuditRecord(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """`term` is the fencing token of an authority commit: the revision of its election term. It proves S5 from the
    log alone.
    """

    time: str
    principal: str
    verb: str
    result: str
    credential: str = ""
    request: str = ""
    entries: tuple[AuditEntry, ...] = ()
    omitted: int = 0
    resource: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first: str = ""
    term: int = 0
    prev: str = ""
    """Hash of the record before it (`store/chained_log.py`)."""


def with_term(append: Append, term: int) -> Append:
    """The same record with its election term, spliced into the bytes because a commit may carry hundreds of records."""
    return Append(append.log, b'%b,"term":%d}' % (append.value[:-1], term)) if append.log == AUDIT_LOG else append


def commit_record(
    who: Principal, now_s: float, verb: str, entries: Sequence[AuditEntry], *, request: str = ""
) -> Append:
    """The record of a commit, for its transaction. The authority uses it too."""
    shown = tuple(entries[:AUDIT_WRITES_PER_RECORD_MAX])
    made = AuditRecord(
        time=micro_text(now_s),
        principal=who.name,
        credential=who.credential,
        verb=verb,
        result="Committed",
        request=request[:AUDIT_TEXT_CHARS_MAX],
        entries=shown,
        omitted=len(entries) - len(shown),
    )
    return Append(AUDIT_LOG, _encoder.encode(made))


def commit_verb(ops: Iterable[str]) -> str:
    """The verb of a commit: that of its writes, or all of them, joined, if they differ."""
    return ",".join(dict.fromkeys(ops))


REFUSED, ALLOWED = "Refused", "Allowed"


class AuditLog:
    """Appends refusals and uses, and bounds the length of the log. One per process and cell.

    Rows of requests that wait for them are in the prompt batch: concurrent refusals share each append, and a caller
    without allowance only has summed rows. All other rows are summed for AUDIT_FLUSH_EVERY_S.
    """

    def __init__(self, store: Store, ports: Ports) -> None:
        self._store = store
        self._ports = ports
        self._summed = RowBatch()
        self._prompt = RowBatch()
        self._allowances = CallerAllowances()
        self._appending = asyncio.Lock()
        self._since_trim = 0
        self._flushing: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._closed = False

    def record_refusal(
        self, who: Principal | str, verb: str, resource: str, reason: str, *, message: str = "", request: str = ""
    ) -> None:
        """Counts a refusal. It is durable before its request is answered; outside of requests, soon afterwards."""
        name = who if isinstance(who, str) else who.name
        credential = "" if isinstance(who, str) else who.credential
        is_prompt = False
        if current_records() is not None:
            caller = ANONYMOUS if isinstance(who, str) else name
            is_prompt = self._allowances.take(caller, self._ports.clock.monotonic())
        key = (name[:256], verb, resource, reason, REFUSED, "")
        self._count(key, credential, message, request, is_prompt=is_prompt, is_awaited=True)

    def record_use(
        self, who: Principal, verb: str, resource: str, *, message: str = "", request: str = "", is_awaited: bool = True
    ) -> None:
        """Counts a permitted request that no commit records. Uses with different messages have different records.

        A person's use is durable before the request is answered, unless not `is_awaited`. Those of cells and agents are
        durable a second or two later: they are many, and what they change is as volatile.
        """
        text = message[:AUDIT_TEXT_CHARS_MAX]
        is_person = current_records() is not None and not COMPONENT_GROUPS.intersection(who.groups)
        key = (who.name[:256], verb, resource, "", ALLOWED, text)
        is_prompt = is_person and is_awaited and self._allowances.take(who.name, self._ports.clock.monotonic())
        self._count(key, who.credential, message, request, is_prompt=is_prompt, is_awaited=is_person and is_awaited)

    def _count(
        self, key: RowKey, credential: str, message: str, request: str, *, is_prompt: bool, is_awaited: bool
    ) -> None:
        now, text = self._ports.clock.now(), AUDIT_TEXT_CHARS_MAX
        batch = self._prompt if is_prompt else self._summed
        batch.add(key, AuditRow(now, now, 1, credential, message[:text], request[:text]))
        if is_awaited and (records := current_records()) is not None:
            records.add(batch)
        self._wake()

    def record_fault(self, fault: Fault, who: Principal, verb: str, resource: str, *, request: str = "") -> None:
        reason = str(fault.facts.get("reason", "")) or fault.reason
        self.record_refusal(who, verb, resource, reason, message=fault.message, request=request)

    def note_appended(self, records: int = 1) -> None:
        """Counts records that commits appended, so that the log is trimmed in time."""
        self._since_trim += records
        if self._since_trim >= AUDIT_TRIM_EVERY_RECORDS:
            self._wake()

    def _wake(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        is_due = bool(self._summed.rows) or self._since_trim >= AUDIT_TRIM_EVERY_RECORDS
        if self._flushing is None and is_due:
            self._flushing = loop.create_task(self._flush_soon(), name="audit-flush")
        if self._committing is None and self._prompt.rows:
            self._committing = loop.create_task(self._commit_prompt(), name="audit-commit")

    async def _flush_soon(self) -> None:
        try:
            await self._ports.clock.sleep(AUDIT_FLUSH_EVERY_S)
            await self._append_all()
        except Fault as fault:
            held = len(self._summed.rows)
            _log.warning("audit_flush_failed", reason=fault.reason, message=fault.message, held=held)
        finally:
            self._flushing = None
        self._wake()

    async def _commit_prompt(self) -> None:
        """Appends the prompt batch, then whatever arrived during the append, and so on: a group commit."""
        try:
            while self._prompt.rows:
                async with self._appending:
                    is_shared = self._prompt.counted > 1
                    await self._append_prompt()
                if is_shared:
                    await self._ports.clock.sleep(AUDIT_COMMIT_EVERY_S)
        except Fault as fault:
            _log.warning("audit_commit_failed", reason=fault.reason, message=fault.message)
        finally:
            self._committing = None
        self._wake()

    async def flush(self) -> None:
        """Appends every row that was counted up to now, and trims the log if due."""
        # A caller that is cancelled must not interrupt the append: its outcome would be unknown.
        await asyncio.shield(asyncio.get_running_loop().create_task(self._append_all(), name="audit-flush-now"))

    async def _append_all(self) -> None:
        async with self._appending:  # a row that another task appends is durable before this returns
            await self._append_prompt()
            await self._append_summed()
        if self._since_trim >= AUDIT_TRIM_EVERY_RECORDS:
            self._since_trim = 0
            await self._store.trim_log(AUDIT_LOG, keep=AUDIT_RECORDS_MAX)

    async def read(self, *, after: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Records after a sequence number, oldest first, including the refusals up to now."""
        await self.flush()
        return await read_records(self._store, after=after, limit=limit)

    async def read_stored(self, *, after: int, limit: int) -> tuple[LogRecord, ...]:
        """The same records as stored."""
        await self.flush()
        return await self._store.read_log(AUDIT_LOG, after=after, limit=limit)

    async def _append_prompt(self) -> None:
        batch, self._prompt = self._prompt, RowBatch()
        await self._append(batch)

    async def _append_summed(self) -> None:
        batch, self._summed = self._summed, RowBatch()
        await self._append(batch)

    async def _append(self, batch: RowBatch) -> None:
        """Appends the rows and ends the wait for them. Rows that were not appended are summed and tried again."""
        rows, at = list(batch.rows.items()), 0
        try:
            while at < len(rows):
                some = rows[at : at + limits.BATCH_WRITES_MAX]
                await self._commit(tuple(_row_record(key, held) for key, held in some))
                self._since_trim += len(some)
                at += len(some)
        except Fault as fault:
            for key, held in rows[at:]:
                self._summed.add(key, held)
            batch.settle(
                Unavailable(f"the record of this request is not in the audit log yet ({fault.message}); next: retry")
            )
            raise
        batch.settle()

    async def _commit(self, appends: tuple[Append, ...]) -> None:
        """Appends the records once. If the store does not answer, reads the log before it tries again."""
        before = self._store.log_position
        for attempt in range(limits.READ_BACK_ATTEMPTS):
            try:
                await self._store.commit(Txn(appends=appends))
            except Ambiguous:
                if await self._has_record(appends[0].value, after=before):
                    return
                if attempt + 1 == limits.READ_BACK_ATTEMPTS:
                    raise
                await self._ports.clock.sleep(AUDIT_FLUSH_EVERY_S)
            else:
                return

    async def _has_record(self, value: bytes, *, after: int) -> bool:
        """Whether the log has this record after a sequence number."""
        while page := await self._store.read_log(AUDIT_LOG, after=after, limit=AUDIT_SCAN_RECORDS):
            if any(record.value.startswith(value[:-1]) for record in page):  # the store may add the link at its end
                return True
            after = page[-1].sequence
        return False

    async def close(self) -> None:
        """Writes pending rows. The store must still be open."""
        self._closed = True
        async with self._appending:  # no append is interrupted: its outcome would be unknown
            for task in (self._flushing, self._committing):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        with contextlib.suppress(Fault):
            await self._append_all()


def _row_record(key: RowKey, held: AuditRow) -> Append:
    principal, verb, resource, reason, result, _ = key
    made = AuditRecord(
        time=micro_text(held.last_s),
        first=micro_text(held.first_s),
        principal=principal,
        credential=held.credential,
        verb=verb,
        resource=resource,
        reason=reason,
        message=held.message,
        request=held.request,
        count=held.count,
        result=result,
    )
    return Append(AUDIT_LOG, _encoder.encode(made))


def decode_record(value: bytes) -> AuditRecord:
    """A record as `audit` commands and the console show it."""
    return msgspec.json.decode(value, type=AuditRecord)


async def read_records(store: Store, *, after: int = 0, limit: int = 1000) -> list[tuple[int, dict[str, Any]]]:
    """Records after a sequence number, oldest first, as plain data."""
    return [
        (r.sequence, msgspec.json.decode(r.value)) for r in await store.read_log(AUDIT_LOG, after=after, limit=limit)
    ]
