"""Refuses nodes with NoSchedule or NoExecute taints that the workload does not tolerate. A policy may leave out
NoSchedule, but not NoExecute: replicas would be evicted again."""

from __future__ import annotations

from holdfast.model.placement_eligibility import evicting_taint, first_untolerated_taint
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    tolerations = requirements.placement.tolerations
    taints = scratch.snapshot.static.taints
    return [
        (
            Reason.TAINT_NOT_TOLERATED,
            taints.where(lambda there: first_untolerated_taint(there, tolerations) is not None),
        )
    ]


def refuse_evicting(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    tolerations = requirements.placement.tolerations
    taints = scratch.snapshot.static.taints
    return [(Reason.TAINT_NOT_TOLERATED, taints.where(lambda there: evicting_taint(there, tolerations) is not None))]
