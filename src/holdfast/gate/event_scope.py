"""Which Events a principal may write: those about objects within its scope. The same rule applies
to Events written through the API, patched, or sent by controllers (notices).

An agent writes only about its own Node and the work on it, a region's link only about its region's objects, a user only
in its own tenants. The refusal is the same whether the object exists or not.
"""

from __future__ import annotations

from holdfast.gate import faults, scope
from holdfast.model.core import Event
from holdfast.model.errors import Refused
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.model.meta import Object
from holdfast.model.principal import Principal
from holdfast.store.objects import Objects


def event_refusal(who: Principal, cell: str, event: Event, objects: Objects) -> Refused | None:
    """Why the principal may not write this Event; None if allowed."""
    ref = event.involved_object
    kind = BY_NAME.get(ref.kind)
    about = objects.get(kind, ref.namespace, ref.name) if kind is not None else None
    if about is not None and ref.uid and ref.uid != about.uid:
        about = None
    return scope.event_refusal(who, cell, event.metadata.namespace, about)


def is_hidden(who: Principal, cell: str, kind: Kind, item: Object, objects: Objects) -> bool:
    """Whether the object is outside the principal's scope, so that it does not exist for the principal's writes."""
    if isinstance(item, Event):
        return event_refusal(who, cell, item, objects) is not None
    return scope.is_hidden(who, kind, item)


def require_visible(who: Principal, cell: str, kind: Kind, item: Object, objects: Objects) -> None:
    """Raises NotFound for an object outside the principal's scope. The audit log names the true reason."""
    if is_hidden(who, cell, kind, item, objects):
        raise faults.hidden(kind, item.key)


def require_own_subject(who: Principal, cell: str, kind: Kind, item: Object, objects: Objects) -> None:
    """Raises Forbidden for a new Event about an object outside the principal's scope. Called before the Event's name is
    looked up, which may be that of another's Event.
    """
    refused = event_refusal(who, cell, item, objects) if isinstance(item, Event) else None
    if refused is not None:
        raise faults.forbidden(kind, item.key, refused)
