"""`holdfast logs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import line_output_option, state_option
from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.platform.task_logs import LogLocation

FOLLOW_EVERY_S = 0.25
DISCOVERY_EVERY_POLLS = 20


@click.command()
@click.argument(
    "name", metavar="[TENANT/]REPLICA|WORKLOAD", shell_complete=shell_completion.complete_workloads_and_replicas
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@click.option(
    "--tail",
    type=click.IntRange(0, 1_000_000),
    default=200,
    show_default=True,
    help="Number of last lines to print for each replica.",
)
@click.option("-p", "--previous", is_flag=True, help="Print the runs before the newest one. Implies --api.")
@click.option(
    "-c", "--container", "program", default="", help="Name of an init task or sidecar. Default: the main task."
)
@click.option(
    "--api", "via_api", is_flag=True, help="Read from the agents through the API instead of from local files."
)
@state_option
@line_output_option
def logs(
    name: str, *, follow: bool, tail: int, previous: bool, program: str, via_api: bool, state: str, output: str
) -> None:
    """Print the logs of replicas.

    The name is a replica, or a workload for all its replicas. Lines of several replicas are prefixed with the replica's
    name. Logs are read from the agents' files on this machine, or with --api from the agents through the region. Work
    that has ended has logs too: each node keeps those of its last 64 ended tasks. With -o json each line is one JSON
    object.

    \b
    Examples:
      holdfast logs payments/risk-api --tail 20
      holdfast logs risk-api-us-east-0 -f
      holdfast logs payments/risk-api -c migrate
      holdfast logs risk-api-us-east-0 --previous
    """
    import time

    from holdfast.platform.layout import Layout
    from holdfast.platform.task_logs import find_logs

    layout = Layout(state)
    if via_api or layout.remote or previous:
        selected = LogSelection(follow=follow and not previous, tail=tail, previous=previous, program=program)
        logs_from_agents(name, selected, state=state, output=output)
        return

    layout.load()
    found = find_logs(layout, name, program)
    if not found and not follow:
        raise CommandError(
            f"{name}: no logs on this machine (searched {layout.root / 'agents'})",
            next_step=f"holdfast logs {name} --api, or --follow to wait for logs",
            code=ExitCode.FAILED,
        )
    show = line_printer(output, several=len(found) != 1)
    lines = sorted((line for log in found for line in log.last(tail)), key=lambda found: found.line.at)
    show(lines)
    if not lines:
        note_empty_log(name)
    known = {log.path: log for log in found}
    round_number = 0
    while follow:
        time.sleep(FOLLOW_EVERY_S)
        round_number += 1
        if round_number % DISCOVERY_EVERY_POLLS == 0 or not known:
            # New replicas are followed from their first line.
            for log in find_logs(layout, name, program):
                known.setdefault(log.path, log)
        show(sorted((line for log in known.values() for line in log.read_new()), key=lambda found: found.line.at))


class LogSelection(NamedTuple):
    """Which lines of a replica's log are wanted."""

    follow: bool
    tail: int
    previous: bool
    program: str


def logs_from_agents(name: str, selected: LogSelection, *, state: str, output: str) -> None:
    """Prints the logs that agents send. With --follow, several replicas are followed concurrently."""
    import threading

    from holdfast.platform.agent_calls import ReplicaLocation, call_replica_agent, find_replicas
    from holdfast.platform.task_logs import LogLocation, log_line

    found = find_replicas(state, name)
    placed = [location for location in found if location.log_node]
    if not placed:
        raise CommandError(
            f"{name}: no logs, because no replica was placed yet (found {len(found)})",
            next_step=f"holdfast explain {name}",
        )
    show = line_printer(output, several=len(placed) != 1)
    printing = threading.Lock()
    problems: list[CommandError] = []
    silent = {location.name for location in placed}

    def read(location: ReplicaLocation) -> None:
        try:
            for row in call_replica_agent(location, kind="Logs", **selected._asdict()):
                with printing:
                    silent.discard(location.name)
                    show([LogLocation(location.name, log_line(row))])
        except CommandError as stop:
            problems.append(stop)

    if not selected.follow or len(placed) == 1:
        for location in placed:
            read(location)
    else:
        threads = [threading.Thread(target=read, args=(location,), daemon=True) for location in placed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if problems:
        raise problems[0]
    if len(silent) == len(placed):
        note_empty_log(name)


def note_empty_log(name: str) -> None:
    from holdfast.platform.output import print_note

    print_note(f"{name}: its programs have written nothing yet")


def line_printer(output: str, *, several: bool) -> Callable[[Iterable[LogLocation]], None]:
    import json

    def show(lines: Iterable[LogLocation]) -> None:
        for found in lines:
            line = found.line
            if output == "json":
                record = {"replica": found.replica, "time": line.at, "stream": line.stream, "text": line.text}
                click.echo(json.dumps(record, ensure_ascii=False))
            else:
                click.echo(f"{found.replica}  {line.text}" if several else line.text)

    return show
