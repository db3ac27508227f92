"""recover: runs one capacity-loss incident. Owns Recovery, recovery Assignments, `suspended`, RecoveryBudget.status.

- The Assignments of a lost region are suspended: kept, and no replica is created from them.
- Every critical workload gets the replicas it lacks in one healthy region, by priority and rate limited.
- When the region has been healthy for `RECOVERY_STABLE_S`, failback returns the replicas, slots and quota. The Recovery
  closes after a check that none remain.

Each pass recomputes the missing replicas of all open recoveries from current state. After a crash, a second lost region
or a lost target, the next pass corrects the placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.fleet.assign import assignment_meta, assignment_spec
from holdfast.fleet.disruption_shares import with_share_peak
from holdfast.fleet.recovery import failback, targets
from holdfast.fleet.recovery.backing import Loss
from holdfast.fleet.recovery.borrowed_shares import borrowed_shares
from holdfast.fleet.recovery.need import (
    CriticalWorkload,
    TargetSelector,
    critical_workloads,
    reported_headroom,
    target_refusal_reason,
)
from holdfast.fleet.recovery.recovery_status import (
    RECOVERY_CHECK_EVERY_S,
    budget_writes,
    stage_clock,
    status_write,
    suspension_writes,
    with_served_time,
    withdrawn_rows,
    workload_progress,
)
from holdfast.fleet.recovery.start_rate import StartRateLimiter
from holdfast.fleet.recovery.target_plan import TargetPlan, plan_targets
from holdfast.fleet.region_health import CAPACITY_LOST, lost_zones
from holdfast.model.assignment import Assignment, Purpose, assignment_name
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.override import Override, active_avoidances
from holdfast.model.reasons import Reason
from holdfast.model.recovery import (
    Recovery,
    RecoveryPhase,
    RecoverySpec,
    RecoveryStatus,
    WorkloadProgress,
    is_open,
    live_rows,
    serves_elsewhere,
)
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import HealthState, Region
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import Workload
from holdfast.model.writes import NO_CHANGES, Create, Notice, Outcome, Update, Write

# Assignment writes of one recovery pass. The rest follows in the next pass.
RECOVERY_WRITES_PER_PASS_MAX = 64
# How long a returned region must be healthy without a break before failback begins.
RECOVERY_STABLE_S = 30.0
# How long a region must report lost capacity before a Recovery opens, so that a restarting rack does not open one.
CAPACITY_LOSS_GRACE_S = 10.0

LABEL_RECOVERY = "holdfast.dev/recovery"


def decide(key: Key, view: View, now: float) -> Outcome:
    """The next step of the region's Recovery; opens one if the region or its capacity is lost."""
    region = view.get(Region, key.name)
    if region is None:
        return NO_CHANGES
    budgets = budget_writes(region, view)
    mine = open_recovery(view, key.name)
    if mine is None:
        outcome = _open(region, view, now)
    elif mine.status.phase is RecoveryPhase.FAILING_BACK:
        outcome = failback.decide(mine, region, view, now)
    else:
        outcome = _recover(mine, region, view, now)
    return msgspec.structs.replace(outcome, writes=(*outcome.writes, *budgets))


def open_recovery(view: View, region: str) -> Recovery | None:
    return next((r for r in view.list(Recovery) if r.spec.region == region and is_open(r)), None)


# Opening


class LossEvidence(msgspec.Struct, frozen=True, gc=False):
    cause: str
    since: str
    lost_at: str
    zone: str
    evidence: tuple[str, ...]


