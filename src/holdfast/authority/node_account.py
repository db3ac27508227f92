"""One node's account in the ledger: what it has, who holds what of it, and whether more fits. Pure.

The capacity rule, for every resource (architecture, section 5):
    firm + held + nominated - victims.firm - drawn <= capacity
    firm + reclaimable + nominated - victims       <= capacity
    firm + reclaimable                             <= capacity
A hold named by a claim is drawn: it no longer counts as held. A node whose capacity shrank under its claims is
overcommitted: a state that refuses more, and never a reason to forget a claim.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.authority.claims import Claim, ClaimRequest, victim_key
from holdfast.model.binding import CapacityClass
from holdfast.model.node import Device, Node, node_capacity
from holdfast.model.quantity import Amounts, add


class NodeAccount:
    """Changed only by the ledger. `port_cursor` is a hint: where the search for a free port begins."""

    __slots__ = (
        "capacity",
        "claims",
        "device_use",
        "devices",
        "firm",
        "recovery_slots",
        "name",
        "nominated",
        "port_cursor",
        "port_range",
        "ports",
        "reclaimable",
        "revision",
        "nominated_claims",
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
        """Nominated claims: those that wait for victims."""

    def update_from(self, node: Node) -> None:
        """Takes over what the node has now."""
        if self.revision == node.revision and self.revision:
            return
        self.revision = node.revision
        self.capacity = node_capacity(node)
        self.devices = {d.id: d for d in sorted(node.spec.devices, key=lambda d: d.id)}
        self.port_range = node.spec.port_range
        if not self.port_range[0] <= self.port_cursor <= self.port_range[1]:
            self.port_cursor = self.port_range[0]

    def book(self, claim: Claim, sign: int) -> None:
        """Adds (1) or takes away (-1) a claim; the ledger keeps this balanced."""
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
            for port in claim.ports.values():
                self.ports[port] = claim.key
                if self.port_range[0] <= port <= self.port_range[1]:
                    self.port_cursor = port + 1
            return
        del self.claims[claim.key]
        self.nominated_claims.pop(claim.key, None)
        for device in claim.devices:
            owners = self.device_use[device.id]
            del owners[claim.key]
            if not owners:
                del self.device_use[device.id]
        for port in claim.ports.values():
            if self.ports.get(port) == claim.key:
                del self.ports[port]

    def recovery_reserved(self, drawing: tuple[str, ...] = ()) -> Amounts:
        """What recovery holds keep free here, without those that a claim, or `drawing`, uses up."""
        if not self.recovery_slots:
            return {}
        drawn = set(drawing)
        for claim in self.claims.values():
            drawn.update(claim.recovery_slots)
        total: Amounts = {}
        for name, held in self.recovery_slots.items():
            if name not in drawn:
                add(total, held)
        return total

    def slot_shortage(self, amounts: Amounts) -> Amounts:
        """By how much keeping one more recovery place would break the rule; reclaimable work may run in it."""
        held = self.recovery_reserved()
        leaving_firm, _ = self._leaving(ClaimRequest("", "", "", "", 0, {}, CapacityClass.FIRM))
        short: Amounts = {}
        for name, more in amounts.items():
            solid = self.firm.get(name, 0) + self.nominated.get(name, 0) - leaving_firm.get(name, 0)
            over = solid + held.get(name, 0) + more - self.capacity.get(name, 0)
            if over > 0:
                short[name] = over
        return short

    def choose_slots(self, want: ClaimRequest, allowed: Iterable[str]) -> tuple[str, ...]:
        """The undrawn places, of those allowed, that a recovery claim should use.

        The closest fit that covers it, else as few as make room; none when it fits without.
        """
        drawn = {name for claim in self.claims.values() for name in claim.recovery_slots}
        idle = {name: self.recovery_slots[name] for name in sorted(allowed) if name in self.recovery_slots and name not in drawn}
        covering = [n for n, held in idle.items() if all(held.get(r, 0) >= a for r, a in want.amounts.items())]
        if covering:
            return (min(covering, key=lambda n: (sorted(idle[n].items()), n)),)
        chosen: tuple[str, ...] = ()
        for name in sorted(idle, key=lambda n: (-sum(idle[n].values()), n)):
            if not self.shortage(msgspec.structs.replace(want, recovery_slots=chosen)):
                return chosen
            chosen = (*chosen, name)
        return chosen

    def free_milli(self, device: Device) -> int:
        return device.milli - sum(self.device_use.get(device.id, {}).values())

    def overcommitted(self) -> Amounts:
        """By how much the claims exceed the capacity; empty on a sound node."""
        return self.shortage(ClaimRequest("", "", "", "", 0, {}, CapacityClass.RECLAIMABLE))

    def shortage(self, want: ClaimRequest) -> Amounts:
        """By how much the node would break the capacity rule with `want` on it, per resource; empty when it fits."""
        firm, reclaimable, nominated = self.firm, self.reclaimable, self.nominated
        reclaims = want.capacity_class is CapacityClass.RECLAIMABLE
        draws = want.recovery_slots if want.capacity_class is CapacityClass.RECOVERY else ()
        held = self.recovery_reserved(draws)
        leaving_firm, leaving = self._leaving(want)
        short: Amounts = {}
        names = want.amounts.keys() | firm.keys() | reclaimable.keys() if firm or reclaimable else want.amounts.keys()
        for name in names:
            more = want.amounts.get(name, 0)
            solid = firm.get(name, 0) + nominated.get(name, 0)
            loose = reclaimable.get(name, 0)
            kept = solid + held.get(name, 0) - leaving_firm.get(name, 0)
            everything = solid + loose + more - leaving.get(name, 0)
            now = firm.get(name, 0) + loose + (0 if want.nominated else more)
            over = max(everything, now) if reclaims and not want.nominated else max(kept + more, everything, now)
            if over > self.capacity.get(name, 0):
                short[name] = over - self.capacity.get(name, 0)
        return short

    def _leaving(self, want: ClaimRequest) -> tuple[Amounts, Amounts]:
        """What the victims of nominated claims, and of `want`, give back: the firm part, and all of it."""
        if not self.nominated_claims and not want.victims:
            return {}, {}
        keys = {victim_key(want.namespace, v): None for v in want.victims}
        for claim in self.nominated_claims.values():
            keys.update({victim_key(claim.namespace, v): None for v in claim.victims})
        firm: Amounts = {}
        everything: Amounts = {}
        for key in keys:
            victim = self.claims.get(key)
            if victim is None or victim.nominated:
                continue
            add(everything, victim.amounts)
            if victim.capacity_class is not CapacityClass.RECLAIMABLE:
                add(firm, victim.amounts)
        return firm, everything
