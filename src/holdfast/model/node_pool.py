"""NodePool: identical nodes that are started for pending work and stopped when idle.

The node-pool controller decides which nodes should exist (`status.nodes`). A provider outside the cell starts and stops
machines accordingly. A node is removed only while it is empty: it is cordoned in the revision that showed it empty.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.validation import Causes, check_dns_label, check_range, check_resources, check_unique, required

# Nodes of one pool. A higher `maxNodes` is refused.
NODES_MAX = 1000


class NodePoolSpec(ApiStruct, frozen=True):
    """`capacity` is that of one node. A node that was empty for `idleSeconds` is removed, down to `minNodes`."""

    zones: tuple[str, ...] = ()
    capacity: dict[str, Amount] = {}
    min_nodes: int = visible_default(0)
    max_nodes: int = visible_default(10)
    idle_seconds: float = visible_default(300.0)


class PoolNode(ApiStruct, frozen=True):
    """A node that should exist. `idleSince`: when it became empty. `removing`: cordoned, to be removed."""

    name: str
    zone: str = ""
    since: str = ""
    idle_since: str = ""
    removing: bool = False


class NodePoolStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    nodes: tuple[PoolNode, ...] = ()
    reason: str = ""
    message: str = ""


class NodePool(Object, frozen=True):
    spec: NodePoolSpec = msgspec.field(default_factory=NodePoolSpec)
    status: NodePoolStatus = msgspec.field(default_factory=NodePoolStatus)


def validate_node_pool(pool: NodePool, old: NodePool | None) -> Causes:
    yield from check_dns_label("metadata.name", pool.metadata.name)
    if not pool.spec.zones:
        yield required("spec.zones", "the zones of its nodes, for example [us-east-a]")
    yield from check_unique("spec.zones", pool.spec.zones)
    for index, zone in enumerate(pool.spec.zones):
        yield from check_dns_label(f"spec.zones[{index}]", zone)
    if not pool.spec.capacity:
        yield required("spec.capacity", "the capacity of one node, for example {cpu: 4, memory: 16Gi}")
    yield from check_resources("spec.capacity", pool.spec.capacity, device_rules=False)
    yield from check_range("spec.minNodes", pool.spec.min_nodes, 0, NODES_MAX)
    yield from check_range("spec.maxNodes", pool.spec.max_nodes, pool.spec.min_nodes, NODES_MAX)
    yield from check_range("spec.idleSeconds", pool.spec.idle_seconds, 1, 86400)
