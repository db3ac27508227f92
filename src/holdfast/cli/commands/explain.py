"""`holdfast explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli import completing
from holdfast.cli.exits import Exit
from holdfast.cli.output import output_option, print_json, state_option, table

if TYPE_CHECKING:
    from holdfast.cli.platform.regions import Region, Regions
    from holdfast.flow.story import Story
    from holdfast.model.meta import Key
    from holdfast.model.replica import Replica
    from holdfast.model.workload import MovesBlock

NOT_WELL = ("Reserved", "Bound", "Starting", "Running", "Failed", "Unknown")
"""Stages of a placed replica that does not serve. Each such replica gets a timeline."""
MAX_STORIES = 10


@click.command()
@click.argument("subject", metavar="TENANT/WORKLOAD|REPLICA", shell_complete=completing.workloads)
@state_option
@output_option
def explain(subject: str, state: str, output: str) -> int:
    """Show the history of a workload or replica, its stage, the reason, and the next step.

    Each timeline ends with the stage, the owner of the next step, the time of the next retry, and the smallest change
    that would make the replica schedulable.

    \b
    Examples:
      holdfast explain payments/risk-api
      holdfast explain payments/risk-api-us-east-0
    """
    import msgspec

    from holdfast.cli.platform.regions import Regions, parse_subject

    key = parse_subject(subject)
    regions = Regions(state, tenant=key.namespace)
    found = regions.replica(key)
    if found is not None:
        stories = [story_of(found[0], found[1])]
        head: list[str] = []
    else:
        head, stories = workload_stories(regions, key)
    silent = sorted(regions.silent)
    if output == "json":
        told = [msgspec.to_builtins(s) for s in stories]
        print_json({"subject": subject, "summary": head, "timelines": told, "unreachable": silent})
    else:
        click.echo("\n\n".join([*head, *(as_text(s) for s in stories)]))
        regions.tell_silent()
    return Exit.OK


def story_of(region: Region, replica: Replica) -> Story:
    from holdfast.cli.platform.regions import now_s
    from holdfast.flow.story import Evidence, replica_story
    from holdfast.model.meta import Key

    namespace, placed = replica.metadata.namespace, replica.status.placement
    request = next(
        (
            r
            for r in region.every("SchedulingRequest")
            if r.metadata.namespace == namespace and any(m.uid == replica.uid for m in r.spec.members)
        ),
        None,
    )
    name = placed.decision or (request.status.decision if request is not None else "")
    whole = region.open_to_us()
    queue = region.waiting(now_s()) if whole else []
    member = tuple(m for m in request.spec.members if m.uid == replica.uid) if request is not None else ()
    waits = whole and bool(member) and not placed.binding and not placed.reservation
    known = Evidence(
        request=request,
        decision=region.one("Decision", Key(namespace, name)) if name else None,
        reservation=region.one("Reservation", Key(namespace, placed.reservation)) if placed.reservation else None,
        binding=region.one("Binding", Key(namespace, placed.binding)) if placed.binding else None,
        cure=region.question(region.ask_for(request, member), now_s()).cure() if waits and request else None,
        position=next((i for i, r in enumerate(queue, 1) if request is not None and r.uid == request.uid), 0),
        waiting=len(queue),
    )
    return replica_story(replica, known)


def workload_stories(regions: Regions, key: Key) -> tuple[list[str], list[Story]]:
    import msgspec

    from holdfast.cli.platform.regions import pages
    from holdfast.model.assignment import Assignment
    from holdfast.model.lifecycle import stage
    from holdfast.model.workload import Workload, wanted_replicas

    found = pages(
        regions.global_api,
        f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/workloads",
        {"fieldSelector": f"metadata.name={key.name}"},
    )
    if not found:
        regions.missing(f"{key.namespace}/{key.name}: no such workload or replica",
                        next_step=f"holdfast get workloads -n {key.namespace}")  # fmt: skip
    workload: Workload = msgspec.convert(found[0], Workload)
    path = f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/assignments"
    assignments = [msgspec.convert(a, Assignment) for a in pages(regions.global_api, path, {})]
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
    if workload.status.moves is not None:
        lines += moves_told(workload.status.moves)
    stories: list[Story] = []
    for region in regions.heard:
        replicas = [r for r in region.every("Replica") if r.spec.workload == key.name]
        replicas = [r for r in replicas if r.metadata.namespace == key.namespace]
        counts: dict[str, int] = {}
        for replica in replicas:
            counts[stage(replica).value] = counts.get(stage(replica).value, 0) + 1
        if counts:
            told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            lines.append(f"region {region.name}: {told}")
        stories += waiting_stories(region, key)
        stories += [story_of(region, r) for r in replicas if stage(r) in NOT_WELL]
    if len(stories) > MAX_STORIES:
        lines.append(f"{len(stories)} replicas or requests do not serve; the first {MAX_STORIES} timelines follow")
    return ["\n".join(lines)], stories[:MAX_STORIES]


def moves_told(moves: MovesBlock) -> list[str]:
    """Pending replicas that will spill over, and past spillovers."""
    from holdfast.model import limits

    return [
        *(
            f"spillover: pending in full region {w.region} since {w.since} ({w.reason}); another region has room, "
            f"replicas move after {limits.MOVE_ON_AFTER_S:g} s"
            for w in moves.waits
        ),
        *(
            f"spillover: {left.count} replicas moved from {left.region} to {left.to} at {left.at} ({left.reason}"
            f"{': ' + left.message if left.message else ''}); {left.region} is avoided until {left.until}"
            for left in moves.left
        ),
    ]


def waiting_stories(region: Region, key: Key) -> list[Story]:
    """Timelines of the workload's pending requests. Queue position and suggested fix are shown only to a caller who may
    list the whole region."""
    import msgspec

    from holdfast.cli.platform.regions import now_s
    from holdfast.flow.story import Evidence, request_story
    from holdfast.model.meta import Key

    whole = region.open_to_us()
    queue = region.waiting(now_s()) if whole else [r for r in region.every("SchedulingRequest") if r.status.pending]
    stories = []
    for position, request in enumerate(queue, 1):
        if (request.metadata.namespace, request.spec.workload) != (key.namespace, key.name):
            continue
        decision = request.status.decision
        known = Evidence(request, region.one("Decision", Key(key.namespace, decision)) if decision else None)
        if whole:
            cure = region.question(region.ask_for(request, region.unplaced(request)[:1]), now_s()).cure()
            known = msgspec.structs.replace(known, cure=cure, position=position, waiting=len(queue))
        story = request_story(request, known)
        stories.append(msgspec.structs.replace(story, subject=f"{story.subject} in region {region.name}"))
    return stories


def as_text(story: Story) -> str:
    rows = [(e.at or "-", e.stage, e.owner, e.text) for e in story.events]
    lines = [story.subject, table(("AT", "STAGE", "BY", "WHAT"), rows)]
    lines += [f"  because: {reason}" for reason in story.reasons]
    lines.append(f"  stage:   {story.stands}")
    acts = "no action needed:" if story.next_owner == "nobody" else story.next_owner
    lines.append(f"  next:    {acts} {story.next_step}")
    if story.position:
        among = f" of {story.waiting} pending" if story.waiting else ""
        lines.append(f"  queue:   position {story.position}{among} in the region")
    if story.look_again:
        woken = f", or on {', '.join(story.wake_on)}" if story.wake_on else ""
        lines.append(f"  retry:   {story.look_again}{woken}")
    if story.cure:
        lines.append(f"  {'to fit: ' if story.stands in ('Queued', 'Reserved') else 'fix:    '} {story.cure}")
    return "\n".join(lines)
