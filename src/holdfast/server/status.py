"""Faults as Kubernetes Status objects: codes, reasons, messages and details."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.gate import faults
from holdfast.model import errors
from holdfast.model.errors import Cause
from holdfast.model.kinds import Kind

_encoder = msgspec.json.Encoder()


class HttpRefusal(errors.Final):
    """A fault of the HTTP layer with its own code and reason."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.causes = causes


def method_not_allowed(method: str, advice: str = "") -> HttpRefusal:
    message = advice or f"the server does not allow this method on the requested resource: {method}"
    return HttpRefusal(405, "MethodNotAllowed", message)


def not_acceptable(offered: str) -> HttpRefusal:
    return HttpRefusal(406, "NotAcceptable", f"only the following media types are accepted: {offered}")


def unsupported_media_type(found: str, accepted: str) -> HttpRefusal:
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {accepted}; got {found}"
    )
    return HttpRefusal(415, "UnsupportedMediaType", message)


def too_large(limit: int, what: str = "") -> HttpRefusal:
    of_what = f" for {what}" if what else ""
    return HttpRefusal(413, "RequestEntityTooLarge", f"request body: too large (limit {limit} bytes{of_what})")


def request_timeout(what: str) -> HttpRefusal:
    return HttpRefusal(408, "Timeout", what)


def future_revision(revision: int, head: int) -> HttpRefusal:
    message = f"Too large resource version: {revision}, current: {head}"
    return HttpRefusal(504, "Timeout", message, (Cause("", "ResourceVersionTooLarge", "Too large resource version"),))


def not_found(kind: Kind, name: str) -> errors.NotFound:
    return faults.not_found(kind, name)


def conflict(kind: Kind, name: str, why: str = "") -> errors.Conflict:
    reason = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {reason}'
    return errors.Conflict(message, facts=_about(kind, name))


def invalid(kind: Kind, name: str, causes: tuple[Cause, ...]) -> errors.Invalid:
    """All causes in one response: kubectl prints them from `details.causes`."""
    return faults.invalid(kind, name, causes)


def _about(kind: Kind, name: str) -> dict[str, Any]:
    return {"kind": kind.plural, "group": kind.group, "name": name}


def status_dict(fault: errors.Fault, *, kind: Kind | None = None, name: str = "") -> dict[str, Any]:
    """The Status of a fault. `kind` and `name` are those of the request; an object named by the fault takes
    precedence.
    """
    about = fault.facts if "kind" in fault.facts else {}
    requested = {} if kind is None else _about(kind, name)
    details: dict[str, Any] = {key: about.get(key, requested.get(key, "")) for key in ("name", "group", "kind", "uid")}
    details = {key: str(value) for key, value in details.items() if value}
    causes: tuple[Cause, ...] = getattr(fault, "causes", ()) or tuple(fault.facts.get("causes", ()))
    if causes:
        details["causes"] = [_cause(c) for c in causes]
    if isinstance(fault, errors.Overloaded) and fault.retry_after_s > 0:
        details["retryAfterSeconds"] = max(1, round(fault.retry_after_s))
    answer = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": fault.message,
        "reason": fault.reason,
        "details": details,
        "code": fault.code,
    }
    if not details:
        del answer["details"]
    return answer


def _cause(cause: Cause) -> dict[str, str]:
    made = {"reason": cause.reason, "message": cause.message, "field": cause.field}
    return {key: value for key, value in made.items() if value}


def success(kind: Kind, name: str, uid: str) -> bytes:
    """The response to a deletion that removed the object. kubectl waits for this uid to disappear."""
    details = {"name": name, "group": kind.group, "kind": kind.plural, "uid": uid}
    return _encoder.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {key: value for key, value in details.items() if value},
        }
    )


def encode(value: Any) -> bytes:
    return _encoder.encode(value)
