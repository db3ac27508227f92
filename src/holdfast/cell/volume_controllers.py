"""The controllers of persistent volumes: one above regions, one in each region."""

from __future__ import annotations

from holdfast.controllers.controller import Controller
from holdfast.fleet import volume_claims
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.node import Node
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.volume import Volume, VolumeClaim
from holdfast.model.workload import Workload
from holdfast.scheduling import volume_release


def claims_controller() -> Controller:
    return Controller(
        name="volume-claim",
        decide=volume_claims.decide,
        keys=volume_claims.keys,
        wakes={
            VolumeClaim: volume_claims.woken_by_claim,
            Workload: volume_claims.woken_by_user,
            Assignment: volume_claims.woken_by_user,
            Region: volume_claims.woken_by_region,
        },
    )


def volumes_controller() -> Controller:
    return Controller(
        name="volume",
        decide=volume_release.decide,
        keys=volume_release.keys,
        wakes={
            Volume: volume_release.woken_by_volume,
            VolumeClaim: volume_release.woken_by_claim,
            Node: volume_release.woken_by_node,
            Binding: volume_release.woken_by_binding,
        },
        reads=(Replica,),
    )
