"""`holdfast supervise`: the supervisor process that `holdfast up` starts. A hidden command."""

from __future__ import annotations

import time

import click

from holdfast.cli.options import directory_option


@click.command(hidden=True)
@directory_option
@click.option("--with-parent", "parent_pid", type=int, default=0, help="Stop when this process exits.")
def supervise(state: str, parent_pid: int) -> None:
    """Supervise the processes of a prepared platform.

    \b
    Example:
      holdfast supervise --state .holdfast
    """
    from holdfast.platform.drill_runner import drill_runner
    from holdfast.platform.layout import Layout
    from holdfast.platform.processes import identify
    from holdfast.platform.programs import programs
    from holdfast.platform.supervisor import ProcessSupervisor

    layout = Layout(state)
    platform = layout.load()

    def say(line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {line}")

    parent = identify(parent_pid) if parent_pid else None
    if parent_pid and parent is None:
        say("the parent command has already exited")
        return
    drills = drill_runner(layout, platform, say)
    ProcessSupervisor(layout, programs(platform, layout), say, drills).run(parent=parent)
    say("stopped")
