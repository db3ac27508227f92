"""One server process of a cell: its store, the cell itself, and the HTTP API."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import msgspec
import structlog

from holdfast import __version__
from holdfast.authority.authority import Authority
from holdfast.cell.cell import GLOBAL, PARTS, Cell
from holdfast.client.contract import Client
from holdfast.client.http import HttpClient
from holdfast.controllers.lifetime import Lifetime
from holdfast.foundation import log as logging
from holdfast.foundation.ports import Ports, SystemPorts
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.certificates import RevokedSerials
from holdfast.identity.joining import JoinService
from holdfast.identity.node_certificates import NodeCertificateAuthority
from holdfast.identity.revocation_journal import JOURNAL_FILE, RevocationJournalWriter
from holdfast.identity.tokens import TokenFile
from holdfast.link.link_certificate import LinkCertificate
from holdfast.link.peer_https import HttpsProbe
from holdfast.model import limits
from holdfast.model.errors import StoreFailed
from holdfast.server.app import Application
from holdfast.server.listener import Listener, TlsFiles, listen
from holdfast.server.placement_forwarding import ForwardingPlacement, election_identity
from holdfast.store.backup import RESTORE_MARKER
from holdfast.store.contract import Store
from holdfast.store.etcd.target import EtcdTarget
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

__all__ = ["PARTS", "CellConfig", "EtcdTarget", "run_cell"]

GC_THRESHOLDS = (50_000, 20, 100)
"""Objects are immutable and mostly long-lived. Default thresholds find little and cost a third of the throughput."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 128 << 20, 32 << 20
"""Freed memory that glibc keeps. By default it returns the planner's arrays to the kernel after each plan, and with
20,000 nodes planning takes three times as long."""

_log = structlog.get_logger()


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory. Does nothing with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


class CellConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`link_cert` and `link_key` are the client certificate of a region for the global cell at `global_url`."""

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


async def run_cell(config: CellConfig) -> int:
    """Runs until a signal or until a component fails. Returns the exit status of the process."""
    logging.configure(cell=config.cell, component="cell")
    gc.set_threshold(*GC_THRESHOLDS)
    keep_freed_memory()
    ports = SystemPorts()
    store = await _open_store(config)
    if await store.get(RESTORE_MARKER) is not None:
        await store.close()
        raise StoreFailed(f"store of cell {config.cell}: a restore was interrupted; next: run holdfast restore again")
    global_client = _dial(config, ports)
    probe = HttpsProbe(str(config.client_ca)) if global_client is not None else None
    volatile = MemoryStore(limits.EVENTS_MAX)
    peers = _Peers(config, ports)
    cell = Cell(
        config.cell,
        store,
        volatile,
        ports,
        identity=election_identity(config.cell, config.url) if config.etcd is not None else f"{config.cell}-0",
        global_client=global_client,
        probe=probe,
        parts=frozenset(config.parts),
        forward=peers.forwarding if config.etcd is not None else None,
    )
    life = Lifetime(f"cell {config.cell}")
    life.add("cell", cell, runs=lambda: _until_failed(cell, ports))
    if config.cell != GLOBAL and config.store != "memory":
        journal = RevocationJournalWriter(config.state / JOURNAL_FILE, cell.objects, ports)
        life.add("node journal", journal, runs=journal.run)
    if isinstance(global_client, HttpClient) and config.link_cert is not None:
        shown = LinkCertificate(global_client, config.link_cert, ports)
        life.add("link certificate", shown, runs=shown.run)
    life.add("api", _Api(config, cell, ports))
    _log.info("cell_starting", version=__version__, store=config.store, state=str(config.state))
    try:
        return await life.run()
    finally:
        if global_client is not None:
            await global_client.close()
        if probe is not None:
            await probe.close()
        await peers.close()
        await store.close()


class _Peers:
    """Clients of the other servers of this cell, for forwarding placement calls."""

    def __init__(self, config: CellConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._clients: list[HttpClient] = []

    def forwarding(self, authority: Authority | None, objects: Objects) -> ForwardingPlacement:
        return ForwardingPlacement(objects, authority, self._config.url, self._dial if self._config.peer_cert else None)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    def _dial(self, url: str) -> HttpClient:
        config = self._config
        client = HttpClient(
            url,
            self._ports,
            cell=config.cell,
            ca=str(config.client_ca),
            cert=str(config.peer_cert),
            key=str(config.peer_key),
        )
        self._clients.append(client)
        return client


async def _open_store(config: CellConfig) -> Store:
    if config.store == "memory":
        return MemoryStore()
    if config.etcd is not None:
        from holdfast.store.etcd.store import open_store

        return await open_store(config.cell, config.etcd, config.state)
    from holdfast.store.sqlite import SqliteStore

    return SqliteStore(config.state / "store.sqlite")


def _dial(config: CellConfig, ports: Ports) -> Client | None:
    if config.cell == GLOBAL:
        return None
    return HttpClient(
        config.global_url,
        ports,
        cell=GLOBAL,
        ca=str(config.client_ca),
        cert=str(config.link_cert or ""),
        key=str(config.link_key or ""),
    )


async def _until_failed(cell: Cell, ports: Ports) -> None:
    """Raises when a component of the cell has ended. The supervisor then restarts the process."""
    gc.collect()
    gc.freeze()
    while not cell.failed:
        cell.objects.check()
        await ports.clock.sleep(1.0)
    raise RuntimeError(f"{cell.failed} ended unexpectedly")


class _Api:
    """The HTTP API as a component: it starts last and stops first."""

    def __init__(self, config: CellConfig, cell: Cell, ports: Ports) -> None:
        self._config = config
        self._listener: Listener | None = None
        signing = (
            NodeCertificateAuthority(config.cell, config.node_ca, config.node_ca_key)
            if config.node_ca is not None and config.node_ca_key is not None
            else None
        )
        joining = JoinService(cell.gate, signing)
        authenticator = Authenticator(
            config.cell,
            ports,
            tokens=TokenFile(config.tokens),
            revoked=RevokedSerials(config.client_ca.parent / "revoked.json"),
            node_issuer=signing.name if signing is not None else "",
            identities=joining.identity,
        )
        self._app = Application(
            config.cell,
            cell.objects,
            cell.gate,
            authenticator,
            ports,
            placement=cell.placement,
            events=cell.events,
            open_metrics=True,
            joining=joining,
        )
        self._app.health.ready["parts"] = lambda: ", ".join(
            f"{name} is not ready" for name, ready in cell.ready().items() if not ready
        )

    async def start(self) -> None:
        tls = TlsFiles(self._config.tls_cert, self._config.tls_key, self._config.client_ca, self._config.node_ca)
        self._listener = await listen(self._app, self._config.host, self._config.port, tls)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
