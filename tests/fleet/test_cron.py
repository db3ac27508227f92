"""The controller cron: one run per tick, missed ticks said, policies, history."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest
from tests.expected import of_type, only, present
from tests.factories import cache_of, meta, with_new_revision

from holdfast.controllers.cache import Cache
from holdfast.fleet import cron
from holdfast.foundation.time_zones import find_zone
from holdfast.model.cron_workload import (
    ANNOTATION_SCHEDULED_AT,
    ConcurrencyPolicy,
    CronWorkload,
    CronWorkloadSpec,
    CronWorkloadStatus,
    MissedTicks,
    RunTemplate,
    run_name,
)
from holdfast.model.meta import Condition, Key, Object
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.template import Template
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.workload import Batch, Workload, WorkloadSpec, WorkloadType
from holdfast.model.writes import Create, Delete, Outcome, SetStatus

T0 = parse_time("2026-01-01T00:00:00Z")
MINUTE, HOUR = 60.0, 3600.0
KEY = Key("acme", "nightly")
SPEC = WorkloadSpec(
    type=WorkloadType.BATCH,
    template=Template(command=("work",), resources={"cpu": "100m"}),
    batch=Batch(completions=1, parallelism=1),
)
decide = cron.decider(find_zone)


def item(**spec: Any) -> CronWorkload:
    made = {"schedule": "0 * * * *", "workload": RunTemplate(spec=SPEC), **spec}
    return CronWorkload(metadata=meta("nightly", "acme", generation=1), spec=CronWorkloadSpec(**made))


W = TypeVar("W")


def one(outcome: Outcome, kind: type[W]) -> W:
    """The only write of this type."""
    return only([write for write in outcome.writes if isinstance(write, kind)], kind)


class Cell:
    """Applies outcomes to a cache, as a commit would."""

    def __init__(self, *objects: Object) -> None:
        self.cache: Cache = cache_of(*objects)
        self.events: list[str] = []

    @property
    def cron(self) -> CronWorkload:
        return present(self.cache.get(CronWorkload, KEY.name, KEY.namespace))

    @property
    def runs(self) -> list[str]:
        return sorted(w.metadata.annotations[ANNOTATION_SCHEDULED_AT][11:16] for w in self.cache.list(Workload))

    @property
    def missed(self) -> int:
        return (self.cron.status.missed or MissedTicks()).count

    @property
    def reason(self) -> str:
        return self.cron.status.conditions[0].reason

    def change(self, **spec: Any) -> None:
        stored = self.cron
        newer = msgspec.structs.replace(stored.metadata, generation=stored.metadata.generation + 1)
        self.cache.put(
            with_new_revision(
                msgspec.structs.replace(stored, metadata=newer), spec=msgspec.structs.replace(stored.spec, **spec)
            )
        )

    def decide(self, at_s: float) -> Outcome:
        """Decides until nothing is left to do at this time."""
        first: Outcome | None = None
        for _ in range(50):
            outcome = decide(KEY, self.cache, T0 + at_s)
            first = first or outcome
            self.apply(outcome, T0 + at_s)
            if outcome.requeue_after_s != 0.0:
                return first
        raise AssertionError("the controller does not come to rest")

    def apply(self, outcome: Outcome, now: float) -> None:
        for write in outcome.writes:
            match write:
                case Create():
                    made = of_type(write.object, Workload)
                    assert self.cache.get(Workload, made.metadata.name, "acme") is None, "a tick ran twice"
                    stamped = meta(
                        made.metadata.name,
                        "acme",
                        annotations=made.metadata.annotations,
                        owner_references=made.metadata.owner_references,
                        creation_timestamp=seconds_text(now),
                    )
                    self.cache.put(msgspec.structs.replace(made, metadata=stamped))
                case Delete():
                    self.remove(write.key)
                case SetStatus():
                    stored = self.cron
                    assert write.if_revision == stored.revision
                    fields = {f.encode_name: f.name for f in msgspec.structs.fields(CronWorkloadStatus)}
                    changed = {fields[name]: value for name, value in write.blocks.items()}
                    status = msgspec.structs.replace(
                        stored.status,
                        **changed,
                        conditions=write.conditions,
                        observed_generation=write.observed_generation,
                    )
                    self.cache.put(with_new_revision(stored, status=status))
                case _:
                    raise AssertionError(write)
        self.events += [f"{n.reason}: {n.message}" for n in outcome.notices]

    def remove(self, key: Key) -> None:
        self.cache.remove(Workload, key, present(self.cache.get(Workload, key.name, key.namespace)).revision + 1)

    def end_run(self, index: int, kind: str, at_s: float) -> None:
        run = sorted(self.cache.list(Workload), key=lambda w: w.metadata.annotations[ANNOTATION_SCHEDULED_AT])[index]
        done = Condition(type=kind, status="True", last_transition_time=seconds_text(T0 + at_s))
        self.cache.put(with_new_revision(run, status=msgspec.structs.replace(run.status, conditions=(done,))))


def test_tick_when_due_creates_one_run_and_records_it_in_the_same_commit() -> None:
    cell = Cell(item())
    waits = cell.decide(10.0)
    assert not [w for w in waits.writes if isinstance(w, Create)] and waits.requeue_after_s == cron.RECHECK_S
    assert cell.cron.status.next_schedule_time == "2026-01-01T01:00:00Z"
    outcome = cell.decide(HOUR + 0.2)
    run = of_type(one(outcome, Create).object, Workload)
    status = one(outcome, SetStatus)
    assert run.metadata.name == run_name(cell.cron, T0 + HOUR)
    assert run.metadata.owner_references[0].uid == cell.cron.uid
    assert status.blocks["lastScheduleTime"] == "2026-01-01T01:00:00Z" == status.blocks["decidedThrough"]
    assert not decide(KEY, cell.cache, T0 + HOUR + 0.3).writes
    assert cell.cron.status.active[0].workload == run.metadata.name and cell.cron.status.started == 1


def test_clock_that_steps_back_runs_no_tick_again() -> None:
    cell = Cell(item())
    cell.decide(1.0)
    cell.decide(HOUR + 1)
    cell.remove(next(iter(cell.cache.list(Workload))).key)
    cell.decide(HOUR - 600)
    assert cell.runs == [] and cell.reason == Reason.CLOCK_BEHIND
    cell.decide(HOUR + 2)
    assert cell.runs == [] and cell.reason == Reason.SCHEDULE_ACTIVE
    cell.decide(2 * HOUR)
    assert cell.runs == ["02:00"]


def test_clock_that_steps_forward_runs_the_newest_tick_and_counts_the_others() -> None:
    cell = Cell(item())
    cell.decide(1.0)
    outcome = cell.decide(5 * HOUR + 5)
    assert not [w for w in outcome.writes if isinstance(w, Create)], "missed ticks are committed before the run"
    assert cell.runs == ["05:00"] and cell.missed == 4
    assert "newer ticks are due" in present(cell.cron.status.missed).message
    assert [e for e in cell.events if e.startswith("TickMissed")]


def test_ticks_within_the_deadline_all_run_when_runs_may_be_concurrent() -> None:
    cell = Cell(item(starting_deadline_seconds=2.5 * HOUR))
    cell.decide(1.0)
    cell.decide(5 * HOUR + 5)
    assert cell.runs == ["03:00", "04:00", "05:00"] and cell.missed == 2
    assert "startingDeadlineSeconds of 9000 s has passed" in present(cell.cron.status.missed).message


@pytest.mark.parametrize("policy", list(ConcurrencyPolicy))
def test_more_due_ticks_than_the_limit_are_said_and_come_to_rest(policy: ConcurrencyPolicy) -> None:
    cell = Cell(item(schedule="* * * * *", concurrency_policy=policy, starting_deadline_seconds=30 * 86400.0))
    cell.decide(1.0)
    cell.decide(10 * 86400.0)
    assert "not looked at (limit 100)" in " ".join(cell.events)
    assert cell.missed >= 1 and len(cell.runs) >= 1 and len(cell.runs) <= cron.ACTIVE_RUNS_MAX


def test_forbidden_concurrency_makes_a_tick_wait_until_the_run_ends() -> None:
    cell = Cell(item(concurrency_policy=ConcurrencyPolicy.FORBID))
    cell.decide(1.0)
    cell.decide(HOUR)
    cell.decide(2 * HOUR)
    assert cell.runs == ["01:00"] and cell.reason == Reason.TICK_WAITING and cell.missed == 0
    cell.end_run(0, "Complete", 2.5 * HOUR)
    cell.decide(2.5 * HOUR)
    assert cell.runs == ["01:00", "02:00"] and cell.cron.status.last_successful_time == "2026-01-01T02:30:00Z"
    cell.decide(3 * HOUR)
    cell.decide(4 * HOUR)
    assert cell.runs == ["01:00", "02:00"] and cell.missed == 1, "03:00 was superseded by 04:00"


def test_run_that_fails_keeps_no_tick_waiting() -> None:
    """As a run in a lost region does at its `activeDeadlineSeconds`."""
    cell = Cell(item(concurrency_policy=ConcurrencyPolicy.FORBID))
    cell.decide(1.0)
    cell.decide(HOUR)
    cell.end_run(0, "Failed", 1.5 * HOUR)
    cell.decide(2 * HOUR)
    assert cell.runs == ["01:00", "02:00"] and cell.missed == 0


def test_forbidden_tick_whose_deadline_passes_is_missed() -> None:
    cell = Cell(item(concurrency_policy=ConcurrencyPolicy.FORBID, starting_deadline_seconds=60.0))
    cell.decide(1.0)
    cell.decide(HOUR)
    waits = cell.decide(2 * HOUR)
    assert 0 < present(waits.requeue_after_s) <= 60.1
    cell.decide(2 * HOUR + 61)
    assert cell.missed == 1 and cell.runs == ["01:00"]


def test_replaced_run_is_deleted_in_the_commit_of_the_next() -> None:
    cell = Cell(item(concurrency_policy=ConcurrencyPolicy.REPLACE))
    cell.decide(1.0)
    cell.decide(HOUR)
    outcome = cell.decide(2 * HOUR)
    assert one(outcome, Delete).key.name == run_name(cell.cron, T0 + HOUR)
    assert cell.runs == ["02:00"] and [run.scheduled_at[11:16] for run in cell.cron.status.active] == ["02:00"]


def test_history_limits_keep_the_newest_finished_runs() -> None:
    cell = Cell(item(successful_runs_history_limit=2, failed_runs_history_limit=0))
    cell.decide(1.0)
    for hour in range(1, 6):
        cell.decide(hour * HOUR)
        cell.end_run(-1, "Failed" if hour == 2 else "Complete", hour * HOUR + 60)
        cell.decide(hour * HOUR + 60)
    assert cell.runs == ["04:00", "05:00"]


def test_suspended_schedule_counts_no_ticks_and_resumes_from_now() -> None:
    cell = Cell(item())
    cell.decide(1.0)
    cell.change(suspend=True)
    cell.decide(10.0)
    assert cell.reason == Reason.SCHEDULE_SUSPENDED and cell.cron.status.next_schedule_time == ""
    cell.decide(3 * HOUR)
    cell.change(suspend=False)
    cell.decide(3 * HOUR + 60)
    assert cell.runs == [] and cell.missed == 0
    cell.decide(4 * HOUR)
    assert cell.runs == ["04:00"]


def test_changed_schedule_counts_from_now_and_closes_the_former_ticks() -> None:
    cell = Cell(item())
    cell.decide(1.0)
    cell.change(schedule="*/10 * * * *")
    cell.decide(2 * HOUR + 60)
    assert (
        cell.runs == [] and cell.missed == 2 and "the schedule was changed" in present(cell.cron.status.missed).message
    )
    cell.decide(2 * HOUR + 600)
    assert cell.runs == ["02:10"]


def test_recreated_cron_workload_repeats_no_tick_of_its_past() -> None:
    again = item()
    again = with_new_revision(
        again,
        metadata=msgspec.structs.replace(again.metadata, uid="another", creation_timestamp="2026-01-01T01:00:00Z"),
    )
    cell = Cell(again)
    cell.decide(HOUR + 1)
    assert cell.runs == []
    assert run_name(again, T0 + HOUR) != run_name(item(), T0 + HOUR)


def test_run_name_taken_by_another_workload_is_a_missed_tick() -> None:
    made = item()
    other = Workload(
        metadata=meta(run_name(made, T0 + HOUR), "acme", annotations={ANNOTATION_SCHEDULED_AT: "2026-01-01T00:00:00Z"}),
        spec=SPEC,
    )
    cell = Cell(made, other)
    cell.decide(1.0)
    cell.decide(HOUR)
    assert cell.missed == 1 and "is no run of this CronWorkload" in present(cell.cron.status.missed).message


def test_tick_above_the_pending_cap_waits_and_says_so() -> None:
    quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(hard={"cpu": "1"}, pending_cap=1))
    busy = Workload(
        metadata=meta("busy", "acme", annotations={ANNOTATION_SCHEDULED_AT: "2026-01-01T00:00:00Z"}), spec=SPEC
    )
    cell = Cell(item(), quota, busy)
    cell.decide(1.0)
    cell.decide(HOUR)
    assert cell.runs == ["00:00"] and cell.reason == Reason.TICK_WAITING
    cell.remove(busy.key)
    cell.decide(HOUR + 30)
    assert cell.runs == ["01:00"]


def test_unfinished_runs_at_the_limit_make_ticks_wait() -> None:
    cell = Cell(item(schedule="* * * * *"))
    for minute in range(cron.ACTIVE_RUNS_MAX + 3):
        cell.decide(minute * MINUTE)
    assert len(cell.runs) == cron.ACTIVE_RUNS_MAX and cell.reason == Reason.TICK_WAITING and cell.missed == 1


def test_time_zone_of_another_release_starts_nothing_and_says_so() -> None:
    cell = Cell(item(time_zone="Moon/Tycho"))
    cell.decide(HOUR)
    assert cell.runs == [] and cell.reason == Reason.UNKNOWN_TIME_ZONE


def test_ended_run_wakes_its_cron_workload() -> None:
    cell = Cell(item())
    cell.decide(1.0)
    cell.decide(HOUR)
    run = next(iter(cell.cache.list(Workload)))
    done = Condition(type="Complete", status="True")
    ended = with_new_revision(run, status=msgspec.structs.replace(run.status, conditions=(done,)))
    assert list(cron.woken_by_workload(ended, run, cell.cache)) == [KEY]
    assert list(cron.woken_by_workload(None, run, cell.cache)) == [KEY]
    assert list(cron.woken_by_workload(run, run, cell.cache)) == []
