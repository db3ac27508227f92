"""Identity and era of a cell, and the Term that holds them in the cell's store.

The identity is drawn once, when the cell is created, and survives restores. The era is drawn at creation and again at
every restore, so it differs before and after a restore. `incarnation` orders the eras of one identity. A region reads
the Term in the global cell. A store without the Term was written by an earlier release.
"""

from __future__ import annotations

import msgspec

from holdfast.model.election_term import Term, TermSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.times import seconds_text
from holdfast.model.view import View

IDENTITY_TERM = "identity"
"""Name of the Term with the cell's identity; its holder is `CELL IDENTITY ERA`, its term the incarnation."""

FIRST_INCARNATION = 1

INCARNATION_CLOCK_START_S = 1_767_225_600
"""2026-01-01, from which restores count seconds. An incarnation drawn from the clock is higher than that of an earlier
restore of which no record is left."""


class CellIdentity(msgspec.Struct, frozen=True, rename="camel"):
    cell: str
    identity: str
    era: str
    incarnation: int = FIRST_INCARNATION

    def __str__(self) -> str:
        return f"identity {self.identity}, era {self.era}, incarnation {self.incarnation}"


def identity_of_term(term: Term | None) -> CellIdentity | None:
    """The identity in a Term; None without a Term or if its holder is not an identity."""
    parts = term.spec.holder.split(" ") if term is not None else []
    return CellIdentity(parts[0], parts[1], parts[2], term.spec.term) if term is not None and len(parts) == 3 else None


def cell_identity(view: View) -> CellIdentity | None:
    """The identity of the cell whose objects the view shows."""
    return identity_of_term(view.get(Term, IDENTITY_TERM))


def identity_term(identity: CellIdentity, now_s: float) -> Term:
    return Term(
        metadata=ObjectMeta(name=IDENTITY_TERM, uid=identity.era, generation=1, creation_timestamp=seconds_text(now_s)),
        spec=TermSpec(holder=f"{identity.cell} {identity.identity} {identity.era}", term=identity.incarnation),
    )


def next_incarnation(known: int, now_s: float) -> int:
    """The incarnation of a restore: above every known one, and above those of which no record is left (by the
    clock)."""
    return max(known + 1, int(now_s) - INCARNATION_CLOCK_START_S)
