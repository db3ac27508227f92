"""`holdfast audit`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import shell_completion
from holdfast.cli.options import output_option, state_option
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.output import print_json, print_note, table

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi

OBJECTS_SHOWN = 3
# Interval at which `audit tail` asks for new records.
TAIL_EVERY_S = 1.0


class _AuditGroup(click.Group):
    """Without a subcommand, the arguments are those of `search`: `holdfast audit --by ann`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["search", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AuditGroup)
def audit() -> None:
    """Show who changed what, and what was refused. Verify that the record is complete.

    Every committed write is in the audit log of its cell, in the same transaction. A refusal is recorded before it is
    answered. Each record names the hash of the record before it, and the cell signs a checkpoint every few seconds.

    \b
    Examples:
      holdfast audit Override/avoid-zone-1a2b
      holdfast audit --by ann --last 20
      holdfast audit verify --region eu-west
    """


@audit.command("search")
@click.argument("object_name", metavar="[KIND/NAME]", default="")
@click.option("-n", "--namespace", default="", help="Only objects of this tenant.")
@click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="The audit log of this region; without it, of the global cell.",
)
@click.option("--by", "principal", default="", help="Only records of this user or component.")
@click.option("--refused", is_flag=True, help="Only refused requests.")
@click.option("--last", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The newest records.")
@state_option
@output_option
def search(object_name: str, *, region: str, last: int, state: str, output: str, **arguments: Any) -> None:
    """Show the records of an object, a user, or all. `holdfast audit` does the same.

    \b
    Examples:
      holdfast audit search Override/avoid-zone-1a2b
      holdfast audit search --by ann --last 20
      holdfast audit search --region eu-west --refused -o json
    """
    from holdfast.model.kinds import BY_NAME

    kind, _, name = object_name.partition("/")
    if kind and kind not in BY_NAME:
        known = next((known for known in BY_NAME if known.lower() == kind.lower()), "")
        raise CommandError(
            f"{kind}: unknown kind", next_step=f"holdfast audit {known}/{name}" if known else "kubectl api-resources"
        )
    wanted = {"kind": kind, "name": name, "namespace": arguments["namespace"], "principal": arguments["principal"]}
    query = {key: value for key, value in wanted.items() if value}
    if arguments["refused"]:
        query["result"] = "Refused"
    api = _connect(state, region)
    try:
        records = list(read_all(api, query))[-last:]
    finally:
        api.close()
    if output == "json":
        print_json({"cell": region or "global", "records": records})
    else:
        click.echo(table(("TIME", "BY", "VERB", "RESULT", "OBJECTS", "REASON"), [audit_row(r) for r in records]))


_region_option = click.option(
    "--region",
    shell_complete=shell_completion.complete_regions,
    default="",
    help="The log of this region; without it, of the global cell.",
)


def _connect(state: str, region: str) -> CellApi:
    from holdfast.platform.cell_connection import connect_cell
    from holdfast.platform.layout import Layout

    layout = Layout(state)
    return connect_cell(layout, layout.load(), region or "global")


@audit.command("tail")
@_region_option
@click.option("--last", type=click.IntRange(0, 10_000), default=10, show_default=True, help="Begin with these records.")
@click.option("--once", is_flag=True, help="Do not wait for new records.")
@state_option
@output_option
def tail(*, region: str, last: int, once: bool, state: str, output: str) -> None:
    """Print the newest records, then new ones as they are written.

    \b
    Examples:
      holdfast audit tail
      holdfast audit tail --region eu-west --once -o json
    """
    api = _connect(state, region)
    try:
        records = list(read_all(api, {}))
        for record in records[len(records) - last :] if last else ():
            _print_record(record, output)
        after = records[-1]["sequence"] if records else 0
        while not once:
            time.sleep(TAIL_EVERY_S)
            for record in read_all(api, {}, after=after):
                _print_record(record, output)
                after = record["sequence"]
    except KeyboardInterrupt:
        return
    finally:
        api.close()


def _print_record(record: dict[str, Any], output: str) -> None:
    click.echo(json.dumps(record) if output == "json" else "  ".join(audit_row(record)))


@audit.command("export")
@_region_option
@click.argument("file", type=click.Path(dir_okay=False))
@state_option
@output_option
def export(*, file: str, region: str, state: str, output: str) -> None:
    """Write all records as stored, and the signed checkpoints, to a file that `audit verify --from` reads.

    \b
    Examples:
      holdfast audit export audit-global.jsonl
      holdfast audit export audit-eu.jsonl --region eu-west
    """
    api = _connect(state, region)
    try:
        checkpoints = api.get("/audit/v1/checkpoints")
        count = 0
        with open(file, "w", encoding="utf-8") as out:
            for record in read_all(api, {"raw": "true"}):
                out.write(json.dumps(record) + "\n")
                count += 1
            for checkpoint in checkpoints["checkpoints"]:
                out.write(json.dumps({"checkpoint": checkpoint}) + "\n")
    finally:
        api.close()
    signed = len(checkpoints["checkpoints"])
    if output == "json":
        print_json({"file": file, "records": count, "checkpoints": signed})
    else:
        print_note(f"wrote {count} records and {signed} checkpoints to {file}")


@audit.command("verify")
@_region_option
@click.option("--from", "file", type=click.Path(exists=True, dir_okay=False), help="An exported file, not the cell.")
@click.option("--public-key", type=click.Path(exists=True, dir_okay=False), help="The cell's audit.pub.")
@state_option
@output_option
def verify_log(*, region: str, file: str | None, public_key: str | None, state: str, output: str) -> None:
    """Check every record, link and signed checkpoint of an audit log.

    The public key is that of the cell's state directory on this machine, unless --public-key names a copy. Keep a copy
    of audit.pub and of the exports elsewhere: whoever owns the machine owns the key.

    \b
    Examples:
      holdfast audit verify
      holdfast audit verify --region eu-west -o json
      holdfast audit verify --from audit-global.jsonl --public-key audit.pub
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    from holdfast.platform.audit_verification import read_exported, verify_records

    cell = region or "global"
    path = Path(public_key) if public_key else _cell_state(state, cell) / "audit.pub"
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as wrong:
        why = getattr(wrong, "strerror", None) or wrong
        raise CommandError(f"{path}: cannot be read ({why})", next_step="add --public-key FILE") from None
    if not isinstance(key, Ed25519PublicKey):
        raise CommandError(f"{path}: not an Ed25519 public key", next_step="add --public-key FILE")
    if file:
        records, checkpoints = read_exported(Path(file))
    else:
        api = _connect(state, region)
        try:
            checkpoints = api.get("/audit/v1/checkpoints")["checkpoints"]
            records = list(read_all(api, {"raw": "true"}))
        finally:
            api.close()
    report = verify_records(records, checkpoints, key)
    if output == "json":
        print_json({"cell": cell, **report})
    else:
        click.echo(
            f"{report['records']} records, {report['linked']} linked, {report['checkpoints']} checkpoints signed "
            f"through record {report['signedThrough']}"
        )
        if report["restarts"]:
            click.echo(f"the log was restarted {report['restarts']} times: expected once for each restore of the cell")
        for finding in report["findings"]:
            click.echo(f"record {finding['sequence']}: {finding['problem']}")
    if report["findings"]:
        raise CommandError(
            f"audit log of {cell}: {len(report['findings']) + report['omitted']} problems found",
            next_step="compare with an export kept elsewhere; docs/access.md explains each problem",
        )


def _cell_state(state: str, cell: str) -> Path:
    from holdfast.platform.layout import Layout

    return Layout(state).cell(cell)


def read_all(api: CellApi, query: dict[str, str], *, after: int = 0) -> Iterator[dict[str, Any]]:
    """All matching records, page by page."""
    while True:
        page = api.get("/audit/v1", after=str(after), **query)
        yield from page["records"]
        if not page["more"]:
            return
        after = page["next"]


def audit_row(record: dict[str, Any]) -> tuple[str, ...]:
    entries = record.get("entries", [])
    names = ["/".join(filter(None, (e["kind"], e.get("namespace", ""), e["name"]))) for e in entries[:OBJECTS_SHOWN]]
    more = len(entries) + record.get("omitted", 0) - len(names)
    objects = ", ".join(names) + (f" and {more} more" if more else "") if names else record.get("resource", "")
    why = ": ".join(filter(None, (record.get("reason", ""), record.get("message", ""))))
    times = f" ({record['count']} times)" if record.get("count", 0) > 1 else ""
    return (record["time"], record["principal"], record["verb"], record["result"] + times, objects, why)
