"""Every failure of the design, done for real on one platform: each drill passes, answers, and leaves nothing behind;
and what people ask for carelessly meanwhile is refused with what to do instead."""

from __future__ import annotations

import json
import os

import pytest
from drilled import holdfast, platform
from tests.platforms import V1, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]

__all__ = ["platform"]

QUESTIONS = (
    "What desired state changed?", "Which controller acted first?", "What partial progress was recorded?",
    "Which invariant held?", "Which telemetry proves it?", "What was the repair or rollback path?",
)  # fmt: skip
MERGE = "application/merge-patch+json"
PATH = f"/apis/{V1}"
LONG = pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="minutes long; set HOLDFAST_PROVE")


def drill(state: str, name: str, *more: str) -> dict:
    ran = holdfast(
        "drill", "run", name, "--region", "eu-west", "--state", state, "--quiet", "-o", "json", *more, timeout_s=420
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["passed"] and report["violations"] == [] and report["unreturned"] == []
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
    assert answers["ended attempt"] == "Rejected StaleAttempt"
    assert answers["deleted replica"] == "Rejected ReplicaNotFound"
    assert answers["draining node"] == "Rejected NodeDraining"
    assert answers["full node"] == "Rejected InsufficientCpu"
    assert any(f" {who} (eu-west)" in first(report) for who in ("drain", "release")), first(report)
    telemetry = "\n".join(report["questions"]["Which telemetry proves it?"])
    assert 'reason="StaleAttempt",result="Rejected"' in telemetry


def test_a_lost_answer_never_makes_a_second_commit(platform):
    report = drill(platform, "timeout-after-commit")
    assert report["secondReserve"] == "Already"
    assert " authority (eu-west) created Reservation" in first(report)


def test_a_leader_killed_while_placing_is_followed_by_one_that_places_each_once(platform):
    report = drill(platform, "leader-restart")
    assert "authority" in report["terms"] and report["processesKilled"] == 1
    assert " assign (global)" in first(report)
    assert any("S1" in line and "0 violation" in line for line in report["questions"]["Which invariant held?"])


def test_a_policy_taken_back_leaves_what_starts_as_it_was_decided(platform):
    report = drill(platform, "policy-rollback")
    assert report["boundBy"] == report["newRevision"] != report["oldRevision"] == report["laterBoundBy"]
    changed = "\n".join(report["questions"]["What desired state changed?"])
    assert "a user changed SchedulerPolicy default" in changed and "policy created PolicyRevision" in changed


def test_an_override_ends_by_itself_while_the_global_cell_is_dead(platform):
    report = drill(platform, "override-expires")
    assert report["zonesWhileActive"] == "eu-west-b"
    clock = report["clock"]
    assert clock["the region places in eu-west-a again"] < clock["the global cell is reachable again"]
    assert any("Expired" in line for line in report["questions"]["What was the repair or rollback path?"])


def test_a_lost_zone_is_replaced_inside_its_region(platform):
    report = drill(platform, "zone-loss")
    assert report["clock"]["all replicas serve in other zones"] < 60
    assert " node-health (eu-west)" in first(report)
    foreseen = holdfast(
        "plan", "--lose-region", "eu-west", "--lose-zone", report["zone"], "--state", platform, "-o", "json",
        timeout_s=30,
    )  # fmt: skip
    assert foreseen.returncode == 0 and json.loads(foreseen.stdout)["lost"]["zone"] == report["zone"]


@LONG
def test_a_second_loss_during_a_recovery_adds_and_does_not_start_anew(platform):
    report = drill(platform, "loss-during-recovery")
    assert report["secondsToMinServing"] < 120
    assert " region-health (global)" in first(report)


@LONG
def test_repair_waits_while_it_is_paused_and_acts_once_when_it_may(platform):
    report = drill(platform, "repair-in-incident")
    assert report["repairStates"].startswith("Paused → Asked")


@LONG
def test_the_autoscaler_makes_no_more_of_what_is_not_ready(platform):
    report = drill(platform, "autoscaler")
    assert report["maxDesiredWhileNotReady"] == 2 and report["reason"] == "ScaleUpBlocked"


@LONG
def test_ninety_seconds_without_the_global_cell(platform):
    report = drill(platform, "partition", "--seconds", "90")
    assert report["clock"]["replaced without the global cell"] < 90


def test_every_drill_is_explained_and_has_a_simulated_twin():
    from holdfast.sim.scenario_runs import scenario_names

    listed = json.loads(holdfast("drill", "list", "-o", "json", timeout_s=30).stdout)
    assert {d["name"] for d in listed} >= {
        "region-loss", "loss-during-recovery", "zone-loss", "stale-cache", "timeout-after-commit", "leader-restart",
        "policy-rollback", "autoscaler", "repair-in-incident", "override-expires", "partition",
    }  # fmt: skip
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


def kubectl_like(state: str, cell: str = "global"):
    from holdfast.drills.platform_observer import PlatformObserver
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return PlatformObserver(layout, layout.load()).api(cell)


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
    assert first.returncode != 0 and "already active" in first.stderr
    try:
        shadow = ("policy", "shadow", "default", "--state", platform, "-o", "json")
        assert holdfast(*shadow, "-f", str(rules), timeout_s=30).returncode == 0
        wait_until(lambda: json.loads(holdfast(*shadow, timeout_s=30).stdout)["revision"], "the policy is shadowed")
        region = kubectl_like(platform, "eu-west")
        wait_until(
            lambda: any(r["spec"].get("stage") == "Shadow" for r in region.list("policyrevisions")),
            "the region has the shadow",
        )
        wanted = iter(range(6, 40))

        def compared() -> dict | None:
            # Only some batches are planned twice: another one is asked for until it was one of them.
            api.apply(workload("tried", next(wanted)), "workloads", manager="test")
            found = json.loads(holdfast(*shadow, timeout_s=30).stdout)
            return found if found["examples"] else None

        told = wait_until(compared, "decisions are compared")
        row = next(r for r in told["regions"] if r["region"] == "eu-west")
        assert row["decisions"] and row["other"]
        assert ", shadow:" in told["examples"][0]
        diff = holdfast("policy", "diff", "default", "--state", platform, timeout_s=30)
        assert diff.returncode == 3 and "scores" in diff.stdout
        # Promoted with a guard it cannot keep: work that fits nowhere waits longer than it allows.
        guard = {"maxPendingSeconds": 3, "action": "Rollback"}
        api.request("PATCH", path, {"spec": {"stage": "Active", "guard": guard}}, content_type=MERGE)
        api.apply(workload("too-large", 1, cpu="11"), "workloads", manager="test")
        held = wait_until(lambda: api.get(path)["status"].get("held"), "the policy is held")
        assert held["action"] == "Rollback" and "is pending for" in held["message"]
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

        def left() -> list[str]:
            return sorted({"tried", "too-large"} & {w["metadata"]["name"] for w in api.list("workloads", "search")})

        for name in left():
            api.request("DELETE", f"/apis/holdfast.dev/v1/namespaces/search/workloads/{name}")
        wait_until(lambda: not left(), "nothing of it is left")


def said(act, *words: str) -> None:
    """The refusal over HTTP names the object, what was found, what was expected and what to do instead."""
    from holdfast.client.sync_api import ApiRefusal

    with pytest.raises(ApiRefusal) as refused:
        act()
    assert 400 <= refused.value.status < 500
    missing = [word for word in words if word not in str(refused.value.why)]
    assert not missing, f"{missing} not in: {refused.value.why}"


def careless_override(name: str, kind: str, scope: dict, **spec) -> dict:
    whole = {"kind": kind, "scope": scope, "reason": "a test", "ttlSeconds": 60, **spec}
    return {"apiVersion": V1, "kind": "Override", "metadata": {"name": name}, "spec": whole}


REGION = {"region": "eu-west"}
CARELESS = {
    "no reason": (
        careless_override("c1", "AvoidRegion", REGION, reason=" "),
        ('"c1"', "spec.reason", "Required value", "say why"),
    ),
    "too long": (
        careless_override("c2", "EmergencyQuota", {"tenant": "payments"}, quota={"cpu": "1"}, ttlSeconds=30_000),
        ('"c2"', "spec.ttlSeconds", "30000", "at most 28800", "create another override when it expires"),
    ),
    "unknown region": (
        careless_override("c3", "AvoidRegion", {"region": "atlantis"}),
        ('"c3"', "spec.scope.region", "atlantis", "supported values", '"eu-west"'),
    ),
    "approved with the request": (
        careless_override("c4", "DeclareRegionLost", REGION, approver="boss"),
        ('"c4"', "spec.approver", "approval and revocation are separate requests"),
    ),
}


@pytest.mark.parametrize("what", CARELESS)
def test_a_careless_override_is_refused_with_what_to_do_instead(platform, what):
    body, words = CARELESS[what]
    said(lambda: kubectl_like(platform).request("POST", f"{PATH}/overrides", body), *words)


def test_nobody_approves_their_own_request_over_http(platform):
    api = kubectl_like(platform)
    api.request("POST", f"{PATH}/overrides", careless_override("own", "DeclareRegionLost", REGION))
    approve = {"spec": {"approver": "someone-else"}}
    said(
        lambda: api.request("PATCH", f"{PATH}/overrides/own", approve, content_type=MERGE),
        '"own"', "spec.approver", "an approver other than operator", "another operator runs",
    )  # fmt: skip
    api.request("PATCH", f"{PATH}/overrides/own", {"spec": {"revoked": True}}, content_type=MERGE)
    assert {r["status"]["health"]["state"] for r in api.list("regions")} == {"Healthy"}


def test_careless_changes_of_what_is_in_use_are_refused_with_what_to_do_instead(platform):
    api = kubectl_like(platform)

    def patch(path: str, spec: dict):
        return lambda: api.request("PATCH", f"{PATH}/{path}", {"spec": spec}, content_type=MERGE)

    quota = "namespaces/analytics/quotas/quota"
    wait_until(lambda: api.get(f"{PATH}/{quota}")["status"].get("used", {}).get("cpu"), "the use is told")
    said(
        patch(quota, {"hard": {"cpu": "100m"}}), '"quota"', "spec.hard.cpu", '"100m"', "below current use", "down first"
    )
    said(
        lambda: api.request("DELETE", f"{PATH}/regions/eu-west"),
        "region eu-west", "in use by", "spec.placement.excludedRegions",
    )  # fmt: skip
    nowhere = [{"name": "mine", "expression": "node.zone == 'lab'"}]
    said(
        patch("schedulerpolicies/default", {"rules": {"filterExpressions": nowhere}}),
        '"default"', "filterExpressions[0].expression", "eu-west-a", "write a condition that nodes can meet",
    )  # fmt: skip


def test_a_budget_that_backs_a_promise_shrinks_only_with_an_override_of_two_people(platform):
    api = kubectl_like(platform)
    budgets = sorted(b["metadata"]["name"] for b in api.list("recoverybudgets"))
    promise = f"{PATH}/namespaces/payments/workloads/risk-api"
    wait_until(lambda: api.get(promise)["status"].get("backing", {}).get("backed"), "the promise is backed")
    kept = {name: api.get(f"{PATH}/recoverybudgets/{name}") for name in budgets}

    def shrink(name: str, **more: str):
        # Places too small for any replica of the promise back nothing; the budget itself stays.
        tiny = [{**kept[name]["spec"]["slots"][0], "resources": {"cpu": "1m", "memory": "1Mi"}}]
        path = f"{PATH}/recoverybudgets/{name}"
        return api.request("PATCH", path, {"spec": {"slots": tiny}}, content_type=MERGE)

    from holdfast.client.sync_api import ApiRefusal

    refused = ""
    shrunk = []
    for name in budgets:  # while others can still take the replicas, one may go; not the last that the promise needs
        try:
            shrink(name)
            shrunk.append(name)
        except ApiRefusal as refusal:
            refused = name
            told = str(refusal.why)
            break
    try:
        assert refused, f"all of {budgets} were shrunk and a promise was left without places"
        for words in (
            f"recoverybudget {refused}",
            "would leave workload payments/risk-api without recovery capacity",
            "add slots in another region",
            "ShrinkBudget",
        ):
            assert words in told, told
        said(
            lambda: api.request("DELETE", f"{PATH}/recoverybudgets/{refused}"),
            "without recovery capacity",
            "ShrinkBudget",
        )
        asked = careless_override("shrink", "ShrinkBudget", {"region": kept[refused]["spec"]["region"]})
        api.request("POST", f"{PATH}/overrides", asked)
        said(lambda: shrink(refused), "without recovery capacity")  # asked for is not approved
        second = holdfast("token", "create", "second", "--operator", "--state", platform, timeout_s=30)
        assert second.returncode == 0, second.stderr
        words = ("override", "approve", "shrink", "--token", second.stdout.strip(), "--state", platform)
        assert holdfast(*words, timeout_s=30).returncode == 0
        wait_until(lambda: api.get(f"{PATH}/overrides/shrink")["status"].get("phase") == "Active", "it acts")
        shrink(refused)
        wait_until(lambda: api.get(promise)["status"]["backing"]["backed"] is False, "the promise is not backed")
    finally:
        for name in (*shrunk, refused):
            if name:
                body = {"spec": {"slots": kept[name]["spec"]["slots"]}}
                api.request("PATCH", f"{PATH}/recoverybudgets/{name}", body, content_type=MERGE)
        holdfast("override", "revoke", "shrink", "--state", platform, timeout_s=30)
    wait_until(lambda: api.get(promise)["status"]["backing"]["backed"], "the promise is backed again")


def test_a_lost_region_is_recovered_within_a_minute_and_everything_is_given_back(platform: str) -> None:
    ran = holdfast(
        "drill", "run", "region-loss", "--region", "eu-central", "--state", platform, "-o", "json", timeout_s=400
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["secondsToMinServing"] < 60
    assert report["violations"] == [] and report["unreturned"] == []
    assert {"region lost", "assigned", "bound", "serving"} <= set(report["clock"])
    assert len(report["questions"]) == 6 and all(report["questions"].values())
    clean = holdfast("cleanup-check", "--state", platform, timeout_s=30)
    assert clean.returncode == 0, clean.stdout


def test_a_region_cut_off_from_the_global_cell_goes_on_alone(platform: str) -> None:
    ran = holdfast(
        "drill", "run", "partition", "--region", "eu-central", "--seconds", "45", "--state", platform, "-o", "json",
        timeout_s=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["clock"]["replaced without the global cell"] < 45 and report["violations"] == []


def test_the_plan_says_beforehand_what_the_drill_does(platform: str) -> None:
    told = json.loads(
        holdfast("plan", "--lose-region", "us-east", "--state", platform, "-o", "json", timeout_s=30).stdout
    )
    assert told["short"] == []
    assert {row["workload"] for row in (*told["recovers"], *told["safe"])} == {"risk-api"}


def test_an_override_needs_a_second_person_and_ends_by_itself(platform: str) -> None:
    asked = holdfast(
        "override", "create", "EmergencyQuota", "--tenant", "payments", "--quota", "cpu=1", "--reason", "test",
        "--ttl", "20", "--yes", "--name", "e1", "--state", platform, timeout_s=30,
    )  # fmt: skip
    assert "Pending" in asked.stdout, asked.stderr
    own = holdfast("override", "approve", "e1", "--state", platform, timeout_s=30)
    assert own.returncode == 1 and "cannot approve it" in own.stderr
    left = holdfast("cleanup-check", "--state", platform, timeout_s=30)
    assert left.returncode == 1 and "override/e1" in left.stdout
