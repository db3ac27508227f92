"""Admission of break-glass sessions: who opens one, who closes it, and that another person reviews it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.model.break_glass_session import SESSIONS_UNREVIEWED_MAX
from holdfast.model.errors import Cause, Refused
from holdfast.model.validation import forbidden, unsupported

if TYPE_CHECKING:
    from holdfast.gate.admission import AdmissionCase


def session_opened(case: AdmissionCase) -> Iterator[Cause | Refused]:
    after = cast("Any", case.after)
    if case.before is not None:
        return
    if after.spec.review is not None or after.spec.closed:
        yield forbidden("spec.review", "must be empty on creation: closing and reviewing are separate requests")
    if after.spec.tenant and case.find("Tenant", after.spec.tenant) is None:
        yield unsupported("spec.tenant", after.spec.tenant, [t.metadata.name for t in case.all("Tenant")[:20]])
    held = case.all(case.kind.name, requester=after.spec.requester)
    waiting = [session for session in held if session.spec.review is None]
    if len(waiting) >= SESSIONS_UNREVIEWED_MAX:
        yield Refused(
            "ReviewOverdue",
            f'User "{after.spec.requester}" has {len(waiting)} sessions that nobody has reviewed (limit '
            f"{SESSIONS_UNREVIEWED_MAX}); next: an approver runs holdfast break-glass review "
            f"{waiting[0].metadata.name}",
        )


def session_changed(case: AdmissionCase) -> Iterator[Cause | Refused]:
    before, after = cast("Any", case.before), cast("Any", case.after)
    if before is None:
        return
    old, new = before.spec, after.spec
    if msgspec.structs.replace(new, closed=old.closed, review=old.review) != old or (old.closed and not new.closed):
        yield forbidden("spec", "a session is immutable, except that it can be closed and reviewed; open another one")
    if old.review is not None and new.review != old.review:
        yield forbidden("spec.review", f"it was reviewed by {old.review.reviewer}")
    elif new.review is not None and old.review is None and new.review.reviewer == old.requester:
        yield forbidden(
            "spec.review",
            f"the requester cannot review it (expected a reviewer other than {old.requester}); next: another approver "
            f"runs holdfast break-glass review {after.metadata.name}",
        )
    if new.closed and not old.closed and case.who.name != old.requester and not case.by_platform:
        yield forbidden("spec.closed", f"only {old.requester} or an operator closes it")


def session_reviewed(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """A session is deleted only when it is over and reviewed."""
    before = cast("Any", case.before)
    over = before.spec.closed or case.now >= before.ends_s
    if before.spec.review is None or not over:
        state = "not reviewed" if over else "still in force"
        text = f"it is {state}; next: holdfast break-glass review {before.metadata.name}"
        yield Refused("SessionNotReviewed", text)
