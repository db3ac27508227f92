"""One page of the documentation: Markdown to HTML, with anchors, checked links, coloured code and diagrams.

The result holds no inline script or style, so that the site works under the console's content security policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from site_diagrams import svg

# Longest text of one section in the search index. Its end is not searched.
SEARCHED_CHARACTERS = 1200
# Longest text of a table row there.
ROW_CHARACTERS = 160
HIGHLIGHTED = {"sh": "bash", "bash": "bash", "yaml": "yaml", "python": "python", "toml": "toml", "json": "json"}
# A longer name in a table may be broken after a separator, a still longer one also before a capital letter.
LONG_NAME_CHARACTERS = 16
VERY_LONG_NAME_CHARACTERS = 18
CODE_FOLDERS = ("src/", "examples/")
"""Folders whose files the site has as text, if a page links to them. Tests are left out: they are twice as much."""
_CELL = re.compile(r"<td>.*?</td>", re.DOTALL)
_NAME = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
# An entity such as &amp; stays whole.
_SEPARATOR = re.compile(r"(?<=[./_:=?,])(?=[^\s./_:=?,])")
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_formatter = HtmlFormatter(nowrap=True, classprefix="c-")


class Heading(msgspec.Struct, frozen=True):
    level: int
    title: str
    anchor: str


class Section(msgspec.Struct, frozen=True):
    """The text below one heading, for the search."""

    heading: str
    anchor: str
    text: str


class RenderedPage(msgspec.Struct, frozen=True):
    title: str
    summary: str
    body: str
    headings: tuple[Heading, ...]
    sections: tuple[Section, ...]
    links: tuple[tuple[str, str], ...]
    """Links to other pages: source path below the root of the tree, and anchor."""
    sources: tuple[str, ...]
    """Files of code that it links to, which the site has as text."""
    pictures: tuple[str, ...]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def code_name(source: str) -> str:
    """The file of the site for a file of code. The folders are in its name, because a cell serves few levels."""
    return f"code/{source.replace('/', '.')}.txt"


class PageRenderer:
    """Renders pages of one tree. `output_name` maps a source path to the file of the site, or None outside the site."""

    def __init__(self, root: Path, output_name: Callable[[str], str | None]) -> None:
        self._root = root
        self._output_name = output_name
        self._sources: dict[str, None] = {}
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table")

    def render(self, source: str) -> RenderedPage:
        """Renders one page. `source` is its path below the root of the tree."""
        text = re.sub(r"\A<!--.*?-->\s*", "", (self._root / source).read_text(), flags=re.DOTALL)
        tokens = self._markdown.parse(text)
        headings = _anchored(tokens)
        links: list[tuple[str, str]] = []
        pictures: list[str] = []
        self._sources.clear()
        for token in tokens:
            if token.type == "inline":
                token.children = self._linked(token.children or [], source, links, pictures)
        body = self._body(tokens)
        title = headings[0].title if headings else source
        return RenderedPage(
            title=title,
            summary=_summary(tokens),
            body=body,
            headings=tuple(headings),
            sections=tuple(_sections(tokens)),
            links=tuple(links),
            sources=tuple(self._sources),
            pictures=tuple(pictures),
        )

    def _body(self, tokens: Sequence[Token]) -> str:
        parts: list[str] = []
        pending: list[Token] = []
        tables = 0

        def flush() -> None:
            parts.append(self._markdown.renderer.render(pending, self._markdown.options, {}))
            pending.clear()

        for token in tokens:
            if token.type == "fence":
                flush()
                parts.append(_fence(token))
            elif token.type == "code_block":
                flush()
                parts.append(_plain_block(token.content))
            elif token.type == "table_open":
                flush()
                tables += 1
                parts.append(f'<div class="wide" role="region" aria-label="Table {tables}" tabindex="0"><table>\n')
            elif token.type == "table_close":
                flush()
                parts.append("</table></div>\n")
            else:
                pending.append(token)
                if token.type == "heading_close":
                    flush()
        flush()
        # Alignment is the only inline style that Markdown tables make.
        return _breakable(re.sub(r' style="text-align:\w+"', "", "".join(parts)))

    def _linked(
        self, tokens: Sequence[Token], source: str, links: list[tuple[str, str]], pictures: list[str]
    ) -> list[Token]:
        """The tokens of a line with links of the site. A link to a file outside of it becomes its path."""
        result: list[Token] = []
        closing: list[str] = []
        for token in tokens:
            if token.type == "image":
                result += self._picture(token, source, pictures)
                continue
            elif token.type == "link_open":
                closing.append(self._open_link(token, source, links, pictures, result))
                continue
            elif token.type == "link_close":
                shown = closing.pop()
                if shown:
                    if shown == "-":
                        result.append(token)
                    elif result[-1].content != shown:
                        result.append(_text_token(f" ({shown})"))
                    continue
            result.append(token)
        return result

    def _picture(self, token: Token, source: str, pictures: list[str]) -> list[Token]:
        """The picture. One of the light theme that exists in dark too follows the reader's system."""
        target = self._target(source, str(token.attrGet("src")))
        pictures.append(target)
        token.attrSet("src", self._relative(source, f"pictures/{Path(target).name}"))
        token.attrSet("loading", "lazy")
        dark = target.replace("-light.png", "-dark.png")
        if dark == target or not (self._root / dark).is_file():
            return [token]
        pictures.append(dark)
        shown = self._relative(source, f"pictures/{Path(dark).name}")
        opening = f'<picture><source srcset="{shown}" media="(prefers-color-scheme: dark)">'
        return [_html_token(opening), token, _html_token("</picture>")]

    def _open_link(
        self, token: Token, source: str, links: list[tuple[str, str]], pictures: list[str], result: list[Token]
    ) -> str:
        """Opens the link. Returns the path to show instead, `-` for an ordinary link."""
        path, _, anchor = str(token.attrGet("href")).partition("#")
        if "://" in path or path.startswith("mailto:"):
            result.append(token)
            return "-"
        target = self._target(source, path) if path else source
        name = self._output_name(target)
        if target.startswith("docs/pictures/"):
            pictures.append(target)
            token.attrSet("href", self._relative(source, f"pictures/{Path(target).name}"))
            result.append(token)
            return "-"
        if name is None and target.startswith(CODE_FOLDERS) and (self._root / target).is_file():
            self._sources[target] = None
            token.attrSet("href", self._relative(source, code_name(target)))
            result.append(token)
            return "-"
        if name is None:
            if not (self._root / target).exists():
                links.append((target, anchor))
            return target
        links.append((target, anchor))
        token.attrSet("href", self._relative(source, name) + (f"#{anchor}" if anchor else ""))
        result.append(token)
        return "-"

    def _target(self, source: str, path: str) -> str:
        target = os.path.normpath((Path(source).parent / path).as_posix())
        return f"{target}/README.md" if (self._root / target / "README.md").is_file() else target

    def _relative(self, source: str, name: str) -> str:
        here = self._output_name(source)
        assert here is not None
        return os.path.relpath(name, Path(here).parent or ".")