def loss_evidence(region: Region, view: View, now: float) -> LossEvidence | None:
    """Evidence of a loss that needs a recovery; None if there is none."""
    health = region.status.health
    if health.state is HealthState.LOST:
        evidence = (f"region-health: {health.reason}: {health.message}", f"last contact {health.last_contact_at}")
        return LossEvidence(health.reason, health.since, health.last_contact_at or health.since, "", evidence)
    found = next((c for c in region.status.conditions if c.type == CAPACITY_LOST and c.status == "True"), None)
    if found is None or health.state is not HealthState.HEALTHY:
        return None
    since = found.last_transition_time
    if not since or now - parse_time(since) < CAPACITY_LOSS_GRACE_S:
        return None
    avoidances = active_avoidances(view.list(Override), now)
    short = [
        c
        for c in critical_workloads(view)
        if c.counts_in(region.metadata.name).assigned and _best_need(c, view, avoidances)
    ]
    if not short:
        return None
    zones = lost_zones(region)
    report = (f"the region's own report: {found.message}",)
    return LossEvidence(Reason.CAPACITY_LOST.value, since, since, zones[0] if len(zones) == 1 else "", report)


def _best_need(critical: CriticalWorkload, view: View, avoidances: Collection[Override]) -> int:
    able = [r.metadata.name for r in view.list(Region) if not target_refusal_reason(critical, r, avoidances)]
    return min((critical.need(name) for name in able), default=critical.objective.min_serving)


def recovery_name(region: str, since: str) -> str:
    """Deterministic name, so that one incident opens one Recovery."""
    digits = "".join(ch for ch in since if ch.isdigit())[:14]
    return f"{region}-{digits}"


def _open(region: Region, view: View, now: float) -> Outcome:
    incident = loss_evidence(region, view, now)
    if incident is None:
        pending = any(c.type == CAPACITY_LOST and c.status == "True" for c in region.status.conditions)
        return Outcome(requeue_after_s=RECOVERY_CHECK_EVERY_S) if pending else NO_CHANGES
    deadline_s = min((c.objective.deadline_seconds for c in critical_workloads(view)), default=300.0)
    spec = RecoverySpec(
        region=region.metadata.name,
        zone=incident.zone,
        cause=incident.cause,
        started_at=incident.lost_at,
        deadline_seconds=deadline_s,
        evidence=incident.evidence,
    )
    name = recovery_name(region.metadata.name, incident.since)
    stored = view.get(Recovery, name)
    if stored is not None:
        return NO_CHANGES  # this incident was already closed
    recovery = Recovery(metadata=ObjectMeta(name=name), spec=spec)
    notice = Notice(region, Reason.RECOVERY_OPENED, f"recovery {name}: {incident.evidence[0]}", warning=True)
    return Outcome(writes=(Create(recovery),), notices=(notice,), requeue_after_s=0.0)


# Recovering


def _recover(recovery: Recovery, region: Region, view: View, now: float) -> Outcome:
    name = region.metadata.name
    lost = region.status.health.state is HealthState.LOST
    writes: list[Write] = list(suspension_writes(name, view, suspended=True)) if lost else []
    pace = StartRateLimiter.from_status(recovery.status.start_rate_limits, _rates(view), now)
    recovery_pass = _RecoveryPass(recovery, view, pace, now)
    recovery_pass.run(name)
    rows, notices = recovery_pass.rows, recovery_pass.notices
    writes += recovery_pass.writes
    status = _progress(recovery, rows, pace, view, now)
    healthy_since = _healthy_since(recovery, region, view, now)
    status = msgspec.structs.replace(status, stable_since=healthy_since)
    if healthy_since and now - parse_time(healthy_since) >= RECOVERY_STABLE_S:
        status = msgspec.structs.replace(status, phase=RecoveryPhase.FAILING_BACK)
        notices.append(Notice(recovery, Reason.FAILING_BACK, f"region {name} is healthy since {healthy_since}"))
    elif status.phase is RecoveryPhase.RECOVERED and recovery.status.phase is not RecoveryPhase.RECOVERED:
        took_s = parse_time(status.recovered_at) - parse_time(recovery.spec.started_at)
        message = f"{len(rows)} critical workload(s) serve elsewhere {took_s:.1f} s after region {name}'s last report"
        notices.append(Notice(recovery, Reason.RECOVERED, message))
    write = status_write(recovery, status, now)
    if write is not None:
        writes.append(write)
    return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=RECOVERY_CHECK_EVERY_S)


