"""Opening pages of the console of a running platform, for tests in a real browser.

`HOLDFAST_SCREENSHOTS=FOLDER` keeps a picture of every page.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from tests.browser import Tab
from tests.platforms import RunningPlatform, holdfast

RESOURCES = ("cpu", "memory", "gpu")


def link(platform: RunningPlatform) -> str:
    return holdfast("console", "--state", str(platform.state)).stdout.strip()


def base(platform: RunningPlatform) -> str:
    return f"http://127.0.0.1:{platform.base}/console"


def signed_in(platform: RunningPlatform, opened: Tab, path: str = "") -> Tab:
    opened.page.goto(link(platform))
    expect(opened.page.locator(".fresh b")).to_have_text("Live")
    if path:
        opened.page.goto(base(platform) + path)
    expect(opened.page.locator("main h1")).to_be_visible()
    return opened


def keep_picture(opened: Tab, name: str) -> None:
    folder = os.environ.get("HOLDFAST_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        opened.page.wait_for_timeout(600)
        opened.page.screenshot(path=Path(folder) / f"{name}.png")


def confirm(opened: Tab, action: str, *, typed: str = "") -> None:
    """Carries out the open action after its dry run. `typed` is the name that must be typed first.

    `action` is its name in `console/src/lib/actions.ts`: `tests/console/test_console_coverage.py` reads these calls.
    """
    dialog = opened.page.locator(f'dialog[data-action="{action}"]')
    expect(dialog.locator(".diff span").first).to_be_visible()
    button = dialog.locator("footer .primary")
    if typed:
        expect(button).to_be_disabled()
        dialog.get_by_label("to confirm").fill(typed)
    button.click()
    expect(dialog).to_have_count(0)


def forged(page: Page, method: str, path: str, body: Any = None) -> int:
    """The status of a request that the page does not offer, sent with its session."""
    status: int = page.evaluate(
        """async ([method, path, body]) => (await fetch(path, {
            method, body: body ? JSON.stringify(body) : undefined,
            headers: {"X-Holdfast-Console": localStorage.getItem("holdfast-console-key"),
                      "Content-Type": "application/merge-patch+json"}})).status""",
        [method, path, body],
    )
    return status


# Fixed work, like that of an interaction: a loop in short pieces, a request that reads one session, and a frame.
_REFERENCE_WORK = """
async () => {
    const headers = {"X-Holdfast-Console": localStorage.getItem("holdfast-console-key")};
    const pieces = [], requests = [], all = [];
    let sum = 0;
    for (let n = 0; n < 9; n++) {
        const began = performance.now();
        for (let k = 0; k < 20; k++) {
            const from = performance.now();
            for (let i = 0; i < 5e5; i++) sum = (sum * 31 + i) | 0;
            pieces.push(performance.now() - from);
            await new Promise((next) => setTimeout(next, 0));
        }
        const from = performance.now();
        await (await fetch("/console/api/session", {headers})).text();
        requests.push(performance.now() - from);
        await new Promise(requestAnimationFrame);
        all.push(performance.now() - began);
    }
    window.referenceSum = sum;
    return {piece: Math.min(...pieces), request: Math.min(...requests), all: all.sort((a, b) => a - b)};
}
"""
_FRAME_MS = 16.7
_TIMER_MS = 5.0
"""A timer of a page takes this long at most on a quiet machine."""


def slowdown(page: Page) -> float:
    """How much longer fixed work takes now than on a quiet machine: its median over the sum of its parts when nothing
    interrupts them. It is 1 on a quiet machine, so a bound that is multiplied by it stays the bound there."""
    found = page.evaluate(_REFERENCE_WORK)
    quiet_ms = 20 * (found["piece"] + _TIMER_MS) + found["request"] + _FRAME_MS
    median_ms = float(found["all"][len(found["all"]) // 2])
    return max(1.0, median_ms / float(quiet_ms))


def large_map(nodes: int) -> dict[str, Any]:
    """The map of a fleet with this many nodes, as three regions would answer it."""
    maps = {}
    for region in ("eu-central", "eu-west", "us-east"):
        each = nodes // 9 + 1
        zones = [f"{region}-{letter}" for letter in "abc"]
        resources = {
            name: {"total": each * 32000, "allocated": each * 16000, "held": each * 4000} for name in RESOURCES
        }
        maps[region] = {
            "nodes": each * 3,
            "attention": [],
            "zones": [
                {
                    "zone": zone,
                    "prefix": zone,
                    "names": [f"{i:04}" for i in range(each)],
                    "allocated": [i * 37 % 1000 for i in range(each)],
                    "held": [125] * each,
                    "states": "".join("lllllllllx"[i % 10] if i > each - 20 else "l" for i in range(each)),
                    "renewed": [],
                    "replicas": [4] * each,
                }
                for zone in zones
            ],
            "totals": [
                {"zone": zone, "nodes": each, "live": each, "attention": 0, "resources": resources} for zone in zones
            ],
        }
    regions = [{"name": name, "health": "Healthy", "message": "", "problem": "", "zones": []} for name in maps]
    return {"regions": regions, "maps": maps, "nodes": nodes, "resource": "cpu", "overrides": []}
