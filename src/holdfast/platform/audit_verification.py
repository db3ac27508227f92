"""Verifies an audit log that was read over the API or exported to a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from holdfast.foundation.exit_codes import CommandError
from holdfast.gate.audit_chain import AuditCheckpoint, verify


def verify_records(
    records: Sequence[dict[str, Any]], checkpoints: Sequence[dict[str, Any]], key: Ed25519PublicKey
) -> dict[str, Any]:
    stored = [(int(record["sequence"]), str(record["value"]).encode()) for record in records]
    signed = msgspec.convert(checkpoints, list[AuditCheckpoint])
    found: dict[str, Any] = msgspec.to_builtins(verify(stored, signed, key))
    return found


def read_exported(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records and checkpoints of a file that `holdfast audit export` wrote."""
    records: list[dict[str, Any]] = []
    checkpoints: list[dict[str, Any]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            (checkpoints if "checkpoint" in found else records).append(found.get("checkpoint", found))
        except (ValueError, AttributeError):
            message = f"{file}: line {number} is not a record of an export"
            raise CommandError(message, next_step="export the log again: holdfast audit export FILE") from None
    return records, checkpoints
