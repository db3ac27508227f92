"""Prometheus gauges of the fleet's state, updated periodically from the global cell's cache, for alerts."""

from __future__ import annotations

from collections import Counter

from holdfast.foundation import metrics
from holdfast.model.assignment import Assignment
from holdfast.model.override import Override, maintenance_of_region
from holdfast.model.quota import Quota
from holdfast.model.recovery import Recovery, RecoveryPhase, is_open
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import HealthState, Region
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.tenant import Tenant
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.workload import Workload, WorkloadType
from holdfast.scheduling.eviction import stuck_finalizers

PLANNED_ABSENCE = "PlannedAbsence"
"""State of a region that is not healthy while it is in planned maintenance. No alert names it."""

READS = (Region, Recovery, RecoveryBudget, Override, Quota, Workload, Tenant, Assignment, SchedulerPolicy)


def update_gauges(view: View, now: float) -> None:
    states = Counter(_alarming_state(r, view, now) for r in view.list(Region))
    for state in (*HealthState, PLANNED_ABSENCE):
        metrics.FLEET_REGIONS.labels(str(state)).set(states[str(state)])
    metrics.FLEET_CONTACT_AGE.clear()  # a deleted region has no series
    for region in view.list(Region):
        if region.status.health.last_contact_at:
            age_s = now - parse_time(region.status.health.last_contact_at)
            metrics.FLEET_CONTACT_AGE.labels(region.metadata.name).set(max(0.0, age_s))
    open_ones = [r for r in view.list(Recovery) if is_open(r)]
    phases = Counter(r.status.phase for r in open_ones)
    for phase in RecoveryPhase:
        metrics.FLEET_RECOVERIES.labels(phase.value).set(phases[phase])
    begun = [r.spec.started_at for r in open_ones if r.status.phase is RecoveryPhase.OPEN and r.spec.started_at]
    metrics.FLEET_RECOVERY_AGE.set(max((now - parse_time(at) for at in begun), default=0.0))
    budgets = view.list(RecoveryBudget)
    metrics.FLEET_RECOVERY_SLOTS.clear()  # a region without budget has no series
    for name in sorted({b.spec.region for b in budgets}):
        mine = [b for b in budgets if b.spec.region == name]
        slots = metrics.FLEET_RECOVERY_SLOTS
        slots.labels(name, "Requested").set(sum(s.count for b in mine for s in b.spec.slot_shapes))
        slots.labels(name, "Admitted").set(sum(b.status.admitted for b in mine))
        slots.labels(name, "Consumed").set(sum(b.status.consumed for b in mine))
    overrides = view.list(Override)
    acting = Counter(o.status.phase for o in overrides)
    for phase_name in ("Pending", "Active"):
        metrics.FLEET_OVERRIDES.labels(phase_name).set(acting[phase_name])
    metrics.FLEET_NOT_REVERTED.set(sum(_has_condition(o, "Reverted", "False") for o in overrides))
    quotas = view.list(Quota)
    metrics.FLEET_EXPIRED_GRANT_LEASES.set(sum(row.lease_expired for q in quotas for row in q.status.regions))
    metrics.FLEET_OVER_QUOTA.set(sum(_has_condition(q, "OverQuota", "True") for q in quotas))
    objects = [item for kind in (Tenant, Region, Workload, Assignment) for item in view.list(kind)]
    metrics.FLEET_STUCK_FINALIZERS.set(len(stuck_finalizers.stuck_finalizers(objects, (), now)))
    metrics.FLEET_POLICIES_STOPPED.set(sum(p.status.stopped is not None for p in view.list(SchedulerPolicy)))
    workloads = view.list(Workload)
    metrics.FLEET_UNBACKED.set(sum(w.status.backing is not None and not w.status.backing.backed for w in workloads))
    metrics.FLEET_PENDING_AGE.set(max((_not_serving_s(w, now) for w in workloads), default=0.0))


def _alarming_state(region: Region, view: View, now: float) -> str:
    """The region's health; PLANNED_ABSENCE instead of a state that alerts, while it is in planned maintenance."""
    state = region.status.health.state
    if state is HealthState.HEALTHY or maintenance_of_region(view.list(Override), region.metadata.name, now) is None:
        return state.value
    return PLANNED_ABSENCE


def _not_serving_s(workload: Workload, now: float) -> float:
    if workload.spec.type is not WorkloadType.SERVICE or workload.metadata.terminating:
        return 0.0
    for condition in workload.status.conditions:
        if condition.type == "Serving" and condition.status == "False" and condition.last_transition_time:
            return now - parse_time(condition.last_transition_time)
    return 0.0


def _has_condition(item: Override | Quota, kind: str, status: str) -> bool:
    return any(c.type == kind and c.status == status for c in item.status.conditions)
