"""`holdfast down`."""

from __future__ import annotations

import click

from holdfast.cli.options import directory_option, output_option, quiet_option
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.output import print_json, print_note


@click.command()
@directory_option
@click.option("--purge", is_flag=True, help="Also delete the directory with all objects, keys and logs.")
@quiet_option
@output_option
def down(state: str, purge: bool, quiet: bool, output: str) -> None:
    """Stop the platform and all tasks it runs.

    Agents stop their tasks first, then the cells stop. Stored objects remain; `holdfast up` starts the platform with
    them. It is not an error if nothing runs, but a directory without a platform is.

    \b
    Examples:
      holdfast down
      holdfast down --state /tmp/try --purge
    """
    import shutil
    import signal

    from holdfast.platform.layout import Layout
    from holdfast.platform.processes import SUPERVISOR_STOP_TIMEOUT_S, platform_processes, send_signal, wait_exited
    from holdfast.platform.supervisor import running_supervisor, stop_programs

    layout = Layout(state)
    if not layout.platform.is_file():
        raise CommandError(
            f"{layout.root}: not a platform's directory (platform.json is missing)",
            next_step="add --state DIR with the directory of the platform to stop",
            code=ExitCode.UNREACHABLE,
        )
    supervisor = running_supervisor(layout)
    if supervisor is not None:
        if not quiet:
            print_note(f"stopping the platform in {layout.root} (supervisor {supervisor.pid})")
        send_signal(supervisor, signal.SIGTERM)
        if not wait_exited(supervisor, SUPERVISOR_STOP_TIMEOUT_S):
            print_note(
                f"the supervisor did not stop within {SUPERVISOR_STOP_TIMEOUT_S:.0f} s; "
                "killing it and stopping its processes"
            )
            send_signal(supervisor, signal.SIGKILL)
            wait_exited(supervisor, 5.0)
    # Finds nothing after a supervisor that stopped its processes; stops all of them otherwise.
    stop_programs(layout, (lambda line: None) if quiet else print_note)
    left = [{"pid": identity.pid, "command": command} for identity, command in platform_processes(layout.root)]
    if left:
        pids = ", ".join(str(item["pid"]) for item in left)
        raise CommandError(
            f"platform {layout.root}: processes survived SIGKILL (found {len(left)}: {pids})",
            next_step=f"ps -o pid,stat,wchan,args -p {pids.replace(' ', '')}",
        )
    if purge:
        shutil.rmtree(layout.root, ignore_errors=True)
    if output == "json":
        print_json({"state": str(layout.root), "stopped": supervisor is not None, "purged": purge})
    elif not quiet:
        print_note("stopped" + (f"; {layout.root} deleted" if purge else ""))
