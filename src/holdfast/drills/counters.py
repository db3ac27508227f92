"""Counters of all cells before and after a drill, and their increases."""

from __future__ import annotations

from holdfast.drills.platform_observer import PlatformObserver
from holdfast.foundation.exit_codes import CommandError

CounterReadings = dict[tuple[str, str], float]
START_TIME_METRIC = "process_start_time_seconds"
FAMILIES = (
    "holdfast_authority_responses_total",
    "holdfast_authority_conflicts_total",
    "holdfast_authority_read_backs_total",
    "holdfast_authority_fences_total",
    "holdfast_election_changes_total",
    "holdfast_scheduler_responses_total",
    "holdfast_scheduler_unanswered_proposals_total",
    "holdfast_scheduler_planned_total",
    "holdfast_scheduler_shadow_total",
    "holdfast_controller_conflicts_total",
    "holdfast_store_commits_total",
    "holdfast_store_key_writes_total",
    "holdfast_gate_commits_total",
    "holdfast_server_refused_total",
    "holdfast_queue_dropped_total",
)


def read_counters(observer: PlatformObserver, families: tuple[str, ...] = FAMILIES) -> CounterReadings:
    """All series of these metric families by cell. An unreachable cell has none."""
    found: CounterReadings = {}
    for cell in ("global", *observer.regions):
        try:
            _, text = observer.api(cell).text("/metrics")
        except CommandError:
            continue
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == START_TIME_METRIC or series.partition("{")[0] in families:
                found[cell, series] = float(value)
    return found


def counter_increases(before: CounterReadings, after: CounterReadings) -> CounterReadings:
    """Increases between two readings. After a restart of the process, counters start from zero."""
    found: CounterReadings = {}
    for (cell, series), value in after.items():
        if series == START_TIME_METRIC:
            continue
        same = before.get((cell, START_TIME_METRIC)) == after.get((cell, START_TIME_METRIC))
        grown = value - before.get((cell, series), 0.0) if same else value
        if grown:
            found[cell, series] = grown
    return found


def sum_series(found: CounterReadings, family: str, *labels: str) -> float:
    """The sum of a family's series that contain all these words."""
    return sum(v for (_, series), v in found.items() if series.startswith(family) and all(w in series for w in labels))
