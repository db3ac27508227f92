"""One node's account in the ledger: capacity, claims, recovery slots, and whether another claim fits. Pure.

The capacity rule, for every resource:
    firm + slots + nominated - firm victims  <= capacity    (slots: unconsumed recovery slots)
    firm + reclaimable + nominated - victims <= capacity
    firm + reclaimable                       <= capacity
If a node's capacity shrinks below its claims, the node is overcommitted: it refuses new claims and keeps the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.authority.claims import Claim, ClaimRequest, VolumeHold, victim_key
from holdfast.model.binding import CapacityClass
from holdfast.model.node import Device, Node, node_capacity
from holdfast.model.quantity import Amounts, add
from holdfast.model.template import port_number


class NodeAccount:
    """Changed only by the ledger. `port_cursor` is where the search for a free port starts."""

    __slots__ = (
        "capacity",
        "claims",
        "device_use",
        "devices",
        "firm",
        "name",
        "nominated",
        "nominated_claims",
        "port_cursor",
        "port_range",
        "ports",
        "reclaimable",
        "recovery_slots",
        "revision",
        "volumes",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.revision = 0
        self.capacity: Amounts = {}
        self.devices: dict[str, Device] = {}
        self.port_range = (0, -1)
        self.port_cursor = 0
        self.claims: dict[str, Claim] = {}
        self.firm: Amounts = {}
        self.reclaimable: Amounts = {}
        self.nominated: Amounts = {}
        self.device_use: dict[str, dict[str, int]] = {}
        self.ports: dict[int, str] = {}
        self.recovery_slots: dict[str, Amounts] = {}
        self.nominated_claims: dict[str, Claim] = {}
        """Nominated claims, which wait for the release of their victims."""
        self.volumes: dict[str, VolumeHold] = {}
        """Volumes on the node. They are firm, and no release of a claim frees them."""

    def update_from(self, node: Node) -> None:
        """Copies capacity, devices and ports from the Node."""
        if self.revision == node.revision and self.revision:
            return
        self.revision = node.revision
        self.capacity = node_capacity(node)
        self.devices = {d.id: d for d in sorted(node.spec.devices, key=lambda d: d.id)}
        self.port_range = node.spec.port_range
        if not self.port_range[0] <= self.port_cursor <= self.port_range[1]:
            self.port_cursor = self.port_range[0]

    def book(self, claim: Claim, sign: int) -> None:
        """Adds (1) or removes (-1) a claim; the ledger keeps this balanced."""
        if claim.nominated:
            add(self.nominated, claim.amounts, times=sign)
        elif claim.capacity_class is CapacityClass.RECLAIMABLE:
            add(self.reclaimable, claim.amounts, times=sign)
        else:
            add(self.firm, claim.amounts, times=sign)
        if sign > 0:
            self.claims[claim.key] = claim
            if claim.nominated:
                self.nominated_claims[claim.key] = claim
            for device in claim.devices:
                self.device_use.setdefault(device.id, {})[claim.key] = device.milli
            for port in claim.port_keys:
                self.ports[port] = claim.key
                if self.port_range[0] <= port_number(port) <= self.port_range[1]:
                    self.port_cursor = port_number(port) + 1
            return
        del self.claims[claim.key]
        self.nominated_claims.pop(claim.key, None)
        for device in claim.devices:
            owners = self.device_use[device.id]
            del owners[claim.key]
            if not owners:
                del self.device_use[device.id]
        for port in claim.port_keys:
            if self.ports.get(port) == claim.key:
                del self.ports[port]

    def book_volume(self, hold: VolumeHold, sign: int) -> None:
        """Adds (1) or removes (-1) a volume."""
        add(self.firm, hold.amounts, times=sign)
        if sign > 0:
            self.volumes[hold.key] = hold
        else:
            del self.volumes[hold.key]

    def recovery_reserved(self, consuming: tuple[str, ...] = ()) -> Amounts:
        """Resources of recovery slots, without slots that a claim or `consuming` consumes."""
        if not self.recovery_slots:
            return {}
        consumed = set(consuming)
        for claim in self.claims.values():
            consumed.update(claim.recovery_slots)
        total: Amounts = {}
        for name, reserved in self.recovery_slots.items():
            if name not in consumed:
                add(total, reserved)
        return total

    def slot_shortage(self, amounts: Amounts) -> Amounts:
        """By how much one more recovery slot would break the capacity rule. Reclaimable work may use its capacity."""
        reserved = self.recovery_reserved()
        leaving_firm, _ = self._leaving(ClaimRequest("", "", "", "", 0, {}, CapacityClass.FIRM))
        missing: Amounts = {}
        for name, more in amounts.items():
            firm_total = self.firm.get(name, 0) + self.nominated.get(name, 0) - leaving_firm.get(name, 0)
            excess = firm_total + reserved.get(name, 0) + more - self.capacity.get(name, 0)
            if excess > 0:
                missing[name] = excess
        return missing

    def choose_slots(self, request: ClaimRequest, allowed: Iterable[str]) -> tuple[str, ...]:
        """The allowed, unconsumed slots that a recovery claim should consume.

        The smallest slot that covers the claim, else as few slots as make it fit; none if it fits without.
        """
        consumed = {name for claim in self.claims.values() for name in claim.recovery_slots}
        unconsumed = {
            name: self.recovery_slots[name]
            for name in sorted(allowed)
            if name in self.recovery_slots and name not in consumed
        }
        covering = [
            n for n, reserved in unconsumed.items() if all(reserved.get(r, 0) >= a for r, a in request.amounts.items())
        ]
        if covering:
            return (min(covering, key=lambda n: (sorted(unconsumed[n].items()), n)),)
        chosen: tuple[str, ...] = ()
        for name in sorted(unconsumed, key=lambda n: (-sum(unconsumed[n].values()), n)):
            if not self.shortage(msgspec.structs.replace(request, recovery_slots=chosen)):
                return chosen
            chosen = (*chosen, name)
        return chosen

    def free_milli(self, device: Device) -> int:
        return device.milli - sum(self.device_use.get(device.id, {}).values())

    def overcommitted(self) -> Amounts:
        """By how much the claims exceed the capacity; empty if they do not."""
        nothing = ClaimRequest("", "", "", "", 0, {}, CapacityClass.RECLAIMABLE)
        return self._excess(nothing, self.firm.keys() | self.reclaimable.keys())

    def shortage(self, request: ClaimRequest) -> Amounts:
        """By how much `request` would break the capacity rule, per resource; empty if it fits.

        Only resources that it asks for count. On a node that shrank below its claims in another resource it takes
        nothing of that one, and the planner does not look at it either."""
        return self._excess(request, [name for name, amount in request.amounts.items() if amount])

    def _excess(self, request: ClaimRequest, names: Iterable[str]) -> Amounts:
        firm, reclaimable, nominated = self.firm, self.reclaimable, self.nominated
        reclaims = request.capacity_class is CapacityClass.RECLAIMABLE
        draws = request.recovery_slots if request.capacity_class is CapacityClass.RECOVERY else ()
        reserved = self.recovery_reserved(draws)
        leaving_firm, leaving = self._leaving(request)
        missing: Amounts = {}
        for name in names:
            more = request.amounts.get(name, 0)
            firm_total = firm.get(name, 0) + nominated.get(name, 0)
            reclaimable_total = reclaimable.get(name, 0)
            firm_and_slots = firm_total + reserved.get(name, 0) - leaving_firm.get(name, 0)
            all_claims = firm_total + reclaimable_total + more - leaving.get(name, 0)
            now = firm.get(name, 0) + reclaimable_total + (0 if request.nominated else more)
            excess = (
                max(all_claims, now)
                if reclaims and not request.nominated
                else max(firm_and_slots + more, all_claims, now)
            )
            if excess > self.capacity.get(name, 0):
                missing[name] = excess - self.capacity.get(name, 0)
        return missing

    def _leaving(self, request: ClaimRequest) -> tuple[Amounts, Amounts]:
        """Resources that the victims of nominated claims and of `request` release: the firm part, and the total."""
        if not self.nominated_claims and not request.victims:
            return {}, {}
        keys = {victim_key(request.namespace, v): None for v in request.victims}
        for claim in self.nominated_claims.values():
            keys.update({victim_key(claim.namespace, v): None for v in claim.victims})
        firm: Amounts = {}
        all_claims: Amounts = {}
        for key in keys:
            victim = self.claims.get(key)
            if victim is None or victim.nominated:
                continue
            add(all_claims, victim.amounts)
            if victim.capacity_class is not CapacityClass.RECLAIMABLE:
                add(firm, victim.amounts)
        return firm, all_claims
