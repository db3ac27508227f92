"""Batch workloads on real processes: parallelism, completions, failures, deadlines and preemption.

The tasks record their own events.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

NODE_CPU = 8
"""CPU capacity of each node of `holdfast up`."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("batch") / "state"
    with running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as up:
        quota = {
            "apiVersion": V1,
            "kind": "Quota",
            "metadata": {"name": "quota", "namespace": "acme"},
            "spec": {"hard": {"cpu": str(4 * NODE_CPU), "memory": "32Gi"}},
        }
        up.apply(
            *TENANCY[:2],
            quota,
            priority_class("spare", 0, reclaimable=True),
            priority_class("urgent", 1000, mayPreempt=True),
        )
        yield up


def priority_class(name: str, value: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "spec": {"priority": value, **spec},
    }


def workload(name: str, script: str, cpu: str = "10m", **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["sh", "-c", script],
        "resources": {"cpu": cpu, "memory": "16Mi"},
        "drainDelaySeconds": 0,
        "terminationGraceSeconds": 5,
        **spec.pop("template", {}),
    }
    if "batch" in spec:
        template["restartPolicy"] = "Never"
        spec["type"] = "Batch"
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"template": template, **spec},
    }


def notes(up: RunningPlatform, name: str) -> Path:
    return up.shared_file(f"{name}.notes")


def lines(up: RunningPlatform, name: str) -> list[list[str]]:
    """Recorded events: name, replica, time."""
    with contextlib.suppress(FileNotFoundError):
        return [line.split() for line in notes(up, name).read_text().splitlines()]
    return []


def log_command(up: RunningPlatform, name: str, event: str) -> str:
    return f"echo {event} $HOLDFAST_REPLICA $(date +%s.%N) >> {notes(up, name)}"


def condition(up: RunningPlatform, name: str, kind: str) -> dict[str, str]:
    output = up.kubectl("--context", "global", "get", "workload", "-n", "acme", name, "-o", "json", check=False)
    if "NotFound" in output:
        return {"reason": "NotFound"}
    found = json.loads(output).get("status", {}).get("conditions", ())
    return next((c for c in found if c["type"] == kind), {"reason": "", "message": ""})


def most_at_once(events: list[list[str]]) -> int:
    moments = sorted((float(at), 1 if event == "begins" else -1) for event, _, at in events)
    at_once = peak = 0
    for _, step in moments:
        at_once += step
        peak = max(peak, at_once)
    return peak


def test_batch_respects_parallelism_and_completions(platform: RunningPlatform) -> None:
    script = f"{log_command(platform, 'six', 'begins')}; sleep 0.7; {log_command(platform, 'six', 'ends')}"
    platform.apply(workload("six", script, batch={"completions": 6, "parallelism": 2, "ttlAfterFinishedSeconds": 4}))
    wait_until(
        lambda: condition(platform, "six", "Complete")["reason"] == "Complete", within_s=60, what="it is complete"
    )
    events = lines(platform, "six")
    assert len({replica for event, replica, _ in events if event == "ends"}) == 6
    assert len(events) == 12, "each ran once"
    assert most_at_once(events) == 2
    wait_until(
        lambda: condition(platform, "six", "Complete")["reason"] == "NotFound",
        within_s=30,
        what="it is deleted after its TTL",
    )


def test_batch_with_too_many_failures_ends_with_reason(platform: RunningPlatform) -> None:
    script = f"{log_command(platform, 'fails', 'begins')}; exit 3"
    platform.apply(workload("fails", script, batch={"completions": 3, "parallelism": 1, "backoffLimit": 2}))
    wait_until(
        lambda: condition(platform, "fails", "Complete")["reason"] == "BackoffLimitExceeded",
        within_s=90,
        what="it fails",
    )
    tries = len(lines(platform, "fails"))
    assert tries == 3, "one more than the backoff limit"
    assert condition(platform, "fails", "Failed")["message"] == "0 of 3 completions, 3 failed"


def test_batch_deadline_at_risk_is_reported_in_advance(platform: RunningPlatform) -> None:
    script = f"sleep 0.8; {log_command(platform, 'slow', 'ends')}"
    platform.apply(workload("slow", script, batch={"completions": 30, "parallelism": 1, "deadlineSeconds": 12}))
    wait_until(
        lambda: condition(platform, "slow", "OnTime")["reason"] == "DeadlineAtRisk",
        within_s=20,
        what="the risk is reported",
    )
    assert len(lines(platform, "slow")) < 30
    wait_until(
        lambda: condition(platform, "slow", "OnTime")["reason"] == "DeadlineMissed",
        within_s=40,
        what="the deadline has passed",
    )
    before = len(lines(platform, "slow"))
    wait_until(
        lambda: len(lines(platform, "slow")) > before, within_s=20, what="the batch continues after the deadline"
    )
    platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", "slow", "--timeout=60s")


