"""Whether the node's agent has the driver that the template needs."""

from __future__ import annotations

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    driver = ask.template.driver.value
    installed = scratch.snapshot.static.drivers
    return [(Reason.DRIVER_MISSING, installed.where(lambda there: not eligibility.has_driver(there, driver)))]
