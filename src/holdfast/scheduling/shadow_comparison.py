"""Compares the plan of a shadow policy with the real plan, for the Decision.

Pure and without effect: the shadow plan uses the same snapshot and the same requirements, and is discarded afterwards.
"""

from __future__ import annotations

from holdfast.model.decision import Shadow, ShadowEntry
from holdfast.scheduling.plan.planner import RequestPlan

# Differences listed per shadow comparison. The rest is only counted.
SHADOW_ENTRIES_MAX = 16


def compare_plans(active: RequestPlan, shadow: RequestPlan, revision: str) -> Shadow | None:
    """Compares member by member. A different node or different victims count as different. None if neither plan places
    a member."""
    chosen = {entry.uid: entry for entry in active.decision_entries()}
    same = other = gained = lost = 0
    differences: list[ShadowEntry] = []
    for entry in shadow.decision_entries():
        active_entry = chosen[entry.uid]
        if not active_entry.node and not entry.node:
            continue
        if (active_entry.node, active_entry.victims) == (entry.node, entry.victims):
            same += 1
            continue
        other += 1
        gained += bool(entry.node and not active_entry.node)
        lost += bool(active_entry.node and not entry.node)
        if len(differences) < SHADOW_ENTRIES_MAX:
            differences.append(
                ShadowEntry(replica=entry.replica, node=entry.node, score=entry.score, reason=entry.reason)
            )
    if not same + other:
        return None
    return Shadow(
        revision=revision, same=same, different=other, additional=gained, missing=lost, entries=tuple(differences)
    )


def without_comparison(active: RequestPlan, revision: str) -> Shadow | None:
    """The record of a plan that was not compared, so that its replicas do not count as the same."""
    placed = len(active.proposals)
    return Shadow(revision=revision, skipped=placed) if placed else None
