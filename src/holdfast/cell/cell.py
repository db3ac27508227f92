"""Composition of a cell: which components make a global or a regional cell, and in which order they start and stop.

`Cell` is everything behind the network: store, gate, controllers, authority, scheduler, link. A server process adds the
HTTP API; the simulation runs the same class on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from holdfast.authority.authority import Authority
from holdfast.cell import fleet_gauges
from holdfast.cell.controller_table import global_controllers, link_controllers, rebalancing, regional_controllers
from holdfast.cell.image_resolver import ImageResolver
from holdfast.cell.maintenance_controllers import maintenance_drains, planned_maintenance
from holdfast.cell.replica_stages import ReplicaStages
from holdfast.cell.stage_spans import StageSpans
from holdfast.client.contract import Client, FencingToken
from holdfast.client.http import HttpClient
from holdfast.controllers.informer import Informers
from holdfast.controllers.leader_election import Election
from holdfast.controllers.runner import Runner
from holdfast.foundation.ports import Clock, Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.foundation.tracing import Tracer
from holdfast.gate.events import EventLog
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient, PlacementService
from holdfast.gate.sealing import CannotOpen, Sealer
from holdfast.insight import replay
from holdfast.link.config_sync import ConfigCopies
from holdfast.link.link import Link
from holdfast.link.override_expiry import OverrideExpiry
from holdfast.link.peer_probes import PeerProbe
from holdfast.model import limits
from holdfast.model.decision import Decision
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.override import Override
from holdfast.model.principal import Principal, controller
from holdfast.model.secret import ConfigMap, Secret
from holdfast.registry.allowed_registries import AllowedRegistries
from holdfast.scheduler.scheduler import Scheduler
from holdfast.server.placement_forwarding import ForwardingPlacement
from holdfast.store.contract import Store
from holdfast.store.objects import Objects

# Revisions of history that are always kept. Older ones are compacted.
HISTORY_REVISIONS = 500_000
# Revisions of history kept at most, where stored Decisions need them for replay.
HISTORY_REVISIONS_MAX = 2_000_000
# Interval of compaction.
COMPACT_EVERY_S = 300.0
# Interval at which the global cell updates its fleet metrics.
FLEET_METRICS_EVERY_S = 5.0

GLOBAL = "global"

log = structlog.get_logger()


PARTS = ("api", "controllers", "authority", "scheduler")
"""Components of a cell process. Several processes of one cell share its store. `controllers` includes the link."""

Forward = Callable[["Authority | None", Objects], ForwardingPlacement]


class Cell:
    """One cell in one process. `global_client` is a region's client of the global cell; None in the global cell."""

    def __init__(
        self,
        name: str,
        store: Store,
        volatile: Store,
        ports: Ports,
        *,
        identity: str,
        global_client: Client | None = None,
        probe: PeerProbe | None = None,
        wrap_client: Callable[[Client], Client] = lambda client: client,
        parts: frozenset[str] = frozenset(PARTS),
        forward: Forward | None = None,
        resync_s: float = limits.RESYNC_S,
        rebalances: bool = True,
        maintenance: bool = True,
        registries: AllowedRegistries | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        """`wrap_client` wraps the client of every component; the simulation injects faults there. `probe` probes other
        regions. `forward` creates the access to an authority that may be in another process. `rebalances`: running
        replicas move for a more even spread. `maintenance`: MaintenanceWindows take effect. `registries`:
        of the global cell, which resolves the tags of images. `sealer` has the keys of Secrets; without it they are
        lost with the process."""
        self.name = name
        self.store = store
        self.ports = ports
        self.objects = Objects(store, volatile)
        self.gate = Gate(name, self.objects, ports, sealer=sealer)
        self.events = EventLog(self.objects, ports)
        self.parts = parts
        regional = name != GLOBAL
        places = regional and "authority" in parts
        self.authority = Authority(name, self.objects, ports, trail=self.gate.audit) if places else None
        self.forwarding = forward(self.authority, self.objects) if forward is not None and regional else None
        self.placement: PlacementService | None = self.forwarding or self.authority
        self._wrap_client = wrap_client
        self.informers = Informers(self.client_of("informers"), ports, resync_s=resync_s)
        self.election = Election(self.client_of("election"), "controllers", identity, ports)
        self._authority_election = Election(self.client_of("authority"), "authority", identity, ports)
        self.runners = self._runners(rebalances=rebalances, maintenance=maintenance) if "controllers" in parts else []
        self.scheduler: Scheduler | None = None
        self.link: Link | None = None
        copies = self.client_of("link") if regional else None
        self._override_expiry = OverrideExpiry(self.informers.cache, self.client_of("override"), ports, copies)
        self.informers.of(Override)
        if regional and "controllers" in parts:
            ReplicaStages(self.informers, ports.clock)
        if regional:
            if "scheduler" in parts:
                self.scheduler = Scheduler(self.client_of("scheduler"), self.informers, ports, name)
            if global_client is not None and "controllers" in parts:
                self.link = Link(
                    name,
                    global_client=global_client,
                    mirror_client=self.client_of("link"),
                    here=self.informers,
                    ports=ports,
                    override_expiry=self._override_expiry,
                    probe=probe,
                    originals=global_client if isinstance(global_client, HttpClient) else None,
                    copies=ConfigCopies(self._config_copies, self._is_readable),
                )
                for row in link_controllers(self.link):
                    client = global_client if row.writes_peer else self.client_of(row.name)
                    self.link.runners[row.name] = Runner(row, client, self.informers, ports, peer=self.link.peer)
        self._registries = registries
        self._tasks: list[asyncio.Task[None]] = []

    def _config_copies(self) -> list[Object]:
        return [item for kind in (Secret, ConfigMap) for item in self.objects.list(kind_of(kind))[0]]

    def _is_readable(self, copy: Object) -> bool:
        """Whether this cell has the key of a sealed copy."""
        return not isinstance(copy, Secret) or copy.sealed is None or self.gate.sealer.knows(copy.sealed.key)

    def trace_stages(self, tracer: Tracer, clock: Clock) -> None:
        """Exports a span for each stage that this process carries out. Call it before `start`."""
        spans = StageSpans(self.name, tracer, self.objects, clock)
        self.gate.observer = spans.committed
        if self.scheduler is not None:
            self.scheduler.observer = spans.planned
        if self.link is not None:
            spans.watch_originals(self.link.peer)
        if (authority := self.authority) is not None:
            authority.annotate_bindings(spans.binding_annotations)
            spans.watch_placements(self.informers, lambda: authority.leading)

    def client_of(self, role: str) -> Client:
        """The in-process client of one component, which writes with its role."""
        return self._wrap_client(self.client(controller(role, cell=self.name)))

    def client(self, who: Principal) -> LocalClient:
        return LocalClient(self.gate, who, placement=self.placement, events=self.events)

    def _runners(self, *, rebalances: bool, maintenance: bool) -> list[Runner]:
        table = global_controllers() if self.name == GLOBAL else regional_controllers(self.name)
        if self.name != GLOBAL and rebalances:
            table = (*table, rebalancing(self.name))
        if maintenance:
            table = (*table, planned_maintenance() if self.name == GLOBAL else maintenance_drains(self.name))
        return [Runner(item, self.client_of(item.name), self.informers, self.ports, self.election) for item in table]

    async def start(self) -> None:
        """Returns when the cell can be read and written. Controllers start in the background."""
        await self.objects.start()
        await self.informers.start()
        if self.runners:
            await self.election.start()
        for runner in self.runners:
            await runner.start()
        if self.authority is not None:
            await self._authority_election.start()
            self._background("authority", lambda: self._authority_election.while_leading(self._run_authority))
        if self.scheduler is not None:
            await self.scheduler.start()
        if self.runners:
            self._background("override-expiry", lambda: self.election.while_leading(self._run_override_expiry))
        if self.link is not None:
            self._background("link", lambda: self.election.while_leading(self._run_link))
        if self.name == GLOBAL:
            self._background("fleet-metrics", self._update_fleet_metrics)
        if self._registries is not None and self.runners:
            self._background("image-resolver", lambda: self.election.while_leading(self._run_image_resolver))
        self._background("compaction", self._compact)
        self._background("events", self.events.run)

    async def stop(self) -> None:
        """Stops in reverse order. Leader leases are released, so that another process takes over at once."""
        if self.scheduler is not None:
            await self.scheduler.stop()
        for runner in reversed(self.runners):
            await runner.stop()
        await cancel_and_wait(*reversed(self._tasks))
        self._tasks.clear()
        if self.authority is not None:
            self.authority.stop()
            await self._authority_election.stop()
        await self.election.stop()
        await self.informers.stop()
        await self.gate.close()
        await self.objects.close()

    def ready(self) -> dict[str, bool]:
        """The checks of /readyz, by name."""
        checks = {"informers": all(i.synced.is_set() for i in self.informers.all())}
        if self.forwarding is not None:
            checks["authority"] = self.forwarding.is_available
        elif self.authority is not None:
            checks["authority"] = self.authority.leading
        return checks

    def _background(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception:
                log.exception("component_failed", cell=self.name, part=name)
                raise

        self._tasks.append(asyncio.create_task(run(), name=f"{self.name} {name}"))

    @property
    def failed(self) -> str:
        """The background task that ended unexpectedly, or an empty string. The process must then exit."""
        return next((t.get_name() for t in self._tasks if t.done() and not t.cancelled()), "")

    async def _run_authority(self, token: FencingToken) -> None:
        """Runs the authority while elected. A new term starts from the stored records, not from memory."""
        assert self.authority is not None
        try:
            await self.authority.start(token)
            await self.authority.run()
            self._authority_election.token_rejected(token)
        finally:
            self.authority.stop()

    async def _run_link(self, token: FencingToken) -> None:
        """Runs the link in the elected process and restarts it after any failure."""
        assert self.link is not None
        while True:
            try:
                await self.link.run()
            except Exception:
                log.exception("link_failed", cell=self.name)
            await self.ports.clock.sleep(limits.RECONNECT_MAX_S)

    async def _run_override_expiry(self, token: FencingToken) -> None:
        """Runs override expiry in the elected process. Times measured by another process are unknown here."""
        await self.informers.synced()
        self._override_expiry.reset()
        await self._override_expiry.run()

    async def _run_image_resolver(self, token: FencingToken) -> None:
        await self.informers.synced()
        registries = self._registries or AllowedRegistries()
        client = self.client_of("image-resolver")
        resolver = ImageResolver(
            client, self.informers.cache, registries, self.ports, token=token, open_secret=self._open_secret
        )
        await resolver.run()

    def _open_secret(self, tenant: str, name: str) -> Secret | None:
        item = self.objects.get(kind_of(Secret), tenant, name)
        try:
            return self.gate.sealer.open(item) if isinstance(item, Secret) else None
        except CannotOpen:
            return None

    async def _update_fleet_metrics(self) -> None:
        await self.informers.synced()
        while True:
            fleet_gauges.update_gauges(self.informers.cache, self.ports.clock.now())
            await self.ports.clock.sleep(FLEET_METRICS_EVERY_S)

    async def _compact(self) -> None:
        """Compacts history periodically. Revisions that stored Decisions need for replay are kept, up to a maximum."""
        while True:
            await self.ports.clock.sleep(COMPACT_EVERY_S)
            if not self.election.leading:
                continue
            needed = replay.oldest_revision_needed(self.objects.list(kind_of(Decision))[0])
            oldest = min(self.store.revision_back(HISTORY_REVISIONS), needed or self.store.head)
            oldest = max(oldest, self.store.revision_back(HISTORY_REVISIONS_MAX))
            if oldest > self.store.compacted:
                await self.store.compact(oldest)
