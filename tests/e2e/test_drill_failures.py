"""Every drill on one real platform: it passes, answers the incident questions and returns all resources. Unsafe user
requests are refused with the next step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.drilled import holdfast, platform
from tests.e2e.recorded_answers import check_answers
from tests.platforms import V1, wait_until

from holdfast.client.sync_api import CellApi

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]

__all__ = ["platform"]

QUESTIONS = (
    "What desired state changed?",
    "Which controller acted first?",
    "What partial progress was recorded?",
    "Which invariant held?",
    "Which telemetry proves it?",
    "What was the repair or rollback path?",
)
Report = dict[str, Any]
MERGE = "application/merge-patch+json"
PATH = f"/apis/{V1}"
LONG = pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="minutes long; set HOLDFAST_PROVE")


def drill(state: str, name: str, *more: str) -> Report:
    ran = holdfast(
        "drill", "run", name, "--region", "eu-west", "--state", state, "--quiet", "-o", "json", *more, timeout_s=420
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report: Report = json.loads(ran.stdout)
    assert report["passed"] and report["violations"] == [] and report["unreturned"] == []
    assert tuple(report["questions"]) == QUESTIONS
    assert all(lines and all(isinstance(line, str) for line in lines) for lines in report["questions"].values())
    check_answers(Path(state), report)
    clean = holdfast("cleanup-check", "--state", state, timeout_s=30)
    assert clean.returncode == 0, clean.stdout
    return report


def repair_path(report: Report) -> list[str]:
    """The sixth answer without the drill's own undo."""
    lines = report["questions"]["What was the repair or rollback path?"]
    return [line for line in lines if not line.startswith(("undone by the drill", "cleanup check"))]


def first_controller(report: Report) -> str:
    return str(report["questions"]["Which controller acted first?"][0])


def test_stale_cache_drill_is_refused_with_reasons(platform: str) -> None:
    report = drill(platform, "stale-cache")
    responses = report["responses"]
    assert responses["ended attempt"] == "Rejected StaleAttempt"
    assert responses["deleted replica"] == "Rejected ReplicaNotFound"
    assert responses["draining node"] == "Rejected NodeDraining"
    assert responses["full node"] == "Rejected InsufficientCpu"
    acting = (" drain (eu-west)", " release (eu-west)", " assign (global)")  # the drill also scales a workload down
    assert any(controller in first_controller(report) for controller in acting), first_controller(report)
    telemetry = "\n".join(report["questions"]["Which telemetry proves it?"])
    assert 'reason="StaleAttempt",result="Rejected"' in telemetry
    path = "\n".join(repair_path(report))
    assert "answered bind with Rejected, StaleAttempt" in path and "bound drill/moving-eu-west-" in path


def test_timeout_after_commit_drill_commits_once(platform: str) -> None:
    report = drill(platform, "timeout-after-commit")
    assert report["secondReserve"] == "Already"
    assert " authority (eu-west) created Reservation" in first_controller(report)
    assert any("answered reserve with Already" in line for line in repair_path(report))


def test_leader_restart_drill_places_each_replica_once(platform: str) -> None:
    report = drill(platform, "leader-restart")
    assert "authority" in report["terms"] and report["processesKilled"] == 1
    assert " assign (global)" in first_controller(report)
    assert any("S1" in line and "0 violation" in line for line in report["questions"]["Which invariant held?"])
    assert any("a new leader of authority" in line for line in repair_path(report))


def test_policy_rollback_drill_keeps_bound_replicas(platform: str) -> None:
    report = drill(platform, "policy-rollback")
    assert report["boundBy"] == report["newRevision"] != report["oldRevision"] == report["laterBoundBy"]
    changed = "\n".join(report["questions"]["What desired state changed?"])
    assert "a user changed SchedulerPolicy default" in changed and "policy created PolicyRevision" in changed
    assert " policy (global) " in first_controller(report) and "PolicyRevision" in first_controller(report)


def test_override_expires_drill_ends_without_global_cell(platform: str) -> None:
    report = drill(platform, "override-expires")
    assert report["zonesWhileActive"] == "eu-west-b"
    clock = report["clock"]
    assert clock["the region places in eu-west-a again"] < clock["the global cell is reachable again"]
    assert any("Active → Expired" in line for line in repair_path(report))


