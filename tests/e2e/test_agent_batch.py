"""Batch work on real processes: how many at a time, how often, how it fails, by when; and work that yields its place.

What the work did is read from the lines it wrote itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

NODE_CPU = 8
"""What `holdfast up` says each of its nodes has."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("batch") / "state"
    with running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as up:
        quota = {"apiVersion": V1, "kind": "Quota", "metadata": {"name": "quota", "namespace": "acme"},
                 "spec": {"hard": {"cpu": str(4 * NODE_CPU), "memory": "32Gi"}}}  # fmt: skip
        up.apply(*TENANCY[:2], quota, rank("spare", 0, reclaimable=True), rank("urgent", 1000, mayPreempt=True))
        yield up


def rank(name: str, value: int, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "holdfast.dev/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "spec": {"priority": value, **spec}}  # fmt: skip


def workload(name: str, script: str, cpu: str = "10m", **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["sh", "-c", script], "resources": {"cpu": cpu, "memory": "16Mi"}, "drainDelaySeconds": 0,
        "terminationGraceSeconds": 5, **spec.pop("template", {}),
    }  # fmt: skip
    if "batch" in spec:
        template["restartPolicy"] = "Never"
        spec["type"] = "Batch"
    return {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": name, "namespace": "acme"},
            "spec": {"template": template, **spec}}  # fmt: skip


def notes(up: RunningPlatform, name: str) -> Path:
    return up.state / f"{name}.notes"


def lines(up: RunningPlatform, name: str) -> list[list[str]]:
    """What the work wrote: a word, its replica, and when."""
    with contextlib.suppress(FileNotFoundError):
        return [line.split() for line in notes(up, name).read_text().splitlines()]
    return []


def says(up: RunningPlatform, name: str, word: str) -> str:
    return f"echo {word} $HOLDFAST_REPLICA $(date +%s.%N) >> {notes(up, name)}"


def condition(up: RunningPlatform, name: str, kind: str) -> dict[str, str]:
    told = up.kubectl("--context", "global", "get", "workload", "-n", "acme", name, "-o", "json", check=False)
    if "NotFound" in told:
        return {"reason": "NotFound"}
    found = json.loads(told).get("status", {}).get("conditions", ())
    return next((c for c in found if c["type"] == kind), {"reason": "", "message": ""})


def most_at_once(seen: list[list[str]]) -> int:
    moments = sorted((float(at), 1 if word == "begins" else -1) for word, _, at in seen)
    at_once = most = 0
    for _, step in moments:
        at_once += step
        most = max(most, at_once)
    return most


def test_so_many_at_a_time_so_often_and_then_it_goes(platform: RunningPlatform) -> None:
    script = f"{says(platform, 'six', 'begins')}; sleep 0.7; {says(platform, 'six', 'ends')}"
    platform.apply(workload("six", script, batch={"completions": 6, "parallelism": 2, "ttlAfterFinishedSeconds": 4}))
    wait_until(
        lambda: condition(platform, "six", "Complete")["reason"] == "Complete", within_s=60, what="it is complete"
    )
    seen = lines(platform, "six")
    assert len({replica for word, replica, _ in seen if word == "ends"}) == 6
    assert len(seen) == 12, "each ran once"
    assert most_at_once(seen) == 2
    wait_until(
        lambda: condition(platform, "six", "Complete")["reason"] == "NotFound", within_s=30, what="it goes by itself"
    )


def test_too_many_failures_end_it_by_name(platform: RunningPlatform) -> None:
    script = f"{says(platform, 'fails', 'begins')}; exit 3"
    platform.apply(workload("fails", script, batch={"completions": 3, "parallelism": 1, "backoffLimit": 2}))
    wait_until(lambda: condition(platform, "fails", "Complete")["reason"] == "BackoffLimitExceeded", within_s=90,
          what="it is given up")  # fmt: skip
    tries = len(lines(platform, "fails"))
    assert tries == 3, "one more than is allowed to fail, and no further"
    assert condition(platform, "fails", "Failed")["message"] == "0 of 3 completions, 3 failed"


def test_that_a_deadline_will_be_missed_is_said_before_it_is(platform: RunningPlatform) -> None:
    script = f"sleep 0.8; {says(platform, 'slow', 'ends')}"
    platform.apply(workload("slow", script, batch={"completions": 30, "parallelism": 1, "deadlineSeconds": 12}))
    wait_until(
        lambda: condition(platform, "slow", "OnTime")["reason"] == "DeadlineAtRisk", within_s=20, what="it is said"
    )
    assert len(lines(platform, "slow")) < 30
    wait_until(
        lambda: condition(platform, "slow", "OnTime")["reason"] == "DeadlineMissed", within_s=40, what="it has passed"
    )
    before = len(lines(platform, "slow"))
    wait_until(lambda: len(lines(platform, "slow")) > before, within_s=20, what="the work goes on all the same")
    platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", "slow", "--timeout=60s")


def test_reclaimable_work_writes_its_checkpoint_then_yields_and_comes_back(platform: RunningPlatform) -> None:
    script = (
        f"trap '{says(platform, 'spare', 'checkpoint')}' USR1; trap '{says(platform, 'spare', 'ends')}; exit 0' TERM; "
        f"{says(platform, 'spare', 'begins')}; while :; do sleep 0.1; done"
    )
    cpu = str(NODE_CPU - 1)
    platform.apply(workload("spare", script, cpu, priorityClassName="spare", template={"checkpointSignal": "SIGUSR1"}))
    wait_until(lambda: lines(platform, "spare"), within_s=60, what="it uses what is left over")
    urgent = f"{says(platform, 'urgent', 'begins')}; exec sleep 600"
    platform.apply(workload("urgent", urgent, cpu, priorityClassName="urgent"))
    wait_until(lambda: lines(platform, "urgent"), within_s=60, what="the urgent work has the place")
    seen = lines(platform, "spare")
    assert [word for word, _, _ in seen] == ["begins", "checkpoint", "ends"], seen
    assert float(seen[-1][2]) < float(lines(platform, "urgent")[0][2]), "it had left before"
    platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", "urgent", "--timeout=60s")
    wait_until(lambda: len(lines(platform, "spare")) == 4, within_s=60, what="it comes back by itself")
