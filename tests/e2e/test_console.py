"""The console in a real Chromium on a real platform: every page, what happens when facts grow old, and size."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.browser import chromium, tab
from tests.console_pages import base, confirm, keep_picture, large_map, link, signed_in, slowdown
from tests.platforms import RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(900)]

PAGES = {
    "overview": "",
    "workloads": "/workloads",
    "workload": "/workloads/payments/risk-api?replica=risk-api-us-east-0",
    "decisions": "/decisions",
    "map": "/map?region=us-east&node=us-east-1",
    "recoveries": "/recovery",
    "quotas": "/quotas",
    "pipeline": "/pipeline",
    "queues": "/queues",
    "policies": "/policies",
    "overrides": "/overrides",
    "what-if": "/what-if?region=us-east",
    "repairs": "/repairs",
    "schedules": "/schedules",
    "config": "/config",
    "access": "/access",
    "audit": "/audit",
    "system": "/system",
}
DETAIL_PAGES = {"decision": "/decisions/REGION/TENANT/NAME", "recovery": "/recovery/NAME"}
"""Pages whose address is known only on a running platform."""
ENTRIES = 17
"""Pages in the navigation."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("console") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def some_decision(platform: RunningPlatform) -> str:
    found = json.loads(platform.kubectl("--context", "us-east", "get", "decisions", "-n", "payments", "-o", "json"))
    return f"/decisions/us-east/payments/{found['items'][0]['metadata']['name']}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_is_accessible_fits_and_breaks_no_policy(
    platform: RunningPlatform, browser: Browser, width: int, theme: str
) -> None:
    small = width < 720
    with tab(browser, theme=theme, width=width, height=844 if small else 800) as opened:
        signed_in(platform, opened)
        wrong: list[str] = []
        for name, path in {**PAGES, "decision": some_decision(platform)}.items():
            opened.page.goto(base(platform) + path)
            expect(opened.page.locator("main h1")).to_have_count(1)
            expect(opened.page.locator(".fresh b")).to_have_text("Live")
            wide = opened.page.evaluate("document.querySelector('main').scrollWidth")
            if wide > width:
                wrong.append(f"{name}, {width} pixels: is {wide} pixels wide")
            wrong += [f"{name}, {theme}, {width} pixels: {text}" for text in opened.violations()]
            keep_picture(opened, f"{name}-{'390-' if small else ''}{theme}")
        assert not wrong, "\n".join(wrong[:20])
        assert not opened.troubles, opened.troubles
        assert opened.page.locator("nav li:visible").count() == (5 if small else ENTRIES)


def test_link_works_once_and_the_address_keeps_no_secret(platform: RunningPlatform, browser: Browser) -> None:
    shown = link(platform)
    with tab(browser) as first, tab(browser) as second:
        first.page.goto(shown)
        expect(first.page.locator(".fresh b")).to_have_text("Live")
        assert "sign-in" not in first.page.url
        second.page.goto(shown)
        expect(second.page.get_by_role("alert")).to_contain_text("used before")
        first.page.reload()
        expect(first.page.locator(".fresh b")).to_have_text("Live")


