"""What a cell's process says about its own cell to people: its backups, certificates, break-glass sessions and drills.

The global cell announces its own; a region puts them in its report. Files are read at intervals, not at each report.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cell.cell import GLOBAL, Cell
from holdfast.cell.cell_config import CellConfig
from holdfast.cell.disk_gauges import certificate_expiry_s
from holdfast.console.drill_desk import DrillDesk
from holdfast.fleet.notable_events import backup_warnings, certificate_warning, warnings_of_sessions
from holdfast.foundation.ports import Ports
from holdfast.model.break_glass_session import BreakGlassSession
from holdfast.model.kinds import kind_of
from holdfast.model.notification import NotificationType
from holdfast.model.region import WARNING_CHARS_MAX, WARNINGS_MAX, CellWarning
from holdfast.store.backup_record import read_backup_record

# Interval at which the files of warnings are read.
WARNINGS_READ_EVERY_S = 5.0


class CellWarnings:
    def __init__(self, config: CellConfig, cell: Cell, ports: Ports) -> None:
        self._config = config
        self._cell = cell
        self._ports = ports
        self._read_at_s = -WARNINGS_READ_EVERY_S
        self._of_files: tuple[CellWarning, ...] = ()

    def __call__(self) -> tuple[CellWarning, ...]:
        now, mono_s = self._ports.clock.now(), self._ports.clock.monotonic()
        if mono_s - self._read_at_s >= WARNINGS_READ_EVERY_S:
            self._read_at_s, self._of_files = mono_s, tuple(self._from_files(now))
        found = [*self._of_files]
        if self._config.cell != GLOBAL:  # the global cell reads its own sessions
            sessions = self._cell.objects.list(kind_of(BreakGlassSession))[0]
            found += warnings_of_sessions([s for s in sessions if isinstance(s, BreakGlassSession)], now)
        return tuple(_bounded(warning) for warning in found[-WARNINGS_MAX:])

    def _from_files(self, now: float) -> Iterator[CellWarning]:
        config = self._config
        if config.store != "memory":
            record = read_backup_record(config.state)
            failure = record.failure if config.cell == GLOBAL else ""
            yield from backup_warnings(record.made_at, record.failed_at, failure, now)
        for path in dict.fromkeys((config.tls_cert, config.link_cert, config.peer_cert)):
            if (
                path is not None
                and (warning := certificate_warning(path.name, certificate_expiry_s(path), now)) is not None
            ):
                yield warning
        if config.cell == GLOBAL and config.drills is not None:
            for result in DrillDesk(config.drills).results():
                if not result.passed:
                    text = f"drill {result.drill} in {result.region} failed: {result.failure}"
                    kind = NotificationType.DRILL_FAILED.value
                    yield CellWarning(type=kind, key=result.id, message=text, at_s=result.ended_at_s)


def _bounded(warning: CellWarning) -> CellWarning:
    key, message = warning.key[:WARNING_CHARS_MAX], warning.message[:WARNING_CHARS_MAX]
    return CellWarning(type=warning.type, key=key, message=message, at_s=warning.at_s)