def _rates(view: View) -> dict[str, float]:
    rates: dict[str, float] = {}
    for budget in view.list(RecoveryBudget):
        known = rates.get(budget.spec.region, 0.0)
        rates[budget.spec.region] = known + budget.spec.starts_per_second
    return rates


class _RecoveryPass:
    """One pass over the critical workloads: their progress, new recovery Assignments, and abandoned targets."""

    def __init__(self, recovery: Recovery, view: View, pace: StartRateLimiter, now: float) -> None:
        self._recovery, self._view, self._pace, self._now = recovery, view, pace, now
        self._avoidances = active_avoidances(view.list(Override), now)
        self._targets = TargetSelector(view.list(Region), self._avoidances, reported_headroom, self._planned)
        self._plan: TargetPlan | None = None
        self.rows: list[WorkloadProgress] = []
        self.writes: list[Write] = []
        self.notices: list[Notice] = []

    def run(self, lost: str) -> None:
        known = {(row.tenant, row.workload): row for row in live_rows(self._recovery.status)}
        checked: list[CriticalWorkload] = []
        for critical in critical_workloads(self._view):
            row = known.get((critical.tenant, critical.name))
            touched = row is not None or critical.counts_in(lost).assigned
            if not touched and not _best_need(critical, self._view, self._avoidances):
                continue
            self._check(critical, row)
            checked.append(critical)
        used = targets.targets_in_use(self._view, self._recovery, self.rows)
        for critical, row in zip(checked, self.rows, strict=True):
            if len(self.writes) < RECOVERY_WRITES_PER_PASS_MAX:
                self.writes += targets.release_abandoned(critical, row.target, used, self._view)

    def _planned(self, critical: CriticalWorkload) -> str:
        """The target that `holdfast plan --lose-region` names. Computed only if a workload needs a target."""
        if self._plan is None:
            spec = self._recovery.spec
            self._plan = plan_targets(Loss(spec.region, spec.zone), self._view, self._now)
        return self._plan.targets.get(Key(critical.tenant, critical.name), "")

    def _check(self, critical: CriticalWorkload, known: WorkloadProgress | None) -> None:
        said = targets.pending_reason(critical, known.target, self._view) if known is not None else ""
        aim = targets.choose_target(critical, known, self._targets, self._now, waiting_for=said)
        if aim.changed:
            said = f"{critical.tenant}/{critical.name}: {aim.stalled_reason}"
            self.notices.append(Notice(self._recovery, Reason.TARGET_STALLED, said, warning=True))
        need = critical.need(aim.target) if aim.target else 0
        started = bool(need) and self._assign(critical, aim.target, need)
        waiting = bool(need) and not started
        row = workload_progress(
            critical, aim.target, self._view, reason=Reason.WAITING_FOR_START_RATE.value if waiting else ""
        )
        if aim.stalled_reason and not aim.changed:
            row = msgspec.structs.replace(row, reason=Reason.TARGET_STALLED.value, message=aim.stalled_reason)
        row = msgspec.structs.replace(row, abandoned_targets=aim.abandoned_targets)
        row = with_served_time(row, known, self._recovery.spec, self._now)
        row = targets.with_progress_clock(row, known, critical, self._now, waits=waiting, asked=started)
        self.rows.append(row)

    def _assign(self, critical: CriticalWorkload, target: str, need: int) -> bool:
        """Assigns the missing replicas to the target if the rate limit allows. Waiting workloads use up room as well,
        so that later ones choose other targets."""
        self._targets.reserve(critical, target, need)
        if len(self.writes) >= RECOVERY_WRITES_PER_PASS_MAX or not self._pace.can_start(target, need):
            return False
        write = _assignment(self._recovery, critical, target, need, self._view)
        if write is None:
            return False
        self._pace.record_start(target, need)
        self.writes.append(write)
        return True


