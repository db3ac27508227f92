"""The ledger of a region: all claims by node and by tenant, and the check whether another claim fits. Pure.

- It is a function of the stored Nodes, RecoverySlots, Reservations, Bindings and Volumes, and of the replicas whose
  Binding was lost: a rebuilt ledger is equal.
- Claims of commits in flight are included, so the next check counts them.
- A claim leaves the ledger only when its objects are deleted, never because a node shrank or was removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.authority import device_allocation
from holdfast.authority.claims import Claim, ClaimRequest, VolumeHold, claims_from_records, grant_class, hold_of
from holdfast.authority.neighbours import NeighbourIndex
from holdfast.authority.node_account import NodeAccount
from holdfast.authority.stop_orders import lost_claims
from holdfast.model.binding import Binding, Reservation
from holdfast.model.errors import Refused
from holdfast.model.grant_limit import SpendingLimit
from holdfast.model.node import Node
from holdfast.model.quantity import (
    CPU,
    GPU,
    MEMORY,
    STORAGE,
    Amounts,
    add,
    amount_text,
    amounts,
    amounts_text,
    shortfall,
)
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.replica import Replica
from holdfast.model.volume import Volume

_NORMAL = GrantClass.NORMAL
_RECOVERY_GRANT_FOLLOWS = "nothing: it follows the Recovery; if it does not arrive, see the link (holdfast status)"
_SHORT_OF = {
    CPU: Reason.INSUFFICIENT_CPU,
    MEMORY: Reason.INSUFFICIENT_MEMORY,
    GPU: Reason.INSUFFICIENT_DEVICES,
    STORAGE: Reason.INSUFFICIENT_STORAGE,
}


class Ledger:
    """All accounts of a region. `drop` undoes `put`."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}
        self.nodes: dict[str, NodeAccount] = {}
        self.used: dict[tuple[str, GrantClass], Amounts] = {}
        self.provisional_use: dict[str, Amounts] = {}
        """Provisional usage per tenant; included in `used`."""
        self.provisional_claims: dict[str, Claim] = {}
        """Provisional claims, which end at `runUntil` unless they are confirmed."""
        self.tenured_claims: dict[str, dict[str, Claim]] = {}
        """By node: bound claims that run only under the region's tenure."""
        self.unbound: dict[str, Claim] = {}
        """Reservations that are not bound: they may expire, or wait for victims."""
        self.quota_released: dict[str, Claim] = {}
        """Bound claims with released quota, whose node resources wait for proof of the stop."""
        self.neighbours = NeighbourIndex()
        self.volumes: dict[str, VolumeHold] = {}

    def account(self, node: str) -> NodeAccount:
        found = self.nodes.get(node)
        if found is None:
            found = self.nodes[node] = NodeAccount(node)
            for hold in self.volumes.values():  # a node that was removed and joined again still has its data
                if hold.node == node:
                    found.book_volume(hold, 1)
        return found

    def account_for(self, node: Node) -> NodeAccount:
        """The node's account, updated with the Node's current capacity, devices and ports."""
        account = self.account(node.metadata.name)
        account.update_from(node)
        return account

    def forget(self, node: str) -> None:
        """Drops the account of a removed node without claims and slots."""
        account = self.nodes.get(node)
        if account is not None and not account.claims and not account.recovery_slots:
            del self.nodes[node]

    def put(self, claim: Claim) -> Claim | None:
        """Stores a claim; returns the claim it replaces."""
        before = self.drop(claim.key)
        self.claims[claim.key] = claim
        account = self.account(claim.node)
        cursor = account.port_cursor
        account.book(claim, 1)
        if claim.stopping and before is not None:
            account.port_cursor = cursor  # its ports are about to be released, so the search does not continue there
        self.neighbours.put(claim)
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
        """Removes a claim; does nothing if it is not there."""
        claim = self.claims.pop(key, None)
        if claim is None:
            return None
        self.nodes[claim.node].book(claim, -1)
        self.neighbours.drop(claim)
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

    def put_volume(self, hold: VolumeHold) -> None:
        self.drop_volume(hold.key)
        account = self.nodes.get(hold.node)
        if account is not None:  # else `account` books it
            account.book_volume(hold, 1)
        self.volumes[hold.key] = hold
        self._spend_as(hold.namespace, hold.grant_class, hold.amounts, 1)

    def drop_volume(self, key: str) -> None:
        """Removes a volume; does nothing if it is not there."""
        hold = self.volumes.pop(key, None)
        if hold is None:
            return
        self._spend_as(hold.namespace, hold.grant_class, hold.amounts, -1)
        account = self.nodes.get(hold.node)
        if account is not None and key in account.volumes:
            account.book_volume(hold, -1)

    def user_of_volume(self, namespace: str, name: str, node: str) -> Claim | None:
        """The claim that uses the volume. Its users are on its node."""
        account = self.nodes.get(node)
        claims = account.claims.values() if account is not None else ()
        return next((c for c in claims if c.namespace == namespace and name in c.volumes), None)

    def _spend_as(self, tenant: str, spent_as: GrantClass, amount: Amounts, sign: int) -> None:
        used = self.used.setdefault((tenant, spent_as), {})
        add(used, amount, times=sign)
        if not used:
            del self.used[tenant, spent_as]

    def _spend(self, claim: Claim, sign: int) -> None:
        if not claim.amounts:
            return
        self._spend_as(claim.namespace, claim.grant_class, claim.amounts, sign)
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

    def set_slots(self, node: str, slots: Iterable[RecoverySlot]) -> None:
        """Replaces the admitted recovery slots of a node."""
        self.account(node).recovery_slots = {
            slot.metadata.name: amounts(slot.spec.resources) for slot in slots if is_admitted(slot)
        }

    def put_slot(self, node: str, name: str, amount: Amounts) -> None:
        self.account(node).recovery_slots[name] = amount

    def drop_slot(self, node: str, name: str) -> None:
        self.account(node).recovery_slots.pop(name, None)

    def check(self, node: Node, request: ClaimRequest, limit: SpendingLimit) -> Refused | Claim:
        """The claim if it fits on the node and within the limit, else a refusal. Changes nothing."""
        account = self.account_for(node)
        short = account.shortage(request)
        gpu_short = short.pop(GPU, 0)
        if short:
            return _capacity_refusal(account, request, short)
        devices = device_allocation.allocate_devices(account, request)
        if isinstance(devices, Refused):
            return devices
        if gpu_short:
            return _capacity_refusal(account, request, {GPU: gpu_short})
        ports = device_allocation.allocate_ports(account, request)
        if isinstance(ports, Refused):
            return ports
        exceeded = self.limit_refusal(request, limit)
        if exceeded is not None:
            return exceeded
        return Claim(
            key=request.key,
            namespace=request.namespace,
            name=request.name,
            replica=request.replica,
            replica_uid=request.replica_uid,
            attempt=request.attempt,
            node=account.name,
            amounts=request.amounts,
            capacity_class=request.capacity_class,
            devices=devices,
            ports=ports,
            udp_ports=request.udp_ports,
            nominated=request.nominated,
            victims=request.victims,
            recovery_slots=request.recovery_slots,
            run_until=request.run_until,
            workload=request.workload,
            labels=request.labels,
            anti_affinity=request.anti_affinity,
        )

    def ordinary_use(self, tenant: str, spent_as: GrantClass) -> Amounts:
        """Usage without provisional claims."""
        used = dict(self.used.get((tenant, spent_as), {}))
        if spent_as is GrantClass.NORMAL:
            add(used, self.provisional_use.get(tenant, {}), times=-1)
        return used

    def limit_refusal(self, request: ClaimRequest, limit: SpendingLimit) -> Refused | None:
        spent_as = grant_class(request.capacity_class)
        facts_of_tenant = {"tenant": request.namespace, "class": spent_as.value}
        if not limit.copies:
            following = spent_as is GrantClass.RECOVERY
            step = _RECOVERY_GRANT_FOLLOWS if following else "an operator creates its Quota"
            return Refused(
                Reason.NO_GRANT,
                f"tenant {request.namespace} has no {spent_as.value} grant in this region; next: {step}",
                facts_of_tenant,
            )
        if request.run_until:
            return self._provisional_refusal(request, limit, facts_of_tenant)
        if limit.all_expired:
            return _expired_refusal(request, limit, facts_of_tenant)
        used = self.ordinary_use(request.namespace, spent_as)
        if spent_as is GrantClass.NORMAL:
            # After a partition the share may be smaller than what provisional work still holds.
            add(used, shortfall(self.provisional_use.get(request.namespace, {}), limit.provisional))
        after = dict(used)
        add(after, request.amounts)
        exceeded = shortfall(after, limit.spendable)
        if not exceeded:
            return None
        if not shortfall(after, limit.with_expired):
            return _expired_refusal(request, limit, facts_of_tenant)
        facts = {
            **facts_of_tenant,
            "limit": amounts_text(limit.spendable),
            "used": amounts_text(used),
            "requested": amounts_text(request.amounts),
            "shortfall": amounts_text(exceeded),
        }
        figures = "; ".join(
            f"{name}: limit {amount_text(name, limit.spendable.get(name, 0))}, "
            f"used {amount_text(name, used.get(name, 0))}, requested {amount_text(name, request.amounts.get(name, 0))}"
            for name in exceeded
        )
        message = f"exceeds the quota of tenant {request.namespace} in this region ({figures})"
        return Refused(Reason.QUOTA_EXCEEDED, message, facts)

    def _provisional_refusal(
        self, request: ClaimRequest, limit: SpendingLimit, facts_of_tenant: dict[str, Any]
    ) -> Refused | None:
        """Provisional claims must fit the provisional quota, and all claims together the total limit."""
        provisional, used = (
            dict(self.provisional_use.get(request.namespace, {})),
            dict(self.used.get((request.namespace, _NORMAL), {})),
        )
        add(provisional, request.amounts)
        add(used, request.amounts)
        exceeded = shortfall(provisional, limit.provisional) or shortfall(used, limit.total)
        if not exceeded:
            return None
        facts = {
            **facts_of_tenant,
            "provisional": amounts_text(limit.provisional),
            "requested": amounts_text(request.amounts),
            "shortfall": amounts_text(exceeded),
        }
        missing_text = ", ".join(f"{n} by {t}" for n, t in amounts_text(exceeded).items())
        message = (
            f"the region is partitioned, and tenant {request.namespace} exceeds its provisional quota here "
            f"({missing_text})"
        )
        return Refused(Reason.NOT_ALLOWED_WHILE_PARTITIONED, message, facts)

    def comparable_state(self) -> dict[str, Any]:
        """The content that two equal ledgers share; hints are left out."""
        return {
            "claims": dict(self.claims),
            "used": {key: dict(used) for key, used in self.used.items()},
            "on_trust": {tenant: dict(used) for tenant, used in self.provisional_use.items()},
            "provisional": sorted(self.provisional_claims),
            "unbound": sorted(self.unbound),
            "lingering": sorted(self.quota_released),
            "neighbours": self.neighbours.comparable_state(),
            "volumes": dict(self.volumes),
            "nodes": {
                name: (a.firm, a.reclaimable, a.nominated, a.recovery_slots, a.device_use, a.ports, sorted(a.claims))
                for name, a in self.nodes.items()
                if a.claims or a.recovery_slots or a.volumes
            },
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.comparable_state() == other.comparable_state()

    __hash__ = None  # type: ignore[assignment]


def rebuild_ledger(
    nodes: Iterable[Node],
    slots: Iterable[RecoverySlot],
    reservations: Iterable[Reservation],
    bindings: Iterable[Binding],
    *,
    volumes: Iterable[Volume] = (),
    replicas: Iterable[Replica] = (),
) -> Ledger:
    """Builds the ledger from stored objects."""
    ledger = Ledger()
    for node in nodes:
        ledger.account_for(node)
    by_node: dict[str, list[RecoverySlot]] = {}
    for slot in slots:
        by_node.setdefault(slot.spec.node, []).append(slot)
    for name, node_slots in by_node.items():
        ledger.set_slots(name, node_slots)
    reservations, bindings, volumes = list(reservations), list(bindings), list(volumes)
    for claim in claims_from_records(reservations, bindings):
        ledger.put(claim)
    for claim in lost_claims(replicas, reservations, bindings, volumes):
        ledger.put(claim)
    for volume in volumes:
        ledger.put_volume(hold_of(volume))
    return ledger


def _capacity_refusal(account: NodeAccount, request: ClaimRequest, short: Amounts) -> Refused:
    reason = next((_SHORT_OF[name] for name in _SHORT_OF if name in short), Reason.INSUFFICIENT_RESOURCE)
    facts: dict[str, Any] = {
        "node": account.name,
        "shortfall": amounts_text(short),
        "requested": amounts_text({n: request.amounts.get(n, 0) for n in short}),
        "capacity": amounts_text({n: account.capacity.get(n, 0) for n in short}),
        "firm": amounts_text({n: account.firm.get(n, 0) for n in short}),
        "reclaimable": amounts_text({n: account.reclaimable.get(n, 0) for n in short}),
    }
    reserved, nominated = account.recovery_reserved(request.recovery_slots), account.nominated
    if reserved:
        facts["recoveryReserved"] = amounts_text({n: reserved.get(n, 0) for n in short})
    if nominated:
        facts["nominated"] = amounts_text({n: nominated.get(n, 0) for n in short})
    missing_text = ", ".join(f"{n} by {t}" for n, t in amounts_text(short).items())
    return Refused(reason, f"node {account.name}: insufficient resources (missing {missing_text})", facts)


def _expired_refusal(request: ClaimRequest, limit: SpendingLimit, facts_of_tenant: dict[str, Any]) -> Refused:
    return Refused(
        Reason.GRANT_EXPIRED,
        f"the grant lease of tenant {request.namespace} expired; "
        "next: restore the connection of this region to the global cell",
        {**facts_of_tenant, "expired": list(limit.expired), "limit": amounts_text(limit.with_expired)},
    )
