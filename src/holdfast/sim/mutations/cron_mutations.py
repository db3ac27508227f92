"""Mutations of the controller of CronWorkloads."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.fleet import cron
from holdfast.model.times import parse_time, seconds_text
from holdfast.sim.mutations.patch import Mutation, Patch


def tick_forgotten_when_the_clock_steps_back(patch: Patch) -> None:
    """Ticks are decided by the clock alone, and a run's name does not depend on its tick only."""
    describe = cron.__dict__["_describe"]

    def by_clock(made: Any, suspended: bool, schedule: Any, zone: Any, now: float) -> None:
        describe(made, suspended, schedule, zone, now)
        through_s = min(parse_time(made.status.decided_through), now)
        made.status = msgspec.structs.replace(made.status, decided_through=seconds_text(through_s))

    patch.set(cron, "_describe", by_clock)
    patch.set(cron, "run_name", lambda item, tick: f"{item.metadata.name}-{item.revision}")


def missed_ticks_unsaid(patch: Patch) -> None:
    """A tick that is not run is only passed over."""
    record = cron.__dict__["_record_missed"]

    def silent(made: Any, item: Any, ticks: Any, why: str, *, more: bool = False) -> None:
        before = made.status.missed
        record(made, item, ticks, why, more=more)
        made.status = msgspec.structs.replace(made.status, missed=before)

    patch.set(cron, "_record_missed", silent)


def tick_recorded_after_its_run(patch: Patch) -> None:
    """The run is committed alone, under a new name each time, and its tick is recorded by the next decision."""
    outcome = cron.__dict__["_outcome"]

    def run_first(made: Any, item: Any, now: float) -> Any:
        found = outcome(made, item, now)
        creates = tuple(w for w in found.writes if type(w).__name__ == "Create")
        if creates and int(now * 1000) % 3 == 0:
            return msgspec.structs.replace(found, writes=creates, requeue_after_s=0.0)
        return found

    patch.set(cron, "_outcome", run_first)
    patch.set(cron, "run_name", lambda item, tick: f"{item.metadata.name}-{item.revision}-{item.status.started}")


SCENARIO = "cron-and-region-loss"
TABLE = (
    Mutation(
        "cron-decided-by-clock",
        "a clock that steps back makes CronWorkloads decide ticks again",
        tick_forgotten_when_the_clock_steps_back,
        scenario=SCENARIO,
    ),
    Mutation("cron-miss-unsaid", "a missed tick is not counted", missed_ticks_unsaid, scenario=SCENARIO),
    Mutation(
        "cron-tick-after-run",
        "the run of a tick is committed before the tick is recorded",
        tick_recorded_after_its_run,
        scenario=SCENARIO,
    ),
)
