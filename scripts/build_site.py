"""Builds the documentation site from docs/: static pages, a search and a list of versions. Needs no network.

    python scripts/build_site.py                 into the package, where the cell serves it at /docs
    python scripts/build_site.py --out DIR       into a directory that keeps the versions built there before
    python scripts/build_site.py --if-changed    only if a page is newer than the site in the package
    python scripts/build_site.py --check         checks pages, links and anchors; writes nothing

docs/site.toml lists the pages. A page that it does not list, and a link or anchor that leads nowhere, fails the build.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tomllib
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
from site_markdown import CODE_FOLDERS, PageRenderer, RenderedPage, code_name

from holdfast import __version__

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGED = ROOT / "src" / "holdfast" / "console" / "docs"
MARK = (
    '<svg class="mark" viewBox="0 0 24 24" width="24" height="24" aria-hidden="true">'
    '<rect x="1" y="1" width="22" height="22" rx="6"/>'
    '<path d="M7 6v12M17 6v12M7 12h10"/></svg>'
)
TOP = (
    ("Tour", "", "tour.html"),
    ("Tutorials", "Tutorials", "tutorials/deploy.html"),
    ("Concepts", "Concepts", "concepts/cells.html"),
    ("How-to", "How-to", "how-to/operate.html"),
    ("Reference", "Reference", "kinds.html"),
    ("Design", "Design", "design.html"),
)
"""Links at the top of every page: text, section that it stands for, page."""
OUTSIDE = {"CHANGELOG.md": "changelog.html", "CONTRIBUTING.md": "contributing.html"}
THEME = DOCS / "site"
SECTION_LISTED_WHOLE_MAX = 40
"""The navigation shows of a longer section the first page, and on its own pages the neighbours of the page."""
NEIGHBOURS_LISTED = 10
"""Pages before and after a page of a long section that its navigation lists. The first page lists all of them."""


class NavigationSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the navigation. `pages` are paths below docs/; `*` stands for all files of a folder."""

    title: str
    pages: tuple[str, ...]


class Site(msgspec.Struct, frozen=True):
    sections: tuple[tuple[str, tuple[str, ...]], ...]
    """Titles with the sources of their pages, as paths below the root of the tree."""
    pages: dict[str, RenderedPage]


def output_name(source: str) -> str | None:
    if source in OUTSIDE:
        return OUTSIDE[source]
    if source.startswith("docs/") and source.endswith(".md"):
        return source.removeprefix("docs/").removesuffix(".md").replace("README", "index") + ".html"
    return None


def navigation() -> list[tuple[str, tuple[str, ...]]]:
    listed = msgspec.convert(tomllib.loads((DOCS / "site.toml").read_text())["section"], list[NavigationSection])
    return [(section.title, tuple(s for page in section.pages for s in _expanded(page))) for section in listed]


def _expanded(page: str) -> list[str]:
    if "*" in page:
        return sorted(path.relative_to(ROOT).as_posix() for path in DOCS.glob(page))
    return [(DOCS / page).resolve().relative_to(ROOT).as_posix()]


def read_site() -> Site:
    sections = navigation()
    renderer = PageRenderer(ROOT, output_name)
    listed = [source for _, pages in sections for source in pages]
    return Site(tuple(sections), {source: renderer.render(source) for source in listed if (ROOT / source).is_file()})


