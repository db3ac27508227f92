"""Whether the global cell and this region recognize each other, by stored identities. Pure.

A region remembers the identity and era of the global cell that it follows, and the uid of its own Region object. The
global cell remembers the identity of the region in its report. If one of these has changed, a store was lost,
emptied or swapped: the region then keeps everything and exchanges nothing, until the right cell returns or an Override
of kind ConfirmDeletion for the whole region accepts the new one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.link import restore_handshake
from holdfast.model.assignment import Assignment
from holdfast.model.cell_identity import FIRST_INCARNATION, CellIdentity, cell_identity
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.view import View
from holdfast.model.writes import Create, Update, Write

GLOBAL_IDENTITY_TERM = "global-identity"
"""Name of the Term that stores the identity of the followed global cell: `CELL IDENTITY ERA INCARNATION`."""


class Mismatch(msgspec.Struct, frozen=True):
    """Why this region does not follow the global cell."""

    reason: Reason
    message: str


def mismatch(there: View, here: View, region: str) -> Mismatch | None:
    """The first difference between the two cells and what they remember of each other; None if there is none."""
    return _of_global_cell(there, here, region) or _of_region(there, here, region)


def _of_global_cell(there: View, here: View, region: str) -> Mismatch | None:
    found, remembered = cell_identity(there), remembered_identity(here)
    if found is not None and remembered is not None:
        another_life = found.era != remembered.era and found.incarnation <= remembered.incarnation
        if found.identity != remembered.identity or another_life:
            return _global_mismatch(here, region, f"expected {remembered}, found {found}")
    uid, _ = restore_handshake.seen_incarnation(here)
    known = there.get(Region, region)
    if uid and known is None:
        return _global_mismatch(here, region, f"it has no Region {region}, which it had before")
    if uid and known is not None and known.uid != uid and (found is None or remembered is None):
        what = f"its Region has another uid (expected {uid}, found {known.uid})"
        return _global_mismatch(here, region, what)
    return None


def _global_mismatch(here: View, region: str, what: str) -> Mismatch:
    work = len(here.list(Assignment))
    return Mismatch(
        Reason.GLOBAL_CELL_REPLACED,
        f"global cell: not the one that region {region} has followed ({what}); the region keeps its {work} "
        "Assignment(s) and exchanges nothing; next: restore the global cell from its newest backup (holdfast restore "
        f"--cell global), or stop the region's work: {confirm_command(region)}",
    )


def _of_region(there: View, here: View, region: str) -> Mismatch | None:
    known, own = there.get(Region, region), cell_identity(here)
    reported = known.status.report.identity if known is not None and known.status.report is not None else ""
    if own is None or not reported or own.identity == reported:
        return None
    return Mismatch(
        Reason.REGION_CELL_REPLACED,
        f"region {region}: its store is not the one that the global cell knows (expected identity {reported}, found "
        f"{own.identity}); nothing is exchanged; next: restore the region from its newest backup (holdfast restore "
        f"--cell {region}), or accept the new store: {confirm_command(region)}",
    )


def era_of_new_caches(remembered: CellIdentity | None, found: CellIdentity | None) -> CellIdentity | None:
    """The oldest era that the caches of a new process can show, given the cell remembered before it started, and the
    cell found after they were listed; None if that is unknown.

    The remembered cell was followed before, so the caches are not older. A cell that was never restored has one era.
    """
    if remembered is not None:
        return remembered
    return found if found is not None and found.incarnation == FIRST_INCARNATION else None


def confirm_command(region: str) -> str:
    return f'holdfast override create ConfirmDeletion --region {region} --reason "…"'


def record_writes(there: View, here: View) -> Iterable[Write]:
    """The write that stores identity and era of the global cell, if they changed."""
    found = cell_identity(there)
    if found is None or remembered_identity(here) == found:
        return ()
    stored = here.get(Term, GLOBAL_IDENTITY_TERM)
    holder = f"{found.cell} {found.identity} {found.era} {found.incarnation}"
    if stored is None:
        return (Create(Term(metadata=ObjectMeta(name=GLOBAL_IDENTITY_TERM), spec=TermSpec(holder=holder))),)
    return (Update(msgspec.structs.replace(stored, spec=TermSpec(holder=holder, term=stored.spec.term + 1))),)


def own_identity(here: View) -> str:
    found = cell_identity(here)
    return found.identity if found is not None else ""


def remembered_identity(here: View) -> CellIdentity | None:
    """The global cell that this region has followed; None before the first contact."""
    term = here.get(Term, GLOBAL_IDENTITY_TERM)
    parts = term.spec.holder.split(" ") if term is not None else []
    return CellIdentity(parts[0], parts[1], parts[2], int(parts[3])) if len(parts) == 4 else None
