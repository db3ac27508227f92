"""The pure planner: from a snapshot and requirements to proposals and refusals."""

from holdfast.scheduling.plan.identical_replicas import Proposal
from holdfast.scheduling.plan.planner import PLANNER_VERSION, RequestPlan, SchedulePlan, plan
from holdfast.scheduling.plan.tie_break import tie_number
from holdfast.scheduling.replica_requirements import ReplicaRequirements, requirements_of

__all__ = [
    "PLANNER_VERSION",
    "Proposal",
    "ReplicaRequirements",
    "RequestPlan",
    "SchedulePlan",
    "plan",
    "requirements_of",
    "tie_number",
]
