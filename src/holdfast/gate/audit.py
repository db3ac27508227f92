"""Audit log: one record per commit, in the commit's own transaction; every refusal, and every other use, counted.

A committed write always has its record: both are one transaction. Refusals are summed per (principal, verb, resource,
reason) and appended about once a second, so that a flood costs one row. So are uses that write nothing durable: Events,
notices, and commands executed in tasks. Records contain names, identities and
revisions, never object content or secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.principal import Principal
from holdfast.model.times import micro_text
from holdfast.store.contract import Append, LogRecord, Store, Txn

# Writes listed in one audit record. The rest is only counted.
AUDIT_WRITES_PER_RECORD_MAX = 256
# Length of a text in an audit record. The rest is cut off.
AUDIT_TEXT_CHARS_MAX = 1000
# Interval at which refusals are appended to the audit log. A crash loses at most this much of them.
AUDIT_FLUSH_EVERY_S = 1.0
# Distinct refusals counted per flush. Further ones share one record per reason, so that the count stays true.
AUDIT_REFUSALS_MAX = 1024
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
_Key = tuple[str, str, str, str, str, str]
"""Principal, verb, resource, reason, result, and the text that tells uses apart."""


class _RepeatedRow(msgspec.Struct, gc=False):
    first_s: float
    last_s: float
    count: int
    credential: str
    message: str
    request: str


class AuditLog:
    """Collects refusals and bounds the length of the log. One per process and cell; starts its task on demand."""

    def __init__(self, store: Store, ports: Ports) -> None:
        self._store = store
        self._ports = ports
        self._rows: dict[_Key, _RepeatedRow] = {}
        self._since_trim = 0
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False

    def record_refusal(
        self, who: Principal | str, verb: str, resource: str, reason: str, *, message: str = "", request: str = ""
    ) -> None:
        """Counts a refusal. It is durable within a second or two."""
        name = who if isinstance(who, str) else who.name
        credential = "" if isinstance(who, str) else who.credential
        self._count((name[:256], verb, resource, reason, REFUSED, ""), credential, message, request)

    def record_use(self, who: Principal, verb: str, resource: str, *, message: str = "", request: str = "") -> None:
        """Counts a permitted request that no commit records. Uses with different messages have different records."""
        text = message[:AUDIT_TEXT_CHARS_MAX]
        self._count((who.name[:256], verb, resource, "", ALLOWED, text), who.credential, message, request)

    def _count(self, key: _Key, credential: str, message: str, request: str) -> None:
        if key not in self._rows and len(self._rows) >= AUDIT_REFUSALS_MAX:
            # Beyond AUDIT_REFUSALS_MAX different rows per flush, the rest share one row with the correct count.
            key = ("*", "*", "*", *key[3:5], "")
        now = self._ports.clock.now()
        held = self._rows.get(key)
        if held is None:
            text = AUDIT_TEXT_CHARS_MAX
            self._rows[key] = _RepeatedRow(now, now, 1, credential, message[:text], request[:text])
        else:
            held.last_s, held.count = now, held.count + 1
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
        if self._flushing is None and not self._closed:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_soon(), name="audit-flush")

    async def _flush_soon(self) -> None:
        try:
            await self._ports.clock.sleep(AUDIT_FLUSH_EVERY_S)
            await self.flush()
        except Fault as fault:
            _log.warning("audit_flush_failed", reason=fault.reason, message=fault.message, held=len(self._rows))
        finally:
            self._flushing = None
        if self._rows:
            self._wake()

    async def flush(self) -> None:
        """Appends the refusals since the last flush and trims the log if due."""
        refusals, self._rows = self._rows, {}
        if refusals:
            await self._append(list(refusals.items()))
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

    async def _append(self, refusals: list[tuple[_Key, _RepeatedRow]]) -> None:
        for start in range(0, len(refusals), limits.BATCH_WRITES_MAX):
            some = refusals[start : start + limits.BATCH_WRITES_MAX]
            try:
                await self._store.commit(Txn(appends=tuple(_row_record(key, held) for key, held in some)))
            except Fault:
                self._requeue(dict(refusals[start:]))
                raise
            self._since_trim += len(some)

    def _requeue(self, refusals: dict[_Key, _RepeatedRow]) -> None:
        for key, held in refusals.items():
            newer = self._rows.get(key)
            if newer is None:
                self._rows[key] = held
            else:
                newer.first_s, newer.count = held.first_s, newer.count + held.count

    async def close(self) -> None:
        """Writes pending refusals. The store must still be open."""
        self._closed = True
        task = self._flushing
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        with contextlib.suppress(Fault):
            await self.flush()


def _row_record(key: _Key, held: _RepeatedRow) -> Append:
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
