"""Effects of a manifest, a drain or a recovery: the real controllers and planner run on copies. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.controllers.cache import Cache
from holdfast.fleet import assign
from holdfast.insight.planned_quota import PLANNED_REVISION, planned_grants, put_planned
from holdfast.insight.region_clients import RegionClient, RegionClients, list_all, now_s
from holdfast.insight.spec_diff import WorkloadChange, workload_change
from holdfast.insight.why_not import WhyNotQuery, WhyNotResult, suggestion
from holdfast.model.assignment import Assignment, Purpose, assignment_name
from holdfast.model.binding import Binding
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import API_VERSION, Key, Object
from holdfast.model.node import Node
from holdfast.model.ownership import ASSIGNMENTS_FINALIZER
from holdfast.model.quota import Grant
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.view import View
from holdfast.model.workload import Workload, default_workload, validate_workload, wanted_replicas
from holdfast.model.writes import Create, Delete, Outcome, Update
from holdfast.scheduling import replicate
from holdfast.scheduling.eviction import rebalance
from holdfast.scheduling.plan import RequestPlan, plan
from holdfast.scheduling.replica_requirements import request_for

GLOBAL_KINDS = (
    "Region",
    "PriorityClass",
    "Tenant",
    "Quota",
    "Assignment",
    "Workload",
    "Grant",
    "Recovery",
    "Override",
    "PolicyRevision",
    "VolumeClaim",
)
"""Kinds that `assign` and `grant` read."""
SEED = 1


class PlannedPlacement(msgspec.Struct, frozen=True, rename="camel"):
    """The node and victims of one replica, or why it would be pending."""

    region: str
    replica: str
    node: str = ""
    victims: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    to_fit: str = ""
    tenant: str = ""
    workload: str = ""


class PlannedRemoval(msgspec.Struct, frozen=True):
    """A replica that would be deleted. `node` is empty if it is not placed."""

    region: str
    replica: str
    node: str = ""
    tenant: str = ""
    workload: str = ""


class RejectedChange(msgspec.Struct, frozen=True):
    """A workload that the server would refuse, and its message."""

    workload: str
    why: str


class WhatIfResult(msgspec.Struct, frozen=True):
    """Refused workloads, changed fields, planned placements and planned removals."""

    refused: tuple[RejectedChange, ...] = ()
    changes: tuple[WorkloadChange, ...] = ()
    placings: tuple[PlannedPlacement, ...] = ()
    removals: tuple[PlannedRemoval, ...] = ()


class AppliedWorkload(msgspec.Struct, frozen=True):
    """What the global cell would do with one workload: its changed fields, the Assignments it would write, those it
    would delete, the tenant's Grants for them, and why no region takes it, if none does."""

    change: WorkloadChange
    assignments: tuple[Assignment, ...] = ()
    ended: tuple[Assignment, ...] = ()
    grants: tuple[Grant, ...] = ()
    refused: PlannedPlacement | None = None


class RegionOutcome(msgspec.Struct, frozen=True):
    """What one region would do: placements and removals."""

    placings: tuple[PlannedPlacement, ...] = ()
    removals: tuple[PlannedRemoval, ...] = ()


class ManifestWorkload(msgspec.Struct, frozen=True):
    """A workload of a manifest, and its document as written."""

    workload: Workload
    document: dict[str, Any]


def what_if_admitted(api: CellApi, manifests: Sequence[ManifestWorkload]) -> WhatIfResult:
    """What the global cell would store or refuse, for a caller that may not read nodes and other tenants."""
    changes: list[WorkloadChange] = []
    refused: list[RejectedChange] = []
    for manifest in manifests:
        key = manifest.workload.key
        path = f"/apis/holdfast.dev/v1/namespaces/{quote(key.namespace)}/workloads"
        stored = list_all(api, path, {"fieldSelector": f"metadata.name={key.name}"})
        try:
            made = api.apply(manifest.document, "workloads", manager="holdfast-plan", dry_run=True)
        except ApiRefusal as refusal:
            refused.append(RejectedChange(str(key), refusal.why))
            continue
        before = msgspec.convert(stored[0], Workload) if stored else None
        changes.append(workload_change(msgspec.convert(made, Workload), before))
    return WhatIfResult(tuple(refused), tuple(change for change in changes if change))


