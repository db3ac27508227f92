"""Diagrams that are drawn from the code: lifecycle, import layers, owners of fields. As text, in box characters."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lifecycle() -> str:
    """The ordinary path of a replica, and each other stage with the owners and sources of its transitions."""
    from holdfast.model.lifecycle import TRANSITIONS, Stage

    path = [Stage.QUEUED, Stage.BOUND, Stage.STARTING, Stage.RUNNING, Stage.READY, Stage.SERVING]
    steps = {(step.source, step.target): step.owner for step in TRANSITIONS}
    drawn = [chain([(stage.value, steps[before, stage]) for before, stage in zip([None, *path], path, strict=False)])]
    for stage in (stage for stage in Stage if stage not in path):
        entered: dict[str, list[str]] = defaultdict(list)
        for step in TRANSITIONS:
            if step.target is stage:
                entered[step.owner].append(step.source.value if step.source is not None else "(new)")
        drawn.append(_entered(stage.value, sorted(entered.items())))
    return "\n".join(drawn)


def _entered(stage: str, entered: list[tuple[str, list[str]]]) -> str:
    """A box of one stage with a row for each owner that moves a replica into it."""
    width, owner_width = 11, 11
    rows = [f"◀── {owner:<{owner_width}}  {', '.join(sources)}" for owner, sources in entered]
    names = [stage, *[""] * (len(rows) - 1)]
    lines = [f"│ {name:<{width}} │{row}" for name, row in zip(names, rows, strict=True)]
    return "\n".join([f"┌{'─' * (width + 2)}┐", *lines, f"└{'─' * (width + 2)}┘"])


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
