"""`holdfast down`."""

from __future__ import annotations

import click

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.output import directory_option, note, output_option, print_json, quiet_option

MOST_S = 90.0


@click.command()
@directory_option
@click.option("--purge", is_flag=True, help="Also remove the directory: objects, keys, logs, everything.")
@quiet_option
@output_option
def down(state: str, purge: bool, quiet: bool, output: str) -> None:
    """Stop the platform and all the work it runs.

    Agents end their work, then the cells stop. What was stored stays, and `holdfast up` continues from it. Nothing to
    stop is not an error.

    \b
    Examples:
      holdfast down
      holdfast down --state /tmp/try --purge
    """
    import shutil
    import signal

    from holdfast.cli.platform.layout import Layout
    from holdfast.cli.platform.processes import marked, send, wait_gone
    from holdfast.cli.platform.supervisor import stop_programs, supervisor_of

    layout = Layout(state)
    if layout.root.exists() and any(layout.root.iterdir()) and not layout.platform.exists():
        raise Stop(
            f"{layout.root} is not a platform's directory",
            why="it has files, but no platform.json",
            next_step="name the right one with --state",
            code=Exit.USAGE,
        )
    supervisor = supervisor_of(layout)
    if supervisor is not None:
        if not quiet:
            note(f"stopping the platform in {layout.root} (supervisor {supervisor.pid})")
        send(supervisor, signal.SIGTERM)
        if not wait_gone(supervisor, MOST_S):
            note(f"the supervisor did not finish within {MOST_S:.0f} s; ending it and stopping the rest from here")
            send(supervisor, signal.SIGKILL)
            wait_gone(supervisor, 5.0)
    # With a supervisor that did its work this finds nothing; without one it does it all.
    stop_programs(layout, (lambda line: None) if quiet else note)
    left = [{"pid": identity.pid, "command": command} for identity, command in marked(layout.root)]
    if left:
        raise Stop(
            f"{len(left)} processes of the platform are still there",
            why=", ".join(str(item["pid"]) for item in left),
            next_step="end them by hand; they ignored SIGKILL, so look at the machine",
        )
    if purge:
        shutil.rmtree(layout.root, ignore_errors=True)
    if output == "json":
        print_json({"state": str(layout.root), "stopped": supervisor is not None, "purged": purge})
    elif not quiet:
        note("down" + (f"; {layout.root} removed" if purge else ""))
