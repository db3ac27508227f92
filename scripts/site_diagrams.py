"""Diagrams of the documentation: box drawings in the text, drawn as SVG on the site.

A diagram is written with the characters ┌ ─ ┐ │ ├ ┼ ▶ and so on, in a fenced block `diagram`. It can be read as it
stands in the source. The SVG has no inline style and no script; the style sheet gives its colours.
"""

from __future__ import annotations

import re
from collections import defaultdict
from html import escape
from itertools import pairwise

COLUMN, ROW = 8.4, 19.0
# A narrower drawing keeps its size; a wider one may shrink to this width before it scrolls.
SMALL = 544
NORTH, EAST, SOUTH, WEST = (0, -1), (1, 0), (0, 1), (-1, 0)
STROKES: dict[str, tuple[tuple[int, int], ...]] = {
    "─": (EAST, WEST),
    "│": (NORTH, SOUTH),
    "┌": (EAST, SOUTH),
    "┐": (WEST, SOUTH),
    "└": (NORTH, EAST),
    "┘": (NORTH, WEST),
    "├": (NORTH, EAST, SOUTH),
    "┤": (NORTH, WEST, SOUTH),
    "┬": (EAST, WEST, SOUTH),
    "┴": (NORTH, EAST, WEST),
    "┼": (NORTH, EAST, SOUTH, WEST),
    "╌": (EAST, WEST),
    "╎": (NORTH, SOUTH),
}
DASHED = frozenset("╌╎")
HEADS = {"▶": EAST, "◀": WEST, "▲": NORTH, "▼": SOUTH}
TOP, BOTTOM, LEFT, RIGHT = frozenset("─┬┴┼"), frozenset("─┬┴┼"), frozenset("│├┤┼"), frozenset("│├┤┼")
CONTINUES = re.compile(r"[,;]$|\b(?:and|or|in|of|the|a|is|to|from|with)$")
"""The end of a first line that the next line continues: a sentence in a box has no title."""
Box = tuple[int, int, int, int]


def svg(text: str, label: str) -> str:
    """The drawing as an SVG element. `label` describes it to readers who do not see it."""
    rows = text.rstrip("\n").split("\n")
    width = max(len(row) for row in rows)
    grid = [row.ljust(width) for row in rows]
    boxes = _boxes(grid)
    parts = [_rectangle(box, boxes) for box in sorted(boxes, key=_area, reverse=True)]
    outlines = _outlines(boxes)
    parts += [_lines(grid, outlines, dashed=False), _lines(grid, outlines, dashed=True)]
    parts += [_head(x, y, row[x]) for y, row in enumerate(grid) for x in range(width) if row[x] in HEADS]
    parts += [_words(x, y, run, boxes) for y, row in enumerate(grid) for x, run in _runs(row)]
    kind = "diagram small" if width * COLUMN < SMALL else "diagram"
    size = f'viewBox="0 0 {width * COLUMN:.0f} {len(grid) * ROW:.0f}" width="{width * COLUMN:.0f}"'
    return f'<svg class="{kind}" role="img" aria-label="{escape(label)}" {size}>{"".join(parts)}</svg>'


def _area(box: Box) -> int:
    left, top, right, bottom = box
    return (right - left) * (bottom - top)


def _boxes(grid: list[str]) -> list[Box]:
    """Closed rectangles, as left, top, right and bottom."""
    found = []
    for top, row in enumerate(grid):
        for left, character in enumerate(row):
            if character == "┌" and (box := _box_at(grid, left, top)) is not None:
                found.append(box)
    return found


def _box_at(grid: list[str], left: int, top: int) -> Box | None:
    right = left + 1
    while right < len(grid[top]) and grid[top][right] in TOP:
        right += 1
    if right >= len(grid[top]) or grid[top][right] != "┐":
        return None
    bottom = top + 1
    while bottom < len(grid) and grid[bottom][left] in LEFT and grid[bottom][right] in RIGHT:
        bottom += 1
    if bottom >= len(grid) or grid[bottom][left] != "└" or grid[bottom][right] != "┘":
        return None
    if not set(grid[bottom][left + 1 : right]) <= BOTTOM:
        return None
    return left, top, right, bottom


def _middle(x: int, y: int) -> tuple[float, float]:
    return (x + 0.5) * COLUMN, (y + 0.5) * ROW