def test_root_leads_to_the_sign_in_and_api_is_not_served_without_tls(
    platform: RunningPlatform, browser: Browser
) -> None:
    with tab(browser) as opened:
        opened.page.goto(f"http://127.0.0.1:{platform.base}/")
        expect(opened.page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        keep_picture(opened, "sign-in")
        assert not opened.violations()
        answer = opened.page.request.get(f"http://127.0.0.1:{platform.base}/apis")
        assert answer.status == 400 and "https" in answer.text()


def test_search_and_keys_reach_every_page(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        page.keyboard.press("/")
        page.keyboard.type("risk")
        expect(page.get_by_role("option").filter(has_text="6 of 6 serve")).to_be_visible()
        keep_picture(opened, "search")
        assert not opened.violations()
        page.keyboard.press("Enter")
        expect(page.locator("main h1")).to_have_text("payments/risk-api")
        page.keyboard.press("a")
        expect(page.get_by_role("button", name="Scale…")).to_be_focused()
        page.keyboard.press("x")
        expect(page).to_have_url(re.compile("/console/decisions/[a-z-]+/payments/risk-api-"))
        for key, title in (("m", "nodes in"), ("w", "workloads"), ("q", "Nothing waits"), ("s", "cells")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(page.locator("main .head")).to_contain_text(title)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)
        page.keyboard.press("g")
        page.keyboard.press("w")
        expect(page).to_have_url(re.compile("/console/workloads$"))
        expect(page.locator("[data-row]").first).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/console/workloads/[a-z]+/"))
        before = page.evaluate("document.documentElement.dataset.theme ?? ''")
        page.keyboard.press(".")
        assert page.evaluate("document.documentElement.dataset.theme") != before
        page.go_back()
        expect(page).to_have_url(re.compile("/console/workloads$"))


def test_remaining_keys_and_signing_out(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = signed_in(platform, opened, "/workloads").page
        expect(page.locator("[data-row]").first).to_be_visible()
        page.keyboard.press("f")
        expect(page.locator("[data-filter]")).to_be_focused()
        page.keyboard.type("risk")
        expect(page.locator("[data-row]")).to_have_count(1)
        expect(page).to_have_url(re.compile("risk"))
        page.locator("main h1").click()
        page.keyboard.press("y")
        assert page.evaluate("navigator.clipboard.readText()") == page.url
        page.keyboard.press("Control+k")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        page.goto(base(platform) + "/workloads/payments/risk-api")
        expect(page.locator("main h1")).to_have_text("payments/risk-api")
        page.keyboard.press("c")
        assert page.evaluate("navigator.clipboard.readText()") == "holdfast explain payments/risk-api"
        page.goto(base(platform) + "/workloads")
        expect(page.locator("[data-row]").nth(1)).to_be_visible()
        rows = page.locator("[data-row]")
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(rows.nth(1).locator("a, button").first).to_be_focused()
        page.keyboard.press("k")
        expect(rows.nth(0).locator("a, button").first).to_be_focused()
        page.keyboard.press("t")
        expect(page.get_by_role("slider", name="Moment")).to_be_visible()
        page.keyboard.press("[")
        expect(page).to_have_url(re.compile(r"[?&]at=\d+"))
        expect(page.locator(".fresh b")).to_have_text("Past")
        page.keyboard.press("]")
        page.keyboard.press("Escape")
        expect(page).not_to_have_url(re.compile("at="))
        expect(page.locator(".fresh b")).to_have_text("Live")
        other = opened.context.new_page()
        other.goto(base(platform) + "/audit")
        expect(other.locator("[data-row]").first).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        for each in (page, other):
            expect(each.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
            assert "risk-api" not in each.content() and each.locator("[data-row]").count() == 0
        page.goto(base(platform) + "/workloads")
        expect(page.get_by_role("heading", name="Sign in to Holdfast")).to_be_visible()
        assert not opened.troubles, opened.troubles


def test_silent_server_freezes_the_page_and_a_restarted_one_resumes_it(
    platform: RunningPlatform, browser: Browser
) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        pid = platform.pid("cell-global")
        os.kill(pid, signal.SIGSTOP)
        try:
            expect(page.get_by_role("alert")).to_contain_text("Nothing on this page is newer than")
            expect(page.locator(".fresh b")).to_have_text("Frozen")
            expect(page.locator("main h1")).to_contain_text("At ")
            report = page.locator("table").nth(1).locator("td").nth(3).inner_text()
            time.sleep(1.5)
            assert page.locator("table").nth(1).locator("td").nth(3).inner_text() == report, "an age went on"
            keep_picture(opened, "stale")
            assert not opened.violations()
        finally:
            os.kill(pid, signal.SIGCONT)
        expect(page.locator(".fresh b")).to_have_text("Live")
        os.kill(pid, signal.SIGKILL)
        expect(page.locator(".fresh b")).to_have_text("Frozen")
        expect(page.locator(".fresh b")).to_have_text("Live", timeout=60_000)
        expect(page.get_by_role("alert")).to_have_count(0)


def test_region_without_contact_freezes_only_its_own_part(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/map").page
        expect(page.locator(".tile")).to_have_count(8)
        pid = platform.pid("cell-eu-west")
        os.kill(pid, signal.SIGSTOP)
        try:
            note = page.get_by_role("status").filter(has_text="eu-west")
            expect(note).to_contain_text("did not answer")
            expect(page.locator(".fresh b")).to_have_text("Live")
            expect(page.locator(".tile")).to_have_count(8)
            assert page.locator(".tile.old").count() >= 2
            keep_picture(opened, "region-silent")
        finally:
            os.kill(pid, signal.SIGCONT)
        expect(note).to_have_count(0, timeout=30_000)


def test_token_that_expires_keeps_the_page_frozen_behind_a_sign_in(platform: RunningPlatform, browser: Browser) -> None:
    arguments = ("--state", str(platform.state))
    token = holdfast("token", "create", "short", "--viewer", "--expires", "20s", *arguments).stdout.strip()
    with tab(browser) as opened:
        page = opened.page
        page.goto(base(platform) + "/workloads")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("[data-row]")).not_to_have_count(0)
        expect(page.get_by_role("alert")).to_contain_text("session has ended", timeout=60_000)
        assert page.locator("[data-row]").count() > 0, "what was known stays in sight"
        again = holdfast("token", "create", "long", "--viewer", *arguments).stdout.strip()
        page.get_by_label("Token").fill(again)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".fresh b")).to_have_text("Live")
        assert page.url.endswith("/console/workloads"), "the address is kept"


def test_tenant_is_offered_only_its_own(platform: RunningPlatform, browser: Browser) -> None:
    arguments = ("--state", str(platform.state))
    token = holdfast("token", "create", "shop", "--tenant", "payments", *arguments).stdout.strip()
    with tab(browser) as opened:
        page = opened.page
        page.goto(base(platform))
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name=re.compile("^Workloads"))).to_be_visible()
        for hidden in ("Map", "Audit", "System", "Recovery", "Policies"):
            assert page.get_by_role("navigation").get_by_role("link", name=hidden).count() == 0
        page.goto(base(platform) + "/workloads")
        expect(page.locator("[data-row]").first).to_be_visible()
        assert all("payments/" in row for row in page.locator("[data-row]").all_inner_texts())
        page.goto(base(platform) + "/workloads/search/search-indexer")
        expect(page.get_by_role("alert")).to_contain_text("forbidden")
        page.goto(base(platform) + "/audit")
        expect(page.get_by_role("alert")).to_contain_text("forbidden")


