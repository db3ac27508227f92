"""The root command: the table of subcommands, which are imported on first use, and the exit code of every command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from holdfast.cli.failures import TRACEBACK_VARIABLE, described
from holdfast.foundation.exit_codes import EXIT_CODE_MEANINGS, CommandError, ExitCode
from holdfast.platform.output import COLOUR_MODES, coloured_error, set_colour

# name → (module:attribute, summary). The summary is repeated here so that `--help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("holdfast.cli.commands.up:up", "Start a whole platform on this machine."),
    "down": ("holdfast.cli.commands.down:down", "Stop the platform and all tasks it runs."),
    "status": ("holdfast.cli.commands.status:status", "Show cells, nodes, and workloads by stage."),
    "console": ("holdfast.cli.commands.console:console", "Print a link that opens the console and signs in."),
    "get": ("holdfast.cli.commands.get:get", "List objects of a kind from all cells, like `kubectl get`."),
    "endpoints": ("holdfast.cli.commands.endpoints:endpoints", "List the addresses that serve a workload."),
    "dns": (
        "holdfast.cli.commands.dns:dns",
        "Answer DNS queries for workloads with the addresses of serving replicas.",
    ),
    "proxy": (
        "holdfast.cli.commands.proxy:proxy",
        "Run an entry proxy for a region: HAProxy, kept in step with the serving replicas.",
    ),
    "explain": (
        "holdfast.cli.commands.explain:explain",
        "Show the history of a workload or replica, its stage, the reason, and the next step.",
    ),
    "why-not": (
        "holdfast.cli.commands.why_not:why_not",
        "Show why a replica cannot run on a node, or how the node scores.",
    ),
    "plan": ("holdfast.cli.commands.plan:plan", "Dry run: show placements, evictions and removals. Writes nothing."),
    "replay": (
        "holdfast.cli.commands.replay:replay",
        "Repeat a scheduling decision on the state it was made on, and compare the outcome.",
    ),
    "logs": ("holdfast.cli.commands.logs:logs", "Print the logs of replicas."),
    "exec": ("holdfast.cli.commands.exec:exec_", "Run a command in a replica's environment."),
    "attach": ("holdfast.cli.commands.attach:attach", "Print the output of a running replica."),
    "port-forward": ("holdfast.cli.commands.port_forward:port_forward", "Forward a local port to a replica's port."),
    "cp": ("holdfast.cli.commands.cp:cp", "Copy files to or from a running replica."),
    "top": ("holdfast.cli.commands.top:top", "Show resource usage and requests."),
    "node": ("holdfast.cli.commands.node:node", "Join, cordon, drain and revoke nodes."),
    "metrics": ("holdfast.cli.commands.metrics:metrics", "Push load metrics for autoscaling."),
    "pool": ("holdfast.cli.commands.pool:pool", "List node pools, and start and stop their nodes."),
    "rollout": ("holdfast.cli.commands.rollout:rollout", "Follow, restart, compare, pause and undo rollouts."),
    "cron": ("holdfast.cli.commands.cron:cron", "Start runs of CronWorkloads by hand, and list their runs."),
    "policy": ("holdfast.cli.commands.policy:policy", "Inspect, shadow, promote and roll back scheduling policies."),
    "override": (
        "holdfast.cli.commands.override:override",
        "Create, approve, revoke and list overrides: audited, expiring exceptions.",
    ),
    "maintenance": (
        "holdfast.cli.commands.maintenance:maintenance",
        "Start, list and end maintenance of a region, a zone or nodes.",
    ),
    "notify": (
        "holdfast.cli.commands.notify:notify",
        "Send a test notification, and list receivers and notifications.",
    ),
    "drill": ("holdfast.cli.commands.drill:drill", "Cause real failures and check the recovery."),
    "readiness": (
        "holdfast.cli.commands.readiness:readiness",
        "Review a running fleet: unproven promises, late overrides, old backups, alerts, stuck objects, lost links.",
    ),
    "repair": ("holdfast.cli.commands.repair:repair", "List stuck objects, their owners, and requested repairs."),
    "runbook": (
        "holdfast.cli.commands.runbook:runbook",
        "Run a runbook step by step: dry run first, a question before each action, a record of what was done.",
    ),
    "cleanup-check": (
        "holdfast.cli.commands.cleanup_check:cleanup_check",
        "List resources that an incident has not returned.",
    ),
    "user": ("holdfast.cli.commands.user:user", "Add, list and remove people: a role binding, and a credential."),
    "access": ("holdfast.cli.commands.access:access", "Ask who may do what."),
    "break-glass": (
        "holdfast.cli.commands.break_glass:break_glass",
        "Open access in an emergency: scoped, short, alarmed, and reviewed by another person.",
    ),
    "audit": (
        "holdfast.cli.commands.audit:audit",
        "Show who changed what, and what was refused. Verify that the record is complete.",
    ),
    "support-bundle": (
        "holdfast.cli.commands.support_bundle:support_bundle",
        "Collect the facts of a platform in one file, without secrets.",
    ),
    "kubeconfig": ("holdfast.cli.commands.kubeconfig:kubeconfig", "Write a kubeconfig with one context per cell."),
    "token": ("holdfast.cli.commands.tokens:tokens", "Create, list and revoke API tokens and join tokens."),
    "credentials": (
        "holdfast.cli.commands.credentials:credentials",
        "List, rotate and revoke the certificates of regions and nodes.",
    ),
    "init": (
        "holdfast.cli.commands.init:init",
        "Install a cell on this machine: the global cell, or the cell of a region.",
    ),
    "region": (
        "holdfast.cli.commands.region:region",
        "Add regions, create the tokens with which their cells join, and revoke them.",
    ),
    "server": ("holdfast.cli.commands.server:server", "Let further servers join a cell, list and revoke them."),
    "leave": (
        "holdfast.cli.commands.leave:leave",
        "Remove a cell or an agent from this machine. Asks before it destroys anything.",
    ),
    "doctor": (
        "holdfast.cli.commands.doctor:doctor",
        "Check this machine and its cells; each finding has a next step.",
    ),
    "ca": ("holdfast.cli.commands.ca:ca", "Show and rotate the platform's certificate authority."),
    "secrets": ("holdfast.cli.commands.secrets:secrets", "List and rotate the keys that encrypt Secrets."),
    "serve": ("holdfast.cli.commands.serve:serve", "Run one cell: the global cell or a regional cell."),
    "init-cell": ("holdfast.cli.commands.storage:init_cell", "Declare a new cell, before its first start."),
    "check-store": (
        "holdfast.cli.commands.storage:check_store",
        "Verify the SQLite file of a running or stopped cell.",
    ),
    "backup": ("holdfast.cli.commands.storage:backup", "Back up a running cell to a file."),
    "restore": ("holdfast.cli.commands.storage:restore", "Restore a stopped cell from a backup."),
    "migrate-store": ("holdfast.cli.commands.storage:migrate_store", "Move a stopped cell to another store."),
    "agent": ("holdfast.cli.commands.agent:agent", "Run a node agent."),
    "hollow": ("holdfast.cli.commands.hollow:hollow", "Simulate thousands of nodes (hollow nodes, as in Kubemark)."),
    "completion": ("holdfast.cli.commands.completion:completion", "Print a shell completion script."),
    "version": ("holdfast.cli.commands.version:version", "Print the version."),
}
HIDDEN: dict[str, tuple[str, str]] = {
    "supervise": ("holdfast.cli.commands.supervise:supervise", "Supervise the processes of a prepared platform.")
}


class LazyCommands(click.Group):
    """A group that imports a command when it runs, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and args[0] not in HIDDEN and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"unknown command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning) for code, meaning in EXIT_CODE_MEANINGS.items()])


