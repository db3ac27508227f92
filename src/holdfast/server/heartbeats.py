"""Last heartbeat of a node's agent, read from the leases when a client reads the Node.

Leases are not part of the Node, so a renewal every few seconds writes no Node and wakes no watch. The value is the
newest committed renewal; for a node without a lease, the creation time of the Node.
"""

from __future__ import annotations

from typing import cast

from holdfast.model.core_views import CoreNode, core_node_of, with_heartbeat_time
from holdfast.model.kinds import kind_of
from holdfast.model.lease_page import LeasePage
from holdfast.model.node import Node
from holdfast.model.times import seconds_text
from holdfast.store.objects import Objects

_PAGES = kind_of(LeasePage)


def node_with_heartbeat(node: Node, objects: Objects) -> CoreNode:
    shown, name = core_node_of(node), node.metadata.name
    for page in cast("list[LeasePage]", objects.list(_PAGES)[0]):
        lease = page.spec.leases.get(name)
        if lease is not None:
            return with_heartbeat_time(shown, seconds_text(lease.renewed_at_s))
    return with_heartbeat_time(shown, shown.metadata.creation_timestamp)