def test_ten_tabs_of_one_browser_are_all_live(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        signed_in(platform, opened)
        others = [opened.context.new_page() for _ in range(9)]
        for page, path in zip(others, PAGES.values(), strict=False):
            page.goto(base(platform) + path)
        for page in (opened.page, *others):
            expect(page.locator(".fresh b")).to_have_text("Live")
            expect(page.locator("main h1")).to_be_visible()
        shown = others[-1].locator(".fresh .rev").inner_text()
        wait_until(lambda: others[-1].locator(".fresh .rev").inner_text() != shown, "the last tab goes on", within_s=20)
        assert not opened.troubles, opened.troubles


def test_waiting_replica_is_explained_down_to_the_node(platform: RunningPlatform, browser: Browser) -> None:
    platform.apply(
        {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Workload",
            "metadata": {"name": "scoring", "namespace": "fraud"},
            "spec": {
                "replicas": 1,
                "priorityClassName": "high",
                "placement": {"regions": ["us-east"]},
                "template": {"command": ["sleep", "60"], "resources": {"cpu": "1", "memory": "64Mi", "gpu": 4}},
            },
        }
    )
    try:
        with tab(browser) as opened:
            page = signed_in(platform, opened, "/queues").page
            row = page.locator("[data-row]").filter(has_text="InsufficientDevices")
            expect(row).to_contain_text("fraud/scoring", timeout=60_000)
            keep_picture(opened, "queues-waiting")
            row.get_by_role("link", name="Why").click()
            expect(page.locator("main h1")).to_have_text("0 of 1 placed, 1 waits")
            expect(page.locator(".matrix .group")).to_contain_text("InsufficientDevices")
            expect(page.locator("main")).to_contain_text("Nearest miss: us-east-1")
            expect(page.locator("main")).to_contain_text("same outcome")
            keep_picture(opened, "decision-waiting")
            assert not opened.violations()
            assert not opened.troubles, opened.troubles
    finally:
        platform.kubectl("delete", "workload", "scoring", "-n", "fraud")


def test_map_of_5000_nodes_opens_within_a_second_and_answers_within_100_ms(
    platform: RunningPlatform, browser: Browser
) -> None:
    answer = {"asOf": time.time(), "revision": 1, "etag": "x", "data": large_map(5000)}
    body = f"event: page\nid: x\ndata: {json.dumps(answer)}\n\n"
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        page.route("**/console/api/stream?*page=map*", lambda route: route.fulfill(body=body, status=200))
        opening = page.evaluate(
            """async () => {
                const began = performance.now();
                document.querySelector('nav a[href="/console/map"]').click();
                while (!document.querySelector("main canvas")) {
                    if (performance.now() - began > 60000) throw new Error("the map is not drawn");
                    await new Promise(requestAnimationFrame);
                }
                await new Promise(requestAnimationFrame);
                return performance.now() - began;
            }"""
        )
        filtering = statistics.median(
            page.evaluate(
                """async (text) => {
                    const field = document.querySelector("[data-filter]");
                    const began = performance.now();
                    field.value = text;
                    field.dispatchEvent(new Event("input", {bubbles: true}));
                    await new Promise(requestAnimationFrame);
                    await new Promise(requestAnimationFrame);
                    return performance.now() - began;
                }""",
                text,
            )
            for text in ("b01", "b02", "b03", "a01", "b01")
        )
        busy = slowdown(page)
        keep_picture(opened, "map-5000")
        page.get_by_role("button", name="Zoom to us-east").click()
        expect(page.locator("main h1")).to_have_text("1,668 nodes in us-east")
        page.get_by_role("group", name="Zoom").get_by_role("button", name="us-east-a").click()
        expect(page.locator("main h1")).to_have_text("556 nodes in us-east-a")
        keep_picture(opened, "map-5000-zone")
        # The goal holds for processors that nobody else uses; here they are shared with other work.
        found = f"opened in {opening:.0f} ms, filtered in {filtering:.0f} ms, fixed work takes {busy:.1f} times as long"
        assert opening < 1000 * busy and filtering < 100 * busy, found
        print(f"5,000 nodes: {found}")


def test_map_zooms_to_a_zone_and_shows_the_way_of_a_replica(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/map").page
        expect(page.locator(".tile")).to_have_count(8)
        page.get_by_role("button", name="Zoom to us-east", exact=True).click()
        expect(page.locator("main h1")).to_have_text("2 nodes in us-east")
        page.get_by_role("button", name="Zoom to us-east-a").click()
        expect(page.locator("main h1")).to_have_text("1 node in us-east-a")
        expect(page.locator(".tile")).to_have_count(1)
        page.reload()
        expect(page.locator("main h1")).to_have_text("1 node in us-east-a")
        page.locator(".tile").click()
        page.get_by_role("button", name=re.compile("risk-api-us-east-")).first.click()
        way = page.get_by_role("list", name=re.compile("Path of risk-api-us-east-"))
        for stage in ("Queued", "Decided", "Bound to us-east-1", "Started", "Ready", "Serving", "attempt 1"):
            expect(way).to_contain_text(stage)
        page.get_by_role("group", name="Zoom").get_by_role("button", name="All regions").click()
        expect(page.locator(".tile")).to_have_count(8)
        expect(page.locator(".tile.onway")).to_have_count(1)
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            keep_picture(opened, f"map-way-{theme}")
            assert not opened.violations(), theme
        way.get_by_role("link", name=re.compile("^Path of")).click()
        expect(page).to_have_url(re.compile(r"/console/workloads/payments/risk-api\?replica="))
        assert not opened.troubles, opened.troubles


def test_decision_keeps_the_age_of_its_evidence(platform: RunningPlatform, browser: Browser) -> None:
    """The inputs are renewed every few seconds: their ages come from the store's history."""
    with tab(browser) as opened:
        page = signed_in(platform, opened, some_decision(platform)).page
        card = page.locator("section.card").filter(has=page.get_by_role("heading", name="Evidence"))
        for name in ("Node reports", "Grant, Normal", "Policy", "Overrides"):
            row = card.locator("tr").filter(has_text=name).first
            expect(row).to_contain_text(re.compile(r"\d+(\.\d)? m?s of (15 s|2 min)"))
        box, table = card.bounding_box(), card.locator("table").bounding_box()
        assert box and table and table["width"] <= box["width"], "the table fits into its card"


def test_loss_has_the_words_of_the_command(platform: RunningPlatform, browser: Browser) -> None:
    command = ("plan", "--lose-region", "us-east", "--state", str(platform.state), "-o", "json")
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/what-if?region=us-east").page
        expect(page.locator("main h1")).to_contain_text("Losing us-east")
        effects = json.loads(holdfast(*command, check=False).stdout)["effects"]
        assert len(effects) >= 2
        for effect in effects:
            row = page.locator("[data-row]").filter(has_text=f"{effect['tenant']}/{effect['workload']}")
            expect(row).to_contain_text(effect["text"])
        assert not opened.troubles, opened.troubles


@pytest.mark.parametrize(("wish", "animation"), [("reduce", "none"), ("no-preference", "pulse")])
def test_nothing_moves_where_reduced_motion_is_wished(
    platform: RunningPlatform, browser: Browser, wish: Any, animation: str
) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/system").page
        page.emulate_media(reduced_motion=wish)
        found = page.evaluate("getComputedStyle(document.querySelector('.pulse')).animationName")
        assert found.endswith(animation), found
        lag = page.locator("table").first.locator("tr").filter(has_text="us-east")
        expect(lag).to_contain_text(re.compile(r"\d+ revisions?"))


RETURNED = {"servedS": -1, "met": None, "phase": "Closed", "closedAt": "2026-11-01T10:00:20Z"}
"""A recovery whose region was healthy again after 20 of 300 seconds, and whose workloads did not serve elsewhere."""
READ_PAGE = """
async (name) => (await (await fetch("/console/api/pages/" + name,
    {headers: {"X-Holdfast-Console": localStorage.getItem("holdfast-console-key")}})).json()).data
"""


def test_clock_of_a_recovery_stops_when_the_region_returns(platform: RunningPlatform, browser: Browser) -> None:
    """Long ago, so a clock that went on would be over the objective. Such a recovery is answered by the test."""
    line = {
        "name": "us-east-1",
        "region": "us-east",
        "zone": "",
        "cause": "UnreachableConfirmed",
        "startedAt": "2026-11-01T10:00:00Z",
        "deadlineS": 300,
        "workloads": 1,
        "serving": 0,
        **RETURNED,
    }
    detail = {
        "line": line,
        "evidence": [],
        "marks": [{"name": "lost", "seconds": 12.0}],
        "elapsedS": 20.0,
        "workloads": [],
        "remaining": [],
        "conditions": [],
        "answers": [],
        "events": [],
        "next": "nothing: it is closed",
    }
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/audit").page

        def answered(name: str, data: Any) -> None:
            answer = {"asOf": time.time(), "revision": 1, "etag": "x", "data": data}
            body = f"event: page\nid: x\ndata: {json.dumps(answer)}\n\n"
            page.route(f"**/console/api/stream?*page={name}&*", lambda route: route.fulfill(body=body, status=200))

        answered("recovery", detail)
        recoveries = page.evaluate(READ_PAGE, "recoveries")
        answered("recoveries", {**recoveries, "rows": [line]})
        page.get_by_role("navigation").get_by_role("link", name="Recovery").click()
        expect(page.locator("[data-row]").first).to_contain_text("not tried: the region returned after 20 s")
        page.locator("[data-row] a").first.click()
        expect(page.locator(".clocknumber")).to_contain_text("00:20 of 05:00")
        expect(page.locator("main")).to_contain_text("the region returned")
        expect(page.locator("main .say")).to_contain_text("us-east was healthy again before the deadline of 300 s")
        expect(page.get_by_text("over the objective")).to_have_count(0)


def test_newcomer_reads_a_lost_region_from_the_console_alone(platform: RunningPlatform, browser: Browser) -> None:
    wait_until(
        lambda: all(w["done"] for w in platform.status()["workloads"]), "every workload serves again", within_s=90
    )
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        expect(page.locator("main h1")).to_have_text("The recovery objective is met")
        page.get_by_role("link", name="What if a region is lost").click()
        page.get_by_role("button", name="us-east", exact=True).click()
        expect(page.locator("main h1")).to_have_text("Losing us-east breaks no promise")
        page.get_by_role("navigation").get_by_role("link", name="Recovery").click()
        page.get_by_label("Drill", exact=True).select_option("region-loss")
        page.get_by_label("Region of the drill").select_option(label="us-east")
        page.get_by_role("button", name="Drill…", exact=True).click()
        confirm(opened, "drill", typed="us-east")
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        expect(page.locator("main h1")).to_have_text(re.compile("^us-east is lost"), timeout=90_000)
        expect(page.locator("main .say")).to_contain_text("cannot reach it either")
        expect(page.get_by_label("Clock of the recovery of us-east")).to_contain_text(re.compile(r"00:\d\d of 05:00"))
        changes = page.locator("section.card").filter(has=page.get_by_role("heading", name="Changed in the last hour"))
        expect(changes).to_contain_text("us-east")
        budgets = page.locator("section.card").filter(has=page.get_by_role("heading", name="Recovery budgets"))
        expect(budgets).to_contain_text("4 of 4 slots")
        # Whether replicas of the lost region still run is not known: no page shows one of them as serving.
        expect(page.locator("main .say")).to_contain_text("out of contact")
        expect(page.locator("main .chip", has_text="Unknown")).to_be_visible()
        keep_picture(opened, "overview-lost")
        assert not opened.violations()
        page.get_by_role("navigation").get_by_role("link", name="Pipeline").click()
        expect(page.locator("main h1")).to_contain_text("out of contact")
        page.goto(base(platform) + "/workloads/payments/risk-api")
        expect(page.locator(".tree .n", has_text="us-east, normal").locator("svg")).to_have_attribute(
            "aria-label", "Unknown"
        )
        page.get_by_role("navigation").get_by_role("link", name="Map").click()
        expect(page.locator("main .say")).to_contain_text("2 nodes need attention")
        page.get_by_role("navigation").get_by_role("link", name="System").click()
        expect(page.locator("main h1")).to_have_text("us-east does not answer")
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        page.get_by_role("link", name="Follow the recovery").click()
        expect(page.locator("main")).to_contain_text("the promise held", timeout=90_000)
        expect(page.locator("main h1")).to_contain_text("the recovery is closed", timeout=150_000)
        said = page.locator("main .say")
        for part in (
            "What happened: us-east was last heard at",
            "Why: UnreachableConfirmed",
            "The promise: every critical",
        ):
            expect(said).to_contain_text(part)
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        row = page.locator("tr").filter(has_text="us-east").first
        row.get_by_role("link", name="proven").click()
        expect(page.locator("main h1")).to_contain_text("us-east was lost")
        expect(page.locator("main")).to_contain_text("the promise held")
        for question in ("What desired state changed?", "Which controller acted first?", "Did the promise hold?"):
            expect(page.locator(".qa")).to_contain_text(question)
        expect(page.locator(".qa")).to_contain_text(re.compile(r"Yes: every critical workload served [\d.]+ s after"))
        expect(page.locator("main")).to_contain_text("payments/risk-api")
        for width, height in ((1280, 800), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            for theme in ("light", "dark"):
                page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
                keep_picture(opened, f"recovery-{'390-' if width < 720 else ''}{theme}")
                assert not opened.violations(), f"{theme}, {width} pixels"
            assert page.evaluate("document.querySelector('main').scrollWidth") <= width
        assert not opened.troubles, opened.troubles
