"""Every runbook, run by its command on a real platform. Actions that need minutes run with HOLDFAST_PROVE."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(600)]
LONG = pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="minutes long; set HOLDFAST_PROVE")
REGION = "eu-west"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("runbooks") / "state") as running:
        yield running


class Run:
    """One run of a runbook, continued step by step as an operator does."""

    def __init__(self, platform: RunningPlatform, name: str, *, check: bool = True, **values: str) -> None:
        self._state = ("--state", str(platform.state))
        settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        dry = holdfast("runbook", "run", name, *settings, "--dry-run", *self._state)
        assert "Step 1 of" in dry.stdout
        self.printed = holdfast(
            "runbook", "run", name, *settings, "--yes", *self._state, timeout_s=500, check=check
        ).stdout
        self.id: str = self.record("last")["id"]

    def record(self, run_id: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            holdfast("runbook", "show", run_id or self.id, "-o", "json", *self._state).stdout
        )
        return found

    def waits_at(self, title: str) -> None:
        record = self.record()
        assert record["state"] == "Waiting", record
        assert record["steps"][-1]["title"] == title

    def proceed(self) -> None:
        self.printed = holdfast("runbook", "continue", self.id, "--yes", *self._state, timeout_s=500).stdout

    def approve(self) -> None:
        """As the second person."""
        second = holdfast("token", "create", f"second-{self.id}", "--operator", *self._state).stdout.strip()
        holdfast("override", "approve", self.id, "--token", second, *self._state)

    def finished(self) -> list[dict[str, Any]]:
        record = self.record()
        assert record["state"] == "Finished", record
        assert "Finished. Tell users:" in self.printed
        steps: list[dict[str, Any]] = record["steps"]
        return steps


def phase(platform: RunningPlatform, name: str) -> str:
    return platform.kubectl("get", "override", name, "-o", "jsonpath={.status.phase}", check=False)


def test_zone_avoidance_runbook_avoids_the_zone_until_it_is_continued(platform: RunningPlatform) -> None:
    run = Run(platform, "zone-avoidance", region=REGION, zone=f"{REGION}-a", reason="cooling failed", ttl="600")
    run.waits_at("Running work leaves the zone")
    assert phase(platform, run.id) == "Active"
    run.proceed()
    run.finished()
    assert phase(platform, run.id) != "Active"


def test_autoscaler_pause_runbook_pauses_and_resumes(platform: RunningPlatform) -> None:
    run = Run(platform, "autoscaler-pause", tenant="payments", workload="risk-api", reason="metric is wrong")
    run.waits_at("The load metric can be trusted again")
    assert phase(platform, run.id) == "Active"
    run.proceed()
    run.finished()


def test_quota_emergency_runbook_waits_for_a_second_person(platform: RunningPlatform) -> None:
    run = Run(platform, "quota-emergency", tenant="payments", quota="cpu=1", reason="sale", ttl="600")
    run.waits_at("A second person approves")
    assert phase(platform, run.id) != "Active"
    run.approve()
    run.proceed()
    run.waits_at("The incident is over")
    run.proceed()
    run.finished()


def test_certificate_expiry_runbook_rotates_while_the_region_runs(platform: RunningPlatform) -> None:
    steps = Run(platform, "certificate-expiry", region=REGION).finished()
    assert [step["exitCode"] for step in steps if "rotate" in step.get("command", "")] == [0]


def test_repair_approval_runbook_ends_when_nothing_waits(platform: RunningPlatform) -> None:
    run = Run(platform, "repair-approval", region=REGION, reason="nodes returned")
    run.waits_at("The incident is understood")
    run.proceed()
    run.finished()


def test_policy_rollback_runbook_returns_to_the_previous_rules(platform: RunningPlatform, tmp_path: Path) -> None:
    before = json.loads(platform.kubectl("get", "schedulerpolicy", "default", "-o", "json"))["spec"].get("rules", {})
    changed = tmp_path / "policy.yaml"
    changed.write_text(
        "apiVersion: holdfast.dev/v1\nkind: SchedulerPolicy\nmetadata: {name: default}\nspec:\n  stage: Active\n"
        "  rules: {scores: [{name: Balance, weight: 7}]}\n"
    )
    platform.kubectl("apply", "-f", str(changed))
    run = Run(platform, "policy-rollback", policy="default")
    run.finished()
    after = json.loads(platform.kubectl("get", "schedulerpolicy", "default", "-o", "json"))["spec"].get("rules", {})
    assert after.get("scores") == before.get("scores")


def test_stuck_finalizer_runbook_stops_at_a_finalizer_that_is_not_overdue(platform: RunningPlatform) -> None:
    run = Run(
        platform,
        "stuck-finalizer",
        check=False,
        kind="Workload",
        object="payments/risk-api",
        finalizer="holdfast.dev/assignments",
    )
    record = run.record()
    assert (record["state"], record["steps"][-1]["outcome"]) == ("Failed", "failed")
    assert "risk-api" in record["steps"][-1]["output"]


@LONG
def test_store_restore_runbook_restores_a_region(platform: RunningPlatform, tmp_path: Path) -> None:
    layout = Layout(platform.state)
    backup, directory = tmp_path / "region.backup", str(layout.cell(REGION))
    holdfast("backup", "--cell", REGION, "--state", directory, "--to", str(backup))
    run = Run(platform, "store-restore", cell=REGION, directory=directory, backup=str(backup))
    run.waits_at("The cell is stopped")
    outage.hold_down(layout, [f"cell-{REGION}"])
    outage.kill_processes(layout, [f"cell-{REGION}"])
    run.proceed()
    run.waits_at("The cell is started")
    outage.allow_restart(layout, [f"cell-{REGION}"])
    run.proceed()
    run.finished()


@LONG
def test_recovery_override_runbook_moves_work_and_brings_it_back(platform: RunningPlatform) -> None:
    run = Run(platform, "recovery-override", region="us-east", reason="evacuation", ttl="3600")
    run.waits_at("A second person approves")
    run.approve()
    run.proceed()
    run.waits_at("The region can serve again")
    run.proceed()
    run.finished()


@LONG
def test_region_loss_runbook_follows_a_real_loss(platform: RunningPlatform) -> None:
    layout = Layout(platform.state)
    names = outage.process_names(outage.region_plan(layout.load(), "us-east"))
    outage.hold_down(layout, names)
    outage.kill_processes(layout, names)
    run = Run(platform, "region-loss", region="us-east")
    run.waits_at("us-east returns")
    outage.allow_restart(layout, names)
    run.proceed()
    run.finished()
    wait_until(lambda: "Healthy" in platform.kubectl("get", "region", "us-east"), "the region is healthy", 60)
