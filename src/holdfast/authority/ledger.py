"""The ledger of a region: every claim, by node and by tenant, and the answer to "does this fit?". Pure, no I/O.

Always holds: it is a function of the records. Built anew from Nodes, Holds, Reservations and Bindings it comes out the
same; commits in flight are in it already, so that the next check counts them. It never forgets a claim because a node
shrank or went away: claims go only when their records go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.authority import device_allocation
from holdfast.authority.claims import Claim, ClaimRequest, claims_from_records, grant_class
from holdfast.authority.node_account import NodeAccount
from holdfast.model.binding import Binding, Reservation
from holdfast.model.errors import Refused
from holdfast.model.grant_limit import SpendingLimit
from holdfast.model.node import Node
from holdfast.model.quantity import CPU, GPU, MEMORY, Amounts, add, amounts, amounts_text, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot, is_admitted

_NORMAL = GrantClass.NORMAL
_SHORT_OF = {CPU: Reason.INSUFFICIENT_CPU, MEMORY: Reason.INSUFFICIENT_MEMORY, GPU: Reason.INSUFFICIENT_DEVICES}


class Ledger:
    """All accounts of a region. `put` and `drop` are each other's undo."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}
        self.nodes: dict[str, NodeAccount] = {}
        self.used: dict[tuple[str, GrantClass], Amounts] = {}
        self.provisional_use: dict[str, Amounts] = {}
        """What each tenant uses of its provisional part; `used` has it too."""
        self.provisional_claims: dict[str, Claim] = {}
        """Claims that nobody has confirmed yet: they end by themselves."""
        self.tenured_claims: dict[str, dict[str, Claim]] = {}
        """By node: bound claims that run only under the region's tenure."""
        self.unbound: dict[str, Claim] = {}
        """Reservations that wait to be bound: what can expire, or wait for victims."""
        self.quota_released: dict[str, Claim] = {}
        """Bound claims whose quota leg is gone and whose node leg waits for proof."""

    def account(self, node: str) -> NodeAccount:
        found = self.nodes.get(node)
        if found is None:
            found = self.nodes[node] = NodeAccount(node)
        return found

    def account_for(self, node: Node) -> NodeAccount:
        """The node's account, with the capacity, devices and ports it has now."""
        account = self.account(node.metadata.name)
        account.update_from(node)
        return account

    def forget(self, node: str) -> None:
        """Drops the account of a node that is gone and holds nothing."""
        account = self.nodes.get(node)
        if account is not None and not account.claims and not account.recovery_slots:
            del self.nodes[node]

    def put(self, claim: Claim) -> Claim | None:
        """Records a claim in place of the one of its key, which is returned."""
        before = self.drop(claim.key)
        self.claims[claim.key] = claim
        self.account(claim.node).book(claim, 1)
        if claim.quota_held:
            self._spend(claim, 1)
        else:
            self.quota_released[claim.key] = claim
        if claim.run_until and claim.quota_held:
            self.provisional_claims[claim.key] = claim
        if claim.needs_tenure and claim.bound:
            self.tenured_claims.setdefault(claim.node, {})[claim.key] = claim
        if not claim.bound:
            self.unbound[claim.key] = claim
        return before

    def drop(self, key: str) -> Claim | None:
        """Takes a claim out; dropping what is not there is harmless."""
        claim = self.claims.pop(key, None)
        if claim is None:
            return None
        self.nodes[claim.node].book(claim, -1)
        if claim.quota_held:
            self._spend(claim, -1)
        self.quota_released.pop(key, None)
        self.unbound.pop(key, None)
        self.provisional_claims.pop(key, None)
        if claim.needs_tenure and claim.node in self.tenured_claims:
            self.tenured_claims[claim.node].pop(key, None)
            if not self.tenured_claims[claim.node]:
                del self.tenured_claims[claim.node]
        return claim

    def _spend(self, claim: Claim, sign: int) -> None:
        if not claim.amounts:
            return
        key = (claim.namespace, claim.grant_class)
        used = self.used.setdefault(key, {})
        add(used, claim.amounts, times=sign)
        if not used:
            del self.used[key]
        if claim.run_until:
            on_trust = self.provisional_use.setdefault(claim.namespace, {})
            add(on_trust, claim.amounts, times=sign)
            if not on_trust:
                del self.provisional_use[claim.namespace]

    def restore(self, key: str, before: Claim | None) -> None:
        """Undoes a `put` exactly."""
        self.drop(key)
        if before is not None:
            self.put(before)

    def set_slots(self, node: str, holds: Iterable[RecoverySlot]) -> None:
        """Replaces what is held on a node: the places that were found to fit."""
        self.account(node).recovery_slots = {h.metadata.name: amounts(h.spec.resources) for h in holds if is_admitted(h)}

    def put_slot(self, node: str, name: str, held: Amounts) -> None:
        self.account(node).recovery_slots[name] = held

    def drop_slot(self, node: str, name: str) -> None:
        self.account(node).recovery_slots.pop(name, None)

    def check(self, node: Node, want: ClaimRequest, limit: SpendingLimit) -> Refused | Claim:
        """Whether the claim fits on the node and in the limit. Changes nothing."""
        account = self.account_for(node)
        short = account.shortage(want)
        gpu_short = short.pop(GPU, 0)
        if short:
            return _insufficient(account, want, short)
        devices = device_allocation.allocate_devices(account, want)
        if isinstance(devices, Refused):
            return devices
        if gpu_short:
            return _insufficient(account, want, {GPU: gpu_short})
        ports = device_allocation.allocate_ports(account, want)
        if isinstance(ports, Refused):
            return ports
        over = self.limit_refusal(want, limit)
        if over is not None:
            return over
        return Claim(
            key=want.key,
            namespace=want.namespace,
            name=want.name,
            replica=want.replica,
            replica_uid=want.replica_uid,
            attempt=want.attempt,
            node=account.name,
            amounts=want.amounts,
            capacity_class=want.capacity_class,
            devices=devices,
            ports=ports,
            nominated=want.nominated,
            victims=want.victims,
            recovery_slots=want.recovery_slots,
            run_until=want.run_until,
        )

    def ordinary_use(self, tenant: str, spent_as: GrantClass) -> Amounts:
        """What is in use without the provisional part."""
        used = dict(self.used.get((tenant, spent_as), {}))
        if spent_as is GrantClass.NORMAL:
            add(used, self.provisional_use.get(tenant, {}), times=-1)
        return used

    def limit_refusal(self, want: ClaimRequest, limit: SpendingLimit) -> Refused | None:
        spent_as = grant_class(want.capacity_class)
        who = {"tenant": want.namespace, "class": spent_as.value}
        if not limit.copies:
            return Refused(
                Reason.NO_GRANT,
                f"this region holds no {spent_as.value} grant for tenant {want.namespace}; an operator sets a Quota",
                who,
            )
        if want.run_until:
            return self._over_provisional(want, limit, who)
        if limit.over:
            return _ended(want, limit, who)
        used = self.ordinary_use(want.namespace, spent_as)
        after = dict(used)
        add(after, want.amounts)
        over = shortfall(after, limit.spendable)
        if not over:
            return None
        if not shortfall(after, limit.held):
            return _ended(want, limit, who)
        facts = {**who, "limit": amounts_text(limit.spendable), "used": amounts_text(used),
                 "wanted": amounts_text(want.amounts), "shortfall": amounts_text(over)}  # fmt: skip
        named = ", ".join(f"{n} by {t}" for n, t in amounts_text(over).items())
        return Refused(Reason.QUOTA_EXCEEDED, f"tenant {want.namespace} would exceed its limit here: {named}", facts)

    def _over_provisional(self, want: ClaimRequest, limit: SpendingLimit, who: dict[str, Any]) -> Refused | None:
        """Provisional work stays within its part, and everything together within the whole."""
        trusted, used = dict(self.provisional_use.get(want.namespace, {})), dict(self.used.get((want.namespace, _NORMAL), {}))
        add(trusted, want.amounts)
        add(used, want.amounts)
        over = shortfall(trusted, limit.provisional) or shortfall(used, limit.whole)
        if not over:
            return None
        facts = {**who, "provisional": amounts_text(limit.provisional), "wanted": amounts_text(want.amounts),
                 "shortfall": amounts_text(over)}  # fmt: skip
        named = ", ".join(f"{n} by {t}" for n, t in amounts_text(over).items())
        message = f"the region is cut off, and tenant {want.namespace} would exceed the provisional part here: {named}"
        return Refused(Reason.NOT_ALLOWED_WHILE_PARTITIONED, message, facts)

    def comparable_state(self) -> dict[str, Any]:
        """Everything two ledgers must agree on to be the same; hints left out."""
        return {
            "claims": dict(self.claims),
            "used": {key: dict(used) for key, used in self.used.items()},
            "on_trust": {tenant: dict(used) for tenant, used in self.provisional_use.items()},
            "provisional": sorted(self.provisional_claims),
            "unbound": sorted(self.unbound),
            "lingering": sorted(self.quota_released),
            "nodes": {
                name: (a.firm, a.reclaimable, a.nominated, a.recovery_slots, a.device_use, a.ports, sorted(a.claims))
                for name, a in self.nodes.items()
                if a.claims or a.recovery_slots
            },
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.comparable_state() == other.comparable_state()

    __hash__ = None  # type: ignore[assignment]


def rebuild_ledger(
    nodes: Iterable[Node], holds: Iterable[RecoverySlot], reservations: Iterable[Reservation], bindings: Iterable[Binding]
) -> Ledger:
    """The ledger that these records stand for."""
    ledger = Ledger()
    for node in nodes:
        ledger.account_for(node)
    by_node: dict[str, list[RecoverySlot]] = {}
    for hold in holds:
        by_node.setdefault(hold.spec.node, []).append(hold)
    for name, held in by_node.items():
        ledger.set_slots(name, held)
    for claim in claims_from_records(reservations, bindings):
        ledger.put(claim)
    return ledger


def _insufficient(account: NodeAccount, want: ClaimRequest, short: Amounts) -> Refused:
    reason = next((_SHORT_OF[name] for name in (CPU, MEMORY, GPU) if name in short), Reason.INSUFFICIENT_RESOURCE)
    facts: dict[str, Any] = {
        "node": account.name,
        "shortfall": amounts_text(short),
        "wanted": amounts_text({n: want.amounts.get(n, 0) for n in short}),
        "capacity": amounts_text({n: account.capacity.get(n, 0) for n in short}),
        "firm": amounts_text({n: account.firm.get(n, 0) for n in short}),
        "reclaimable": amounts_text({n: account.reclaimable.get(n, 0) for n in short}),
    }
    held, nominated = account.recovery_reserved(want.recovery_slots), account.nominated
    if held:
        facts["held"] = amounts_text({n: held.get(n, 0) for n in short})
    if nominated:
        facts["nominated"] = amounts_text({n: nominated.get(n, 0) for n in short})
    named = ", ".join(f"{n} by {t}" for n, t in amounts_text(short).items())
    return Refused(reason, f"node {account.name} has not enough left: {named}", facts)


def _ended(want: ClaimRequest, limit: SpendingLimit, who: dict[str, Any]) -> Refused:
    return Refused(
        Reason.GRANT_EXPIRED,
        f"the grant of tenant {want.namespace} may not be spent until the region reaches the global cell again",
        {**who, "ended": list(limit.ended), "limit": amounts_text(limit.held)},
    )
