"""One server process of a cell: its store, the cell itself, and the HTTP API."""

from __future__ import annotations

import gc
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from holdfast import __version__
from holdfast.authority.authority import Authority
from holdfast.cell.audit_checkpoints import AuditCheckpoints, read_checkpoints
from holdfast.cell.break_glass_watch import BreakGlassWatch
from holdfast.cell.builtin_role_publisher import BuiltinRolePublisher
from holdfast.cell.cell import GLOBAL, Cell
from holdfast.cell.cell_config import CellConfig
from holdfast.cell.cell_warnings import CellWarnings
from holdfast.cell.certificate_upkeep import GlobalCertificates, RegionCertificates
from holdfast.cell.config_upkeep import ConfigUpkeep
from holdfast.cell.disk_gauges import observe_certificate, observe_directory
from holdfast.cell.freed_memory import FreedMemory, keep_freed_memory
from holdfast.cell.identity import IdentityRecorder, check_file, establish_identity
from holdfast.cell.image_resolver import read_allowed
from holdfast.cell.notifier import Notifier
from holdfast.cell.server_upkeep import EtcdMemberUpkeep, GlobalServerUpkeep
from holdfast.cell.state_format import CELL_STATE
from holdfast.cell.storage import STORE_FILE
from holdfast.client.contract import Client
from holdfast.client.every_server import EveryServer
from holdfast.client.http import HttpClient
from holdfast.console.region_reads import RegionReader, region_history
from holdfast.console.uplink import ConsoleUplink
from holdfast.controllers.lifetime import Lifetime
from holdfast.foundation import log as logging
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.foundation.ports import Ports, SystemPorts
from holdfast.foundation.state_format import open_state
from holdfast.foundation.tracing import Tracer
from holdfast.gate.sealing import Sealer
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.cell_certificates import CellCertificateAuthority, certificate_facts
from holdfast.identity.cell_record import IdentityFile, IdentityRecord, VolatileRecord
from holdfast.identity.certificates import RevokedSerials
from holdfast.identity.joining import JoinService
from holdfast.identity.node_certificates import NodeCertificateAuthority
from holdfast.identity.oidc import OidcVerifier
from holdfast.identity.oidc_sign_in import OidcSignIn
from holdfast.identity.region_joining import RegionJoinService
from holdfast.identity.revocation_journal import JOURNAL_FILE, RevocationJournalWriter
from holdfast.identity.secret_keys import KEYS_FILE, KeyFile, check_secrets, create_keys
from holdfast.identity.server_records import ServerRecords
from holdfast.identity.shared_material import MaterialFiles
from holdfast.identity.tokens import TokenFile
from holdfast.link.link_certificate import LinkCertificate
from holdfast.link.peer_https import HttpsProbe
from holdfast.model import codec, limits
from holdfast.model.errors import StoreFailed
from holdfast.model.kinds import kind_of
from holdfast.model.secret import Secret
from holdfast.server.app import Application
from holdfast.server.asserted_calls import AssertedCalls
from holdfast.server.console import ConsoleService
from holdfast.server.listener import Listener, listen
from holdfast.server.mixed_server import is_loopback
from holdfast.server.placement_forwarding import ForwardingPlacement, election_identity
from holdfast.server.tls import TlsFiles
from holdfast.store.backup import RESTORE_MARKER
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.scrubber import Scrubber

GC_THRESHOLDS = (50_000, 20, 100)
"""Objects are immutable and mostly long-lived. Default thresholds find little and cost a third of the throughput."""

GLOBAL_SERVERS_FILE = "global-servers"
"""In a region's state directory: URLs of the global cell's servers, as the global cell said last."""

_log = structlog.get_logger()


