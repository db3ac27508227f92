"""The nodes one process pretends to be: their Node objects, their leases, and their own word about themselves.

The same contract as `registration` and `node_report` keep for one node, for thousands at once: leases are renewed in
pages, one call for up to `limits.LEASE_PAGE_NODES`; an epoch is used only after it was given; after a fence nothing is
registered before everything on the node has stopped. Nothing is remembered over a restart: a new process registers
every node anew, under a new epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from holdfast import __version__
from holdfast.agent.config import AgentConfig, merged_node, node_of
from holdfast.agent.decide import Lease
from holdfast.agent.reports import Reports
from holdfast.client.contract import Client
from holdfast.model import limits
from holdfast.model.errors import AlreadyExists, Conflict, Fault, NotFound
from holdfast.model.node import Node, NodeExecution
from holdfast.model.placement import Answer, RenewRequest, Result
from holdfast.model.reasons import Reason
from holdfast.model.writes import Create, SetStatus, Update, Write
from holdfast.runtime.backoff import Backoff, jittered_s
from holdfast.runtime.batches import batches
from holdfast.runtime.ports import Ports

_log = structlog.get_logger()


class HollowNode:
    """One of them. `running` counts what runs on it; `zombies` what runs though its claim is over."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.lease = Lease()
        self.stored: Node | None = None
        self.running = 0
        self.zombies = 0
        self._reconciled_epoch = 0
        self._told: NodeExecution | None = None
        self._told_uid = ""
        self._told_mono_s = 0.0

    @property
    def name(self) -> str:
        return self.config.name

    def word(self, *, listed: bool, now_mono_s: float) -> SetStatus | None:
        """What to report of the node now, or None when that is known well enough already."""
        if self.stored is None or self.lease.epoch == 0 or self.lease.fenced:
            return None
        if listed and self.zombies == 0:
            self._reconciled_epoch = self.lease.epoch
        reconciled = self._reconciled_epoch == self.lease.epoch
        told = self._told if self._told_uid == self.stored.uid else None
        if told is not None and (told.epoch, told.reconciled) == (self.lease.epoch, reconciled):
            # The count of running work is told seldom: every write of a Node costs binds that compare its revision.
            recently = now_mono_s - self._told_mono_s < limits.RESYNC_S
            if recently or told.running == self.running:
                return None
        block = NodeExecution(
            epoch=self.lease.epoch, reconciled=reconciled, running=self.running, agent_version=__version__
        )
        self._told, self._told_uid, self._told_mono_s = block, self.stored.uid, now_mono_s
        return SetStatus(kind="Node", key=self.stored.key, uid=self.stored.uid, blocks={"execution": block})