@click.command(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="holdfast", message="holdfast %(version)s", help="Print the version and exit.")
@click.option(
    "--color",
    "--colour",
    "colour",
    type=click.Choice(COLOUR_MODES),
    default="auto",
    show_default=True,
    help="Colour the output. `auto`: on a terminal, unless NO_COLOR or CI is set.",
)
def holdfast(colour: str) -> None:
    """A multi-region scheduler control plane.

    Declare workloads; Holdfast places them, keeps them running through failures, and explains its decisions.

    \b
    Start here:
      holdfast up                  start a platform of three regions on this machine
      holdfast status              show what it runs
      kubectl --kubeconfig .holdfast/kubeconfig get workloads -A

    Help on a command: holdfast COMMAND --help.
    """
    set_colour(colour)


def print_error(stop: CommandError) -> None:
    for line in stop.lines():
        # A path that is not UTF-8 is printed escaped.
        click.echo(coloured_error(line.encode("utf-8", "backslashreplace").decode()), err=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        returned = holdfast.main(
            args=list(arguments) if arguments is not None else None, prog_name="holdfast", standalone_mode=False
        )
        sys.stdout.flush()
        return int(returned) if isinstance(returned, int) else ExitCode.OK
    except CommandError as stop:
        print_error(stop)
        return stop.code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        error.show()
        return ExitCode.USAGE
    except click.ClickException as error:
        error.show()
        return ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has exited (`holdfast status | head`). This is not a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        failure = described(error)
        print_error(failure)
        return failure.code
