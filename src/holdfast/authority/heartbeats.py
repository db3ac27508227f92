"""Lease renewals, batched: one commit for all renewals since the last flush. Also fences expired leases.

- A renewal is answered only after its commit.
- Registration (epoch 0) issues the next epoch. Any other epoch than the newest unfenced one is refused.
- Fencing and renewing are serialized, so neither overtakes the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
import structlog

from holdfast.authority import records, restore_records
from holdfast.authority.batching import WaitingCall, complete_together, fail
from holdfast.authority.commit_rounds import rejected
from holdfast.authority.commits import Commits, CommitTest, not_leader_error, stored
from holdfast.authority.lease_book import page_name
from holdfast.authority.state import LEASE, LEASE_PAGE, NODE, AuthorityState
from holdfast.foundation import metrics
from holdfast.foundation.batches import batches
from holdfast.gate import audit
from holdfast.model import limits, tenure
from holdfast.model.core import Lease
from holdfast.model.election_term import INCARNATION_TERM
from holdfast.model.errors import Conflict, Refused
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import FenceBlock, Node
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, RenewItem
from holdfast.model.principal import Principal
from holdfast.model.reasons import Reason
from holdfast.model.times import micro_text, seconds_text
from holdfast.store.contract import Put, Remove

# Delay in which node lease renewals are batched into one commit. The agent's lease counts from sending, so this delay
# is lost to it.
LEASE_BATCH_DELAY_S = 1.0
# Upper end of the batching delay as a fraction of the node lease, for short leases.
LEASE_BATCH_DELAY_FRACTION = 1 / 15
# Batching delay while a node registers. Shorter, because a new node can do nothing before the response.
REGISTRATION_BATCH_DELAY_S = 0.25
# How long the lease record of a deleted node is kept after its last renewal. Until then a late agent finds its epoch.
ENDED_LEASE_RETENTION_S = 24 * 3600.0
# Highest fenced epoch accepted from an agent. A higher one is cut to it, so that a broken agent cannot exhaust epochs.
REPORTED_EPOCH_MAX = 2**48

_log = structlog.get_logger()

FENCES_PER_COMMIT = limits.BATCH_WRITES_MAX // 2
"""Nodes fenced per commit. Each may need its own lease page in the same transaction, hence half of the maximum."""

_Items = tuple[RenewItem, ...]
"""The renewals of one call; there may be hundreds."""


class Heartbeats:
    def __init__(self, state: AuthorityState, commits: Commits, caller: Principal) -> None:
        self._state = state
        self._commits = commits
        self._caller = caller
        self._waiting: list[WaitingCall[_Items, list[PlacementResult]]] = []
        self._arrived = asyncio.Event()
        self._lock = asyncio.Lock()

    async def renew(self, items: Iterable[RenewItem]) -> list[PlacementResult]:
        """Queues the renewals; returns their results after the next flush."""
        call: WaitingCall[_Items, list[PlacementResult]] = WaitingCall(
            tuple(items), asyncio.get_running_loop().create_future()
        )
        self._waiting.append(call)
        self._arrived.set()
        return await call.response

    def fail_pending(self) -> None:
        """Fails all waiting calls, because this process is no longer the authority."""
        waiting, self._waiting = self._waiting, []
        fail(waiting, not_leader_error())

    async def wait_for_renewals(self) -> float:
        """Waits for the first renewal. Returns the batching delay: short if a node registers, because it cannot do
        anything before the response."""
        await self._arrived.wait()
        if any(item.epoch == 0 for call in self._waiting for item in call.request):
            return REGISTRATION_BATCH_DELAY_S
        return min(LEASE_BATCH_DELAY_S, self._state.leases.ttl_s * LEASE_BATCH_DELAY_FRACTION)

    async def flush(self) -> None:
        """Commits all waiting renewals and completes their calls."""
        async with self._lock:
            self._arrived.clear()
            calls, self._waiting = self._waiting, []
            if calls:
                await complete_together(calls, self._renewed)

    async def _renewed(self, calls: Sequence[_Items]) -> list[list[PlacementResult]]:
        for _ in range(limits.COMMIT_ROUNDS_MAX):
            await self._commits.wait_ready()
            leases, answers = self._next_leases(item for items in calls for item in items)
            try:
                await self.write_leases(leases)
            except Conflict as conflict:
                await self._commits.wait_published(conflict)
                continue
            remaining = iter(answers)
            return [list(islice(remaining, len(items))) for items in calls]
        raise Conflict("lease pages: changed by another writer too often; next: renew again")

    def _next_leases(self, items: Iterable[RenewItem]) -> tuple[dict[str, NodeLease | None], list[PlacementResult]]:
        state, now = self._state, self._state.now()
        before = restore_records.epochs_of_previous_incarnations(state.get(restore_records.TERM, "", INCARNATION_TERM))
        leases: dict[str, NodeLease | None] = {}
        answers = []
        for item in items:
            lease = state.leases.by_node.get(item.node)
            current = leases.get(item.node) or (lease.lease if lease is not None else None)
            epoch_floor = max(
                self._epoch_floor(item.node, before), 0 if item.epoch else min(item.fenced_epoch, REPORTED_EPOCH_MAX)
            )
            decided = state.leases.next_lease(item.node, item.epoch, current, epoch_floor, now)
            if not isinstance(decided, Refused) and item.epoch and self._was_removed(item.node):
                message = f"node {item.node}: was removed; next: create the node again, or stop its agent"
                decided = Refused(Reason.NODE_NOT_FOUND, message, {"node": item.node, "epoch": item.epoch})
            if isinstance(decided, Refused):
                answers.append(rejected(decided))
                continue
            leases[item.node] = decided
            answers.append(
                PlacementResult(
                    result=PlacementOutcome.ACCEPTED,
                    node=item.node,
                    epoch=decided.epoch,
                    ttl_seconds=decided.ttl_s,
                    tenures=self._tenures(item.node) if item.node in state.ledger.tenured_claims else {},
                )
            )
        return leases, answers

    def _tenures(self, node: str) -> dict[str, float]:
        """Remaining run time of the node's claims of scope Global, from the tenure that lists them, by Binding uid.

        A tenure inherited from a previous authority is not passed on, because its age is unknown.
        """
        lease: Lease | None = self._state.get(LEASE, tenure.NAMESPACE, tenure.NAME)
        if lease is not None and lease.revision <= self._state.inherited_tenure_revision:
            return {}
        remaining_s = self._state.tenure_left_s(lease) if lease is not None else 0.0
        if lease is None or remaining_s <= 0:
            return {}
        covered = tenure.lease_ordinals(lease)
        found: dict[str, float] = {}
        for claim in self._state.ledger.tenured_claims[node].values():
            replica = self._state.replica(claim.namespace, claim.replica)
            binding = self._state.binding(claim.namespace, claim.name)
            if replica is None or binding is None or replica.uid != claim.replica_uid:
                continue
            assignment = Key(claim.namespace, replica.spec.assignment)
            if tenure.covers_ordinal(covered, assignment, replica.spec.ordinal):
                found[binding.uid] = remaining_s
        return found

    def _was_removed(self, name: str) -> bool:
        """Whether the node was removed under this authority. Its agent must be refused: otherwise it would renew the
        lease forever, and the node's Bindings could be neither stopped nor released."""
        return self._state.node(name) is None and name in self._state.ledger.nodes

    def _epoch_floor(self, name: str, before: int) -> int:
        """The highest epoch of the node that must not be issued again; `before` covers previous incarnations."""
        node = self._state.node(name)
        account = self._state.ledger.nodes.get(name)
        claimed = 0
        if account is not None and self._state.leases.epoch(name) == 0:
            claimed = max((c.node_epoch for c in account.claims.values()), default=0)
        fenced = node.status.fence.fenced_epoch if node is not None else 0
        return max(claimed, fenced, before)

    async def write_leases(self, leases: dict[str, NodeLease | None]) -> None:
        """Writes these leases in one transaction; None removes a node's lease."""
        if not leases:
            return
        book = self._state.leases
        page_of, compares, writes = self._page_writes(leases)
        first = writes[0]
        assert isinstance(first, Put)
        expected = first.attached.spec.leases
        probe = stored(LEASE_PAGE, first.attached.metadata, lambda found: found.spec.leases == expected)
        try:
            # A heartbeat is not a decision, so it has no audit record.
            await self._commits.commit(compares, writes, (), probe)
        finally:
            book.recount()
        self._record(leases, page_of)

    def _page_writes(
        self, leases: dict[str, NodeLease | None]
    ) -> tuple[dict[str, int], dict[str, int], list[Put | Remove]]:
        """The LeasePage number of each node, the revision to compare for each page, and the writes of the pages."""
        book, now = self._state.leases, self._state.now()
        by_page: dict[int, dict[str, NodeLease | None]] = {}
        page_of: dict[str, int] = {}
        for node, lease in leases.items():
            page = book.page_for(node)
            page_of[node] = page
            by_page.setdefault(page, {})[node] = lease
            if node not in book.by_node and lease is not None:
                # Reserve the entry at once, so that many new nodes of one flush do not overfill a page.
                book.reserve_room(page)
        compares: dict[str, int] = {}
        writes: list[Put | Remove] = []
        for page, changed in sorted(by_page.items()):
            put = self._page(page, changed, now)
            old = self._state.get(LEASE_PAGE, "", page_name(page))
            compares[put.key] = old.revision if old is not None else 0
            writes.append(put)
        return page_of, compares, writes

    def _record(self, leases: dict[str, NodeLease | None], page_of: dict[str, int]) -> None:
        book, monotonic_s = self._state.leases, self._state.ports.clock.monotonic()
        for node, lease in leases.items():
            if lease is None:
                book.forget(node)
            else:
                book.record(node, page_of[node], lease, monotonic_s)

    def _page(self, page: int, changed: dict[str, NodeLease | None], now: float) -> Put:
        old: LeasePage | None = self._state.get(LEASE_PAGE, "", page_name(page))
        leases = dict(old.spec.leases) if old is not None else {}
        for node, lease in changed.items():
            if lease is None:
                leases.pop(node, None)
            else:
                leases[node] = lease
        meta = (
            records.without_revision(old.metadata)
            if old is not None
            else ObjectMeta(
                name=page_name(page),
                uid=self._state.ports.ids.uid(),
                generation=1,
                creation_timestamp=seconds_text(now),
            )
        )
        return records.put_object(LEASE_PAGE, LeasePage(meta, LeasePageSpec(page, leases)))

    async def fence(self) -> None:
        """Fences overdue nodes, ends leases of removed nodes, and drops leases that ended long ago."""
        async with self._lock:
            await self._fence_overdue()

    async def _fence_overdue(self) -> None:
        state = self._state
        now, monotonic_s = state.now(), state.ports.clock.monotonic()
        ending: dict[str, NodeLease | None] = {}
        fencing: list[Node] = []
        for name in state.leases.overdue(monotonic_s):
            node, lease = state.node(name), state.leases.by_node[name].lease
            if node is not None and node.status.fence.fenced_epoch < lease.epoch:
                fencing.append(node)
            else:
                ending[name] = _ended(lease)
        for name, entry in state.leases.by_node.items():
            if now - entry.lease.renewed_at_s > ENDED_LEASE_RETENTION_S and entry.ended and state.node(name) is None:
                ending[name] = None
        if ending:
            await self.write_leases(ending)
        for some in batches(fencing, FENCES_PER_COMMIT):
            await self._fence(some, now)

    async def _fence(self, nodes: list[Node], now: float) -> None:
        """Fences many nodes in one commit; nodes that changed meanwhile are left for the next tick.

        The commit also ends their leases. A fence stored only on the Node would be lost with it, and an agent that
        recreates the Node could renew the fenced epoch.
        """
        remaining = nodes
        for _ in range(limits.COMMIT_ROUNDS_MAX):
            if not remaining:
                return
            await self._commits.wait_ready()
            puts = [self._fenced(node, now) for node in remaining]
            ended: dict[str, NodeLease | None] = {
                n.metadata.name: _ended(self._state.leases.by_node[n.metadata.name].lease) for n in remaining
            }
            page_of, compares, pages = self._page_writes(ended)
            compares |= {NODE.store_key("", n.metadata.name): n.revision for n in remaining}
            entries = [audit.AuditEntry("fence", NODE.name, n.metadata.name, "", n.uid, n.revision) for n in remaining]
            epoch = puts[0].attached.status.fence.fenced_epoch
            probe = stored(NODE, remaining[0].metadata, _fenced_at(epoch))
            writes: list[Put | Remove] = [*puts, *pages]
            try:
                await self._commits.commit(
                    compares, writes, (audit.commit_record(self._caller, now, "fence", entries),), probe
                )
            except Conflict as conflict:
                key = conflict.facts.get("key")
                if key in compares and key not in {put.key for put in puts}:
                    await self._commits.wait_published(conflict)
                    continue
                remaining = [n for n in remaining if NODE.store_key("", n.metadata.name) != key] if key else []
                continue
            self._record(ended, page_of)
            metrics.AUTHORITY_FENCES.inc(len(remaining))
            for node in remaining:
                _log.warning("node_fenced", node=node.metadata.name, epoch=self._state.leases.epoch(node.metadata.name))
            return

    def _fenced(self, node: Node, now: float) -> Put:
        block = FenceBlock(
            fenced_epoch=self._state.leases.epoch(node.metadata.name),
            at=micro_text(now),
            reason=Reason.LEASE_EXPIRED.value,
        )
        return records.status_put(NODE, node, msgspec.structs.replace(node.status, fence=block))


def _ended(lease: NodeLease) -> NodeLease:
    return NodeLease(lease.epoch, lease.renewed_at_s, 0.0)


def _fenced_at(epoch: int) -> CommitTest:
    return lambda found: bool(found.status.fence.fenced_epoch >= epoch)
