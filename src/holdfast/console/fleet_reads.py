"""The other pages of the console: overview, map, pipeline, queues, quotas, policies, audit, system, search."""

from __future__ import annotations

from typing import Any

from holdfast import __version__
from holdfast.console.answers import (
    AnswerRow,
    DecisionLine,
    EventRow,
    NodeDetail,
    PendingWait,
    RegionMap,
    RegionSystem,
    RepairRow,
    SearchHit,
    StageCount,
    StageSpan,
)
from holdfast.console.global_reads import (
    Alert,
    GlobalReader,
    ObjectiveState,
    OverrideRow,
    RegionState,
    merged_spans,
    merged_stages,
    merged_waits,
    part,
    parts,
)
from holdfast.console.recovery_reads import BudgetLine, RecoveryLine, budget_lines, line_of_recovery
from holdfast.console.region_decisions import RegionDecision
from holdfast.console.region_hub import KnownAnswer
from holdfast.console.region_reads import HISTOGRAM_BOUNDS_S
from holdfast.console.viewer import Viewer
from holdfast.console.workload_reads import WorkloadLine, line_of, number
from holdfast.gate.audit import read_records
from holdfast.insight.shadow_comparison import ShadowResult
from holdfast.model.core import Lease
from holdfast.model.errors import NotFound
from holdfast.model.kinds import ALL, kind_of
from holdfast.model.quota import Grant, Quota
from holdfast.model.recovery import Recovery, RecoveryPhase, is_open
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision, PromotionStage, SchedulerPolicy
from holdfast.model.workload import Workload, wanted_replicas

# Changes listed on the overview.
CHANGES_MAX = 20
# Failing workloads that the overview names. It counts the others.
FAILING_MAX = 3
# Age up to which a change is listed on the overview.
CHANGES_AGE_S = 3600.0
# Open recoveries whose clocks the overview shows.
RECOVERIES_MAX = 5
# Waits on one page of the queues.
QUEUE_PAGE_MAX = 200
# Audit records on one page.
AUDIT_PAGE = 100
# Hits that a search returns in all.
SEARCH_HITS_MAX = 30

Parameters = dict[str, str]


class Overview(AnswerRow, frozen=True, kw_only=True):
    objective: ObjectiveState
    regions: tuple[RegionState, ...]
    stages: tuple[StageCount, ...]
    spans: tuple[StageSpan, ...]
    replicas: int
    wanted: int
    waits: tuple[PendingWait, ...]
    waiting: int
    overrides: tuple[OverrideRow, ...]
    alerts: tuple[Alert, ...]
    changes: tuple[EventRow, ...]
    """The newest of the last hour."""
    changed: int
    """How many there were in the last hour."""
    recoveries: tuple[RecoveryLine, ...]
    """Recoveries that are not closed, running ones first."""
    budgets: tuple[BudgetLine, ...]
    remaining: tuple[str, ...]
    counts: dict[str, int]
    served_last_hour: int = 0
    failed_last_hour: int = 0
    failing: tuple[WorkloadLine, ...] = ()
    """Workloads that failed, or whose newest template never serves unless somebody acts."""
    failing_total: int = 0


