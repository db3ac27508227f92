"""The root command: the table of subcommands, loaded only when one is used, and how every command ends."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from holdfast.cli.exits import MEANINGS, Exit, Stop

# name → (module:attribute, one line). The line is repeated here so that `--help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("holdfast.cli.commands.up:up", "Start a whole platform on this machine."),
    "down": ("holdfast.cli.commands.down:down", "Stop the platform and all the work it runs."),
    "status": ("holdfast.cli.commands.status:status", "Show cells, nodes and workloads by stage."),
    "get": (
        "holdfast.cli.commands.get:get",
        "List objects of a kind from all cells: `kubectl get` everywhere at once.",
    ),
    "endpoints": ("holdfast.cli.commands.endpoints:endpoints", "List who may receive traffic for a workload."),
    "explain": (
        "holdfast.cli.commands.explain:explain",
        "Tell the story of a workload or a replica: where it stands, why, and what would help.",
    ),
    "why-not": (
        "holdfast.cli.commands.why_not:why_not",
        "Say why a replica is not on a node: all that stands in the way, or how it scores.",
    ),
    "plan": (
        "holdfast.cli.commands.plan:plan",
        "Show what would be placed, where, evicting whom, and who would go; nothing is written.",
    ),
    "replay": (
        "holdfast.cli.commands.replay:replay",
        "Plan a decision again on the state it was made on, and prove that the outcome is the same.",
    ),
    "logs": ("holdfast.cli.commands.logs:logs", "Print what replicas wrote, from this machine's agents."),
    "exec": ("holdfast.cli.commands.exec:exec_", "Run a command in a replica's environment."),
    "top": ("holdfast.cli.commands.top:top", "Show what work uses beside what it asked for."),
    "node": ("holdfast.cli.commands.node:node", "Keep new work off a node, or empty it."),
    "load": ("holdfast.cli.commands.load:load", "Push the load that autoscaling follows."),
    "pool": ("holdfast.cli.commands.pool:pool", "See node pools, and start and stop their nodes."),
    "rollout": ("holdfast.cli.commands.rollout:rollout", "Follow, pause and undo rollouts."),
    "policy": ("holdfast.cli.commands.policy:policy", "See, try, promote and take back scheduling policies."),
    "override": ("holdfast.cli.commands.override:override", "Tell the platform what to do for a while, on record."),
    "drill": ("holdfast.cli.commands.drill:drill", "Do failures for real, and see whether the promises hold."),
    "repair": (
        "holdfast.cli.commands.repair:repair",
        "See what is stuck, who must act on it, and what repair asked for.",
    ),
    "cleanup-check": (
        "holdfast.cli.commands.cleanup_check:cleanup_check",
        "List what an incident left behind.",
    ),
    "kubeconfig": ("holdfast.cli.commands.kubeconfig:kubeconfig", "Write a kubeconfig with one context per cell."),
    "token": ("holdfast.cli.commands.token:token", "Create, list and revoke API tokens, and the join tokens of nodes."),
    "credentials": (
        "holdfast.cli.commands.credentials:credentials",
        "Replace or refuse the credentials of regions and nodes.",
    ),
    "serve": ("holdfast.cli.commands.serve:serve", "Run one cell: the global one, or a region's."),
    "backup": ("holdfast.cli.commands.storage:backup", "Save a cell to a file while it runs."),
    "restore": ("holdfast.cli.commands.storage:restore", "Fill a stopped cell from a backup."),
    "migrate-store": ("holdfast.cli.commands.storage:migrate_store", "Move a stopped cell to another store."),
    "agent": ("holdfast.cli.commands.agent:agent", "Run a node agent."),
    "hollow": ("holdfast.cli.commands.hollow:hollow", "Pretend to be thousands of nodes, for benchmarks and drills."),
    "completion": (
        "holdfast.cli.commands.completion:completion",
        "Print a script that completes commands, options, kinds, drills and workloads.",
    ),
    "version": ("holdfast.cli.commands.version:version", "Print the version."),
}
HIDDEN: dict[str, tuple[str, str]] = {
    "supervise": ("holdfast.cli.commands.supervise:supervise", "Keep the processes of a prepared platform running."),
}


class LazyCommands(click.Group):
    """A group whose commands are imported when they are run, not when they are listed."""

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
            ctx.fail(f"no such command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning) for code, meaning in MEANINGS.items()])


@click.command(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="holdfast", message="holdfast %(version)s", help="Print the version and exit.")
def holdfast() -> None:
    """A multi-region scheduler control plane.

    State what should run; Holdfast decides where, makes it true, keeps it true through failures, and can show why.

    \b
    Start here:
      holdfast up                  a platform of three regions on this machine
      holdfast status              what it runs
      kubectl --kubeconfig .holdfast/kubeconfig get workloads -A

    Every command explains itself: holdfast COMMAND --help.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        returned = holdfast.main(
            args=list(arguments) if arguments is not None else None, prog_name="holdfast", standalone_mode=False
        )
        sys.stdout.flush()
        return int(returned) if isinstance(returned, int) else Exit.OK
    except Stop as stop:
        for line in stop.lines():
            click.echo(line, err=True)
        return stop.code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.UsageError as error:
        error.show()
        return Exit.USAGE
    except click.ClickException as error:
        error.show()
        return Exit.FAILED
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`holdfast status | head`): not a failure worth a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
