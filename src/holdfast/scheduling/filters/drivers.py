"""Requires the template's driver on the node."""

from __future__ import annotations

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    driver = requirements.template.driver.value
    installed = scratch.snapshot.static.drivers
    return [(Reason.DRIVER_MISSING, installed.where(lambda there: not eligibility.has_driver(there, driver)))]