async def run_cell(config: CellConfig) -> int:
    """Runs until a signal or until a component fails. Returns the exit status of the process."""
    logging.configure(cell=config.cell, component="cell")
    gc.set_threshold(*GC_THRESHOLDS)
    keep_freed_memory()
    ports = SystemPorts()
    record: IdentityRecord = IdentityFile(config.state) if config.store != "memory" else VolatileRecord(config.cell)
    store = await _open_store(config, record)
    if await store.get(RESTORE_MARKER) is not None:
        await store.close()
        raise StoreFailed(f"store of cell {config.cell}: a restore was interrupted; next: run holdfast restore again")
    try:
        own = await establish_identity(store, config.cell, record, ports, shared=config.etcd is not None)
    except BaseException:
        await store.close()
        raise
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
        rebalances=config.rebalance,
        maintenance=config.maintenance,
        registries=read_allowed(config.images) if config.cell == GLOBAL else None,
        sealer=await _sealer(config, store),
    )
    life = Lifetime(f"cell {config.cell}")
    life.add("cell", cell, runs=lambda: _until_failed(cell, ports))
    _add_access_parts(life, config, cell, store, ports)
    recorder = IdentityRecorder(record, own, store, ports)
    life.add("identity record", recorder, runs=recorder.run)
    _add_store_parts(life, config, cell, ports)
    _add_notifications(life, config, cell, own.identity, ports)
    if isinstance(global_client, HttpClient) and config.link_cert is not None:
        shown = LinkCertificate(global_client, config.link_cert, ports)
        life.add("link certificate", shown, runs=shown.run)
    records = ServerRecords(config.cell, cell.objects, config.client_ca.parent)
    _add_certificate_upkeep(life, config, global_client, ports, records)
    _add_server_upkeep(life, config, cell, ports, records)
    api = _Api(config, cell, ports, records)
    if isinstance(global_client, HttpClient):
        _add_console_uplinks(life, cell, global_client, api, ports)
    _add_upkeep(life, cell, ports)
    if config.traces.url:
        _add_traces(life, config, cell, api, ports)
    life.add("api", api)
    _log.info(
        "cell_starting",
        version=__version__,
        store=config.store,
        state=str(config.state),
        identity=own.identity,
        era=own.era,
    )
    try:
        return await life.run()
    finally:
        if global_client is not None:
            await global_client.close()
        if probe is not None:
            await probe.close()
        await peers.close()
        await store.close()


def _add_console_uplinks(life: Lifetime, cell: Cell, global_client: HttpClient, api: _Api, ports: Ports) -> None:
    """Each server of the global cell asks this region by itself."""
    reader = RegionReader(cell.name, cell.objects, ports)
    history = region_history(cell.name, cell.objects, ports)

    async def connect(one: HttpClient) -> None:
        uplink = ConsoleUplink(one, reader, history, AssertedCalls(api.app))
        try:
            await uplink.run()
        finally:
            await uplink.stop()

    uplinks = EveryServer(global_client, connect, ports.clock)
    life.add("console uplink", uplinks, runs=uplinks.run)


def _add_store_parts(life: Lifetime, config: CellConfig, cell: Cell, ports: Ports) -> None:
    if config.store == "sqlite":
        scrubber = Scrubber(config.state / STORE_FILE, ports)
        life.add("scrubber", scrubber, runs=scrubber.run)
    if config.cell != GLOBAL and config.store != "memory":
        journal = RevocationJournalWriter(config.state / JOURNAL_FILE, cell.objects, ports)
        life.add("node journal", journal, runs=journal.run)


def _add_access_parts(life: Lifetime, config: CellConfig, cell: Cell, store: Store, ports: Ports) -> None:
    """Components of access and audit that only a real process has."""
    if config.cell == GLOBAL:
        life.add("built-in roles", BuiltinRolePublisher(cell.gate))
    sessions = BreakGlassWatch(cell.objects, cell.events, ports)
    life.add("break-glass watch", sessions, runs=sessions.run)
    if config.store != "memory":
        checkpoints = AuditCheckpoints(config.cell, config.state, store, ports)
        life.add("audit checkpoints", checkpoints, runs=checkpoints.run)


def _add_notifications(life: Lifetime, config: CellConfig, cell: Cell, identity: str, ports: Ports) -> None:
    """The global cell announces events. A region tells it about its own cell, in its report."""
    warnings = CellWarnings(config, cell, ports)
    if cell.link is not None:
        cell.link.warnings = warnings
    if config.cell == GLOBAL and "controllers" in config.parts:
        notifier = Notifier(cell, identity, warnings)
        life.add("notifications", notifier, runs=notifier.run)


def _add_certificate_upkeep(
    life: Lifetime, config: CellConfig, global_client: Client | None, ports: Ports, records: ServerRecords
) -> None:
    kept = _certificate_upkeep(config, global_client, ports, records)
    if kept is not None:
        life.add("certificates", kept, runs=kept.run)


