"""Term: who holds an election, and since which term. Its revision is the fencing token of whatever the winner writes.

Rewritten only when leadership changes hands, in the same commit that takes the Lease; renewals touch only the Lease.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Object, Part, shown
from holdfast.model.validation import Causes, check_range, forbidden

INCARNATION = "incarnation"
"""The Term that counts how often the cell was restored from a backup; without one, the cell is in its first life."""


class TermSpec(Part, frozen=True):
    holder: str = ""
    term: int = shown(1)


class TermStatus(Part, frozen=True):
    pass


class Term(Object, frozen=True):
    spec: TermSpec
    status: TermStatus = msgspec.field(default_factory=TermStatus)


def validate_term(term: Term, old: Term | None) -> Causes:
    yield from check_range("spec.term", term.spec.term, 1, 2**53)
    if old is not None and term.spec != old.spec and term.spec.term <= old.spec.term:
        yield forbidden("spec.term", f"terms only rise; the stored one is {old.spec.term}")
