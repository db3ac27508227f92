"""Every recovery promise of a platform, and the Recovery that last proved it."""

from __future__ import annotations

from typing import Any

from holdfast.drills.platform_observer import PlatformObserver
from holdfast.platform.layout import Layout


def recovery_promises(layout: Layout) -> list[dict[str, Any]]:
    """The recovery objectives of workloads and the RecoveryBudgets, as JSON."""
    observer = PlatformObserver(layout, layout.load())
    try:
        found = []
        for workload in observer.critical_workloads():
            objective, meta = workload["spec"]["recovery"], workload["metadata"]
            backing = workload.get("status", {}).get("backing") or {}
            least, deadline_s = objective.get("minServing", 4), objective.get("deadlineSeconds", 300)
            found.append(
                {
                    "promise": f"workload {meta['namespace']}/{meta['name']}",
                    "text": f"{least} serve in another region within {deadline_s:g} s",
                    "backed": bool(backing.get("backed")),
                    "lastProven": backing.get("lastProven"),
                }
            )
        for budget in observer.list("recoverybudgets"):
            status = budget.get("status", {})
            wanted = sum(shape.get("count", 1) for shape in budget["spec"].get("slotShapes", []))
            found.append(
                {
                    "promise": f"recoverybudget {budget['metadata']['name']}",
                    "text": f"{wanted} recovery slots in {budget['spec']['region']}",
                    "backed": status.get("admitted", 0) >= wanted,
                    "lastProven": status.get("lastProven"),
                }
            )
        return found
    finally:
        observer.close()
