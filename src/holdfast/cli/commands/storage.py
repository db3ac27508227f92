"""`holdfast init-cell`, `holdfast check-store`, `holdfast backup`, `holdfast restore`, `holdfast migrate-store`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from holdfast.cli.options import output_option
from holdfast.platform.output import print_json, print_note

if TYPE_CHECKING:
    from holdfast.cell.storage import StoreLocation
    from holdfast.model.cell_identity import CellIdentity

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
KEEP_MAX = 10_000
"""Backups to keep in a directory. More is a typing error: hourly, it is more than a year."""

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


@click.command("init-cell")
@_cell_options
@click.option("--new-identity", is_flag=True, help="Give up the content of a lost store: become a new cell.")
@click.option("--accept-store", is_flag=True, help="cell.json is lost: declare the SQLite store to be the newest one.")
@output_option
def init_cell(*, cell: str, state: Path, new_identity: bool, accept_store: bool, output: str) -> int:
    """Declare a new cell, before its first start.

    Draws the cell's identity and writes it to cell.json in --state. Without that file a cell refuses to start on an
    empty store, so that a lost store is not mistaken for a new cell. On etcd, run the command on one of the cell's
    servers. `holdfast up` does it for a local platform.

    \b
    Example:
      holdfast init-cell --cell us-east --state /var/lib/holdfast/us-east
    """
    from holdfast.cell import storage

    place = storage.StoreLocation(cell=cell, state=state)

    async def work() -> CellIdentity:
        return storage.accept_store(place) if accept_store else storage.declare_cell(place, new_identity=new_identity)

    made = _run(work(), f"init of cell {cell}")
    text = f"cell {cell}: identity {made.identity} {'accepted' if accept_store else 'drawn'}; next: start the cell"
    _say(text, output, cell=cell, identity=made.identity, era=made.era)
    return 0


@click.command("check-store")
@_cell_options
@output_option
def check_store(*, cell: str, state: Path, output: str) -> int:
    """Verify the SQLite file of a running or stopped cell.

    Reads every page with its checksum and compares tables with indexes. The cell's own scrubber reads the same pages
    slowly, about once an hour.

    \b
    Example:
      holdfast check-store --cell us-east --state /var/lib/holdfast/us-east
    """
    from holdfast.cell import storage

    async def work() -> int:
        return storage.check_store(storage.StoreLocation(cell=cell, state=state))

    rows = _run(work(), f"check of cell {cell}")
    _say(f"cell {cell}: {rows} rows, no damage", output, cell=cell, rows=rows)
    return 0


@click.command()
@_cell_options
@click.option("--to", "path", type=FILE, help="Backup file to write.")
@click.option("--to-dir", "folder", type=FOLDER, help="Directory for a new file each time: CELL-TIME.backup.")
@click.option(
    "--keep", type=click.IntRange(1, KEEP_MAX), default=24, show_default=True, help="With --to-dir: backups to keep."
)
@click.option("--every", default="", metavar="DURATION", help="With --to-dir: keep running, one backup per interval.")
@click.option("--verify", is_flag=True, help="Restore each backup into a temporary store and compare the content.")
@_etcd_options
@output_option
def backup(
    *,
    cell: str,
    state: Path,
    path: Path | None,
    folder: Path | None,
    keep: int,
    every: str,
    verify: bool,
    output: str,
    **etcd: str,
) -> int:
    """Back up a running cell to a file.

    The backup contains all objects at one revision, and the audit log. It can be restored to SQLite or etcd.

    With --to-dir, the newest backups of the cell are kept and older ones deleted, after each success. With --verify, a
    backup counts only if it was restored into a temporary store beside it and the content is the same; this needs as
    much space as the cell's store. Failures are recorded for `holdfast readiness` and in holdfast_store_backup_failed.

    \b
    Examples:
      holdfast backup --cell us-east --state /var/lib/holdfast/us-east --to us-east.backup
      holdfast backup --cell us-east --state /var/lib/holdfast/us-east --to-dir /var/backups/holdfast --keep 24 --verify
      holdfast backup --cell us-east --state /var/lib/holdfast/us-east --to-dir backups --every 1h --verify
    """
    from holdfast.cell.backup_schedule import back_up_into
    from holdfast.cell.storage import back_up

    place, what = _place(cell, state, etcd), f"backup of cell {cell}"
    if (path is None) == (folder is None) or (every and folder is None):
        _refuse_backup_options(cell, every)
    if folder is None:
        assert path is not None
        objects, records = _run(back_up(place, path, verify=verify), what)
        _say_backup(cell, str(path), objects, records, verified=verify, output=output)
    elif every:
        return _back_up_every(place, folder, every, keep=keep, verify=verify, output=output)
    else:
        made = _run(back_up_into(place, folder, keep=keep, verify=verify), what)
        _say_backup(cell, made.path, made.objects, made.records, verified=verify, output=output)
    return 0


def _refuse_backup_options(cell: str, every: str) -> NoReturn:
    from holdfast.foundation.exit_codes import CommandError, ExitCode

    expected = "--to-dir with --every" if every else "either --to or --to-dir"
    text = f"backup of cell {cell}: unclear where to write (expected {expected})"
    raise CommandError(text, next_step="add --to FILE, or --to-dir DIRECTORY", code=ExitCode.USAGE)


def _say_backup(cell: str, path: str, objects: int, records: int, *, verified: bool, output: str) -> None:
    proof = ", verified by restoring it" if verified else ""
    text = f"{path}: {objects} objects and {records} audit records of cell {cell}{proof}"
    _say(text, output, cell=cell, path=path, objects=objects, records=records, verified=verified)


def _back_up_every(place: StoreLocation, folder: Path, every: str, *, keep: int, verify: bool, output: str) -> int:
    from holdfast.cell.backup_schedule import EVERY_S_MIN, ScheduledBackup, back_up_every
    from holdfast.cli.commands.tokens import parse_duration_s
    from holdfast.foundation.exit_codes import CommandError, ExitCode
    from holdfast.model.errors import Fault

    every_s = parse_duration_s(every)
    if every_s < EVERY_S_MIN:
        text = f"--every {every}: too short (expected at least {EVERY_S_MIN:g}s)"
        raise CommandError(text, next_step="use a longer interval, such as --every 1h", code=ExitCode.USAGE)

    def report(made: ScheduledBackup | Fault) -> None:
        if isinstance(made, Fault):
            print_note(f"error: backup of cell {place.cell}: {made.message}")
        else:
            _say_backup(place.cell, made.path, made.objects, made.records, verified=verify, output=output)

    work = back_up_every(place, folder, every_s, keep=keep, verify=verify, report=report)
    return ExitCode.OK if _run(work, f"backup of cell {place.cell}") else ExitCode.FAILED


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
@click.option("--other-identity", is_flag=True, help="Accept a backup of another cell with the same name.")
@click.option("--secret-keys", type=FILE, help="Key file of the Secrets.  [default: secret-keys.json in --state]")
@click.option("--secret-keys-command", default="", metavar="COMMAND", help="Command that prints those keys instead.")
@click.option("--without-secrets", is_flag=True, help="The keys are lost: leave the Secrets of the backup out.")
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
    other_identity: bool,
    secret_keys: Path | None,
    secret_keys_command: str,
    without_secrets: bool,
    output: str,
    **etcd: str,
) -> int:
    """Restore a stopped cell from a backup.

    The cell keeps its identity and starts a new era. Writes after the backup are lost.

    In a restored region, agents stop their tasks and register again. Nothing is bound until all earlier leases have
    expired, and no quota is spent until the global cell has renewed the grants. Revocations of node certificates
    survive the restore; join tokens do not. The global cell needs the key file that its Secrets were encrypted with.

    \b
    Example:
      holdfast restore --cell us-east --state /var/lib/holdfast/us-east --from us-east.backup --replace
    """
    from holdfast.cell.storage import restore as fill

    place = _place(cell, state, etcd)
    work = fill(
        place,
        path,
        replace=replace,
        journals=journals,
        trust_nodes=trust_nodes,
        other_identity=other_identity,
        secret_keys=secret_keys,
        secret_keys_command=secret_keys_command,
        without_secrets=without_secrets,
    )
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
