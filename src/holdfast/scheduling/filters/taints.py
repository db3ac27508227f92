"""Refuses nodes with NoSchedule or NoExecute taints that the workload does not tolerate."""

from __future__ import annotations

from holdfast.model.placement_rules import Taint, TaintEffect, Toleration, tolerates
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch

_KEEPS_OFF = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    tolerations = requirements.placement.tolerations
    taints = scratch.snapshot.static.taints
    return [
        (
            Reason.TAINT_NOT_TOLERATED,
            taints.where(lambda there: first_untolerated_taint(there, tolerations) is not None),
        )
    ]


def first_untolerated_taint(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first untolerated NoSchedule or NoExecute taint; None if there is none."""
    return next((t for t in taints if t.effect in _KEEPS_OFF and not tolerates(tolerations, t)), None)
