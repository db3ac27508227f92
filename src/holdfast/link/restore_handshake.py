"""What a region owes a global cell that was restored from a backup, and what it refuses to hear from one that was not.

A region answers for a new incarnation once it has acknowledged every grant at its new epoch and runs no exclusive work
that the restored records give to others; what it holds beyond those records it names with the answer. It remembers the
newest incarnation it has heard, and exchanges nothing with an older one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.authority.restore_records import NOT_RENEWED
from holdfast.fleet import post_restore
from holdfast.link import grant_sync
from holdfast.model.assignment import Assignment
from holdfast.model.election_term import INCARNATION_TERM, Term, TermSpec
from holdfast.model.errors import StaleToken
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import ObjectMeta
from holdfast.model.quantity import amounts_text
from holdfast.model.quota import Grant, grant_name
from holdfast.model.region import Region, UnknownGrant
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.writes import Create, Update, Write

GLOBAL_INCARNATION_TERM = "global-incarnation"
"""The Term that remembers which life of the global cell was heard: its holder names the Region and the incarnation."""


HANDSHAKE_KINDS: tuple[type[Any], ...] = (Region, Grant, Assignment)
"""What an answer rests on. It is read anew for it: each kind is watched apart, and one may be a life behind another."""


def is_restore_pending(there: View, region: str) -> bool:
    known = there.get(Region, region)
    return known is not None and not post_restore.has_acknowledged_restore(known)


def acknowledged_incarnation(there: View, here: View, region: str, fresh: View | None = None) -> int:
    """The incarnation of the global cell that this region can answer for now; once answered, it stays so.

    `fresh` is what the global cell was just asked for. Where the link has not seen as much, it may still act on
    something older, and does not answer yet.
    """
    known = there.get(Region, region)
    before = known.status.report.restore_acknowledged if known is not None and known.status.report is not None else 0
    if known is None or before >= known.status.restore_incarnation or fresh is None:
        return before
    if any(_held(there, kind) != _held(fresh, kind) for kind in HANDSHAKE_KINDS):
        return before
    told = all(g.status.acknowledged_epoch >= g.spec.epoch for g in fresh.list(Grant))
    return known.status.restore_incarnation if told and exclusive_work_agrees(fresh, here) else before


def _held(view: View, kind: type[Any]) -> set[tuple[str, int]]:
    """Which objects there are, and at which epoch, or in which life."""
    return {
        (item.uid, item.status.restore_incarnation if isinstance(item, Region) else item.spec.epoch) for item in view.list(kind)
    }


def can_renew_grants(there: View, here: View) -> bool:
    """Whether limits may be renewed. In a region that was restored, only when nothing that its backup still wants, and
    that was given to another region since, can be bound again: what is being deleted cannot."""
    restored = any(copy.spec.lease_expires_at == NOT_RENEWED for copy in here.list(GrantCopy))
    return not restored or exclusive_work_agrees(there, here, but_leaving=True)


def exclusive_work_agrees(there: View, here: View, *, but_leaving: bool = False) -> bool:
    """Whether every exclusive replica that may run here is one that the global cell gave to this region."""
    for replica in here.list(Replica):
        if replica.spec.exclusive is None or (but_leaving and replica.metadata.terminating):
            continue
        key = (replica.spec.assignment, replica.metadata.namespace)
        original, copy = there.get(Assignment, *key), here.get(Assignment, *key)
        for known in (original, copy):
            if known is None or known.uid != (original.uid if original is not None else "") or (
                replica.spec.ordinal not in known.spec.ordinals
            ):  # fmt: skip
                return False
    return True


def unknown_grants(there: View, here: View, region: str) -> tuple[UnknownGrant, ...]:
    """What is held here though no Grant says so. Only a restore takes grants away without a word."""
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
    """Raises StaleToken when one side is a life of its cell that a restore has ended."""
    known = there.get(Region, region)
    if known is None:
        return
    uid, heard = _heard(here)
    if uid == known.uid and known.status.restore_incarnation < heard:
        raise StaleToken(
            f"this global cell is in incarnation {known.status.restore_incarnation or 1}, and {region} has heard {heard}: it was "
            "restored since, and this one must be stopped; nothing is exchanged with it",
            facts={"heard": heard, "found": known.status.restore_incarnation},
        )
    mine = own_incarnation(here)
    reported = known.status.report.incarnation if known.status.report is not None else 0
    if reported > mine:
        raise StaleToken(
            f"{region} reported as incarnation {reported}, and this is {mine}: the region was restored since, and this "
            "cell must be stopped; nothing is exchanged with it",
            facts={"heard": reported, "found": mine},
        )


def record_incarnation(there: View, here: View, region: str) -> Iterable[Write]:
    """The write that makes the newest incarnation heard durable, when it is not yet."""
    known = there.get(Region, region)
    if known is None or _heard(here) == (known.uid, known.status.restore_incarnation):
        return ()
    holder = f"{known.uid} {known.status.restore_incarnation}"
    stored = here.get(Term, GLOBAL_INCARNATION_TERM)
    if stored is None:
        return (Create(Term(metadata=ObjectMeta(name=GLOBAL_INCARNATION_TERM), spec=TermSpec(holder=holder))),)
    return (Update(msgspec.structs.replace(stored, spec=TermSpec(holder=holder, term=stored.spec.term + 1))),)


def own_incarnation(here: View) -> int:
    term = here.get(Term, INCARNATION_TERM)
    return term.spec.term if term is not None else 1


def _heard(here: View) -> tuple[str, int]:
    term = here.get(Term, GLOBAL_INCARNATION_TERM)
    uid, _, number = term.spec.holder.partition(" ") if term is not None else ("", "", "")
    return uid, int(number or 0)
