"""`holdfast plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option, table

if TYPE_CHECKING:
    from holdfast.cli.platform.foresight import Given, Outlook
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
    """Show what would be placed, where, evicting whom, and who would go; nothing is written.

    The same assignment, replication and planning as the platform itself, on a copy of its state. With --policy alone,
    the last decisions are planned again by that policy, and what it would have done otherwise is listed. Of a rollout
    it shows the first step: the next ones follow as replicas of the new revision serve.

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
        from holdfast.cli.platform.foresight import outlook_of_file

        return shown(output, outlook_of_file(regions, read_workloads(file), rules=rules))
    if drain is not None:
        from holdfast.cli.platform.foresight import Outlook, placings_of_drain
        from holdfast.model.meta import Key

        for region in regions.heard:
            if region.one("Node", Key("", drain)) is not None:
                return shown(output, Outlook(placings=tuple(placings_of_drain(region, drain, rules=rules))))
        regions.missing(f"there is no node {drain}", next_step="holdfast get nodes lists them")
    if rules is not None:
        return compared(output, regions, rules, last)
    step = "holdfast plan -f FILE, --drain NODE, --lose-region REGION or --policy FILE"
    raise Stop("nothing to plan", next_step=step, code=Exit.USAGE)


def read_workloads(path: str) -> list[Given]:
    import sys

    import msgspec
    import yaml

    from holdfast.cli.platform.foresight import problems, workloads_in

    try:
        if path == "-":
            documents = list(yaml.safe_load_all(sys.stdin))
        else:
            with open(path, encoding="utf-8") as source:
                documents = list(yaml.safe_load_all(source))
    except FileNotFoundError:
        raise Stop(f"there is no file {path}", code=Exit.USAGE) from None
    except (OSError, UnicodeDecodeError) as wrong:
        raise Stop(f"{path} cannot be read", why=str(wrong), code=Exit.USAGE) from None
    except yaml.YAMLError as wrong:
        raise Stop(f"{path} is not YAML", why=" ".join(str(wrong).split()), code=Exit.USAGE) from None
    try:
        found = workloads_in(documents)
    except msgspec.ValidationError as wrong:
        raise Stop(f"{path} does not hold valid workloads", why=str(wrong)) from wrong
    for given in found:
        wrong_fields = problems(given.workload)
        if wrong_fields:
            name = given.workload.metadata.name
            raise Stop(f"workload {name} in {path} is not valid", why="; ".join(wrong_fields))
    if not found:
        raise Stop(f"{path} holds no Workload", code=Exit.USAGE)
    return found


def shown(output: str, outlook: Outlook) -> int:
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
        return Exit.PLAN_NOT_PLACEABLE
    return Exit.PLAN_CHANGES if changed else Exit.OK


def as_text(outlook: Outlook) -> str:
    """What changes first, then who is placed where, then who goes, then what would help."""
    parts = [f"{r.workload} would be refused: {r.why}" for r in outlook.refused]
    parts += [
        f"{c.workload} is new" if c.new else f"{c.workload} changes: {'; '.join(str(f) for f in c.fields)}"
        for c in outlook.changes
    ]
    if outlook.placings:
        rows = [
            (p.replica, p.region, p.node or "-", ", ".join(p.victims), f"{p.reason}: {p.message}" if p.reason else "")
            for p in outlook.placings
        ]
        parts.append(table(("REPLICA", "REGION", "NODE", "EVICTS", "WAITS FOR"), rows))
    if outlook.removals:
        rows_going = [(r.replica, r.region, r.node or "-") for r in outlook.removals]
        parts.append(table(("REMOVED REPLICA", "REGION", "NODE"), rows_going))
    parts += [f"to fit: {text}" for text in dict.fromkeys(p.to_fit for p in outlook.placings if p.to_fit)]
    return "\n".join(parts)


def compared(output: str, regions: Regions, rules: Any, last: int) -> int:
    """The last decisions under another policy, region by region."""
    from holdfast.flow.replay import NotReplayable

    same = 0
    unsure: dict[str, int] = {}
    changed: list[tuple[str, str, str]] = []
    for region in regions.heard:
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
        regions.tell_silent()
    return Exit.PLAN_CHANGES if changed else Exit.OK
