"""`holdfast plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli import shell_completion
from holdfast.cli.document_files import read_documents
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.insight.region_clients import RegionClients
    from holdfast.insight.what_if import ManifestWorkload, WhatIfResult
    from holdfast.model.quota import Quota
    from holdfast.model.tenant import Tenant


@click.command()
@click.option(
    "-f", "--file", "file", type=click.Path(dir_okay=False, allow_dash=True), help="Workload manifests; - is stdin."
)
@click.option(
    "--drain",
    "drain",
    metavar="NODE",
    shell_complete=shell_completion.complete_nodes,
    help="Plan the drain of this node.",
)
@click.option(
    "--policy",
    "policy",
    type=click.Path(exists=True, dir_okay=False),
    help="Use this SchedulerPolicy (alone, or with -f or --drain).",
)
@click.option(
    "--last",
    default=100,
    show_default=True,
    help="With --policy alone: number of recent decisions to compare in each region.",
)
@click.option(
    "--lose-region",
    "lose_region",
    metavar="REGION",
    shell_complete=shell_completion.complete_regions,
    help="Plan the loss of this region.",
)
@click.option("--lose-zone", "lose_zone", metavar="ZONE", default="", help="With --lose-region: only this zone.")
@click.option(
    "--rebalance",
    "rebalance",
    metavar="REGION",
    shell_complete=shell_completion.complete_regions,
    help="Plan the moves for a more even spread in a region.",
)
@state_option
@output_option
def plan(
    file: str | None,
    drain: str | None,
    policy: str | None,
    *,
    last: int,
    lose_region: str | None,
    lose_zone: str,
    rebalance: str | None,
    state: str,
    output: str,
) -> int:
    """Dry run: show placements, evictions and removals. Writes nothing.

    Runs the platform's own assign, replicate and planning functions on a copy of its state. With --policy alone, the
    last decisions are repeated under that policy and the differences are listed. Of a rollout only the first step is
    shown, because later steps depend on replicas that serve. With -f, a Tenant and a Quota in the same file count as if
    they were applied, other kinds beside Workloads do not, and quota counts as the platform would divide it
    after the change: replicas that exceed it stay pending with QuotaExceeded. With a tenant's token, -f shows what
    would be stored or refused, without placements.

    \b
    Examples:
      holdfast plan -f shop.yaml
      holdfast plan --drain us-east-a1
      holdfast plan --policy packing.yaml --last 200
      holdfast plan --lose-region eu-central
      holdfast plan --lose-region eu-central --lose-zone eu-central-a
      holdfast plan --rebalance us-east
    """
    if policy is not None:
        refuse_other_policy({"--lose-region": lose_region, "--rebalance": rebalance}, policy)
    if lose_region is not None:
        from holdfast.cli.commands.lose_region import plan_loss

        return plan_loss(state, lose_region, lose_zone, output)
    if lose_zone:
        step = f"holdfast plan --lose-region {lose_zone.rpartition('-')[0] or 'REGION'} --lose-zone {lose_zone}"
        raise CommandError(f"--lose-zone {lose_zone}: --lose-region is missing", next_step=step, code=ExitCode.USAGE)
    from holdfast.cli.commands.replay import read_rules
    from holdfast.platform.region_connections import connect_regions

    rules = read_rules(policy) if policy is not None else None
    regions = connect_regions(state)
    if rebalance is not None:
        return plan_rebalance(regions, rebalance, output)
    if file is not None:
        return plan_manifests(state, regions, read_manifest(file), rules, output)
    if drain is not None:
        from holdfast.insight.what_if import WhatIfResult, what_if_drained
        from holdfast.model.meta import Key

        for region in regions.reachable:
            if region.get_object("Node", Key("", drain)) is not None:
                return print_what_if(output, WhatIfResult(placings=tuple(what_if_drained(region, drain, rules=rules))))
        regions.raise_not_found(f"node {drain}: not found in any region", next_step="holdfast get nodes")
    if rules is not None:
        return compare_policy(output, regions, rules, last)
    text = "plan: no subject (expected one of --file, --drain, --lose-region, --policy, --rebalance)"
    raise CommandError(text, next_step="holdfast plan -f FILE", code=ExitCode.USAGE)


def refuse_other_policy(subjects: dict[str, str | None], policy: str) -> None:
    """Refuses --policy for subjects that are planned with the active policy only."""
    for option, region in subjects.items():
        if region is not None:
            raise CommandError(
                f"--policy {policy}: not possible with {option} (it is planned with the active policy)",
                next_step=f"holdfast plan {option} {region}, again after the policy is promoted",
                code=ExitCode.USAGE,
            )


def plan_manifests(state: str, regions: RegionClients, manifest: PlannedManifest, rules: Any, output: str) -> int:
    """Placements for those who may read the nodes; for a tenant, what the API would store or refuse."""
    from holdfast.client.sync_api import ApiRefusal
    from holdfast.insight.what_if import what_if_applied
    from holdfast.platform.caller_tenants import tenants_of

    try:
        return print_what_if(output, what_if_applied(regions, manifest.workloads, given=manifest.given, rules=rules))
    except ApiRefusal as refusal:
        if refusal.code is not ExitCode.DENIED or not tenants_of(regions.global_api):
            raise
    from holdfast.insight.what_if import what_if_admitted

    found = what_if_admitted(regions.global_api, manifest.workloads)
    code = print_what_if(output, found)
    if output == "text" and not found.refused:
        print_note("placements are not shown: your token may not read the nodes of other tenants")
    return code


def plan_rebalance(regions: RegionClients, name: str, output: str) -> int:
    """Prints the moves that rebalancing would request in a region."""
    import msgspec

    from holdfast.insight.what_if import what_if_rebalanced

    region = next((r for r in regions.reachable if r.name == name), None)
    if region is None:
        regions.raise_not_found(f"region {name}: not found", next_step="holdfast get regions")
    found = what_if_rebalanced(region)
    if output == "json":
        print_json(msgspec.to_builtins(found))
    else:
        if found.stopped:
            click.echo(f"nothing moves at the moment: {found.stopped}")
        rows = [(m.replica, m.from_node, m.to_node, m.message) for m in found.moves]
        click.echo(table(("REPLICA", "FROM", "TO", "WHY"), rows) if rows else "no move would make a spread more even")
    return ExitCode.PLAN_CHANGES if found.moves and not found.stopped else ExitCode.OK


class PlannedManifest(NamedTuple):
    """The workloads of a file, and the tenants and quotas beside them, which count as the file gives them."""

    workloads: list[ManifestWorkload]
    given: list[Tenant | Quota]


def read_manifest(path: str) -> PlannedManifest:
    import msgspec

    from holdfast.insight.what_if import problems, tenant_objects_in, workloads_in

    documents = read_documents(path)
    try:
        found = workloads_in(documents)
    except msgspec.ValidationError as wrong:
        raise CommandError(f"{path}: not a valid Workload ({wrong})", next_step="edit the file") from wrong
    try:
        given = tenant_objects_in(documents)
    except msgspec.ValidationError as wrong:
        raise CommandError(f"{path}: not a valid Tenant or Quota ({wrong})", next_step="edit the file") from wrong
    for manifest in found:
        wrong_fields = problems(manifest.workload)
        if wrong_fields:
            name = manifest.workload.metadata.name
            raise CommandError(
                f"workload {name} in {path}: invalid ({'; '.join(wrong_fields)})", next_step="edit the file"
            )
    if not found:
        raise CommandError(f"{path}: no Workload in the file", code=ExitCode.USAGE)
    return PlannedManifest(found, given)


def print_what_if(output: str, outlook: WhatIfResult) -> int:
    import msgspec

    placings = outlook.placings
    waiting = [p for p in placings if not p.node]
    changed = outlook.refused or outlook.changes or placings or outlook.removals
    if output == "json":
        print_json({**msgspec.to_builtins(outlook), "placed": len(placings) - len(waiting)})
    elif not changed:
        click.echo("nothing would change")
    else:
        click.echo(as_text(outlook))
    if waiting or outlook.refused:
        return ExitCode.PLAN_NOT_PLACEABLE
    return ExitCode.PLAN_CHANGES if changed else ExitCode.OK


def as_text(outlook: WhatIfResult) -> str:
    """Spec changes, then placements, removals, and the changes that would make pending replicas schedulable."""
    parts = [f"{r.workload} would be refused: {r.why}" for r in outlook.refused]
    parts += [
        f"{c.workload} would be created" if c.new else f"{c.workload} would change: {'; '.join(map(str, c.fields))}"
        for c in outlook.changes
    ]
    if outlook.placings:
        rows = [
            (p.replica, p.region, p.node or "-", ", ".join(p.victims), f"{p.reason}: {p.message}" if p.reason else "")
            for p in outlook.placings
        ]
        parts.append(table(("REPLICA", "REGION", "NODE", "EVICTS", "PENDING BECAUSE"), rows))
    if outlook.removals:
        rows_going = [(r.replica, r.region, r.node or "-") for r in outlook.removals]
        parts.append(table(("REMOVED REPLICA", "REGION", "NODE"), rows_going))
    parts += [f"to fit: {text}" for text in dict.fromkeys(p.to_fit for p in outlook.placings if p.to_fit)]
    return "\n".join(parts)


def compare_policy(output: str, regions: RegionClients, rules: Any, last: int) -> int:
    """Repeats the last decisions of every region under another policy and prints the differences."""
    from holdfast.insight.replay import NotReplayable
    from holdfast.platform.region_connections import print_unreachable

    same = 0
    unsure: dict[str, int] = {}
    changed: list[tuple[str, str, str]] = []
    for region in regions.reachable:
        decisions = sorted(region.list_objects("Decision"), key=lambda d: d.revision)[-last:]
        for decision in decisions:
            outcome = region.replay(decision, rules)
            if isinstance(outcome, NotReplayable):
                unsure[outcome.reason] = unsure.get(outcome.reason, 0) + 1
            elif outcome.identical:
                same += 1
            else:
                name = f"{decision.metadata.namespace}/{decision.metadata.name}"
                changed += [(region.name, name, line) for line in outcome.differences]
    if output == "json":
        differences = [{"region": r, "decision": d, "difference": line} for r, d, line in changed]
        print_json({"same": same, "notReplayable": unsure, "differences": differences})
    else:
        if changed:
            click.echo(table(("REGION", "DECISION", "DIFFERENCE"), changed))
        not_replayable = ", ".join(f"{count} NotReplayable({reason})" for reason, count in sorted(unsure.items()))
        click.echo(
            f"{same} decisions unchanged, {len({d for _, d, _ in changed})} different"
            + (f", {not_replayable}" if not_replayable else "")
        )
        print_unreachable(regions)
    return ExitCode.PLAN_CHANGES if changed else ExitCode.OK