def _add_server_upkeep(life: Lifetime, config: CellConfig, cell: Cell, ports: Ports, records: ServerRecords) -> None:
    """For servers that `holdfast init` installed: their peer certificate is one file that they renew themselves."""
    if config.peer_cert is None or config.peer_cert != config.peer_key:
        return
    if config.cell == GLOBAL and config.cell_ca_key is not None:
        kept = GlobalServerUpkeep(
            cell.gate,
            records,
            CellCertificateAuthority(config.client_ca, config.cell_ca_key),
            url=config.url,
            peer=config.peer_cert,
            server=config.tls_cert,
            ca=config.client_ca,
            ports=ports,
            dial=lambda url: _dial_peer(config, url, ports),
        )
        life.add("server upkeep", kept, runs=kept.run)
    if config.etcd is not None and config.etcd.ca and Path(config.etcd.ca).with_name("ca.key").exists():
        members = EtcdMemberUpkeep(config.etcd, records.revoked, ports)
        life.add("etcd members", members, runs=members.run)


def _dial_peer(config: CellConfig, url: str, ports: Ports) -> HttpClient:
    cert, key = str(config.peer_cert), str(config.peer_key)
    return HttpClient(url, ports, cell=config.cell, ca=str(config.client_ca), cert=cert, key=key)


def _material_files(config: CellConfig) -> MaterialFiles:
    etcd = config.etcd
    settings = (
        {}
        if etcd is None
        else {
            "endpoints": ",".join(etcd.endpoints),
            "user": etcd.user,
            "ca": etcd.ca,
            "cert": etcd.cert,
            "key": etcd.key,
            "password_file": etcd.password_file,
        }
    )
    return MaterialFiles(
        ca=config.client_ca,
        ca_key=config.cell_ca_key,
        node_ca=config.node_ca,
        node_ca_key=config.node_ca_key,
        secret_keys=config.secret_keys or config.state / KEYS_FILE,
        tokens=config.tokens,
        etcd=settings,
    )


def _certificate_upkeep(
    config: CellConfig, global_client: Client | None, ports: Ports, records: ServerRecords
) -> GlobalCertificates | RegionCertificates | None:
    """What renews this cell's certificates; None if an operator does. A cell renews files that hold key and
    certificate together, because only those change at once."""
    if config.tls_cert != config.tls_key:
        return None
    peer = config.peer_cert if config.peer_cert == config.peer_key else None
    if config.cell == GLOBAL:
        if config.cell_ca_key is None:
            return None
        authority = CellCertificateAuthority(config.client_ca, config.cell_ca_key)
        return GlobalCertificates(authority, config.tls_cert, ports, peer=peer)
    if not isinstance(global_client, HttpClient) or config.link_cert is None or config.link_cert != config.link_key:
        return None
    known = config.state / GLOBAL_SERVERS_FILE
    files = (config.client_ca, config.link_cert, config.tls_cert)
    return RegionCertificates(global_client, *files, ports, peer=peer, records=records, known=known)


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
        client = _dial_peer(config, url, self._ports)
        self._clients.append(client)
        return client


async def _open_store(config: CellConfig, record: IdentityRecord) -> Store:
    if config.store == "memory":
        return MemoryStore()
    _check_state(config)
    observe_directory(config.state)
    observe_certificate(config.tls_cert)
    if config.etcd is not None:
        from holdfast.store.etcd.startup import wait_for_store

        return await wait_for_store(config.cell, config.etcd, config.state)
    from holdfast.store.sqlite import SqliteStore

    file = config.state / STORE_FILE
    check_file(config.cell, record, file)
    return SqliteStore(file)


async def _sealer(config: CellConfig, store: Store) -> Sealer:
    """The keys of the cell. The global cell refuses to start without the keys of its Secrets; a region fetches its
    copies again.
    """
    if config.store == "memory":
        return Sealer()
    path = config.secret_keys or config.state / KEYS_FILE
    source = KeyFile(path, config.secret_keys_command)
    kind = kind_of(Secret)
    if config.cell == GLOBAL:
        entries = (await store.range(kind.prefix)).entries
        check_secrets(config.cell, [codec.decode_value(kind, entry.value) for entry in entries], source)
    if not config.secret_keys_command and config.etcd is None:
        create_keys(path)  # on etcd each server would draw another key: the operator copies one
    return Sealer(source)


