"""The nodes' identities of a restored region: whatever was refused before the restore stays refused.

A backup is older than the world: it still believes in certificates that were revoked or followed since, and in join
tokens that were used up or taken back. Here it learns what is remembered of the time since; where nothing is, an
operator must say whether the nodes of the backup are trusted. Pure: bytes of a backup in, bytes to store out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.gate.node_journal import ended, merged
from holdfast.model import codec
from holdfast.model.errors import StoreFailed
from holdfast.model.join import NodeIdentity
from holdfast.model.kinds import BY_NAME
from holdfast.store.contract import Put

_IDENTITY, _TOKEN = BY_NAME["NodeIdentity"], BY_NAME["JoinToken"]


def identities(entries: Iterable[Put]) -> dict[str, NodeIdentity]:
    found = (codec.decode(_IDENTITY, put.value, 0) for put in entries if put.key.startswith(_IDENTITY.prefix))
    return {identity.metadata.name: identity for identity in found}


def restored_nodes(
    entries: Sequence[Put], since: Sequence[Mapping[str, NodeIdentity]], trusted: bool | None
) -> list[Put]:
    """`since` are the memories there are of the time after the backup. `trusted` is the operator's word about nodes:
    True believes the backup where nothing is remembered, False lets each node join again."""
    saved = identities(entries)
    # A memory without any node is that of a cell which was started on nothing.
    if saved and not any(since) and trusted is None:
        raise StoreFailed(
            f"nothing is remembered of the time after the backup, and {len(saved)} nodes were members then: a "
            "certificate that was revoked since would be good again. Name a copy of nodes.journal with "
            "--node-journal, or say --distrust-nodes (each joins again, with a new token) or --trust-nodes (no "
            "certificate was revoked since)"
        )
    known = merged([saved, *since])
    if trusted is False:
        known = {node: ended(identity) for node, identity in known.items()}
    kept = [put for put in entries if not put.key.startswith((_IDENTITY.prefix, _TOKEN.prefix))]
    return kept + [Put(_IDENTITY.store_key("", node), codec.encode(known[node])) for node in sorted(known)]
