"""The pure planner: from a snapshot and requirements to proposals and refusals."""

from holdfast.flow.ask import Ask, ask_of
from holdfast.flow.plan.like import Proposal
from holdfast.flow.plan.planner import PLANNER_VERSION, AskPlan, Plan, plan
from holdfast.flow.plan.tie import tie_number

__all__ = ["PLANNER_VERSION", "Ask", "AskPlan", "Plan", "Proposal", "ask_of", "plan", "tie_number"]
