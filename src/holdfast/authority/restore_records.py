"""Rewrites the objects of a backup so that a restored cell starts safely. Pure: stored bytes in, stored bytes out.

A backup misses later placements and lowered limits. In a regional cell:
- every node is fenced at its known epoch, so its agent stops all tasks and registers again;
- every Binding requests a stop, because its replica may have been rescheduled since;
- no grant may be spent before the global cell renews it;
- the incarnation rises, and nothing is bound until every lease of the previous incarnation has ended.
In the global cell, nothing is granted until each region has reported its limits, and the epochs of Grants and
Assignments jump, so that regions accept and acknowledge the restored ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model import codec, limits
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.cell_identity import IDENTITY_TERM
from holdfast.model.core import Lease
from holdfast.model.election_term import INCARNATION_TERM, RESTORE_COMPLETE, RESTORE_IN_PROGRESS, Term, TermSpec
from holdfast.model.grant_copy import NOT_RENEWED, GrantCopy
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
TERM = kind_of(Term)


def incarnation_key() -> str:
    return TERM.store_key("", INCARNATION_TERM)


def incarnation_in(entries: Iterable[Put]) -> int:
    """The incarnation among the entries of a store or backup; 1 if there is none."""
    key = incarnation_key()
    value = next((put.value for put in entries if put.key == key), None)
    return codec.decode(TERM, value, 0).spec.term if value is not None else 1


def epochs_of_previous_incarnations(term: Term | None) -> int:
    """The highest node epoch of previous incarnations, including epochs issued after the backup. Agents remember those
    as fenced and ignore Bindings under them."""
    return term.spec.term * limits.EPOCHS_PER_INCARNATION if term is not None and term.spec.term > 1 else 0


def restored_entries(cell: str, entries: Sequence[Put], now_s: float, uid: str, known: int) -> tuple[list[Put], int]:
    """The entries to store, without an identity, and their incarnation: higher than the backup's and than `known`."""
    is_global = cell == GLOBAL_CELL
    rewritten: list[Put] = []
    pages: list[LeasePage] = []
    incarnation = known
    for put in entries:
        kind = kind_of_store_key(put.key)
        item = codec.decode(kind, put.value, 0) if kind is not None else None
        if isinstance(item, LeasePage):
            pages.append(item)
        if isinstance(item, Term) and item.metadata.name == INCARNATION_TERM:
            incarnation = max(incarnation, item.spec.term)
    replaced = (incarnation_key(), TERM.store_key("", IDENTITY_TERM))
    epochs = {node: lease.epoch for page in pages for node, lease in page.spec.leases.items()}
    for put in entries:
        kind = kind_of_store_key(put.key)
        if kind is None or put.key in replaced:
            continue
        original = codec.decode(kind, put.value, 0)
        item = _restored_global(original, incarnation + 1) if is_global else _restored_regional(original, epochs, now_s)
        rewritten.append(_put(kind, item) if item is not None else put)
    new_term = Term(
        metadata=ObjectMeta(name=INCARNATION_TERM, uid=uid, generation=1, creation_timestamp=seconds_text(now_s)),
        # The global cell completes its restore region by region (`fleet/post_restore.py`).
        spec=TermSpec(holder=RESTORE_COMPLETE if is_global else RESTORE_IN_PROGRESS, term=incarnation + 1),
    )
    return [*rewritten, _put(TERM, new_term)], incarnation + 1


def _restored_global(item: Object, incarnation: int) -> Object | None:
    """The object of the global cell with the changes a restore needs; None if it is unchanged."""
    if isinstance(item, Region):
        return msgspec.structs.replace(
            item, status=msgspec.structs.replace(item.status, restore_incarnation=incarnation)
        )
    if isinstance(item, Grant):
        # This quota may have been granted to another region since the backup. Each region reports its usage and is
        # granted again; until then the highest limit that it may enforce counts against the quota.
        peak, epoch = dict(amounts_text(max_enforced_limit(item))), _epoch_in(incarnation, item.spec.epoch)
        granted = msgspec.structs.replace(item.spec, limit={}, provisional={}, unacknowledged_peak=peak, epoch=epoch)
        return msgspec.structs.replace(item, metadata=_next_generation(item.metadata, incarnation), spec=granted)
    if isinstance(item, Assignment):
        assigned = msgspec.structs.replace(item.spec, epoch=_epoch_in(incarnation, item.spec.epoch))
        return msgspec.structs.replace(item, metadata=_next_generation(item.metadata, incarnation), spec=assigned)
    return _without_leader(item)


def _next_generation(meta: ObjectMeta, incarnation: int) -> ObjectMeta:
    """A generation that no region has reported: a status of a previous incarnation must not look newer."""
    return msgspec.structs.replace(meta, generation=_epoch_in(incarnation, meta.generation))


def _epoch_in(incarnation: int, epoch: int) -> int:
    """An epoch above all epochs of previous incarnations, so that old acknowledgements do not match it."""
    return incarnation * limits.EPOCHS_PER_INCARNATION + epoch % limits.EPOCHS_PER_INCARNATION


def _restored_regional(item: Object, epochs: dict[str, int], now_s: float) -> Object | None:
    """The object of a regional cell with the changes a restore needs; None if it is unchanged."""
    if isinstance(item, Node):
        epoch = max(epochs.get(item.metadata.name, 0), item.status.execution.epoch)
        block = FenceBlock(
            fenced_epoch=max(epoch, item.status.fence.fenced_epoch),
            at=micro_text(now_s),
            reason=Reason.RESTORE_IN_PROGRESS.value,
        )
        return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, fence=block))
    if isinstance(item, Binding) and item.spec.desired is DesiredRunState.RUN:
        stopping = msgspec.structs.replace(
            item.spec, desired=DesiredRunState.STOP, stop_reason=Reason.RESTORE_IN_PROGRESS.value
        )
        return msgspec.structs.replace(item, spec=stopping)
    if isinstance(item, Assignment):
        # The copy is older than the region's last records, so the global cell decides whether it still exists.
        return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, generation=0))
    if isinstance(item, GrantCopy):
        # Not even the usage in the backup stays granted: it may have been granted to another region since.
        # The new generation keeps the region from acknowledging before the authority has counted its usage.
        ended = msgspec.structs.replace(item.spec, limit={}, provisional={}, lease_expires_at=NOT_RENEWED)
        newer = msgspec.structs.replace(item.metadata, generation=item.metadata.generation + 1)
        return msgspec.structs.replace(item, metadata=newer, spec=ended)
    return _without_leader(item)


def _without_leader(item: Object) -> Object | None:
    """Clears the holder of election Leases. Terms stay, so that the next ones are higher."""
    if isinstance(item, Lease):
        return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, holder_identity=""))
    return None


def _put(kind: Kind, item: Object) -> Put:
    return Put(kind.store_key(item.metadata.namespace, item.metadata.name), codec.encode(item))
