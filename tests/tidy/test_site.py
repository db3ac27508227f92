"""The documentation site: every page is listed, links lead somewhere, nothing needs a network or inline code."""

from __future__ import annotations

import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import build_site
import pytest
import site_diagrams
from site_markdown import PageRenderer

from holdfast import __version__


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build_site.write_site(build_site.read_site(), out)
    return out


class Elements(HTMLParser):
    """The start tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    assert build_site.problems(build_site.read_site()) == []


def test_build_names_a_broken_link_anchor_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    text = "# A\n\n[one](b.md) [two](#absent) [three](../src/absent.py) ![four](pictures/absent.png) [fine](#a)\n"
    (tmp_path / "docs" / "a.md").write_text(text)
    (tmp_path / "docs" / "unlisted.md").write_text("# Unlisted\n")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    monkeypatch.setattr(build_site, "DOCS", tmp_path / "docs")
    page = PageRenderer(tmp_path, build_site.output_name).render("docs/a.md")
    site = build_site.Site((("Start", ("docs/a.md", "docs/gone.md")),), {"docs/a.md": page})
    assert build_site.problems(site) == [
        "docs/site.toml: docs/gone.md does not exist",
        "docs/a.md: docs/b.md is not a page of the site",
        "docs/a.md: docs/a.md has no heading #absent",
        "docs/a.md: src/absent.py is not a page of the site",
        "docs/a.md: docs/pictures/absent.png does not exist",
        "docs/unlisted.md: not in docs/site.toml",
    ]


def rendered(tmp_path: Path, text: str) -> str:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(text)
    return PageRenderer(tmp_path, build_site.output_name).render("docs/a.md").body


def test_long_name_in_a_table_breaks_after_dots(tmp_path: Path) -> None:
    body = rendered(
        tmp_path,
        "| field | meaning |\n|---|---|\n| `spec.ports[].name` | `a.b` |\n| `S1` | `HoldfastGrantLeasesExpired` |\n",
    )
    assert "<td><code>spec.<wbr>ports[].<wbr>name</code></td>" in body
    assert "<code>a.b</code>" in body
    assert "<code>Holdfast<wbr>Grant<wbr>Leases<wbr>Expired</code>" in body


def test_name_outside_of_a_table_is_not_broken(tmp_path: Path) -> None:
    assert "<code>spec.ports[].containerPort</code>" in rendered(tmp_path, "# A\n\n`spec.ports[].containerPort`\n")


def test_light_picture_has_its_dark_one_and_a_link_to_a_picture_works(tmp_path: Path) -> None:
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    for name in ("a-light", "a-dark", "b-light"):
        (tmp_path / "docs" / "pictures" / f"{name}.png").write_bytes(b"")
    text = "# A\n\n![a](pictures/a-light.png) ![b](pictures/b-light.png) [dark](pictures/a-dark.png)\n"
    (tmp_path / "docs" / "a.md").write_text(text)
    page = PageRenderer(tmp_path, build_site.output_name).render("docs/a.md")
    assert '<picture><source srcset="pictures/a-dark.png" media="(prefers-color-scheme: dark)"><img' in page.body
    assert page.body.count("<picture>") == 1
    assert '<a href="pictures/a-dark.png">dark</a>' in page.body
    assert set(page.pictures) == {"docs/pictures/a-light.png", "docs/pictures/a-dark.png", "docs/pictures/b-light.png"}


def test_link_to_a_file_that_the_site_does_not_have_shows_its_path_once(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "x.py").write_text("")
    (tmp_path / "examples").mkdir()
    body = rendered(tmp_path, "# A\n\n[`tests/x.py`](../tests/x.py), [this](../tests/x.py), [all](../examples)\n")
    assert "<code>tests/x.py</code>, this (tests/x.py), all (examples)" in body


def test_link_to_code_opens_it_as_text(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "b.py").write_text("")
    body = rendered(tmp_path, "# A\n\n[`f`](../src/a/b.py)\n")
    assert '<a href="code/src.a.b.py.txt"><code>f</code></a>' in body


def test_only_newer_code_that_the_site_shows_makes_it_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    shown, other = tree / "src" / "shown.py", tree / "src" / "other.py"
    copy = out / __version__ / "code" / "src.shown.py.txt"
    for path in (shown, other, copy, out / "index.html", *(tree / name for name in build_site.OUTSIDE)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setattr(build_site, "ROOT", tree)
    monkeypatch.setattr(build_site, "DOCS", tree / "docs")
    built = time.time() + 3600
    os.utime(out / "index.html", (built, built))
    os.utime(other, (built + 1, built + 1))
    assert build_site.is_current(out)
    os.utime(shown, (built + 1, built + 1))
    assert not build_site.is_current(out)


def test_code_in_the_site_is_that_of_the_tree(built: Path, root: Path) -> None:
    shown = (built / __version__ / "code" / "src.holdfast.authority.lease_book.py.txt").read_text()
    assert shown == (root / "src/holdfast/authority/lease_book.py").read_text()
    assert (
        'href="../code/src.holdfast.authority.lease_book.py.txt"'
        in (built / __version__ / "concepts" / "fencing.html").read_text()
    )


def test_built_pages_need_no_network_and_no_inline_code(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 50
    for path in pages:
        for tag, attributes in Elements(path.read_text()).found:
            assert "style" not in attributes and not any(name.startswith("on") for name in attributes), path.name
            assert tag != "style", path.name
            if tag == "script":
                assert attributes.get("src"), path.name
            for name in ("src", "href", "srcset"):
                reference = attributes.get(name) or ""
                assert tag == "a" or "://" not in reference, f"{path.name}: {reference}"


def test_references_of_built_pages_are_files_of_the_site(built: Path) -> None:
    broken = []
    for path in built.rglob("*.html"):
        for _, attributes in Elements(path.read_text()).found:
            for reference in (attributes.get(name) or "" for name in ("src", "href", "srcset")):
                file, _, _ = reference.partition("#")
                if file and "://" not in file and not (path.parent / file).is_file():
                    broken.append(f"{path.relative_to(built)} → {reference}")
    assert not broken


def test_site_is_small(built: Path) -> None:
    sizes = {path: path.stat().st_size for path in built.rglob("*") if path.is_file()}
    code = sum(size for path, size in sizes.items() if path.parent.name == "code")
    assert sum(sizes.values()) - code < 10_000_000
    assert code < 1_000_000


def test_versions_built_before_stay_and_are_listed(tmp_path: Path) -> None:
    (tmp_path / "0.0.9").mkdir()
    build_site.write_site(build_site.read_site(), tmp_path)
    assert (tmp_path / "versions.js").read_text() == f'window.holdfastVersions = ["{__version__}", "0.0.9"];\n'
    assert f"url={__version__}/index.html" in (tmp_path / "index.html").read_text()


def test_every_concept_opens_with_a_diagram(root: Path) -> None:
    pages = dict(build_site.navigation())["Concepts"]
    late = [page for page in pages if "```diagram " not in (root / page).read_text().partition("\n## ")[0]]
    assert not late


def test_diagram_keeps_every_word_and_draws_boxes_and_arrows() -> None:
    drawn = site_diagrams.svg("┌───┐\n│ a │──▶ b & c\n└───┘", "label")
    assert re.findall(r">([^<>]+)</text>", drawn) == ["a", "b &amp; c"]
    assert (drawn.count("<rect"), drawn.count("<polygon")) == (1, 1)
    assert "style=" not in drawn


@pytest.mark.parametrize(
    ("first", "titles"),
    [("agent", ["agent"]), ("authority: one writer", ["authority:"]), ("Replica and", []), ("work runs,", [])],
)
def test_title_of_a_box_is_its_first_line_unless_the_next_continues_it(first: str, titles: list[str]) -> None:
    line = "─" * (len(first) + 2)
    drawn = site_diagrams.svg(
        f"┌{line}┐\n│ {first} │\n│ x{' ' * len(first)} │\n└{line}┘".replace("x ", "x", 1), "label"
    )
    assert re.findall(r'class="title"[^>]*>([^<]+)<', drawn) == titles


def test_diagrams_have_captions_and_closed_boxes(root: Path) -> None:
    wrong = []
    for page in (root / "docs").rglob("*.md"):
        for caption, text in re.findall(r"^```diagram(.*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            rows = text.split("\n")
            corners = sum(row.count("┌") for row in rows)
            grid = [row.ljust(max(map(len, rows))) for row in rows]
            if not caption.strip() or corners != len(site_diagrams._boxes(grid)):
                wrong.append(f"{page.relative_to(root)}: {caption.strip()[:40]} {corners}")
    assert not wrong
