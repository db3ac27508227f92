"""Node facts as columns: identity, capacity, devices, labels, taints. Does not know claims.

A node keeps its slot while it exists; slots are reused. An update without changed facts, such as a heartbeat, replaces
only the stored object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.model.host_paths import NodeHostPath
from holdfast.model.node import Device, Node, cached_digests, node_capacity, unschedulable_reason
from holdfast.model.placement_rules import Taint
from holdfast.model.quantity import CPU, GPU, MEMORY
from holdfast.scheduling.snapshot.columns import GrowingColumn
from holdfast.scheduling.snapshot.frozen import Bools, Counts, StaticFacts

_FIRST_SLOTS = 64
_NO_GPUS: tuple[Device, ...] = ()


class NodeTable:
    def __init__(self) -> None:
        slots = _FIRST_SLOTS
        self.slots: dict[str, int] = {}
        self.resources: dict[str, int] = {CPU: 0, MEMORY: 1}
        self.capacity: Counts = np.zeros((2, slots), dtype=np.int64)
        self.gpus: list[tuple[Device, ...]] = [_NO_GPUS] * slots
        self.gpu_width = 0
        self._objects: list[Node | None] = [None] * slots
        self._open: list[int] = list(range(slots - 1, -1, -1))
        self._name_hash: NDArray[np.uint64] = np.zeros(slots, dtype=np.uint64)
        self._zone: GrowingColumn[str] = GrowingColumn("", slots)
        self._pool: GrowingColumn[str] = GrowingColumn("", slots)
        self._tenant: GrowingColumn[str] = GrowingColumn("", slots)
        self._refusal: GrowingColumn[str] = GrowingColumn("", slots)
        self._drivers: GrowingColumn[tuple[str, ...]] = GrowingColumn((), slots)
        self._host_paths: GrowingColumn[tuple[NodeHostPath, ...]] = GrowingColumn((), slots)
        self._warm: GrowingColumn[tuple[str, ...]] = GrowingColumn((), slots)
        self._taints: GrowingColumn[tuple[Taint, ...]] = GrowingColumn((), slots)
        self._labels: dict[str, GrowingColumn[str | None]] = {}
        self.top = 0
        """One above the highest slot ever used; a snapshot copies only slots below it."""
        self._version = 0
        self._frozen: StaticFacts | None = None
        self._frozen_slots: Mapping[str, int] | None = None

    @property
    def size(self) -> int:
        return len(self._objects)

    def node(self, name: str) -> Node | None:
        slot = self.slots.get(name)
        return self._objects[slot] if slot is not None else None

    def put(self, node: Node) -> bool:
        """Applies a node. Returns whether it is new or its capacity, devices or ports changed: recount its claims."""
        name, spec = node.metadata.name, node.spec
        slot = self.slots.get(name)
        old = self._objects[slot] if slot is not None else None
        if slot is None:
            slot = self._take_slot(name)
        self._objects[slot] = node
        if old is not None and old.spec is spec and old.metadata.labels == node.metadata.labels:
            changed = False
        else:
            changed = self._put_labels(slot, node.metadata.labels)
            changed |= self._zone.put(slot, spec.zone)
            changed |= self._pool.put(slot, spec.pool)
            changed |= self._tenant.put(slot, spec.tenant)
            changed |= self._drivers.put(slot, spec.drivers)
            changed |= self._host_paths.put(slot, spec.host_paths)
            changed |= self._taints.put(slot, spec.taints)
        changed |= self._refusal.put(slot, unschedulable_reason(node))
        changed |= self._warm.put(slot, cached_digests(node.status.execution))
        reshaped = old is None or (
            old.spec is not spec
            and (old.spec.capacity, old.spec.devices, old.spec.port_range)
            != (spec.capacity, spec.devices, spec.port_range)
        )
        if reshaped:
            self._put_shape(slot, node)
        if changed or reshaped:
            self._change()
        return reshaped

    def drop(self, name: str) -> None:
        slot = self.slots.pop(name)
        self._objects[slot] = None
        self.capacity[:, slot] = 0
        self.gpus[slot] = _NO_GPUS
        for column in self._columns():
            column.clear(slot)
        self._open.append(slot)
        self._frozen_slots = None
        self._change()

    def frozen_slots(self) -> Mapping[str, int]:
        if self._frozen_slots is None:
            self._frozen_slots = dict(self.slots)
        return self._frozen_slots

    def freeze(self) -> StaticFacts:
        """The static facts with their memo, shared between snapshots until a node's facts change."""
        if self._frozen is None:
            models = sorted({d.model for gpus in self.gpus for d in gpus})
            index = {model: i for i, model in enumerate(models)}
            top = self.top
            gpu_model = np.full((self.gpu_width, top), -1, dtype=np.int32)
            for slot, gpus in enumerate(self.gpus[:top]):
                for position, device in enumerate(gpus):
                    gpu_model[position, slot] = index[device.model]
            live: Bools = np.array([node is not None for node in self._objects[:top]], dtype=np.bool_)
            self._frozen = StaticFacts(
                version=self._version,
                nodes=tuple(self._objects[:top]),
                has_node=live,
                name_hash=self._name_hash[:top].copy(),
                zone=self._zone.freeze(top),
                pool=self._pool.freeze(top),
                tenant=self._tenant.freeze(top),
                drivers=self._drivers.freeze(top),
                host_paths=self._host_paths.freeze(top),
                taints=self._taints.freeze(top),
                unschedulable_reason=self._refusal.freeze(top),
                cached_artifacts=self._warm.freeze(top),
                labels={key: column.freeze(top) for key, column in self._labels.items()},
                gpu_ids=tuple(tuple(d.id for d in gpus) for gpus in self.gpus[:top]),
                gpu_model=gpu_model,
                gpu_models=tuple(models),
                largest_capacity=int(self.capacity.max(initial=0)),
                memo={},
            )
        return self._frozen

    def row(self, resource: str) -> int:
        """The row of a resource, created on first use. The usage table follows `len(resources)`."""
        row = self.resources.get(resource)
        if row is None:
            row = self.resources[resource] = len(self.resources)
            self.capacity = np.concatenate([self.capacity, np.zeros((1, self.size), dtype=np.int64)])
        return row

    def _change(self) -> None:
        self._version += 1
        self._frozen = None

    def _put_shape(self, slot: int, node: Node) -> None:
        self.capacity[:, slot] = 0
        for resource, amount in node_capacity(node).items():
            row = self.row(resource)
            self.capacity[row, slot] = amount
        self.gpus[slot] = tuple(d for d in node.spec.devices if d.kind == GPU)
        self.gpu_width = max(self.gpu_width, len(self.gpus[slot]))

    def _put_labels(self, slot: int, labels: Mapping[str, str]) -> bool:
        changed = False
        for key in labels:
            if key not in self._labels:
                self._labels[key] = GrowingColumn(None, self.size)
        for key, column in self._labels.items():
            changed |= column.put(slot, labels.get(key))
        return changed

    def _take_slot(self, name: str) -> int:
        if not self._open:
            self._grow()
        slot = self.slots[name] = self._open.pop()
        self.top = max(self.top, slot + 1)
        self._name_hash[slot] = name_hash(name)
        self._frozen_slots = None
        return slot

    def _grow(self) -> None:
        old, new = self.size, self.size * 2
        more = new - old
        self.capacity = np.concatenate([self.capacity, np.zeros((len(self.resources), more), dtype=np.int64)], axis=1)
        self.gpus.extend([_NO_GPUS] * more)
        self._objects.extend([None] * more)
        self._name_hash = np.concatenate([self._name_hash, np.zeros(more, dtype=np.uint64)])
        for column in self._columns():
            column.grow(new)
        self._open.extend(range(new - 1, old - 1, -1))

    def _columns(self) -> list[GrowingColumn[Any]]:
        return [
            self._zone,
            self._pool,
            self._tenant,
            self._refusal,
            self._drivers,
            self._host_paths,
            self._warm,
            self._taints,
            *self._labels.values(),
        ]


def name_hash(name: str) -> int:
    """64-bit hash of the name, used by the tie-break between nodes."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
