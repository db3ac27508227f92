"""The controllers of planned maintenance, for the global cell and for a region. A cell may run without them."""

from __future__ import annotations

from holdfast.controllers.controller import Controller
from holdfast.fleet import maintenance, post_restore
from holdfast.foundation.time_zones import find_zone
from holdfast.model.maintenance_window import MaintenanceWindow
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.region import Region
from holdfast.scheduling.eviction import maintenance_drain


def planned_maintenance() -> Controller:
    """Creates and ends the Overrides of MaintenanceWindows."""
    return Controller(
        name="maintenance",
        decide=post_restore.unless_restoring(maintenance.decider(find_zone)),
        keys=maintenance.keys,
        wakes={MaintenanceWindow: maintenance.woken_by_window, Override: maintenance.woken_by_override},
        reads=(Region,),
        resync_s=maintenance.RECHECK_S,
    )


def maintenance_drains(region: str) -> Controller:
    """Drains the nodes of planned maintenance."""
    return Controller(
        name="maintenance",
        decide=maintenance_drain.decider(region),
        keys=maintenance_drain.keys,
        wakes={Override: maintenance_drain.woken_by_override, Node: maintenance_drain.woken_by_node},
        resync_s=maintenance_drain.RECHECK_S,
    )
