"""Writes the pages of docs/ that are made from the code, or checks that they are as the code would make them.

    python scripts/generate_docs.py            write them
    python scripts/generate_docs.py --check    say which differ, and exit with 1

Reasons, metrics, commands and the lifecycle are each declared in one place in the code; these pages repeat them for
readers and can never say anything else. tests/tidy runs the check.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MADE = "<!-- Made by `make docs`. Change the code it is made from. -->\n"


def reasons_page() -> str:
    """Every Reason with its sentence, under the headings the enum's comments give."""
    from holdfast.model import reasons

    source = Path(reasons.__file__).read_text()
    told = "Used in conditions, events, refusals, pending histograms and metric labels. They are stable: alert on them."
    lines = [MADE, "# Reasons", "", told, ""]
    members = {member.name: member for member in reasons.Reason}
    section_started = False
    for line in source.splitlines():
        heading = re.fullmatch(r"    # (.+)", line)
        name = re.match(r"    ([A-Z][A-Z0-9_]*) = ", line)
        if heading:
            lines += ["", f"## {heading[1]}", "", "| reason | means |", "|---|---|"]
            section_started = True
        elif name and name[1] in members:
            if not section_started:
                raise SystemExit(f"{name[1]} stands before the first heading in reasons.py")
            member = members.pop(name[1])
            lines.append(f"| `{member.value}` | {member.sentence} |")
    if members:
        raise SystemExit(f"not found in the source of reasons.py: {', '.join(members)}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def metrics_page() -> str:
    """Every metric declared in foundation/metrics.py."""
    from prometheus_client.metrics import MetricWrapperBase

    from holdfast.foundation import metrics

    rows: dict[str, str] = {}
    for value in vars(metrics).values():
        if isinstance(value, MetricWrapperBase):
            kind = type(value).__name__.lower()
            name = f"{value._name}_total" if kind == "counter" else value._name
            labels = ", ".join(f"`{label}`" for label in value._labelnames)
            rows[name] = f"| `{name}` | {kind} | {labels} | {value._documentation} |"
    head = [MADE, "# Metrics", "", "Every cell and agent serves them at `/metrics` in the Prometheus format.", ""]
    return (
        "\n".join([*head, "| metric | type | labels | says |", "|---|---|---|---|", *(rows[n] for n in sorted(rows))])
        + "\n"
    )


def lifecycle_page() -> str:
    """The stages, who moves a replica between them and on which evidence."""
    from holdfast.model.lifecycle import TRANSITIONS, Stage

    lines = [MADE, "# The way of one replica", "", "```mermaid", "stateDiagram-v2"]
    for step in TRANSITIONS:
        source = step.source.value if step.source is not None else "[*]"
        lines.append(f"    {source} --> {step.target.value}: {step.owner}")
    lines += [f"    {Stage.RELEASED.value} --> [*]", "```", ""]
    lines += [
        "One transition, one owner.",
        "",
        "| from | to | owner | evidence | commit point |",
        "|---|---|---|---|---|",
    ]
    for step in TRANSITIONS:
        source = step.source.value if step.source is not None else "(new)"
        lines.append(f"| {source} | {step.target.value} | {step.owner} | {step.evidence} | {step.commit_point} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """What `--help` says, for every command, and the exit codes."""
    from holdfast.cli.app import COMMANDS, holdfast
    from holdfast.foundation.exit_codes import EXIT_CODE_MEANINGS

    lines = [MADE, "# The command line", ""]
    lines += [
        "Data goes to stdout, progress to stderr. `-o json` is for programs; `NO_COLOR` and `CI` are honoured.",
        "",
    ]
    lines += ["## Exit codes", "", "| code | means |", "|---|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODE_MEANINGS.items()]
    # As when it is called: a command takes the names of its help option from the first context it is asked in.
    options = holdfast.context_settings["help_option_names"]
    root = click.Context(
        holdfast, info_name="holdfast", max_content_width=100, terminal_width=100, help_option_names=options
    )

    def add(name: str, command: click.Command, parent: click.Context) -> None:
        ctx = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
        lines.extend(["", f"## {ctx.command_path}", "", "```text", command.get_help(ctx).rstrip(), "```"])
        if isinstance(command, click.Group):
            for child in command.list_commands(ctx):
                found = command.get_command(ctx, child)
                assert found is not None
                add(child, found, ctx)

    for name in COMMANDS:
        command = holdfast.get_command(root, name)
        assert command is not None
        add(name, command, root)
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reasons.md": reasons_page,
    "metrics.md": metrics_page,
    "lifecycle.md": lifecycle_page,
    "cli.md": cli_page,
}


def drifted() -> list[str]:
    """The pages that are not what the code makes."""
    different = []
    for name, make in PAGES.items():
        path = DOCS / name
        if not path.exists() or path.read_text() != make():
            different.append(name)
    return different


def main() -> int:
    if "--check" in sys.argv[1:]:
        different = drifted()
        for name in different:
            click.echo(f"docs/{name} is not what the code makes; next: make docs", err=True)
        return 1 if different else 0
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
        click.echo(f"wrote docs/{name}", err=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
