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
@click.option("--node-ca", type=FILE, help="For a region: the authority that certifies the nodes that join it.")
@click.option("--node-ca-key", type=FILE, help="For a region: the key of that authority; without it nobody can join.")
@click.option("--tokens", type=FILE, required=True, help="The file of hashed API tokens.")
@click.option("--global-url", default="", help="For a region: the address of the global cell.")
@click.option("--link-cert", type=FILE, help="For a region: the certificate it shows to the global cell.")
@click.option("--link-key", type=FILE, help="For a region: the key of that certificate.")
@click.option(
    "--store",
    type=click.Choice(("sqlite", "etcd", "memory")),
    default="sqlite",
    show_default=True,
    help="Where objects are kept; memory forgets them with the process.",
)
@click.option("--etcd-endpoints", default="", metavar="URL,…", help="With --store etcd: the members of the cluster.")
@click.option("--etcd-ca", default="", help="The authority that signs etcd's certificates.")
@click.option("--etcd-cert", default="", help="The certificate shown to etcd.")
@click.option("--etcd-key", default="", help="The key of that certificate.")
@click.option("--etcd-user", default="", help="The user at etcd, where it asks for one.")
@click.option("--etcd-password-file", default="", help="A file with that user's password.")
@click.option(
    "--parts",
    default="api,controllers,authority,scheduler",
    show_default=True,
    metavar="PART,…",
    help="With --store etcd: what this process runs; others run the rest. The API is always served.",
)
@click.option("--advertise", default="", metavar="URL", help="Where the cell's other servers reach this one.")
@click.option("--peer-cert", type=FILE, help="The certificate shown to the cell's other servers.")
@click.option("--peer-key", type=FILE, help="Its key.")
def serve(
    *,
    cell: str,
    state: Path,
    host: str,
    port: int,
    tls_cert: Path,
    tls_key: Path,
    client_ca: Path,
    node_ca: Path | None,
    node_ca_key: Path | None,
    tokens: Path,
    global_url: str,
    link_cert: Path | None,
    link_key: Path | None,
    store: str,
    etcd_endpoints: str,
    etcd_ca: str,
    etcd_cert: str,
    etcd_key: str,
    etcd_user: str,
    etcd_password_file: str,
    parts: str,
    advertise: str,
    peer_cert: Path | None,
    peer_key: Path | None,
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

    from holdfast.cell_process import CellConfig, Target, run_cell
    from holdfast.model.errors import Fault

    chosen = tuple(part.strip() for part in parts.split(",") if part.strip())
    _check_parts(chosen, store, etcd_endpoints)
    target = Target(
        endpoints=tuple(url.strip() for url in etcd_endpoints.split(",") if url.strip()),
        ca=etcd_ca,
        cert=etcd_cert,
        key=etcd_key,
        user=etcd_user,
        password_file=etcd_password_file,
    )

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
        etcd=target if store == "etcd" else None,
        parts=chosen,
        url=advertise or f"https://{host}:{port}",
        peer_cert=peer_cert,
        peer_key=peer_key,
        node_ca=node_ca,
        node_ca_key=node_ca_key,
    )
    try:
        return uvloop.run(run_cell(config))
    except Fault as fault:
        raise Stop(f"the cell {cell} cannot run", why=fault.message, next_step="see docs/etcd.md") from fault


def _check_parts(chosen: tuple[str, ...], store: str, endpoints: str) -> None:
    from holdfast.cell_process import PARTS
    from holdfast.cli.exits import Exit, Stop

    wrong = sorted(set(chosen) - set(PARTS))
    problem = f"{', '.join(wrong)} is no part; the parts are {', '.join(PARTS)}" if wrong or not chosen else ""
    if store != "etcd" and set(chosen) != set(PARTS):
        problem = "a cell on one machine is one process: only --store etcd can be shared by several"
    if store == "etcd" and not endpoints:
        problem = "--store etcd needs --etcd-endpoints"
    if problem:
        raise Stop("these options do not go together", why=problem, next_step="holdfast serve --help", code=Exit.USAGE)
