"""The gate's refusals, worded the way stock Kubernetes clients expect them (api-contract 1.10).

Each says which object, what was expected, what was found and what to do. `facts` carry what a Status's details need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.gate.principal import Principal
from holdfast.model.errors import AlreadyExists, Cause, Conflict, Forbidden, Invalid, NotFound, Overloaded, Refused
from holdfast.model.kinds import Kind

PENDING_CAP_EXCEEDED = "PendingCapExceeded"
PENDING_RETRY_S = 10.0


def _details(kind: Kind, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "group": kind.group, "kind": kind.plural, **more}


def not_found(kind: Kind, name: str) -> NotFound:
    return NotFound(f'{kind.resource} "{name}" not found', facts=_details(kind, name))


def no_namespace(namespace: str) -> NotFound:
    return NotFound(f'namespaces "{namespace}" not found', facts={"name": namespace, "group": "", "kind": "namespaces"})


def already_exists(kind: Kind, name: str) -> AlreadyExists:
    return AlreadyExists(f'{kind.resource} "{name}" already exists', facts=_details(kind, name))


def modified(kind: Kind, name: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified; please apply your '
        "changes to the latest version and try again",
        facts=_details(kind, name),
    )


def other_uid(kind: Kind, name: str, meant: str, found: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {kind.resource} "{name}": Precondition failed: UID in precondition: {meant}'
        f", UID in object meta: {found}",
        facts=_details(kind, name),
    )


def older_status(kind: Kind, name: str, given: int, held: int) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {kind.resource} "{name}": its status speaks of generation {held} already, '
        f"and this one of {given}; read it again and decide again",
        facts=_details(kind, name),
    )


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Invalid:
    words = [f"{c.field}: {c.message}" if c.field else c.message for c in causes]
    text = words[0] if len(words) == 1 else "[" + ", ".join(words) + "]"
    subject = f"{kind.name}.{kind.group}" if kind.group else kind.name
    facts = {"name": name, "group": kind.group, "kind": kind.name}
    return Invalid(f'{subject} "{name}" is invalid: {text}', tuple(causes), facts=facts)


def forbidden(kind: Kind, name: str, why: Refused) -> Forbidden:
    facts = _details(kind, name, reason=why.reason, **why.facts)
    return Forbidden(f'{kind.resource} "{name}" is forbidden: {why.message}', facts=facts)


def refused(kind: Kind, name: str, why: Refused) -> Forbidden | Overloaded:
    """A full queue is a matter of time and says when to come back; everything else is forbidden."""
    if why.reason != PENDING_CAP_EXCEEDED:
        return forbidden(kind, name, why)
    facts = _details(kind, name, reason=why.reason, **why.facts)
    return Overloaded(f'{kind.resource} "{name}": {why.message}', retry_after_s=PENDING_RETRY_S, facts=facts)


def seen_too_early(kind: Kind, name: str, why: Refused) -> Conflict:
    """The collector's cache had not seen what exists: it reads again and decides again."""
    return Conflict(f'{kind.resource} "{name}": {why.message}', facts=_details(kind, name, reason=why.reason))


def not_given(name: str, assignment: str, ordinal: int) -> Conflict:
    """The region had the ordinal when that was decided, and has it no more: read again and decide again."""
    why = f"ordinal {ordinal} of exclusive work is made only where its Assignment names it, and {assignment} does not"
    return Conflict(f'replica "{name}": {why}; read the Assignment again and decide again')


def namespace_terminating(kind: Kind, name: str, namespace: str) -> Forbidden:
    cause = Cause("metadata.namespace", "NamespaceTerminating", f"namespace {namespace} is being terminated")
    return Forbidden(
        f'{kind.resource} "{name}" is forbidden: unable to create new content in namespace {namespace} because it is '
        "being terminated",
        facts=_details(kind, name, reason="NamespaceTerminating", causes=[cause]),
    )


def not_owner(kind: Kind, name: str, who: Principal, groups: Iterable[tuple[str, frozenset[str]]]) -> Forbidden:
    listed = [f"{path} (owned by {', '.join(sorted(roles)) or 'nobody'})" for path, roles in groups]
    mine = ", ".join(sorted(who.roles)) or "no role"
    return Forbidden(
        f'{kind.resource} "{name}" is forbidden: User "{who.name}" ({mine}) does not own {"; ".join(listed)}',
        facts=_details(kind, name, reason="NotOwner"),
    )
