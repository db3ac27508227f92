"""The documentation site in a real browser, under the headers with which the cell serves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import build_site
import pytest
from playwright.sync_api import Browser, expect
from tests.browser import chromium, tab

from holdfast import __version__
from holdfast.server.console_assets import SECURITY_HEADERS

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(180)]

PAGES = (
    "index.html",
    "tour.html",
    "concepts/cells.html",
    "reference/kinds/workload.html",
    "compare.html",
    "reasons.html",
    "design.html",
    "failures.html",
    "reference/kinds/maintenancewindow.html",
    "reference/kinds/clusterrole.html",
    "reference/kinds/schedulerpolicy.html",
    "reference/alerts.html",
    "reference/http-api.html",
    "threat-model.html",
)


class SecuredHandler(SimpleHTTPRequestHandler):
    """Static files with the headers of the cell."""

    def end_headers(self) -> None:
        for name, value in SECURITY_HEADERS:
            self.send_header(name.decode(), value.decode())
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test's own output matters."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    out = tmp_path_factory.mktemp("site")
    (out / "0.0.9").mkdir()
    (out / "0.0.9" / "index.html").write_text("<!doctype html><title>0.0.9</title>")
    build_site.write_site(build_site.read_site(), out)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SecuredHandler, directory=str(out)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{__version__}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible_and_violate_no_policy(url: str, browser: Browser, theme: str) -> None:
    with tab(browser, theme=theme) as opened:
        for page in PAGES:
            opened.page.goto(url + page)
            assert opened.violations() == [], page
        assert opened.troubles == []


def test_search_finds_a_reason_and_opens_its_page(url: str, browser: Browser) -> None:
    with tab(browser) as opened:
        opened.page.goto(url + "reference/kinds/quota.html")
        opened.page.keyboard.press("/")
        opened.page.keyboard.type("why a replica waits")
        expect(opened.page.locator("#results a").first).to_contain_text("Find out why a replica waits")
        opened.page.keyboard.press("Enter")
        opened.page.wait_for_url("**/tutorials/why-it-waits.html*")
        opened.page.keyboard.press("/")
        opened.page.keyboard.type("<img src=x onerror=alert(1)>")
        expect(opened.page.locator("#results")).to_contain_text("Nothing found.")
        assert opened.troubles == []


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("deploy service image", "tutorials/deploy.html"),
        ("why replica waits", "tutorials/why-it-waits.html"),
        ("lost region objective held", "tutorials/lose-a-region.html"),
        ("join node", "tutorials/join-a-node.html"),
        ("policy gpu nodes", "tutorials/policy.html"),
        ("fencing code", "concepts/fencing.html"),
        ("QuotaExceeded", "reasons.html"),
        ("spec.recovery", "reference/kinds/workload.html"),
    ],
)
def test_new_users_question_leads_to_the_page_that_answers_it(
    url: str, browser: Browser, question: str, page: str
) -> None:
    with tab(browser) as opened:
        opened.page.goto(url + "index.html")
        opened.page.locator("#search").fill(question)
        shown = opened.page.locator("#results a")
        expect(shown.first).to_be_visible()
        targets = [link.get_attribute("href") or "" for link in shown.all()[:5]]
        assert any(target.startswith(page) for target in targets), targets


def test_other_versions_are_offered(url: str, browser: Browser) -> None:
    with tab(browser) as opened:
        opened.page.goto(url + "tour.html")
        assert opened.page.locator("#version option").all_text_contents() == [__version__, "0.0.9"]
        opened.page.locator("#version").select_option("0.0.9")
        opened.page.wait_for_url("**/0.0.9/index.html")


def test_narrow_page_does_not_scroll_sideways(url: str, browser: Browser) -> None:
    with tab(browser, width=390, height=800) as opened:
        for page in PAGES:
            opened.page.goto(url + page)
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390, page


@pytest.mark.parametrize("width", [390, 1280])
def test_no_table_is_cut_off(url: str, browser: Browser, width: int) -> None:
    """Long names break where a reader expects it, so that every column fits."""
    cut = "[...document.querySelectorAll('.wide')].filter((table) => table.scrollWidth > table.clientWidth + 1).length"
    with tab(browser, width=width, height=800) as opened:
        for page in PAGES:
            opened.page.goto(url + page)
            assert opened.page.evaluate(cut) == 0, page


def test_navigation_shows_the_place_of_a_page_at_its_end(url: str, browser: Browser) -> None:
    with tab(browser, width=1280, height=500) as opened:
        opened.page.goto(url + "reference/drill-reports.html")
        expect(opened.page.locator("nav.pages [aria-current]")).to_be_in_viewport()


def test_pictures_follow_the_theme_of_the_reader(url: str, browser: Browser) -> None:
    for theme in ("light", "dark"):
        with tab(browser, theme=theme) as opened:
            opened.page.goto(url + "index.html")
            picture = opened.page.locator("main img").first
            picture.scroll_into_view_if_needed()
            expect(picture).to_have_js_property("complete", True)
            assert picture.evaluate("image => image.currentSrc").endswith(f"-{theme}.png")


def test_list_of_headings_marks_the_one_that_is_read(url: str, browser: Browser) -> None:
    with tab(browser) as opened:
        opened.page.goto(url + "tour.html#lose-the-region")
        expect(opened.page.locator("nav.contents a[aria-current]")).to_have_text("Lose the region")


def test_narrow_page_shows_every_cell_of_a_table_with_its_column(url: str, browser: Browser) -> None:
    with tab(browser, width=390, height=800) as opened:
        for page in ("reference/kinds/workload.html", "reasons.html", "compare.html"):
            opened.page.goto(url + page)
            assert opened.violations() == [], page
            table = opened.page.locator(".wide table").last
            columns = table.locator("th").all_text_contents()
            cells = table.locator("tbody tr").first.locator("td").all()
            assert [cell.get_attribute("data-column") for cell in cells[1:]] == columns[1:]
            for cell in cells:
                box = cell.bounding_box()
                assert box is None or box["x"] + box["width"] <= 390, page
        assert opened.troubles == []


def test_narrow_page_shows_its_version(url: str, browser: Browser) -> None:
    with tab(browser, width=390, height=800) as opened:
        opened.page.goto(url + "index.html")
        expect(opened.page.locator("#version")).to_be_visible()
