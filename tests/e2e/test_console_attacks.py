"""Attacks on the console in a real Chromium on a real platform: stored markup, cross-site requests, redirects."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Error, expect
from tests.browser import Tab, chromium, tab
from tests.console_pages import base, forged, signed_in
from tests.platforms import RunningPlatform, holdfast, running_platform

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(900)]

HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
PAGES = (
    "",
    "/workloads",
    "/workloads/payments/risk-api",
    "/workloads/payments/hostile?replica=hostile-us-east-0",
    "/decisions",
    "/map?region=us-east&node=us-east-1",
    "/recovery",
    "/pipeline",
    "/queues",
    "/quotas",
    "/policies",
    "/overrides",
    "/what-if?region=us-east",
    "/repairs",
    "/schedules",
    "/config",
    "/access",
    "/audit",
    "/system",
)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("console") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def check_nothing_ran(opened: Tab) -> None:
    """No stored markup became an element, and none of it ran."""
    page = opened.page
    page.wait_for_timeout(300)
    assert page.evaluate("window.owned") is None, page.url
    assert page.locator("main img, main script, dialog img, dialog script").count() == 0, page.url
    assert not opened.troubles, opened.troubles


def hostile_objects(platform: RunningPlatform) -> tuple[dict[str, Any], ...]:
    """Markup wherever a schema lets text through: annotations, commands, environment, reasons, messages."""
    workload = json.loads(platform.kubectl("get", "workload", "risk-api", "-n", "payments", "-o", "json"))
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "hostile", "namespace": "payments"},
        "involvedObject": {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Workload",
            "name": "risk-api",
            "namespace": "payments",
            "uid": workload["metadata"]["uid"],
        },
        "reason": HOSTILE[:60],
        "message": HOSTILE,
        "type": "Warning",
        "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60)),
    }
    override = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Override",
        "metadata": {"name": "hostile", "annotations": {"note": HOSTILE}},
        "spec": {
            "kind": "PauseAutoscaler",
            "reason": HOSTILE,
            "requester": "ada",
            "ttlSeconds": 600,
            "scope": {"tenant": "payments"},
        },
    }
    task = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "hostile", "namespace": "payments", "annotations": {"note": HOSTILE}},
        "spec": {
            "replicas": 1,
            "placement": {"regions": ["us-east"]},
            "template": {
                "command": ["sleep", "600"],
                "env": {"MARKUP": HOSTILE},
                "resources": {"cpu": "100m", "memory": "32Mi"},
            },
        },
    }
    return event, override, task


def test_stored_markup_is_shown_as_text_on_every_page(platform: RunningPlatform, browser: Browser) -> None:
    platform.apply(*hostile_objects(platform))
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        for path in PAGES:
            page.goto(base(platform) + path)
            expect(page.locator("main h1")).to_be_visible()
            if path in ("", "/workloads/payments/risk-api", "/overrides"):
                expect(page.locator("main")).to_contain_text("onerror")
            check_nothing_ran(opened)
        page.keyboard.press("/")
        page.keyboard.type(HOSTILE[:40])
        check_nothing_ran(opened)
        page.keyboard.press("Escape")
        change = {"spec": {"template": {"env": {"MARKUP": "clean"}}}}
        platform.kubectl("patch", "workload", "hostile", "-n", "payments", "--type", "merge", "-p", json.dumps(change))
        page.goto(base(platform) + "/workloads/payments/hostile")
        page.get_by_role("button", name="Undo rollout…").click(timeout=60_000)
        expect(page.get_by_role("dialog").locator(".diff .added")).to_contain_text("onerror")
        check_nothing_ran(opened)
        page.goto(base(platform) + "/what-if?ask=apply")
        page.get_by_role("textbox", name="Manifests").fill(f"kind: Workload\nmetadata: {{name: '{HOSTILE[:20]}'}}")
        page.get_by_role("button", name="Plan").click()
        expect(page.get_by_role("alert")).to_contain_text("<img src=x")
        check_nothing_ran(opened)
    holdfast("override", "revoke", "hostile", "--state", str(platform.state))
    platform.kubectl("delete", "workload", "hostile", "-n", "payments")


def test_markup_in_names_and_labels_is_refused_by_the_schema(platform: RunningPlatform, browser: Browser) -> None:
    _, _, task = hostile_objects(platform)
    spec = {"replicas": 1, "template": {"command": ["true"]}}
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        collection = "/console/api/resources/apis/holdfast.dev/v1/namespaces/payments/workloads"
        for metadata in (
            {"name": HOSTILE},
            {"name": "fine", "labels": {"team": HOSTILE}},
            {"name": "fine", "labels": {HOSTILE: "x"}},
        ):
            body = {**task, "metadata": metadata, "spec": spec}
            assert forged(page, "POST", collection, body) in (400, 422), metadata


def test_markup_in_the_address_is_text(platform: RunningPlatform, browser: Browser) -> None:
    text = quote(HOSTILE, safe="")
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        for path in (
            f"/{text}",
            f"/workloads/payments/{text}",
            f"/workloads?text={text}",
            f"/map?region={text}&node={text}",
            f"/what-if?ask=drain&region={text}&node={text}",
            f"/policies?do={text}&policy={text}",
            f"/workloads?at={text}",
            f"/decisions/us-east/payments/{text}",
        ):
            page.goto(base(platform) + path)
            page.wait_for_timeout(700)
            check_nothing_ran(opened)


def test_markup_that_a_page_would_insert_is_stopped_by_the_policy(platform: RunningPlatform, browser: Browser) -> None:
    """The second line: were a page to insert markup or an inline script, the browser refuses it."""
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        with pytest.raises(Error, match="TrustedHTML"):
            page.evaluate("markup => { document.body.innerHTML = markup }", HOSTILE)
        with pytest.raises(Error, match=r"TrustedScript|unsafe-eval"):
            page.evaluate('setTimeout("window.owned = 1", 0)')
        page.wait_for_timeout(300)
        assert page.evaluate("window.owned") is None
        framed = page.evaluate(
            """async () => {
                const frame = document.createElement("iframe");
                frame.src = location.href;
                document.body.append(frame);
                await new Promise((done) => { frame.onload = done; setTimeout(done, 2000); });
                try { return !!frame.contentDocument?.querySelector("main"); } catch { return false; }
            }"""
        )
        assert not framed, "the console can be framed"


@contextmanager
def another_site(html: str) -> Iterator[str]:
    """A page of another origin on this machine: another port of the same host, so cookies of the console are sent."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


