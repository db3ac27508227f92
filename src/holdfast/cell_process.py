"""One cell as a process: its store file, the cell itself, and the HTTP API in front of it."""

from __future__ import annotations

import gc
from pathlib import Path

import msgspec
import structlog

from holdfast import __version__
from holdfast.cell import GLOBAL, Cell
from holdfast.client.contract import Client
from holdfast.client.http import HttpClient
from holdfast.gate.authenticate import Authenticator
from holdfast.gate.certificates import RevokedSerials
from holdfast.gate.tokens import TokenFile
from holdfast.model import limits
from holdfast.runtime import log as logging
from holdfast.runtime.lifetime import Lifetime
from holdfast.runtime.ports import Ports, SystemPorts
from holdfast.server.app import Application
from holdfast.server.serve import Listener, Tls, listen
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore

GC_THRESHOLDS = (50_000, 20, 100)
"""Objects are immutable and mostly live long: collecting often finds nothing and costs a third of the throughput."""

log = structlog.get_logger()


class CellConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`link_cert` and `link_key` are what a region shows to the global cell at `global_url`."""

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


async def run_cell(config: CellConfig) -> int:
    """Until a signal, or until a part fails. Answers the process's exit status."""
    logging.configure(cell=config.cell, component="cell")
    gc.set_threshold(*GC_THRESHOLDS)
    ports = SystemPorts()
    store = _open_store(config)
    there = _dial(config, ports)
    cell = Cell(config.cell, store, MemoryStore(limits.EVENTS_KEPT), ports, identity=f"{config.cell}-0", there=there)
    life = Lifetime(f"cell {config.cell}")
    life.add("cell", cell, runs=lambda: _until_failed(cell, ports))
    life.add("api", _Api(config, cell, ports))
    log.info("cell_starting", version=__version__, store=config.store, state=str(config.state))
    try:
        return await life.run()
    finally:
        if there is not None:
            await there.close()
        await store.close()


def _open_store(config: CellConfig) -> Store:
    if config.store == "memory":
        return MemoryStore()
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
    """Ends when a part of the cell has ended by itself: whoever supervises the process starts a whole one."""
    gc.collect()
    gc.freeze()
    while not cell.failed:
        await ports.clock.sleep(1.0)
    raise RuntimeError(f"{cell.failed} ended by itself")


class _Api:
    """The API as a part of the process: starts to listen last, and is the first to stop."""

    def __init__(self, config: CellConfig, cell: Cell, ports: Ports) -> None:
        self._config = config
        self._listener: Listener | None = None
        authenticator = Authenticator(
            config.cell,
            ports,
            tokens=TokenFile(config.tokens),
            revoked=RevokedSerials(config.client_ca.parent / "revoked.json"),
        )
        self._app = Application(
            config.cell,
            cell.objects,
            cell.gate,
            authenticator,
            ports,
            placement=cell.authority,
            events=cell.events,
            open_metrics=True,
        )
        self._app.health.ready["parts"] = lambda: ", ".join(
            f"{name} is not ready" for name, ready in cell.ready().items() if not ready
        )

    async def start(self) -> None:
        tls = Tls(self._config.tls_cert, self._config.tls_key, self._config.client_ca)
        self._listener = await listen(self._app, self._config.host, self._config.port, tls)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
