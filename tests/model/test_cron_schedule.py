"""Cron syntax, and the validation of CronWorkloads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import meta

from holdfast.model.cron_schedule import MACROS, BadSchedule, parse_schedule
from holdfast.model.cron_workload import (
    CronWorkload,
    CronWorkloadSpec,
    RunMetadata,
    RunTemplate,
    default_cron_workload,
    run_name,
    validate_cron_workload,
)
from holdfast.model.template import Template
from holdfast.model.workload import Autoscale, WorkloadSpec, WorkloadType

TEMPLATE = RunTemplate(
    spec=WorkloadSpec(type=WorkloadType.BATCH, template=Template(command=("work",), resources={"cpu": "100m"}))
)


def cron(name: str = "nightly", uid: str = "uid-1", **spec: Any) -> CronWorkload:
    return CronWorkload(
        metadata=meta(name, "acme", uid=uid),
        spec=CronWorkloadSpec(**{"schedule": "@hourly", "workload": TEMPLATE, **spec}),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * * *", "five fields"),
        ("60 * * * *", "60 is not in 0-59"),
        ("* 24 * * *", "24 is not in 0-23"),
        ("* * 0 * *", "0 is not in 1-31"),
        ("* * * 13 *", "13 is not in 1-12"),
        ("* * * * 8", "8 is not in 0-7"),
        ("*/0 * * * *", "must be at least 1"),
        ("5-1 * * * *", "ends before it begins"),
        ("x * * * *", "is not a number"),
        ("-1 * * * *", "is not a number"),
        ("1,,2 * * * *", "is not a number"),
        ("٣ * * * *", "is not a number"),
        ("99999999999999999999 * * * *", "is not a number"),
        ("* * * foo *", "is not a number or name"),
        ("0 0 30 2 *", "never matches"),
        ("0 0 31 4,6 *", "never matches"),
        ("@every 5m", "unknown macro"),
        ("@reboot", "unknown macro"),
        ("TZ=UTC 0 0 * * *", "set spec.timeZone"),
        ("0 " * 150, "at most 200 characters"),
    ],
)
def test_schedule_that_is_malformed_is_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(BadSchedule, match=says):
        parse_schedule(text)


def test_schedule_with_names_equals_the_one_with_numbers() -> None:
    assert parse_schedule("0 9 * JAN-mar Mon,5-7") == parse_schedule("0 9 * 1-3 0,1,5,6")
    for macro, text in MACROS.items():
        assert parse_schedule(macro.upper()) == parse_schedule(text)


def causes(item: CronWorkload) -> dict[str, str]:
    return {cause.field: cause.message for cause in validate_cron_workload(default_cron_workload(item), None)}


def test_cron_workload_that_is_sound_has_no_causes() -> None:
    assert causes(cron(time_zone="Europe/Berlin", starting_deadline_seconds=30.0)) == {}


@pytest.mark.parametrize(
    ("name", "spec", "field"),
    [
        ("nightly", {"schedule": ""}, "spec.schedule"),
        ("nightly", {"schedule": "61 * * * *"}, "spec.schedule"),
        ("nightly", {"time_zone": ""}, "spec.timeZone"),
        ("nightly", {"starting_deadline_seconds": 0.0}, "spec.startingDeadlineSeconds"),
        ("nightly", {"failed_runs_history_limit": 101}, "spec.failedRunsHistoryLimit"),
        ("n" * 30, {}, "metadata.name"),
        ("night.ly", {}, "metadata.name"),
        ("nightly", {"workload": RunTemplate(spec=WorkloadSpec())}, "spec.workload.spec.type"),
        (
            "nightly",
            {"workload": RunTemplate(metadata=RunMetadata(labels={"a b": "c"}), spec=TEMPLATE.spec)},
            "spec.workload.metadata.labels",
        ),
        (
            "nightly",
            {"workload": RunTemplate(spec=msgspec.structs.replace(TEMPLATE.spec, autoscale=Autoscale(max_replicas=3)))},
            "spec.workload.spec.autoscale",
        ),
    ],
)
def test_cron_workload_with_a_bad_field_names_it(name: str, spec: dict[str, Any], field: str) -> None:
    assert field in causes(cron(name, **spec))


def test_run_name_differs_by_uid_and_tick_and_fits() -> None:
    longest = "n" * 29
    names = {run_name(cron(longest, uid=uid), tick) for uid in ("a", "b") for tick in (1_800_000_000, 1_800_000_060)}
    assert len(names) == 4 and all(len(name) == 40 for name in names)
    assert run_name(cron(), 1_800_000_000) < run_name(cron(), 1_800_000_060) < run_name(cron(), 1_900_000_000)
