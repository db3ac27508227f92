"""Diagrams that are drawn from the code: lifecycle, import layers, owners of fields. As text, in box characters."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lifecycle() -> str:
    """The ordinary path of a replica, and for every stage where it is entered from and by whom."""
    from holdfast.model.lifecycle import TRANSITIONS, Stage

    path = [Stage.QUEUED, Stage.BOUND, Stage.STARTING, Stage.RUNNING, Stage.READY, Stage.SERVING]
    steps = {(step.source, step.target): step.owner for step in TRANSITIONS}
    boxes = chain([(stage.value, steps[before, stage]) for before, stage in zip([None, *path], path, strict=False)])
    entered: dict[tuple[str, str], list[str]] = defaultdict(list)
    for step in TRANSITIONS:
        source = step.source.value if step.source is not None else "(new)"
        entered[step.target.value, step.owner].append(source)
    rows = [(target, owner, ", ".join(sources)) for (target, owner), sources in entered.items()]
    wide = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    listed = [f"{t:<{wide[0]}} ◀── {o:<{wide[1]}}  {s}" for t, o, s in rows]
    return boxes + "\n\n" + "\n".join(listed)


def chain(steps: list[tuple[str, str]]) -> str:
    """Boxes from left to right. The arrow into a box carries its owner."""
    top, middle, bottom = "", "", ""
    for name, owner in steps:
        arrow = len(owner) + 3
        top += f"{owner:^{arrow}}┌{'─' * (len(name) + 2)}┐"
        middle += f"{'─' * (arrow - 1)}▶│ {name} │"
        bottom += f"{' ' * arrow}└{'─' * (len(name) + 2)}┘"
    return "\n".join(line.rstrip() for line in (top, middle, bottom))


def layers() -> str:
    """The packages from top to bottom. A package imports only from below."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    rows = [str(layer) for layer in contract["layers"]]
    width = max(len(row) for row in rows) + 4
    lines = [f"┌{'─' * width}┐"]
    for at, row in enumerate(rows):
        cells = "  ".join(part.strip() for part in row.split("|"))
        lines.append(f"│{cells:^{width}}│" + ("  imports" if at == 0 else "     │" if at < len(rows) - 1 else "     ▼"))
        lines.append(f"├{'─' * width}┤     │" if at < len(rows) - 1 else f"└{'─' * width}┘")
    return "\n".join(lines)


def ownership() -> str:
    """For each role the specs and statuses that it alone, or with others, writes."""
    from holdfast.model.kinds import ALL
    from holdfast.model.ownership import OWNERS, owners

    written: dict[str, list[str]] = defaultdict(list)
    for kind in ALL:
        for group in ("spec", "status", *(g for g in OWNERS.get(kind.name, {}) if g.startswith(("spec.", "status.")))):
            for role in sorted(owners(kind.name, group)):
                written[role].append(f"{kind.name}.{group}")
    lines: list[str] = []
    for role, fields in sorted(written.items()):
        shown = _wrapped(fields, 84)
        pad = ["─" * (len(role) + 2), f" {role} ", "─" * (len(role) + 2)]
        box = [f"┌{pad[0]}┐", f"│{pad[1]}│──▶ {shown[0]}", f"└{pad[2]}┘" + (f"    {shown[1]}" if shown[1:] else "")]
        lines += [*box, *(f"{' ' * (len(role) + 8)}{row}" for row in shown[2:])]
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(words: list[str], width: int) -> list[str]:
    rows = [""]
    for word in words:
        if rows[-1] and len(rows[-1]) + len(word) > width:
            rows.append("")
        rows[-1] += (", " if rows[-1] else "") + word
    return rows
