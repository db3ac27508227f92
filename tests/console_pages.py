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
    return {"regions": [], "maps": maps, "nodes": nodes, "resource": "cpu", "overrides": []}
