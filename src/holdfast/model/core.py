"""Kubernetes kinds that standard clients expect: Event, Lease, and Namespace (a view of Tenant)."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.tenant import Tenant
from holdfast.model.validation import Causes, required


class ObjectReference(ApiStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(ApiStruct, frozen=True):
    component: str = ""
    host: str = ""


class EventSeries(ApiStruct, frozen=True):
    count: int = 0
    last_observed_time: str = ""


class Event(Object, frozen=True):
    """core/v1 Event. `kubectl describe` shows it only if `involvedObject.uid` is set."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = visible_default("Normal")
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    source: EventSource = msgspec.field(default_factory=EventSource)
    reporting_component: str = ""
    reporting_instance: str = ""
    action: str = ""
    related: ObjectReference | None = None
    series: EventSeries | None = None


class LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = visible_default(15)
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True):
    """coordination.k8s.io/v1 Lease: holder of a leader election."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class NamespaceSpec(ApiStruct, frozen=True):
    finalizers: tuple[str, ...] = visible_default(("kubernetes",))


class NamespaceStatus(ApiStruct, frozen=True):
    phase: str = visible_default("Active")


class Namespace(Object, frozen=True):
    """core/v1 Namespace: a view of a Tenant for standard clients. Not stored."""

    spec: NamespaceSpec = msgspec.field(default_factory=NamespaceSpec)
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


def validate_event(event: Event, old: Event | None) -> Causes:
    if not event.involved_object.kind:
        yield required("involvedObject.kind")


def validate_lease(lease: Lease, old: Lease | None) -> Causes:
    return iter(())


def namespace_of(tenant: Tenant) -> Namespace:
    phase = "Terminating" if tenant.metadata.terminating else "Active"
    labels = {"kubernetes.io/metadata.name": tenant.metadata.name, **tenant.metadata.labels}
    return Namespace(
        metadata=msgspec.structs.replace(tenant.metadata, labels=labels),
        spec=NamespaceSpec(finalizers=("kubernetes",)),
        status=NamespaceStatus(phase=phase),
    )
