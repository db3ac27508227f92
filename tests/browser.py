"""A real Chromium for tests of the console. Playwright drives it; its own browsers are not used."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect, sync_playwright
from tests.platforms import ROOT
from tests.requirements import skip_or_fail

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
expect.set_options(timeout=15_000)
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        skip_or_fail("chromium is missing; next: as root: apt-get install chromium, or make tools")
    # As root Chromium refuses its sandbox; the pages of these tests are our own.
    flags = [*QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One tab, with everything that went wrong in it: failed scripts, refused loads, dialogs."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        self.page.on("console", self._heard)
        self.page.on("dialog", self._asked)

    def _heard(self, message: Any) -> None:
        # A refused request of the page itself is part of some tests; a violated policy or a warning never is.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.troubles.append(f"{message.type}: {message.text}")

    def _asked(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def violations(self) -> list[str]:
        """What axe finds on the page as it is now."""
        if not AXE.exists():
            skip_or_fail("axe-core is missing; next: scripts/build-console --dev")
        self.page.evaluate(Path(AXE).read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{v['id']}: {node['html'][:160]} ({node['failureSummary'][:200]})"
            for v in found["violations"]
            for node in v["nodes"][:3]
        ]


@contextlib.contextmanager
def tab(browser: Browser, *, width: int = 1280, height: int = 800, theme: Any = "light") -> Iterator[Tab]:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    context.set_default_timeout(15_000)
    try:
        yield Tab(context)
    finally:
        context.close()
