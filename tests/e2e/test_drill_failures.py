"""Every failure of the design, done for real on one platform: each drill passes, answers, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import time

import pytest
from test_drill_region_loss import holdfast, platform

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

__all__ = ["platform"]

QUESTIONS = (
    "What desired state changed?", "Which controller acted first?", "What partial progress was recorded?",
    "Which invariant held?", "Which telemetry proves it?", "What was the repair or rollback path?",
)  # fmt: skip
MERGE = "application/merge-patch+json"
LONG = pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="minutes long; set HOLDFAST_PROVE")


def drill(state: str, name: str, *more: str) -> dict:
    ran = holdfast(
        "drill", "run", name, "--region", "eu-west", "--state", state, "--quiet", "-o", "json", *more, timeout_s=420
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["passed"] and report["violations"] == [] and report["leftovers"] == []
    assert tuple(report["questions"]) == QUESTIONS
    assert all(lines and all(isinstance(line, str) for line in lines) for lines in report["questions"].values())
    clean = holdfast("cleanup-check", "--state", state, timeout_s=30)
    assert clean.returncode == 0, clean.stdout
    return report


def first(report: dict) -> str:
    return report["questions"]["Which controller acted first?"][0]


def test_a_stale_scheduler_is_refused_for_the_right_reasons(platform):
    report = drill(platform, "stale-cache")
    answers = report["answers"]
    assert answers["an attempt that is over"] == "Rejected StaleAttempt"
    assert answers["a replica that is gone"] == "Rejected ReplicaGone"
    assert answers["a node that is drained"] == "Rejected NodeDraining"
    assert answers["a node that is full by now"] == "Rejected InsufficientCpu"
    assert any(f" {who} (eu-west)" in first(report) for who in ("drain", "release")), first(report)
    telemetry = "\n".join(report["questions"]["Which telemetry proves it?"])
    assert 'reason="StaleAttempt",result="Rejected"' in telemetry


def test_a_lost_answer_never_makes_a_second_commit(platform):
    report = drill(platform, "timeout-after-commit")
    assert report["reserve_again"] == "Already"
    assert " authority (eu-west) created Reservation" in first(report)


def test_a_leader_killed_while_placing_is_followed_by_one_that_places_each_once(platform):
    report = drill(platform, "leader-restart")
    assert "authority" in report["terms"] and report["processes_killed"] == 1
    assert " assign (global)" in first(report)
    assert any("S1" in line and "0 violation" in line for line in report["questions"]["Which invariant held?"])


def test_a_policy_taken_back_leaves_what_starts_as_it_was_decided(platform):
    report = drill(platform, "policy-rollback")
    assert report["bound_by"] == report["new_revision"] != report["old_revision"] == report["later_bound_by"]
    changed = "\n".join(report["questions"]["What desired state changed?"])
    assert "a person changed SchedulerPolicy default" in changed and "policy created PolicyRevision" in changed


def test_an_override_ends_by_itself_while_the_global_cell_is_dead(platform):
    report = drill(platform, "override-expires")
    assert report["zones_while_it_acted"] == "eu-west-b"
    assert report["clock"]["the region places in eu-west-a again"] < report["clock"]["the global cell answers again"]
    assert any("Expired" in line for line in report["questions"]["What was the repair or rollback path?"])


def test_a_lost_zone_is_replaced_inside_its_region(platform):
    report = drill(platform, "zone-loss")
    assert report["clock"]["all serve outside of the zone"] < 60
    assert " node-health (eu-west)" in first(report)
    foreseen = holdfast(
        "plan", "--lose-region", "eu-west", "--lose-zone", report["zone"], "--state", platform, "-o", "json",
        timeout_s=30,
    )  # fmt: skip
    assert foreseen.returncode == 0 and json.loads(foreseen.stdout)["lost"]["zone"] == report["zone"]


@LONG
def test_a_second_loss_during_a_recovery_adds_and_does_not_start_anew(platform):
    report = drill(platform, "loss-during-recovery")
    assert report["seconds_to_serve"] < 120
    assert " region-health (global)" in first(report)


@LONG
def test_repair_waits_while_it_is_paused_and_acts_once_when_it_may(platform):
    report = drill(platform, "repair-in-incident")
    assert report["repair_states"].startswith("Paused → Asked")


@LONG
def test_the_autoscaler_makes_no_more_of_what_is_not_ready(platform):
    report = drill(platform, "autoscaler")
    assert report["most_wanted_while_unready"] == 2 and report["reason"] == "ScaleHeld"


@LONG
def test_ninety_seconds_without_the_global_cell(platform):
    report = drill(platform, "cut-off", "--seconds", "90")
    assert report["clock"]["replaced without the global cell"] < 90


def test_every_drill_is_explained_and_has_a_simulated_twin():
    from holdfast.sim.scenario import names

    listed = json.loads(holdfast("drill", "list", "-o", "json", timeout_s=30).stdout)
    assert {d["name"] for d in listed} >= {
        "region-loss", "loss-during-recovery", "zone-loss", "stale-cache", "timeout-after-commit", "leader-restart",
        "policy-rollback", "autoscaler", "repair-in-incident", "override-expires", "cut-off",
    }  # fmt: skip
    assert all(d["does"] and d["failure"] and d["simulated"] in names() for d in listed)
    wrong = holdfast("drill", "run", "earthquake", "--region", "eu-west", timeout_s=30)
    assert wrong.returncode != 0 and "there is no drill 'earthquake'" in wrong.stderr


PACKING = """
apiVersion: holdfast.dev/v1
kind: SchedulerPolicy
metadata: {name: default}
spec:
  rules:
    scores: [{name: Packing, weight: 5}]
