"""`holdfast plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option, table

if TYPE_CHECKING:
    from holdfast.cli.platform.foresight import Placing
    from holdfast.cli.platform.regions import Regions


@click.command()
@click.option(
    "-f", "--file", "file", type=click.Path(dir_okay=False, allow_dash=True), help="Workloads to plan; - is stdin."
)
@click.option("--drain", "drain", metavar="NODE", help="Where everything on this node would go.")
@click.option("--policy", "policy", type=click.Path(exists=True, dir_okay=False), help="Plan by this SchedulerPolicy.")
@click.option(
    "--last", default=100, show_default=True, help="With --policy alone: how many recent decisions to compare."
)
@click.option(
    "--lose-region", "lose_region", metavar="REGION", help="Who would recover where if this region were lost."
)
@click.option("--lose-zone", "lose_zone", metavar="ZONE", default="", help="With --lose-region: only this zone of it.")
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
    state: str,
    output: str,
) -> int:
    """Show what would be placed, where, and evicting whom; nothing is written.

    The same assignment, replication and planning as the platform itself, on a copy of its state. With --policy alone,
    the last decisions are planned again by that policy, and what it would have done otherwise is listed.

    \b
    Examples:
      holdfast plan -f shop.yaml
      holdfast plan --drain us-east-a1
      holdfast plan --policy packing.yaml --last 200
      holdfast plan --lose-region eu-central
      holdfast plan --lose-region eu-central --lose-zone eu-central-a
    """
    if lose_region is not None:
        from holdfast.cli.commands.lose_region import lose

        return lose(state, lose_region, lose_zone, output)
    if lose_zone:
        step = f"holdfast plan --lose-region REGION --lose-zone {lose_zone}"
        raise Stop(f"which region does zone {lose_zone} belong to?", next_step=step, code=Exit.USAGE)
    from holdfast.cli.commands.replay import read_rules
    from holdfast.cli.platform.regions import Regions

    rules = read_rules(policy) if policy is not None else None
    regions = Regions(state)
    if file is not None:
        from holdfast.cli.platform.foresight import placings_of_file

        return shown(output, placings_of_file(regions, read_workloads(file), rules=rules))
    if drain is not None:
        from holdfast.cli.platform.foresight import placings_of_drain
        from holdfast.model.meta import Key

        for region in regions.all:
            if region.one("Node", Key("", drain)) is not None:
                return shown(output, placings_of_drain(region, drain, rules=rules))
        raise Stop(f"there is no node {drain}", next_step="holdfast status lists them")
    if rules is not None:
        return compared(output, regions, rules, last)
    raise Stop("nothing to plan", next_step="holdfast plan -f FILE, --drain NODE or --policy FILE", code=Exit.USAGE)


def read_workloads(path: str) -> list[Any]:
    import sys

    import msgspec
    import yaml

    from holdfast.cli.platform.foresight import problems, workloads_in

    if path == "-":
        documents = list(yaml.safe_load_all(sys.stdin))
    else:
        try:
            with open(path, encoding="utf-8") as source:
                documents = list(yaml.safe_load_all(source))
        except FileNotFoundError:
            raise Stop(f"there is no file {path}", code=Exit.USAGE) from None
    try:
        found = workloads_in(documents)
    except msgspec.ValidationError as wrong:
        raise Stop(f"{path} does not hold valid workloads", why=str(wrong)) from wrong
    for workload in found:
        wrong_fields = problems(workload)
        if wrong_fields:
            raise Stop(f"workload {workload.metadata.name} in {path} is not valid", why="; ".join(wrong_fields))
    if not found:
        raise Stop(f"{path} holds no Workload", code=Exit.USAGE)
    return found


def shown(output: str, placings: list[Placing]) -> int:
    import msgspec

    waiting = [p for p in placings if not p.node]
    if output == "json":
        print_json({"placings": msgspec.to_builtins(placings), "placed": len(placings) - len(waiting)})
    elif not placings:
        click.echo("nothing would change")
    else:
        rows = [
            (p.replica, p.region, p.node or "-", ", ".join(p.victims), f"{p.reason}: {p.message}" if p.reason else "")
            for p in placings
        ]
        click.echo(table(("REPLICA", "REGION", "NODE", "EVICTS", "WAITS FOR"), rows))
        cures = dict.fromkeys(p.to_fit for p in waiting if p.to_fit)
        for text in cures:
            click.echo(f"to fit: {text}")
    if waiting:
        return Exit.PLAN_NOT_PLACEABLE
    return Exit.PLAN_CHANGES if placings else Exit.OK


def compared(output: str, regions: Regions, rules: Any, last: int) -> int:
    """The last decisions under another policy, region by region."""
    from holdfast.flow.replay import NotReplayable

    same = 0
    unsure: dict[str, int] = {}
    changed: list[tuple[str, str, str]] = []
    for region in regions.all:
        decisions = sorted(region.every("Decision"), key=lambda d: d.revision)[-last:]
        for decision in decisions:
            outcome = region.replay(decision, rules)
            if isinstance(outcome, NotReplayable):
                unsure[outcome.reason] = unsure.get(outcome.reason, 0) + 1
            elif outcome.same:
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
        told = ", ".join(f"{count} NotReplayable({reason})" for reason, count in sorted(unsure.items()))
        click.echo(
            f"{same} decisions the same, {len({d for _, d, _ in changed})} otherwise" + (f", {told}" if told else "")
        )
    return Exit.PLAN_CHANGES if changed else Exit.OK