def what_if_applied(
    regions: RegionClients, manifests: Sequence[ManifestWorkload], *, rules: PolicyRules | None = None
) -> WhatIfResult:
    """Each workload as the global cell would assign it and the regions would place it, in order.

    For a rollout, only its first step is shown.
    """
    now = now_s()
    view = Cache()
    for kind in GLOBAL_KINDS:
        entry = BY_NAME[kind]
        for item in list_all(regions.global_api, f"/apis/holdfast.dev/v1/{entry.plural}", {}):
            view.put(msgspec.convert(item, entry.type))
    found: list[PlannedPlacement] = []
    removals: list[PlannedRemoval] = []
    changes: list[WorkloadChange] = []
    refused: list[RejectedChange] = []
    for manifest in manifests:
        submitted = manifest.workload
        why = _admission(regions, manifest.document)
        if why:
            refused.append(RejectedChange(str(submitted.key), why))
            continue
        applied = apply_to_view(view, submitted, now)
        changes.append(applied.change)
        if applied.refused is not None:
            found.append(applied.refused)
        for name in dict.fromkeys(a.spec.region for a in (*applied.assignments, *applied.ended)):
            wanted = [a for a in applied.assignments if a.spec.region == name]
            ended = [a.key for a in applied.ended if a.spec.region == name]
            region = next((r for r in regions.reachable if r.name == name), None)
            if region is not None:
                outcome = planned_in_region(region, wanted, ended, now, rules=rules, grants=applied.grants)
                found += outcome.placings
                removals += outcome.removals
            else:
                found += [unreachable_placement(a) for a in wanted]
    return WhatIfResult(tuple(refused), tuple(c for c in changes if c), tuple(found), tuple(removals))


def apply_to_view(view: Cache, submitted: Workload, now: float) -> AppliedWorkload:
    """The global cell's decision on a submitted workload. Puts the workload, its Assignments and the tenant's Grants
    into the view, for those that follow."""
    defaulted = default_workload(submitted)
    stored = view.get(Workload, submitted.metadata.name, submitted.metadata.namespace)
    workload = _as_stored(defaulted, stored)
    view.put(workload)
    outcome = assign.decide(workload.key, view, now)
    assignments = tuple(
        w.object for w in outcome.writes if isinstance(w, Create | Update) and isinstance(w.object, Assignment)
    )
    deleted = {w.key for w in outcome.writes if isinstance(w, Delete) and w.kind == "Assignment"}
    held = _assigned(view, workload.key)
    nowhere = wanted_replicas(workload) and not assignments and not held
    for assignment in assignments:
        put_planned(view, assignment)
    for key in deleted:
        view.remove(Assignment, key, PLANNED_REVISION * 2)
    return AppliedWorkload(
        change=workload_change(defaulted, stored),
        assignments=assignments,
        ended=tuple(a for a in held if a.key in deleted),
        grants=planned_grants(view, workload.metadata.namespace, now),
        refused=_no_region(workload, view.list(BY_NAME["Region"].type)) if nowhere else None,
    )


def planned_in_region(
    region: RegionClient,
    assignments: Sequence[Assignment],
    ended: Sequence[Key],
    now: float,
    *,
    rules: PolicyRules | None = None,
    grants: Sequence[Grant] = (),
) -> RegionOutcome:
    """Placements and removals of these Assignments in a region, in order; `ended` are deleted ones. The region enforces
    `grants` from the start; tenants without one there keep what they have."""
    region.assume_grants(grants)
    placings = [p for a in assignments for p in _in_region(region, a, rules, now)]
    removals = [r for a in assignments for r in _removed(region, a.key, a, now)]
    removals += [r for key in ended for r in _removed(region, key, None, now)]
    return RegionOutcome(tuple(placings), tuple(removals))


def unreachable_placement(assignment: Assignment) -> PlannedPlacement:
    """The replicas of an Assignment whose region does not answer."""
    spec, meta = assignment.spec, assignment.metadata
    return PlannedPlacement(
        spec.region,
        spec.workload,
        tenant=meta.namespace,
        workload=spec.workload,
        reason="RegionNotHealthy",
        message=f"region {spec.region} is unreachable; it would get {spec.replicas} replica(s)",
    )


def _admission(regions: RegionClients, document: dict[str, Any]) -> str:
    """The server's refusal in a dry run; empty if accepted."""
    try:
        regions.global_api.apply(document, "workloads", manager="holdfast-plan", dry_run=True)
    except ApiRefusal as refusal:
        return refusal.why
    return ""


def _assigned(view: View, workload: Key) -> list[Assignment]:
    return [
        a
        for a in view.list(Assignment)
        if (a.metadata.namespace, a.spec.workload) == (workload.namespace, workload.name)
    ]


