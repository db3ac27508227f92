"""Counters of all cells before and after a drill, and their increases."""

from __future__ import annotations

from holdfast.cli.drills.world import Watcher
from holdfast.cli.exits import Stop

Readings = dict[tuple[str, str], float]
STARTED = "process_start_time_seconds"
FAMILIES = (
    "holdfast_authority_answers_total", "holdfast_authority_conflicts_total", "holdfast_authority_read_backs_total",
    "holdfast_authority_fences_total", "holdfast_election_changes_total", "holdfast_scheduler_answers_total",
    "holdfast_scheduler_faults_total", "holdfast_scheduler_planned_total", "holdfast_scheduler_shadow_total",
    "holdfast_controller_conflicts_total", "holdfast_store_commits_total", "holdfast_store_rows_total",
    "holdfast_gate_commits_total", "holdfast_server_refused_total", "holdfast_queue_dropped_total",
)  # fmt: skip


def read(watcher: Watcher, families: tuple[str, ...] = FAMILIES) -> Readings:
    """All series of these metric families by cell. An unreachable cell has none."""
    found: Readings = {}
    for cell in ("global", *watcher.regions):
        try:
            _, text = watcher.api(cell).text("/metrics")
        except Stop:
            continue
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == STARTED or series.partition("{")[0] in families:
                found[cell, series] = float(value)
    return found


def moved(before: Readings, after: Readings) -> Readings:
    """Increases between two readings. After a restart of the process, counters start from zero."""
    found: Readings = {}
    for (cell, series), value in after.items():
        if series == STARTED:
            continue
        same = before.get((cell, STARTED)) == after.get((cell, STARTED))
        grown = value - before.get((cell, series), 0.0) if same else value
        if grown:
            found[cell, series] = grown
    return found


def total(found: Readings, family: str, *words: str) -> float:
    """The sum of a family's series that contain all these words."""
    return sum(v for (_, series), v in found.items() if series.startswith(family) and all(w in series for w in words))
