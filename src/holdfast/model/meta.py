"""Object metadata (identity, versions, ownership, conditions) and the base classes of all API types.

Objects are immutable and shared. To change a value, build a new object with `msgspec.structs.replace`; never change an
object that other code can already see.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

GROUP = "holdfast.dev"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"

T = TypeVar("T")


class ApiStruct(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Base of API structs. A field that equals its default is omitted from the JSON (see `visible_default`)."""


def visible_default(value: T) -> T:
    """A default that is always written to the JSON, so that users see it.

    msgspec omits a field that equals its plain default, but not one whose default comes from a custom factory.
    """
    made: T = msgspec.field(default_factory=lambda: value)
    return made


class OwnerReference(ApiStruct, frozen=True):
    """Reference from a dependent to its owner. Garbage collection compares the uid, not the name."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ManagedFields(ApiStruct, frozen=True):
    """Which manager last set which fields (server-side apply)."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: str = ""
    fields_type: str = ""
    fields_v1: dict[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")
    subresource: str = ""


class ObjectMeta(ApiStruct, frozen=True):
    """Identity and bookkeeping of an object."""

    # resource_version is set when the object is read; it is not part of the stored value.
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
        """Whether deletion was requested. Finalizers may still delay it."""
        return bool(self.deletion_timestamp)


class Key(msgspec.Struct, frozen=True, order=True, gc=False):
    """Namespace and name of one object. A controller decides about one key at a time."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(ApiStruct, frozen=True):
    """One observed fact about an object, in the Kubernetes form."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Object(ApiStruct, frozen=True):
    """Base of all kinds, which add `spec` and `status`."""

    metadata: ObjectMeta

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def revision(self) -> int:
        """The store revision of this object; 0 if it was never stored."""
        return int(self.metadata.resource_version or 0)


def is_condition_true(conditions: tuple[Condition, ...], kind: str) -> bool:
    """Whether the condition of this type is present and True."""
    return any(c.type == kind and c.status == "True" for c in conditions)


def find_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((c for c in conditions if c.type == kind), None)


def with_condition(conditions: tuple[Condition, ...], new: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with `new` replacing the one of its type.

    `lastTransitionTime` changes only with the status. If the condition is equal, the same tuple is returned, so that
    the caller can tell that nothing changed.
    """
    old = find_condition(conditions, new.type)
    since = old.last_transition_time if old is not None and old.status == new.status else now
    stamped = msgspec.structs.replace(new, last_transition_time=since)
    if old == stamped:
        return conditions
    if old is None:
        return (*conditions, stamped)
    return tuple(stamped if c.type == new.type else c for c in conditions)
