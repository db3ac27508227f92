"""Shadow plans: plans a batch also with the policy in its shadow stage, and compares the results.

It proposes nothing. At most one shadow plan runs per `SHADOW_PLANS_EVERY_S`, whatever the load.
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
from holdfast.scheduling.shadow_comparison import compare_plans

# Minimum time between two shadow plans, so that a shadow policy costs little whatever the load.
SHADOW_PLANS_EVERY_S = 0.25


class ShadowPlans:
    def __init__(self, informers: Informers, ports: Ports) -> None:
        self._informers = informers
        self._ports = ports
        self._last_run_s = float("-inf")
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
        """The comparison for each request of a plan; all None without a shadow policy or within the rate limit."""
        no_comparison: list[Shadow | None] = [None] * len(plan_made.request_plans)
        policy = shadow_policy(self._informers.cache.list(PolicyRevision))
        now_s = self._ports.clock.monotonic()
        if policy is None or now_s - self._last_run_s < SHADOW_PLANS_EVERY_S:
            return no_comparison
        self._last_run_s = now_s
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
        for shadow in found:
            self._counts["Same"].inc(shadow.same)
            self._counts["Different"].inc(shadow.different)
            self._counts["Additional"].inc(shadow.additional)
            self._counts["Missing"].inc(shadow.missing)
        return list(found)
