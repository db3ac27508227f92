"""Actions of the console in a real Chromium on a real platform: dry run, blast radius, command, roles, markup."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect
from tests.browser import Tab, chromium, tab
from tests.console_pages import base, confirm, forged, keep_picture, signed_in
from tests.platforms import RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("console") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def test_log_is_followed_and_its_markup_is_text(platform: RunningPlatform, browser: Browser) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    program = f"import time\nfor n in range(600):\n    print('line', n, {hostile!r}, flush=True)\n    time.sleep(1)"
    platform.apply(
        {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Workload",
            "metadata": {"name": "chatter", "namespace": "payments"},
            "spec": {
                "replicas": 1,
                "placement": {"regions": ["us-east"]},
                "template": {
                    "command": [sys.executable, "-c", program],
                    "resources": {"cpu": "100m", "memory": "64Mi"},
                },
            },
        }
    )
    try:
        with tab(browser) as opened:
            page = signed_in(platform, opened, "/workloads/payments/chatter?replica=chatter-us-east-0").page
            page.get_by_role("button", name="Show log").click(timeout=60_000)
            log = page.get_by_role("log")
            expect(log).to_contain_text(f"line 0 {hostile}")
            expect(log).to_contain_text("line 5 ", timeout=20_000)
            assert log.locator("img, script").count() == 0
            keep_picture(opened, "log")
            assert not opened.violations()
            assert not opened.troubles, opened.troubles
            path = page.url
            page.get_by_role("button", name="Pause").click()
            page.get_by_label("Filter lines").fill("line 2 ")
            expect(log.locator("p")).to_have_count(1)
        token = holdfast("token", "create", "search", "--tenant", "search", "--state", str(platform.state)).stdout
        with tab(browser) as opened:
            page = opened.page
            page.goto(path)
            page.get_by_label("Token").fill(token.strip())
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_contain_text("forbidden")
            log_path = "/console/api/regions/us-east/pods/payments/chatter-us-east-0.1/log"
            assert forged(page, "GET", log_path) == 403
    finally:
        platform.kubectl("delete", "workload", "chatter", "-n", "payments")


def test_action_shows_its_dry_run_and_command_before_it_acts(platform: RunningPlatform, browser: Browser) -> None:
    def replicas() -> int:
        found = json.loads(platform.kubectl("get", "workload", "billing-api", "-n", "billing", "-o", "json"))
        return int(found["spec"]["replicas"])

    with tab(browser) as opened:
        page = signed_in(platform, opened, "/workloads/billing/billing-api").page
        assert replicas() == 3
        page.get_by_role("button", name="Scale…").click()
        page.get_by_role("spinbutton", name="Replicas").fill("4")
        page.get_by_role("button", name="Scale…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".diff .gone")).to_have_text("spec.replicas: 3")
        expect(dialog.locator(".diff .added")).to_have_text("spec.replicas: 4")
        expect(dialog).to_contain_text("1 replica looks for a node")
        expect(dialog).to_contain_text("kubectl scale workload billing-api -n billing --replicas 4")
        keep_picture(opened, "action")
        assert not opened.violations()
        page.keyboard.press("Escape")
        assert replicas() == 3, "a dry run changes nothing"
        page.get_by_role("button", name="Scale…").click()
        page.get_by_role("spinbutton", name="Replicas").fill("4")
        page.get_by_role("button", name="Scale…").click()
        confirm(opened, "scale")
        expect(page.locator(".chip").filter(has_text="4 of 4 serving")).to_be_visible(timeout=60_000)
        change = {"spec": {"template": {"env": {"COLOUR": "green"}}}}
        platform.kubectl(
            "patch", "workload", "billing-api", "-n", "billing", "--type", "merge", "-p", json.dumps(change)
        )
        rollout = page.locator("section.card").filter(has=page.get_by_role("heading", name="Rollout"))
        expect(rollout).to_contain_text("Wave 1 eu-central", timeout=60_000)
        expect(rollout).to_contain_text("Wave 2 eu-west")
        page.get_by_role("button", name="Undo rollout…").click(timeout=60_000)
        expect(dialog.locator(".diff .gone")).to_contain_text("COLOUR")
        expect(dialog).to_contain_text("holdfast rollout undo billing/billing-api --to")
        keep_picture(opened, "action-undo")
        confirm(opened, "undo-rollout")
        found = json.loads(platform.kubectl("get", "workload", "billing-api", "-n", "billing", "-o", "json"))
        assert "env" not in found["spec"]["template"]
        page.goto(base(platform) + "/audit")
        expect(page.locator("[data-row]").filter(has_text="Workload billing/billing-api").first).to_be_visible()
        assert not opened.troubles, opened.troubles
    back = {"spec": {"replicas": 3}}
    platform.kubectl("patch", "workload", "billing-api", "-n", "billing", "--type", "merge", "-p", json.dumps(back))


def open_dialog(opened: Tab, name: str, picture: str) -> Locator:
    """The dialog that a button opens, when its dry run is there: looked at, in both themes, and accessible."""
    opened.page.get_by_role("button", name=name).click(timeout=60_000)
    dialog = opened.page.get_by_role("dialog")
    expect(dialog.locator(".diff span").first).to_be_visible()
    for theme in ("light", "dark"):
        opened.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        keep_picture(opened, f"{picture}-{theme}")
        assert not opened.violations(), f"{picture}, {theme}"
    return dialog


def test_node_is_drained_and_uncordoned_after_its_blast_radius_is_shown(
    platform: RunningPlatform, browser: Browser
) -> None:
    def spec() -> dict[str, Any]:
        found = json.loads(
            platform.kubectl("--context", "us-east", "get", "nodes.holdfast.dev", "us-east-1", "-o", "json")
        )
        return dict(found["spec"])

    with tab(browser) as opened:
        page = signed_in(platform, opened, "/map?region=us-east&node=us-east-1").page
        dialog = open_dialog(opened, "Cordon…", "action-cordon")
        expect(dialog).to_contain_text("No new replica is placed on it")
        expect(dialog).to_contain_text("holdfast node cordon us-east-1")
        page.keyboard.press("Escape")
        assert not spec().get("unschedulable"), "a dry run changes nothing"
        page.get_by_role("button", name="Cordon…").click()
        confirm(opened, "cordon")
        wait_until(lambda: spec().get("unschedulable"), "the region cordons the node")
        dialog = open_dialog(opened, "Drain…", "action-drain")
        expect(dialog.locator(".diff .added").first).to_have_text("spec.drain: true")
        expect(dialog).to_contain_text(re.compile("payments/risk-api-us-east-[0-9] moves to us-east-2"))
        expect(dialog).to_contain_text("holdfast node drain us-east-1")
        confirm(opened, "drain", typed="us-east-1")
        expect(page.locator("main")).to_contain_text("Draining")
        wait_until(lambda: spec().get("drain"), "the region drains the node")
        open_dialog(opened, "Uncordon…", "action-uncordon")
        confirm(opened, "uncordon")
        assert not spec().get("drain") and not spec().get("unschedulable")
        page.goto(base(platform) + "/audit")
        expect(page.locator("[data-row]").filter(has_text="node us-east-1 in region us-east").first).to_be_visible()
        assert not opened.troubles, opened.troubles


def test_policy_is_promoted_and_rolled_back(platform: RunningPlatform, browser: Browser, tmp_path: Path) -> None:
    stored = json.loads(platform.kubectl("get", "schedulerpolicy", "default", "-o", "json"))
    packing = {**stored["spec"]["rules"], "scores": [{"name": "Balance", "weight": 3}]}
    rules = tmp_path / "packing.yaml"
    rules.write_text(json.dumps({"kind": "SchedulerPolicy", "spec": {"rules": packing}}))
    state = ("--state", str(platform.state))
    holdfast("policy", "shadow", "default", "-f", str(rules), *state)

    def scores() -> Any:
        found = json.loads(platform.kubectl("get", "schedulerpolicy", "default", "-o", "json"))
        return found["spec"]["stage"], [row["name"] for row in found["spec"]["rules"]["scores"]]

    with tab(browser) as opened:
        page = signed_in(platform, opened, "/policies").page
        results = page.locator("section.card").filter(has=page.get_by_role("heading", name="Shadow results"))
        # Whether a decision was compared yet depends on the platform's other work.
        expect(results).to_contain_text(re.compile("No decision was compared yet|Same node"))
        shown = json.loads(platform.kubectl("get", "workload", "analytics", "-n", "analytics", "-o", "json"))
        more = {"spec": {"replicas": int(shown["spec"]["replicas"]) + 1}}
        platform.kubectl("patch", "workload", "analytics", "-n", "analytics", "--type", "merge", "-p", json.dumps(more))
        expect(results.locator("[data-row]")).to_have_count(3, timeout=60_000)

        def page_agrees() -> bool:
            compared = json.loads(holdfast("policy", "shadow", "default", *state, "-o", "json").stdout)["regions"]
            lines = [results.locator("[data-row]").filter(has_text=row["region"]).locator("td") for row in compared]
            return all(
                line.nth(2).inner_text() == str(row["same"]) and line.nth(3).inner_text() == str(row["different"])
                for line, row in zip(lines, compared, strict=True)
            )

        wait_until(page_agrees, "the page and the command count the same decisions")
        keep_picture(opened, "policies-shadow")
        dialog = open_dialog(opened, "Try in eu-central…", "action-canary")
        expect(dialog).to_contain_text("holdfast policy promote default --canary eu-central")
        expect(dialog).to_contain_text("New decisions in eu-central follow its rules")
        confirm(opened, "promote-policy", typed="default")
        assert scores() == ("Canary", ["Balance"])
        dialog = open_dialog(opened, "Promote…", "action-promote")
        expect(dialog.locator(".diff .added")).to_have_text('spec.stage: "Active"')
        expect(dialog.locator(".diff .gone").first).to_have_text('spec.canaryRegions: ["eu-central"]')
        expect(dialog).to_contain_text("holdfast policy promote default")
        expect(dialog).to_contain_text("No replica moves")
        confirm(opened, "promote-policy", typed="default")
        assert scores() == ("Active", ["Balance"])
        dialog = open_dialog(opened, "Roll back…", "action-rollback")
        expect(dialog).to_contain_text("holdfast policy rollback default")
        confirm(opened, "roll-back-policy", typed="default")
        assert scores() == ("Active", [row["name"] for row in stored["spec"]["rules"]["scores"]])
        assert not opened.troubles, opened.troubles


def test_region_is_avoided_with_a_reason_and_a_drill_shows_its_plan(
    platform: RunningPlatform, browser: Browser
) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/recovery").page
        row = page.locator("[data-row]").filter(has_text="Avoid new work").filter(has_text="eu-west")
        row.get_by_role("button", name="Avoid new work…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("The dry run starts when there is a reason")
        assert not opened.violations()
        dialog.get_by_label("Reason").fill("it's hot")
        expect(dialog.locator(".diff .added").filter(has_text="spec.reason")).to_have_text('spec.reason: "it\'s hot"')
        expect(dialog).to_contain_text("holdfast override create AvoidRegion --region eu-west")
        confirm(opened, "avoid-region", typed="eu-west")
        row.get_by_role("button", name="Declare lost…").click()
        expect(dialog).to_contain_text("A second operator approves it")
        dialog.get_by_label("Reason").fill("it burns")
        confirm(opened, "declare-region-lost", typed="eu-west")
        page.goto(base(platform) + "/overrides")
        declared = page.locator("[data-row]").filter(has_text="it burns")
        expect(declared).to_contain_text("waits for a second person")
        regions = json.loads(platform.kubectl("get", "regions", "-o", "json"))["items"]
        assert all(r["status"]["health"]["state"] == "Healthy" for r in regions), (
            "nothing is lost before it is approved"
        )
        revoked = declared.locator("td .t3").first.inner_text()
        declared.get_by_role("button", name="Revoke…").click()
        confirm(opened, "revoke-override", typed=revoked)
        page.goto(base(platform) + "/recovery")
        page.get_by_label("Region of the drill").select_option(label="eu-west")
        page.get_by_role("button", name="Drill…", exact=True).click()
        expect(dialog).to_contain_text("holdfast drill run region-loss --region eu-west")
        expect(dialog.locator(".diff .gone")).to_contain_text("regional capacity loss")
        expect(dialog.get_by_role("button", name="Start drill")).to_be_disabled()
        keep_picture(opened, "action-drill")
        assert not opened.violations()
        page.keyboard.press("Escape")
        page.goto(base(platform) + "/overrides")
        made = page.locator("[data-row]").filter(has_text="it's hot")
        expect(made).to_contain_text("AvoidRegion")
        name = made.locator("td .t3").first.inner_text()
        holdfast("override", "revoke", name, "--state", str(platform.state))
        assert not opened.troubles, opened.troubles


def test_what_if_answers_a_drain_and_a_file(platform: RunningPlatform, browser: Browser) -> None:
    manifest = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "wide", "namespace": "fraud"},
        "spec": {
            "replicas": 2,
            "priorityClassName": "high",
            "placement": {"regions": ["us-east"]},
            "template": {"command": ["sleep", "60"], "resources": {"cpu": "1", "memory": "64Mi", "gpu": 4}},
        },
    }
    stranger = {**manifest, "metadata": {"name": "wide", "namespace": "nobody"}}
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/what-if?ask=drain").page
        page.get_by_role("combobox", name="Node").fill("us-east-1")
        expect(page.locator("main h1")).to_contain_text("Draining us-east-1")
        command = ("plan", "--drain", "us-east-1", "--state", str(platform.state), "-o", "json")
        planned = json.loads(holdfast(*command, check=False).stdout)["placings"]
        assert planned, "something runs on us-east-1"
        for placing in planned:
            row = page.locator("[data-row]").filter(has_text=f"/{placing['replica']}")
            wanted = f"starts on {placing['node']}" if placing["node"] else f"waits: {placing['reason']}"
            expect(row).to_contain_text(wanted)
        keep_picture(opened, "what-if-drain")
        assert not opened.violations()
        page.get_by_role("button", name="Apply a file").click()
        page.get_by_role("textbox", name="Manifests").fill(f"{json.dumps(manifest)}\n---\n{json.dumps(stranger)}")
        page.get_by_role("button", name="Plan").click()
        expect(page.locator("main h1")).to_have_text("1 workload would be refused")
        row = page.locator("[data-row]").filter(has_text="fraud/wide-us-east-0")
        expect(row).to_contain_text("waits: InsufficientDevices")
        expect(page.locator("main")).to_contain_text('"nobody" not found')
        keep_picture(opened, "what-if-apply")
        assert not opened.violations()
        page.get_by_role("textbox", name="Manifests").fill("a: &a [*a]")
        page.get_by_role("button", name="Plan").click()
        expect(page.get_by_role("alert")).to_contain_text("anchors and aliases")
        missing = platform.kubectl("get", "workload", "-n", "fraud", "-o", "name")
        assert "wide" not in missing, "nothing was created"
        assert not opened.troubles, opened.troubles


def test_override_is_revoked_after_its_name_is_typed(platform: RunningPlatform, browser: Browser) -> None:
    arguments = ("--region", "eu-west", "--zone", "eu-west-a", "--reason", "rack work", "--ttl", "600", "--yes")
    holdfast("override", "create", "AvoidZone", *arguments, "--state", str(platform.state))
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/overrides").page
        row = page.locator("[data-row]").filter(has_text="zone eu-west-a")
        expect(row).to_contain_text("Active")
        keep_picture(opened, "overrides-active")
        row.get_by_role("button", name="Revoke…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".diff .added")).to_have_text("spec.revoked: true")
        confirm(opened, "revoke-override", typed=dialog.locator("label b").inner_text())
        expect(row).to_contain_text("Revoked", timeout=30_000)
        assert not opened.troubles, opened.troubles


def test_viewer_is_offered_no_action(platform: RunningPlatform, browser: Browser) -> None:
    token = holdfast("token", "create", "vera", "--viewer", "--state", str(platform.state)).stdout.strip()
    with tab(browser) as opened:
        page = opened.page
        page.goto(base(platform) + "/workloads/payments/risk-api")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main h1")).to_have_text("payments/risk-api")
        assert page.locator("main button").filter(has_text="…").count() == 0
        page.goto(base(platform) + "/workloads/payments/risk-api?do=pause")
        expect(page.locator("main h1")).to_have_text("payments/risk-api")
        assert page.get_by_role("dialog").count() == 0
        path = "/console/api/resources/apis/holdfast.dev/v1/namespaces/payments/workloads/risk-api"
        assert forged(page, "PATCH", path, {"spec": {"replicas": 0}}) == 403
        offers = {
            "/map?region=us-east&node=us-east-1": "do=drain",
            "/policies": "do=rollback&policy=default",
            "/recovery": "do=avoid&region=us-east",
        }
        for where, dialog in offers.items():
            page.goto(base(platform) + where + ("&" if "?" in where else "?") + dialog)
            expect(page.locator("main h1")).to_be_visible()
            page.wait_for_timeout(1000)
            assert page.get_by_role("dialog").count() == 0, where
            buttons = page.locator("main button").filter(has_text="…")
            assert buttons.count() == 0, f"{where}: {buttons.all_inner_texts()}"
        drain = {"spec": {"drain": True}}
        assert forged(page, "PATCH", "/console/api/regions/us-east/nodes/us-east-1", drain) == 403
        policy = "/console/api/resources/apis/holdfast.dev/v1/schedulerpolicies/default"
        assert forged(page, "PATCH", policy, {"spec": {"stage": "Draft"}}) == 403
        override = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": "forged"}, "spec": {}}
        assert forged(page, "POST", "/console/api/resources/apis/holdfast.dev/v1/overrides", override) == 403
    refused = holdfast("audit", "--by", "vera", "--refused", "--state", str(platform.state), "-o", "json").stdout
    for resource in ("workloads", "nodes", "schedulerpolicies", "overrides"):
        assert resource in refused, f"{resource}: the refusal is not audited"


def test_past_is_shown_read_only_and_leads_back_to_now(platform: RunningPlatform, browser: Browser) -> None:
    def scale(replicas: int) -> None:
        change = json.dumps({"spec": {"replicas": replicas}})
        platform.kubectl("patch", "workload", "billing-api", "-n", "billing", "--type", "merge", "-p", change)
        wait_until(lambda: serving() == replicas, f"{replicas} replicas serve")

    def serving() -> int:
        found = json.loads(platform.kubectl("get", "workload", "billing-api", "-n", "billing", "-o", "json"))
        return int(found["status"]["summary"]["serving"])

    wait_until(lambda: serving() == 3, "billing-api serves")
    before = int(time.time()) + 6  # the election lease is renewed every five seconds
    time.sleep(12)
    scale(4)
    time.sleep(6)  # the newest past moment is up to five seconds old
    workload = "/workloads/billing/billing-api"
    with tab(browser) as opened:
        page = signed_in(platform, opened, f"{workload}?at={before}&do=scale").page
        banner = page.get_by_role("region", name="Time travel")
        expect(banner).to_contain_text("Read-only")
        expect(banner).to_contain_text("History reaches back to")
        expect(page.locator(".chip").filter(has_text="3 of 3 serving")).to_be_visible()
        expect(page.locator(".fresh b")).to_have_text("Past")
        assert page.locator("main button").filter(has_text="…").count() == 0 and page.get_by_role("dialog").count() == 0
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            assert not opened.violations(), theme
        page.get_by_role("link", name=re.compile("^Overview")).click()
        expect(page).to_have_url(re.compile(f"at={before}"))
        expect(page.locator("main h1")).to_contain_text(re.compile("^At [0-9:]+ UTC the recovery objective was"))
        keep_picture(opened, "past")
        page.goto(f"{base(platform)}{workload}?at={before}")
        slider = page.get_by_role("slider", name="Moment")
        slider.focus()
        page.keyboard.press("End")
        expect(page.locator(".chip").filter(has_text="4 of 4 serving")).to_be_visible()
        page.get_by_role("button", name=re.compile("10 s$")).first.click()
        assert "at=" in page.url
        page.locator("main h1").click()
        page.keyboard.press("Escape")
        expect(page.locator(".fresh b")).to_have_text("Live")
        assert "at=" not in page.url
        page.goto(f"{base(platform)}/?at=1")
        expect(page.get_by_role("alert")).to_contain_text("history begins at")
        page.goto(f"{base(platform)}/audit?at={before}")
        expect(page.get_by_role("alert")).to_contain_text("shows the present only")
        assert not opened.violations()
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{base(platform)}{workload}?at={before}")
        expect(banner).to_be_visible()
        assert page.evaluate("document.querySelector('main').scrollWidth") <= 390
        keep_picture(opened, "past-390")
        assert not opened.troubles, opened.troubles
    scale(3)


def test_rollout_is_paused_and_resumed(platform: RunningPlatform, browser: Browser) -> None:
    def paused() -> bool:
        found = json.loads(platform.kubectl("get", "workload", "billing-api", "-n", "billing", "-o", "json"))
        return bool(found["spec"].get("rollout", {}).get("paused", False))

    with tab(browser) as opened:
        page = signed_in(platform, opened, "/workloads/billing/billing-api?do=pause").page
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("holdfast rollout pause billing/billing-api")
        assert not opened.violations()
        confirm(opened, "pause-rollout")
        assert paused()
        page.get_by_role("button", name="Resume…").click()
        expect(dialog).to_contain_text("holdfast rollout resume billing/billing-api")
        confirm(opened, "resume-rollout")
        assert not paused()
        assert not opened.troubles, opened.troubles


def test_override_is_approved_by_a_second_operator_only(platform: RunningPlatform, browser: Browser) -> None:
    state = ("--state", str(platform.state))
    arguments = ("--tenant", "payments", "--quota", "cpu=1", "--reason", "sale", "--ttl", "600", "--yes")
    holdfast("override", "create", "EmergencyQuota", *arguments, *state)
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/overrides").page
        row = page.locator("[data-row]").filter(has_text="EmergencyQuota")
        expect(row).to_contain_text("waits for a second person")
        assert row.get_by_role("button", name="Approve…").count() == 0, "the requester is not offered to approve"
        name = row.locator("td .t3").first.inner_text()
        path = f"/console/api/resources/apis/holdfast.dev/v1/overrides/{name}"
        assert forged(page, "PATCH", path, {"spec": {"approver": "me"}}) in (403, 422)
    token = holdfast("token", "create", "bob", "--operator", *state).stdout.strip()
    with tab(browser) as opened:
        page = opened.page
        page.goto(base(platform) + "/overrides")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Approve…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".diff .added")).to_have_text('spec.approver: "bob"')
        assert not opened.violations()
        confirm(opened, "approve-override", typed=name)
        expect(page.locator("[data-row]").filter(has_text="EmergencyQuota")).to_contain_text("approved by bob")
        assert not opened.troubles, opened.troubles
    holdfast("override", "revoke", name, *state)
