"""`holdfast replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, print_json, state_option

if TYPE_CHECKING:
    from holdfast.flow.replay import NotReplayable, Replayed
    from holdfast.model.decision import Decision
    from holdfast.model.scheduler_policy import Rules


@click.command()
@click.argument("decision", metavar="TENANT/DECISION")
@click.option(
    "--policy", "policy", type=click.Path(exists=True, dir_okay=False), help="Use this SchedulerPolicy instead."
)
@state_option
@output_option
def replay(decision: str, policy: str | None, state: str, output: str) -> int:
    """Repeat a scheduling decision on the state it was made on, and compare the outcome.

    Reads the store's history at the revisions that the Decision names. With --policy it shows what another policy would
    have decided on the same state.

    \b
    Examples:
      holdfast replay payments/risk-api-us-east-1a2b3c-0123456789
      holdfast replay payments/risk-api-us-east-1a2b3c-0123456789 --policy packing.yaml
    """
    from holdfast.cli.platform.regions import Regions, parse_subject
    from holdfast.flow.replay import NotReplayable

    key = parse_subject(decision, "DECISION")
    rules = read_rules(policy) if policy is not None else None
    regions = Regions(state)
    for region in regions.heard:
        found = region.one("Decision", key)
        if found is None:
            continue
        outcome = region.replay(found, rules)
        if output == "json":
            print_json(as_data(found, outcome))
        else:
            click.echo(as_text(decision, found, outcome, other=rules is not None))
        failed = isinstance(outcome, NotReplayable) or (rules is None and not outcome.same)
        return Exit.FAILED if failed else Exit.OK
    regions.missing(f"decision {decision}: not found", next_step=f"holdfast get decisions -n {key.namespace}")


def read_rules(path: str) -> Rules:
    """Reads rules from a YAML or JSON file that holds a SchedulerPolicy or only its rules."""
    import msgspec
    import yaml

    from holdfast.model.scheduler_policy import Rules, SchedulerPolicy, validate_rules

    try:
        with open(path, encoding="utf-8") as file:
            data: Any = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as wrong:
        raise Stop(f"{path}: not readable ({' '.join(str(wrong).split())})", code=Exit.USAGE) from None
    try:
        if isinstance(data, dict) and data.get("kind") == "SchedulerPolicy":
            rules = msgspec.convert(data, SchedulerPolicy).spec.rules
        else:
            rules = msgspec.convert(data, Rules)
    except msgspec.ValidationError as wrong:
        raise Stop(f"{path}: not a SchedulerPolicy ({wrong})", next_step="see docs/policies.md") from wrong
    causes = [f"{c.field}: {c.message}" for c in validate_rules("spec.rules", rules)]
    if causes:
        raise Stop(f"{path}: invalid policy ({'; '.join(causes)})", next_step="edit the file")
    return rules


def as_data(decision: Decision, outcome: Replayed | NotReplayable) -> dict[str, Any]:
    import msgspec

    from holdfast.flow.replay import NotReplayable

    said: dict[str, Any] = {"decision": decision.metadata.name, "workload": decision.spec.workload}
    if isinstance(outcome, NotReplayable):
        return {**said, "replayable": False, "reason": outcome.reason, "message": outcome.message}
    return {
        **said,
        "replayable": True,
        "same": outcome.same,
        "differences": list(outcome.differences),
        "entries": msgspec.to_builtins(outcome.made.entries()),
    }


def as_text(name: str, decision: Decision, outcome: Replayed | NotReplayable, *, other: bool) -> str:
    from holdfast.flow.replay import NotReplayable

    spec = decision.spec
    if isinstance(outcome, NotReplayable):
        return f"{name}: NotReplayable({outcome.reason}): {outcome.message}"
    basis = f"snapshot {spec.snapshot_hash} at revision {spec.snapshot_revision}, policy {spec.policy_revision}"
    if outcome.same:
        what = "the other policy gives the same outcome" if other else "identical outcome"
        return f"{name}: {what} ({len(spec.entries)} replicas, {basis})"
    what = "the other policy gives a different outcome" if other else "DIFFERENT OUTCOME"
    return "\n".join([f"{name}: {what} ({basis})", *(f"  {line}" for line in outcome.differences)])
