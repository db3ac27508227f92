"""`holdfast logs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from holdfast.cli import completing
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import output_option, state_option

if TYPE_CHECKING:
    from holdfast.cli.platform.task_logs import Found

FOLLOW_EVERY_S = 0.25
FIND_EVERY = 20


@click.command()
@click.argument("name", metavar="[TENANT/]REPLICA|WORKLOAD", shell_complete=completing.workloads)
@click.option("-f", "--follow", is_flag=True, help="Keep printing what is written from now on.")
@click.option(
    "--tail",
    type=click.IntRange(0, 1_000_000),
    default=200,
    show_default=True,
    help="How many of the last lines to print for each replica.",
)
@click.option(
    "--api", "via_api", is_flag=True, help="Ask the agents through their regions, wherever they are; else read files."
)
@state_option
@output_option
def logs(name: str, *, follow: bool, tail: int, via_api: bool, state: str, output: str) -> None:
    """Print what replicas wrote, from this machine's agents.

    Names one replica, or a workload and so all its replicas; lines of several replicas carry their names. With -o json
    each line is a JSON object of its own. With --api the question goes through the region to each node's agent.

    \b
    Examples:
      holdfast logs payments/risk-api --tail 20
      holdfast logs risk-api-us-east-0 -f
    """
    import time

    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.task_logs import find_logs

    layout = Layout(state)
    if via_api or layout.remote:
        from_agents(name, follow=follow, tail=tail, state=state, output=output)
        return

    layout.load()
    found = find_logs(layout, name)
    if not found and not follow:
        raise Stop(
            f"no agent on this machine has run {name}",
            why=f"looked in {layout.root / 'agents'}",
            next_step="holdfast status shows what runs; --follow waits for it",
            code=Exit.FAILED,
        )
    show = printer(output, several=len(found) != 1)
    show(sorted((line for log in found for line in log.last(tail)), key=lambda found: found.line.at))
    known = {log.path: log for log in found}
    turn = 0
    while follow:
        time.sleep(FOLLOW_EVERY_S)
        turn += 1
        if turn % FIND_EVERY == 0 or not known:
            # Replicas that were started since are followed from their first line.
            for log in find_logs(layout, name):
                known.setdefault(log.path, log)
        show(sorted((line for log in known.values() for line in log.read_new()), key=lambda found: found.line.at))


def from_agents(name: str, *, follow: bool, tail: int, state: str, output: str) -> None:
    """Each replica's lines as its agent sends them; several are followed side by side."""
    import threading

    from holdfast.cli.platform.asking import Placed, ask_replica, find_replicas
    from holdfast.cli.platform.task_logs import Found, line_of

    placed = [one for one in find_replicas(state, name) if one.node]
    show = printer(output, several=len(placed) != 1)
    printing = threading.Lock()
    problems: list[Stop] = []

    def read(one: Placed) -> None:
        try:
            for row in ask_replica(one, kind="Logs", tail=tail, follow=follow):
                with printing:
                    show([Found(one.name, line_of(row))])
        except Stop as stop:
            problems.append(stop)

    if not follow or len(placed) == 1:
        for one in placed:
            read(one)
    else:
        threads = [threading.Thread(target=read, args=(one,), daemon=True) for one in placed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if problems:
        raise problems[0]


def printer(output: str, *, several: bool) -> Callable[[Iterable[Found]], None]:
    import json

    def show(lines: Iterable[Found]) -> None:
        for found in lines:
            line = found.line
            if output == "json":
                told = {"replica": found.replica, "time": line.at, "stream": line.stream, "text": line.text}
                click.echo(json.dumps(told, ensure_ascii=False))
            else:
                click.echo(f"{found.replica}  {line.text}" if several else line.text)

    return show
