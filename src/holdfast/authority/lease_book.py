"""The lease book: which node's agent holds which epoch, and until when. Pure; time comes in.

What always holds: an epoch is given out once; a renewal is acknowledged only after it is durable; an epoch that was
fenced, ended or replaced is never renewed again. The book counts on the monotonic clock from the moment a renewal was
durable, the holder from the moment it sent it: so the holder's lease always ends first. After a takeover every known
lease counts as renewed at the takeover, so that nobody is fenced before a full TTL has passed.

A lease is ended by a durable mark (a TTL of zero) with the fence of its node, or, where the node object is gone, once
it can no longer be live: the mark is a proof that needs no Node to be written on, and outlasts it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model import limits
from holdfast.model.errors import Refused
from holdfast.model.lease_page import LeasePage, NodeLease
from holdfast.model.reasons import Reason


class HeldLease(msgspec.Struct, gc=False):
    """One node's lease. Fencing counts from `counted_from_s`, placement trusts until `live_until_s`; both monotonic."""

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
        """How long after a renewal the grantor must wait before the holder is certain to have stopped."""
        return self.ttl_s * (1.0 + limits.CLOCK_DRIFT) + limits.KILL_DURATION_MAX_S

    def load(self, pages: Iterable[LeasePage], now_s: float, monotonic_s: float) -> None:
        """Takes over the durable pages. How much time had passed on them is not known, so all counting restarts."""
        self.by_node, self._room = {}, {}
        for page in pages:
            self._room[page.spec.page] = len(page.spec.leases)
            for node, lease in page.spec.leases.items():
                left_s = lease.renewed_at_s + lease.ttl_s - now_s
                known = self.by_node.get(node)
                if known is None or lease.epoch > known.lease.epoch:
                    live_until_s = monotonic_s + min(max(0.0, left_s), lease.ttl_s)
                    self.by_node[node] = HeldLease(page.spec.page, lease, monotonic_s, live_until_s)

    def epoch(self, node: str) -> int:
        held = self.by_node.get(node)
        return held.lease.epoch if held is not None else 0

    def is_live(self, node: str, monotonic_s: float) -> bool:
        held = self.by_node.get(node)
        return held is not None and not held.ended and monotonic_s < held.live_until_s

    def may_be_live(self, node: str) -> bool:
        """Whether an agent could still believe that it holds a lease, as far as is durably known."""
        held = self.by_node.get(node)
        return held is not None and not held.ended

    def overdue(self, monotonic_s: float) -> list[str]:
        """Nodes whose lease is certain to have run out at the holder, in order of name."""
        grace_s = self.grace_s
        return sorted(n for n, h in self.by_node.items() if monotonic_s - h.counted_from_s > grace_s and not h.ended)

    def count_live(self, monotonic_s: float) -> int:
        return sum(1 for held in self.by_node.values() if monotonic_s < held.live_until_s and held.lease.ttl_s > 0)

    def next_lease(self, node: str, epoch: int, known: NodeLease | None, floor: int, now_s: float) -> NodeLease | Refused:
        """The lease a heartbeat asks for. `floor` is the highest epoch that is spent (fenced, or in a claim)."""
        newest = max(floor, known.epoch if known is not None else 0)
        if epoch == 0:
            return NodeLease(newest + 1, now_s, self.ttl_s)
        if known is not None and epoch == known.epoch and known.ttl_s > 0 and epoch > floor:
            return NodeLease(epoch, max(now_s, known.renewed_at_s), self.ttl_s)
        return Refused(
            Reason.NODE_FENCED,
            f"epoch {epoch} of node {node} is not renewed any more: stop everything and register anew with epoch 0",
            {"node": node, "epoch": epoch, "current": known.epoch if known is not None else 0, "floor": floor},
        )

    def page_for(self, node: str) -> int:
        """The page that holds the node's lease, or the first with room."""
        held = self.by_node.get(node)
        if held is not None:
            return held.page
        return next((p for p in range(len(self._room) + 1) if self._room.get(p, 0) < limits.LEASE_PAGE_NODES), 0)

    def reserve_room(self, page: int) -> None:
        """A place on a page is spoken for until `recount`."""
        self._room[page] = self._room.get(page, 0) + 1

    def recount(self) -> None:
        self._room = dict.fromkeys(self._room, 0)
        for held in self.by_node.values():
            self._room[held.page] += 1

    def record(self, node: str, page: int, lease: NodeLease, monotonic_s: float) -> None:
        """The lease is durable: from here on it counts."""
        if node not in self.by_node:
            self._room[page] = self._room.get(page, 0) + 1
        self.by_node[node] = HeldLease(page, lease, monotonic_s, monotonic_s + lease.ttl_s)

    def forget(self, node: str) -> None:
        held = self.by_node.pop(node, None)
        if held is not None:
            self._room[held.page] -= 1


def page_name(page: int) -> str:
    return f"page-{page}"
