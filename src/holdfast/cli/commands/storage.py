"""`holdfast backup`, `holdfast restore`, `holdfast migrate-store`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.output import note, output_option, print_json

if TYPE_CHECKING:
    from holdfast.cell_storage import Place

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def _etcd_options(command: F) -> F:
    for name, text in (
        ("--etcd-password-file", "A file with that user's password."),
        ("--etcd-user", "The user at etcd, where it asks for one."),
        ("--etcd-key", "The key of that certificate."),
        ("--etcd-cert", "The certificate shown to etcd."),
        ("--etcd-ca", "The authority that signs etcd's certificates."),
        ("--etcd-endpoints", "The members of the etcd cluster, where that holds the cell; else its SQLite file does."),
    ):
        command = click.option(name, default="", help=text)(command)
    return command


def _cell_options(command: F) -> F:
    command = click.option("--state", type=FOLDER, required=True, help="The cell's own directory.")(command)
    return click.option("--cell", required=True, metavar="global|REGION", help="Which cell it is.")(command)


def _place(cell: str, state: Path, etcd: dict[str, str]) -> Place:
    from holdfast.cell_storage import Place, Target

    named = {key.removeprefix("etcd_"): value for key, value in etcd.items()}
    endpoints = tuple(url.strip() for url in named.pop("endpoints").split(",") if url.strip())
    return Place(cell=cell, state=state, etcd=Target(endpoints=endpoints, **named) if endpoints else None)  # type: ignore[arg-type]


def _run(work: Coroutine[Any, Any, T], what: str) -> T:
    import asyncio

    from holdfast.cli.exits import Stop
    from holdfast.model.errors import Fault

    try:
        return asyncio.run(work)
    except Fault as fault:
        raise Stop(f"{what} did not work", why=fault.message, next_step="see docs/operations/backup.md") from fault


def _say(text: str, output: str, **facts: Any) -> None:
    if output == "json":
        print_json(facts)
    else:
        note(text)


@click.command()
@_cell_options
@click.option("--to", "path", type=FILE, required=True, help="The file to write.")
@_etcd_options
@output_option
def backup(*, cell: str, state: Path, path: Path, output: str, **etcd: str) -> int:
    """Save a cell to a file while it runs.

    Holds every object as of one revision, and the audit log. It can be restored to either store.

    \b
    Example:
      holdfast backup --cell us-east --state /var/lib/holdfast/us-east --to us-east.backup
    """
    from holdfast.cell_storage import save

    objects, records = _run(save(_place(cell, state, etcd), path), "the backup")
    text = f"{path}: {objects} objects and {records} audit records of the cell {cell}"
    _say(text, output, cell=cell, path=str(path), objects=objects, records=records)
    return 0


@click.command()
@_cell_options
@click.option("--from", "path", type=FILE, required=True, help="The backup.")
@click.option("--replace", is_flag=True, help="Give up what the store holds now.")
@click.option("--node-journal", "journals", type=FILE, multiple=True, help="A copy of nodes.journal, of any host.")
@click.option(
    "--trust-nodes/--distrust-nodes", default=None,
    help="Where revocations since the backup are lost: believe its nodes' certificates, or let all nodes join again.",
)  # fmt: skip
@_etcd_options
@output_option
def restore(
    *, cell: str, state: Path, path: Path, replace: bool, journals: tuple[Path, ...], trust_nodes: bool | None,
    output: str, **etcd: str,
) -> int:  # fmt: skip
    """Fill a stopped cell from a backup.

    The cell comes back as a new incarnation and rejoins: agents stop what they run and register anew, nothing is bound
    until the leases of before have ended, and nothing is spent until the global cell has renewed the grants. What was
    written after the backup is gone, except that certificates of nodes which were revoked since stay revoked; join
    tokens are not restored.

    \b
    Example:
      holdfast restore --cell us-east --state /var/lib/holdfast/us-east --from us-east.backup --replace
    """
    from holdfast.cell_storage import restore as fill

    place = _place(cell, state, etcd)
    work = fill(place, path, replace=replace, journals=journals, trust_nodes=trust_nodes)
    incarnation = _run(work, "the restore")
    text = f"the cell {cell} is restored as incarnation {incarnation}; start it: it rejoins by itself"
    _say(text, output, cell=cell, incarnation=incarnation)
    return 0


@click.command("migrate-store")
@_cell_options
@click.option("--to-state", type=FOLDER, help="From etcd to SQLite: the directory of the new store.")
@_etcd_options
@output_option
def migrate_store(*, cell: str, state: Path, to_state: Path | None, output: str, **etcd: str) -> int:
    """Move a stopped cell to another store.

    From the SQLite file in --state to the etcd cluster that --etcd-endpoints names; with --to-state the other way. The
    source stays as it is; start the cell on the target only.

    \b
    Examples:
      holdfast migrate-store --cell global --state /var/lib/holdfast/global --etcd-endpoints https://etcd-1:2379
      holdfast migrate-store --cell global --state /var/lib/holdfast/global --etcd-endpoints https://etcd-1:2379 \\
        --to-state /var/lib/holdfast/global-sqlite
    """
    from holdfast.cell_storage import Place, copy
    from holdfast.cli.exits import Exit, Stop

    there = _place(cell, state, etcd)
    if there.etcd is None:
        raise Stop(
            "there is nowhere to move to",
            why="--etcd-endpoints is missing",
            next_step="add --etcd-endpoints https://HOST:2379",
            code=Exit.USAGE,
        )
    here = Place(cell=cell, state=state)
    if to_state is not None:
        here, there = there, Place(cell=cell, state=to_state)
    objects = _run(copy(here, there), "moving the cell")
    text = f"{objects} objects of the cell {cell} were moved; start it on the new store only"
    _say(text, output, cell=cell, objects=objects)
    return 0
