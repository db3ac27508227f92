"""What the console costs over time, in a real Chromium on a real platform: memory of a tab, and CPU time of the cells.

`make prove STAGE=console` runs it: an hour of events, and a minute with ten tabs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, CDPSession, expect
from tests.browser import chromium, tab
from tests.console_pages import base, large_map, signed_in
from tests.platforms import RunningPlatform, running_platform

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="measures; make prove STAGE=console runs it"),
]

EVENTS = int(os.environ.get("HOLDFAST_CONSOLE_EVENTS", "300"))
"""A page gets at most one event a second, so 3,600 are an hour. They are sent as fast as the page draws them."""
SECONDS = float(os.environ.get("HOLDFAST_CONSOLE_SECONDS", "10"))
GROWTH_MAX_BYTES = 10 * 2**20
CORE_SHARE_MAX = 0.05

# Answers the stream of the map with changed facts, one event per frame, so that each is drawn. All else is real.
CHURN = """
(data) => {
    const real = window.fetch, beats = new TextEncoder();
    window.churned = 0;
    window.fetch = (input, options) => {
        if (!String(input).includes("/stream?") || !String(input).includes("page=map")) return real(input, options);
        const body = new ReadableStream({
            async pull(controller) {
                await new Promise(requestAnimationFrame);
                const n = window.churned++;
                for (const region of Object.values(data.maps)) for (const zone of region.zones) {
                    zone.allocated = zone.allocated.map((used, i) => (i % 50 === n % 50 ? (used + 137) % 1000 : used));
                    const at = n % zone.states.length;
                    zone.states = zone.states.slice(0, at) + "lcdqx"[n % 5] + zone.states.slice(at + 1);
                }
                const event = {asOf: Date.now() / 1000, revision: n, etag: `e${n}`, data};
                controller.enqueue(beats.encode(`event: page\\nid: e${n}\\ndata: ${JSON.stringify(event)}\\n\\n`));
            },
        }, {highWaterMark: 0});
        return Promise.resolve(new Response(body, {headers: {"content-type": "text/event-stream"}}));
    };
}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("console") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def heap_bytes(session: CDPSession) -> int:
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def test_memory_of_a_tab_is_bounded_over_an_hour_of_events(platform: RunningPlatform, browser: Browser) -> None:
    with tab(browser) as opened:
        page = signed_in(platform, opened).page
        page.evaluate(CHURN, large_map(5000))
        page.locator('nav a[href="/console/map"]').click()
        session = opened.context.new_cdp_session(page)

        def after(events: int) -> int:
            page.wait_for_function("events => window.churned >= events", arg=events, timeout=600_000)
            return heap_bytes(session)

        early, nodes_early = after(EVENTS // 10), page.evaluate("document.querySelectorAll('*').length")
        late, nodes_late = after(EVENTS), page.evaluate("document.querySelectorAll('*').length")
        grown = f"{early / 2**20:.1f} MiB after {EVENTS // 10} events, {late / 2**20:.1f} MiB after {EVENTS}"
        print(f"tab with 5,000 nodes: {grown}; {nodes_early} and {nodes_late} elements")
        assert late - early < GROWTH_MAX_BYTES, grown
        assert nodes_late < nodes_early * 1.5 + 100
        assert not opened.troubles, opened.troubles


def cpu_s(platform: RunningPlatform) -> dict[str, float]:
    """CPU time of each cell since its start."""
    found = {}
    for name in ("cell-global", "cell-us-east", "cell-eu-west", "cell-eu-central"):
        fields = Path(f"/proc/{platform.pid(name)}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def test_ten_tabs_cost_each_cell_less_than_a_twentieth_of_a_core(platform: RunningPlatform, browser: Browser) -> None:
    def spent(seconds: float) -> dict[str, float]:
        before, began = cpu_s(platform), time.monotonic()
        page.wait_for_timeout(seconds * 1000)
        took_s = time.monotonic() - began
        return {name: (after - before[name]) / took_s for name, after in cpu_s(platform).items()}

    paths = ("", "/map", "/workloads", "/pipeline", "/queues", "/recovery", "/quotas", "/overrides", "/system", "/map")
    with tab(browser) as opened:
        page = opened.page
        page.goto("about:blank")
        quiet = spent(SECONDS)
        signed_in(platform, opened)
        others = [opened.context.new_page() for _ in paths[1:]]
        for other, path in zip(others, paths[1:], strict=True):
            other.goto(base(platform) + path)
            expect(other.locator(".fresh b")).to_have_text("Live")
        busy = spent(SECONDS)
    shares = {name: busy[name] - quiet[name] for name in busy}
    text = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
    print(f"ten tabs, in shares of a core beyond the idle platform: {text}")
    assert max(shares.values()) < CORE_SHARE_MAX, text
