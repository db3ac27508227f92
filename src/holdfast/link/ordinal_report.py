"""Lists the replicas of an exclusive Assignment before the region acknowledges a new epoch.

A region's report on exclusive work carries the epoch it describes. After an acknowledgement without an ordinal, another
region may run that ordinal. Replicas and Assignments have separate watches, and the replica watch may lag: a running
replica would be missing from the report. So the replicas are listed first. If that fails, nothing is reported. A
replica cannot be created later, because the gate refuses replicas without their Assignment.
"""

from __future__ import annotations

from holdfast.client.contract import Client
from holdfast.controllers.informer import Informers
from holdfast.model.assignment import Assignment, names_ordinals
from holdfast.model.errors import Unavailable
from holdfast.model.meta import Key
from holdfast.model.replica import Replica
from holdfast.model.view import View


async def refresh_replicas(key: Key, originals: View, here: Informers, client: Client) -> None:
    """Refreshes the cached replicas of an exclusive Assignment if its newest epoch is not acknowledged yet.

    `client` reads this region's cell. If it raises a Fault, the caller must not report. Otherwise the caller must
    report at once, before the cache changes again."""
    original = originals.get(Assignment, key.name, key.namespace)
    copy = here.cache.get(Assignment, key.name, key.namespace)
    if original is None or copy is None or not names_ordinals(copy.spec):
        return
    if original.status.observed_epoch >= copy.spec.epoch:
        return
    found = await client.list(Replica, key.namespace, fields={"assignment": str(key)})
    newest = here.cache.get(Assignment, key.name, key.namespace)
    if newest is not None and found.revision < newest.revision:
        raise Unavailable(
            f"replicas of assignment {key}: list too old (expected revision {newest.revision}, found {found.revision})"
        )
    here.of(Replica).apply_commit(found.items)
