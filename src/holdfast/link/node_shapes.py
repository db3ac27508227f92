"""Shapes of a region's nodes for its report: how much is free on single nodes, not only in the sum.

- A reported shape never promises more than its nodes have: shapes are joined by the smaller amount of each resource.
- The number of shapes is bounded, whatever the number of nodes. The nodes with most of a resource stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.model.binding import Binding, DeviceClaim, Reservation
from holdfast.model.node import Node, node_capacity, unschedulable_reason
from holdfast.model.node_pool import NodePool
from holdfast.model.quantity import GPU, STORAGE, WHOLE_GPU_MILLI, Amounts, amounts, amounts_text
from holdfast.model.recovery_slot import RecoverySlot, is_admitted
from holdfast.model.region import NodeShape
from holdfast.model.view import View
from holdfast.model.volume import Volume, volume_bytes

# Free shapes in one report. Above it, shapes that are alike are joined, so the estimate gets lower; 64 take about 6 KB.
FREE_SHAPES_MAX = 64
# Shapes of whole nodes in one report. A region has few kinds of machines.
NODE_SHAPES_MAX = 12
# Nodes with most of a resource that are never joined with others, per resource: large replicas depend on them.
LARGEST_KEPT = 4

Rows = npt.NDArray[np.int64]
Place = tuple[str, str, str]
"""Zone, pool and owning tenant."""
PerNode = Mapping[tuple[str, str], int]
"""Amounts by node and resource; a device counts under its id."""


class _Shapes(NamedTuple):
    """Distinct shapes and their number of nodes. Columns of a row: place, resources, the same resources in recovery
    slots, largest free part of a shared GPU."""

    places: Sequence[Place]
    resources: Sequence[str]
    rows: Rows
    nodes: Rows


def free_shapes(here: View) -> tuple[NodeShape, ...]:
    """Free resources of the region's schedulable nodes."""
    capacity = here.total(Node, "", _capacity_by_node)
    bound, held = here.total(Binding, "", _bound_by_node), here.total(Reservation, "", _reserved_by_node)
    slots = here.total(RecoverySlot, "", _slots_by_node)
    volumes = here.total(Volume, "", _volumes_by_node)
    devices: dict[str, tuple[int, int]] = {}
    free: dict[tuple[Place, str], dict[str, int]] = {}
    for (place, name, resource), amount in capacity.items():
        left = amount - bound.get((name, resource), 0) - (held.get((name, resource), 0) if held else 0)
        left -= volumes.get((name, resource), 0) if volumes else 0
        if resource.startswith(_DEVICE):
            whole, shared = devices.get(name, (0, 0))
            devices[name] = (whole + 1, shared) if left >= WHOLE_GPU_MILLI else (whole, max(shared, left))
        else:
            free.setdefault((place, name), {})[resource] = max(0, left)
    places, resources = sorted({place for place, _ in free}), sorted({name for row in free.values() for name in row})
    number = {place: index for index, place in enumerate(places)}
    rows, no_slots = [], [0] * len(resources)
    for (place, name), unclaimed in free.items():
        whole, shared = devices.get(name, (0, 0))
        if GPU in unclaimed:
            unclaimed[GPU] = min(unclaimed[GPU], whole * WHOLE_GPU_MILLI)
        reserved = [min(slots.get((name, r), 0), unclaimed.get(r, 0)) for r in resources] if slots else no_slots
        left_over = [unclaimed.get(r, 0) - kept for r, kept in zip(resources, reserved, strict=True)]
        rows.append((number[place], *left_over, *reserved, shared))
    return _reported(_Shapes(places, resources, *_distinct(_table(rows, resources))), FREE_SHAPES_MAX)


def node_shapes(here: View) -> tuple[NodeShape, ...]:
    """Capacity of the region's nodes, and of the nodes that its pools may add."""
    found = dict(here.total(Node, "", _whole_nodes))
    for pool in here.list(NodePool):
        more = pool.spec.max_nodes - len(pool.status.nodes)
        for zone in pool.spec.zones if more > 0 else ():
            key = ((zone, pool.metadata.name, ""), tuple(amounts(pool.spec.capacity).items()))
            found[key] = found.get(key, 0) + more
    places = sorted({place for place, _ in found})
    resources = sorted({name for _, pairs in found for name, _ in pairs})
    rows, nodes = [], []
    for (place, pairs), count in sorted(found.items()):
        rows.append((places.index(place), *(dict(pairs).get(r, 0) for r in resources), *(0 for _ in resources), 0))
        nodes.append(count)
    counts = np.array(nodes, dtype=np.int64)
    return _reported(_Shapes(places, resources, _table(rows, resources), counts), NODE_SHAPES_MAX)


_DEVICE = "device/"


def _capacity_by_node(node: Node) -> Mapping[tuple[Place, str, str], int]:
    """Maintained totals, because a region has thousands of nodes."""
    if unschedulable_reason(node):
        return {}
    name, place = node.metadata.name, (node.spec.zone, node.spec.pool, node.spec.tenant)
    found = {(place, name, resource): amount for resource, amount in node_capacity(node).items()}
    for device in node.spec.devices:
        if device.kind == GPU:
            found[place, name, _DEVICE + device.id] = device.milli
    return found


def _whole_nodes(node: Node) -> Mapping[tuple[Place, tuple[tuple[str, int], ...]], int]:
    if unschedulable_reason(node):
        return {}
    place = (node.spec.zone, node.spec.pool, node.spec.tenant)
    return {(place, tuple(sorted(node_capacity(node).items()))): 1}


