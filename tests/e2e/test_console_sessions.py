"""What runs longer than a request in the console, in a real Chromium: a shell in a replica, and a drill; and the pages
of what tenants own."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser import chromium, tab
from tests.console_pages import base, confirm, forged, keep_picture, signed_in
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(900)]

REPLICA = "/workloads/payments/risk-api?replica=risk-api-us-east-0"
CONFIG = """
apiVersion: v1
kind: Secret
metadata: {name: database, namespace: payments}
stringData: {password: never-shown-anywhere}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: payments}
data: {level: "<b>debug</b>", colour: blue}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("console") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def audit(platform: RunningPlatform) -> list[dict[str, Any]]:
    """The newest records of the global cell."""
    found = holdfast("audit", "search", "--last", "500", "--state", str(platform.state), "-o", "json").stdout
    return cast("list[dict[str, Any]]", json.loads(found)["records"])


def refused(platform: RunningPlatform) -> set[tuple[str, str]]:
    return {(str(r.get("verb")), str(r.get("resource"))) for r in audit(platform) if r.get("result") == "Refused"}


def messages(platform: RunningPlatform) -> str:
    return "\n".join(str(record.get("message", "")) for record in audit(platform))


def as_user(platform: RunningPlatform, page: Page, *role: str) -> None:
    name = "-".join(part.strip("-") for part in role)
    token = holdfast("token", "create", name, *role, "--state", str(platform.state)).stdout.strip().splitlines()[-1]
    page.goto(base(platform))
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator(".fresh b")).to_have_text("Live")


def test_shell_has_a_terminal_that_resizes_and_is_audited(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened, REPLICA).page
        page.get_by_role("button", name="Shell…").click()
        expect(page.get_by_text("holdfast exec -it payments/risk-api-us-east-0 -- sh")).to_be_visible()
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_text("connected", exact=True)).to_be_visible()
        screen = page.locator(".xterm-rows")
        expect(screen).to_contain_text("$")
        page.keyboard.type("stty size; echo $((6*7))-replies; printf '\\033[38;5;208mcolour\\033[0m\\n'\n")
        expect(screen).to_contain_text("42-replies")
        expect(screen).to_contain_text("colour")
        wide = int(re.findall(r"24 (\d+)", screen.inner_text().replace("\xa0", " "))[0])
        screen.scroll_into_view_if_needed()
        keep_picture(opened, "shell")
        assert not opened.violations()
        page.set_viewport_size({"width": 700, "height": 800})
        page.keyboard.type("clear; stty size\n")
        page.wait_for_function(
            """wide => {
                const text = document.querySelector(".xterm-rows").innerText.replaceAll("\\u00a0", " ");
                return Number(text.match(/24 (\\d+)/)?.[1] ?? wide) < wide;
            }""",
            arg=wide,
        )
        page.keyboard.type("exit 3\n")
        expect(page.get_by_role("alert")).to_contain_text("exit code 3")
        assert not opened.troubles, opened.troubles
    assert "from the console: sh" in messages(platform), "the global cell names the command"
    wait_until(lambda: "ended (it ended" in messages(platform), "the end of the shell is audited")


def test_shell_ends_with_the_session_of_the_console(platform: RunningPlatform, browser: Browser) -> None:
    """A socket that the page does not close itself: the cell ends it, and says why."""
    with tab(browser) as opened:
        page = signed_in(platform, opened, REPLICA).page
        outcome = page.evaluate(
            """() => new Promise((done) => {
                const key = localStorage.getItem("holdfast-console-key");
                const path = "/console/api/regions/us-east/pods/payments/risk-api-us-east-0.1/exec?command=sh";
                const names = ["v5.channel.k8s.io", `key.console.holdfast.dev.${key}`];
                const socket = new WebSocket(`ws://${location.host}${path}`, names);
                let said = "";
                socket.binaryType = "arraybuffer";
                socket.onmessage = (event) => {
                    const data = new Uint8Array(event.data);
                    if (data[0] === 3) said = new TextDecoder().decode(data.subarray(1));
                    // The prompt: the session is open.
                    else fetch("/console/api/session", {method: "DELETE", headers: {"X-Holdfast-Console": key}});
                };
                socket.onclose = () => done(said);
            })"""
        )
        assert "your credential or role no longer permits it" in outcome


def test_viewer_is_offered_no_shell_and_no_drill_and_forged_ones_are_refused(
    platform: RunningPlatform, browser: Browser
) -> None:
    with tab(browser) as opened:
        page = opened.page
        as_user(platform, page, "--viewer")
        page.goto(base(platform) + REPLICA)
        expect(page.get_by_role("button", name="Show log")).to_be_visible()
        expect(page.get_by_role("button", name="Shell…")).to_have_count(0)
        outcome = page.evaluate(
            """() => new Promise((done) => {
                const key = localStorage.getItem("holdfast-console-key");
                const path = "/console/api/regions/us-east/pods/payments/risk-api-us-east-0.1/exec?command=id";
                const names = ["v5.channel.k8s.io", `key.console.holdfast.dev.${key}`];
                const socket = new WebSocket(`ws://${location.host}${path}`, names);
                socket.onopen = () => done("opened");
                socket.onerror = () => done("refused");
            })"""
        )
        assert outcome == "refused"
        drill = {"name": "region-loss", "region": "us-east"}
        assert forged(page, "POST", "/console/api/drills", drill) == 403
        page.goto(base(platform) + "/recovery")
        expect(page.get_by_role("heading", name="Drills")).to_be_visible()
        expect(page.get_by_role("button", name="Drill…")).to_have_count(0)
    wanted = {("create", "pods/exec"), ("create", "console/drills")}
    wait_until(lambda: wanted <= refused(platform), "both refusals are audited")