class HollowNodes:
    """`changed` is called for every node whose lease is another in a way that matters: given, fenced."""

    def __init__(
        self, configs: Sequence[AgentConfig], client: Client, reports: Reports, ports: Ports, *,
        changed: Callable[[HollowNode], None],
    ) -> None:  # fmt: skip
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

    def say(self, node: HollowNode) -> None:
        word = node.word(listed=self.listed, now_mono_s=self._clock.monotonic())
        if word is not None:
            self._reports.put(word)

    def now_listed(self) -> None:
        """The region has said what is bound: from now on a node that runs nothing it should not is reconciled."""
        self.listed = True
        for node in self.by_name.values():
            self.say(node)

    # The Node objects

    async def _keep_registered(self) -> None:
        backoff = Backoff(self._chance, first_s=limits.AGENT_RETRY_FIRST_S, max_s=limits.AGENT_RETRY_MAX_S)
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
        """Creates the Nodes that are not there, and brings the others up to the configuration."""
        listing = await self._client.list(Node)
        stored = {item.metadata.name: item for item in listing.items if item.metadata.name in self.by_name}
        writes: list[Write] = []
        for name, node in self.by_name.items():
            found = stored.get(name)
            wanted = node_of(node.config) if found is None else merged_node(node.config, found)
            if wanted is not None:
                writes.append(Create(wanted) if found is None else Update(wanted))
            elif found is not None:
                self._adopt(found)
        for some in batches(writes, limits.WRITES_JOINED):
            try:
                made = await self._client.commit(some)
            except (Conflict, AlreadyExists, NotFound):
                return await self._register()
            for item in made.objects:
                if isinstance(item, Node):
                    self._adopt(item)
        _log.info("nodes_registered", nodes=len(self.by_name), written=len(writes))

    def _adopt(self, stored: Node) -> None:
        node = self.by_name[stored.metadata.name]
        node.stored = stored
        fenced = stored.status.fence.fenced_epoch
        if fenced > node.lease.fenced_epoch:
            lease = msgspec.structs.replace(node.lease, fenced_epoch=fenced)
            node.lease = msgspec.structs.replace(lease, fenced=lease.fenced or lease.is_over(lease.epoch))
            if node.lease.fenced:
                self._changed(node)
        self.say(node)

    # Leases

    async def _keep_leases(self, nodes: list[HollowNode]) -> None:
        backoff = Backoff(self._chance, first_s=limits.AGENT_RETRY_FIRST_S, max_s=limits.NODE_RENEW_EVERY_S / 2)
        while True:
            try:
                asked = [node for node in nodes if self._may_renew(node)]
                answered = bool(asked) and await self._renew(asked)
            except (Fault, TimeoutError, OSError) as fault:
                _log.warning("renewals_failed", first=nodes[0].name, error=str(fault) or type(fault).__name__)
                answered = False
            if answered:
                backoff.reset()
                await self._clock.sleep(jittered_s(limits.NODE_RENEW_EVERY_S, self._chance))
            else:
                await self._clock.sleep(backoff.next_s())

    def _may_renew(self, node: HollowNode) -> bool:
        """Not before the Node exists, and after a fence not before nothing runs any more; then under a new epoch."""
        if node.stored is None:
            return False
        if node.lease.fenced:
            if node.running:
                return False
            node.lease = msgspec.structs.replace(node.lease, epoch=0, until_mono_s=0.0, fenced=False)
        return True

    async def _renew(self, nodes: list[HollowNode]) -> bool:
        sent_mono_s = self._clock.monotonic()
        request = RenewRequest(items=tuple(n.lease.renewal(n.name) for n in nodes))
        async with asyncio.timeout(limits.NODE_RENEW_EVERY_S):
            answers = await self._client.renew(request)
        heard = [self._heard(node, answer, sent_mono_s) for node, answer in zip(nodes, answers.answers, strict=True)]
        return all(heard)

    def _heard(self, node: HollowNode, answer: Answer, sent_mono_s: float) -> bool:
        lease = node.lease
        if answer.result is not Result.REJECTED:
            epoch = answer.epoch or lease.epoch
            until_mono_s = sent_mono_s + (answer.ttl_seconds or limits.NODE_LEASE_TTL_S)
            if lease.is_over(epoch):
                node.lease = msgspec.structs.replace(lease, epoch=epoch, until_mono_s=0.0, fenced=True)
                self._changed(node)
                return False
            lapsed = lease.until_mono_s <= self._clock.monotonic()
            lease = lease.with_tenures(answer.tenures, sent_mono_s) if answer.tenures or lease.tenures else lease
            renewed = lease.tenures != node.lease.tenures
            node.lease = msgspec.structs.replace(lease, epoch=epoch, until_mono_s=until_mono_s)
            if epoch != lease.epoch or lapsed or renewed:
                self._changed(node)
            self.say(node)
            return True
        _log.info("renewal_refused", node=node.name, epoch=lease.epoch, reason=answer.reason)
        if answer.reason == Reason.NODE_FENCED:
            fenced = max(lease.fenced_epoch, lease.epoch)
            node.lease = msgspec.structs.replace(lease, fenced_epoch=fenced, until_mono_s=0.0, fenced=True)
            self._changed(node)
        elif answer.reason == Reason.NODE_GONE:
            node.stored = None
            self._missing.set()
        return False