def what_if_drained(region: RegionClient, node: str, *, rules: PolicyRules | None = None) -> list[PlannedPlacement]:
    """Placements of the node's replicas if it were drained now."""
    now = now_s()
    builder = region.builder()
    node_object: Node | None = region.get_object("Node", Key("", node))
    assert node_object is not None
    builder.upsert(msgspec.structs.replace(node_object, spec=msgspec.structs.replace(node_object.spec, drain=True)))
    bound: list[Binding] = [
        b for b in region.list_objects("Binding") if b.spec.node == node and not b.spec.quota_released
    ]
    replicas = {(r.metadata.namespace, r.metadata.name): r for r in region.list_objects("Replica")}
    found: list[PlannedPlacement] = []
    for binding in bound:
        replica = replicas.get((binding.metadata.namespace, binding.spec.replica))
        if replica is None:
            continue
        builder.delete(binding)
        found += _planned(region, request_for(replica, attempt=replica.status.placement.attempt + 1), rules, now)
    return found


def what_if_recovered(
    region: RegionClient, requested: Sequence[tuple[Workload, int]], view: View, *, lost_zone: str = ""
) -> list[PlannedPlacement]:
    """Placements and victims of the replicas to recover in a region, in order.

    With `lost_zone` the region's nodes in that zone are excluded.
    """
    now = now_s()
    if lost_zone:
        for node in [n for n in region.list_objects("Node") if n.spec.zone == lost_zone]:
            region.builder().delete(node)
    found: list[PlannedPlacement] = []
    for workload, count in requested:
        name = assignment_name(workload.metadata.name, region.name, Purpose.RECOVERY)
        stored = view.get(Assignment, name, workload.metadata.namespace)
        have = stored.spec.replicas if stored is not None else 0
        spec = assign.assignment_spec(workload, region.name, have + count, view, purpose=Purpose.RECOVERY)
        if spec is not None:
            assignment = Assignment(metadata=assign.assignment_meta(workload, region.name, Purpose.RECOVERY), spec=spec)
            found += _in_region(region, assignment, None, now)
    return found


class PlannedMove(msgspec.Struct, frozen=True, rename="camel"):
    """A replica that rebalancing would move, and why."""

    region: str
    replica: str
    from_node: str
    to_node: str
    message: str


class RebalancePlan(msgspec.Struct, frozen=True):
    """Moves that are due. `stopped` says why the region moves nothing at the moment."""

    stopped: str = ""
    moves: tuple[PlannedMove, ...] = ()


def what_if_rebalanced(region: RegionClient) -> RebalancePlan:
    """The moves that rebalancing would request in the region now, as if it could request several at once. Each is
    planned for the present state."""
    now = now_s()
    view = Cache()
    for kind in rebalance.READS:
        for item in region.list_objects(kind.__name__):
            view.put(item)
    moves = tuple(
        PlannedMove(region.name, str(m.replica.key), m.replica.status.placement.node, m.to_node, m.message)
        for m in rebalance.find_moves(region.name, view, now, plans_max=len(view.list(Assignment)))
    )
    return RebalancePlan(rebalance.stop_reason(view, now), moves)


def workloads_in(documents: Iterable[Any]) -> list[ManifestWorkload]:
    """The workloads of a manifest. Other kinds are ignored."""
    manifests = [d for d in documents if isinstance(d, dict) and d.get("kind") == "Workload"]
    return [ManifestWorkload(msgspec.convert(d, Workload), {"apiVersion": API_VERSION, **d}) for d in manifests]


def problems(workload: Workload) -> list[str]:
    return [f"{c.field}: {c.message}" for c in validate_workload(default_workload(workload), None)]


def _as_stored(workload: Workload, stored: Workload | None) -> Workload:
    """The workload as the server would store it."""
    submitted = workload.metadata
    old = stored.metadata if stored is not None else None
    meta = msgspec.structs.replace(
        submitted,
        uid=old.uid if old is not None else f"planned-{submitted.namespace}-{submitted.name}",
        generation=(old.generation if old is not None else 0) + 1,
        resource_version=str(2**53),
        creation_timestamp=old.creation_timestamp if old is not None else "2026-01-01T00:00:00Z",
        finalizers=(ASSIGNMENTS_FINALIZER,),
    )
    status = stored.status if stored is not None else workload.status
    return msgspec.structs.replace(workload, metadata=meta, status=status)


