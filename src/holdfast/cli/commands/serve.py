"""`holdfast serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.settings_file import config_option, read_trace_settings

if TYPE_CHECKING:
    from holdfast.cell.cell_config import OidcConfig

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@config_option
@click.option("--cell", required=True, metavar="global|REGION", help="Name of the cell.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the cell; it contains the SQLite store.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen address.")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Listen port.")
@click.option("--tls-cert", type=FILE, required=True, help="Server certificate.")
@click.option("--tls-key", type=FILE, required=True, help="Key of the server certificate.")
@click.option("--client-ca", type=FILE, required=True, help="CA certificate for client certificates.")
@click.option("--node-ca", type=FILE, help="Regions: CA certificate for node certificates.")
@click.option("--node-ca-key", type=FILE, help="Regions: key of the node CA. Without it no node can join.")
@click.option("--cell-ca-key", type=FILE, help="Global cell: key of the CA. Without it no region can join.")
@click.option("--tokens", type=FILE, required=True, help="File with hashed API tokens.")
@click.option("--global-url", default="", help="Regions: URL of the global cell.")
@click.option("--link-cert", type=FILE, help="Regions: client certificate for the global cell.")
@click.option("--link-key", type=FILE, help="Regions: key of the link certificate.")
@click.option(
    "--store",
    type=click.Choice(("sqlite", "etcd", "memory")),
    default="sqlite",
    show_default=True,
    help="Store of the cell. `memory` is not durable.",
)
@click.option("--etcd-endpoints", default="", metavar="URL,…", help="With --store etcd: endpoints of the cluster.")
@click.option("--etcd-ca", default="", help="CA certificate of etcd.")
@click.option("--etcd-cert", default="", help="Client certificate for etcd.")
@click.option("--etcd-key", default="", help="Key of the etcd client certificate.")
@click.option("--etcd-user", default="", help="etcd user, if authentication is enabled.")
@click.option("--etcd-password-file", default="", help="File with the password of the etcd user.")
@click.option(
    "--parts",
    default="api,controllers,authority,scheduler",
    show_default=True,
    metavar="PART,…",
    help="With --store etcd: components that this process runs. The API always runs.",
)
@click.option(
    "--rebalance/--no-rebalance",
    default=True,
    show_default=True,
    help="Regions: move running replicas to zones and nodes with fewer of them. Workloads can opt out themselves.",
)
@click.option(
    "--maintenance/--no-maintenance",
    default=True,
    show_default=True,
    help="Let MaintenanceWindows take effect. Without it the global cell starts none, and a region drains no node.",
)
@click.option("--images", type=FILE, help="Global cell: TOML file with the registries that resolve tags (`images`).")
@click.option(
    "--secret-keys", type=FILE, help="File with the keys that encrypt Secrets.  [default: secret-keys.json in --state]"
)
@click.option(
    "--secret-keys-command", default="", metavar="COMMAND", help="Command that prints those keys, instead of a file."
)
@click.option(
    "--otlp-endpoint",
    default="",
    metavar="URL",
    help="Export traces to this OTLP receiver (HTTP).  [default: OTEL_EXPORTER_OTLP_ENDPOINT, else off]",
)
@click.option(
    "--trace-ratio",
    type=click.FloatRange(0, 1),
    help="Part of all traces to export.  [default: OTEL_TRACES_SAMPLER_ARG, else 1]",
)
@click.option(
    "--drills",
    type=click.Path(file_okay=False, path_type=Path),
    help="Global cell: folder where the supervisor of `holdfast up` takes the drills that the console starts.",
)
@click.option("--advertise", default="", metavar="URL", help="URL of this process for the cell's other processes.")
@click.option("--peer-cert", type=FILE, help="Client certificate for the cell's other processes.")
@click.option("--peer-key", type=FILE, help="Key of the peer certificate.")
@click.option("--oidc-issuer-url", default="", metavar="URL", help="Accept tokens of this OIDC issuer (https).")
@click.option("--oidc-client-id", default="", help="OIDC: audience that a token must have.")
@click.option("--oidc-username-claim", default="sub", show_default=True, help="OIDC: claim with the user's name.")
@click.option("--oidc-username-prefix", default="", help="OIDC: prefix of user names; `-` for none.")
@click.option("--oidc-groups-claim", default="", help="OIDC: claim with the user's groups.")
@click.option("--oidc-groups-prefix", default="", help="OIDC: prefix of groups.")
@click.option("--oidc-required-claim", multiple=True, metavar="NAME=VALUE", help="OIDC: claim that a token must have.")
@click.option("--oidc-ca-file", type=FILE, help="OIDC: CA certificate of the issuer.")
@click.option("--oidc-client-secret-file", type=FILE, help="OIDC: file with the console's secret at the issuer.")
@click.option(
    "--oidc-scopes", default="openid email profile", show_default=True, help="OIDC: scopes that the console asks for."
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
    rebalance: bool,
    maintenance: bool,
    images: Path | None,
    secret_keys: Path | None,
    secret_keys_command: str,
    otlp_endpoint: str,
    trace_ratio: float | None,
    drills: Path | None,
    advertise: str,
    peer_cert: Path | None,
    peer_key: Path | None,
    cell_ca_key: Path | None,
    check_config: bool,
    **oidc: Any,
) -> int:
    """Run one cell: the global cell or a regional cell.

    Runs the API server, the store and the controllers of the cell in one process. SIGTERM stops it cleanly. `holdfast
    up` runs all cells of a local platform.

    \b
    Examples:
      holdfast serve --config /etc/holdfast/global.toml
      holdfast serve --cell global --state /var/lib/holdfast/global --port 7400 \\
        --tls-cert cell.crt --tls-key cell.key --client-ca ca.crt --tokens tokens.json
    """
    from holdfast.foundation.exit_codes import CommandError, ExitCode

    if cell != "global" and not global_url:
        raise CommandError(
            f"region {cell}: --global-url is missing",
            next_step="add --global-url https://HOST:PORT --link-cert FILE --link-key FILE",
            code=ExitCode.USAGE,
        )
    import uvloop

    from holdfast.cell.cell_config import CellConfig, EtcdTarget
    from holdfast.cell.process import run_cell
    from holdfast.model.errors import Fault

    chosen = tuple(part.strip() for part in parts.split(",") if part.strip())
    _check_parts(chosen, store, etcd_endpoints)
    _check_images(images)
    traces = read_trace_settings(otlp_endpoint, trace_ratio)
    target = EtcdTarget(
        endpoints=tuple(url.strip() for url in etcd_endpoints.split(",") if url.strip()),
        ca=etcd_ca,
        cert=etcd_cert,
        key=etcd_key,
        user=etcd_user,
        password_file=etcd_password_file,
    )
    if check_config:
        _check_files(
            cell,
            (tls_cert, tls_key, client_ca, node_ca, node_ca_key, link_cert, link_key, peer_cert, peer_key, cell_ca_key),
        )
        click.echo(f"cell {cell}: the settings are valid", err=True)
        return 0
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = CellConfig(
        oidc=_oidc_config(**oidc),
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
        rebalance=rebalance,
        maintenance=maintenance,
        images=images,
        secret_keys=secret_keys,
        secret_keys_command=secret_keys_command,
        traces=traces,
        drills=drills,
        url=advertise or f"https://{host}:{port}",
        peer_cert=peer_cert,
        peer_key=peer_key,
        node_ca=node_ca,
        node_ca_key=node_ca_key,
        cell_ca_key=cell_ca_key,
    )
    try:
        return uvloop.run(run_cell(config))
    except Fault as fault:
        raise CommandError(f"cell {cell}: {fault.message}", next_step="see docs/operations/backup.md") from fault


def _check_images(path: Path | None) -> None:
    from holdfast.cell.image_resolver import read_allowed
    from holdfast.foundation.exit_codes import CommandError, ExitCode
    from holdfast.model.errors import Invalid

    try:
        read_allowed(path)
    except Invalid as error:
        raise CommandError(
            f"--images: {error.message}", next_step="correct the file; docs/agent.md describes it", code=ExitCode.USAGE
        ) from error


def _oidc_config(*, oidc_issuer_url: str, oidc_required_claim: tuple[str, ...], **rest: Any) -> OidcConfig | None:
    from holdfast.cell.cell_config import OidcConfig
    from holdfast.foundation.exit_codes import CommandError, ExitCode

    if not oidc_issuer_url:
        return None
    wrong = next((claim for claim in oidc_required_claim if "=" not in claim), None)
    if wrong is not None or not oidc_issuer_url.startswith("https://") or not rest["oidc_client_id"]:
        expected = "an https URL in --oidc-issuer-url, --oidc-client-id, and NAME=VALUE in --oidc-required-claim"
        raise CommandError(f"OIDC: incomplete settings (expected {expected})", code=ExitCode.USAGE)
    claims = tuple((name, value) for name, _, value in (claim.partition("=") for claim in oidc_required_claim))
    settings = {name.removeprefix("oidc_"): value for name, value in rest.items()}
    return OidcConfig(issuer_url=oidc_issuer_url, required_claims=claims, **settings)


def _check_files(cell: str, files: tuple[Path | None, ...]) -> None:
    """Raises for a named file that is missing or not readable."""
    from holdfast.foundation.exit_codes import CommandError, ExitCode

    for path in files:
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as error:
            text = f"cell {cell}: {path}: not readable ({error.strerror})"
            raise CommandError(text, next_step="correct the path in the settings", code=ExitCode.USAGE) from None


def _check_parts(chosen: tuple[str, ...], store: str, endpoints: str) -> None:
    from holdfast.cell.cell_config import PARTS
    from holdfast.foundation.exit_codes import CommandError, ExitCode

    wrong = ", ".join(sorted(set(chosen) - set(PARTS))) or "none"
    problem = ""
    if store != "etcd" and set(chosen) != set(PARTS):
        problem = f"--parts: only --store etcd supports several processes per cell (found --store {store})"
    elif wrong != "none" or not chosen:
        problem = f"--parts: invalid component (expected {', '.join(PARTS)}, found {wrong})"
    elif store == "etcd" and not endpoints:
        problem = "--store etcd: --etcd-endpoints is missing"
    if problem:
        raise CommandError(problem, next_step="holdfast serve --help", code=ExitCode.USAGE)
