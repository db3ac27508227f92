"""Compares the plan of a shadow policy with the real plan, for the Decision.

Pure and without effect: the shadow plan uses the same snapshot and the same requirements, and is discarded afterwards.
"""

from __future__ import annotations

from holdfast.flow.plan.planner import AskPlan
from holdfast.model import limits
from holdfast.model.decision import Shadow, ShadowEntry


def compare(real: AskPlan, would: AskPlan, revision: str) -> Shadow:
    """Compares member by member. A different node or different victims count as different."""
    chosen = {entry.uid: entry for entry in real.entries()}
    same = other = gained = lost = 0
    told: list[ShadowEntry] = []
    for entry in would.entries():
        mine = chosen[entry.uid]
        if (mine.node, mine.victims) == (entry.node, entry.victims):
            same += 1
            continue
        other += 1
        gained += bool(entry.node and not mine.node)
        lost += bool(mine.node and not entry.node)
        if len(told) < limits.SHADOW_ENTRIES:
            told.append(ShadowEntry(replica=entry.replica, node=entry.node, score=entry.score, reason=entry.reason))
    return Shadow(revision=revision, same=same, other=other, gained=gained, lost=lost, entries=tuple(told))