@pytest.mark.parametrize(
    ("origin", "with_key", "expected"),
    [
        pytest.param("own", True, 101, id="own page"),
        pytest.param("https://elsewhere.example", True, 403, id="other origin"),
        pytest.param("", True, 403, id="no origin"),
        pytest.param("own", False, 401, id="no key"),
    ],
)
def test_shell_of_another_site_is_refused(
    platform: RunningPlatform, browser: Browser, origin: str, with_key: bool, expected: int
) -> None:
    """With the cookie of a signed-in operator, as a page of another site would have it without SameSite."""
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        key = page.evaluate('localStorage.getItem("holdfast-console-key")')
        cookies = {c["name"]: c["value"] for c in opened.context.cookies()}
    own = f"127.0.0.1:{platform.base}"
    protocols = ["v5.channel.k8s.io", *([f"key.console.holdfast.dev.{key}"] if with_key else [])]
    connection = http.client.HTTPConnection(own, timeout=20)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": ", ".join(protocols),
        "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
        **({"Origin": f"http://{own}" if origin == "own" else origin} if origin else {}),
    }
    path = "/console/api/regions/us-east/pods/payments/risk-api-us-east-0.1/exec?command=id"
    connection.request("GET", path, headers=headers)
    assert connection.getresponse().status == expected
    connection.close()


def test_secrets_show_names_only_and_schedules_can_be_suspended(
    platform: RunningPlatform, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    platform.kubectl("apply", "-f", str(tmp_path / "config.yaml"))
    platform.kubectl("apply", "-f", str(ROOT / "examples" / "batch" / "nightly-report.yaml"))
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/config").page
        expect(page.locator("[data-row]").filter(has_text="payments/database")).to_contain_text("Opaque")
        expect(page.locator("[data-row]").filter(has_text="payments/settings")).to_contain_text("colour, level")
        assert "never-shown" not in page.content() and "debug" not in page.content()
        keep_picture(opened, "config-filled")
        page.goto(base(platform) + "/schedules")
        row = page.locator("[data-row]").first
        expect(row).to_contain_text("in ")
        keep_picture(opened, "schedules-filled")
        row.get_by_role("button", name="Suspend…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".diff .added")).to_have_text("spec.suspend: true")
        confirm(opened, "suspend-schedule")
        expect(row).to_contain_text("suspended")
        row.get_by_role("button", name="Resume…").click()
        expect(dialog.locator(".diff .added")).to_have_text("spec.suspend: false")
        confirm(opened, "resume-schedule")
        expect(row.get_by_role("button", name="Suspend…")).to_be_visible()
        assert not opened.violations()
        assert not opened.troubles, opened.troubles


def test_indexes_of_a_job_array_are_shown_with_their_failures(platform: RunningPlatform, browser: Browser) -> None:
    """Index 2 of four fails always; the others succeed."""
    script = 'sleep 1; test "$HOLDFAST_INDEX" != 2 || exit 7'
    platform.apply(
        {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Workload",
            "metadata": {"name": "parts", "namespace": "payments"},
            "spec": {
                "type": "Batch",
                "batch": {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 1},
                "placement": {"regions": ["eu-west"]},
                "template": {
                    "command": ["sh", "-c", script],
                    "restartPolicy": "Never",
                    "resources": {"cpu": "50m", "memory": "32Mi"},
                },
            },
        }
    )
    try:
        with tab(browser) as opened:
            page = signed_in(platform, opened, "/workloads/payments/parts").page
            card = page.locator("section.card").filter(has=page.get_by_role("heading", name="Indexes"))
            expect(card).to_contain_text("4 indexes, each must succeed once")
            expect(card.locator("dd").nth(0)).to_have_text("0-1,3", timeout=90_000)
            expect(card.locator("dd").nth(1)).to_have_text("2", timeout=90_000)
            row = card.locator("[data-row]")
            expect(row).to_have_count(1)
            expect(page.locator("main .say")).to_contain_text("FailedIndexes: 3 of 4 completions")
            expect(page.locator(".tree").get_by_text("3 completed", exact=True)).to_be_visible()
            expect(row.locator("td").nth(0)).to_have_text("2")
            expect(row.locator("td").nth(2)).to_have_text("7")
            card.scroll_into_view_if_needed()
            keep_picture(opened, "workload-indexes")
            for theme in ("light", "dark"):
                page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
                assert not opened.violations(), theme
            assert not opened.troubles, opened.troubles
    finally:
        platform.kubectl("delete", "workload", "parts", "-n", "payments")


def test_drill_is_started_and_reported(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened, "/recovery").page
        page.get_by_label("Drill", exact=True).select_option("timeout-after-commit")
        page.get_by_label("Region of the drill").select_option(label="eu-west")
        page.get_by_role("button", name="Drill…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("holdfast drill run timeout-after-commit --region eu-west")
        confirm(opened, "drill", typed="eu-west")
        expect(page.get_by_text("Running", exact=True)).to_be_visible()
        again = {"name": "zone-loss", "region": "eu-west"}
        assert forged(page, "POST", "/console/api/drills", again) == 409, "one at a time"
        expect(page.get_by_label("Report of the drill")).to_contain_text(
            "drill timeout-after-commit: passed", timeout=150_000
        )
        expect(page.get_by_text("Passed", exact=True)).to_be_visible()
        page.get_by_label("Report of the drill").scroll_into_view_if_needed()
        keep_picture(opened, "drill-report")
        assert not opened.violations()
        assert not opened.troubles, opened.troubles
    assert "drill timeout-after-commit in region eu-west" in messages(platform)
    assert "timeout-after-commit" in holdfast("drill", "history", "--state", str(platform.state)).stdout
