"""The lease book: epoch and expiry of each node's lease. Pure; time is passed in.

- An epoch is issued once. A fenced, ended or replaced epoch is never renewed.
- The authority counts from the durable renewal, the agent from sending it, both on monotonic clocks: so the agent's
  lease ends first.
- After a takeover every lease counts as renewed at that moment, so no node is fenced before a full TTL.
- A lease is ended by a durable mark (TTL zero), written with the fence, or after expiry if the Node is gone. The mark
  outlasts the Node.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model import limits
from holdfast.model.errors import Refused
from holdfast.model.lease_page import LeasePage, NodeLease
from holdfast.model.reasons import Reason


class HeldLease(msgspec.Struct, gc=False):
    """One node's lease. Fencing counts from `counted_from_s`; placement is allowed until `live_until_s`. Monotonic."""

    page: int
    lease: NodeLease
    counted_from_s: float
    live_until_s: float

    @property
    def ended(self) -> bool:
        return self.lease.ttl_s <= 0


class LeaseBook:
    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.by_node: dict[str, HeldLease] = {}
        self._room: dict[int, int] = {}

    @property
    def grace_s(self) -> float:
        """Time after a renewal until the agent is certain to have stopped its tasks."""
        return self.ttl_s * (1.0 + limits.CLOCK_DRIFT) + limits.KILL_DURATION_MAX_S

    def load(self, pages: Iterable[LeasePage], now_s: float, monotonic_s: float) -> None:
        """Loads the durable pages. Their age is unknown, so every lease counts from now."""
        self.by_node, self._room = {}, {}
        for page in pages:
            self._room[page.spec.page] = len(page.spec.leases)
            for node, lease in page.spec.leases.items():
                remaining_s = lease.renewed_at_s + lease.ttl_s - now_s
                former = self.by_node.get(node)
                if former is None or lease.epoch > former.lease.epoch:
                    live_until_s = monotonic_s + min(max(0.0, remaining_s), lease.ttl_s)
                    self.by_node[node] = HeldLease(page.spec.page, lease, monotonic_s, live_until_s)

    def epoch(self, node: str) -> int:
        lease = self.by_node.get(node)
        return lease.lease.epoch if lease is not None else 0

    def is_live(self, node: str, monotonic_s: float) -> bool:
        lease = self.by_node.get(node)
        return lease is not None and not lease.ended and monotonic_s < lease.live_until_s

    def may_be_live(self, node: str) -> bool:
        """Whether an agent could still hold a lease, by the durable state."""
        lease = self.by_node.get(node)
        return lease is not None and not lease.ended

    def overdue(self, monotonic_s: float) -> list[str]:
        """Nodes whose lease has certainly expired at the agent, by name."""
        grace_s = self.grace_s
        return sorted(n for n, h in self.by_node.items() if monotonic_s - h.counted_from_s > grace_s and not h.ended)

    def count_live(self, monotonic_s: float) -> int:
        return sum(1 for lease in self.by_node.values() if monotonic_s < lease.live_until_s and lease.lease.ttl_s > 0)

    def next_lease(
        self, node: str, epoch: int, former: NodeLease | None, floor: int, now_s: float
    ) -> NodeLease | Refused:
        """The new lease of a heartbeat, or a refusal. `floor` is the highest epoch that must not be used again."""
        newest = max(floor, former.epoch if former is not None else 0)
        if epoch == 0:
            return NodeLease(newest + 1, now_s, self.ttl_s)
        if former is not None and epoch == former.epoch and former.ttl_s > 0 and epoch > floor:
            return NodeLease(epoch, max(now_s, former.renewed_at_s), self.ttl_s)
        return Refused(
            Reason.NODE_FENCED,
            f"node {node}: epoch {epoch} is fenced or replaced; next: stop all tasks and register with epoch 0",
            {"node": node, "epoch": epoch, "current": former.epoch if former is not None else 0, "floor": floor},
        )

    def page_for(self, node: str) -> int:
        """The page of the node's lease, or the first page that is not full."""
        lease = self.by_node.get(node)
        if lease is not None:
            return lease.page
        return next((p for p in range(len(self._room) + 1) if self._room.get(p, 0) < limits.LEASE_PAGE_NODES), 0)

    def reserve_room(self, page: int) -> None:
        """Reserves one entry on a page until `recount`."""
        self._room[page] = self._room.get(page, 0) + 1

    def recount(self) -> None:
        self._room = dict.fromkeys(self._room, 0)
        for lease in self.by_node.values():
            self._room[lease.page] += 1

    def record(self, node: str, page: int, lease: NodeLease, monotonic_s: float) -> None:
        """Records a durable lease; its time counts from now."""
        if node not in self.by_node:
            self._room[page] = self._room.get(page, 0) + 1
        self.by_node[node] = HeldLease(page, lease, monotonic_s, monotonic_s + lease.ttl_s)

    def forget(self, node: str) -> None:
        lease = self.by_node.pop(node, None)
        if lease is not None:
            self._room[lease.page] -= 1


def page_name(page: int) -> str:
    return f"page-{page}"
