"""Every page and every action of the console has a browser test: one that is added without a test fails here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.e2e.test_console import DETAIL_PAGES, PAGES
from tests.platforms import ROOT

from holdfast.console import pages

SOURCES = ROOT / "console" / "src"
BROWSER_TESTS = sorted((ROOT / "tests" / "e2e").glob("test_console*.py"))
PARTS_OF_PAGES = {"nav", "node", "search"}
"""Read by other pages: the counts of the navigation, the panel of a node, the palette."""


def test_every_action_is_carried_out_by_a_browser_test() -> None:
    found = re.search(r"ACTIONS = \[(.*?)\] as const", (SOURCES / "lib" / "actions.ts").read_text(), re.DOTALL)
    assert found, "the list of actions is not in console/src/lib/actions.ts"
    actions = set(re.findall(r'"([a-z-]+)"', found[1]))
    tested = {name for path in BROWSER_TESTS for name in _confirmed(path)}
    assert len(actions) > 10
    assert actions - tested == set(), "actions without a browser test that confirms them (tests/console_pages.confirm)"
    assert tested - actions == set(), "tested actions that the console does not have"


def _confirmed(path: Path) -> set[str]:
    """The actions that the tests of this file carry out: the second argument of each call of `confirm`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "confirm"]
    return {str(argument.value) for call in named for argument in call.args[1:2] if isinstance(argument, ast.Constant)}


def test_no_action_bypasses_the_dialog() -> None:
    """A request that changes something is sent by the dialog of actions, a sign-in, or what changes no object."""
    senders = {
        str(path.relative_to(SOURCES))
        for path in (*SOURCES.rglob("*.ts"), *SOURCES.rglob("*.svelte"))
        if re.search(r'method: "(POST|PUT|PATCH|DELETE)"|WebSocket\(', path.read_text())
    }
    assert senders == {
        "components/Drills.svelte",  # an action of the dialog
        "components/Shell.svelte",  # a session, with tests of its own
        "lib/actions.ts",
        "lib/session.svelte.ts",  # signing in and out
        "pages/WhatIf.svelte",  # a question
    }


def test_every_key_is_pressed_by_a_browser_test() -> None:
    """The keys that the console handles; "Escape" also closes dialogs, which the browser does by itself."""
    handled = set(re.findall(r'case "([^"]+)":', (SOURCES / "App.svelte").read_text()))
    assert len(handled) > 10
    assert handled - {key for path in BROWSER_TESTS for key in _pressed(path)} == set()


def _pressed(path: Path) -> set[str]:
    """The keys that the tests of this file press by name."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    pressed = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "press"]
    return {str(argument.value) for call in pressed for argument in call.args if isinstance(argument, ast.Constant)}


def test_every_page_is_opened_by_the_browser_tests() -> None:
    opened = {_route(path) for path in (*PAGES.values(), *DETAIL_PAGES.values())}
    app = (SOURCES / "App.svelte").read_text()
    routes = {
        (root, int(depth or (1 if root else 0)))
        for root, depth in re.findall(r'root === "([a-z-]*)"(?: && parts\.length === (\d))?\}', app)
    }
    entries = {_route(path) for path in re.findall(r'path: "([^"]+)"', (SOURCES / "lib" / "navigation.ts").read_text())}
    assert len(routes) > 15 and entries <= routes
    assert routes - opened == set(), "pages that no browser test opens (tests/e2e/test_console.py, PAGES)"
    named = set(PAGES) | set(DETAIL_PAGES) | PARTS_OF_PAGES
    assert set(pages.PAGES) - named == set(), "pages of the read API that no browser test opens"


def _route(path: str) -> tuple[str, int]:
    parts = [part for part in path.partition("?")[0].split("/") if part]
    return (parts[0] if parts else "", len(parts))
