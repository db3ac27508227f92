"""Renewals, gathered and made durable together: one commit for all that came since the last one.

An answer is sent only after that commit. Registering gives out the next epoch; whatever is not the newest epoch of its
node, or was fenced, is refused. Fencing and renewing take turns, so that neither can overtake the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
import structlog

from holdfast.authority import records, restore_records
from holdfast.authority.batching import WaitingCall, answer_together, fail
from holdfast.authority.commit_rounds import rejected
from holdfast.authority.commits import Commits, CommitTest, not_leader_error, stored
from holdfast.authority.lease_book import page_name
from holdfast.authority.state import LEASE, LEASE_PAGE, NODE, AuthorityState
from holdfast.foundation import metrics
from holdfast.foundation.batches import batches
from holdfast.gate import audit
from holdfast.gate.principal import Principal
from holdfast.model import limits, tenure
from holdfast.model.core import Lease
from holdfast.model.election_term import INCARNATION_TERM
from holdfast.model.errors import Conflict, Refused
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import FenceBlock, Node
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, RenewItem
from holdfast.model.reasons import Reason
from holdfast.model.times import micro_text, seconds_text
from holdfast.store.contract import Put, Remove

_log = structlog.get_logger()

FENCES_PER_COMMIT = limits.BATCH_WRITES_MAX // 2
"""Each with the page its lease is on, which may be another for every node."""

_Items = tuple[RenewItem, ...]
"""Of one call: hundreds of nodes may renew in it."""


class Heartbeats:
    def __init__(self, state: AuthorityState, commits: Commits, who: Principal) -> None:
        self._state = state
        self._commits = commits
        self._who = who
        self._waiting: list[WaitingCall[_Items, list[PlacementResult]]] = []
        self._arrived = asyncio.Event()
        self._turn = asyncio.Lock()

    async def renew(self, items: Iterable[RenewItem]) -> list[PlacementResult]:
        """Answers after the next flush."""
        asked: WaitingCall[_Items, list[PlacementResult]] = WaitingCall(tuple(items), asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._arrived.set()
        return await asked.answer

    def fail_pending(self) -> None:
        """This is no longer the authority: whoever waits must ask the one that is."""
        waiting, self._waiting = self._waiting, []
        fail(waiting, not_leader_error())

    async def wait_for_renewals(self) -> float:
        """Waits until there is something to flush. Answers how long others may gather beside it: a renewal has time,
        while a node that registers can do nothing before it is answered."""
        await self._arrived.wait()
        if any(item.epoch == 0 for asked in self._waiting for item in asked.request):
            return limits.REGISTRATION_BATCH_DELAY_S
        return min(limits.LEASE_BATCH_DELAY_S, self._state.leases.ttl_s * limits.LEASE_BATCH_DELAY_FRACTION)

    async def flush(self) -> None:
        """Commits everything that waits, and answers it."""
        async with self._turn:
            self._arrived.clear()
            taken, self._waiting = self._waiting, []
            if taken:
                await answer_together(taken, self._renewed)

    async def _renewed(self, calls: Sequence[_Items]) -> list[list[PlacementResult]]:
        for _ in range(limits.COMMIT_ROUNDS_MAX):
            await self._commits.wait_ready()
            leases, answers = self._judge(item for items in calls for item in items)
            try:
                await self.write_leases(leases)
            except Conflict as conflict:
                await self._commits.wait_published(conflict)
                continue
            left = iter(answers)
            return [list(islice(left, len(items))) for items in calls]
        raise Conflict("the lease pages kept changing under the authority: renew again")

    def _judge(self, items: Iterable[RenewItem]) -> tuple[dict[str, NodeLease | None], list[PlacementResult]]:
        state, now = self._state, self._state.now()
        before = restore_records.epochs_of_previous_incarnations(state.get(restore_records.TERM, "", INCARNATION_TERM))
        leases: dict[str, NodeLease | None] = {}
        answers = []
        for item in items:
            held = state.leases.by_node.get(item.node)
            known = leases.get(item.node) or (held.lease if held is not None else None)
            floor = max(self._floor(item.node, before), 0 if item.epoch else min(item.fenced_epoch, limits.REPORTED_EPOCH_MAX))
            judged = state.leases.next_lease(item.node, item.epoch, known, floor, now)
            if not isinstance(judged, Refused) and item.epoch and self._was_removed(item.node):
                message = f"node {item.node} was removed: create it again, or stop its agent"
                judged = Refused(Reason.NODE_NOT_FOUND, message, {"node": item.node, "epoch": item.epoch})
            if isinstance(judged, Refused):
                answers.append(rejected(judged))
                continue
            leases[item.node] = judged
            answers.append(
                PlacementResult(
                    result=PlacementOutcome.ACCEPTED, node=item.node, epoch=judged.epoch, ttl_seconds=judged.ttl_s,
                    tenures=self._tenures(item.node) if item.node in state.ledger.tenured_claims else {},
                )
            )  # fmt: skip
        return leases, answers

    def _tenures(self, node: str) -> dict[str, float]:
        """How long each of the node's claims of scope Global may run on: what is left of the tenure that names it.

        One from before this authority is not passed on; what agents were given of it lasts until its time.
        """
        held: Lease | None = self._state.get(LEASE, tenure.NAMESPACE, tenure.NAME)
        if held is not None and held.revision <= self._state.inherited_tenure_revision:
            return {}
        left_s = self._state.tenure_left_s(held) if held is not None else 0.0
        if held is None or left_s <= 0:
            return {}
        covered = tenure.lease_ordinals(held)
        found: dict[str, float] = {}
        for claim in self._state.ledger.tenured_claims[node].values():
            replica = self._state.replica(claim.namespace, claim.replica)
            binding = self._state.binding(claim.namespace, claim.name)
            if replica is None or binding is None or replica.uid != claim.replica_uid:
                continue
            assignment = Key(claim.namespace, replica.spec.assignment)
            if tenure.covers_ordinal(covered, assignment, replica.spec.ordinal):
                found[binding.uid] = left_s
        return found

    def _was_removed(self, name: str) -> bool:
        """Whether the node existed under this authority and is gone: its agent must be told, or it would renew for ever
        a lease that nothing can be placed on, while what is bound there can be neither stopped nor freed."""
        return self._state.node(name) is None and name in self._state.ledger.nodes

    def _floor(self, name: str, before: int) -> int:
        """The highest epoch of the node that may not be given out again; `before` are those of former lives."""
        node = self._state.node(name)
        account = self._state.ledger.nodes.get(name)
        claimed = 0
        if account is not None and self._state.leases.epoch(name) == 0:
            claimed = max((c.node_epoch for c in account.claims.values()), default=0)
        fenced = node.status.fence.fenced_epoch if node is not None else 0
        return max(claimed, fenced, before)

    async def write_leases(self, leases: dict[str, NodeLease | None]) -> None:
        """Makes these leases durable, one row per page; None forgets a node. One transaction."""
        if not leases:
            return
        book = self._state.leases
        homes, compares, writes = self._rows(leases)
        first = writes[0]
        assert isinstance(first, Put)
        expected = first.attached.spec.leases
        probe = stored(LEASE_PAGE, first.attached.metadata, lambda found: found.spec.leases == expected)
        try:
            # A heartbeat changes nothing anyone decided: it has no audit record of its own.
            await self._commits.commit(compares, writes, (), probe)
        finally:
            book.recount()
        self._record(leases, homes)

    def _rows(
        self, leases: dict[str, NodeLease | None]
    ) -> tuple[dict[str, int], dict[str, int], list[Put | Remove]]:  # fmt: skip
        """Which page each node is on, what the pages are compared with, and the pages as they will be."""
        book, now = self._state.leases, self._state.now()
        by_page: dict[int, dict[str, NodeLease | None]] = {}
        homes: dict[str, int] = {}
        for node, lease in leases.items():
            page = book.page_for(node)
            homes[node] = page
            by_page.setdefault(page, {})[node] = lease
            if node not in book.by_node and lease is not None:
                # Takes its room at once, so that many new nodes of one flush do not all count on the same free place.
                book.reserve_room(page)
        compares: dict[str, int] = {}
        writes: list[Put | Remove] = []
        for page, changed in sorted(by_page.items()):
            put = self._page(page, changed, now)
            old = self._state.get(LEASE_PAGE, "", page_name(page))
            compares[put.key] = old.revision if old is not None else 0
            writes.append(put)
        return homes, compares, writes

    def _record(self, leases: dict[str, NodeLease | None], homes: dict[str, int]) -> None:
        book, monotonic_s = self._state.leases, self._state.ports.clock.monotonic()
        for node, lease in leases.items():
            if lease is None:
                book.forget(node)
            else:
                book.record(node, homes[node], lease, monotonic_s)

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
        """Fences what is overdue; ends the leases of nodes that are gone; forgets those ended long ago."""
        async with self._turn:
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
                ending[name] = _over(lease)
        for name, held in state.leases.by_node.items():
            if now - held.lease.renewed_at_s > limits.ENDED_LEASE_RETENTION_S and held.ended and state.node(name) is None:
                ending[name] = None
        if ending:
            await self.write_leases(ending)
        for some in batches(fencing, FENCES_PER_COMMIT):
            await self._fence(some, now)

    async def _fence(self, nodes: list[Node], now: float) -> None:
        """One commit for many nodes; those whose object moved meanwhile are left for the next tick.

        It ends their leases as well: a fence that is known only to the Node would be gone with it, and an agent that
        makes the Node anew would renew the very epoch that counts as over.
        """
        left = nodes
        for _ in range(limits.COMMIT_ROUNDS_MAX):
            if not left:
                return
            await self._commits.wait_ready()
            puts = [self._fenced(node, now) for node in left]
            over: dict[str, NodeLease | None] = {
                n.metadata.name: _over(self._state.leases.by_node[n.metadata.name].lease) for n in left
            }
            homes, compares, pages = self._rows(over)
            compares |= {NODE.store_key("", n.metadata.name): n.revision for n in left}
            entries = [audit.AuditEntry("fence", NODE.name, n.metadata.name, "", n.uid, n.revision) for n in left]
            epoch = puts[0].attached.status.fence.fenced_epoch
            probe = stored(NODE, left[0].metadata, _fenced_at(epoch))
            writes: list[Put | Remove] = [*puts, *pages]
            try:
                await self._commits.commit(
                    compares, writes, (audit.commit_record(self._who, now, "fence", entries),), probe
                )  # fmt: skip
            except Conflict as conflict:
                key = conflict.facts.get("key")
                if key in compares and key not in {put.key for put in puts}:
                    await self._commits.wait_published(conflict)
                    continue
                left = [n for n in left if NODE.store_key("", n.metadata.name) != key] if key else []
                continue
            self._record(over, homes)
            metrics.AUTHORITY_FENCES.inc(len(left))
            for node in left:
                _log.warning("node_fenced", node=node.metadata.name, epoch=self._state.leases.epoch(node.metadata.name))
            return

    def _fenced(self, node: Node, now: float) -> Put:
        block = FenceBlock(
            fenced_epoch=self._state.leases.epoch(node.metadata.name),
            at=micro_text(now),
            reason=Reason.LEASE_EXPIRED.value,
        )
        return records.status_put(NODE, node, msgspec.structs.replace(node.status, fence=block))


def _over(lease: NodeLease) -> NodeLease:
    return NodeLease(lease.epoch, lease.renewed_at_s, 0.0)


def _fenced_at(epoch: int) -> CommitTest:
    return lambda found: bool(found.status.fence.fenced_epoch >= epoch)