def test_zone_loss_drill_recovers_within_the_region(platform: str) -> None:
    report = drill(platform, "zone-loss")
    assert report["clock"]["all replicas serve in other zones"] < 60
    assert " node-health (eu-west)" in first_controller(report)
    path = "\n".join(repair_path(report))
    assert "NodeLost" in path and "bound " in path and "serves with as many replicas again" in path
    predicted = holdfast(
        "plan",
        "--lose-region",
        "eu-west",
        "--lose-zone",
        report["zone"],
        "--state",
        platform,
        "-o",
        "json",
        timeout_s=30,
    )
    assert predicted.returncode == 0 and json.loads(predicted.stdout)["lost"]["zone"] == report["zone"]


@LONG
def test_loss_during_recovery_drill_extends_the_recovery(platform: str) -> None:
    report = drill(platform, "loss-during-recovery")
    assert report["secondsToMinServing"] < 120
    assert " region-health (global)" in first_controller(report)


@LONG
def test_repair_in_incident_drill_waits_while_paused_and_acts_once(platform: str) -> None:
    report = drill(platform, "repair-in-incident")
    assert report["repairStates"].startswith("Paused → ReleaseRequested")


@LONG
def test_autoscaler_drill_does_not_scale_unready_replicas(platform: str) -> None:
    report = drill(platform, "autoscaler")
    assert report["maxDesiredWhileNotReady"] == 2 and report["reason"] == "ScaleUpBlocked"
    assert any(" reason " in line and "ScaleUpBlocked" in line for line in repair_path(report))


@LONG
def test_partition_drill_of_ninety_seconds_passes(platform: str) -> None:
    report = drill(platform, "partition", "--seconds", "90")
    assert report["clock"]["replaced without the global cell"] < 90


@LONG
@pytest.mark.parametrize("mode", ["wait", "provisional"])
def test_partition_beyond_the_grant_lease_keeps_bound_replicas(platform: str, mode: str) -> None:
    report = drill(platform, f"partition-{mode}")
    replaced = report["clock"].get("replaced without the global cell")
    ended_s = report["clock"]["the partition ends"]
    assert ended_s > report["clock"]["the grant lease is over"] > 120
    # The drill ends the partition as soon as they are replaced: within the resolution of the clock.
    assert (replaced is not None and replaced <= ended_s) if mode == "provisional" else replaced is None


@LONG
def test_region_away_beyond_its_grant_lease_places_nothing_by_old_grants(platform: str) -> None:
    report = drill(platform, "region-away")
    assert report["awaySeconds"] > 120 and report["replicasStartedElsewhere"] >= 4
    assert report["clock"]["four recovery replicas serve elsewhere"] < 60


@LONG
def test_hung_global_cell_is_noticed_by_every_region(platform: str) -> None:
    report = drill(platform, "global-hang")
    assert report["secondsUntilNoticed"] <= 12
    assert " override (eu-west) changed Override break-glass-eu-west-" in first_controller(report)


@LONG
def test_lost_global_store_stops_no_task_and_is_restored(platform: str) -> None:
    report = drill(platform, "global-store-loss")
    assert set(report["held"].values()) == {"GlobalCellReplaced"} and report["tasksKept"] > 0
    assert "HoldsWork unset → True GlobalCellReplaced" in first_controller(report)


@LONG
def test_emergency_quota_comes_back_after_its_expiry(platform: str) -> None:
    report = drill(platform, "emergency-quota")
    assert report["secondsUntilReverted"] < 120


def test_reports_are_kept_listed_and_compared(platform: str) -> None:
    """The drills of this module have left their reports. One more run is compared with the run before it."""
    drill(platform, "stale-cache")
    drill(platform, "stale-cache")
    listed = json.loads(
        holdfast("drill", "history", "stale-cache", "--state", platform, "-o", "json", timeout_s=30).stdout
    )
    assert len(listed) >= 2 and all(row["passed"] and row["drill"] == "stale-cache" for row in listed)
    assert [row["startedAt"] for row in listed] == sorted((row["startedAt"] for row in listed), reverse=True)
    text = holdfast("drill", "history", "--state", platform, timeout_s=30).stdout
    assert listed[0]["id"] in text and "REPORT" in text
    shown = json.loads(
        holdfast("drill", "show", listed[1]["id"], "--state", platform, "-o", "json", timeout_s=30).stdout
    )
    assert shown == listed[1] and tuple(shown["questions"]) == QUESTIONS
    compared = holdfast("drill", "compare", "--state", platform, "-o", "json", timeout_s=30)
    rows = json.loads(compared.stdout)
    assert (rows["report"], rows["before"]) == (listed[0]["id"], listed[1]["id"]) and rows["stages"]
    assert compared.returncode == int(any(row["slower"] for row in rows["stages"]))


