"""Explains a workload or replica: its history, its stage, the reason, and the next step. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from holdfast.fleet.spillover import NO_MATCH_REASONS, REGION_CAP_REASONS, max_regions, waits_for_room
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.insight.failed_starts import image_fix
from holdfast.insight.region_clients import RegionClient, RegionClients, list_all, now_s
from holdfast.insight.timeline import Evidence, Timeline, replica_timeline, request_timeline
from holdfast.insight.why_not import WhyNotQuery
from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Key
from holdfast.model.newest_template import unserved_template
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import template_claims
from holdfast.model.volume import OnRegionLoss
from holdfast.model.workload import SpilloverStatus, Workload, wanted_replicas

NOT_SERVING_STAGES = ("Reserved", "Bound", "Starting", "Running", "Failed", "Unknown")
"""Stages of a placed replica that does not serve. Each such replica gets a timeline."""
TIMELINES_MAX = 10
NO_CANDIDATE_REASONS = NO_MATCH_REASONS | {
    Reason.RESIDENCY_VIOLATED,
    Reason.TENANCY_VIOLATED,
    Reason.ZONE_NOT_ALLOWED,
    Reason.POOL_NOT_ALLOWED,
}
"""Reasons for which a node never takes replicas of the workload, however much is free on it."""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """`summary` describes the workload. There is a timeline for the replica, or for each replica and request of the
    workload that does not serve. Objects of `unreachable` regions are missing."""

    subject: str
    summary: tuple[str, ...]
    timelines: tuple[Timeline, ...]
    unreachable: tuple[str, ...]


def explanation_of(regions: RegionClients, key: Key) -> Explanation:
    """The explanation of a replica, or of the workload of that name."""
    found = regions.find_replica(key)
    if found is not None:
        if stage(found[1]) is Stage.QUEUED:
            regions.learn_quota_need(key.namespace)
        head, timelines = list[str](), [replica_timeline_of(found[0], found[1])]
    else:
        head, timelines = workload_timelines(regions, key)
    return Explanation(str(key), tuple(head), tuple(timelines), tuple(sorted(regions.unreachable)))


def replica_timeline_of(region: RegionClient, replica: Replica) -> Timeline:
    namespace, placed = replica.metadata.namespace, replica.status.placement
    request = next(
        (
            r
            for r in region.list_objects("SchedulingRequest")
            if r.metadata.namespace == namespace and any(m.uid == replica.uid for m in r.spec.members)
        ),
        None,
    )
    name = placed.decision or (request.status.decision if request is not None else "")
    whole = region.can_list_all_tenants()
    queue = region.pending_requests(now_s()) if whole else []
    member = tuple(m for m in request.spec.members if m.uid == replica.uid) if request is not None else ()
    waits = whole and bool(member) and not placed.binding and not placed.reservation
    query = (
        region.why_not_query(region.requirements_of(request, member, now_s()), now_s()) if waits and request else None
    )
    known = Evidence(
        request=request,
        decision=region.get_object("Decision", Key(namespace, name)) if name else None,
        reservation=region.get_object("Reservation", Key(namespace, placed.reservation))
        if placed.reservation
        else None,
        binding=region.get_object("Binding", Key(namespace, placed.binding)) if placed.binding else None,
        suggested_fix=query.suggested_fix() if query is not None else None,
        expression_refusal=query.expression_refusal() if query is not None else "",
        position=next((i for i, r in enumerate(queue, 1) if request is not None and r.uid == request.uid), 0),
        queue_length=len(queue),
    )
    return replica_timeline(replica, known)


def workload_timelines(regions: RegionClients, key: Key) -> tuple[list[str], list[Timeline]]:
    try:
        found = list_all(
            regions.global_api,
            f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/workloads",
            {"fieldSelector": f"metadata.name={key.name}"},
        )
    except CommandError as stop:
        if stop.code is not ExitCode.UNREACHABLE:
            raise
        return regional_timelines(regions, key, stop.message)
    if not found:
        regions.raise_not_found(
            f"{key.namespace}/{key.name}: no such workload or replica",
            next_step=f"holdfast get workloads -n {key.namespace}",
        )
    workload: Workload = msgspec.convert(found[0], Workload)
    path = f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/assignments"
    assignments = [msgspec.convert(a, Assignment) for a in list_all(regions.global_api, path, {})]
    regions.learn_quota_need(key.namespace)
    lines = [
        f"workload {key.namespace}/{key.name}: generation {workload.metadata.generation}, {wanted_replicas(workload)} "
        f"desired replicas, priority {workload.spec.priority_class_name}, from {workload.metadata.creation_timestamp}"
    ]
    lines += [f"{c.type} {c.status}: {c.reason} {c.message}" for c in workload.status.conditions]
    lines += image_fix(workload.status.conditions)
    unserved = unserved_template(workload)
    lines += [f"next: {unserved.next_step}"] if unserved is not None and unserved.needs_change else []
    lines += [
        f"assigned {a.spec.replicas} to region {a.spec.region}: {a.spec.reason}"
        for a in assignments
        if a.spec.workload == key.name
    ]
    lines += empty_volume_lines([a for a in assignments if a.spec.workload == key.name])
    lines += spread_lines(workload, [a for a in assignments if a.spec.workload == key.name])
    lines += spillover_lines(workload, [a for a in assignments if a.spec.workload == key.name])
    own, timelines = region_timelines(regions, key)
    return ["\n".join([*lines, *own])], timelines[:TIMELINES_MAX]


def regional_timelines(regions: RegionClients, key: Key, why: str) -> tuple[list[str], list[Timeline]]:
    """What the regions know, without the global cell: their copies of the Assignments, and their replicas."""
    lines = [f"the global cell does not answer ({why}); the regions report:"]
    for region in regions.reachable:
        lines += [
            f"assigned {a.spec.replicas} to region {a.spec.region}: {a.spec.reason}"
            for a in region.list_objects("Assignment")
            if (a.metadata.namespace, a.spec.workload) == (key.namespace, key.name)
        ]
    if len(lines) == 1:
        text = f"{key.namespace}/{key.name}: not found in any region, and the global cell does not answer"
        raise CommandError(text, next_step="holdfast status", code=ExitCode.UNREACHABLE)
    own, timelines = region_timelines(regions, key)
    return ["\n".join([*lines, *own])], timelines[:TIMELINES_MAX]


def region_timelines(regions: RegionClients, key: Key) -> tuple[list[str], list[Timeline]]:
    """Counts by stage in each region, and a timeline for each replica and request that does not serve."""
    lines: list[str] = []
    timelines: list[Timeline] = []
    pending = {region.name: pending_requests(region, key) for region in regions.reachable}
    lines += match_lines([p for found in pending.values() for p in found], regions.reachable)
    workload_wide_amounts([p.query for found in pending.values() for p in found if p.query is not None])
    for region in regions.reachable:
        replicas = [r for r in region.list_objects("Replica") if r.spec.workload == key.name]
        replicas = [r for r in replicas if r.metadata.namespace == key.namespace]
        counts: dict[str, int] = {}
        for replica in replicas:
            counts[stage(replica).value] = counts.get(stage(replica).value, 0) + 1
        if counts:
            by_stage = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            lines.append(f"region {region.name}: {by_stage}")
        timelines += map(pending_timeline, pending[region.name])
        timelines += [replica_timeline_of(region, r) for r in replicas if stage(r) in NOT_SERVING_STAGES]
    if len(timelines) > TIMELINES_MAX:
        lines.append(f"{len(timelines)} replicas or requests do not serve; the first {TIMELINES_MAX} timelines follow")
    return lines, timelines


def spread_lines(workload: Workload, assignments: Sequence[Assignment]) -> list[str]:
    """Says that a lowered `spreadRegions` moves nothing by itself. Recovery replicas are elsewhere for a time only."""
    limit = workload.spec.placement.spread_regions
    used = _used_regions(assignments)
    if not limit or len(used) <= limit:
        return []
    return [
        f"spreadRegions is {limit}, and replicas are in {len(used)} regions ({', '.join(used)}): running ones stay, "
        f"and new ones go to at most {limit} of them; to move the others, list {limit} of them in placement.regions"
    ]


def _used_regions(assignments: Sequence[Assignment]) -> list[str]:
    """The regions that the placement rules count: those with replicas that are no recovery replicas."""
    return sorted({a.spec.region for a in assignments if a.spec.replicas and a.spec.purpose is not Purpose.RECOVERY})


def empty_volume_lines(assignments: Sequence[Assignment]) -> list[str]:
    """Says that recovery replicas do not have the data of the lost region."""
    return [
        f"recovery replicas in region {a.spec.region} started with an empty volume (VolumeClaim {claim.name}: "
        f"onRegionLoss StartEmpty); the data stays in the lost region"
        for a in assignments
        if a.spec.purpose is Purpose.RECOVERY and a.spec.replicas
        for claim in template_claims(a.spec.template)
        if claim.on_region_loss is OnRegionLoss.START_EMPTY
    ]


def spillover_lines(workload: Workload, assignments: Sequence[Assignment]) -> list[str]:
    """Replicas that are pending in a full region, with the region that takes them or the rule that keeps them, and past
    spillovers. The region is the one that `assign` has chosen, so explain promises no other move."""
    moves = workload.status.spillover or SpilloverStatus()
    awaited = {w.region for w in moves.pending}
    full = [a for a in assignments if waits_for_room(a) and a.spec.region not in awaited]
    return [
        *(
            f"spillover: pending in {_region_text(w.region, (w.reason,))} since {w.since} ({w.reason}); "
            + (
                f"region {w.to} {_attraction(w.reason)}, replicas move there after {limits.SPILLOVER_AFTER_S:g} s"
                if w.to
                else f"replicas stay there: {_why_no_region(workload, assignments, (w.reason,))}"
            )
            for w in moves.pending
        ),
        *(
            f"spillover: none from {_region_text(a.spec.region, reasons).rstrip(',')}: "
            f"{_why_no_region(workload, assignments, reasons)}"
            for a in sorted(full, key=lambda a: a.spec.region)
            for reasons in (tuple(p.reason for p in a.status.pending),)
        ),
        *(
            f"spillover: {left.replicas} replicas moved from {left.region} to {left.to} at {left.at} ({left.reason}"
            f"{': ' + left.message if left.message else ''}); {left.region} is avoided until {left.avoid_until}"
            for left in moves.avoided_regions
        ),
    ]


def _is_mismatch(reasons: Collection[str]) -> bool:
    """Whether replicas wait because no node of their region matches, not because it is full."""
    return bool(reasons) and all(reason in NO_MATCH_REASONS for reason in reasons)


def _region_text(region: str, reasons: Collection[str]) -> str:
    if _is_mismatch(reasons):
        return f"region {region} (no node matches)"
    no_quota = bool(reasons) and all(reason in REGION_CAP_REASONS for reason in reasons)
    return f"region {region} (no quota left)" if no_quota else f"full region {region}"


def _attraction(reason: str) -> str:
    return "has placed all its replicas of the workload" if _is_mismatch((reason,)) else "has room"


def _why_no_region(workload: Workload, assignments: Sequence[Assignment], reasons: Collection[str]) -> str:
    """The rule of the workload that keeps pending replicas in their region, or that no region has room."""
    rules, most = workload.spec.placement, max_regions(workload)
    used = _used_regions(assignments)
    if most and len(used) >= most:
        said = f"spreadRegions is {most}" if rules.spread_regions else "a batch runs in one region"
        return f"{said}, and replicas are in {', '.join(used)}"
    named = [
        text
        for text in (
            f"regions {', '.join(rules.regions)}" if rules.regions else "",
            f"excludedRegions {', '.join(rules.excluded_regions)}" if rules.excluded_regions else "",
            f"residency {', '.join(rules.residency)}" if rules.residency else "",
        )
        if text
    ]
    allowed = f" that spec.placement allows ({'; '.join(named)})" if named else ""
    if _is_mismatch(reasons):
        return f"no other region{allowed} has placed all its replicas of the workload, with room and quota for more"
    return f"no other region{allowed} has room and quota for them now"


def match_lines(requests: Sequence[WaitingRequest], regions: Sequence[RegionClient]) -> list[str]:
    """For replicas that no node of their region matches: the regions whose nodes match. The global cell does not know
    the labels, taints and drivers of nodes, so only `spec.placement.regions` keeps replicas out of the others."""
    lines = []
    for pending in requests:
        first = [r.reason for r in pending.request.status.reasons[:1]]
        if not _is_mismatch(first) or pending.query is None:
            continue
        name = pending.region.name
        others = [
            r.name
            for r in regions
            if r.name != name
            and r.can_list_all_tenants()
            and r.why_not_query(
                r.requirements_of(pending.request, pending.request.spec.members, now_s()), now_s()
            ).matching_nodes(NO_CANDIDATE_REASONS)
        ]
        matched = f"nodes of {', '.join(others)} do; next: set spec.placement.regions: [{', '.join(others)}]"
        lines.append(
            f"no node of region {name} matches the workload: {matched if others else 'nor does one of another region'}"
        )
    return list(dict.fromkeys(lines))


def workload_wide_amounts(queries: Collection[WhyNotQuery]) -> None:
    """Makes all suggestions name the same smaller request: a template is the same in every region, so the amount has to
    fit wherever replicas of the workload wait."""
    known = [found for query in queries if (found := query.fitting_amounts())]
    least: dict[str, int] = {}
    for found in known:
        for name, amount in found.items():
            least[name] = min(amount, least.get(name, amount))
    for query in queries if len(known) > 1 else ():
        query.ask_for_no_more(least)


class WaitingRequest(NamedTuple):
    """A pending request of a workload in one region. `query` is missing for a caller who may not list the region."""

    region: RegionClient
    request: SchedulingRequest
    query: WhyNotQuery | None = None
    position: int = 0
    queue_length: int = 0


def pending_requests(region: RegionClient, key: Key) -> list[WaitingRequest]:
    """The workload's pending requests. Queue position and suggested fix are known only for a caller who may list the
    whole region."""
    if not region.can_list_all_tenants():
        queue = [r for r in region.list_objects("SchedulingRequest") if r.status.pending]
        return [
            WaitingRequest(region, r)
            for r in queue
            if (r.metadata.namespace, r.spec.workload) == (key.namespace, key.name)
        ]
    queue = region.pending_requests(now_s())
    return [
        WaitingRequest(
            region,
            request,
            region.why_not_query(region.requirements_of(request, region.unplaced_members(request), now_s()), now_s()),
            position,
            len(queue),
        )
        for position, request in enumerate(queue, 1)
        if (request.metadata.namespace, request.spec.workload) == (key.namespace, key.name)
    ]


def pending_timeline(pending: WaitingRequest) -> Timeline:
    region, request = pending.region, pending.request
    decision = request.status.decision
    known = Evidence(
        request,
        region.get_object("Decision", Key(request.metadata.namespace, decision)) if decision else None,
        suggested_fix=pending.query.suggested_fix() if pending.query is not None else None,
        expression_refusal=pending.query.expression_refusal() if pending.query is not None else "",
        position=pending.position,
        queue_length=pending.queue_length,
    )
    timeline = request_timeline(request, known)
    return msgspec.structs.replace(timeline, subject=f"{timeline.subject} in region {region.name}")
