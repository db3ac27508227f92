"""One Decision of a regional cell for the console: its record, the matrix on the state of its time, and its replay."""

from __future__ import annotations

from typing import cast

from holdfast.console.answers import AnswerRow
from holdfast.console.region_reads import RegionReader
from holdfast.console.viewer import Viewer
from holdfast.insight.decision_matrix import DecisionMatrix, decision_matrix
from holdfast.insight.replay import (
    NotReplayable,
    ReplayState,
    rebuild_snapshot,
    recorded_requirements,
    recorded_rules,
    replay,
    required_history,
)
from holdfast.insight.why_not import SuggestedFix, WhyNotQuery, suggested_remedies
from holdfast.model import input_freshness
from holdfast.model.decision import Decision, DecisionEntry
from holdfast.model.errors import Expired, NotFound
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import BY_NAME, kind_of
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import Key, Object
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import RefusalCount, SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.scheduling.last_contact import last_contact_s


class EvidenceAge(AnswerRow, frozen=True, kw_only=True):
    """How old an input was when the decision was made, and the age at which it would have been refused."""

    input: str
    age_s: float
    limit_s: float = 0.0


class RegionDecision(AnswerRow, frozen=True, kw_only=True):
    """`matrix` is missing if the state of that time cannot be rebuilt; `replay` then says why."""

    name: str
    tenant: str
    workload: str
    request: str
    at: str
    queued_at: str
    nodes: int
    feasible: int
    policy: str
    seed: int
    planner: str
    snapshot_hash: str
    snapshot_revision: int
    resources: dict[str, str]
    priority: int
    position: int
    waiting: int
    attempts: int
    entries: tuple[DecisionEntry, ...]
    refusals: tuple[RefusalCount, ...]
    overrides: tuple[str, ...] = ()
    matrix: DecisionMatrix | None = None
    replay: str = ""
    replay_message: str = ""
    differences: tuple[str, ...] = ()
    evidence: tuple[EvidenceAge, ...] = ()
    next_retry_at: str = ""
    retry_on: tuple[str, ...] = ()
    still_pending: int = 0
    remedies: tuple[str, ...] = ()


async def decision(reader: RegionReader, viewer: Viewer, tenant: str, name: str) -> RegionDecision:
    viewer.require_tenant(tenant, "decisions")
    found = reader.get(Decision, name, tenant)
    if not isinstance(found, Decision):
        raise NotFound(f"decision {tenant}/{name}: not found in region {reader.region}")
    spec = found.spec
    matrix, outcome, message, differences, fix = await _rebuilt(reader, found)
    request = reader.get(SchedulingRequest, spec.request, tenant)
    status = request.status if isinstance(request, SchedulingRequest) else None
    current = status is not None and status.decision == name and status.pending > 0
    return RegionDecision(
        name=name,
        tenant=tenant,
        workload=spec.workload,
        request=spec.request,
        at=spec.decided_at,
        queued_at=spec.queued_at,
        nodes=spec.nodes,
        feasible=spec.feasible,
        policy=spec.policy_revision,
        seed=spec.seed,
        planner=spec.planner,
        snapshot_hash=spec.snapshot_hash,
        snapshot_revision=spec.snapshot_revision,
        resources={name: str(amount) for name, amount in spec.inputs.resources.items()},
        priority=spec.inputs.priority,
        position=spec.queue.position,
        waiting=spec.queue.waiting,
        attempts=spec.queue.attempts,
        entries=spec.entries,
        refusals=spec.refusals,
        overrides=spec.overrides,
        matrix=matrix,
        replay=outcome,
        replay_message=message,
        differences=differences,
        evidence=await _evidence(reader, found),
        next_retry_at=status.next_retry_at if status is not None and current else "",
        retry_on=status.retry_on if status is not None and current else (),
        still_pending=status.pending if status is not None and current else 0,
        remedies=_remedies(found, fix),
    )