def test_drill_that_is_refused_something_is_undone_and_reported(platform: str) -> None:
    from holdfast.drills.catalog import Drill, DrillOptions, run_drill
    from holdfast.drills.drill_run import DrillRun
    from holdfast.drills.report import HistoryJudgement
    from holdfast.platform.layout import Layout

    undone: list[str] = []

    def refused(run: DrillRun, options: DrillOptions) -> None:
        run.add_undo("nothing", lambda: undone.append("nothing"))
        run.failure_starts("a request is refused")
        run.observer.get("workloads", "missing", "search")

    judged: list[float] = []

    def judge(since_s: float, at_rest_s: float) -> HistoryJudgement:
        judged.append(since_s)
        return HistoryJudgement(1, ["S1 violated"], ["S1"], [])

    run = DrillRun(Layout(platform), "eu-west", timeout_s=30.0, say=lambda line: None, judge=judge)
    report = run_drill(Drill("refused", "", "", "", 1, refused), run, DrillOptions())
    assert undone == ["nothing"] and len(judged) == 1
    assert not report.passed and report.failures[0].startswith("the drill stopped: ")
    assert report.violations == ["S1 violated"], "a violation in the history fails the drill"


def test_every_drill_has_a_description_and_a_scenario() -> None:
    from holdfast.sim.scenario_files import scenario_names

    listed = json.loads(holdfast("drill", "list", "-o", "json", timeout_s=30).stdout)
    assert {d["name"] for d in listed} >= {
        "region-loss",
        "loss-during-recovery",
        "zone-loss",
        "stale-cache",
        "timeout-after-commit",
        "leader-restart",
        "policy-rollback",
        "autoscaler",
        "repair-in-incident",
        "override-expires",
        "partition",
        "partition-wait",
        "partition-provisional",
        "region-away",
        "global-hang",
        "global-store-loss",
        "emergency-quota",
    }
    assert all(d["description"] and d["failure"] and d["simulatedBy"] in scenario_names() for d in listed)
    wrong = holdfast("drill", "run", "earthquake", "--region", "eu-west", timeout_s=30)
    assert wrong.returncode != 0 and "drill earthquake: not found" in wrong.stderr


PACKING = """
apiVersion: holdfast.dev/v1
kind: SchedulerPolicy
metadata: {name: default}
spec:
  rules:
    scores: [{name: Packing, weight: 5}]
"""


def cell_api(state: str, cell: str = "global") -> CellApi:
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return PlatformObserver(layout, layout.load()).api(cell)


def workload(name: str, replicas: int, **resources: str) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "search"},
        "spec": {
            "replicas": replicas,
            "placement": {"regions": ["eu-west"]},
            "template": {"command": ["sleep", "10000"], "resources": {"cpu": "100m", "memory": "32Mi", **resources}},
        },
    }