def problems(site: Site) -> list[str]:
    """Everything that leads nowhere: links, anchors, pictures; and pages that no section lists."""
    listed = [source for _, pages in site.sections for source in pages]
    found = [f"docs/site.toml: {source} does not exist" for source in listed if source not in site.pages]
    found += [f"docs/site.toml: {source} is listed twice" for source in set(listed) if listed.count(source) > 1]
    for source, page in site.pages.items():
        for target, anchor in page.links:
            if target not in site.pages:
                found.append(f"{source}: {target} is not a page of the site")
            elif anchor and anchor not in {heading.anchor for heading in site.pages[target].headings}:
                found.append(f"{source}: {target} has no heading #{anchor}")
        found += [f"{source}: {picture} does not exist" for picture in page.pictures if not (ROOT / picture).is_file()]
    every = {path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")}
    found += [f"{source}: not in docs/site.toml" for source in sorted(every - site.pages.keys())]
    return found


def write_site(site: Site, out: Path) -> None:
    """Writes this version below `out`, and the list of all versions there."""
    target = out / __version__
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    order = [source for _, pages in site.sections for source in pages]
    for at, source in enumerate(order):
        name = output_name(source)
        assert name is not None
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = order[at - 1] if at else None
        after = order[at + 1] if at + 1 < len(order) else None
        path.write_text(_document(site, source, before, after))
    (target / "pictures").mkdir(exist_ok=True)
    for picture in sorted({picture for page in site.pages.values() for picture in page.pictures}):
        shutil.copy(ROOT / picture, target / "pictures" / Path(picture).name)
    (target / "code").mkdir(exist_ok=True)
    for source in sorted({source for page in site.pages.values() for source in page.sources}):
        shutil.copyfile(ROOT / source, target / code_name(source))
    for file in ("site.css", "site.js"):
        shutil.copy(THEME / file, target / file)
    (target / "search.js").write_text(f"window.holdfastSearch = {json.dumps(_index(site), ensure_ascii=False)};\n")
    _write_versions(out)


def _write_versions(out: Path) -> None:
    versions = sorted((path.name for path in out.iterdir() if path.is_dir()), key=_version_key, reverse=True)
    (out / "versions.js").write_text(f"window.holdfastVersions = {json.dumps(versions)};\n")
    (out / "index.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
        f'<p><a href="{versions[0]}/index.html">Holdfast {versions[0]}</a></p></html>\n'
    )


def _version_key(name: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in name.split("."))


def _index(site: Site) -> list[list[str]]:
    """Rows of the search: file, page title, heading, text."""
    rows = []
    for source, page in site.pages.items():
        for section in page.sections:
            rows.append([f"{output_name(source)}#{section.anchor}", page.title, section.heading, section.text])
    return rows


# HTML ---------------------------------------------------------------------------------------------------------------


def _document(site: Site, source: str, before: str | None, after: str | None) -> str:
    page = site.pages[source]
    name = output_name(source)
    assert name is not None
    up = "../" * name.count("/")
    title = page.title if name == "index.html" else f"{page.title} · Holdfast"
    section = next(title for title, pages in site.sections if source in pages)
    around = _neighbour(site, before, up, "Previous") + _neighbour(site, after, up, "Next")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="{escape(page.summary)}">
<title>{escape(title)}</title>
<link rel="stylesheet" href="{up}site.css">
<script defer src="{up}../versions.js"></script>
<script defer src="{up}search.js"></script>
<script defer src="{up}site.js"></script>
</head>
<body{' class="home"' if name == "index.html" else ""} data-root="{up}" data-version="{__version__}">
<a class="skip" href="#content">Skip to the text</a>
<header>
<a class="brand" href="{up}index.html">{MARK}Holdfast</a>
<nav class="top" aria-label="Sections">{_top(name, section, up)}</nav>
<div class="search"><input id="search" type="search" placeholder="Search  /" aria-label="Search the documentation"
 autocomplete="off" spellcheck="false"><ol id="results" aria-label="Search results" hidden></ol></div>
<label class="version">Version <select id="version"><option>{__version__}</option></select></label>
</header>
<div class="columns">
<nav class="pages" aria-label="Pages"><details open><summary>Pages</summary>
{_navigation(site, source, up)}
</details></nav>
<main id="content">
<p class="where">{escape(section)}</p>
{page.body}
<nav class="around" aria-label="Neighbours">{around}</nav>
</main>
<nav class="contents" aria-label="On this page">{_contents(page)}</nav>
</div>
</body>
</html>
"""


def _listed(pages: tuple[str, ...], current: str) -> tuple[str, ...]:
    """A long section is not listed whole: repeated on every page it would be half of the site."""
    if len(pages) <= SECTION_LISTED_WHOLE_MAX:
        return pages
    if current not in pages[1:]:
        return pages if current in pages else pages[:1]
    at = pages.index(current)
    return (pages[0], *pages[max(1, at - NEIGHBOURS_LISTED) : at + NEIGHBOURS_LISTED + 1])


def _navigation(site: Site, current: str, up: str) -> str:
    lines = []
    for title, pages in site.sections:
        state = " open" if current in pages else ""
        lines.append(f"<details{state}><summary>{escape(title)}</summary><ul>")
        for source in _listed(pages, current):
            here = ' aria-current="page"' if source == current else ""
            lines.append(f'<li><a href="{up}{output_name(source)}"{here}>{escape(site.pages[source].title)}</a></li>')
        lines.append("</ul></details>")
    return "\n".join(lines)


def _top(name: str, section: str, up: str) -> str:
    links = []
    for text, stands_for, page in TOP:
        here = ' class="here"' if section == stands_for or name == page else ""
        links.append(f'<a href="{up}{page}"{here}>{text}</a>')
    return "".join(links)


def _neighbour(site: Site, source: str | None, up: str, word: str) -> str:
    if source is None:
        return ""
    title = escape(site.pages[source].title)
    return f'<a class="{word.lower()}" href="{up}{output_name(source)}"><span>{word}</span>{title}</a>'


def _contents(page: RenderedPage) -> str:
    rows = [heading for heading in page.headings if heading.level in (2, 3)]
    if len(rows) < 2:
        return ""
    listed = "".join(f'<li class="h{h.level}"><a href="#{h.anchor}">{escape(h.title)}</a></li>' for h in rows)
    return f"<p>On this page</p><ul>{listed}</ul>"


def is_current(out: Path) -> bool:
    """Whether no page, picture, code shown in it or part of the builder is newer than the site."""
    built = out / "index.html"
    files = (path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*"))
    code = [path for path in files if (out / __version__ / code_name(path.relative_to(ROOT).as_posix())).exists()]
    sources = [
        *code,
        *DOCS.rglob("*"),
        *Path(__file__).parent.glob("site_*.py"),
        Path(__file__),
        *map(ROOT.joinpath, OUTSIDE),
    ]
    return built.exists() and all(path.stat().st_mtime <= built.stat().st_mtime for path in sources)


def serve(out: Path, port: int) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(out))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        sys.stderr.write(f"http://127.0.0.1:{port}/\n")
        server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the documentation site.")
    parser.add_argument("--out", type=Path, default=PACKAGED)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--if-changed", action="store_true")
    parser.add_argument("--serve", type=int, default=0, metavar="PORT")
    options = parser.parse_args()
    if options.if_changed and is_current(options.out):
        return 0
    site = read_site()
    found = problems(site)
    for problem in found:
        sys.stderr.write(f"error: {problem}\n")
    if found or options.check:
        return 1 if found else 0
    if options.out == PACKAGED:
        shutil.rmtree(PACKAGED, ignore_errors=True)
    write_site(site, options.out)
    shown = options.out.relative_to(ROOT) if options.out.is_relative_to(ROOT) else options.out
    sys.stderr.write(f"docs: {len(site.pages)} pages in {shown}\n")
    if options.serve:
        serve(options.out, options.serve)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
