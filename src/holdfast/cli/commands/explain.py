"""`holdfast explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, parse_tenant_name, state_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json, table

if TYPE_CHECKING:
    from holdfast.insight.region_clients import RegionClient, RegionClients
    from holdfast.insight.timeline import Timeline
    from holdfast.model.meta import Key
    from holdfast.model.replica import Replica
    from holdfast.model.workload import SpilloverStatus

NOT_SERVING_STAGES = ("Reserved", "Bound", "Starting", "Running", "Failed", "Unknown")
"""Stages of a placed replica that does not serve. Each such replica gets a timeline."""
TIMELINES_MAX = 10


@click.command()
@click.argument("subject", metavar="TENANT/WORKLOAD|REPLICA", shell_complete=shell_completion.complete_workloads)
@state_option
@output_option
def explain(subject: str, state: str, output: str) -> int:
    """Show the history of a workload or replica, its stage, the reason, and the next step.

    Each timeline ends with the stage, the owner of the next step, the time of the next retry, and the smallest change
    after which the replica would be schedulable.

    \b
    Examples:
      holdfast explain payments/risk-api
      holdfast explain payments/risk-api-us-east-0
    """
    import msgspec

    from holdfast.platform.region_connections import connect_regions, print_unreachable

    key = parse_tenant_name(subject)
    regions = connect_regions(state, tenant=key.namespace)
    found = regions.find_replica(key)
    if found is not None:
        timelines = [replica_timeline_of(found[0], found[1])]
        head: list[str] = []
    else:
        head, timelines = workload_timelines(regions, key)
    unreachable = sorted(regions.unreachable)
    if output == "json":
        documents = [msgspec.to_builtins(s) for s in timelines]
        print_json({"subject": subject, "summary": head, "timelines": documents, "unreachable": unreachable})
    else:
        click.echo("\n\n".join([*head, *(as_text(s) for s in timelines)]))
        print_unreachable(regions)
    return ExitCode.OK


def replica_timeline_of(region: RegionClient, replica: Replica) -> Timeline:
    from holdfast.insight.region_clients import now_s
    from holdfast.insight.timeline import Evidence, replica_timeline
    from holdfast.model.meta import Key

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
    known = Evidence(
        request=request,
        decision=region.get_object("Decision", Key(namespace, name)) if name else None,
        reservation=region.get_object("Reservation", Key(namespace, placed.reservation))
        if placed.reservation
        else None,
        binding=region.get_object("Binding", Key(namespace, placed.binding)) if placed.binding else None,
        suggested_fix=region.why_not_query(region.requirements_of(request, member), now_s()).suggested_fix()
        if waits and request
        else None,
        position=next((i for i, r in enumerate(queue, 1) if request is not None and r.uid == request.uid), 0),
        queue_length=len(queue),
    )
    return replica_timeline(replica, known)


def workload_timelines(regions: RegionClients, key: Key) -> tuple[list[str], list[Timeline]]:
    import msgspec

    from holdfast.insight.region_clients import list_all
    from holdfast.model.assignment import Assignment
    from holdfast.model.lifecycle import stage
    from holdfast.model.workload import Workload, wanted_replicas

    found = list_all(
        regions.global_api,
        f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/workloads",
        {"fieldSelector": f"metadata.name={key.name}"},
    )
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
    lines += [
        f"assigned {a.spec.replicas} to region {a.spec.region}: {a.spec.reason}"
        for a in assignments
        if a.spec.workload == key.name
    ]
    if workload.status.spillover is not None:
        lines += spillover_lines(workload.status.spillover)
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
    return ["\n".join(lines)], timelines[:TIMELINES_MAX]


def spillover_lines(moves: SpilloverStatus) -> list[str]:
    """Pending replicas that will spill over, and past spillovers."""
    from holdfast.model import limits

    return [
        *(
            f"spillover: pending in full region {w.region} since {w.since} ({w.reason}); another region has room, "
            f"replicas move after {limits.SPILLOVER_AFTER_S:g} s"
            for w in moves.pending
        ),
        *(
            f"spillover: {left.replicas} replicas moved from {left.region} to {left.to} at {left.at} ({left.reason}"
            f"{': ' + left.message if left.message else ''}); {left.region} is avoided until {left.avoid_until}"
            for left in moves.avoided_regions
        ),
    ]


def pending_timelines(region: RegionClient, key: Key) -> list[Timeline]:
    """Timelines of the workload's pending requests. Queue position and suggested fix are shown only to a caller who may
    list the whole region."""
    import msgspec

    from holdfast.insight.region_clients import now_s
    from holdfast.insight.timeline import Evidence, request_timeline
    from holdfast.model.meta import Key

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
            cure = region.why_not_query(
                region.requirements_of(request, region.unplaced_members(request)[:1]), now_s()
            ).suggested_fix()
            known = msgspec.structs.replace(known, suggested_fix=cure, position=position, queue_length=len(queue))
        timeline = request_timeline(request, known)
        timelines.append(msgspec.structs.replace(timeline, subject=f"{timeline.subject} in region {region.name}"))
    return timelines


def as_text(timeline: Timeline) -> str:
    rows = [(e.at or "-", e.stage, e.owner, e.text) for e in timeline.events]
    lines = [timeline.subject, table(("AT", "STAGE", "BY", "WHAT"), rows)]
    lines += [f"  because: {reason}" for reason in timeline.reasons]
    lines.append(f"  stage:   {timeline.stage}")
    acts = "no action needed:" if timeline.next_owner == "nobody" else timeline.next_owner
    lines.append(f"  next:    {acts} {timeline.next_step}")
    if timeline.position:
        among = f" of {timeline.queue_length} pending" if timeline.queue_length else ""
        lines.append(f"  queue:   position {timeline.position}{among} in the region")
    if timeline.next_retry_at:
        woken = f", or on {', '.join(timeline.retry_on)}" if timeline.retry_on else ""
        lines.append(f"  retry:   {timeline.next_retry_at}{woken}")
    if timeline.suggested_fix:
        label = "to fit: " if timeline.stage in ("Queued", "Reserved") else "fix:    "
        lines.append(f"  {label} {timeline.suggested_fix}")
    return "\n".join(lines)
