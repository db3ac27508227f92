"""Node identities of a restored region: identities and tokens revoked before the restore stay revoked. Pure.

A backup contains certificates that were revoked or replaced since, and join tokens that were
used up or revoked. This module merges the revocation journals written since. Without any journal, the operator must say
whether the nodes of the backup are trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.identity.revocation_journal import fully_revoked, merge_identities
from holdfast.model import codec
from holdfast.model.errors import StoreFailed
from holdfast.model.join import NodeIdentity
from holdfast.model.kinds import BY_NAME
from holdfast.store.contract import Put

_IDENTITY, _TOKEN = BY_NAME["NodeIdentity"], BY_NAME["JoinToken"]


def identities_in_backup(entries: Iterable[Put]) -> dict[str, NodeIdentity]:
    found = (codec.decode(_IDENTITY, put.value, 0) for put in entries if put.key.startswith(_IDENTITY.prefix))
    return {identity.metadata.name: identity for identity in found}


def restore_identities(
    entries: Sequence[Put], since: Sequence[Mapping[str, NodeIdentity]], trusted: bool | None
) -> list[Put]:
    """The entries to store. `since` are the journals written after the backup. `trusted` is the operator's choice:
    True accepts the backup where no journal says otherwise, False makes every node join again.
    """
    saved = identities_in_backup(entries)
    # A journal without nodes comes from a cell that was started with an empty store.
    if saved and not any(since) and trusted is None:
        raise StoreFailed(
            f"backup: no revocation journal covers the time after it, and it contains {len(saved)} nodes, so a "
            "certificate revoked since would be valid again; next: add --node-journal FILE (a copy of nodes.journal), "
            "or --distrust-nodes (every node joins again with a new token), or --trust-nodes (nothing was revoked "
            "since)"
        )
    known = merge_identities([saved, *since])
    if trusted is False:
        known = {node: fully_revoked(identity) for node, identity in known.items()}
    kept = [put for put in entries if not put.key.startswith((_IDENTITY.prefix, _TOKEN.prefix))]
    return kept + [Put(_IDENTITY.store_key("", node), codec.encode(known[node])) for node in sorted(known)]
