"""`holdfast explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option, table

if TYPE_CHECKING:
    from holdfast.cli.platform.regions import Region, Regions
    from holdfast.flow.story import Story
    from holdfast.model.meta import Key
    from holdfast.model.replica import Replica


@click.command()
@click.argument("subject", metavar="TENANT/WORKLOAD|REPLICA")
@state_option
@output_option
def explain(subject: str, state: str, output: str) -> int:
    """Tell the story of a workload or a replica: where it stands, why, and what would help.

    The story ends with where it stands, who owns the next step, when it is looked at again, and the smallest change
    that would let it fit.

    \b
    Examples:
      holdfast explain payments/risk-api
      holdfast explain payments/risk-api-us-east-0
    """
    import msgspec

    from holdfast.cli.platform.regions import Regions, parse_subject

    key = parse_subject(subject)
    regions = Regions(state)
    found = regions.replica(key)
    if found is not None:
        stories = [story_of(found[0], found[1])]
        head: list[str] = []
    else:
        head, stories = workload_stories(regions, key)
    if output == "json":
        print_json({"subject": subject, "summary": head, "stories": [msgspec.to_builtins(s) for s in stories]})
    else:
        click.echo("\n\n".join([*head, *(as_text(s) for s in stories)]))
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
    queue = region.waiting(now_s())
    member = tuple(m for m in request.spec.members if m.uid == replica.uid) if request is not None else ()
    waiting = bool(member) and not placed.binding and not placed.reservation
    known = Evidence(
        request=request,
        decision=region.one("Decision", Key(namespace, name)) if name else None,
        reservation=region.one("Reservation", Key(namespace, placed.reservation)) if placed.reservation else None,
        binding=region.one("Binding", Key(namespace, placed.binding)) if placed.binding else None,
        cure=region.question(region.ask_for(request, member), now_s()).cure() if waiting and request else None,
        position=next((i for i, r in enumerate(queue, 1) if request is not None and r.uid == request.uid), 0),
        waiting=len(queue),
    )
    return replica_story(replica, known)


def workload_stories(regions: Regions, key: Key) -> tuple[list[str], list[Story]]:
    import msgspec

    from holdfast.cli.platform.regions import now_s, pages
    from holdfast.flow.story import Evidence, request_story
    from holdfast.model.assignment import Assignment
    from holdfast.model.lifecycle import Stage, stage
    from holdfast.model.meta import Key
    from holdfast.model.workload import Workload, wanted_replicas

    found = pages(
        regions.global_api,
        f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/workloads",
        {"fieldSelector": f"metadata.name={key.name}"},
    )
    if not found:
        raise Stop(
            f"there is no workload and no replica {key.namespace}/{key.name}",
            next_step="kubectl get workloads,replicas -A lists them",
        )
    workload: Workload = msgspec.convert(found[0], Workload)
    path = f"/apis/holdfast.dev/v1/namespaces/{key.namespace}/assignments"
    assignments = [msgspec.convert(a, Assignment) for a in pages(regions.global_api, path, {})]
    lines = [
        f"workload {key.namespace}/{key.name}: generation {workload.metadata.generation}, {wanted_replicas(workload)} "
        f"replicas wanted, priority {workload.spec.priority_class_name}, since {workload.metadata.creation_timestamp}"
    ]
    lines += [f"{c.type} {c.status}: {c.reason} {c.message}" for c in workload.status.conditions]
    lines += [
        f"assigned {a.spec.replicas} to region {a.spec.region}: {a.spec.reason}"
        for a in assignments
        if a.spec.workload == key.name
    ]
    stories: list[Story] = []
    for region in regions.all:
        replicas = [r for r in region.every("Replica") if r.spec.workload == key.name]
        replicas = [r for r in replicas if r.metadata.namespace == key.namespace]
        counts: dict[str, int] = {}
        for replica in replicas:
            counts[stage(replica).value] = counts.get(stage(replica).value, 0) + 1
        if counts:
            told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            lines.append(f"region {region.name}: {told}")
        queue = region.waiting(now_s())
        for position, request in enumerate(queue, 1):
            if (request.metadata.namespace, request.spec.workload) != (key.namespace, key.name):
                continue
            members = region.unplaced(request)
            decision = request.status.decision
            known = Evidence(
                request=request,
                decision=region.one("Decision", Key(key.namespace, decision)) if decision else None,
                cure=region.question(region.ask_for(request, members[:1]), now_s()).cure(),
                position=position,
                waiting=len(queue),
            )
            stories.append(request_story(request, known))
        stories += [story_of(region, r) for r in replicas if stage(r) in (Stage.RESERVED, Stage.FAILED, Stage.UNKNOWN)]
    return ["\n".join(lines)], stories


def as_text(story: Story) -> str:
    rows = [(e.at or "-", e.stage, e.owner, e.text) for e in story.events]
    lines = [story.subject, table(("AT", "STAGE", "BY", "WHAT"), rows)]
    lines += [f"  because: {reason}" for reason in story.reasons]
    lines.append(f"  stands:  {story.stands}")
    lines.append(f"  next:    {story.next_owner} {story.next_step}")
    if story.position:
        lines.append(f"  queue:   position {story.position} of {story.waiting} that wait in the region")
    if story.look_again:
        woken = f", sooner on {', '.join(story.wake_on)}" if story.wake_on else ""
        lines.append(f"  again:   {story.look_again}{woken}")
    if story.cure:
        lines.append(f"  to fit:  {story.cure}")
    return "\n".join(lines)
