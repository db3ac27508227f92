"""Reads of the global cell that several pages share: regions, objectives by loss, alerts, changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec

from holdfast.console.answers import AnswerRow, Capacity, EventRow, PendingWait, RegionSummary, StageCount, StageSpan
from holdfast.console.last_known import as_last_known, unanswered_summary
from holdfast.console.region_details import event_row
from holdfast.console.region_hub import KnownAnswer, PastHub, RegionHub
from holdfast.console.viewer import Viewer
from holdfast.fleet.recovery.backing import Loss, forecast_loss
from holdfast.foundation.ports import Ports
from holdfast.gate.published_view import PublishedView
from holdfast.model.assignment import Assignment
from holdfast.model.core import Event
from holdfast.model.kinds import kind_of
from holdfast.model.override import ACTIVE, PENDING, Override
from holdfast.model.quantity import amounts
from holdfast.model.quota import Quota
from holdfast.model.recovery import ObjectiveOutcome, Recovery, RecoveryPhase, is_open, objective_outcome
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import HealthState, Region
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload
from holdfast.store.objects import ObjectReads

# Age up to which a forecast of losses is shared by all pages.
FORECAST_FRESH_S = 5.0

T = TypeVar("T")


class RegionState(AnswerRow, frozen=True, kw_only=True):
    """A region as the global cell sees it. `as_of` is the time of its own answer; `problem` why it is not current."""

    name: str
    health: str
    since: str = ""
    reason: str = ""
    message: str = ""
    last_contact_at: str = ""
    lost_after_s: float = 45.0
    nodes: int = 0
    live: int = 0
    zones: tuple[str, ...] = ()
    resources: dict[str, Capacity] = {}
    pending: int = 0
    policy: str = ""
    holding: str = ""
    unreachable_from: tuple[str, ...] = ()
    as_of: float = 0.0
    problem: str = ""


class Proof(AnswerRow, frozen=True, kw_only=True):
    """The last time that a loss was survived: seconds from the last contact until every workload served."""

    recovery: str
    seconds: float
    at: str
    cause: str


class LossState(AnswerRow, frozen=True, kw_only=True):
    """One possible loss: how many critical workloads have held capacity elsewhere."""

    region: str
    zone: str = ""
    backed: int = 0
    of: int = 0
    bottleneck: str = ""
    proof: Proof | None = None


class ObjectiveState(AnswerRow, frozen=True, kw_only=True):
    deadline_s: float = 0.0
    min_serving: int = 0
    critical: int = 0
    backed: int = 0
    losses: tuple[LossState, ...] = ()


class Alert(AnswerRow, frozen=True, kw_only=True):
    severity: str
    reason: str
    subject: str
    message: str
    path: str = ""


class OverrideRow(AnswerRow, frozen=True, kw_only=True):
    name: str
    kind: str
    scope: str
    reason: str
    requester: str
    approver: str = ""
    phase: str = ""
    expires_at: str = ""
    ttl_s: float = 0.0
    revoked: bool = False
    created_at: str = ""
    conditions: tuple[Any, ...] = ()
    waits_for: str = ""


class GlobalReader:
    """The global cell and, through the hub, its regions."""

    def __init__(self, objects: ObjectReads, hub: RegionHub | PastHub, ports: Ports) -> None:
        self.objects = objects
        self.hub = hub
        self.ports = ports
        self.view = PublishedView(objects)
        self._forecast: tuple[float, ObjectiveState] | None = None

    @property
    def now_s(self) -> float:
        return self.ports.clock.now()

    def revision(self) -> int:
        return self.objects.head(kind_of(Workload))

    def region_names(self) -> list[str]:
        return [r.metadata.name for r in self.view.list(Region)]

    async def summaries(self, viewer: Viewer) -> dict[str, KnownAnswer]:
        return await self.hub.ask_all(self.region_names(), "summary", viewer)

    # Answers

    def part(self, known: KnownAnswer | None, kind: type[T]) -> T | None:
        """The data of a region's last answer, without claims about the present of a region that is out of contact."""
        found, region = part(known, kind), self._out_of_contact(known)
        return as_last_known(found, region) if found is not None and region is not None else found

    def parts(self, known: KnownAnswer | None, kind: type[T]) -> list[T]:
        """The rows of a region's last answer, as `part`."""
        found, region = parts(known, kind), self._out_of_contact(known)
        return [as_last_known(row, region) for row in found] if region is not None else found

    def known_summaries(self, answers: dict[str, KnownAnswer], viewer: Viewer) -> dict[str, RegionSummary]:
        """The totals of every region of which any are known."""
        found = {}
        for name, known in answers.items():
            summary, region = self.part(known, RegionSummary), self._out_of_contact(known)
            if summary is None and region is not None:
                seen = (a for a in self.view.list(Assignment) if viewer.sees(a.metadata.namespace))
                summary = unanswered_summary(region, seen)
            if summary is not None:
                found[name] = summary
        return found

    def _out_of_contact(self, known: KnownAnswer | None) -> Region | None:
        """The region of an answer that is not current, unless its health says that it will answer again soon."""
        if known is None or not known.problem:
            return None
        region = self.view.get(Region, known.region)
        return region if region is not None and region.status.health.state is not HealthState.HEALTHY else None

    # Regions

    def regions(self, answers: dict[str, KnownAnswer]) -> list[RegionState]:
        return [self._region(r, answers.get(r.metadata.name)) for r in self.view.list(Region)]

    def _region(self, region: Region, known: KnownAnswer | None) -> RegionState:
        health, report = region.status.health, region.status.report
        name = region.metadata.name
        summary = part(known, RegionSummary)
        resources = summary.resources if summary is not None else {}
        if not resources and report is not None:
            used, total, held = amounts(report.used), amounts(report.capacity), amounts(report.recovery_reserved)
            resources = {
                n: Capacity(total=total[n], allocated=used.get(n, 0), held=held.get(n, 0))
                for n in ("cpu", "memory", "gpu")
                if n in total
            }
        peers = [r for r in self.view.list(Region) if r.metadata.name != name and r.status.report is not None]
        cut = [
            p.metadata.name
            for p in peers
            if p.status.report is not None
            and any(seen.region == name and not seen.reachable for seen in p.status.report.peers)
        ]
        return RegionState(
            name=name,
            health=health.state.value,
            since=health.since,
            reason=health.reason,
            message=health.message,
            last_contact_at=health.last_contact_at,
            lost_after_s=region.spec.lost_after_seconds,
            nodes=report.nodes if report is not None else 0,
            live=report.live_nodes if report is not None else 0,
            zones=region.spec.zones,
            resources=resources,
            pending=report.pending if report is not None else 0,
            policy=report.policy if report is not None else "",
            holding=report.holding if report is not None else "",
            unreachable_from=tuple(cut),
            as_of=known.answer.as_of if known is not None and known.answer is not None else 0.0,
            problem=known.problem if known is not None else "not asked",
        )

    # Objectives

    def objective(self) -> ObjectiveState:
        """Computed by the functions of the `backing` controller; shared for a few seconds."""
        now_s = self.ports.clock.monotonic()
        if self._forecast is not None and now_s - self._forecast[0] < FORECAST_FRESH_S:
            return self._forecast[1]
        critical = [w for w in self.view.list(Workload) if w.spec.recovery is not None and not w.metadata.terminating]
        budgets = list(self.view.list(RecoveryBudget))
        losses = []
        for region in self.view.list(Region):
            name = region.metadata.name
            losses.append(self._loss(Loss(name), budgets, proof=last_proof(self.view.list(Recovery), name)))
        zones = [
            self._loss(Loss(r.metadata.name, zone), budgets) for r in self.view.list(Region) for zone in r.spec.zones
        ]
        if zones:
            worst = min(zones, key=lambda z: (z.backed - z.of, z.region, z.zone))
            losses.append(worst)
        objectives = [w.spec.recovery for w in critical if w.spec.recovery is not None]
        found = ObjectiveState(
            deadline_s=min((o.deadline_seconds for o in objectives), default=0.0),
            min_serving=max((o.min_serving for o in objectives), default=0),
            critical=len(critical),
            backed=sum(w.status.backing is not None and w.status.backing.backed for w in critical),
            losses=tuple(losses),
        )
        self._forecast = (now_s, found)
        return found

    def _loss(self, loss: Loss, budgets: list[RecoveryBudget], *, proof: Proof | None = None) -> LossState:
        forecast = forecast_loss(loss, self.view, budgets, self.now_s)
        short = forecast.match.shortages
        covered = len(forecast.safe) + len({(d.tenant, d.name) for d, _, _ in forecast.match.placements})
        return LossState(
            region=loss.region,
            zone=loss.zone,
            backed=covered,
            of=covered + len(short),
            bottleneck=f"{short[0].demand.tenant}/{short[0].demand.name}: {short[0].message}" if short else "",
            proof=proof,
        )

    # Attention

    def alerts(self, regions: Iterable[RegionState]) -> list[Alert]:
        """What needs a person, most urgent first. The same facts as the Prometheus alerts, from the objects."""
        found = []
        for region in regions:
            if region.health != HealthState.HEALTHY:
                severity = "bad" if region.health == HealthState.LOST else "wait"
                found.append(_alert(severity, f"Region{region.health}", region.name, region.message, "/map"))
            if region.holding:
                found.append(_alert("wait", "HoldsWork", region.name, region.holding, "/system"))
        for recovery in self.view.list(Recovery):
            if recovery.status.phase is RecoveryPhase.OPEN and is_open(recovery):
                path = f"/recovery/{recovery.metadata.name}"
                found.append(_alert("bad", "RecoveryOpen", recovery.spec.region, recovery.spec.cause, path))
        for workload in self.view.list(Workload):
            backing = workload.status.backing
            if backing is not None and not backing.backed:
                path = f"/workloads/{workload.key.namespace}/{workload.key.name}"
                found.append(_alert("wait", backing.reason or "NotBacked", str(workload.key), backing.message, path))
        for quota in self.view.list(Quota):
            over = next((c for c in quota.status.conditions if c.type == "OverQuota" and c.status == "True"), None)
            if over is not None:
                found.append(_alert("wait", "OverQuota", quota.metadata.namespace, over.message, "/quotas"))
            for row in quota.status.regions:
                if row.lease_expired:
                    text = f"the grant of {row.region} was not renewed"
                    found.append(_alert("wait", "GrantLeaseExpired", quota.metadata.namespace, text, "/quotas"))
        for policy in self.view.list(SchedulerPolicy):
            stop = policy.status.stopped
            if stop is not None:
                found.append(_alert("wait", stop.reason, policy.metadata.name, stop.message, "/policies"))
        for override in self.view.list(Override):
            left = next((c for c in override.status.conditions if c.type == "Reverted" and c.status == "False"), None)
            if left is not None:
                found.append(_alert("wait", "NotReverted", override.metadata.name, left.message, "/overrides"))
        return sorted(found, key=lambda a: (a.severity != "bad", a.reason, a.subject))

    def overrides(self, viewer: Viewer, *, live_only: bool) -> list[OverrideRow]:
        found = []
        for item in self.view.list(Override):
            if live_only and item.status.phase not in (PENDING, ACTIVE):
                continue
            if viewer.tenants is not None and not viewer.sees(item.spec.scope.tenant):
                continue
            found.append(override_row(item))
        return sorted(found, key=lambda o: (o.phase not in (PENDING, ACTIVE), o.expires_at, o.name))

    def changes(self, viewer: Viewer, tenant: str = "", *, since_s: float = 0.0) -> list[EventRow]:
        """Events of the global cell since then, the newest first. The cell keeps a bounded number of Events."""
        rows = [event_row(e, "global") for e in self.view.list(Event, tenant) if viewer.sees(e.metadata.namespace)]
        return sorted((r for r in rows if r.at and parse_time(r.at) >= since_s), key=lambda r: r.at, reverse=True)