def test_shadow_policy_is_compared_and_guarded_policy_rolls_back(platform: str, tmp_path: Path) -> None:
    rules = tmp_path / "packing.yaml"
    rules.write_text(PACKING)
    api = cell_api(platform)
    path = "/apis/holdfast.dev/v1/schedulerpolicies/default"
    before = api.get(path)
    first_controller = holdfast("policy", "shadow", "default", "--state", platform, timeout_s=30)
    assert first_controller.returncode != 0 and "already active" in first_controller.stderr
    try:
        shadow = ("policy", "shadow", "default", "--state", platform, "-o", "json")
        assert holdfast(*shadow, "-f", str(rules), timeout_s=30).returncode == 0
        wait_until(lambda: json.loads(holdfast(*shadow, timeout_s=30).stdout)["revision"], "the policy is shadowed")
        region = cell_api(platform, "eu-west")
        wait_until(
            lambda: any(r["spec"].get("stage") == "Shadow" for r in region.list("policyrevisions")),
            "the region has the shadow",
        )
        replica_counts = iter(range(6, 40))

        def compared() -> Report | None:
            # Only some batches are planned twice, so scale until one of them was.
            api.apply(workload("tried", next(replica_counts)), "workloads", manager="test")
            found = json.loads(holdfast(*shadow, timeout_s=30).stdout)
            return found if found["examples"] else None

        comparison = wait_until(compared, "decisions are compared")
        row = next(r for r in comparison["regions"] if r["region"] == "eu-west")
        assert row["decisions"] and row["different"]
        assert ", shadow " in comparison["examples"][0]
        diff = holdfast("policy", "diff", "default", "--state", platform, timeout_s=30)
        assert diff.returncode == 3 and "scores" in diff.stdout
        # Promoted with a guard that it violates: a workload that fits nowhere stays pending too long.
        guard = {"maxPendingSeconds": 3, "action": "Rollback"}
        api.request("PATCH", path, {"spec": {"stage": "Active", "guard": guard}}, content_type=MERGE)
        api.apply(workload("too-large", 1, cpu="11"), "workloads", manager="test")
        stop = wait_until(lambda: api.get(path)["status"].get("stopped"), "the guard stops the policy")
        assert stop["action"] == "Rollback" and "is pending for" in stop["message"]
        good = before["status"]["revision"]
        wait_until(
            lambda: {r["status"]["report"]["policy"] for r in api.list("regions")} == {good},
            "every region is back at the good policy",
        )
        listed = holdfast("policy", "list", "default", "--state", platform, timeout_s=30)
        assert "stopped by its guard" in listed.stdout
    finally:
        spec = {"stage": "Active", "canaryRegions": [], "rules": before["spec"]["rules"], "guard": None}
        api.request("PATCH", path, {"spec": spec}, content_type=MERGE)

        def remaining() -> list[str]:
            return sorted({"tried", "too-large"} & {w["metadata"]["name"] for w in api.list("workloads", "search")})

        for name in remaining():
            api.request("DELETE", f"/apis/holdfast.dev/v1/namespaces/search/workloads/{name}")
        wait_until(lambda: not remaining(), "the workloads are deleted")


def assert_refused(act: Callable[[], object], *texts: str) -> None:
    """The refusal names the object, the found and expected values and the next step."""
    from holdfast.client.sync_api import ApiRefusal

    with pytest.raises(ApiRefusal) as refused:
        act()
    assert 400 <= refused.value.status < 500
    missing = [text for text in texts if text not in str(refused.value.why)]
    assert not missing, f"{missing} not in: {refused.value.why}"


def unsafe_override(name: str, kind: str, scope: dict[str, str], **spec: Any) -> dict[str, Any]:
    whole = {"kind": kind, "scope": scope, "reason": "a test", "ttlSeconds": 60, **spec}
    return {"apiVersion": V1, "kind": "Override", "metadata": {"name": name}, "spec": whole}


REGION = {"region": "eu-west"}
UNSAFE = {
    "no reason": (
        unsafe_override("c1", "AvoidRegion", REGION, reason=" "),
        ('"c1"', "spec.reason", "Required value", "explain why"),
    ),
    "too long": (
        unsafe_override("c2", "EmergencyQuota", {"tenant": "payments"}, quota={"cpu": "1"}, ttlSeconds=30_000),
        ('"c2"', "spec.ttlSeconds", "30000", "at most 28800", "create another override when it expires"),
    ),
    "unknown region": (
        unsafe_override("c3", "AvoidRegion", {"region": "atlantis"}),
        ('"c3"', "spec.scope.region", "atlantis", "supported values", '"eu-west"'),
    ),
    "approved with the request": (
        unsafe_override("c4", "DeclareRegionLost", REGION, approver="boss"),
        ('"c4"', "spec.approver", "approval and revocation are separate requests"),
    ),
}


@pytest.mark.parametrize("what", UNSAFE)
def test_unsafe_override_is_refused_with_next_step(platform: str, what: str) -> None:
    body, texts = UNSAFE[what]
    assert_refused(lambda: cell_api(platform).request("POST", f"{PATH}/overrides", body), *texts)


def test_own_override_cannot_be_approved_over_http(platform: str) -> None:
    api = cell_api(platform)
    api.request("POST", f"{PATH}/overrides", unsafe_override("own", "DeclareRegionLost", REGION))
    approve = {"spec": {"approver": "someone-else"}}
    assert_refused(
        lambda: api.request("PATCH", f"{PATH}/overrides/own", approve, content_type=MERGE),
        '"own"',
        "spec.approver",
        "an approver other than operator",
        "another operator runs",
    )
    api.request("PATCH", f"{PATH}/overrides/own", {"spec": {"revoked": True}}, content_type=MERGE)
    assert {r["status"]["health"]["state"] for r in api.list("regions")} == {"Healthy"}


