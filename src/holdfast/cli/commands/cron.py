"""`holdfast cron`: starts a run of a CronWorkload by hand, and lists its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from holdfast.cli.commands.rollout import connect_to_workload, get_workload
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

POLL_EVERY_S = 0.5
_HEADERS = ("RUN", "SCHEDULED AT", "STATE", "SUCCEEDED", "ENDED", "MESSAGE")


@click.group()
def cron() -> None:
    """Start runs of CronWorkloads by hand, and list their runs.

    \b
    Examples:
      holdfast cron run shop/nightly-report --wait
      holdfast cron history shop/nightly-report
    """


@cron.command()
@click.argument("name", metavar="TENANT/CRONWORKLOAD")
@click.option("--wait", is_flag=True, help="Wait until the run ends.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=900.0, show_default=True, help="Seconds to wait."
)
@state_option
@output_option
def run(name: str, *, wait: bool, timeout_s: float, state: str, output: str) -> None:
    """Create a run now, besides the schedule. It also works while the CronWorkload is suspended.

    With --wait it exits with 1 if the run failed, and with 5 if --timeout expires.

    \b
    Example:
      holdfast cron run shop/nightly-report --wait
    """
    import time

    api, tenant, cron_name = connect_to_workload(state, name)
    item = _get_cron(api, tenant, cron_name)
    path = f"/apis/holdfast.dev/v1/namespaces/{quote(tenant)}/workloads"
    made: dict[str, Any] = api.request("POST", path, _manual_run(item))
    run_name = str(made["metadata"]["name"])
    if not wait:
        print_json(made) if output == "json" else _show_run(f"created run {tenant}/{run_name}", tenant, run_name)
        return
    deadline = time.monotonic() + timeout_s
    while run_state(made) == "Active":
        if time.monotonic() >= deadline:
            raise CommandError(
                f"run {tenant}/{run_name}: not ended when --timeout expired; the run continues",
                next_step=f"holdfast explain {tenant}/{run_name}",
                code=ExitCode.TIMED_OUT,
            )
        time.sleep(POLL_EVERY_S)
        made = get_workload(api, tenant, run_name)
    text = f"run {tenant}/{run_name}: {run_state(made)}"
    print_json(made) if output == "json" else _show_run(text, tenant, run_name)
    if run_state(made) == "Failed":
        raise CommandError(
            f"run {tenant}/{run_name}: failed (expected Complete): {_end(made).get('message', '')}",
            next_step=f"holdfast explain {tenant}/{run_name}",
        )


def _show_run(text: str, tenant: str, run_name: str) -> None:
    click.echo(text)
    click.echo(f"next: holdfast logs {tenant}/{run_name}", err=True)


@cron.command()
@click.argument("name", metavar="TENANT/CRONWORKLOAD")
@state_option
@output_option
def history(name: str, state: str, output: str) -> None:
    """List the runs that are kept, newest first, and the ticks that were missed.

    \b
    Example:
      holdfast cron history shop/nightly-report
    """
    api, tenant, cron_name = connect_to_workload(state, name)
    item = _get_cron(api, tenant, cron_name)
    uid = item["metadata"]["uid"]
    runs = [
        w
        for w in api.list("workloads", tenant, labelSelector=f"holdfast.dev/cron-workload={cron_name}")
        if any(owner.get("uid") == uid for owner in w["metadata"].get("ownerReferences", ()))
    ]
    runs.sort(key=_scheduled_at, reverse=True)
    status = item.get("status", {})
    missed = status.get("missed") or {}
    if output == "json":
        entries = [{"run": w["metadata"]["name"], "scheduledAt": _scheduled_at(w), "state": run_state(w)} for w in runs]
        print_json(
            {"cronWorkload": name, "runs": entries, "missed": missed, "next": status.get("nextScheduleTime", "")}
        )
        return
    rows = [
        (
            w["metadata"]["name"],
            _scheduled_at(w),
            run_state(w),
            f"{w.get('status', {}).get('summary', {}).get('succeeded', 0)}/{w['spec']['batch']['completions']}",
            _end(w).get("lastTransitionTime", ""),
            _end(w).get("message", ""),
        )
        for w in runs
    ]
    click.echo(table(_HEADERS, rows))
    if missed:
        click.echo(f"missed: {missed['count']} tick(s) in all; the last: {missed['message']}")
    click.echo(f"next: {status.get('nextScheduleTime') or 'none'}")


def _get_cron(api: CellApi, tenant: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/apis/holdfast.dev/v1/namespaces/{quote(tenant)}/cronworkloads/{quote(name)}")
    return found


def _manual_run(item: dict[str, Any]) -> dict[str, Any]:
    """The Workload of a run by hand, as `kubectl create job --from` makes a Job."""
    import time

    from holdfast.model.cron_workload import ANNOTATION_SCHEDULED_AT
    from holdfast.model.labels import LABEL_CRON_WORKLOAD
    from holdfast.model.times import seconds_text

    meta, made = item["metadata"], item["spec"]["workload"]
    given = made.get("metadata", {})
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {
            "generateName": f"{meta['name']}-run-",
            "namespace": meta["namespace"],
            "labels": {**given.get("labels", {}), LABEL_CRON_WORKLOAD: meta["name"]},
            "annotations": {**given.get("annotations", {}), ANNOTATION_SCHEDULED_AT: seconds_text(time.time())},
            "ownerReferences": [
                {
                    "apiVersion": "holdfast.dev/v1",
                    "kind": "CronWorkload",
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": made["spec"],
    }


def _scheduled_at(item: dict[str, Any]) -> str:
    meta = item["metadata"]
    return str(meta.get("annotations", {}).get("holdfast.dev/scheduled-at", meta["creationTimestamp"]))


def _end(item: dict[str, Any]) -> dict[str, Any]:
    """The condition that says how the run ended; empty while it is active."""
    conditions = item.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), {})


def run_state(item: dict[str, Any]) -> str:
    return str(_end(item).get("type", "Active"))
