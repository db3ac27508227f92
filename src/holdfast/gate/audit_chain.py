"""Verification of an audit log: the links between its records, and the signed checkpoints of the cell. Pure.

A changed, removed or added record breaks a link. Someone who can rewrite the whole store could compute new links, and a
log cut off at its end has no broken link; both contradict a checkpoint, which is signed with the cell's key and kept
outside of the store. Records of a store without links (etcd) are verified by the checkpoints alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from holdfast.gate.audit import AUDIT_RECORDS_MAX
from holdfast.store.chained_log import link_of, record_hash

# Findings of one verification. The rest is only counted.
CHAIN_FINDINGS_MAX = 100
_encoder = msgspec.json.Encoder(order="deterministic")


class AuditCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a cell's audit log after record `through`: `digest` is over the records after `after`, `head` the
    hash of the last one, `previous` the hash of the checkpoint before."""

    cell: str
    time: str
    after: int
    through: int
    count: int
    digest: str
    head: str
    previous: str = ""
    restarted: bool = False
    """Whether the store no longer had the records of the checkpoint before, as after a restore."""
    signature: str = ""

    @property
    def signed_bytes(self) -> bytes:
        return _encoder.encode(msgspec.structs.replace(self, signature=""))

    def sign(self, key: Ed25519PrivateKey) -> AuditCheckpoint:
        return msgspec.structs.replace(self, signature=key.sign(self.signed_bytes).hex())

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        try:
            key.verify(bytes.fromhex(self.signature), self.signed_bytes)
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.signed_bytes).hexdigest()


class ChainFinding(msgspec.Struct, frozen=True):
    sequence: int
    problem: str


class ChainReport(msgspec.Struct, frozen=True, rename="camel"):
    records: int
    linked: int
    checkpoints: int
    signed_through: int
    findings: tuple[ChainFinding, ...]
    restarts: int = 0
    omitted: int = 0


def digest_of(values: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for value in values:
        total.update(hashlib.sha256(value).digest())
    return total.hexdigest()


def verify(
    records: Sequence[tuple[int, bytes]], checkpoints: Sequence[AuditCheckpoint], key: Ed25519PublicKey
) -> ChainReport:
    """`records` are sequence numbers and stored bytes, oldest first. The first may follow records that were trimmed."""
    findings = [
        *_trim_findings(records, checkpoints),
        *_link_findings(records),
        *_checkpoint_findings(records, checkpoints, key),
    ]
    return ChainReport(
        records=len(records),
        linked=sum(1 for _, value in records if link_of(value)),
        checkpoints=len(checkpoints),
        signed_through=max((c.through for c in checkpoints), default=0),
        findings=tuple(sorted(findings, key=lambda finding: finding.sequence)[:CHAIN_FINDINGS_MAX]),
        restarts=sum(c.restarted for c in checkpoints),
        omitted=max(0, len(findings) - CHAIN_FINDINGS_MAX),
    )


def _trim_findings(
    records: Sequence[tuple[int, bytes]], checkpoints: Sequence[AuditCheckpoint]
) -> Iterable[ChainFinding]:
    if not records or len(records) >= AUDIT_RECORDS_MAX:
        return
    first = records[0][0]
    if any(link_of(value) for _, value in records):
        is_missing = first > 1
    else:  # etcd: sequence numbers have gaps, so the checkpoints tell how many records there were
        early = [c for c in checkpoints[_newest_start(checkpoints) :] if c.after < first]
        held = sum(1 for sequence, _ in records if early and sequence <= early[-1].through)
        is_missing = sum(c.count for c in early) > held
    if is_missing:
        problem = f"records before it are missing, although the log keeps the newest {AUDIT_RECORDS_MAX}"
        yield ChainFinding(first, problem)


def _newest_start(checkpoints: Sequence[AuditCheckpoint]) -> int:
    """The place of the first checkpoint over the records that the store has now."""
    return max((place for place, c in enumerate(checkpoints) if c.restarted), default=0)


def _link_findings(records: Sequence[tuple[int, bytes]]) -> Iterable[ChainFinding]:
    before = b""
    for sequence, value in records:
        link = link_of(value)
        if link and before and link != before:
            problem = "does not follow the record before it: one of the two was changed, or a record is missing between"
            yield ChainFinding(sequence, problem)
        elif not link and before:
            yield ChainFinding(sequence, "has no link to the record before it")
        # A record without a link starts a chain: it is older than this release.
        before = record_hash(value) if link or before else b""


def _checkpoint_findings(
    records: Sequence[tuple[int, bytes]], checkpoints: Sequence[AuditCheckpoint], key: Ed25519PublicKey
) -> Iterable[ChainFinding]:
    held = dict(records)
    first = records[0][0] if records else 0
    before: AuditCheckpoint | None = None
    newest_start = _newest_start(checkpoints)
    for place, checkpoint in enumerate(checkpoints):
        at = checkpoint.through
        if not checkpoint.is_signed_by(key):
            yield ChainFinding(at, "checkpoint is not signed by the cell's key")
        elif before is not None and checkpoint.previous != before.hash:
            yield ChainFinding(at, "checkpoint does not follow the checkpoint before it: one is missing")
        before = checkpoint
        if at < first or place < newest_start:
            continue  # its records were trimmed, or replaced by a restore
        covered = [(n, value) for n in range(checkpoint.after + 1, at + 1) if (value := held.get(n)) is not None]
        if not covered or covered[-1][0] != at:
            yield ChainFinding(at, "record is missing, but a checkpoint was signed after it: the log was truncated")
        elif record_hash(covered[-1][1]).decode() != checkpoint.head:
            yield ChainFinding(at, "record differs from the one that a checkpoint signed")
        elif _is_whole(checkpoint, covered, first) and not _has_digest(checkpoint, covered):
            yield ChainFinding(at, f"records after {checkpoint.after} differ from those that a checkpoint signed")


def _is_whole(checkpoint: AuditCheckpoint, covered: Sequence[tuple[int, bytes]], first: int) -> bool:
    """Whether no record of the checkpoint was trimmed. Records of etcd are not numbered one by one."""
    return first <= checkpoint.after + 1 or len(covered) == checkpoint.count


def _has_digest(checkpoint: AuditCheckpoint, covered: Sequence[tuple[int, bytes]]) -> bool:
    return len(covered) == checkpoint.count and digest_of(value for _, value in covered) == checkpoint.digest
