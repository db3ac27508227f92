"""`holdfast notify`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

RECEIVERS = "/apis/holdfast.dev/v1/notificationreceivers"
NOTIFICATIONS = "/apis/holdfast.dev/v1/notifications"
# Interval at which `holdfast notify test` looks for the result.
TEST_POLL_S = 0.5


@click.group()
def notify() -> None:
    """Send a test notification, and list receivers and notifications.

    A NotificationReceiver is made with `kubectl apply`. It gets a signed POST for each event that people must hear of.

    \b
    Examples:
      holdfast notify test pager
      holdfast notify receivers
      holdfast notify list
    """


def _connect(state: str) -> CellApi:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return connect_cell(layout, layout.load(), "global")


@notify.command("test")
@click.argument("receiver")
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds to wait.")
@state_option
@output_option
def send_test(receiver: str, *, timeout_s: float, state: str, output: str) -> int:
    """Send a test notification to one receiver, whatever its filters, and wait for the result.

    Exits with 0 only if the receiver accepted it. A notification that was not accepted stays in the queue.

    \b
    Example:
      holdfast notify test pager
    """
    api = _connect(state)
    try:
        known = [item["metadata"]["name"] for item in api.get(RECEIVERS)["items"]]
        if receiver not in known:
            text = f"notificationreceiver {receiver}: not found (expected one of {', '.join(known) or 'none'})"
            raise CommandError(text, next_step="kubectl get notificationreceivers", code=ExitCode.USAGE)
        made = api.request("POST", NOTIFICATIONS, _test(receiver))
        path = f"{NOTIFICATIONS}/{made['metadata']['name']}"
        until = time.monotonic() + timeout_s
        row: dict[str, Any] = {}
        while time.monotonic() < until:
            row = next(iter(api.get(path).get("status", {}).get("deliveries", [])), {})
            if row:
                break
            time.sleep(TEST_POLL_S)
    finally:
        api.close()
    accepted = row.get("state") == "Delivered"
    if output == "json":
        print_json({"notification": made["metadata"]["name"], "receiver": receiver, "accepted": accepted, **row})
    elif accepted:
        print_note(f"notificationreceiver {receiver}: accepted {made['metadata']['name']}")
    else:
        why = row.get("error") or f"no attempt within {timeout_s:g} s"
        raise CommandError(
            f"notificationreceiver {receiver}: not accepted ({why})", next_step="holdfast notify receivers"
        )
    return ExitCode.OK if accepted else ExitCode.FAILED


def _test(receiver: str) -> dict[str, Any]:
    from holdfast.model.times import micro_text

    now = micro_text(time.time())
    spec = {
        "type": "Test",
        "state": "Occurred",
        "at": now,
        "key": f"test/{receiver}/{now}",
        "receivers": [receiver],
        "subject": {"kind": "NotificationReceiver", "name": receiver},
        "message": f"test of notificationreceiver {receiver}",
    }
    return {"metadata": {"generateName": "test-"}, "spec": spec}


@notify.command("receivers")
@state_option
@output_option
def list_receivers(*, state: str, output: str) -> None:
    """List receivers: what waits, what was delivered, failed and dropped, and the last problem.

    \b
    Example:
      holdfast notify receivers
    """
    api = _connect(state)
    try:
        found = api.get(RECEIVERS)["items"]
    finally:
        api.close()
    if output == "json":
        print_json(found)
        return
    rows = []
    for item in found:
        status = item.get("status", {})
        counts = [str(status.get(name, 0)) for name in ("pending", "delivered", "failures", "dropped")]
        problem = "suspended" if item["spec"].get("suspend") else status.get("problem", "")
        rows.append((item["metadata"]["name"], *counts, status.get("lastSuccessAt", "") or "never", problem or "-"))
    header = ("RECEIVER", "PENDING", "DELIVERED", "FAILURES", "DROPPED", "LAST SUCCESS", "PROBLEM")
    click.echo(table(header, rows))


@notify.command("list")
@click.option("--pending", is_flag=True, help="Only those that a receiver has not accepted yet.")
@state_option
@output_option
def list_notifications(*, pending: bool, state: str, output: str) -> None:
    """List notifications of the last days, newest first, with their deliveries.

    \b
    Example:
      holdfast notify list --pending
    """
    api = _connect(state)
    try:
        found = api.get(NOTIFICATIONS)["items"]
    finally:
        api.close()
    found.sort(key=lambda item: str(item["spec"].get("at", "")), reverse=True)
    if pending:
        found = [item for item in found if _deliveries(item).count("Delivered") < len(item["spec"]["receivers"])]
    if output == "json":
        print_json(found)
        return
    rows = [
        (
            item["spec"]["at"].partition(".")[0] + "Z",
            item["spec"]["type"],
            item["spec"].get("state", ""),
            f"{_deliveries(item).count('Delivered')}/{len(item['spec'].get('receivers', []))}",
            item["spec"].get("message", ""),
        )
        for item in found
    ]
    click.echo(table(("AT", "TYPE", "STATE", "DELIVERED", "MESSAGE"), rows))


def _deliveries(item: dict[str, Any]) -> list[str]:
    return [str(row.get("state", "")) for row in item.get("status", {}).get("deliveries", [])]
