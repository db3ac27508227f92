"""Shadow plans: plans a batch also with the policy in its shadow stage, and compares the results.

It proposes nothing. At most one shadow plan runs per `limits.SHADOW_PLANS_EVERY_S`, whatever the load.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from holdfast.flow.active_policy import shadow_policy
from holdfast.flow.ask import Ask
from holdfast.flow.plan import plan
from holdfast.flow.plan.planner import Plan
from holdfast.flow.plan.sparing import Standing
from holdfast.flow.shadow import compare
from holdfast.model import limits
from holdfast.model.decision import Shadow
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.runtime import metrics
from holdfast.runtime.informer import Informers
from holdfast.runtime.ports import Ports


class ShadowPlans:
    def __init__(self, informers: Informers, ports: Ports) -> None:
        self._informers = informers
        self._ports = ports
        self._last_mono_s = float("-inf")
        self._counts = {what: metrics.SCHEDULER_SHADOW.labels(what) for what in ("Same", "Other", "Gained", "Lost")}

    def beside(self, made: Plan, asks: Sequence[Ask], now: float, standing: Standing) -> list[Shadow | None]:
        """The comparison for each request of a plan; all None without a shadow policy or within the rate limit."""
        nothing: list[Shadow | None] = [None] * len(made.asks)
        policy = shadow_policy(self._informers.cache.list(PolicyRevision))
        mono_s = self._ports.clock.monotonic()
        if policy is None or mono_s - self._last_mono_s < limits.SHADOW_PLANS_EVERY_S:
            return nothing
        self._last_mono_s = mono_s
        try:
            would = plan(made.snapshot, asks, policy.rules, now, made.seed, standing=standing)
        except Exception:
            # A failing shadow policy must not stop the active one.
            structlog.get_logger().exception("shadow_plan_failed", revision=policy.revision)
            return nothing
        found = [compare(real, other, policy.revision) for real, other in zip(made.asks, would.asks, strict=True)]
        for shadow in found:
            self._counts["Same"].inc(shadow.same)
            self._counts["Other"].inc(shadow.other)
            self._counts["Gained"].inc(shadow.gained)
            self._counts["Lost"].inc(shadow.lost)
        return list(found)