def test_reclaimable_batch_checkpoints_yields_and_returns(platform: RunningPlatform) -> None:
    script = (
        f"trap '{log_command(platform, 'spare', 'checkpoint')}' USR1; "
        f"trap '{log_command(platform, 'spare', 'ends')}; exit 0' TERM; "
        f"{log_command(platform, 'spare', 'begins')}; while :; do sleep 0.1; done"
    )
    cpu = str(NODE_CPU - 1)
    platform.apply(workload("spare", script, cpu, priorityClassName="spare", template={"checkpointSignal": "SIGUSR1"}))
    wait_until(lambda: lines(platform, "spare"), within_s=60, what="it runs on spare capacity")
    urgent = f"{log_command(platform, 'urgent', 'begins')}; exec sleep 600"
    platform.apply(workload("urgent", urgent, cpu, priorityClassName="urgent"))
    wait_until(lambda: lines(platform, "urgent"), within_s=60, what="the urgent replica runs")
    events = lines(platform, "spare")
    assert [event for event, _, _ in events] == ["begins", "checkpoint", "ends"], events
    assert float(events[-1][2]) < float(lines(platform, "urgent")[0][2]), "it stopped before"
    platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", "urgent", "--timeout=60s")
    wait_until(lambda: len(lines(platform, "spare")) == 4, within_s=60, what="it runs again")


def test_array_runs_every_index_once_and_names_the_one_that_failed(platform: RunningPlatform) -> None:
    script = (
        f'echo "$HOLDFAST_INDEX $JOB_COMPLETION_INDEX 0" >> {notes(platform, "array")}; test "$HOLDFAST_INDEX" != 2'
    )
    batch = {"completions": 4, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1}
    platform.apply(workload("array", script, batch=batch))
    platform.kubectl("-n", "acme", "wait", "workload/array", "--for=condition=Failed", "--timeout=120s")
    summary = json.loads(platform.kubectl("-n", "acme", "get", "workload", "array", "-o", "json"))["status"]["summary"]
    assert (summary["succeededIndexes"], summary["failedIndexes"]) == ("0-1,3", "2")
    (failure,) = summary["indexFailures"]
    assert (failure["index"], failure["exitCode"], failure["failures"]) == (2, 1, 2)
    ran = [(line[0], line[1]) for line in lines(platform, "array")]
    assert sorted(ran) == [("0", "0"), ("1", "1"), ("2", "2"), ("2", "2"), ("3", "3")]


def test_cron_workload_run_by_hand_completes_and_is_in_its_history(platform: RunningPlatform) -> None:
    batch = {"completions": 1, "parallelism": 1}
    run = workload("unused", f'echo "ran $HOLDFAST_REPLICA 0" >> {notes(platform, "cron")}', batch=batch)
    cron = {
        "apiVersion": V1,
        "kind": "CronWorkload",
        "metadata": {"name": "yearly", "namespace": "acme"},
        "spec": {"schedule": "@yearly", "timeZone": "Europe/Berlin", "workload": {"spec": run["spec"]}},
    }
    platform.apply(cron)
    state = ("--state", str(platform.state))
    assert "Complete" in holdfast("cron", "run", "acme/yearly", "--wait", "--timeout", "120", *state).stdout
    assert [line[0] for line in lines(platform, "cron")] == ["ran"]
    history = json.loads(holdfast("cron", "history", "acme/yearly", "-o", "json", *state).stdout)
    assert [entry["state"] for entry in history["runs"]] == ["Complete"] and not history["missed"]
    assert history["next"].endswith("-12-31T23:00:00Z"), "midnight in Berlin"
    shown = platform.kubectl("-n", "acme", "get", "cron", "yearly")
    assert "@yearly" in shown and "Europe/Berlin" in shown
    platform.kubectl("-n", "acme", "delete", "cwl", "yearly")
    wait_until(
        lambda: "yearly-run" not in platform.kubectl("-n", "acme", "get", "workloads"),
        "the runs are deleted with their CronWorkload",
    )
