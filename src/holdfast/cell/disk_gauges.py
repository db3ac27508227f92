"""Gauges of a cell's files, read when Prometheus asks: free space, the last backup, the server's certificate."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.foundation import metrics
from holdfast.identity.node_certificates import validity_period
from holdfast.model.times import parse_time
from holdfast.store.backup_record import read_backup_record


def observe_directory(state: Path) -> None:
    metrics.STORE_DISK_FREE.set_function(lambda: _free_bytes(state))
    metrics.STORE_DISK_SIZE.set_function(lambda: _size_bytes(state))
    metrics.STORE_BACKUP.set_function(lambda: _time_s(read_backup_record(state).made_at))
    metrics.STORE_BACKUP_VERIFIED.set_function(lambda: _time_s(read_backup_record(state).verified_at))
    metrics.STORE_BACKUP_FAILED.set_function(lambda: float(bool(read_backup_record(state).failed_at)))


def observe_certificate(path: Path) -> None:
    metrics.SERVER_CERTIFICATE_EXPIRY.set_function(lambda: certificate_expiry_s(path))


def certificate_expiry_s(path: Path) -> float:
    """When the certificate expires; 0 while the file is being replaced, which the alert ignores."""
    try:
        return validity_period(path.read_bytes())[1]
    except (OSError, ValueError):
        return 0.0


def _free_bytes(state: Path) -> float:
    found = os.statvfs(state)
    return found.f_bavail * found.f_frsize


def _size_bytes(state: Path) -> float:
    found = os.statvfs(state)
    return found.f_blocks * found.f_frsize


def _time_s(text: str) -> float:
    return parse_time(text) if text else 0.0