def _no_region(workload: Workload, regions: Sequence[Any]) -> PlannedPlacement:
    why = [f"{r.metadata.name}: {text}" for r in regions if (text := assign.region_refusal_reason(workload, r))]
    message = "; ".join(why) or "no region takes it now"
    name, tenant = workload.metadata.name, workload.metadata.namespace
    return PlannedPlacement("", name, reason="NoRegionAllowed", message=message, tenant=tenant, workload=name)


def _replicated(region: RegionClient, key: Key, assignment: Assignment | None, now: float) -> Outcome:
    """The replicate controller's outcome for an assignment; None for a deleted one."""
    view = Cache()
    if assignment is not None:
        meta = assignment.metadata
        uid = meta.uid or f"planned-{meta.name}"
        view.put(
            msgspec.structs.replace(assignment, metadata=msgspec.structs.replace(meta, uid=uid, resource_version="1"))
        )
    for kind in ("Replica", "SchedulingRequest"):
        for item in region.list_objects(kind):
            view.put(item)
    return replicate.decider(region.name)(key, view, now)


def _removed(region: RegionClient, key: Key, assignment: Assignment | None, now: float) -> list[PlannedRemoval]:
    deleted = [
        w.key for w in _replicated(region, key, assignment, now).writes if isinstance(w, Delete) and w.kind == "Replica"
    ]
    replicas = {r.key: r for r in region.list_objects("Replica")}
    return [
        PlannedRemoval(
            region.name, key.name, replicas[key].status.placement.node, key.namespace, replicas[key].spec.workload
        )
        for key in deleted
        if key in replicas
    ]


def _in_region(
    region: RegionClient, assignment: Assignment, rules: PolicyRules | None, now: float
) -> list[PlannedPlacement]:
    outcome = _replicated(region, assignment.key, assignment, now)
    request_plan: list[Object] = [w.object for w in outcome.writes if isinstance(w, Create | Update)]
    requests = [item for item in request_plan if isinstance(item, SchedulingRequest)]
    return [placing for request in requests for placing in _planned(region, request, rules, now)]


def _planned(
    region: RegionClient, request: SchedulingRequest, rules: PolicyRules | None, now: float
) -> list[PlannedPlacement]:
    """Plans one request and assumes its claims, so that the next request sees them."""
    from holdfast.scheduling.snapshot import ClaimKey

    active = region.policy(now)
    used = rules or active.rules
    members = tuple(m for m in request.spec.members if not region.builder().has_claim(m.uid))
    requirements = region.requirements_of(request, members, now)
    snapshot = region.snapshot()
    request_plan: RequestPlan = plan(snapshot, [requirements], used, now, SEED).request_plans[0]
    tenant, workload = request.metadata.namespace, request.spec.workload
    found = [
        PlannedPlacement(region.name, p.member.name, p.node, p.victims, tenant=tenant, workload=workload)
        for p in request_plan.proposals
    ]
    for p in request_plan.proposals:
        key = ClaimKey(requirements.namespace, f"{p.member.name}.{p.member.attempt}")
        region.builder().assume(key, requirements.claim(p.node, p.member, p.devices, p.victims))
    if request_plan.unplaced:
        main = request_plan.refusals[0] if request_plan.refusals else None
        next_member = region.requirements_of(request, request_plan.unplaced[:1], now)
        query = WhyNotQuery(region.snapshot(), next_member, used, now, "" if rules else active.revision)
        fix, message = query.suggested_fix(), main.message if main else ""
        if main is not None and main.reason == Reason.EXPRESSION_REFUSED:
            message = query.expression_refusal() or message
        found += [
            PlannedPlacement(
                region.name,
                m.name,
                tenant=tenant,
                workload=workload,
                reason=main.reason if main else "",
                message=message,
                to_fit=suggestion(fix, (r.reason for r in request_plan.refusals), tenant),
            )
            for m in request_plan.unplaced
        ]
    return found


def explain_node(region: RegionClient, replica: Replica, node: str) -> WhyNotResult | None:
    """Why the replica cannot run on the node, or how the node scores, as if the replica held no claim. None if the
    region has no such node."""
    placement = replica.status.placement
    for name in (placement.binding, placement.reservation):
        for kind in ("Binding", "Reservation"):
            claim = region.get_object(kind, Key(replica.metadata.namespace, name))
            if claim is not None:
                region.builder().delete(claim)
    request, now = request_for(replica, attempt=placement.attempt), now_s()
    return region.why_not_query(region.requirements_of(request, request.spec.members, now), now).explain_node(node)
