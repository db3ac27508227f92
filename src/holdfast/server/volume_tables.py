"""The columns of VolumeClaim and Volume in `kubectl get`."""

from __future__ import annotations

from typing import Any

from holdfast.model.meta import find_condition
from holdfast.model.volume import Volume
from holdfast.server.table_column import TableColumn


def _in_use(claim: Any) -> str:
    found = find_condition(claim.status.conditions, "InUse")
    return found.status if found is not None else "Unknown"


def _data(volume: Volume) -> str:
    if volume.metadata.terminating:
        return "Deleting"
    return volume.status.data.phase.value if volume.status.data is not None else "Pending"


VOLUME_COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "VolumeClaim": (
        TableColumn("Size", lambda c: str(c.spec.size)),
        TableColumn("Reclaim", lambda c: c.spec.reclaim_policy.value),
        TableColumn("On-Region-Loss", lambda c: c.spec.on_region_loss.value),
        TableColumn("In-Use", _in_use, description="Whether workloads refer to it."),
    ),
    "Volume": (
        TableColumn("Claim", lambda v: v.spec.claim),
        TableColumn("Replica", lambda v: v.spec.replica),
        TableColumn("Node", lambda v: v.spec.node, description="The node that holds the data."),
        TableColumn("Size", lambda v: str(v.spec.size)),
        TableColumn("Data", _data),
        TableColumn("Reclaim", lambda v: v.spec.reclaim_policy.value, wide=True),
    ),
}
