"""BreakGlassSession: rights that a person opens for themselves in an emergency, in one cell and for a short time.

The session is scoped, has a reason, ends by itself, raises an alert, and stays open to review until another person has
reviewed it. It gives no rights over roles, bindings or other sessions, so nothing in it outlives it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import limits
from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.times import parse_time
from holdfast.model.validation import (
    Causes,
    check_range,
    check_subdomain,
    forbidden,
    has_control_characters,
    invalid,
    required,
    unsupported,
)

SESSION_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
CLOSED_TO_SESSIONS = frozenset(
    {
        *("roles", "rolebindings", "clusterroles", "clusterrolebindings", "breakglasssessions", "users", "groups"),
        *("notificationreceivers", "notifications"),
    }
)
"""Resources that no session gives: they would let its rights outlive it, or silence its own alarm."""
# Length of the reason and of the review of a session. A longer one is refused.
SESSION_TEXT_CHARS_MAX = 1_000
# Shortest reason of a session, so that a reviewer can judge it.
SESSION_REASON_CHARS_MIN = 10
# Resources listed in one session. More are refused; `*` means all.
SESSION_RESOURCES_MAX = 32
# Sessions of one person that nobody has reviewed yet. With more, no new one can be opened.
SESSIONS_UNREVIEWED_MAX = 3


class SessionReview(ApiStruct, frozen=True):
    note: str = ""
    reviewer: str = ""


class BreakGlassSessionSpec(ApiStruct, frozen=True):
    reason: str = ""
    tenant: str = ""
    verbs: tuple[str, ...] = visible_default(SESSION_VERBS)
    resources: tuple[str, ...] = visible_default(("*",))
    duration_seconds: float = visible_default(900.0)
    requester: str = ""
    closed: bool = False
    review: SessionReview | None = None


class BreakGlassSession(Object, frozen=True):
    spec: BreakGlassSessionSpec = msgspec.field(default_factory=BreakGlassSessionSpec)

    @property
    def ends_s(self) -> float:
        return parse_time(self.metadata.creation_timestamp) + self.spec.duration_seconds


def session_requester(session: BreakGlassSession) -> tuple[str, ...]:
    return (session.spec.requester,)


def validate_break_glass_session(session: BreakGlassSession, old: Any) -> Causes:
    spec = session.spec
    if not len(spec.reason.strip()) >= SESSION_REASON_CHARS_MIN or len(spec.reason) > SESSION_TEXT_CHARS_MAX:
        rule = f"say why, in {SESSION_REASON_CHARS_MIN} to {SESSION_TEXT_CHARS_MAX} characters"
        yield invalid("spec.reason", spec.reason[:80], rule)
    if has_control_characters(spec.reason):
        yield invalid("spec.reason", "control characters", "must be one line of text")
    if spec.tenant:
        yield from check_subdomain("spec.tenant", spec.tenant)
    yield from check_range("spec.durationSeconds", spec.duration_seconds, 1, limits.BREAK_GLASS_MAX_S)
    for index, verb in enumerate(spec.verbs[: len(SESSION_VERBS) + 1]):
        if verb not in SESSION_VERBS:
            yield unsupported(f"spec.verbs[{index}]", verb, SESSION_VERBS)
    if not spec.verbs:
        yield required("spec.verbs")
    if not spec.resources or len(spec.resources) > SESSION_RESOURCES_MAX:
        yield invalid("spec.resources", f"{len(spec.resources)} resources", f"1 to {SESSION_RESOURCES_MAX}, or *")
    for index, resource in enumerate(spec.resources[:SESSION_RESOURCES_MAX]):
        if resource.partition("/")[0] in CLOSED_TO_SESSIONS:
            yield forbidden(
                f"spec.resources[{index}]", "a session gives no rights over roles, bindings, sessions or notifications"
            )
        elif resource != "*" and not resource.replace("/", "").replace("-", "").isalnum():
            yield invalid(f"spec.resources[{index}]", resource[:80], "must be a plural such as workloads, or *")
    if spec.review is not None and not 0 < len(spec.review.note.strip()) <= SESSION_TEXT_CHARS_MAX:
        yield required("spec.review.note", "what was done, and whether it was right")