"""


def kubectl_like(state: str, cell: str = "global"):
    from holdfast.cli.drills.world import Watcher
    from holdfast.cli.platform.layout import Layout

    layout = Layout(state)
    return Watcher(layout, layout.load()).api(cell)


def until(true, within_s: float = 60.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = true()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"not within {within_s} s")


def workload(name: str, replicas: int, **resources: str) -> dict:
    return {
        "apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": name, "namespace": "search"},
        "spec": {
            "replicas": replicas, "placement": {"regions": ["eu-west"]},
            "template": {"command": ["sleep", "10000"], "resources": {"cpu": "100m", "memory": "32Mi", **resources}},
        },
    }  # fmt: skip


def test_a_shadow_policy_is_compared_and_a_guarded_one_takes_itself_back(platform, tmp_path):
    rules = tmp_path / "packing.yaml"
    rules.write_text(PACKING)
    api = kubectl_like(platform)
    path = "/apis/holdfast.dev/v1/schedulerpolicies/default"
    before = api.get(path)
    first = holdfast("policy", "shadow", "default", "--state", platform, timeout_s=30)
    assert first.returncode != 0 and "is active" in first.stderr
    try:
        shadow = ("policy", "shadow", "default", "--state", platform, "-o", "json")
        assert holdfast(*shadow, "-f", str(rules), timeout_s=30).returncode == 0
        until(lambda: json.loads(holdfast(*shadow, timeout_s=30).stdout)["revision"])
        time.sleep(1.0)
        api.apply(workload("tried", 6), "workloads", manager="test")
        told = until(lambda: (t := json.loads(holdfast(*shadow, timeout_s=30).stdout)) and t["examples"] and t)
        row = next(r for r in told["regions"] if r["region"] == "eu-west")
        assert row["decisions"] and row["other"] and row["same"] + row["other"] >= 6
        assert "the shadow:" in told["examples"][0]
        diff = holdfast("policy", "diff", "default", "--state", platform, timeout_s=30)
        assert diff.returncode == 3 and "scores" in diff.stdout
        # Promoted with a guard it cannot keep: work that fits nowhere waits longer than it allows.
        guard = {"maxPendingSeconds": 3, "action": "Rollback"}
        api.request("PATCH", path, {"spec": {"stage": "Active", "guard": guard}}, content_type=MERGE)
        api.apply(workload("too-large", 1, cpu="11"), "workloads", manager="test")
        held = until(lambda: api.get(path)["status"].get("held"))
        assert held["action"] == "Rollback" and "has waited for" in held["message"]
        good = before["status"]["revision"]
        until(lambda: {r["status"]["report"]["policy"] for r in api.list("regions")} == {good})
        listed = holdfast("policy", "list", "default", "--state", platform, timeout_s=30)
        assert "was stopped by its guard" in listed.stdout
    finally:
        spec = {"stage": "Active", "canaryRegions": [], "rules": before["spec"]["rules"], "guard": None}
        api.request("PATCH", path, {"spec": spec}, content_type=MERGE)
        for name in ("tried", "too-large"):
            api.request("DELETE", f"/apis/holdfast.dev/v1/namespaces/search/workloads/{name}")