def test_unsafe_change_of_used_objects_is_refused_with_next_step(platform: str) -> None:
    api = cell_api(platform)

    def patch(path: str, spec: dict[str, Any]) -> Callable[[], object]:
        return lambda: api.request("PATCH", f"{PATH}/{path}", {"spec": spec}, content_type=MERGE)

    quota = "namespaces/analytics/quotas/quota"
    wait_until(lambda: api.get(f"{PATH}/{quota}")["status"].get("used", {}).get("cpu"), "the use is reported")
    assert_refused(
        patch(quota, {"hard": {"cpu": "100m"}}), '"quota"', "spec.hard.cpu", '"100m"', "below current use", "down first"
    )
    assert_refused(
        lambda: api.request("DELETE", f"{PATH}/regions/eu-west"),
        "region eu-west",
        "in use by",
        "spec.placement.excludedRegions",
    )
    nowhere = [{"name": "mine", "expression": "node.zone == 'lab'"}]
    assert_refused(
        patch("schedulerpolicies/default", {"rules": {"filterExpressions": nowhere}}),
        '"default"',
        "filterExpressions[0].expression",
        "eu-west-a",
        "write a condition that nodes can meet",
    )


def test_backing_recovery_budget_shrinks_only_with_approved_override(platform: str) -> None:
    api = cell_api(platform)
    budgets = sorted(b["metadata"]["name"] for b in api.list("recoverybudgets"))
    workload_path = f"{PATH}/namespaces/payments/workloads/risk-api"
    wait_until(
        lambda: api.get(workload_path)["status"].get("backing", {}).get("backed"), "the recovery objective is backed"
    )
    saved = {name: api.get(f"{PATH}/recoverybudgets/{name}") for name in budgets}

    def shrink(name: str, **more: str) -> Any:
        # Slots too small for any replica back nothing; the budget itself stays.
        tiny = [{**saved[name]["spec"]["slotShapes"][0], "resources": {"cpu": "1m", "memory": "1Mi"}}]
        path = f"{PATH}/recoverybudgets/{name}"
        return api.request("PATCH", path, {"spec": {"slotShapes": tiny}}, content_type=MERGE)

    from holdfast.client.sync_api import ApiRefusal

    refused = ""
    shrunk = []
    for name in budgets:  # a budget may shrink while other budgets still back the workload
        try:
            shrink(name)
            shrunk.append(name)
        except ApiRefusal as refusal:
            refused = name
            comparison = str(refusal.why)
            break
    try:
        assert refused, f"all of {budgets} were shrunk and a recovery objective lost its backing"
        for texts in (
            f"recoverybudget {refused}",
            "would leave workload payments/risk-api without recovery capacity",
            "add slots in another region",
            "ShrinkBudget",
        ):
            assert texts in comparison, comparison
        assert_refused(
            lambda: api.request("DELETE", f"{PATH}/recoverybudgets/{refused}"),
            "without recovery capacity",
            "ShrinkBudget",
        )
        request_override = unsafe_override("shrink", "ShrinkBudget", {"region": saved[refused]["spec"]["region"]})
        api.request("POST", f"{PATH}/overrides", request_override)
        assert_refused(lambda: shrink(refused), "without recovery capacity")  # requested is not approved
        second = holdfast("token", "create", "second", "--operator", "--state", platform, timeout_s=30)
        assert second.returncode == 0, second.stderr
        approve = ("override", "approve", "shrink", "--token", second.stdout.strip(), "--state", platform)
        assert holdfast(*approve, timeout_s=30).returncode == 0
        wait_until(lambda: api.get(f"{PATH}/overrides/shrink")["status"].get("phase") == "Active", "it is active")
        shrink(refused)
        wait_until(
            lambda: api.get(workload_path)["status"]["backing"]["backed"] is False, "the objective is not backed"
        )
    finally:
        for name in (*shrunk, refused):
            if name:
                body = {"spec": {"slotShapes": saved[name]["spec"]["slotShapes"]}}
                api.request("PATCH", f"{PATH}/recoverybudgets/{name}", body, content_type=MERGE)
        holdfast("override", "revoke", "shrink", "--state", platform, timeout_s=30)
    wait_until(lambda: api.get(workload_path)["status"]["backing"]["backed"], "the objective is backed again")


