"""What a shadow policy would have decided, compared with the decisions that a region recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.decision import Decision

# Differences that are named; the rest is only counted.
EXAMPLES_MAX = 10


class ShadowResult(msgspec.Struct, frozen=True):
    """Replicas of one region: placed on the same node by both policies, on different ones, or by one of them only."""

    region: str
    decisions: int = 0
    same: int = 0
    different: int = 0
    additional: int = 0
    missing: int = 0
    skipped: int = 0
    """Replicas that were placed in batches that were not compared."""
    examples: tuple[str, ...] = ()


def compare_shadow(region: str, decisions: Iterable[Decision], revision: str) -> ShadowResult:
    """The decisions that were made while this revision was the shadow."""
    found = [d for d in decisions if d.spec.shadow is not None and d.spec.shadow.revision == revision]
    shadows = [d.spec.shadow for d in found if d.spec.shadow is not None]
    return ShadowResult(
        region=region,
        decisions=sum(bool(s.same + s.different) for s in shadows),
        same=sum(s.same for s in shadows),
        different=sum(s.different for s in shadows),
        additional=sum(s.additional for s in shadows),
        missing=sum(s.missing for s in shadows),
        skipped=sum(s.skipped for s in shadows),
        examples=tuple(line for d in found for line in _difference_lines(region, d))[:EXAMPLES_MAX],
    )


def _difference_lines(region: str, decision: Decision) -> list[str]:
    """One line for each replica that the shadow would have placed differently."""
    chosen = {entry.replica: entry.node or "no node" for entry in decision.spec.entries}
    entries = decision.spec.shadow.entries if decision.spec.shadow is not None else ()
    return [
        f"{region}: {decision.metadata.namespace}/{entry.replica}: active {chosen.get(entry.replica, '?')}, "
        f"shadow {entry.node or f'no node ({entry.reason})'}"
        for entry in entries
    ]
