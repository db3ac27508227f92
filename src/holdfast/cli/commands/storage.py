"""`holdfast backup`, `holdfast restore`, `holdfast migrate-store`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.options import output_option
from holdfast.platform.output import print_json, print_note

if TYPE_CHECKING:
    from holdfast.cell.storage import StoreLocation

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def _etcd_options(command: F) -> F:
    for name, text in (
        ("--etcd-password-file", "File with the password of the etcd user."),
        ("--etcd-user", "etcd user, if authentication is enabled."),
        ("--etcd-key", "Key of the etcd client certificate."),
        ("--etcd-cert", "Client certificate for etcd."),
        ("--etcd-ca", "CA certificate of etcd."),
        ("--etcd-endpoints", "Endpoints of the etcd cluster; without them the cell's SQLite file is used."),
    ):
        command = click.option(name, default="", help=text)(command)
    return command


def _cell_options(command: F) -> F:
    command = click.option("--state", type=FOLDER, required=True, help="Directory of the cell.")(command)
    return click.option("--cell", required=True, metavar="global|REGION", help="Name of the cell.")(command)


def _place(cell: str, state: Path, etcd: dict[str, str]) -> StoreLocation:
    from holdfast.cell.storage import EtcdTarget, StoreLocation

    named = {key.removeprefix("etcd_"): value for key, value in etcd.items()}
    endpoints = tuple(url.strip() for url in named.pop("endpoints").split(",") if url.strip())
    return StoreLocation(cell=cell, state=state, etcd=EtcdTarget(endpoints=endpoints, **named) if endpoints else None)  # type: ignore[arg-type]


def _run(work: Coroutine[Any, Any, T], what: str) -> T:
    import asyncio

    from holdfast.foundation.exit_codes import CommandError
    from holdfast.model.errors import Fault

    try:
        return asyncio.run(work)
    except Fault as fault:
        raise CommandError(f"{what}: {fault.message}", next_step="see docs/operations/backup.md") from fault


def _say(text: str, output: str, **facts: Any) -> None:
    if output == "json":
        print_json(facts)
    else:
        print_note(text)


@click.command()
@_cell_options
@click.option("--to", "path", type=FILE, required=True, help="Backup file to write.")
@_etcd_options
@output_option
def backup(*, cell: str, state: Path, path: Path, output: str, **etcd: str) -> int:
    """Back up a running cell to a file.

    The backup contains all objects at one revision, and the audit log. It can be restored to SQLite or etcd.

    \b
    Example:
      holdfast backup --cell us-east --state /var/lib/holdfast/us-east --to us-east.backup
    """
    from holdfast.cell.storage import back_up

    objects, records = _run(back_up(_place(cell, state, etcd), path), f"backup of cell {cell}")
    text = f"{path}: {objects} objects and {records} audit records of cell {cell}"
    _say(text, output, cell=cell, path=str(path), objects=objects, records=records)
    return 0


@click.command()
@_cell_options
@click.option("--from", "path", type=FILE, required=True, help="Backup file.")
@click.option("--replace", is_flag=True, help="Delete the present content of the store.")
@click.option("--node-journal", "journals", type=FILE, multiple=True, help="Copy of nodes.journal; may be repeated.")
@click.option(
    "--trust-nodes/--distrust-nodes",
    default=None,
    help="If revocations since the backup are lost: accept node certificates, or require all nodes to join again.",
)
@_etcd_options
@output_option
def restore(
    *,
    cell: str,
    state: Path,
    path: Path,
    replace: bool,
    journals: tuple[Path, ...],
    trust_nodes: bool | None,
    output: str,
    **etcd: str,
) -> int:
    """Restore a stopped cell from a backup.

    The cell starts as a new incarnation. Agents stop their tasks and register again. Nothing is bound until all earlier
    leases have expired, and no quota is spent until the global cell has renewed the grants. Writes after the backup are
    lost, except revocations of node certificates. Join tokens are not restored.

    \b
    Example:
      holdfast restore --cell us-east --state /var/lib/holdfast/us-east --from us-east.backup --replace
    """
    from holdfast.cell.storage import restore as fill

    place = _place(cell, state, etcd)
    work = fill(place, path, replace=replace, journals=journals, trust_nodes=trust_nodes)
    incarnation = _run(work, f"restore of cell {cell}")
    text = f"cell {cell}: restored as incarnation {incarnation}; next: start the cell"
    _say(text, output, cell=cell, incarnation=incarnation)
    return 0


@click.command("migrate-store")
@_cell_options
@click.option("--to-state", type=FOLDER, help="From etcd to SQLite: directory of the new store.")
@_etcd_options
@output_option
def migrate_store(*, cell: str, state: Path, to_state: Path | None, output: str, **etcd: str) -> int:
    """Move a stopped cell to another store.

    Copies from the SQLite file in --state to the etcd cluster of --etcd-endpoints; with --to-state in the other
    direction. The source is not changed. Afterwards start the cell on the target only.

    \b
    Examples:
      holdfast migrate-store --cell global --state /var/lib/holdfast/global --etcd-endpoints https://etcd-1:2379
      holdfast migrate-store --cell global --state /var/lib/holdfast/global --etcd-endpoints https://etcd-1:2379 \\
        --to-state /var/lib/holdfast/global-sqlite
    """
    from holdfast.cell.storage import StoreLocation, copy_store
    from holdfast.foundation.exit_codes import CommandError, ExitCode

    destination = _place(cell, state, etcd)
    if destination.etcd is None:
        raise CommandError(
            f"cell {cell}: --etcd-endpoints is missing",
            next_step="add --etcd-endpoints https://HOST:2379",
            code=ExitCode.USAGE,
        )
    source = StoreLocation(cell=cell, state=state)
    if to_state is not None:
        source, destination = destination, StoreLocation(cell=cell, state=to_state)
    objects = _run(copy_store(source, destination), f"migration of cell {cell}")
    text = f"cell {cell}: {objects} objects copied; next: start the cell on the new store only"
    _say(text, output, cell=cell, objects=objects)
    return 0
