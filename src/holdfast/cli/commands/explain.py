"""`holdfast explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, parse_tenant_name, state_option
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.output import print_json, table

if TYPE_CHECKING:
    from holdfast.insight.timeline import Timeline


@click.command()
@click.argument(
    "subject", metavar="TENANT/WORKLOAD|REPLICA", shell_complete=shell_completion.complete_workloads_and_replicas
)
@state_option
@output_option
def explain(subject: str, state: str, output: str) -> int:
    """Show the history of a workload or replica, its stage, the reason, and the next step.

    Each timeline ends with the stage, the owner of the next step, the time of the next retry, and the smallest change
    after which the replica would be schedulable. Without the global cell it shows what the regions know.

    \b
    Examples:
      holdfast explain payments/risk-api
      holdfast explain payments/risk-api-us-east-0
    """
    import msgspec

    from holdfast.insight.explain import explanation_of
    from holdfast.platform.region_connections import connect_regions, print_unreachable

    key = parse_tenant_name(subject)
    regions = connect_regions(state, tenant=key.namespace)
    found = explanation_of(regions, key)
    if output == "json":
        print_json(msgspec.to_builtins(found))
    else:
        click.echo("\n\n".join([*found.summary, *(as_text(timeline) for timeline in found.timelines)]))
        print_unreachable(regions)
    return ExitCode.OK


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