def _breakable(body: str) -> str:
    """Lets the browser break long names in tables after a dot, a slash and so on, so that every column has room."""
    return _CELL.sub(lambda cell: _NAME.sub(_with_breaks, cell[0]), body)


def _with_breaks(name: re.Match[str]) -> str:
    words = _WORD.sub("<wbr>", name[0]) if len(name[0]) > VERY_LONG_NAME_CHARACTERS else name[0]
    return _SEPARATOR.sub("<wbr>", words) if len(name[0]) > LONG_NAME_CHARACTERS else words


def _html_token(html: str) -> Token:
    """HTML that this module made. HTML in a page is text."""
    return Token("html_inline", "", 0, content=html)


def _text_token(text: str) -> Token:
    return Token("text", "", 0, content=text)


def _anchored(tokens: Sequence[Token]) -> list[Heading]:
    """Gives every heading its anchor. A repeated heading gets a number, as on GitHub."""
    found: list[Heading] = []
    seen: dict[str, int] = {}
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            title = _plain(tokens[at + 1])
            anchor = slug(title)
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            anchor = f"{anchor}-{count}" if count else anchor
            token.attrSet("id", anchor)
            found.append(Heading(int(token.tag[1]), title, anchor))
    return found


def _plain(inline: Token) -> str:
    return "".join(child.content if child.type != "softbreak" else " " for child in inline.children or [])


def _summary(tokens: Sequence[Token]) -> str:
    for at, token in enumerate(tokens):
        if token.type == "paragraph_open" and token.level == 0:
            return " ".join(_plain(tokens[at + 1]).split())[:200]
    return ""


def _sections(tokens: Sequence[Token]) -> list[Section]:
    """What the search finds. A table row that begins with a name in code font is found by that name."""
    found: list[Section] = []
    heading, anchor, words = "", "", list[str]()
    row: list[Token] | None = None
    in_heading = False

    def close() -> None:
        text = " ".join(" ".join(words).split())[:SEARCHED_CHARACTERS]
        if heading:
            found.append(Section(heading, anchor, text))
        words.clear()

    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            close()
            heading, anchor, in_heading = _plain(tokens[at + 1]), str(token.attrGet("id")), True
        elif token.type == "heading_close":
            in_heading = False
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            text = " ".join(" ".join(map(_plain, row)).split())
            named = [child for child in row[0].children or [] if child.content.strip()] if row else []
            if len(named) == 1 and named[0].type == "code_inline":
                found.append(Section(named[0].content, anchor, text[len(named[0].content) :].strip()[:ROW_CHARACTERS]))
            else:
                words.append(text)
            row = None
        elif token.type == "inline" and not in_heading:
            if row is not None:
                row.append(token)
            else:
                words.append(_plain(token))
        elif token.type == "fence" and not token.info.startswith("diagram"):
            words.append(token.content)
    close()
    return found


def _fence(token: Token) -> str:
    language, _, rest = token.info.strip().partition(" ")
    if language == "diagram":
        caption = _escape(rest)
        return f"<figure>{svg(token.content, rest or 'diagram')}<figcaption>{caption}</figcaption></figure>\n"
    if language in HIGHLIGHTED:
        code = highlight(token.content, get_lexer_by_name(HIGHLIGHTED[language]), _formatter)
        kind = ' class="command"' if language == "sh" else ""
        return f'<pre{kind} tabindex="0"><code>{code}</code></pre>\n'
    return _plain_block(token.content)


def _plain_block(text: str) -> str:
    """A block that can be scrolled with the keyboard."""
    return f'<pre tabindex="0"><code>{_escape(text)}</code></pre>\n'


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
