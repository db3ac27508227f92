"""Workloads that lack serving replicas, and what each lacks: a failed drill names them. Pure, on JSON objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.drills.platform_observer import Item, serving_by_region
from holdfast.model.recovery import OBJECTIVE_MET

DRILL_TENANT = "drill"
SHORTFALLS_MAX = 5
"""Workloads that one failure names. Further ones are counted."""


def shortfalls(workloads: Iterable[Item], recoveries: Iterable[Item], *, lost_region: str = "") -> list[str]:
    """Critical workloads with fewer than `minServing` replicas in every other region than `lost_region`, and workloads
    of the drill with fewer serving replicas than wanted."""
    rows = _progress_rows(recoveries)
    found = []
    for workload in workloads:
        spec, meta = workload["spec"], workload["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        if objective := spec.get("recovery"):
            wanted = objective.get("minServing", 4)
            elsewhere = {r: n for r, n in serving_by_region(workload).items() if r != lost_region}
            region = max(elsewhere, key=lambda r: elsewhere[r], default="")
            if elsewhere.get(region, 0) < wanted:
                found.append(_recovery_text(name, elsewhere.get(region, 0), wanted, region, rows.get(name)))
        elif meta["namespace"] == DRILL_TENANT:
            found += service_shortfall(workload)
    more = len(found) - SHORTFALLS_MAX
    return [*found[:SHORTFALLS_MAX], *([f"{more} more workload(s)"] if more > 0 else [])]


def service_shortfall(workload: Item) -> list[str]:
    """One line if a service has fewer serving replicas than its spec wants."""
    meta, status = workload["metadata"], workload.get("status", {})
    wanted, serving = workload["spec"]["replicas"], status.get("summary", {}).get("serving", 0)
    if workload["spec"].get("type", "Service") != "Service" or serving >= wanted:
        return []
    why: Item = next((c for c in status.get("conditions", []) if c["status"] == "False"), {})
    return [f"{meta['namespace']}/{meta['name']}: {serving} of {wanted} replicas serve{_because(why)}"]


def missed_objective(recovery: Item) -> str:
    """Why the Recovery did not meet its objective, by its own condition; empty if it did."""
    found = next((c for c in recovery.get("status", {}).get("conditions", []) if c["type"] == OBJECTIVE_MET), None)
    if found is None:
        return f"recovery {recovery['metadata']['name']}: no condition {OBJECTIVE_MET}"
    if found["status"] == "True":
        return ""
    return f"recovery {recovery['metadata']['name']}: {found['reason']}: {found.get('message', '')}"


def _progress_rows(recoveries: Iterable[Item]) -> dict[str, Item]:
    """The row of each workload in the newest open Recovery."""
    found: dict[str, Item] = {}
    for recovery in sorted(recoveries, key=lambda r: str(r["metadata"].get("creationTimestamp", ""))):
        if recovery.get("status", {}).get("phase") != "Closed":
            found |= {f"{row['tenant']}/{row['workload']}": row for row in _rows(recovery)}
    return found


def _rows(recovery: Item) -> Sequence[Item]:
    rows: Sequence[Item] = recovery.get("status", {}).get("workloads", ())
    return rows


def _recovery_text(name: str, serving: int, wanted: int, region: str, row: Item | None) -> str:
    if row is None:
        return f"{name}: {serving} of {wanted} serve in {region or 'another region'}; no Recovery lists it"
    target = row.get("target") or "no region"
    stages = ", ".join(f"{stage} {row.get(stage, 0)}" for stage in ("assigned", "bound", "ready", "serving"))
    return f"{name}: {serving} of {wanted} serve; target {target}: {stages}{_because(row)}"


def _because(item: dict[str, Any]) -> str:
    said = ": ".join(text for text in (item.get("reason", ""), item.get("message", "")) if text)
    return f" ({said})" if said else ""