def _check_state(config: CellConfig) -> None:
    """Checks and migrates the state directory. The lock of a SQLite store proves that no other process uses it."""
    from holdfast.store.schema import FileLock

    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if config.etcd is not None:
        open_state(config.state, CELL_STATE)
        return
    lock = FileLock(config.state / STORE_FILE)
    try:
        open_state(config.state, CELL_STATE)
    finally:
        lock.release()


def _dial(config: CellConfig, ports: Ports) -> Client | None:
    if config.cell == GLOBAL:
        return None
    known = config.state / GLOBAL_SERVERS_FILE
    return HttpClient(
        known.read_text(encoding="ascii") if known.exists() else config.global_url,
        ports,
        cell=GLOBAL,
        ca=str(config.client_ca),
        cert=str(config.link_cert or ""),
        key=str(config.link_key or ""),
    )


def _add_upkeep(life: Lifetime, cell: Cell, ports: Ports) -> None:
    upkeep = ConfigUpkeep(cell)
    life.add("config upkeep", upkeep, runs=upkeep.run)
    memory = FreedMemory(ports.clock)
    life.add("freed memory", memory, runs=memory.run)


class _Traces:
    """The exporter as a component: it starts before the API and ends after it, with the last spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        await run_in_thread(self._tracer.close)


def _add_traces(life: Lifetime, config: CellConfig, cell: Cell, api: _Api, ports: Ports) -> None:
    is_global = config.cell == GLOBAL
    tracer = Tracer(
        config.traces,
        service="holdfast-global" if is_global else "holdfast-region",
        instance=f"{config.cell} {config.host}:{config.port}",
        region="" if is_global else config.cell,
    )
    cell.trace_stages(tracer, ports.clock)
    api.app.traces_requests = is_global
    life.add("traces", _Traces(tracer))


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

    def __init__(self, config: CellConfig, cell: Cell, ports: Ports, records: ServerRecords) -> None:
        self._config = config
        self._listener: Listener | None = None
        signing = (
            NodeCertificateAuthority(config.cell, config.node_ca, config.node_ca_key)
            if config.node_ca is not None and config.node_ca_key is not None
            else None
        )
        regions = None
        if config.cell == GLOBAL and config.cell_ca_key is not None:
            own_hosts = urlsplit(config.url).hostname or "", *certificate_facts(config.tls_cert.read_bytes()).hosts
            cell_ca = CellCertificateAuthority(config.client_ca, config.cell_ca_key)
            regions = RegionJoinService(cell.gate, cell_ca, tuple(host for host in own_hosts if host))
        joining = JoinService(
            cell.gate,
            signing,
            regions=regions,
            trusted=config.client_ca,
            servers=records,
            material=_material_files(config) if config.peer_cert is not None and config.etcd is not None else None,
        )
        oidc = OidcVerifier(config.oidc, ports) if config.oidc is not None else None
        authenticator = Authenticator(
            config.cell,
            ports,
            tokens=TokenFile(config.tokens),
            revoked=RevokedSerials(config.client_ca.parent / "revoked.json"),
            node_issuer=signing.name if signing is not None else "",
            identities=joining.identity,
            cells=records.rejection_reason,
            oidc=oidc,
        )
        self.app = Application(
            config.cell,
            cell.objects,
            cell.gate,
            authenticator,
            ports,
            placement=cell.placement,
            events=cell.events,
            joining=joining,
            console=ConsoleService(cell.objects, authenticator, ports, config.state, config.drills)
            if config.cell == GLOBAL
            else None,
        )
        if self.app.console is not None and config.oidc is not None and oidc is not None:
            self.app.console.oidc = OidcSignIn(config.oidc, oidc, ports)
        self.app.audit_checkpoints = lambda: read_checkpoints(config.state)
        self.app.health.ready["parts"] = lambda: ", ".join(
            f"{name} is not ready" for name, ready in cell.ready().items() if not ready
        )

    async def start(self) -> None:
        tls = TlsFiles(self._config.tls_cert, self._config.tls_key, self._config.client_ca, self._config.node_ca)
        config = self._config
        plain_console = self.app.console is not None and is_loopback(config.host)
        self._listener = await listen(self.app, config.host, config.port, tls, plain_console=plain_console)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