async def overview(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> Overview:
    answers = await reader.summaries(viewer)
    summaries = list(reader.known_summaries(answers, viewer).values())
    regions = reader.regions(answers)
    waits = merged_waits(summaries)
    overrides = reader.overrides(viewer, live_only=True)
    recoveries = [r for r in reader.view.list(Recovery) if is_open(r)]
    recoveries.sort(key=lambda r: (r.status.phase is not RecoveryPhase.OPEN, r.spec.started_at))
    changes = reader.changes(viewer, since_s=reader.now_s - CHANGES_AGE_S)
    lines = (line_of(w) for w in reader.view.list(Workload) if viewer.sees(w.metadata.namespace))
    failing = [line for line in lines if line.state == "bad"]
    return Overview(
        objective=reader.objective(),
        regions=tuple(regions),
        stages=tuple(merged_stages(summaries)),
        spans=tuple(merged_spans(summaries)),
        replicas=sum(s.replicas for s in summaries),
        wanted=wanted_in_all(reader, viewer),
        waits=tuple(waits[:5]),
        waiting=sum(s.waiting for s in summaries),
        overrides=tuple(overrides[:10]),
        alerts=tuple(a for a in reader.alerts(regions) if viewer.tenants is None)[:10],
        changes=tuple(changes[:CHANGES_MAX]),
        changed=len(changes),
        recoveries=tuple(line_of_recovery(r, reader.now_s) for r in recoveries[:RECOVERIES_MAX]),
        budgets=tuple(budget_lines(reader)) if viewer.tenants is None else (),
        remaining=tuple(text for r in recoveries for text in r.status.remaining)[:10],
        counts=await navigation(reader, viewer, {}),
        served_last_hour=sum(s.served_last_hour for s in summaries),
        failed_last_hour=sum(s.failed_last_hour for s in summaries),
        failing=tuple(failing[:FAILING_MAX]),
        failing_total=len(failing),
    )


def wanted_in_all(reader: GlobalReader, viewer: Viewer) -> int:
    """Replicas that the workloads want, in all regions together."""
    return sum(wanted_replicas(w) for w in reader.view.list(Workload) if viewer.sees(w.metadata.namespace))


async def navigation(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> dict[str, int]:
    """The counts beside the names of pages."""
    answers = await reader.summaries(viewer)
    summaries = list(reader.known_summaries(answers, viewer).values())
    return {
        "workloads": sum(viewer.sees(w.metadata.namespace) for w in reader.view.list(Workload)),
        "nodes": sum(r.status.report.nodes for r in reader.view.list(Region) if r.status.report is not None),
        "queues": sum(s.waiting for s in summaries),
        "overrides": len(reader.overrides(viewer, live_only=True)),
        "repairs": sum(s.repairs for s in summaries),
    }


class MapPage(AnswerRow, frozen=True, kw_only=True):
    regions: tuple[RegionState, ...]
    maps: dict[str, RegionMap | None]
    nodes: int
    resource: str
    overrides: tuple[OverrideRow, ...] = ()


async def map_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> MapPage:
    resource = parameters.get("resource", "cpu")
    answers = await reader.hub.ask_all(reader.region_names(), "map", viewer, resource=resource)
    maps = {region: reader.part(known, RegionMap) for region, known in answers.items()}
    return MapPage(
        regions=tuple(reader.regions(answers)),
        maps=maps,
        nodes=sum(m.nodes for m in maps.values() if m is not None),
        resource=resource,
        overrides=tuple(o for o in reader.overrides(viewer, live_only=True) if o.kind.startswith("Avoid")),
    )


async def node_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> NodeDetail:
    known = await reader.hub.ask(parameters.get("region", ""), "node", viewer, node=parameters.get("node", ""))
    found = reader.part(known, NodeDetail)
    if found is None:
        raise NotFound(known.problem or "node: not found")
    return found


class PipelinePage(AnswerRow, frozen=True, kw_only=True):
    regions: tuple[RegionState, ...]
    stages: tuple[StageCount, ...]
    spans: tuple[StageSpan, ...]
    by_region: dict[str, tuple[StageSpan, ...]]
    stages_by_region: dict[str, tuple[StageCount, ...]]
    wanted: int
    served_last_hour: int
    failed_last_hour: int
    bounds_s: tuple[float, ...]


async def pipeline_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> PipelinePage:
    answers = await reader.summaries(viewer)
    found = reader.known_summaries(answers, viewer)
    return PipelinePage(
        regions=tuple(reader.regions(answers)),
        stages=tuple(merged_stages(found.values())),
        spans=tuple(merged_spans(found.values())),
        by_region={region: s.spans for region, s in found.items()},
        stages_by_region={region: s.stages for region, s in found.items()},
        wanted=wanted_in_all(reader, viewer),
        served_last_hour=sum(s.served_last_hour for s in found.values()),
        failed_last_hour=sum(s.failed_last_hour for s in found.values()),
        bounds_s=HISTOGRAM_BOUNDS_S,
    )


class QueuePage(AnswerRow, frozen=True, kw_only=True):
    regions: tuple[RegionState, ...]
    rows: tuple[PendingWait, ...]
    total: int
    replicas: int
    by_reason: dict[str, int]


async def queue_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> QueuePage:
    answers = await reader.summaries(viewer)
    found = list(reader.known_summaries(answers, viewer).values())
    waits = merged_waits(found)
    reasons: dict[str, int] = {}
    for wait in waits:
        reasons[wait.reason] = reasons.get(wait.reason, 0) + wait.replicas
    return QueuePage(
        regions=tuple(reader.regions(answers)),
        rows=tuple(waits[:QUEUE_PAGE_MAX]),
        total=len(waits),
        replicas=sum(s.waiting for s in found),
        by_reason=reasons,
    )


class DecisionList(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[DecisionLine, ...]
    regions: tuple[RegionState, ...]


async def decision_list(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> DecisionList:
    answers = await reader.hub.ask_all(reader.region_names(), "decisions", viewer)
    rows = [d for known in answers.values() for d in parts(known, DecisionLine)]
    rows.sort(key=lambda d: d.at, reverse=True)
    return DecisionList(rows=tuple(rows[:100]), regions=tuple(reader.regions(answers)))


async def decision_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> RegionDecision:
    tenant, name = parameters.get("tenant", ""), parameters.get("name", "")
    known = await reader.hub.ask(parameters.get("region", ""), "decision", viewer, tenant=tenant, decision=name)
    found = part(known, RegionDecision)
    if found is None:
        raise NotFound(known.problem or "decision: not found")
    return found


class QuotaLine(AnswerRow, frozen=True, kw_only=True):
    tenant: str
    hard: dict[str, Any]
    used: dict[str, Any]
    granted: dict[str, Any]
    protected: dict[str, Any]
    recovery_allowance: dict[str, Any]
    regions: tuple[Any, ...]
    conditions: tuple[Any, ...]


class QuotaPage(AnswerRow, frozen=True, kw_only=True):
    quotas: tuple[QuotaLine, ...]
    grants: tuple[Any, ...]
    budgets: tuple[Any, ...]


def quota_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> QuotaPage:
    quotas = [q for q in reader.view.list(Quota) if viewer.sees(q.metadata.namespace)]
    grants = [
        {
            "tenant": g.metadata.namespace,
            "name": g.metadata.name,
            "region": g.spec.region,
            "class": g.spec.grant_class.value,
            "limit": g.spec.limit,
            "used": g.status.used,
            "enforced": g.status.limit,
            "epoch": g.spec.epoch,
            "acknowledged": g.status.acknowledged_epoch,
            "renewedAt": g.status.renewed_at,
            "leaseSeconds": g.spec.lease_seconds,
            "endsAt": g.spec.ends_at,
        }
        for g in reader.view.list(Grant)
        if viewer.sees(g.metadata.namespace)
    ]
    budgets = [
        {
            "region": b.spec.region,
            "name": b.metadata.name,
            "shapes": [
                {"resources": s.resources, "count": s.count, "minZones": s.min_zones} for s in b.spec.slot_shapes
            ],
            "admitted": b.status.admitted,
            "consumed": b.status.consumed,
            "tenants": b.spec.tenants,
        }
        for b in reader.view.list(RecoveryBudget)
        if viewer.tenants is None
    ]
    lines = tuple(
        QuotaLine(
            tenant=q.metadata.namespace,
            hard=q.spec.hard,
            used=q.status.used,
            granted=q.status.granted,
            protected=q.spec.protected,
            recovery_allowance=q.spec.recovery_allowance,
            regions=q.status.regions,
            conditions=q.status.conditions,
        )
        for q in quotas
    )
    return QuotaPage(quotas=lines, grants=tuple(grants), budgets=tuple(budgets))


class PolicyPage(AnswerRow, frozen=True, kw_only=True):
    policies: tuple[Any, ...]
    revisions: tuple[Any, ...]
    in_use: dict[str, str]
    """Region → revision that it reports."""
    trials: dict[str, Any]
    shadow: str = ""
    """The revision of the policy that is in shadow; empty if none is."""
    shadow_results: tuple[ShadowResult, ...] = ()


async def policy_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> PolicyPage:
    policies = [
        {
            "name": p.metadata.name,
            "stage": p.spec.stage.value,
            "canaryRegions": p.spec.canary_regions,
            "revision": p.status.revision,
            "sequence": p.status.sequence,
            "stopped": p.status.stopped,
            "guard": p.spec.guard,
        }
        for p in reader.view.list(SchedulerPolicy)
    ]
    revisions = [
        {
            "name": r.metadata.name,
            "policy": r.spec.policy,
            "sequence": r.spec.sequence,
            "stage": r.spec.stage.value,
            "regions": r.spec.regions,
            "rules": r.spec.rules,
            "createdAt": r.metadata.creation_timestamp,
        }
        for r in sorted(reader.view.list(PolicyRevision), key=lambda r: r.spec.sequence, reverse=True)[:20]
    ]
    regions = list(reader.view.list(Region))
    shadowed = (p for p in reader.view.list(SchedulerPolicy) if p.spec.stage is PromotionStage.SHADOW)
    shadow = next((p.status.revision for p in shadowed), "")
    answers: dict[str, KnownAnswer] = {}
    if shadow and viewer.tenants is None:
        answers = await reader.hub.ask_all(reader.region_names(), "shadow", viewer, revision=shadow)
    return PolicyPage(
        policies=tuple(policies),
        revisions=tuple(revisions),
        in_use={r.metadata.name: r.status.report.policy for r in regions if r.status.report is not None},
        trials={r.metadata.name: r.status.report.policy_trial for r in regions if r.status.report is not None},
        shadow=shadow,
        shadow_results=tuple(r for known in answers.values() if (r := part(known, ShadowResult)) is not None),
    )


class OverridePage(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[OverrideRow, ...]


def override_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> OverridePage:
    return OverridePage(rows=tuple(reader.overrides(viewer, live_only=False)[:200]))


class RepairPage(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[RepairRow, ...]
    regions: tuple[RegionState, ...]


async def repair_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> RepairPage:
    answers = await reader.hub.ask_all(reader.region_names(), "repairs", viewer)
    rows = [r for known in answers.values() for r in parts(known, RepairRow)]
    rows.sort(key=lambda r: r.at, reverse=True)
    return RepairPage(rows=tuple(rows[:200]), regions=tuple(reader.regions(answers)))


class AuditPage(AnswerRow, frozen=True, kw_only=True):
    """Records of the global cell, the newest first. `before` continues with older ones."""

    rows: tuple[Any, ...]
    before: int = 0
    total: int = 0


async def audit_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> AuditPage:
    store = reader.objects.store_of(kind_of(Workload))
    newest = await _newest_record(reader)
    end = number(parameters, "before", newest + 1) or newest + 1
    people = parameters.get("who", "people") == "people"
    wanted: list[Any] = []
    start = end
    # Bounded: a page looks at no more than 20 blocks of records, however few of them match.
    for _ in range(20):
        start = max(0, start - 500 - 1)
        block = await read_records(store, after=start, limit=min(500, end - 1 - start)) if end - 1 > start else []
        rows = [{"sequence": seq, **record} for seq, record in block if seq < end]
        wanted += [r for r in reversed(rows) if not people or not str(r.get("principal", "")).startswith("holdfast:")]
        end = start + 1
        if len(wanted) >= AUDIT_PAGE or start <= 0:
            break
    last = wanted[AUDIT_PAGE - 1]["sequence"] if len(wanted) > AUDIT_PAGE else (end if start > 0 else 0)
    return AuditPage(rows=tuple(wanted[:AUDIT_PAGE]), before=last, total=newest)


async def _newest_record(reader: GlobalReader) -> int:
    """The sequence of the newest record: the log can only be read forward, so the end is searched for."""
    store = reader.objects.store_of(kind_of(Workload))
    low, high = 0, 1024
    while await read_records(store, after=high, limit=1):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await read_records(store, after=middle, limit=1) else (low, middle)
    return low + 1


class SystemPage(AnswerRow, frozen=True, kw_only=True):
    version: str
    revision: int
    behind: int
    """Revisions of the store that its watch has not delivered yet."""
    compacted: int
    objects: dict[str, int]
    leaders: tuple[Any, ...]
    regions: tuple[RegionState, ...]
    cells: dict[str, RegionSystem | None]


async def system_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> SystemPage:
    answers = await reader.hub.ask_all(reader.region_names(), "system", viewer)
    store = reader.objects.store_of(kind_of(Workload))
    leaders = [
        {
            "cell": "global",
            "election": lease.metadata.name,
            "holder": lease.spec.holder_identity,
            "renewedAt": lease.spec.renew_time or "",
            "transitions": lease.spec.lease_transitions,
        }
        for lease in reader.view.list(Lease)
        if lease.spec.holder_identity and lease.spec.renew_time
    ]
    return SystemPage(
        version=__version__,
        revision=store.head,
        behind=max(0, store.head - reader.revision()),
        compacted=store.compacted,
        objects={k.plural: len(reader.objects.list(k)[0]) for k in ALL if k.home.value != "region" and not k.internal},
        leaders=tuple(leaders),
        regions=tuple(reader.regions(answers)),
        cells={region: part(known, RegionSystem) for region, known in answers.items()},
    )


class SearchPage(AnswerRow, frozen=True, kw_only=True):
    hits: tuple[SearchHit, ...]


async def search_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> SearchPage:
    text = parameters.get("text", "").strip().lower()[:100]
    if not text:
        return SearchPage(hits=())
    hits: list[SearchHit] = []
    for workload in reader.view.list(Workload):
        key = f"{workload.metadata.namespace}/{workload.metadata.name}"
        if text in key and viewer.sees(workload.metadata.namespace) and len(hits) < 8:
            line = line_of(workload)
            note = f"{line.serving} of {line.wanted} serve" if line.type == "Service" else line.reason
            stage = {"ok": "Serving", "wait": "Queued", "bad": "Failed"}.get(line.state, "Starting")
            hits.append(SearchHit(kind="Workload", name=key, note=note, path=f"/workloads/{key}", stage=stage))
    answers = await reader.hub.ask_all(reader.region_names(), "search", viewer, text=text)
    for kind in ("Replica", "Node", "Decision"):
        found = [h for known in answers.values() for h in reader.parts(known, SearchHit) if h.kind == kind]
        hits += found[:8]
    return SearchPage(hits=tuple(hits[:SEARCH_HITS_MAX]))
