"""What a region says of exclusive work is as new as what it says it about.

Once a region has acknowledged an Assignment without naming an ordinal, another region may have that ordinal. Replicas
and Assignments come by watches of their own, and one may lag: a replica of an earlier epoch that nobody has told of yet
would be missing from the word, and run on. Later it cannot come to be, as the gate makes none without its Assignment.
So before a new epoch is acknowledged the replicas are asked for, and nothing is said where they cannot be.
"""

from __future__ import annotations

from holdfast.client.contract import Client
from holdfast.controllers.informer import Informers
from holdfast.model.assignment import Assignment
from holdfast.model.errors import Unavailable
from holdfast.model.meta import Key
from holdfast.model.replica import Replica
from holdfast.model.view import View


async def refresh_replicas(key: Key, originals: View, here: Informers, client: Client) -> None:
    """Brings the replicas of an assignment into the cache, where its next word rests on it. `client` is of this region.
    Raises Faults: then nothing must be said. What is said must follow at once, before anything else is heard."""
    original = originals.get(Assignment, key.name, key.namespace)
    copy = here.cache.get(Assignment, key.name, key.namespace)
    if original is None or copy is None or copy.spec.exclusive is None:
        return
    if original.status.observed_epoch >= copy.spec.epoch:
        return
    found = await client.list(Replica, key.namespace, fields={"assignment": str(key)})
    newest = here.cache.get(Assignment, key.name, key.namespace)
    if newest is not None and found.revision < newest.revision:
        raise Unavailable(f"replicas of {key} are read as of {found.revision}, its Assignment is of {newest.revision}")
    here.of(Replica).apply_commit(found.items)
