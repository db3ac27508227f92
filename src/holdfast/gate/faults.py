"""Error responses of the gate, with the messages of the Kubernetes API where it has them, as stock clients expect.

Messages of Holdfast's own start with the object (`quota payments/quota: …`). `facts` become the details of the Status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.model.errors import AlreadyExists, Cause, Conflict, Forbidden, Invalid, NotFound, Overloaded, Refused
from holdfast.model.kinds import Kind
from holdfast.model.meta import Key
from holdfast.model.ownership import INSTEAD_OF_DELETION
from holdfast.model.principal import Principal

HIDDEN = "hidden"
"""A fact of a fault: the object exists, and the response hides it. Never sent to the client."""
PENDING_CAP_EXCEEDED = "PendingCapExceeded"
# Retry-After of a create that exceeds the tenant's cap of pending requests.
PENDING_CAP_RETRY_AFTER_S = 10.0


def _details(kind: Kind, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "group": kind.group, "kind": kind.plural, **more}


def _subject(kind: Kind, at: Key) -> str:
    """The object as a user would type it: `workload payments/risk-api`."""
    return f"{kind.singular} {at}"


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


def other_uid(kind: Kind, name: str, expected: str, found: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {kind.resource} "{name}": Precondition failed: UID in precondition: '
        f"{expected}, UID in object meta: {found}",
        facts=_details(kind, name),
    )


def stale_status(kind: Kind, at: Key, given: int, held: int) -> Conflict:
    return Conflict(
        f"{_subject(kind, at)}: the status is older than the stored one (expected observedGeneration {held} or newer, "
        f"found {given}); next: read the object again",
        facts=_details(kind, at.name),
    )


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Invalid:
    messages = [f"{c.field}: {c.message}" if c.field else c.message for c in causes]
    text = messages[0] if len(messages) == 1 else "[" + ", ".join(messages) + "]"
    subject = f"{kind.name}.{kind.group}" if kind.group else kind.name
    facts = {"name": name, "group": kind.group, "kind": kind.name}
    return Invalid(f'{subject} "{name}" is invalid: {text}', tuple(causes), facts=facts)


def hidden(kind: Kind, at: Key) -> NotFound:
    """The object exists, but outside the caller's scope. The response equals that for a missing object."""
    missing = not_found(kind, at.name)
    return NotFound(missing.message, facts={**missing.facts, HIDDEN: True})


def forbidden(kind: Kind, at: Key, why: Refused) -> Forbidden:
    facts = _details(kind, at.name, reason=why.reason, **why.facts)
    return Forbidden(f"{_subject(kind, at)}: {why.message}", facts=facts)


def admission_refused(kind: Kind, at: Key, why: Refused) -> Forbidden | Overloaded:
    """The pending cap is a temporary limit, so it becomes 429 with Retry-After; every other refusal is 403."""
    if why.reason != PENDING_CAP_EXCEEDED:
        return forbidden(kind, at, why)
    facts = _details(kind, at.name, reason=why.reason, **why.facts)
    return Overloaded(f"{_subject(kind, at)}: {why.message}", retry_after_s=PENDING_CAP_RETRY_AFTER_S, facts=facts)


def stale_collector_view(kind: Kind, at: Key, why: Refused) -> Conflict:
    """The garbage collector's cache was stale: it reads again and decides again."""
    return Conflict(f"{_subject(kind, at)}: {why.message}", facts=_details(kind, at.name, reason=why.reason))


def ordinal_not_assigned(at: Key, assignment: str, ordinal: int) -> Conflict:
    """The region lost the ordinal between the decision and the commit: the controller reads again and decides again."""
    return Conflict(
        f"replica {at}: assignment {assignment} no longer contains ordinal {ordinal}; next: read the assignment again"
    )


def namespace_terminating(kind: Kind, name: str, namespace: str) -> Forbidden:
    cause = Cause("metadata.namespace", "NamespaceTerminating", f"namespace {namespace} is being terminated")
    return Forbidden(
        f'{kind.resource} "{name}" is forbidden: unable to create new content in namespace {namespace} because it is '
        "being terminated",
        facts=_details(kind, name, reason="NamespaceTerminating", causes=[cause]),
    )


def not_deleter(kind: Kind, at: Key, who: Principal, allowed: frozenset[str]) -> Forbidden:
    """The principal may not delete this kind, with what to do instead."""
    instead = INSTEAD_OF_DELETION.get(kind.name, "")
    step = f"; next: {instead}" if instead else ""
    return Forbidden(
        f'{_subject(kind, at)}: User "{who.name}" may not delete it'
        f" (deleted by {', '.join(sorted(allowed)) or 'nobody'} only){step}",
        facts=_details(kind, at.name, reason="NotOwner"),
    )


def not_owner(kind: Kind, at: Key, who: Principal, groups: Iterable[tuple[str, frozenset[str]]]) -> Forbidden:
    listed = [f"{path} (owned by {', '.join(sorted(roles)) or 'nobody'})" for path, roles in groups]
    roles_text = ", ".join(sorted(who.roles)) or "no role"
    return Forbidden(
        f'{_subject(kind, at)}: User "{who.name}" ({roles_text}) does not own {", ".join(listed)}',
        facts=_details(kind, at.name, reason="NotOwner"),
    )