ATTACK = """
async (api) => {
    const tried = {};
    const attempt = async (name, path, options) => {
        try {
            const answer = await fetch(api + path, {credentials: "include", ...options});
            tried[name] = answer.type === "opaque" ? "opaque" : answer.status;
        } catch { tried[name] = "blocked"; }
    };
    const workload = "/resources/apis/holdfast.dev/v1/namespaces/payments/workloads/risk-api";
    const scale = JSON.stringify({spec: {replicas: 0}});
    await attempt("read", "/pages/overview", {});
    await attempt("read without cors", "/pages/overview", {mode: "no-cors"});
    await attempt("with the header", "/pages/overview", {headers: {"X-Holdfast-Console": "none"}});
    const merge = {"Content-Type": "application/merge-patch+json"};
    await attempt("patch", workload, {method: "PATCH", body: scale, headers: merge});
    await attempt("simple post", "/what-if", {method: "POST", mode: "no-cors", body: "kind: Workload"});
    await attempt("post of a session", "/session", {method: "POST", mode: "no-cors", body: "{}"});
    await attempt("sign out", "/session", {method: "DELETE"});
    await attempt("drain", "/regions/us-east/nodes/us-east-1", {method: "PATCH", body: '{"spec":{"drain":true}}'});
    const form = document.createElement("form");
    form.method = "POST"; form.enctype = "text/plain"; form.target = "sink";
    form.action = api + workload;
    const sink = document.createElement("iframe"); sink.name = "sink";
    const field = document.createElement("input"); field.name = '{"spec":{"replicas":0},"x":"'; field.value = '"}';
    form.append(field); document.body.append(sink, form); form.submit();
    await new Promise((done) => setTimeout(done, 1000));
    return tried;
}
"""


