"""The planner's working copy of a snapshot, with the proposals of this plan subtracted.

Only columns that claims change are copied. Every `place` can be undone, so that a gang that does not fit leaves no
trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.model.binding import DeviceClaim
from holdfast.model.override import Override, active_avoidances, avoidance_of, has_begun_by, is_in_scope, stays_until_s
from holdfast.model.placement_eligibility import selector_of
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.quantity import WHOLE_GPU_MILLI
from holdfast.scheduling.gpu_request_shapes import GpuShapeCounter, GpuShapes
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.snapshot import Bools, Counts, Snapshot
from holdfast.scheduling.snapshot.claim import ClaimKey, Labels, SnapshotClaim, ports_in_range
from holdfast.scheduling.snapshot.frozen import AntiAffinityGuard

_ENDLESS = 2**31
_Replica = tuple[str, str, Labels, bool]
"""Tenant, workload, labels, and whether it is a victim."""


class Scratch:
    """Free capacity during planning, by resource and slot. `unreserved` ignores reclaimable work (Snapshot.free)."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot = snapshot
        self.now = now
        self.free_for_reclaimable: Counts = snapshot.free(reclaimable=True)
        self.unreserved: Counts = snapshot.capacity - snapshot.firm - snapshot.nominated - snapshot.recovery_reserved
        self.free_for_firm: Counts = np.minimum(self.free_for_reclaimable, self.unreserved)
        """The smaller of `free_for_reclaimable` and `unreserved`."""
        self.used: Counts = snapshot.capacity - self.free_for_reclaimable
        self.gpu_free: Counts = snapshot.gpu_free.copy() if snapshot.gpu_free.size else snapshot.gpu_free
        self.ports_free: Counts = snapshot.ports_free.copy()
        self._ports: dict[int, Counter[int]] = {}
        """Fixed ports of this plan's placements by slot. A nomination takes ports that its victims still own."""
        self._open_ports: Counter[int] = Counter(snapshot.open_ports)
        """Dynamic ports of assumed claims and of this plan's placements by slot. Their numbers are not known yet."""
        self._unreliable: dict[int, list[_Replica]] = {}
        """Victims and nominations of this plan, by slot."""
        self._placed: dict[tuple[str, str], dict[Labels, dict[int, int]]] = {}
        self._guards: dict[AntiAffinityGuard, list[int]] = {}
        self._shapes: GpuShapeCounter | None = None
        self._shapes_of_request: GpuShapes | None = None
        self._placed_gpu_amounts: list[tuple[Mapping[str, int], int]] = []
        """GPU replicas that this plan placed before a request was the first to need the distribution."""
        self.touched: list[int] = []
        """Slots changed by placements of this plan, in order, one entry per change."""
        self.notes: dict[Hashable, Any] = {}
        """Values that scores cache between requests of this plan; they recompute changed slots."""
        self._avoidances = active_avoidances(snapshot.overrides, now)

    def avoidances(self, requirements: ReplicaRequirements) -> list[Override]:
        """Active overrides that exclude these replicas from the region, one of its zones or some nodes."""
        if not self._avoidances:
            return []
        region, tenant, workload = self.snapshot.region, requirements.namespace, requirements.workload
        until_s = self._stays_until_s(requirements)
        return [
            o
            for o in self._avoidances
            if is_in_scope(o, region=region, tenant=tenant, workload=workload) and has_begun_by(o, until_s)
        ]

    def avoidance_of(self, requirements: ReplicaRequirements, zone: str, node: str = "") -> Override | None:
        """The active override that excludes these replicas from the node, or without `node` from the zone; None if
        there is none."""
        return avoidance_of(
            self._avoidances,
            region=self.snapshot.region,
            zone=zone,
            tenant=requirements.namespace,
            workload=requirements.workload,
            stays_until_s=self._stays_until_s(requirements),
            node=node,
        )

    def _stays_until_s(self, requirements: ReplicaRequirements) -> float:
        return stays_until_s(requirements.template, requirements.max_unavailable, requirements.active_until, self.now)

    def rows(self, requirements: ReplicaRequirements) -> list[tuple[int, int]]:
        """(row, amount) of every requested resource that some node offers."""
        resources = self.snapshot.resources
        return [(resources[name], amount) for name, amount in requirements.amounts.items() if name in resources]

    def begin_request(self) -> None:
        """The next request is planned: it counts the GPU request shapes anew."""
        self._shapes_of_request = None

    def shapes(self, requirements: ReplicaRequirements) -> GpuShapes:
        """The distribution of GPU request shapes before the request is placed, with one replica of the request. It is
        the same for all members, and depends on claims and earlier placements alike."""
        if self._shapes_of_request is None:
            if self._shapes is None:
                self._shapes = GpuShapeCounter(self.snapshot)
                for amounts, sign in self._placed_gpu_amounts:
                    self._shapes.add(amounts.items(), sign)
            self._shapes.add(requirements.amounts.items(), 1)
            self._shapes_of_request = self._shapes.columns()
            self._shapes.add(requirements.amounts.items(), -1)
        return self._shapes_of_request

    def ports(self, slot: int) -> frozenset[int]:
        taken = self._ports.get(slot)
        return self.snapshot.ports[slot] | frozenset(taken) if taken else self.snapshot.ports[slot]

    def fixed_ports_free(self, ports: Iterable[int], slot: int) -> bool:
        """Whether the node has these fixed ports free. A port in the range of dynamic ports is not certain to be free
        while dynamic ports there have no numbers yet, from this plan or from one that is not committed."""
        node = self.snapshot.static.nodes[slot]
        return self.ports(slot).isdisjoint(ports) and not (slot in self._open_ports and ports_in_range(node, ports))

    def slots_with_taken_ports(self) -> Iterable[int]:
        """Slots whose ports in use the snapshot does not list completely."""
        return self._ports.keys() | self._open_ports.keys()

    def stopping_groups(self, namespace: str) -> Iterator[tuple[str, Labels, Mapping[int, int]]]:
        """(workload, labels, count per slot) of the tenant's claims that are stopping."""
        for key, groups in self.snapshot.stopping.items():
            if key[0] == namespace:
                for labels, counts in groups.items():
                    yield key[1], labels, counts

    def unreliable_neighbours(self, namespace: str, *, nominated: bool) -> Iterator[tuple[int, str, Labels]]:
        """(slot, workload, labels) of the tenant's claims in `groups` that affinity must not rely on: victims, which
        will stop, and with `nominated` also the claims that wait for victims."""
        snapshot = self.snapshot
        for node, waiting in snapshot.nominations.items():
            slot, claims = snapshot.slots.get(node), snapshot.claims.get(node, {})
            if slot is None:
                continue
            named = (claims.get(ClaimKey(*name.split("/", 1))) for claim in waiting for name in claim.victims)
            for claim in (*waiting, *named) if nominated else named:
                if claim is not None and claim.namespace == namespace and not claim.stopping:
                    yield slot, claim.workload, claim.labels
        for slot, replicas in self._unreliable.items():
            for tenant, workload, labels, leaves in replicas:
                if tenant == namespace and (leaves or nominated):
                    yield slot, workload, labels

    def count_victim(self, claim: SnapshotClaim, slot: int, sign: int) -> None:
        """Adds (1) or removes (-1) a victim of this plan."""
        self._count_unreliable((claim.namespace, claim.workload, claim.labels, True), slot, sign)

    def _count_unreliable(self, replica: _Replica, slot: int, sign: int) -> None:
        there = self._unreliable.setdefault(slot, [])
        there.append(replica) if sign > 0 else there.remove(replica)
        if not there:
            del self._unreliable[slot]

    def groups(self, namespace: str) -> Iterator[tuple[str, Labels, Mapping[int, int]]]:
        """(workload, labels, count per slot) of the tenant's claims and proposals, without claims that are stopping."""
        placed = self.snapshot.placed
        for key in placed:
            if key[0] == namespace and key not in self._placed:
                for labels, counts in placed[key].items():
                    yield key[1], labels, counts
        for key, groups in self._placed.items():
            if key[0] == namespace:
                for labels, counts in groups.items():
                    yield key[1], labels, counts

    def guards(self, namespace: str) -> Iterator[tuple[AntiAffinityGuard, Mapping[int, int]]]:
        """(anti-affinity guard, count per slot) of the tenant's claims and proposals."""
        slots = self.snapshot.slots
        for guard, nodes in self.snapshot.guards.items():
            if guard.namespace == namespace:
                yield guard, {slots[name]: count for name, count in nodes.items() if name in slots}
        for guard, proposed in self._guards.items():
            if guard.namespace == namespace and proposed:
                yield guard, Counter(proposed)

    def counts(self, namespace: str, workload: str) -> dict[int, int]:
        """Replicas of a workload per slot, of all revisions, without those that are stopping."""
        key = (namespace, workload)
        groups = self._placed.get(key) or self.snapshot.placed.get(key) or {}
        total: dict[int, int] = {}
        for counts in groups.values():
            for slot, count in counts.items():
                total[slot] = total.get(slot, 0) + count
        return total

    def replicas_that_fit(self, requirements: ReplicaRequirements, slot: int) -> int:
        """Number of further identical replicas that fit on the node by resources, devices and ports."""
        left = _ENDLESS
        for row, amount in self.rows(requirements):
            free = int(
                (
                    self.free_for_reclaimable
                    if requirements.reclaimable or requirements.uses_recovery_slots
                    else self.free_for_firm
                )[row, slot]
            )
            left = min(left, free // amount)
        if requirements.open_ports:
            fixed = ports_in_range(self.snapshot.static.nodes[slot], requirements.fixed_ports)
            left = min(left, (int(self.ports_free[slot]) - fixed) // requirements.open_ports)
        if requirements.fixed_ports and not self.fixed_ports_free(requirements.fixed_ports, slot):
            return 0
        if requirements.gpu_milli and left > 0:
            return 1 if self.choose_devices(requirements, slot) else 0
        return max(left, 0)

    def gpu_usable(self, requirements: ReplicaRequirements) -> Bools:
        """[device, slot]: devices of a requested model that are free for the share, or entirely."""
        static = self.snapshot.static
        need = requirements.gpu_milli if not requirements.whole_gpus else WHOLE_GPU_MILLI
        usable: Bools = self.gpu_free >= need
        if requirements.template.gpu_models:
            matching = [i for i, model in enumerate(static.gpu_models) if model in requirements.template.gpu_models]
            usable = usable & np.isin(static.gpu_model, matching)
        return usable & (static.gpu_model >= 0)

    def choose_devices(self, requirements: ReplicaRequirements, slot: int) -> tuple[DeviceClaim, ...]:
        """Whole GPUs in the node's order; a share on the GPU with the least left over. Empty if it does not fit."""
        static = self.snapshot.static
        ids, free = static.gpu_ids[slot], self.gpu_free[:, slot].tolist()
        models = requirements.template.gpu_models
        matching = [i for i in range(len(ids)) if not models or static.gpu_models[static.gpu_model[i, slot]] in models]
        if requirements.whole_gpus:
            whole = [i for i in matching if free[i] >= WHOLE_GPU_MILLI][: requirements.whole_gpus]
            return tuple(DeviceClaim(id=ids[i]) for i in whole) if len(whole) == requirements.whole_gpus else ()
        share = min(((free[i], i) for i in matching if free[i] >= requirements.gpu_milli), default=None)
        return (DeviceClaim(id=ids[share[1]], milli=requirements.gpu_milli),) if share is not None else ()

    def place(self, requirements: ReplicaRequirements, slot: int) -> tuple[DeviceClaim, ...]:
        """Subtracts one replica from the node; returns its devices."""
        devices = self.choose_devices(requirements, slot) if requirements.gpu_milli else ()
        self._take(requirements, slot, devices, 1)
        return devices

    def undo(self, requirements: ReplicaRequirements, slot: int, devices: tuple[DeviceClaim, ...]) -> None:
        self._take(requirements, slot, devices, -1)

    def nominate(self, requirements: ReplicaRequirements, slot: int, sign: int) -> None:
        """Subtracts (1) or adds back (-1) a replica that waits for victims. Its devices still belong to the victims."""
        self._take(requirements, slot, (), sign)
        replica = (requirements.namespace, requirements.workload, requirements.labels, False)
        self._count_unreliable(replica, slot, sign)

    def _take(self, requirements: ReplicaRequirements, slot: int, devices: tuple[DeviceClaim, ...], sign: int) -> None:
        self.touched.append(slot)
        for row, amount in self.rows(requirements):
            self.free_for_reclaimable[row, slot] -= sign * amount
            self.used[row, slot] += sign * amount
            if not requirements.reclaimable:
                self.unreserved[row, slot] -= sign * amount
            self.free_for_firm[row, slot] = min(self.free_for_reclaimable[row, slot], self.unreserved[row, slot])
        if self._shapes is not None:
            self._shapes.add(requirements.amounts.items(), sign)
        elif requirements.gpu_milli:
            self._placed_gpu_amounts.append((requirements.amounts, sign))
        if devices:
            ids = self.snapshot.static.gpu_ids[slot]
            for device in devices:
                self.gpu_free[ids.index(device.id), slot] -= sign * device.milli
        if requirements.open_ports:
            self.ports_free[slot] -= sign * requirements.open_ports
            self._open_ports[slot] += sign * requirements.open_ports
            if not self._open_ports[slot]:
                del self._open_ports[slot]
        if requirements.fixed_ports:
            self.ports_free[slot] -= sign * ports_in_range(self.snapshot.static.nodes[slot], requirements.fixed_ports)
            self._take_ports(slot, requirements.fixed_ports, sign)
        key = (requirements.namespace, requirements.workload)
        groups = self._placed.get(key)
        if groups is None:
            placed = self.snapshot.placed.get(key, {})
            groups = self._placed[key] = {labels: dict(counts) for labels, counts in placed.items()}
        counts = groups.setdefault(requirements.labels, {})
        counts[slot] = counts.get(slot, 0) + sign
        if not counts[slot]:
            del counts[slot]
        for rule in required_anti_affinity(requirements.placement) if requirements.placement.affinity else ():
            guard = AntiAffinityGuard(requirements.namespace, requirements.workload, rule.topology, selector_of(rule))
            proposed = self._guards.setdefault(guard, [])
            proposed.append(slot) if sign > 0 else proposed.remove(slot)

    def _take_ports(self, slot: int, ports: tuple[int, ...], sign: int) -> None:
        taken = self._ports.setdefault(slot, Counter())
        for port in ports:
            taken[port] += sign
            if not taken[port]:
                del taken[port]
        if not taken:
            del self._ports[slot]
