"""`holdfast rollout`: status, history, restart, diff, pause, resume and undo of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

POLL_EVERY_S = 0.5
RESTARTED_AT = "holdfast.dev/restarted-at"
FAILED_PHASES = ("RolledBack", "Failed")
TERMINAL_PHASES = ("Complete", *FAILED_PHASES)
_HEADERS = ("REGION", "REVISION", "DESIRED", "BOUND", "STARTED", "READY", "SERVING", "UPDATED", "PENDING BECAUSE")


@click.group()
def rollout() -> None:
    """Follow, restart, compare, pause and undo rollouts.

    \b
    Examples:
      holdfast rollout status payments/risk-api
      holdfast rollout undo payments/risk-api
    """


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the rollout ends.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=900.0, show_default=True, help="Seconds to wait."
)
@state_option
@output_option
def status(workload: str, *, wait: bool, timeout_s: float, state: str, output: str) -> None:
    """Show the progress of a rollout: bound, started, ready and serving replicas in each region.

    Exits with 0 if the new revision serves in all regions, with 1 if the rollout failed or was rolled back, and with 5
    if --timeout expires. With --no-wait it also exits with 0 while the rollout is in progress.

    \b
    Example:
      holdfast rollout status payments/risk-api
    """
    import time

    api, tenant, name = connect_to_workload(state, workload)
    deadline, shown = time.monotonic() + timeout_s, ""
    while True:
        found = read_progress(api, tenant, name)
        text = progress_text(found)
        if output == "text" and wait and text != shown:
            print_note(text)
            shown = text
        if not wait or found["phase"] in TERMINAL_PHASES:
            break
        if time.monotonic() >= deadline:
            expected, updated = (sum(r[key] for r in found["regions"]) for key in ("wanted", "updatedServing"))
            why = f": {found['reason']}: {found['message']}" if not found["phase"] else "; the rollout continues"
            later = f"holdfast rollout status {workload} --timeout {2 * timeout_s:g}"
            raise CommandError(
                f"rollout {workload}: not complete when --timeout expired "
                f"(expected {expected} updated replicas serving, found {updated}){why}",
                next_step=later if found["phase"] else found["next"],
                code=ExitCode.TIMED_OUT,
            )
        time.sleep(POLL_EVERY_S)
    if output == "json":
        print_json(found)
    elif not wait:
        click.echo(text)
    else:
        click.echo(f"{workload} {found['revision']}: {found['phase']}")
    if found["phase"] in FAILED_PHASES:
        raise CommandError(
            f"rollout {workload}: ended in phase {found['phase']} (expected Complete): {found['message']}",
            next_step=f"holdfast explain {workload}",
        )


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@state_option
@output_option
def history(workload: str, state: str, output: str) -> None:
    """List the revisions of a workload, newest first.

    \b
    Example:
      holdfast rollout history payments/risk-api
    """
    api, tenant, name = connect_to_workload(state, workload)
    block = rollout_status(get_workload(api, tenant, name))
    entries = block.get("history", [])
    if output == "json":
        print_json({"workload": workload, "lastGood": block.get("lastGoodRevision", ""), "history": entries})
        return
    rows = [
        (
            e["revision"],
            e.get("generation", 0),
            e.get("at", "")[:19],
            e.get("outcome", ""),
            revision_marks(block, e),
            template_command(e),
        )
        for e in entries
    ]
    click.echo(table(("REVISION", "GENERATION", "AT", "OUTCOME", "MARK", "COMMAND"), rows))


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@click.option("--to", "revision", default="", help="Revision to return to; the last good revision if not set.")
@state_option
@output_option
def undo(workload: str, revision: str, state: str, output: str) -> None:
    """Return to an earlier revision with a new rollout.

    \b
    Examples:
      holdfast rollout undo payments/risk-api
      holdfast rollout undo payments/risk-api --to 3f2a91bc04
    """
    import msgspec

    from holdfast.model.newest_template import target_revision, undo_revision, undo_template
    from holdfast.model.workload import Workload

    api, tenant, name = connect_to_workload(state, workload)
    item = msgspec.convert(get_workload(api, tenant, name), Workload)
    target = revision or undo_revision(item)
    template = undo_template(item, target)
    if template is None:
        entries = item.status.rollout.history if item.status.rollout is not None else ()
        known = ", ".join(e.revision for e in entries) or "none"
        what = f"revision {target} not found" if target else "no earlier revision has served"
        raise CommandError(
            f"workload {workload}: {what} (known: {known})", next_step=f"holdfast rollout history {workload}"
        )
    replaced = [{"op": "replace", "path": "/spec/template", "value": msgspec.to_builtins(template)}]
    api.request("PATCH", workload_path(tenant, name), replaced, content_type="application/json-patch+json")
    target = target_revision(msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, template=template)))
    print_result(output, workload, "undone", revision=target)


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@state_option
@output_option
def restart(workload: str, state: str, output: str) -> None:
    """Replace every replica with a new rollout of the same template.

    Sets the label holdfast.dev/restarted-at of the template, so the restart has a revision of its own, and follows the
    workload's rollout rules and disruption budget.

    \b
    Example:
      holdfast rollout restart payments/risk-api && holdfast rollout status payments/risk-api
    """
    import time

    api, tenant, name = connect_to_workload(state, workload)
    at = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    body = {"spec": {"template": {"labels": {RESTARTED_AT: at}}}}
    api.request("PATCH", workload_path(tenant, name), body, content_type="application/merge-patch+json")
    print_result(output, workload, "restarted")


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@click.argument("old", metavar="[OLD]", default="")
@click.argument("new", metavar="[NEW]", default="")
@state_option
@output_option
def diff(workload: str, old: str, new: str, state: str, output: str) -> int:
    """Compare the templates of two revisions, field by field.

    Without revisions: the last good revision before the present one, and the present one. Exits with 3 if they differ.

    \b
    Examples:
      holdfast rollout diff payments/risk-api
      holdfast rollout diff payments/risk-api 3f2a91bc04 77ab120c9d
    """
    import msgspec

    from holdfast.insight.spec_diff import field_changes

    api, tenant, name = connect_to_workload(state, workload)
    block = rollout_status(get_workload(api, tenant, name))
    entries: list[dict[str, Any]] = block.get("history", [])
    templates = {e["revision"]: e["template"] for e in entries}
    newest = new or block.get("revision", "")
    older = [e["revision"] for e in entries if e.get("outcome") == "Complete" and e["revision"] != newest]
    before = old or next(iter(older), "")
    for revision in (before, newest):
        if revision not in templates:
            what = f"revision {revision} not found" if revision else "no earlier revision"
            known = ", ".join(templates) or "none"
            raise CommandError(
                f"workload {workload}: {what} (known: {known})", next_step=f"holdfast rollout history {workload}"
            )
    changes = field_changes(templates[before], templates[newest])
    if output == "json":
        print_json({"workload": workload, "old": before, "new": newest, "changes": msgspec.to_builtins(changes)})
    else:
        click.echo(f"{workload}: {before} → {newest}")
        click.echo("\n".join(f"  {change}" for change in changes) if changes else "  no difference")
    return ExitCode.PLAN_CHANGES if changes else ExitCode.OK


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@state_option
@output_option
def pause(workload: str, state: str, output: str) -> None:
    """Pause a rollout and its progress deadline.

    \b
    Example:
      holdfast rollout pause payments/risk-api
    """
    set_paused(state, workload, paused=True)
    print_result(output, workload, "paused")


@rollout.command()
@click.argument("workload", metavar="TENANT/WORKLOAD", shell_complete=shell_completion.complete_workloads)
@state_option
@output_option
def resume(workload: str, state: str, output: str) -> None:
    """Resume a paused rollout.

    \b
    Example:
      holdfast rollout resume payments/risk-api
    """
    set_paused(state, workload, paused=False)
    print_result(output, workload, "resumed")


def connect_to_workload(state: str, workload: str) -> tuple[CellApi, str, str]:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    tenant, _, name = workload.partition("/")
    if not tenant or not name:
        raise CommandError(f"{workload}: the tenant is missing (expected TENANT/WORKLOAD)", code=ExitCode.USAGE)
    layout = Layout(state)
    return connect_cell(layout, layout.load(), "global"), tenant, name


def workload_path(tenant: str, name: str) -> str:
    return f"/apis/holdfast.dev/v1/namespaces/{quote(tenant)}/workloads/{quote(name)}"


def get_workload(api: CellApi, tenant: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(workload_path(tenant, name))
    return found


def rollout_status(item: dict[str, Any]) -> dict[str, Any]:
    return item.get("status", {}).get("rollout") or {}


def read_progress(api: CellApi, tenant: str, name: str) -> dict[str, Any]:
    """Phase and message of the rollout, with counts per region."""
    import msgspec

    from holdfast.insight.rollout_progress import rollout_progress
    from holdfast.model.assignment import Assignment
    from holdfast.model.workload import Workload

    workload = msgspec.convert(get_workload(api, tenant, name), Workload)
    own = [a for a in api.list("assignments", tenant) if a["spec"]["workload"] == name]
    found: dict[str, Any] = msgspec.to_builtins(rollout_progress(workload, msgspec.convert(own, list[Assignment])))
    return found


def progress_text(found: dict[str, Any]) -> str:
    """The phase, or the reason for which there is none yet, with the counts per region."""
    keys = ("region", "revision", "wanted", "bound", "started", "ready", "serving", "updatedServing", "waitingFor")
    rows = table(_HEADERS, [tuple(r[key] for key in keys) for r in found["regions"]])
    state = found["phase"] or f"Pending: {found['reason']}"
    step = f"\nnext: {found['next']}" if found["next"] and not found["phase"] else ""
    return f"{state}: {found['message']}\n{rows}{step}"


def revision_marks(block: dict[str, Any], entry: dict[str, Any]) -> str:
    found = [
        mark
        for mark, key in (("current", "revision"), ("last-good", "lastGoodRevision"))
        if block.get(key) == entry["revision"]
    ]
    return ",".join(found)


def template_command(entry: dict[str, Any]) -> str:
    template = entry["template"]
    return " ".join([*template.get("command", []), *template.get("args", [])])[:60]


def set_paused(state: str, workload: str, *, paused: bool) -> None:
    api, tenant, name = connect_to_workload(state, workload)
    body = {"spec": {"rollout": {"paused": paused}}}
    api.request("PATCH", workload_path(tenant, name), body, content_type="application/merge-patch+json")


def print_result(output: str, workload: str, result: str, **more: str) -> None:
    if output == "json":
        print_json({"workload": workload, "result": result, **more})
    else:
        click.echo(f"rollout {workload}: {result}{' to revision ' + more['revision'] if more else ''}")
