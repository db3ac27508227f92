"""`holdfast replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.document_files import read_document
from holdfast.cli.options import output_option, parse_tenant_name, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json

if TYPE_CHECKING:
    from holdfast.insight.replay import NotReplayable, ReplayResult
    from holdfast.model.decision import Decision
    from holdfast.model.scheduler_policy import PolicyRules


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
    have decided on the same state, and exits with 3 if that differs, as plan --policy does.

    \b
    Examples:
      holdfast replay payments/risk-api-us-east-1a2b3c-0123456789
      holdfast replay payments/risk-api-us-east-1a2b3c-0123456789 --policy packing.yaml
    """
    from holdfast.platform.region_connections import connect_regions

    key = parse_tenant_name(decision, "DECISION")
    rules = read_rules(policy) if policy is not None else None
    regions = connect_regions(state)
    for region in regions.reachable:
        found = region.get_object("Decision", key)
        if found is None:
            continue
        outcome = region.replay(found, rules)
        if output == "json":
            print_json(replay_json(found, outcome))
        else:
            click.echo(replay_text(decision, found, outcome, policy or ""))
        return exit_code(outcome, other=rules is not None)
    regions.raise_not_found(f"decision {decision}: not found", next_step=f"holdfast get decisions -n {key.namespace}")


def exit_code(outcome: ReplayResult | NotReplayable, *, other: bool) -> ExitCode:
    """Under another policy a difference is a change. Under the recorded one it is an error."""
    from holdfast.insight.replay import NotReplayable

    if isinstance(outcome, NotReplayable):
        return ExitCode.FAILED
    if outcome.identical:
        return ExitCode.OK
    return ExitCode.PLAN_CHANGES if other else ExitCode.FAILED


def read_rules(path: str) -> PolicyRules:
    """Reads rules from a YAML or JSON file that holds a SchedulerPolicy or only its rules."""
    import msgspec

    from holdfast.insight.policy_rules import expression_errors
    from holdfast.model.scheduler_policy import PolicyRules, SchedulerPolicy, validate_rules

    data = read_document(path)
    try:
        if isinstance(data, dict) and data.get("kind") == "SchedulerPolicy":
            rules = msgspec.convert(data, SchedulerPolicy).spec.rules
        else:
            rules = msgspec.convert(data, PolicyRules)
    except msgspec.ValidationError as wrong:
        raise CommandError(f"{path}: not a SchedulerPolicy ({wrong})", next_step="see docs/policies.md") from wrong
    wrong_fields = (*validate_rules("spec.rules", rules), *expression_errors("spec.rules", rules))
    causes = [f"{c.field}: {c.message}" for c in wrong_fields]
    if causes:
        raise CommandError(f"{path}: invalid policy ({'; '.join(causes)})", next_step="edit the file")
    return rules


def replay_json(decision: Decision, outcome: ReplayResult | NotReplayable) -> dict[str, Any]:
    import msgspec

    from holdfast.insight.replay import NotReplayable

    row: dict[str, Any] = {"decision": decision.metadata.name, "workload": decision.spec.workload}
    if isinstance(outcome, NotReplayable):
        return {**row, "replayable": False, "reason": outcome.reason, "message": outcome.message}
    return {
        **row,
        "replayable": True,
        "same": outcome.identical,
        "differences": list(outcome.differences),
        "entries": msgspec.to_builtins(outcome.plan.decision_entries()),
    }


def replay_text(name: str, decision: Decision, outcome: ReplayResult | NotReplayable, other: str) -> str:
    """`other` is the file of the policy that replaced the recorded one."""
    from holdfast.insight.replay import NotReplayable

    spec = decision.spec
    if isinstance(outcome, NotReplayable):
        return f"{name}: NotReplayable({outcome.reason}): {outcome.message}"
    rules = f"policy {other} instead of {spec.policy_revision}" if other else f"policy {spec.policy_revision}"
    basis = f"snapshot {spec.snapshot_hash} at revision {spec.snapshot_revision}, {rules}"
    if outcome.identical:
        what = "the other policy gives the same outcome" if other else "identical outcome"
        return f"{name}: {what} ({len(spec.entries)} replicas, {basis})"
    what = "the other policy gives a different outcome" if other else "DIFFERENT OUTCOME"
    return "\n".join([f"{name}: {what} ({basis})", *(f"  {line}" for line in outcome.differences)])
