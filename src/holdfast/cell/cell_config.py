"""Settings of one server process of a cell."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.cell.cell import PARTS
from holdfast.foundation.tracing import TraceSettings
from holdfast.identity.oidc import OidcConfig
from holdfast.store.etcd.target import EtcdTarget

__all__ = ["PARTS", "CellConfig", "EtcdTarget", "OidcConfig"]


class CellConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one server process of a cell, after files and options were read.

    `link_cert` and `link_key` are the client certificate of a region for the global cell at `global_url`."""

    cell: str
    state: Path
    host: str
    port: int
    tls_cert: Path
    tls_key: Path
    client_ca: Path
    tokens: Path
    global_url: str = ""
    link_cert: Path | None = None
    link_key: Path | None = None
    store: str = "sqlite"
    etcd: EtcdTarget | None = None
    parts: tuple[str, ...] = PARTS
    url: str = ""
    """URL for the other servers of the cell. `peer_cert` and `peer_key` are the client certificate for them."""
    peer_cert: Path | None = None
    peer_key: Path | None = None
    node_ca: Path | None = None
    """For a region: certificate and key of the CA that signs node certificates."""
    node_ca_key: Path | None = None
    oidc: OidcConfig | None = None
    """The issuer whose tokens are accepted beside certificates and tokens of the platform."""
    cell_ca_key: Path | None = None
    """For the global cell: key of the platform's CA, which is in `client_ca`. Without it no region can join."""
    rebalance: bool = True
    """For a region: whether running replicas move for a more even spread."""
    maintenance: bool = True
    """Whether MaintenanceWindows take effect in this cell."""
    images: Path | None = None
    """For the global cell: TOML file with the table `images`, the registries that resolve tags."""
    secret_keys: Path | None = None
    """File with the keys that seal Secrets; by default in the state directory. `secret_keys_command` prints them
    instead."""
    secret_keys_command: str = ""
    traces: TraceSettings = TraceSettings()
    """Where spans are exported to. Off by default."""
    drills: Path | None = None
    """For the global cell: folder where a supervisor on this machine takes the drills that the console starts."""
