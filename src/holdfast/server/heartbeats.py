"""When a node's agent was last heard, for views of the node: read from the leases when somebody looks.

A lease is renewed every few seconds and is no part of the Node, so that a heartbeat writes no node and wakes no watch.
What is shown is the newest renewal that is on record; of a node that has no lease, when its agent registered it.
"""

from __future__ import annotations

from typing import cast

from holdfast.model.core_views import CoreNode, heard_at
from holdfast.model.kinds import kind_of
from holdfast.model.lease_page import LeasePage
from holdfast.model.times import seconds_text
from holdfast.store.objects import Objects

_PAGES = kind_of(LeasePage)


def with_heartbeats(shown: CoreNode, objects: Objects) -> CoreNode:
    name = shown.metadata.name
    for page in cast("list[LeasePage]", objects.list(_PAGES)[0]):
        lease = page.spec.leases.get(name)
        if lease is not None:
            return heard_at(shown, seconds_text(lease.renewed_at_s))
    return heard_at(shown, shown.metadata.creation_timestamp)
