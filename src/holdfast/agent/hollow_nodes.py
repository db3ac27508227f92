"""Hollow nodes: their Node objects, leases and node reports.

The same contract as `registration` and `node_report`, for thousands of nodes: leases are renewed in pages of up to
LEASE_PAGE_NODES per call; an epoch is used only after the region granted it; after a fence a node is registered again
only when all its tasks have stopped. Nothing is persisted: a new process registers every node under a new epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from holdfast import __version__
from holdfast.agent.config import AgentConfig, merged_node, node_from_config
from holdfast.agent.limits import AGENT_RETRY_FIRST_S, AGENT_RETRY_MAX_S
from holdfast.agent.reports import ReportQueue
from holdfast.agent.task_decision import LeaseState
from holdfast.client.contract import Client
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.batches import batches
from holdfast.foundation.ports import Ports
from holdfast.model import limits
from holdfast.model.errors import AlreadyExists, Conflict, Fault, NotFound
from holdfast.model.node import Node, NodeExecution
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, RenewRequest
from holdfast.model.reasons import Reason
from holdfast.model.writes import Create, SetStatus, Update, Write

_log = structlog.get_logger()


class HollowNode:
    """`running` counts its tasks; `zombies` counts tasks whose claim has ended."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.lease = LeaseState()
        self.stored: Node | None = None
        self.running = 0
        self.zombies = 0
        self._reconciled_epoch = 0
        self._reported: NodeExecution | None = None
        self._reported_uid = ""
        self._reported_mono_s = 0.0

    @property
    def name(self) -> str:
        return self.config.name

    def next_report(self, *, listed: bool, now_mono_s: float) -> SetStatus | None:
        """The node report to send now, or None if the region's copy is recent enough."""
        if self.stored is None or self.lease.epoch == 0 or self.lease.fenced:
            return None
        if listed and self.zombies == 0:
            self._reconciled_epoch = self.lease.epoch
        reconciled = self._reconciled_epoch == self.lease.epoch
        last = self._reported if self._reported_uid == self.stored.uid else None
        if last is not None and (last.epoch, last.reconciled) == (self.lease.epoch, reconciled):
            # The task count is reported rarely: every write of a Node fails concurrent binds that compare its revision.
            recently = now_mono_s - self._reported_mono_s < limits.RESYNC_S
            if recently or last.running == self.running:
                return None
        block = NodeExecution(
            epoch=self.lease.epoch, reconciled=reconciled, running=self.running, agent_version=__version__
        )
        self._reported, self._reported_uid, self._reported_mono_s = block, self.stored.uid, now_mono_s
        return SetStatus(kind="Node", key=self.stored.key, uid=self.stored.uid, blocks={"execution": block})


