"""Faults. Refusals that are ordinary answers are values (`Refused`); these are for everything else.

Fault
├─ Retryable            the same call may work later
│  ├─ Unavailable       the other side is not there, or not ready
│  ├─ Overloaded        429: come back after `retry_after_s`; 0 leaves it to the caller
│  ├─ Conflict          someone else wrote first: read again, decide again
│  └─ Ambiguous         no answer: the write may or may not have happened; read back before anything else
└─ Final                repeating it as it is cannot help
   ├─ NotFound, AlreadyExists
   ├─ Invalid           the object breaks rules: `causes` lists every one
   ├─ BadRequest        the request cannot be understood
   ├─ Unauthorized, Forbidden
   ├─ Expired           the revision asked for is compacted: list again
   ├─ StaleToken        a newer leader, or a newer incarnation, exists
   └─ StoreFailed       the store refused a write for a reason of its own and has stopped
"""

from __future__ import annotations

from typing import Any

import msgspec


class Cause(msgspec.Struct, frozen=True, gc=False):
    """One broken rule of one field; `reason` is a Kubernetes cause such as FieldValueRequired."""

    field: str
    reason: str
    message: str


class Refused(msgspec.Struct, frozen=True, gc=False):
    """An ordinary 'no', with the facts it rests on."""

    reason: str
    message: str = ""
    facts: dict[str, Any] = {}


class Fault(Exception):
    """The root. `code` and `reason` are what the HTTP API answers."""

    code = 500
    reason = "InternalError"
    retryable = False
    retry_after_s = 0.0
    """How long the other side asks to be left alone."""

    def __init__(self, message: str = "", *, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message or self.reason)
        self.message = message or self.reason
        self.facts = facts or {}


class Retryable(Fault):
    retryable = True


class Unavailable(Retryable):
    code, reason = 503, "ServiceUnavailable"


class Overloaded(Retryable):
    code, reason = 429, "TooManyRequests"

    def __init__(self, message: str = "", *, retry_after_s: float = 1.0, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message, facts=facts)
        self.retry_after_s = retry_after_s


class Conflict(Retryable):
    code, reason = 409, "Conflict"


class Ambiguous(Retryable):
    code, reason = 504, "Timeout"


class Final(Fault):
    pass


class NotFound(Final):
    code, reason = 404, "NotFound"


class AlreadyExists(Final):
    code, reason = 409, "AlreadyExists"


class BadRequest(Final):
    code, reason = 400, "BadRequest"


class Invalid(Final):
    code, reason = 422, "Invalid"

    def __init__(self, message: str, causes: tuple[Cause, ...] = (), *, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message, facts=facts)
        self.causes = causes


class Unauthorized(Final):
    code, reason = 401, "Unauthorized"


class Forbidden(Final):
    code, reason = 403, "Forbidden"


class Expired(Final):
    code, reason = 410, "Expired"


class StaleToken(Final):
    code, reason = 409, "StaleToken"


class StoreFailed(Final):
    code, reason = 500, "StoreFailed"
