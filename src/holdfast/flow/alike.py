"""Which requests ask for the very same, so that one try that finds no place answers for all of them.

What always holds: two requests with the same key pass and fail the same gates on every node, whatever is placed. Work
whose place depends on more than the room there is (a gang, spread or affinity rules, work that may take the place of
others, a deadline that is told when it passes) is alike to none.
"""

from __future__ import annotations

import msgspec

from holdfast.flow.ask import Ask
from holdfast.flow.scratch import Scratch
from holdfast.model.assignment import Purpose
from holdfast.model.scheduling_request import SchedulingRequest


def alike_key(request: SchedulingRequest) -> bytes:
    """The same for requests that wait for the same; empty for one that waits by itself."""
    spec = request.spec
    alone = spec.gang is not None or spec.may_preempt or spec.deadline or spec.purpose is Purpose.RECOVERY
    if alone or spec.placement.spread or spec.placement.affinity:
        return b""
    template = spec.template
    return msgspec.msgpack.encode(
        (
            request.metadata.namespace, spec.rank, spec.purpose, spec.reclaimable, spec.dedicated, spec.placement,
            template.driver, template.resources, template.gpu_models, template.labels, template.ports,
        )
    )  # fmt: skip


def refused_key(scratch: Scratch, ask: Ask) -> bytes:
    """The same for asks that get the same answer from every gate, in the same words, while nothing more is placed;
    empty where that takes more than a look at the ask."""
    placement = ask.placement
    if ask.gang_min or ask.may_preempt or ask.draws or placement.spread or placement.affinity:
        return b""
    # Work keeps others off by their labels, and never its own: only then does the name of the workload count.
    guarded = any(True for _ in scratch.guards(ask.namespace))
    return msgspec.msgpack.encode(
        (
            ask.namespace, ask.workload if guarded else "", ask.labels if guarded else (), ask.amounts, placement,
            ask.template.driver, ask.template.gpu_models, ask.fixed_ports, ask.open_ports, ask.reclaimable,
            ask.dedicated, ask.room, [override.metadata.name for override in scratch.avoidances(ask)],
        )
    )  # fmt: skip
