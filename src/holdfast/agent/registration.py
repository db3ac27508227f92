"""The node's membership: its Node object, its lease, and re-registration after a fence.

- The lease is measured from when the acknowledged renewal was sent.
- An epoch is persisted before it is used.
- After a fence the node registers again only when all its tasks have stopped.
- While tasks run here, a cell of another identity gets no obedience and gives no lease: it may have lost the region's
  records. A node without tasks follows any cell of its region.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from holdfast.agent.config import AgentConfig, merged_node, node_from_config
from holdfast.agent.limits import AGENT_CALL_TIMEOUT_S, AGENT_RESYNC_S, AGENT_RETRY_FIRST_S
from holdfast.agent.persisted_state import StateStore
from holdfast.agent.task_decision import LeaseState
from holdfast.client.contract import Client
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.ports import Ports
from holdfast.model import limits
from holdfast.model.errors import AlreadyExists, Conflict, Fault, StaleToken
from holdfast.model.node import Node
from holdfast.model.placement_api import PlacementOutcome, PlacementResponse, PlacementResult, RenewRequest
from holdfast.model.reasons import Reason
from holdfast.model.writes import Create, Update

_log = structlog.get_logger()

NODE_WRITE_ATTEMPTS = 8
"""Attempts of one registration to write the Node after lost races. After that, the next turn tries again."""


class Registration:
    """`changed` is called on every change of the lease; `quiesce` returns when no task runs on the node; `active`
    counts the tasks that run now."""

    def __init__(
        self,
        config: AgentConfig,
        client: Client,
        memory: StateStore,
        ports: Ports,
        *,
        changed: Callable[[], None],
        quiesce: Callable[[], Awaitable[None]],
        active: Callable[[], int],
    ) -> None:
        self._config = config
        self._client = client
        self._memory = memory
        self._clock = ports.clock
        self._chance = ports.random
        self._backoff = Backoff(ports.random, first_s=AGENT_RETRY_FIRST_S, max_s=limits.NODE_RENEW_EVERY_S / 2)
        self._changed = changed
        self._quiesce = quiesce
        self._active = active
        facts = memory.load()
        self.lease = LeaseState(
            epoch=facts.epoch,
            fenced_epoch=facts.fenced_epoch,
            expires_mono_s=facts.lease_until_mono_s,
            fenced=0 < facts.epoch <= facts.fenced_epoch,
        )
        self._incarnation = facts.incarnation
        """Newest cell incarnation seen. A lease from an older incarnation is void."""
        self._identity = facts.identity
        """Identity of the region's cell; empty before the first response."""
        self.node: Node | None = None
        self.node_read_mono_s = 0.0
        """When `node` was read."""
        self._reread_mono_s = 0.0
        """When to read the Node again: it may have been deleted, and an idle agent has no watch on it."""

    async def run(self) -> None:
        while True:
            try:
                if self.lease.fenced:
                    await self._register_anew()
                if self.node is None or self._clock.monotonic() >= self._reread_mono_s:
                    await self._ensure_node()
                    again_s = jittered_s(AGENT_RESYNC_S, self._chance)
                    self._reread_mono_s = self._clock.monotonic() + again_s
                if self.lease.fenced:
                    continue  # the Node just read is fenced
                renewed = await self._renew()
            except (Fault, TimeoutError, OSError) as fault:
                _log.warning("renewal_failed", node=self._config.name, error=str(fault) or type(fault).__name__)
                renewed = False
            if renewed:
                self._backoff.reset()
                await self._clock.sleep(jittered_s(limits.NODE_RENEW_EVERY_S, self._chance))
            elif not self.lease.fenced:
                await self._clock.sleep(self._backoff.next_s())

    async def _ensure_node(self) -> None:
        """Creates the Node, or updates it to the configuration without changing fields that operators set."""
        for _ in range(NODE_WRITE_ATTEMPTS):
            async with asyncio.timeout(AGENT_CALL_TIMEOUT_S):
                stored = await self._client.get(Node, self._config.name)
                wanted = node_from_config(self._config) if stored is None else merged_node(self._config, stored)
                if wanted is None:
                    self._adopt_node(stored)
                    return
                try:
                    write = Create(wanted) if stored is None else Update(wanted)
                    committed = await self._client.commit([write])
                except (Conflict, AlreadyExists):
                    continue
            made = committed.objects[0]
            self._adopt_node(made if isinstance(made, Node) else None)
            _log.info("node_registered", node=self._config.name, created=stored is None)
            return
        raise Conflict(f"node {self._config.name}: changed by another writer during every attempt to register it")

    def _adopt_node(self, node: Node | None) -> None:
        self.node, self.node_read_mono_s = node, self._clock.monotonic()
        fenced = node.status.fence.fenced_epoch if node is not None else 0
        if fenced > self.lease.fenced_epoch:
            lease = msgspec.structs.replace(self.lease, fenced_epoch=fenced)
            self._set(msgspec.structs.replace(lease, fenced=lease.fenced or lease.is_fenced_epoch(lease.epoch)))

    async def _renew(self) -> bool:
        sent_mono_s = self._clock.monotonic()
        request = RenewRequest(items=(self.lease.renewal(self._config.name),))
        async with asyncio.timeout(limits.NODE_RENEW_EVERY_S):  # leaves time for another attempt
            response = await self._client.renew(request)
        self._check_cell(response)
        return self._apply_response(response.results[0], sent_mono_s)

    def _check_cell(self, response: PlacementResponse) -> None:
        """Raises if the response comes from a cell that this node must not obey."""
        if response.identity not in ("", self._identity):
            self._check_identity(response)
            if self._identity:
                self._incarnation = 0  # incarnations of different cells cannot be compared
            self._identity = response.identity
        if 0 < response.incarnation < self._incarnation:
            highest, found = self._incarnation, response.incarnation
            _log.error("stale_cell_incarnation_rejected", node=self._config.name, highest=highest, found=found)
            raise StaleToken(
                f"region {self._config.region}: response from a cell that was replaced by a restore (expected "
                f"incarnation {self._incarnation}, found {response.incarnation}); next: stop the process that still "
                "serves the old data"
            )
        self._incarnation = max(self._incarnation, response.incarnation)

    def _check_identity(self, response: PlacementResponse) -> None:
        """Raises if tasks run here and the response comes from another cell than before: a fence by a cell that lost
        the region's records proves nothing, so non-exclusive tasks keep running. Exclusive ones end with the lease,
        which is not renewed.

        A node without tasks has nothing to lose. It may have joined while a mistaken cell served, and must then follow
        the restored one."""
        if not self._identity or response.confirms_deletion:
            return
        facts = {"expected": self._identity, "found": response.identity}
        if not self._active():
            _log.warning("other_cell_followed", node=self._config.name, **facts)
            return
        _log.error("other_cell_rejected", node=self._config.name, **facts)
        raise StaleToken(
            f"region {self._config.region}: another cell than the one this node has obeyed (expected identity "
            f"{self._identity}, found {response.identity}); the node keeps its tasks and takes no new ones; next: "
            f"restore the region from its newest backup, or accept the new cell: holdfast override create "
            f'ConfirmDeletion --region {self._config.region} --reason "…"',
            facts={**facts, "reason": Reason.REGION_CELL_REPLACED.value},
        )

    def _apply_response(self, outcome: PlacementResult, sent_mono_s: float) -> bool:
        if outcome.result is not PlacementOutcome.REJECTED:
            ttl_s = outcome.ttl_seconds or limits.NODE_LEASE_TTL_S
            epoch = outcome.epoch or self.lease.epoch
            metrics.AGENT_LEASE_REMAINING.set(max(0.0, self.lease.expires_mono_s - self._clock.monotonic()))
            lease = self.lease.with_tenures(outcome.tenures, sent_mono_s)
            if lease.is_fenced_epoch(epoch):
                # Nothing may run under a fenced epoch. The next registration gets a higher one.
                self._set(msgspec.structs.replace(lease, epoch=epoch, expires_mono_s=0.0, fenced=True))
                return False
            self._set(msgspec.structs.replace(lease, epoch=epoch, expires_mono_s=sent_mono_s + ttl_s, fenced=False))
            return True
        _log.warning(
            "renewal_refused",
            node=self._config.name,
            epoch=self.lease.epoch,
            reason=outcome.reason,
            message=outcome.message,
        )
        if outcome.reason == Reason.NODE_FENCED:
            fenced = max(self.lease.fenced_epoch, self.lease.epoch)
            self._set(msgspec.structs.replace(self.lease, fenced_epoch=fenced, expires_mono_s=0.0, fenced=True))
        elif outcome.reason == Reason.NODE_NOT_FOUND:
            self.node = None
        return False

    async def _register_anew(self) -> None:
        """Stops all tasks first: under a new epoch the region treats the node as empty until it reports otherwise."""
        self._changed()
        await self._quiesce()
        self.node = None
        self._set(msgspec.structs.replace(self.lease, epoch=0, expires_mono_s=0.0, fenced=False))

    def _set(self, lease: LeaseState) -> None:
        """An epoch takes effect only once it is persisted. On a full disk the lease end may go unpersisted."""
        facts = msgspec.structs.replace(
            self._memory.load(),
            epoch=lease.epoch,
            fenced_epoch=lease.fenced_epoch,
            lease_until_mono_s=lease.expires_mono_s,
            incarnation=self._incarnation,
            identity=self._identity,
        )
        lasts = facts.durable_fields != self._memory.load().durable_fields
        try:
            self._memory.save(facts)
        except OSError as error:
            if lasts:
                raise
            _log.warning("lease_persist_failed", node=self._config.name, error=str(error))
        self.lease = lease
        self._changed()