def _rectangle(box: Box, boxes: list[Box]) -> str:
    """The area of a box. A box inside another has the colour of the page."""
    is_inner = any(o[0] < box[0] and o[1] < box[1] and o[2] > box[2] and o[3] > box[3] for o in boxes)
    kind = ' class="inner"' if is_inner else ""
    (x1, y1), (x2, y2) = _middle(box[0], box[1]), _middle(box[2], box[3])
    return f'<rect{kind} x="{x1:.1f}" y="{y1:.1f}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}" rx="7"/>'


def _outlines(boxes: list[Box]) -> set[tuple[int, int, tuple[int, int]]]:
    """The strokes that the rectangles draw, with their round corners: column, row and direction."""
    found = set()
    for left, top, right, bottom in boxes:
        for y in (top, bottom):
            found |= {(x, y, EAST) for x in range(left, right)} | {(x, y, WEST) for x in range(left + 1, right + 1)}
        for x in (left, right):
            found |= {(x, y, SOUTH) for y in range(top, bottom)} | {(x, y, NORTH) for y in range(top + 1, bottom + 1)}
    return found


def _lines(grid: list[str], outlines: set[tuple[int, int, tuple[int, int]]], *, dashed: bool) -> str:
    """All lines outside of outlines as one path. Strokes that touch are one line."""
    rows: dict[float, list[tuple[float, float]]] = defaultdict(list)
    columns: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for y, row in enumerate(grid):
        for x, character in enumerate(row):
            if character in STROKES and (character in DASHED) == dashed:
                cx, cy = _middle(x, y)
                for dx, dy in STROKES[character]:
                    if (x, y, (dx, dy)) in outlines:
                        continue
                    end = (cx + dx * COLUMN / 2, cy + dy * ROW / 2)
                    if dy == 0:
                        rows[cy].append((min(cx, end[0]), max(cx, end[0])))
                    else:
                        columns[cx].append((min(cy, end[1]), max(cy, end[1])))
    drawn = [f"M{a:.1f} {y:.1f}H{b:.1f}" for y, parts in rows.items() for a, b in _joined(parts)]
    drawn += [f"M{x:.1f} {a:.1f}V{b:.1f}" for x, parts in columns.items() for a, b in _joined(parts)]
    kind = ' class="dashed"' if dashed else ""
    return f'<path{kind} d="{"".join(drawn)}"/>' if drawn else ""


def _joined(parts: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1] + 0.01:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _head(x: int, y: int, character: str) -> str:
    (cx, cy), (dx, dy) = _middle(x, y), HEADS[character]
    half_x, half_y = COLUMN / 2, (ROW / 2 if dx == 0 else COLUMN / 2)
    tip = (cx + dx * half_x, cy + dy * half_y)
    side = 4.5
    back = (cx - dx * half_x, cy + dy * (half_y - 8))
    points = [tip, (back[0] + dy * side, back[1] + dx * side), (back[0] - dy * side, back[1] - dx * side)]
    stem = f"M{cx - dx * half_x:.1f} {cy - dy * half_y:.1f}L{back[0]:.1f} {back[1]:.1f}"
    return f'<path d="{stem}"/><polygon points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in points)}"/>'


def _runs(row: str) -> list[tuple[int, str]]:
    """The texts of a row with their columns. Two spaces, a line or an arrow head end a text."""
    marks = [at for at, c in enumerate(row) if c in STROKES or c in HEADS or row[at : at + 2] == "  "]
    found = []
    for before, after in pairwise([-1, *marks, len(row)]):
        run = row[before + 1 : after]
        if run.strip():
            found.append((before + 1 + len(run) - len(run.lstrip()), run.strip()))
    return found


def _words(x: int, y: int, run: str, boxes: list[Box]) -> str:
    """One text. The first line of a box is its title, of `authority: one writer` the part with the colon."""
    is_first = any(top == y - 1 and left < x < right for left, top, right, _ in boxes)
    is_title = is_first and not CONTINUES.search(run)
    title, colon, rest = run.partition(": ")
    if is_title and colon:
        return _text(x, y, title + ":", is_title=True) + _text(x + len(title) + 2, y, rest, is_title=False)
    return _text(x, y, run, is_title=is_title)


def _text(x: int, y: int, text: str, *, is_title: bool) -> str:
    kind = ' class="title"' if is_title else ""
    attributes = f'x="{x * COLUMN:.1f}" y="{(y + 0.5) * ROW + 4.5:.1f}" textLength="{len(text) * COLUMN:.1f}"'
    return f"<text{kind} {attributes}>{escape(text)}</text>"