def _alert(severity: str, reason: str, subject: str, message: str, path: str) -> Alert:
    return Alert(severity=severity, reason=reason, subject=subject, message=message, path=path)


def override_row(item: Override) -> OverrideRow:
    spec, scope = item.spec, item.spec.scope
    parts = [f"{name} {value}" for name in ("region", "zone", "tenant", "workload") if (value := getattr(scope, name))]
    waiting = item.status.phase == PENDING and not spec.approver
    return OverrideRow(
        name=item.metadata.name,
        kind=spec.kind.value,
        scope=", ".join(parts) or "everywhere",
        reason=spec.reason,
        requester=spec.requester,
        approver=spec.approver,
        phase=item.status.phase or PENDING,
        expires_at=item.status.expires_at,
        ttl_s=spec.ttl_seconds,
        revoked=spec.revoked,
        created_at=item.metadata.creation_timestamp,
        conditions=item.status.conditions,
        waits_for="a second person to approve" if waiting else "",
    )


def last_proof(recoveries: Iterable[Recovery], region: str) -> Proof | None:
    """The newest loss of this region that every critical workload survived in time."""
    lost = [r for r in recoveries if r.spec.region == region and not r.spec.zone and r.status.recovered_at]
    met = [r for r in lost if objective_outcome(r.spec, r.status, 0.0) is ObjectiveOutcome.MET]
    newest = max(met, key=lambda r: r.status.recovered_at, default=None)
    if newest is None:
        return None
    at = newest.status.recovered_at
    seconds = parse_time(at) - parse_time(newest.spec.started_at)
    return Proof(recovery=newest.metadata.name, seconds=seconds, at=at, cause=newest.spec.cause)


