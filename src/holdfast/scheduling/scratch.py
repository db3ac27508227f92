"""The planner's working copy of a snapshot: what is left after the proposals made so far in this plan.

Only what claims change is copied. Every `place` can be undone, so that a gang that does not fit leaves no trace.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.model.binding import DeviceClaim
from holdfast.model.override import Override, active_avoidances, avoidance_of, is_in_scope
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.quantity import WHOLE_GPU_MILLI
from holdfast.scheduling.gpu_request_shapes import GpuShapeCounter, GpuShapes
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.snapshot import Bools, Counts, Snapshot
from holdfast.scheduling.snapshot.claim import Labels, ports_in_range
from holdfast.scheduling.snapshot.frozen import AntiAffinityGuard

_ENDLESS = 2**31


class Scratch:
    """`room` is what reclaimable work may take; firm work must fit `firm_room` as well (Snapshot.free)."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot = snapshot
        self.now = now
        self.room: Counts = snapshot.free(reclaimable=True)
        self.firm_room: Counts = snapshot.capacity - snapshot.firm - snapshot.nominated - snapshot.recovery_reserved
        self.least_room: Counts = np.minimum(self.room, self.firm_room)
        """What firm work may take: the smaller of both, kept up to date."""
        self.used: Counts = snapshot.capacity - self.room
        self.gpu_free: Counts = snapshot.gpu_free.copy() if snapshot.gpu_free.size else snapshot.gpu_free
        self.ports_free: Counts = snapshot.ports_free.copy()
        self._ports: dict[int, frozenset[int]] = {}
        self._placed: dict[tuple[str, str], dict[Labels, dict[int, int]]] = {}
        self._guards: dict[AntiAffinityGuard, list[int]] = {}
        self._shapes: GpuShapeCounter | None = None
        self.touched: list[int] = []
        """The slots that placements of this plan changed, in order, each as often as that."""
        self.notes: dict[Hashable, Any] = {}
        """What scores keep between the asks of this plan; what a placement touched, they work out anew."""
        self._avoidances = active_avoidances(snapshot.overrides, now)

    def avoidances(self, ask: ReplicaRequirements) -> list[Override]:
        """The active overrides that keep this work away from some part of the region."""
        region, tenant, workload = self.snapshot.region, ask.namespace, ask.workload
        return [o for o in self._avoidances if is_in_scope(o, region=region, tenant=tenant, workload=workload)]

    def avoidance_of(self, ask: ReplicaRequirements, zone: str) -> Override | None:
        """The active override that keeps this work out of the zone."""
        region, tenant, workload = self.snapshot.region, ask.namespace, ask.workload
        return avoidance_of(self._avoidances, region=region, zone=zone, tenant=tenant, workload=workload)

    def rows(self, ask: ReplicaRequirements) -> list[tuple[int, int]]:
        """(row, amount) of every resource asked for that any node has ever offered."""
        resources = self.snapshot.resources
        return [(resources[name], amount) for name, amount in ask.amounts.items() if name in resources]

    def shapes(self, ask: ReplicaRequirements) -> GpuShapes:
        """The shapes of GPU work there are, this ask's among them. Counted when a score first wants to know."""
        if self._shapes is None:
            self._shapes = GpuShapeCounter(self.snapshot)
            self._shapes.add(ask.amounts.items(), 1)
        return self._shapes.columns()

    def ports(self, slot: int) -> frozenset[int]:
        changed = self._ports.get(slot)
        return self.snapshot.ports[slot] if changed is None else changed

    def changed_ports(self) -> Mapping[int, frozenset[int]]:
        return self._ports

    def groups(self, namespace: str) -> Iterator[tuple[str, Labels, Mapping[int, int]]]:
        """(workload, labels, count per slot) of everything a tenant has placed or been proposed."""
        placed = self.snapshot.placed
        for key in placed:
            if key[0] == namespace and key not in self._placed:
                for labels, counts in placed[key].items():
                    yield key[1], labels, counts
        for key, groups in self._placed.items():
            if key[0] == namespace:
                for labels, counts in groups.items():
                    yield key[1], labels, counts

    def guards(self, namespace: str) -> Iterator[tuple[AntiAffinityGuard, list[int]]]:
        """(who keeps whom off, slots) of everything a tenant has placed or been proposed."""
        slots = self.snapshot.slots
        for guard, nodes in self.snapshot.guards.items():
            if guard.namespace == namespace:
                yield guard, [slots[name] for name in nodes if name in slots]
        for guard, proposed in self._guards.items():
            if guard.namespace == namespace and proposed:
                yield guard, proposed

    def counts(self, namespace: str, workload: str) -> dict[int, int]:
        """How many replicas of a workload each slot has, whatever their revision."""
        key = (namespace, workload)
        groups = self._placed.get(key) or self.snapshot.placed.get(key) or {}
        total: dict[int, int] = {}
        for counts in groups.values():
            for slot, count in counts.items():
                total[slot] = total.get(slot, 0) + count
        return total

    def fits(self, ask: ReplicaRequirements, slot: int) -> int:
        """How many more like replicas one node could take by resources, devices and ports."""
        left = _ENDLESS
        for row, amount in self.rows(ask):
            free = int((self.room if ask.reclaimable or ask.uses_recovery_slots else self.least_room)[row, slot])
            left = min(left, free // amount)
        if ask.open_ports:
            left = min(left, int(self.ports_free[slot]) // ask.open_ports)
        if ask.fixed_ports and not self.ports(slot).isdisjoint(ask.fixed_ports):
            return 0
        if ask.gpu_milli and left > 0:
            return 1 if self.choose_devices(ask, slot) else 0
        return max(left, 0)

    def gpu_usable(self, ask: ReplicaRequirements) -> Bools:
        """[device, slot]: devices of a wanted model with enough free for one share, or free as a whole."""
        static = self.snapshot.static
        need = ask.gpu_milli if not ask.whole_gpus else WHOLE_GPU_MILLI
        usable: Bools = self.gpu_free >= need
        if ask.template.gpu_models:
            wanted = [i for i, model in enumerate(static.gpu_models) if model in ask.template.gpu_models]
            usable = usable & np.isin(static.gpu_model, wanted)
        return usable & (static.gpu_model >= 0)

    def choose_devices(self, ask: ReplicaRequirements, slot: int) -> tuple[DeviceClaim, ...]:
        """Whole GPUs in the node's order; a share goes where the least is left over. Empty when it does not fit."""
        static = self.snapshot.static
        ids, free = static.gpu_ids[slot], self.gpu_free[:, slot].tolist()
        models = ask.template.gpu_models
        wanted = [i for i in range(len(ids)) if not models or static.gpu_models[static.gpu_model[i, slot]] in models]
        if ask.whole_gpus:
            whole = [i for i in wanted if free[i] >= WHOLE_GPU_MILLI][: ask.whole_gpus]
            return tuple(DeviceClaim(id=ids[i]) for i in whole) if len(whole) == ask.whole_gpus else ()
        share = min(((free[i], i) for i in wanted if free[i] >= ask.gpu_milli), default=None)
        return (DeviceClaim(id=ids[share[1]], milli=ask.gpu_milli),) if share is not None else ()

    def place(self, ask: ReplicaRequirements, slot: int) -> tuple[DeviceClaim, ...]:
        """Takes what one replica asks for from the node; says which devices."""
        devices = self.choose_devices(ask, slot) if ask.gpu_milli else ()
        self._take(ask, slot, devices, 1)
        return devices

    def undo(self, ask: ReplicaRequirements, slot: int, devices: tuple[DeviceClaim, ...]) -> None:
        self._take(ask, slot, devices, -1)

    def nominate(self, ask: ReplicaRequirements, slot: int, sign: int) -> None:
        """Takes (1), or gives back (-1), what a replica that waits for victims will need; devices stay theirs."""
        self._take(ask, slot, (), sign)

    def _take(self, ask: ReplicaRequirements, slot: int, devices: tuple[DeviceClaim, ...], sign: int) -> None:
        self.touched.append(slot)
        for row, amount in self.rows(ask):
            self.room[row, slot] -= sign * amount
            self.used[row, slot] += sign * amount
            if not ask.reclaimable:
                self.firm_room[row, slot] -= sign * amount
            self.least_room[row, slot] = min(self.room[row, slot], self.firm_room[row, slot])
        if self._shapes is not None:
            self._shapes.add(ask.amounts.items(), sign)
        if devices:
            ids = self.snapshot.static.gpu_ids[slot]
            for device in devices:
                self.gpu_free[ids.index(device.id), slot] -= sign * device.milli
        if ask.open_ports:
            self.ports_free[slot] -= sign * ask.open_ports
        if ask.fixed_ports:
            self.ports_free[slot] -= sign * ports_in_range(self.snapshot.static.nodes[slot], ask.fixed_ports)
            there, mine = self.ports(slot), frozenset(ask.fixed_ports)
            self._ports[slot] = there | mine if sign > 0 else there - mine
        key = (ask.namespace, ask.workload)
        groups = self._placed.get(key)
        if groups is None:
            known = self.snapshot.placed.get(key, {})
            groups = self._placed[key] = {labels: dict(counts) for labels, counts in known.items()}
        counts = groups.setdefault(ask.labels, {})
        counts[slot] = counts.get(slot, 0) + sign
        if not counts[slot]:
            del counts[slot]
        for rule in required_anti_affinity(ask.placement) if ask.placement.affinity else ():
            guard = AntiAffinityGuard(ask.namespace, ask.workload, rule.topology, tuple(sorted(rule.workload_labels.items())))
            proposed = self._guards.setdefault(guard, [])
            proposed.append(slot) if sign > 0 else proposed.remove(slot)