def _assignment(recovery: Recovery, critical: CriticalWorkload, target: str, need: int, view: View) -> Write | None:
    """The recovery Assignment with the missing replicas added. It does not shrink while the Recovery is open."""
    workload = critical.workload
    name = assignment_name(critical.name, target, Purpose.RECOVERY)
    stored = view.get(Assignment, name, critical.tenant)
    if stored is not None and stored.metadata.terminating:
        return None  # the previous one is being deleted; its deletion wakes this controller
    have = stored.spec.replicas if stored is not None else 0
    reason = (
        f"recovery {recovery.metadata.name}: {need} more for minServing {critical.objective.min_serving} in {target}"
    )
    epoch = stored.spec.epoch + 1 if stored is not None else 1
    spec = assignment_spec(
        workload,
        target,
        have + need,
        view,
        epoch=epoch,
        purpose=Purpose.RECOVERY,
        reason=reason,
        stored=stored,
        disruption_share=0,
    )
    if spec is None:
        return None
    if stored is None:  # its disruption share is 0 until assign divides the budget
        meta = assignment_meta(workload, target, Purpose.RECOVERY)
        labels = {**meta.labels, LABEL_RECOVERY: recovery.metadata.name}
        return Create(Assignment(metadata=msgspec.structs.replace(meta, labels=labels), spec=spec))
    spec = msgspec.structs.replace(
        spec, disruption_share=stored.spec.disruption_share, disruption=stored.spec.disruption
    )
    return Update(msgspec.structs.replace(stored, spec=with_share_peak(spec, stored)))


def _progress(
    recovery: Recovery, rows: Sequence[WorkloadProgress], pace: StartRateLimiter, view: View, now: float
) -> RecoveryStatus:
    old = recovery.status
    done = all(serves_elsewhere(row, recovery.spec) for row in rows)
    clock = stage_clock(old.clock, rows, now)
    return msgspec.structs.replace(
        old,
        phase=RecoveryPhase.RECOVERED if done else RecoveryPhase.OPEN,
        workloads=(*rows, *withdrawn_rows(old.workloads, rows, view, now)),
        clock=clock,
        start_rate_limits=pace.rate_limits(),
        recovered_at=old.recovered_at or (micro_text(now) if done else ""),
        borrowed=borrowed_shares(old.borrowed, rows, view, now),
    )


def _healthy_since(recovery: Recovery, region: Region, view: View, now: float) -> str:
    """Since when the region has been continuously healthy; empty while it is not."""
    health = region.status.health
    healthy = health.state is HealthState.HEALTHY and loss_evidence(region, view, now) is None
    short = any(c.type == CAPACITY_LOST and c.status == "True" for c in region.status.conditions)
    if not healthy or short:
        return ""
    return recovery.status.stable_since or micro_text(now)


# Waking


def keys(view: View) -> Iterable[Key]:
    return [r.key for r in view.list(Region)]


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    if new is None:
        return ()
    if old is not None:
        same = new.status.health.state is old.status.health.state and new.status.conditions == old.status.conditions
        same_slots = (new.status.report.recovery_slots if new.status.report else ()) == (
            old.status.report.recovery_slots if old.status.report else ()
        )
        if same and same_slots:
            return ()
    return (new.key,)


def woken_by_recovery(new: Recovery | None, old: Recovery | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None or (new is not None and old is not None):
        return ()  # its own writes; a timer triggers the next pass
    return (Key("", item.spec.region),)


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is not None and old is not None and new.metadata.generation == old.metadata.generation:
        return ()
    return [Key("", r.spec.region) for r in view.list(Recovery) if is_open(r)]


def woken_by_budget(new: RecoveryBudget | None, old: RecoveryBudget | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key("", item.spec.region),) if item is not None else ()