def part(known: KnownAnswer | None, kind: type[T]) -> T | None:
    """The data of a region's last answer; None if it never answered or in a form that this release cannot read."""
    if known is None or known.answer is None or known.answer.data is None:
        return None
    if kind not in known.parsed:
        try:
            known.parsed[kind] = msgspec.convert(known.answer.data, kind)
        except msgspec.ValidationError:
            known.parsed[kind] = None
    found: T | None = known.parsed[kind]
    return found


def parts(known: KnownAnswer | None, kind: type[T]) -> list[T]:
    """The rows of a region's last answer."""
    found = part(known, cast("type[list[T]]", list[kind]))  # type: ignore[valid-type]
    return found or []


def without_region_times(page: Any) -> tuple[Any, dict[str, float]]:
    """The page without the times of the regions' answers, which change every second, and these times."""
    regions = getattr(page, "regions", ())
    if not regions or not all(isinstance(region, RegionState) for region in regions):
        return page, {}
    timeless = tuple(msgspec.structs.replace(region, as_of=0.0) for region in regions)
    return msgspec.structs.replace(page, regions=timeless), {region.name: region.as_of for region in regions}


def merged_stages(summaries: Iterable[RegionSummary]) -> list[StageCount]:
    found: dict[str, StageCount] = {}
    for summary in summaries:
        for item in summary.stages:
            held = found.get(item.stage)
            if held is None:
                found[item.stage] = item
                continue
            known = [stage for stage in (held, item) if stage.oldest_since_s]
            older = min(known, key=lambda stage: stage.oldest_since_s, default=held)
            found[item.stage] = msgspec.structs.replace(
                older, count=held.count + item.count, at_work=held.at_work + item.at_work
            )
    return list(found.values())


def merged_spans(summaries: Iterable[RegionSummary]) -> list[StageSpan]:
    """Spans of all regions. Quantiles of the union are not known; the largest of the regions' values is shown."""
    found: dict[str, StageSpan] = {}
    for summary in summaries:
        for item in summary.spans:
            held = found.get(item.name)
            if held is None:
                found[item.name] = item
                continue
            found[item.name] = StageSpan(
                name=item.name,
                count=held.count + item.count,
                p50_s=max(held.p50_s, item.p50_s),
                p90_s=max(held.p90_s, item.p90_s),
                p99_s=max(held.p99_s, item.p99_s),
                max_s=max(held.max_s, item.max_s),
                slowest=held.slowest if held.max_s >= item.max_s else item.slowest,
                histogram=tuple(a + b for a, b in zip(held.histogram, item.histogram, strict=False)),
            )
    return list(found.values())


def merged_waits(summaries: Iterable[RegionSummary]) -> list[PendingWait]:
    return sorted((w for s in summaries for w in s.waits), key=lambda w: (w.since, w.tenant, w.workload))