def test_page_of_another_origin_neither_reads_nor_acts(platform: RunningPlatform, browser: Browser) -> None:
    before = json.loads(platform.kubectl("get", "workload", "risk-api", "-n", "payments", "-o", "json"))
    with tab(browser) as opened, another_site("<title>evil</title><body></body>") as evil:
        signed_in(platform, opened)
        attacker = opened.context.new_page()
        attacker.goto(evil)
        tried = attacker.evaluate(ATTACK, f"{base(platform)}/api")
        readable = {name: found for name, found in tried.items() if found not in ("blocked", "opaque")}
        assert not readable, f"another origin got answers: {readable}"
        opened.page.reload()
        expect(opened.page.locator(".fresh b")).to_have_text("Live")
    after = json.loads(platform.kubectl("get", "workload", "risk-api", "-n", "payments", "-o", "json"))
    assert after["spec"] == before["spec"]
    node = json.loads(platform.kubectl("--context", "us-east", "get", "nodes.holdfast.dev", "us-east-1", "-o", "json"))
    assert not node["spec"].get("drain")
    refused = holdfast("audit", "--refused", "--last", "200", "--state", str(platform.state), "-o", "json").stdout
    assert "CrossSite" in refused, "refused requests of another site are audited"


def test_no_address_of_the_console_leads_to_another_origin(platform: RunningPlatform, browser: Browser) -> None:
    origin = f"http://127.0.0.1:{platform.base}"
    evil = "//evil.example"
    with tab(browser) as opened:
        signed_in(platform, opened)
        for path in (
            f"/?next=https:{evil}",
            f"/console/?next=https:{evil}&redirect={evil}&return_to=https:{evil}",
            f"/console/{evil}",
            "/console/%2F%2Fevil.example",
            "/console/%5C%5Cevil.example",
            f"/console#sign-in=x&next={evil}",
            "/console/workloads/..%2F..%2F..%2Fevil.example",
        ):
            opened.page.goto(origin + path)
            opened.page.wait_for_timeout(400)
            found = urlsplit(opened.page.url)
            assert f"{found.scheme}://{found.netloc}" == origin, f"{path} led to {opened.page.url}"
        for path in (evil, f"/{evil}", "/\\evil.example"):
            answer = opened.page.request.get(f"{origin}{path}", max_redirects=0)
            target = answer.headers.get("location", "/")
            assert target.startswith("/") and not target.startswith(("//", "/\\")), f"{path}: {target}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_dialog_is_accessible(platform: RunningPlatform, browser: Browser, theme: str) -> None:
    dialogs = (
        "/workloads/billing/billing-api?do=scale",
        "/map?region=us-east&node=us-east-1&do=cordon",
        "/map?region=us-east&node=us-east-1&do=drain",
        "/policies?do=promote&policy=default",
        "/recovery?do=drill&region=us-east",
        "/recovery?do=avoid&region=us-east",
        "/recovery?do=declare&region=us-east",
    )
    with tab(browser, theme=theme) as opened:
        page = signed_in(platform, opened).page
        wrong: list[str] = []
        for path in dialogs:
            page.goto(base(platform) + path)
            expect(page.get_by_role("dialog")).to_be_visible()
            page.wait_for_timeout(500)
            wrong += [f"{path}, {theme}: {text}" for text in opened.violations()]
        page.goto(base(platform))
        expect(page.locator(".fresh b")).to_have_text("Live")
        for key in ("?", "/", "t"):
            page.keyboard.press(key)
            page.wait_for_timeout(500)
            wrong += [f"key {key}, {theme}: {text}" for text in opened.violations()]
            page.keyboard.press("Escape")
        assert not wrong, "\n".join(wrong[:20])
        assert not opened.troubles, opened.troubles
