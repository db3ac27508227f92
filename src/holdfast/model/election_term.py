"""Term: the record of a leader election. Its store revision is the fencing token of the leader's writes.

It is written only when the leader changes, in the commit that acquires the Lease. Renewals write only the Lease.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.validation import Causes, check_range, forbidden

INCARNATION_TERM = "incarnation"
"""Name of the Term that counts the restores of the cell. Without it, the cell was never restored."""

RESTORE_IN_PROGRESS = "rejoining"
"""Holder of the incarnation Term while agents may hold leases of the previous incarnation."""

RESTORE_COMPLETE = "joined"


class TermSpec(ApiStruct, frozen=True):
    holder: str = ""
    term: int = visible_default(1)


class TermStatus(ApiStruct, frozen=True):
    pass


class Term(Object, frozen=True):
    spec: TermSpec
    status: TermStatus = msgspec.field(default_factory=TermStatus)


def is_restore_in_progress(incarnation: Term | None) -> bool:
    """Whether the cell was restored and leases of the previous incarnation may still be held."""
    return incarnation is not None and incarnation.spec.holder == RESTORE_IN_PROGRESS


def validate_term(term: Term, old: Term | None) -> Causes:
    yield from check_range("spec.term", term.spec.term, 1, 2**53)
    if old is not None and term.spec != old.spec and term.spec.term <= old.spec.term:
        yield forbidden("spec.term", f"must increase; the stored term is {old.spec.term}")
