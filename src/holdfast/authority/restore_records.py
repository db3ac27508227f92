"""What a restored cell must forget before it acts again. Pure: bytes of a backup in, bytes to store out.

A backup is older than the world. Work was placed since that it does not know, and limits were lowered that it still
believes. So, before a regional cell comes back:

- every node is fenced at the epoch the backup knows: its agent stops what it runs and registers anew, and a node that
  the backup does not know is refused until it has done the same;
- every binding asks for a stop: an agent reads its bindings before it hears of the fence, and must start none that was
  given up since, as its successor runs elsewhere;
- no grant may be spent until the global cell has renewed it;
- the incarnation rises, and the authority binds nothing until every lease of the old one is certain to have ended.

Before the global cell comes back, every region is awaited: nothing is granted until each has said what it holds. Epochs
of grants and assignments jump ahead, so that regions take the restored ones up and answer for them anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model import codec, limits
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.core import Lease
from holdfast.model.election_term import INCARNATION_TERM, Term, TermSpec
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import Kind, kind_of, kind_of_store_key
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import FenceBlock, Node
from holdfast.model.quantity import amounts_text
from holdfast.model.quota import Grant, max_enforced_limit
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.times import micro_text, seconds_text
from holdfast.store.contract import Put

GLOBAL_CELL = "global"
RESTORE_IN_PROGRESS = "rejoining"
RESTORE_COMPLETE = "joined"
NOT_RENEWED = micro_text(1.0)
"""Until when a restored limit may be spent: it was over long ago, and shows that nobody has renewed it since."""
TERM = kind_of(Term)


def incarnation_key() -> str:
    return TERM.store_key("", INCARNATION_TERM)


def incarnation_of(value: bytes | None) -> int:
    """The incarnation that the stored Term says; the first where there is none."""
    return codec.decode(TERM, value, 0).spec.term if value is not None else 1


def epochs_of_previous_incarnations(term: Term | None) -> int:
    """The highest epoch that a node may have had in a life before: its agent remembers those as over, also such as were
    given since the backup, and would take nothing that is bound under one of them."""
    return term.spec.term * limits.EPOCHS_PER_INCARNATION if term is not None and term.spec.term > 1 else 0


def restored_entries(cell: str, entries: Sequence[Put], now_s: float, uid: str, known: int) -> tuple[list[Put], int]:
    """The entries to store, and the incarnation they begin: above that of the backup and any that is known of."""
    is_global = cell == GLOBAL_CELL
    kept: list[Put] = []
    pages: list[LeasePage] = []
    incarnation = known
    for put in entries:
        kind = kind_of_store_key(put.key)
        item = codec.decode(kind, put.value, 0) if kind is not None else None
        if isinstance(item, LeasePage):
            pages.append(item)
        if isinstance(item, Term) and item.metadata.name == INCARNATION_TERM:
            incarnation = max(incarnation, item.spec.term)
    epochs = {node: lease.epoch for page in pages for node, lease in page.spec.leases.items()}
    for put in entries:
        kind = kind_of_store_key(put.key)
        if kind is None or put.key == incarnation_key():
            continue
        stored = codec.decode(kind, put.value, 0)
        item = _awaiting(stored, incarnation + 1) if is_global else _changed(stored, epochs, now_s)
        kept.append(_put(kind, item) if item is not None else put)
    risen = Term(
        metadata=ObjectMeta(name=INCARNATION_TERM, uid=uid, generation=1, creation_timestamp=seconds_text(now_s)),
        # The global cell joins again region by region: `fleet.rejoin` reads from those who was heard.
        spec=TermSpec(holder=RESTORE_COMPLETE if is_global else RESTORE_IN_PROGRESS, term=incarnation + 1),
    )
    return [*kept, _put(TERM, risen)], incarnation + 1


def _awaiting(item: Object, incarnation: int) -> Object | None:
    """The same for an object of the global cell."""
    if isinstance(item, Region):
        return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, restore_incarnation=incarnation))
    if isinstance(item, Grant):
        # A limit of then may have been given to another region since: each keeps what it uses, says so, and is then
        # granted anew. Until it has, what it may have had counts.
        peak, epoch = dict(amounts_text(max_enforced_limit(item))), _epoch_in(incarnation, item.spec.epoch)
        granted = msgspec.structs.replace(item.spec, limit={}, provisional={}, unacknowledged_peak=peak, epoch=epoch)
        return msgspec.structs.replace(item, metadata=_ahead(item.metadata, incarnation), spec=granted)
    if isinstance(item, Assignment):
        assigned = msgspec.structs.replace(item.spec, epoch=_epoch_in(incarnation, item.spec.epoch))
        return msgspec.structs.replace(item, metadata=_ahead(item.metadata, incarnation), spec=assigned)
    return _leaderless(item)


def _ahead(meta: ObjectMeta, incarnation: int) -> ObjectMeta:
    """A generation that no region has reported on: a status about a former life must not pass for a newer one."""
    return msgspec.structs.replace(meta, generation=_epoch_in(incarnation, meta.generation))


def _epoch_in(incarnation: int, epoch: int) -> int:
    """Above every epoch of every life before: an answer that was meant for one of those is none to this."""
    return incarnation * limits.EPOCHS_PER_INCARNATION + epoch % limits.EPOCHS_PER_INCARNATION


def _changed(item: Object, epochs: dict[str, int], now_s: float) -> Object | None:
    """The object of a region as it must come back, where it must not come back as it was."""
    if isinstance(item, Node):
        epoch = max(epochs.get(item.metadata.name, 0), item.status.execution.epoch)
        block = FenceBlock(fenced_epoch=max(epoch, item.status.fence.fenced_epoch), at=micro_text(now_s),
                           reason=Reason.RESTORE_IN_PROGRESS.value)  # fmt: skip
        return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, fence=block))
    if isinstance(item, Binding) and item.spec.desired is DesiredRunState.RUN:
        stopped = msgspec.structs.replace(item.spec, desired=DesiredRunState.STOP, stop_reason=Reason.RESTORE_IN_PROGRESS.value)
        return msgspec.structs.replace(item, spec=stopped)
    if isinstance(item, GrantCopy):
        # Not even what the backup believes to be in use: its share may have been given to another region since.
        ended = msgspec.structs.replace(item.spec, limit={}, provisional={}, lease_expires_at=NOT_RENEWED)
        return msgspec.structs.replace(item, spec=ended)
    return _leaderless(item)


def _leaderless(item: Object) -> Object | None:
    """Nobody of before leads any more; the terms stay, so that the next ones are higher."""
    if isinstance(item, Lease):
        return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, holder_identity=""))
    return None


def _put(kind: Kind, item: Object) -> Put:
    return Put(kind.store_key(item.metadata.namespace, item.metadata.name), codec.encode(item))
