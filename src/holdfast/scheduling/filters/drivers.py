"""Whether the node's agent has the driver that the template needs."""

from __future__ import annotations

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, ask: ReplicaRequirements) -> list[Refusal]:
    driver = ask.template.driver.value
    installed = scratch.snapshot.static.drivers
    return [(Reason.DRIVER_MISSING, installed.where(lambda there: not eligibility.has_driver(there, driver)))]
