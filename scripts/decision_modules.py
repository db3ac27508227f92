"""The modules whose decisions the promises rest on: measured by branch_coverage.py, changed by mutate.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "holdfast"

GROUPS: dict[str, tuple[str, ...]] = {
    "authority": ("authority/*.py",),
    "grants": (
        "fleet/grant*.py",
        "fleet/quota_division.py",
        "fleet/tenant_demand.py",
        "fleet/protected_shares.py",
        "fleet/disruption_shares.py",
        "model/grant_limit.py",
    ),
    "recovery": ("fleet/recovery/*.py", "fleet/region_health.py", "fleet/spillover.py", "fleet/assign.py"),
    "fencing": (
        "agent/registration.py",
        "fleet/ordinals.py",
        "link/ordinal_report.py",
        "scheduling/node_health.py",
        "model/placement_eligibility.py",
    ),
    "agent": ("agent/task_decision.py", "agent/task_transitions.py", "agent/status_blocks.py"),
}


def modules(group: str) -> Iterator[Path]:
    for pattern in GROUPS[group]:
        found = sorted(path for path in SOURCE.glob(pattern) if path.name != "__init__.py")
        if not found:
            raise SystemExit(
                f"error: group {group}: no module matches {pattern}; next: update scripts/decision_modules.py"
            )
        yield from found
