"""Compares the plan of a shadow policy with the real plan, for the Decision.

Pure and without effect: the shadow plan uses the same snapshot and the same requirements, and is discarded afterwards.
"""

from __future__ import annotations

from holdfast.model import limits
from holdfast.model.decision import Shadow, ShadowEntry
from holdfast.scheduling.plan.planner import RequestPlan


def compare_plans(real: RequestPlan, would: RequestPlan, revision: str) -> Shadow:
    """Compares member by member. A different node or different victims count as different."""
    chosen = {entry.uid: entry for entry in real.decision_entries()}
    same = other = gained = lost = 0
    told: list[ShadowEntry] = []
    for entry in would.decision_entries():
        mine = chosen[entry.uid]
        if (mine.node, mine.victims) == (entry.node, entry.victims):
            same += 1
            continue
        other += 1
        gained += bool(entry.node and not mine.node)
        lost += bool(mine.node and not entry.node)
        if len(told) < limits.SHADOW_ENTRIES_MAX:
            told.append(ShadowEntry(replica=entry.replica, node=entry.node, score=entry.score, reason=entry.reason))
    return Shadow(revision=revision, same=same, different=other, additional=gained, missing=lost, entries=tuple(told))
