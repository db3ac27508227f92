"""What a restored cell must forget before it acts again. Pure: bytes of a backup in, bytes to store out.

A backup is older than the world. Work was placed since that it does not know, and limits were lowered that it still
believes. So, before a regional cell comes back:

- every node is fenced at the epoch the backup knows: its agent stops what it runs and registers anew, and a node that
  the backup does not know is refused until it has done the same;
- no grant may be spent until the global cell has renewed it;
- the incarnation rises, and the authority binds nothing until every lease of the old one is certain to have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model import codec
from holdfast.model.core import Lease
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import Kind, kind_of, kind_of_store_key
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import FenceBlock, Node
from holdfast.model.reasons import Reason
from holdfast.model.term import INCARNATION, Term, TermSpec
from holdfast.model.times import micro_text, seconds_text
from holdfast.store.contract import Put

REJOINING = "rejoining"
JOINED = "joined"
_TERM = kind_of(Term)


def incarnation_key() -> str:
    return _TERM.store_key("", INCARNATION)


def incarnation_of(value: bytes | None) -> int:
    """The incarnation that the stored Term says; the first where there is none."""
    return codec.decode(_TERM, value, 0).spec.term if value is not None else 1


def restored(entries: Sequence[Put], now_s: float, uid: str, known: int) -> tuple[list[Put], int]:
    """The entries to store, and the incarnation they begin: above that of the backup and any that is known of."""
    kept: list[Put] = []
    pages: list[LeasePage] = []
    incarnation = known
    for put in entries:
        kind = kind_of_store_key(put.key)
        item = codec.decode(kind, put.value, 0) if kind is not None else None
        if isinstance(item, LeasePage):
            pages.append(item)
        if isinstance(item, Term) and item.metadata.name == INCARNATION:
            incarnation = max(incarnation, item.spec.term)
    epochs = {node: lease.epoch for page in pages for node, lease in page.spec.leases.items()}
    for put in entries:
        kind = kind_of_store_key(put.key)
        if kind is None or put.key == incarnation_key():
            continue
        item = _changed(codec.decode(kind, put.value, 0), epochs, now_s)
        kept.append(_put(kind, item) if item is not None else put)
    risen = Term(
        metadata=ObjectMeta(name=INCARNATION, uid=uid, generation=1, creation_timestamp=seconds_text(now_s)),
        spec=TermSpec(holder=REJOINING, term=incarnation + 1),
    )
    return [*kept, _put(_TERM, risen)], incarnation + 1


def _changed(item: Object, epochs: dict[str, int], now_s: float) -> Object | None:
    """The object as it must come back, where it must not come back as it was."""
    if isinstance(item, Node):
        epoch = max(epochs.get(item.metadata.name, 0), item.status.execution.epoch)
        block = FenceBlock(fenced_epoch=max(epoch, item.status.fence.fenced_epoch), at=micro_text(now_s),
                           reason=Reason.REJOINING.value)  # fmt: skip
        return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, fence=block))
    if isinstance(item, GrantCopy):
        return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, spend_until=micro_text(1.0)))
    if isinstance(item, Lease):
        # Nobody of before leads any more; the terms stay, so that the next ones are higher.
        return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, holder_identity=""))
    return None


def _put(kind: Kind, item: Object) -> Put:
    return Put(kind.store_key(item.metadata.namespace, item.metadata.name), codec.encode(item))
