"""Whether the node itself takes new work: lease live, not cordoned, draining, fenced, reconciling or going away."""

from __future__ import annotations

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal, named
from holdfast.flow.scratch import Scratch


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    refusal = scratch.snapshot.static.refusal
    return [(named(why), refusal.ids == index) for index, why in enumerate(refusal.values) if why]
