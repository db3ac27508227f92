"""Explains a workload or replica: its history, its stage, the reason, and the next step. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.fleet.spillover import max_regions, waits_for_room
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.insight.failed_starts import image_fix
from holdfast.insight.region_clients import RegionClient, RegionClients, list_all, now_s
from holdfast.insight.timeline import Evidence, Timeline, replica_timeline, request_timeline
from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.lifecycle import stage
from holdfast.model.meta import Key
from holdfast.model.replica import Replica
from holdfast.model.template import template_claims
from holdfast.model.volume import OnRegionLoss
from holdfast.model.workload import SpilloverStatus, Workload, wanted_replicas

NOT_SERVING_STAGES = ("Reserved", "Bound", "Starting", "Running", "Failed", "Unknown")
"""Stages of a placed replica that does not serve. Each such replica gets a timeline."""
TIMELINES_MAX = 10


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
    lines = [
        f"workload {key.namespace}/{key.name}: generation {workload.metadata.generation}, {wanted_replicas(workload)} "
        f"desired replicas, priority {workload.spec.priority_class_name}, from {workload.metadata.creation_timestamp}"
    ]
    lines += [f"{c.type} {c.status}: {c.reason} {c.message}" for c in workload.status.conditions]
    lines += image_fix(workload.status.conditions)
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
    for region in regions.reachable:
        replicas = [r for r in region.list_objects("Replica") if r.spec.workload == key.name]
        replicas = [r for r in replicas if r.metadata.namespace == key.namespace]
        counts: dict[str, int] = {}
        for replica in replicas:
            counts[stage(replica).value] = counts.get(stage(replica).value, 0) + 1
        if counts:
            by_stage = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            lines.append(f"region {region.name}: {by_stage}")
        timelines += pending_timelines(region, key)
        timelines += [replica_timeline_of(region, r) for r in replicas if stage(r) in NOT_SERVING_STAGES]
    if len(timelines) > TIMELINES_MAX:
        lines.append(f"{len(timelines)} replicas or requests do not serve; the first {TIMELINES_MAX} timelines follow")
    return lines, timelines


def spread_lines(workload: Workload, assignments: Sequence[Assignment]) -> list[str]:
    """Says that a lowered `spreadRegions` moves nothing by itself."""
    limit = workload.spec.placement.spread_regions
    used = sorted(a.spec.region for a in assignments if a.spec.replicas)
    if not limit or len(used) <= limit:
        return []
    return [
        f"spreadRegions is {limit}, and replicas are in {len(used)} regions ({', '.join(used)}): running ones stay, "
        f"and new ones go to at most {limit} of them; to move the others, list {limit} of them in placement.regions"
    ]


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
    full = [a.spec.region for a in assignments if waits_for_room(a) and a.spec.region not in awaited]
    return [
        *(
            f"spillover: pending in full region {w.region} since {w.since} ({w.reason}); region {w.to} has room, "
            f"replicas move there after {limits.SPILLOVER_AFTER_S:g} s"
            if w.to
            else f"spillover: pending in full region {w.region} since {w.since} ({w.reason}); replicas stay there: "
            f"{_why_no_region(workload, assignments)}"
            for w in moves.pending
        ),
        *(
            f"spillover: none from full region {region}: {_why_no_region(workload, assignments)}"
            for region in sorted(full)
        ),
        *(
            f"spillover: {left.replicas} replicas moved from {left.region} to {left.to} at {left.at} ({left.reason}"
            f"{': ' + left.message if left.message else ''}); {left.region} is avoided until {left.avoid_until}"
            for left in moves.avoided_regions
        ),
    ]


def _why_no_region(workload: Workload, assignments: Sequence[Assignment]) -> str:
    """The rule of the workload that keeps pending replicas in their region, or that no region has room."""
    rules, most = workload.spec.placement, max_regions(workload)
    used = sorted(a.spec.region for a in assignments if a.spec.replicas)
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
    return f"no other region{allowed} has room and quota for them now"


def pending_timelines(region: RegionClient, key: Key) -> list[Timeline]:
    """Timelines of the workload's pending requests. Queue position and suggested fix are shown only to a caller who may
    list the whole region."""
    whole = region.can_list_all_tenants()
    queue = (
        region.pending_requests(now_s())
        if whole
        else [r for r in region.list_objects("SchedulingRequest") if r.status.pending]
    )
    timelines = []
    for position, request in enumerate(queue, 1):
        if (request.metadata.namespace, request.spec.workload) != (key.namespace, key.name):
            continue
        decision = request.status.decision
        known = Evidence(request, region.get_object("Decision", Key(key.namespace, decision)) if decision else None)
        if whole:
            query = region.why_not_query(
                region.requirements_of(request, region.unplaced_members(request)[:1], now_s()), now_s()
            )
            known = msgspec.structs.replace(
                known,
                suggested_fix=query.suggested_fix(),
                expression_refusal=query.expression_refusal(),
                position=position,
                queue_length=len(queue),
            )
        timeline = request_timeline(request, known)
        timelines.append(msgspec.structs.replace(timeline, subject=f"{timeline.subject} in region {region.name}"))
    return timelines
