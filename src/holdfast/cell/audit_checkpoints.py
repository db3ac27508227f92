"""Signs the state of the audit log at intervals, as a component of the cell's process.

Owns `audit.key` (Ed25519, made at the first start), `audit.pub` and `audit-checkpoints.jsonl` in the state directory:
outside of the store, so that a store that was rewritten or cut off contradicts them. Trims the log once after a start:
the gate counts the records of its own process only, so a cell that restarts often would never trim.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from holdfast.foundation.ports import Ports
from holdfast.gate.audit import AUDIT_LOG, AUDIT_RECORDS_MAX
from holdfast.gate.audit_chain import AuditCheckpoint
from holdfast.model.errors import Fault, StoreFailed
from holdfast.model.times import micro_text
from holdfast.store.chained_log import record_hash
from holdfast.store.contract import Store

AUDIT_KEY_FILE, AUDIT_PUBLIC_FILE = "audit.key", "audit.pub"
CHECKPOINTS_FILE = "audit-checkpoints.jsonl"
# Interval of checkpoints while records are added. Truncation of the records since the last one is not noticed.
CHECKPOINT_EVERY_S = 10.0
# Records read at once for a checkpoint.
CHECKPOINT_PAGE_RECORDS = 2_000
# Checkpoints kept in the file. At twice as many, the older half is dropped.
CHECKPOINTS_KEPT = 10_000

_log = structlog.get_logger()


def load_or_make_key(state: Path) -> Ed25519PrivateKey:
    path = state / AUDIT_KEY_FILE
    try:
        found = load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        found = Ed25519PrivateKey.generate()
        pem = found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
    except ValueError as wrong:
        raise StoreFailed(f"{path}: not a private key ({wrong}); next: restore the file, or move it away") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise StoreFailed(f"{path}: not an Ed25519 key; next: restore the file, or move it away")
    public = found.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (state / AUDIT_PUBLIC_FILE).write_bytes(public)
    return found


def read_checkpoints(state: Path) -> list[AuditCheckpoint]:
    """The checkpoints, oldest first. A line that a crash cut off is left out."""
    try:
        lines = (state / CHECKPOINTS_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: list[AuditCheckpoint] = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=AuditCheckpoint))
        except msgspec.MsgspecError:
            _log.warning(
                "audit_checkpoint_unreadable", path=str(state / CHECKPOINTS_FILE), line=line[:80].decode("latin-1")
            )
    return found


class AuditCheckpoints:
    def __init__(self, cell: str, state: Path, store: Store, ports: Ports) -> None:
        self._cell = cell
        self._state = state
        self._store = store
        self._ports = ports
        self._written = 0
        self._last: AuditCheckpoint | None = None
        self._checked = False
        self._trimmed = False

    async def start(self) -> None:
        self._key = await asyncio.to_thread(load_or_make_key, self._state)
        held = await asyncio.to_thread(read_checkpoints, self._state)
        self._written, self._last = len(held), held[-1] if held else None

    async def run(self) -> None:
        while True:
            await self._ports.clock.sleep(CHECKPOINT_EVERY_S)
            await self._checkpoint_or_log()

    async def stop(self) -> None:
        await self._checkpoint_or_log()

    async def _checkpoint_or_log(self) -> None:
        try:
            await self.checkpoint()
            if not self._trimmed:  # after the checkpoint, which signs the records first
                await self._store.trim_log(AUDIT_LOG, keep=AUDIT_RECORDS_MAX)
                self._trimmed = True
        except (Fault, OSError) as problem:
            _log.warning("audit_checkpoint_failed", cell=self._cell, reason=str(problem))

    async def checkpoint(self) -> AuditCheckpoint | None:
        """Signs the records since the last checkpoint; None if there are none."""
        restarted = not self._checked and await self._is_restarted()
        self._checked = True
        after = self._last.through if self._last is not None and not restarted else 0
        total, count, through, head = hashlib.sha256(), 0, after, b""
        while page := await self._store.read_log(AUDIT_LOG, after=through, limit=CHECKPOINT_PAGE_RECORDS):
            for record in page:
                total.update(hashlib.sha256(record.value).digest())
            count, through, head = count + len(page), page[-1].sequence, page[-1].value
        if not count:
            return None
        made = AuditCheckpoint(
            cell=self._cell,
            time=micro_text(self._ports.clock.now()),
            after=after,
            through=through,
            count=count,
            digest=total.hexdigest(),
            head=record_hash(head).decode(),
            previous=self._last.hash if self._last is not None else "",
            restarted=restarted,
        ).sign(self._key)
        await asyncio.to_thread(self._append, made)
        self._last = made
        return made

    async def _is_restarted(self) -> bool:
        """Whether the store lacks the last signed record, as after a restore. That is signed into the next one."""
        if self._last is None:
            return False
        found = await self._store.read_log(AUDIT_LOG, after=self._last.through - 1, limit=1)
        same = bool(found) and found[0].sequence == self._last.through
        if same and record_hash(found[0].value).decode() == self._last.head:
            return False
        _log.warning("audit_log_restarted", cell=self._cell, signed_through=self._last.through)
        return True

    def _append(self, made: AuditCheckpoint) -> None:
        path = self._state / CHECKPOINTS_FILE
        if self._written >= 2 * CHECKPOINTS_KEPT:
            kept = path.read_bytes().splitlines(keepends=True)[-CHECKPOINTS_KEPT:]
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(b"".join(kept))
            temporary.replace(path)
            self._written = len(kept)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(made) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._written += 1
