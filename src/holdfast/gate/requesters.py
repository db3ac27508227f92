"""Sets requester, approver and reviewer of exceptions to the authenticated user. Names in a request are ignored."""

from __future__ import annotations

import msgspec

from holdfast.gate import scope
from holdfast.model.break_glass_session import BreakGlassSession
from holdfast.model.meta import Object
from holdfast.model.override import BreakGlass, Override
from holdfast.model.ownership import REGION
from holdfast.model.principal import Principal


def with_requester(who: Principal, cell: str, before: Object | None, given: Object) -> Object:
    if isinstance(given, BreakGlassSession):
        return _of_session(who, before, given)
    return _of_override(who, cell, before, given) if isinstance(given, Override) else given


def _of_session(who: Principal, before: Object | None, given: BreakGlassSession) -> Object:
    spec = given.spec
    if not isinstance(before, BreakGlassSession):
        return msgspec.structs.replace(given, spec=msgspec.structs.replace(spec, requester=who.name))
    review = spec.review
    if review is not None and review != before.spec.review:
        review = msgspec.structs.replace(review, reviewer=who.name)
    spec = msgspec.structs.replace(spec, requester=before.spec.requester, review=review)
    return msgspec.structs.replace(given, spec=spec)


def _of_override(who: Principal, cell: str, before: Object | None, given: Override) -> Object:
    """For a break-glass override the region reports the requester."""
    spec = given.spec
    if not isinstance(before, Override):
        if REGION in who.roles:
            return given
        if cell != scope.GLOBAL_CELL:
            insisted = spec.break_glass is not None and spec.break_glass.insisted
            spec = msgspec.structs.replace(spec, break_glass=BreakGlass(region=cell, insisted=insisted))
        return msgspec.structs.replace(given, spec=msgspec.structs.replace(spec, requester=who.name))
    approver = who.name if spec.approver and not before.spec.approver else spec.approver
    spec = msgspec.structs.replace(spec, requester=before.spec.requester, approver=approver)
    return msgspec.structs.replace(given, spec=spec)