def test_region_loss_drill_recovers_and_returns_all_resources(platform: str) -> None:
    ran = holdfast(
        "drill", "run", "region-loss", "--region", "eu-central", "--state", platform, "-o", "json", timeout_s=400
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report: Report = json.loads(ran.stdout)
    assert report["secondsToMinServing"] < 60
    assert report["replicasStartedElsewhere"] >= 4, "nothing of the drill's workload served elsewhere before"
    assert report["violations"] == [] and report["unreturned"] == []
    check_answers(Path(platform), report)
    promises = json.loads(holdfast("drill", "promises", "--state", platform, "-o", "json", timeout_s=30).stdout)
    proven = {promise["promise"]: promise["lastProven"] for promise in promises}
    assert proven["workload payments/risk-api"]["recovery"] == report["recovery"]
    target = next(row["target"] for row in report["workloads"] if row["workload"] == "risk-api")
    assert proven[f"recoverybudget {target}"]["recovery"] == report["recovery"]
    assert {"region lost", "assigned", "bound", "serving"} <= set(report["clock"])
    assert len(report["questions"]) == 6 and all(report["questions"].values())
    clean = holdfast("cleanup-check", "--state", platform, timeout_s=30)
    assert clean.returncode == 0, clean.stdout


def test_partitioned_region_keeps_serving(platform: str) -> None:
    ran = holdfast(
        "drill",
        "run",
        "partition",
        "--region",
        "eu-central",
        "--seconds",
        "45",
        "--state",
        platform,
        "-o",
        "json",
        timeout_s=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report: Report = json.loads(ran.stdout)
    assert report["clock"]["replaced without the global cell"] < 45 and report["violations"] == []


def test_plan_predicts_the_region_loss_drill(platform: str) -> None:
    comparison = json.loads(
        holdfast("plan", "--lose-region", "us-east", "--state", platform, "-o", "json", timeout_s=30).stdout
    )
    assert comparison["short"] == []
    assert {row["workload"] for row in (*comparison["recovers"], *comparison["safe"])} == {"risk-api"}


def test_override_needs_second_approver_and_expires(platform: str) -> None:
    request_override = holdfast(
        "override",
        "create",
        "EmergencyQuota",
        "--tenant",
        "payments",
        "--quota",
        "cpu=1",
        "--reason",
        "test",
        "--ttl",
        "20",
        "--yes",
        "--name",
        "e1",
        "--state",
        platform,
        timeout_s=30,
    )
    assert "Pending" in request_override.stdout, request_override.stderr
    self_approval = holdfast("override", "approve", "e1", "--state", platform, timeout_s=30)
    assert self_approval.returncode == 1 and "cannot approve it" in self_approval.stderr
    remaining = holdfast("cleanup-check", "--state", platform, timeout_s=30)
    assert remaining.returncode == 1 and "override/e1" in remaining.stdout


def test_audit_shows_requested_and_refused_use_of_emergency_capacity(platform: str) -> None:
    spec = {"kind": "EmergencyQuota", "scope": {"tenant": "payments"}, "quota": {"cpu": "1"}}
    body = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Override",
        "metadata": {"name": "audited"},
        "spec": {**spec, "reason": "test", "ttlSeconds": 20.0},
    }
    api = cell_api(platform)
    try:
        api.request("POST", f"{PATH}/overrides", body)
        assert_refused(lambda: api.request("POST", "/placement/v1/reserve", {"items": []}), "placement is forbidden")
        shown = json.loads(
            holdfast("audit", "Override/audited", "--state", platform, "-o", "json", timeout_s=30).stdout
        )
        made = shown["records"][0]
        assert (made["principal"], made["verb"], made["result"]) == ("operator", "create", "Committed")
        table = holdfast("audit", "--refused", "--last", "5", "--state", platform, timeout_s=30).stdout
        assert table.startswith("TIME") and "placement is forbidden" in table and "operator" in table
        words = ("audit", "Binding", "--region", "eu-west", "--last", "1000", "--state", platform, "-o", "json")
        in_region = json.loads(holdfast(*words, timeout_s=30).stdout)
        assert "bind" in {record["verb"] for record in in_region["records"]}, "placements are in the region's log"
    finally:
        api.request("PATCH", f"{PATH}/overrides/audited", {"spec": {"revoked": True}}, content_type=MERGE)