class HollowNodes:
    """`changed` is called for every node whose lease was granted or fenced."""

    def __init__(
        self,
        configs: Sequence[AgentConfig],
        client: Client,
        reports: ReportQueue,
        ports: Ports,
        *,
        changed: Callable[[HollowNode], None],
    ) -> None:
        self.by_name = {config.name: HollowNode(config) for config in configs}
        self.listed = False
        self._client = client
        self._reports = reports
        self._clock = ports.clock
        self._chance = ports.random
        self._changed = changed
        self._missing = asyncio.Event()
        self._missing.set()

    async def run(self) -> None:
        """Registers and renews until cancelled."""
        nodes = list(self.by_name.values())
        size = limits.LEASE_PAGE_NODES
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_registered())
            for start in range(0, len(nodes), size):
                group.create_task(self._keep_leases(nodes[start : start + size]))

    def report(self, node: HollowNode) -> None:
        node_report = node.next_report(listed=self.listed, now_mono_s=self._clock.monotonic())
        if node_report is not None:
            self._reports.put(node_report)

    def mark_listed(self) -> None:
        """The Bindings are known: from now on a node without zombies is reconciled."""
        self.listed = True
        for node in self.by_name.values():
            self.report(node)

    # The Node objects

    async def _keep_registered(self) -> None:
        backoff = Backoff(self._chance, first_s=AGENT_RETRY_FIRST_S, max_s=AGENT_RETRY_MAX_S)
        while True:
            await self._missing.wait()
            try:
                await self._register()
            except (Fault, TimeoutError, OSError) as fault:
                _log.warning("registration_failed", error=str(fault) or type(fault).__name__)
                await self._clock.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._missing.clear()

    async def _register(self) -> None:
        """Creates missing Nodes and updates the others to the configuration."""
        listing = await self._client.list(Node)
        stored = {item.metadata.name: item for item in listing.items if item.metadata.name in self.by_name}
        writes: list[Write] = []
        for name, node in self.by_name.items():
            found = stored.get(name)
            wanted = node_from_config(node.config) if found is None else merged_node(node.config, found)
            if wanted is not None:
                writes.append(Create(wanted) if found is None else Update(wanted))
            elif found is not None:
                self._store_node(found)
        for some in batches(writes, limits.BATCH_WRITES_MAX):
            try:
                made = await self._client.commit(some)
            except (Conflict, AlreadyExists, NotFound):
                return await self._register()
            for item in made.objects:
                if isinstance(item, Node):
                    self._store_node(item)
        _log.info("nodes_registered", nodes=len(self.by_name), written=len(writes))

    def _store_node(self, stored: Node) -> None:
        node = self.by_name[stored.metadata.name]
        node.stored = stored
        fenced = stored.status.fence.fenced_epoch
        if fenced > node.lease.fenced_epoch:
            lease = msgspec.structs.replace(node.lease, fenced_epoch=fenced)
            node.lease = msgspec.structs.replace(lease, fenced=lease.fenced or lease.is_fenced_epoch(lease.epoch))
            if node.lease.fenced:
                self._changed(node)
        self.report(node)

    # Leases

    async def _keep_leases(self, nodes: list[HollowNode]) -> None:
        backoff = Backoff(self._chance, first_s=AGENT_RETRY_FIRST_S, max_s=limits.NODE_RENEW_EVERY_S / 2)
        while True:
            try:
                renewable = [node for node in nodes if self._can_renew(node)]
                any_renewed = bool(renewable) and await self._renew(renewable)
            except (Fault, TimeoutError, OSError) as fault:
                _log.warning("lease_renewals_failed", first=nodes[0].name, error=str(fault) or type(fault).__name__)
                any_renewed = False
            if any_renewed:
                backoff.reset()
                await self._clock.sleep(jittered_s(limits.NODE_RENEW_EVERY_S, self._chance))
            else:
                await self._clock.sleep(backoff.next_s())

    def _can_renew(self, node: HollowNode) -> bool:
        """Not before the Node exists; after a fence not before its tasks have stopped, and then under a new epoch."""
        if node.stored is None:
            return False
        if node.lease.fenced:
            if node.running:
                return False
            node.lease = msgspec.structs.replace(node.lease, epoch=0, expires_mono_s=0.0, fenced=False)
        return True

    async def _renew(self, nodes: list[HollowNode]) -> bool:
        sent_mono_s = self._clock.monotonic()
        request = RenewRequest(items=tuple(n.lease.renewal(n.name) for n in nodes))
        async with asyncio.timeout(limits.NODE_RENEW_EVERY_S):
            response = await self._client.renew(request)
        renewed = [
            self._apply_response(node, outcome, sent_mono_s)
            for node, outcome in zip(nodes, response.results, strict=True)
        ]
        return all(renewed)

    def _apply_response(self, node: HollowNode, outcome: PlacementResult, sent_mono_s: float) -> bool:
        lease = node.lease
        if outcome.result is not PlacementOutcome.REJECTED:
            epoch = outcome.epoch or lease.epoch
            until_mono_s = sent_mono_s + (outcome.ttl_seconds or limits.NODE_LEASE_TTL_S)
            if lease.is_fenced_epoch(epoch):
                node.lease = msgspec.structs.replace(lease, epoch=epoch, expires_mono_s=0.0, fenced=True)
                self._changed(node)
                return False
            expired = lease.expires_mono_s <= self._clock.monotonic()
            lease = lease.with_tenures(outcome.tenures, sent_mono_s) if outcome.tenures or lease.tenures else lease
            renewed = lease.tenures != node.lease.tenures
            node.lease = msgspec.structs.replace(lease, epoch=epoch, expires_mono_s=until_mono_s)
            if epoch != lease.epoch or expired or renewed:
                self._changed(node)
            self.report(node)
            return True
        _log.info("renewal_refused", node=node.name, epoch=lease.epoch, reason=outcome.reason)
        if outcome.reason == Reason.NODE_FENCED:
            fenced = max(lease.fenced_epoch, lease.epoch)
            node.lease = msgspec.structs.replace(lease, fenced_epoch=fenced, expires_mono_s=0.0, fenced=True)
            self._changed(node)
        elif outcome.reason == Reason.NODE_NOT_FOUND:
            node.stored = None
            self._missing.set()
        return False