async def _rebuilt(
    reader: RegionReader, decision: Decision
) -> tuple[DecisionMatrix | None, str, str, tuple[str, ...], SuggestedFix | None]:
    """The matrix, the replay's outcome with a message and differences, and the smallest change on the nearest node."""
    try:
        state = await _history(reader, decision)
    except Expired as gone:
        return None, "HistoryCompacted", str(gone), (), None
    snapshot = rebuild_snapshot(reader.region, decision, state)
    if isinstance(snapshot, NotReplayable) or state.request is None:
        why = snapshot if isinstance(snapshot, NotReplayable) else NotReplayable("RequestMissing", "request not found")
        return None, why.reason, why.message, (), None
    rules, now_s = recorded_rules(state), parse_time(decision.spec.decided_at)
    requirements = recorded_requirements(decision.spec, state.request)
    matrix = decision_matrix(snapshot, requirements, rules, now_s, decision.spec.policy_revision)
    unplaced = any(not entry.node for entry in decision.spec.entries)
    fix = WhyNotQuery(snapshot, requirements, rules, now_s).suggested_fix() if unplaced else None
    result = replay(reader.region, decision, state)
    if isinstance(result, NotReplayable):
        return matrix, result.reason, result.message, (), fix
    return matrix, "Identical" if result.identical else "Different", "", result.differences, fix


async def _history(reader: RegionReader, decision: Decision) -> ReplayState:
    required = required_history(decision)
    objects: list[Object] = []
    for name, revision in required.kinds.items():
        objects.extend((await reader.objects.page(BY_NAME[name], at=revision, after="", limit=0)).items)
    newer = {item: await _at(reader, item.kind, item.key, item.revision) for item in required.newer_objects}
    request = await _at(reader, "SchedulingRequest", required.request, required.request_revision)
    policy = None
    if required.policy:
        policy = reader.get(PolicyRevision, required.policy) or await _at(
            reader, "PolicyRevision", Key("", required.policy), required.policy_revision
        )
    return ReplayState(
        objects=tuple(objects),
        newer_objects=newer,
        request=cast("SchedulingRequest | None", request),
        policy=cast("PolicyRevision | None", policy),
        decisions=tuple(cast("list[Decision]", reader.all(Decision))),
    )


async def _at(reader: RegionReader, kind: str, key: Key, revision: int) -> Object | None:
    page = await reader.objects.page(BY_NAME[kind], key.namespace, at=revision, after="", limit=0)
    return next((item for item in page.items if item.key == key), None)


async def _evidence(reader: RegionReader, decision: Decision) -> tuple[EvidenceAge, ...]:
    """Ages of the inputs when the decision was made, from the store's history; empty if it is compacted."""
    spec, tenant = decision.spec, decision.metadata.namespace
    at_s = parse_time(spec.decided_at)
    try:
        copies = cast("list[GrantCopy]", await _all_at(reader, GrantCopy, spec.snapshot_revision))
        pages = cast("list[LeasePage]", await _all_at(reader, LeasePage, spec.snapshot_revision))
    except Expired:
        return ()
    renewals = [lease.renewed_at_s for page in pages for lease in page.spec.leases.values()]
    live = [at_s - s for s in renewals if at_s - s <= input_freshness.NODE_REPORT.seconds]
    found = []
    if live:
        oldest_s = max(0.0, *live)
        found.append(EvidenceAge(input="Node reports", age_s=oldest_s, limit_s=input_freshness.NODE_REPORT.seconds))
    for copy in (c for c in copies if c.metadata.namespace == tenant and c.spec.last_contact_at):
        age_s = at_s - parse_time(copy.spec.last_contact_at)
        limit_s = parse_time(copy.spec.lease_expires_at) - parse_time(copy.spec.last_contact_at)
        found.append(EvidenceAge(input=f"Grant, {copy.spec.grant_class}", age_s=max(0.0, age_s), limit_s=limit_s))
    contact_s = last_contact_s(copies)
    if contact_s <= at_s:
        for name, age in (("Policy", input_freshness.POLICY), ("Overrides", input_freshness.OVERRIDE)):
            found.append(EvidenceAge(input=name, age_s=at_s - contact_s, limit_s=age.seconds))
    return tuple(found)


async def _all_at(reader: RegionReader, kind: type[Object], revision: int) -> list[Object]:
    page = await reader.objects.page(kind_of(kind), at=revision, after="", limit=0)
    return list(page.items)


def _remedies(decision: Decision, fix: SuggestedFix | None) -> tuple[str, ...]:
    found = suggested_remedies(fix, (r.reason for r in decision.spec.refusals), decision.metadata.namespace)
    return tuple(change.text for change in found) or ((fix.text,) if fix is not None and fix.text else ())
