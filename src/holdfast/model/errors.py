"""Exceptions. An expected refusal is a value (`Refused`); exceptions are for everything else.

Fault
├─ Retryable            the same call may succeed later
│  ├─ Unavailable       the callee is down or not ready
│  ├─ Overloaded        429: retry after `retry_after_s`; 0: the caller chooses the delay
│  ├─ Conflict          another writer was first: read again, decide again
│  └─ Ambiguous         no response: the write may have happened; read back first
└─ Final                repeating the same call cannot succeed
   ├─ NotFound, AlreadyExists
   ├─ Invalid           the object is invalid: `causes` lists every violation
   ├─ BadRequest        the request cannot be understood
   ├─ Unauthorized, Forbidden
   ├─ Expired           the requested revision is compacted: list again
   ├─ StaleToken        a newer leader or a newer incarnation exists
   └─ StoreFailed       the store failed (for example a disk error) and has stopped
"""

from __future__ import annotations

from typing import Any

import msgspec


class Cause(msgspec.Struct, frozen=True, gc=False):
    """One violated rule of one field. `reason` is a Kubernetes cause type such as FieldValueRequired."""

    field: str
    reason: str
    message: str


class Refused(msgspec.Struct, frozen=True, gc=False):
    """An expected refusal, with the facts that explain it."""

    reason: str
    message: str = ""
    facts: dict[str, Any] = {}


class Fault(Exception):
    """Base class of errors that the HTTP API returns as a Status with this `code` and `reason`."""

    code = 500
    reason = "InternalError"
    retryable = False
    retry_after_s = 0.0
    """Value of the Retry-After header; 0 for none."""

    def __init__(self, message: str = "", *, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message or self.reason)
        self.message = message or self.reason
        self.facts = facts or {}

    @property
    def next_step(self) -> str:
        """A command or an edit that helps, if the message has one after `; next: `."""
        return self.message.partition("; next: ")[2]


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
