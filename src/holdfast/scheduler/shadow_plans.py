"""Shadow plans: plans a batch also with the policy in its shadow stage, and compares the results.

It proposes nothing. At most one shadow plan runs per `SHADOW_PLANS_EVERY_S` for batches that place a replica, and one
for batches that place none, whatever the load. So a batch that waits for its grant does not hide the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from holdfast.controllers.informer import Informers
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.model.active_policy import shadow_policy
from holdfast.model.decision import Shadow
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.scheduling.plan import plan
from holdfast.scheduling.plan.planner import SchedulePlan
from holdfast.scheduling.plan.victim_selection import SiblingStatusSource
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.shadow_comparison import compare_plans, without_comparison

# Minimum time between two shadow plans of one sort, so that a shadow policy costs little whatever the load.
SHADOW_PLANS_EVERY_S = 0.25


class ShadowPlans:
    def __init__(self, informers: Informers, ports: Ports) -> None:
        self._informers = informers
        self._ports = ports
        self._last_run_s = {True: float("-inf"), False: float("-inf")}
        """By whether the batch placed a replica."""
        self._counts = {
            outcome: metrics.SCHEDULER_SHADOW.labels(outcome)
            for outcome in ("Same", "Different", "Additional", "Missing")
        }

    def compare(
        self,
        plan_made: SchedulePlan,
        requests: Sequence[ReplicaRequirements],
        now: float,
        sibling_status: SiblingStatusSource,
    ) -> list[Shadow | None]:
        """The comparison for each request of a plan, or the number of its replicas that the rate limit leaves out. All
        None without a shadow policy."""
        no_comparison: list[Shadow | None] = [None] * len(plan_made.request_plans)
        policy = shadow_policy(self._informers.cache.list(PolicyRevision))
        if policy is None:
            return no_comparison
        now_s = self._ports.clock.monotonic()
        places = any(made.proposals for made in plan_made.request_plans)
        if now_s - self._last_run_s[places] < SHADOW_PLANS_EVERY_S:
            return [without_comparison(made, policy.revision) for made in plan_made.request_plans]
        self._last_run_s[places] = now_s
        try:
            shadow_plan = plan(
                plan_made.snapshot, requests, policy.rules, now, plan_made.seed, sibling_status=sibling_status
            )
        except Exception:
            # A failing shadow policy must not stop the active one.
            structlog.get_logger().exception("shadow_plan_failed", revision=policy.revision)
            return no_comparison
        found = [
            compare_plans(real, other, policy.revision)
            for real, other in zip(plan_made.request_plans, shadow_plan.request_plans, strict=True)
        ]
        for shadow in filter(None, found):
            self._counts["Same"].inc(shadow.same)
            self._counts["Different"].inc(shadow.different)
            self._counts["Additional"].inc(shadow.additional)
            self._counts["Missing"].inc(shadow.missing)
        return found
