"""`holdfast serve`."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--cell", required=True, metavar="global|REGION", help="Which cell this is.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The cell's own directory: its store lives here.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="The port to listen on.")
@click.option("--tls-cert", type=FILE, required=True, help="The server's certificate.")
@click.option("--tls-key", type=FILE, required=True, help="Its key.")
@click.option("--client-ca", type=FILE, required=True, help="The authority that signs clients' certificates.")
@click.option("--tokens", type=FILE, required=True, help="The file of hashed API tokens.")
@click.option("--global-url", default="", help="For a region: the address of the global cell.")
@click.option("--link-cert", type=FILE, help="For a region: the certificate it shows to the global cell.")
@click.option("--link-key", type=FILE, help="For a region: the key of that certificate.")
@click.option(
    "--store",
    type=click.Choice(("sqlite", "memory")),
    default="sqlite",
    show_default=True,
    help="Where objects are kept; memory forgets them with the process.",
)
def serve(
    *,
    cell: str,
    state: Path,
    host: str,
    port: int,
    tls_cert: Path,
    tls_key: Path,
    client_ca: Path,
    tokens: Path,
    global_url: str,
    link_cert: Path | None,
    link_key: Path | None,
    store: str,
) -> int:
    """Run one cell: the global one, or a region's.

    The API server, the store and the controllers of the cell, in one process. SIGTERM stops it cleanly. `holdfast up`
    runs these for you on one machine.

    \b
    Example:
      holdfast serve --cell global --state /var/lib/holdfast/global --port 7400 \\
        --tls-cert cell.crt --tls-key cell.key --client-ca ca.crt --tokens tokens.json
    """
    from holdfast.cli.exits import Exit, Stop

    if cell != "global" and not global_url:
        raise Stop(
            f"region {cell} does not know the global cell",
            why="--global-url is missing",
            next_step="add --global-url https://HOST:PORT, --link-cert and --link-key",
            code=Exit.USAGE,
        )
    import uvloop

    from holdfast.cell_process import CellConfig, run_cell

    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = CellConfig(
        cell=cell,
        state=state,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        tokens=tokens,
        global_url=global_url,
        link_cert=link_cert,
        link_key=link_key,
        store=store,
    )
    return uvloop.run(run_cell(config))
