"""What every object carries: identity, versions, ownership, and the struct they are all built from.

Objects are immutable and shared: whoever wants another value builds a new object with
`msgspec.structs.replace`. Nothing may change an object another part can already see.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

GROUP = "holdfast.dev"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A piece of an object. Fields at their default are left out of the JSON (see `shown`)."""


def shown(value: T) -> T:
    """A default that users should see: unlike a plain default it is always written out.

    msgspec leaves out a field whose value is its plain default, but never one whose default comes
    from a factory of our own; so `replicas: int = shown(1)` reads as 1 and is stored as 1.
    """
    made: T = msgspec.field(default_factory=lambda: value)
    return made


class OwnerReference(Part, frozen=True):
    """Points from a dependent to its owner; garbage collection follows the uid, never the name."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ManagedFields(Part, frozen=True):
    """Which manager last set which fields (server-side apply)."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: str = ""
    fields_type: str = ""
    fields_v1: dict[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")
    subresource: str = ""


class ObjectMeta(Part, frozen=True):
    """Identity and bookkeeping; `resourceVersion` changes with every write of the object."""

    # resource_version is filled in from the store, never stored.
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[ManagedFields, ...] = ()

    @property
    def terminating(self) -> bool:
        """Whether deletion was asked for; finalizers may keep the object a while longer."""
        return bool(self.deletion_timestamp)


class Key(msgspec.Struct, frozen=True, order=True, gc=False):
    """Names one object of a kind: what a controller is handed to decide about."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(Part, frozen=True):
    """One observed fact about an object, in the Kubernetes form."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Object(Part, frozen=True):
    """What every kind of object is, structurally. Kinds add `spec` and `status`."""

    metadata: ObjectMeta

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def revision(self) -> int:
        """The store revision this object was read at; 0 when it was never stored."""
        return int(self.metadata.resource_version or 0)


def is_true(conditions: tuple[Condition, ...], kind: str) -> bool:
    """Whether the condition of this type is present and True."""
    return any(c.type == kind and c.status == "True" for c in conditions)


def find_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((c for c in conditions if c.type == kind), None)


def with_condition(conditions: tuple[Condition, ...], new: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with `new` in place of the one of its type.

    `lastTransitionTime` moves only when the status does; an equal condition returns the very same
    tuple, so that callers can tell that nothing changed.
    """
    old = find_condition(conditions, new.type)
    since = old.last_transition_time if old is not None and old.status == new.status else now
    stamped = msgspec.structs.replace(new, last_transition_time=since)
    if old == stamped:
        return conditions
    if old is None:
        return (*conditions, stamped)
    return tuple(stamped if c.type == new.type else c for c in conditions)
