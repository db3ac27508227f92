"""Handshake after a restore of the global cell or of the region. Pure.

A region acknowledges a new incarnation once it has acknowledged every grant at its new epoch and runs no exclusive work
that the backup assigns to other regions. It also reports the limits it enforces whose Grants are not in the backup. It
stores the newest incarnation it has seen and exchanges nothing with an older one.

A region that was itself restored reports nothing about exclusive work while its agents may hold leases of before the
restore: its records are older than what they run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.fleet import post_restore
from holdfast.link import grant_sync
from holdfast.model.assignment import Assignment
from holdfast.model.cell_identity import cell_identity
from holdfast.model.election_term import INCARNATION_TERM, Term, TermSpec, is_restore_in_progress
from holdfast.model.errors import StaleToken
from holdfast.model.grant_copy import NOT_RENEWED, GrantCopy
from holdfast.model.meta import ObjectMeta
from holdfast.model.quantity import amounts_text
from holdfast.model.quota import Grant, grant_name
from holdfast.model.region import Region, UnknownGrant
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.writes import Create, Update, Write

GLOBAL_INCARNATION_TERM = "global-incarnation"
"""Name of the Term that stores the newest incarnation of the global cell; its holder is `REGION-UID INCARNATION`."""


HANDSHAKE_KINDS: tuple[type[Any], ...] = (Region, Grant, Assignment)
"""Kinds listed again before an acknowledgement, because each has its own watch and one may be an incarnation behind."""


def is_restore_pending(there: View, region: str) -> bool:
    known = there.get(Region, region)
    return known is not None and not post_restore.has_acknowledged_restore(known)


def acknowledged_incarnation(there: View, here: View, region: str, fresh: View | None = None) -> int:
    """The newest incarnation of the global cell that this region can acknowledge. It never decreases.

    `fresh` are the objects just listed. While the link's caches differ from them, the link may still act on older
    state, and the region does not acknowledge yet.
    """
    known = there.get(Region, region)
    before = known.status.report.restore_acknowledged if known is not None and known.status.report is not None else 0
    if known is None or before >= known.status.restore_incarnation or fresh is None or is_region_restoring(here):
        return before
    if any(_versions(there, kind) != _versions(fresh, kind) for kind in HANDSHAKE_KINDS):
        return before
    acknowledged = all(g.status.acknowledged_epoch >= g.spec.epoch for g in fresh.list(Grant))
    return known.status.restore_incarnation if acknowledged and exclusive_work_agrees(fresh, here) else before


def _versions(view: View, kind: type[Any]) -> set[tuple[str, int]]:
    """The uid of every object with its epoch or incarnation."""
    return {
        (item.uid, item.status.restore_incarnation if isinstance(item, Region) else item.spec.epoch)
        for item in view.list(kind)
    }


def can_renew_grants(there: View, here: View) -> bool:
    """Whether grant leases may be renewed. In a restored region, only when its backup contains no exclusive replica
    that was assigned to another region since; replicas being deleted do not count."""
    restored = any(copy.spec.lease_expires_at == NOT_RENEWED for copy in here.list(GrantCopy))
    return not restored or exclusive_work_agrees(there, here, except_terminating=True)


def exclusive_work_agrees(there: View, here: View, *, except_terminating: bool = False) -> bool:
    """Whether the global cell assigns every exclusive replica here to this region."""
    for replica in here.list(Replica):
        if replica.spec.exclusive is None or (except_terminating and replica.metadata.terminating):
            continue
        key = (replica.spec.assignment, replica.metadata.namespace)
        original, copy = there.get(Assignment, *key), here.get(Assignment, *key)
        for known in (original, copy):
            if (
                known is None
                or known.uid != (original.uid if original is not None else "")
                or (replica.spec.ordinal not in known.spec.ordinals)
            ):
                return False
    return True


def unknown_grants(there: View, here: View, region: str) -> tuple[UnknownGrant, ...]:
    """Limits that the region enforces and the global cell has no Grant for, because a restore lost it."""
    known = there.get(Region, region)
    if known is None or not known.status.restore_incarnation:
        return ()
    found = []
    for copy in here.list(GrantCopy):
        if there.get(Grant, grant_name(region, copy.spec.grant_class), copy.metadata.namespace) is not None:
            continue
        held = grant_sync.max_held(copy)
        if any(held.values()):
            tenant, grant_class = copy.metadata.namespace, copy.spec.grant_class
            found.append(UnknownGrant(tenant=tenant, grant_class=grant_class, amounts=dict(amounts_text(held))))
    return tuple(sorted(found, key=lambda stray: (stray.tenant, stray.grant_class)))


def check_incarnations(there: View, here: View, region: str) -> None:
    """Raises StaleToken if one side is an incarnation that a restore has replaced."""
    known = there.get(Region, region)
    if known is None:
        return
    uid, seen = seen_incarnation(here)
    if uid == known.uid and known.status.restore_incarnation < seen:
        raise StaleToken(
            f"global cell: replaced by a restore (expected incarnation {seen}, as region {region} has seen, found "
            f"{known.status.restore_incarnation or 1}); next: stop the server of the replaced global cell",
            facts={"expected": seen, "found": known.status.restore_incarnation},
        )
    own, last = cell_identity(here), known.status.report
    if own is not None and last is not None and last.identity and last.identity != own.identity:
        raise StaleToken(
            f"region {region}: the store is that of another cell (expected identity {last.identity}, as the region "
            f"reported before, found {own.identity}); next: put the region's own store back or restore it from a "
            "backup; for a new region of this name, delete its Region and create it again",
            facts={"expected": last.identity, "found": own.identity},
        )
    mine = own_incarnation(here)
    reported = known.status.report.incarnation if known.status.report is not None else 0
    if reported > mine:
        raise StaleToken(
            f"region {region}: replaced by a restore (expected incarnation {reported}, found {mine}); "
            "next: stop this server",
            facts={"expected": reported, "found": mine},
        )


def record_incarnation(there: View, here: View, region: str) -> Iterable[Write]:
    """The write that stores the newest incarnation of the global cell, if it changed."""
    known = there.get(Region, region)
    if known is None or seen_incarnation(here) == (known.uid, known.status.restore_incarnation):
        return ()
    holder = f"{known.uid} {known.status.restore_incarnation}"
    stored = here.get(Term, GLOBAL_INCARNATION_TERM)
    if stored is None:
        return (Create(Term(metadata=ObjectMeta(name=GLOBAL_INCARNATION_TERM), spec=TermSpec(holder=holder))),)
    return (Update(msgspec.structs.replace(stored, spec=TermSpec(holder=holder, term=stored.spec.term + 1))),)


def is_region_restoring(here: View) -> bool:
    """Whether agents of this region may still run work that the restored store does not contain."""
    return is_restore_in_progress(here.get(Term, INCARNATION_TERM))


def own_incarnation(here: View) -> int:
    term = here.get(Term, INCARNATION_TERM)
    return term.spec.term if term is not None else 1


def seen_incarnation(here: View) -> tuple[str, int]:
    """The uid of the Region in the global cell, and the newest incarnation of that cell; empty and 0 if unknown."""
    term = here.get(Term, GLOBAL_INCARNATION_TERM)
    uid, _, number = term.spec.holder.partition(" ") if term is not None else ("", "", "")
    return uid, int(number or 0)