def _claims(node: str, resources: Amounts, devices: Sequence[DeviceClaim]) -> PerNode:
    found = {(node, name): amount for name, amount in resources.items()}
    for device in devices:
        found[node, _DEVICE + device.id] = device.milli
    return found


def _bound_by_node(binding: Binding) -> PerNode:
    return _claims(binding.spec.node, amounts(binding.spec.resources), binding.spec.devices)


def _reserved_by_node(reservation: Reservation) -> PerNode:
    return _claims(reservation.spec.node, amounts(reservation.spec.resources), reservation.spec.devices)


def _volumes_by_node(volume: Volume) -> PerNode:
    return {(volume.spec.node, STORAGE): volume_bytes(volume.spec.size)}


def _slots_by_node(slot: RecoverySlot) -> PerNode:
    """Unused slots. A claim counts for the slot that it consumes."""
    consumer = slot.status.consumer
    if not is_admitted(slot) or (consumer is not None and consumer.replica_uid):
        return {}
    return {(slot.spec.node, name): amount for name, amount in amounts(slot.spec.resources).items()}


def _table(rows: Sequence[tuple[int, ...]], resources: Sequence[str]) -> Rows:
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2 * len(resources) + 2)


def _distinct(rows: Rows) -> tuple[Rows, Rows]:
    """Distinct rows, sorted, and how often each occurs."""
    group = _groups(rows)
    first = np.unique(group, return_index=True)[1]
    return rows[first], np.bincount(group).astype(np.int64)


def _groups(rows: Rows) -> Rows:
    """A number per row, the same for equal rows, in the order of the rows."""
    used = rows[:, rows.any(axis=0)]
    order = np.lexsort(used.T[::-1]) if used.shape[1] else np.arange(len(rows))
    change = (used[order][1:] != used[order][:-1]).any(axis=1)
    group = np.empty(len(rows), dtype=np.int64)
    group[order] = np.concatenate([[0], np.cumsum(change)])[: len(rows)]
    return group


def _reported(found: _Shapes, most: int) -> tuple[NodeShape, ...]:
    """At most `most` shapes. Nodes without free resources are left out."""
    useful = found.rows[:, 1:].any(axis=1)
    found = found._replace(rows=found.rows[useful], nodes=found.nodes[useful])
    if len(found.rows) > most:
        found = _joined(found, most)
    width = len(found.resources)
    shapes = []
    for row, count in zip(found.rows.tolist(), found.nodes.tolist(), strict=True):
        zone, pool, tenant = found.places[row[0]]
        free, reserved = (
            {name: amount for name, amount in zip(found.resources, part, strict=True) if amount}
            for part in (row[1 : width + 1], row[width + 1 : -1])
        )
        shapes.append(
            NodeShape(
                zone=zone,
                pool=pool,
                tenant=tenant,
                nodes=count,
                resources=dict(amounts_text(free)),
                recovery_reserved=dict(amounts_text(reserved)),
                shared_gpu=row[-1],
            )
        )
    return tuple(shapes)


class _Split(NamedTuple):
    """The best division of a group in two: rows with at least `least` in `column`, and the others."""

    gain: float
    column: int
    least: int


def _joined(found: _Shapes, most: int) -> _Shapes:
    """Joins shapes of one place that are alike. A joined shape has the smallest amount of each resource.

    All shapes of a place start as one group; the division that loses least room is made until there are enough."""
    largest = np.zeros(len(found.rows), dtype=bool)
    for column in range(1, len(found.resources) + 1):
        largest[np.argsort(-found.rows[:, column], kind="stable")[:LARGEST_KEPT]] = True
    kept, kept_nodes = found.rows[largest][:most], found.nodes[largest][:most]
    rows, nodes = found.rows[~largest], found.nodes[~largest]
    by_place = [np.flatnonzero(rows[:, 0] == place) for place in np.unique(rows[:, 0])]
    by_place.sort(key=lambda members: (-int(nodes[members].sum()), int(rows[members[0], 0])))
    groups = by_place[: most - len(kept)]
    scale = np.maximum(1, (rows * nodes[:, np.newaxis]).sum(axis=0, dtype=np.float64))
    splits = [_best_split(rows[members], nodes[members], scale) for members in groups]
    while groups and len(groups) + len(kept) < most:
        chosen = max(range(len(groups)), key=lambda index: splits[index].gain)
        if not splits[chosen].gain:
            break
        members, split = groups[chosen], splits[chosen]
        above = rows[members, split.column] >= split.least
        groups[chosen] = members[above]
        groups.append(members[~above])
        splits[chosen] = _best_split(rows[groups[chosen]], nodes[groups[chosen]], scale)
        splits.append(_best_split(rows[groups[-1]], nodes[groups[-1]], scale))
    joined = [rows[members].min(axis=0) for members in groups]
    return found._replace(
        rows=np.concatenate([kept, *(row[np.newaxis] for row in joined)]),
        nodes=np.concatenate([kept_nodes, np.array([nodes[members].sum() for members in groups], dtype=np.int64)]),
    )


def _best_split(rows: Rows, nodes: Rows, scale: npt.NDArray[np.float64]) -> _Split:
    """The division that reports most of a resource, relative to `scale`, the region's sum of it."""
    best = _Split(0.0, 0, 0)
    for column in range(1, rows.shape[1]):
        order = np.argsort(rows[:, column], kind="stable")
        values = rows[order, column]
        if values[0] == values[-1]:
            continue
        at_least = nodes[order][::-1].cumsum()[::-1]
        gains = (values - values[0]).astype(np.float64) * at_least
        index = int(gains.argmax())
        gain = float(gains[index] / scale[column])
        if gain > best.gain:
            best = _Split(gain, column, int(values[index]))
    return best
