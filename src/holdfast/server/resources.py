"""The resources of the API: every kind of the kind table, and views for stock clients (Namespace, core Node, Pod).

A `Resource` defines how a stored object looks to clients and how a client's write is stored. Internal kinds are served
too, for operators and controllers, but hidden from discovery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import core, core_views
from holdfast.model.kinds import ALL, BY_NAME, Home, Kind
from holdfast.model.meta import GROUP, Object
from holdfast.model.ownership import FINALIZERS
from holdfast.model.tenant import Tenant
from holdfast.model.validation import Causes
from holdfast.server.heartbeats import with_heartbeats
from holdfast.store.objects import Objects

NAME_LABEL = "kubernetes.io/metadata.name"
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_encoder = msgspec.json.Encoder()


def _no_rules(item: Any, old: Any) -> Causes:
    return iter(())


NAMESPACE = Kind(
    name="Namespace", plural="namespaces", type=core.Namespace, home=Home.GLOBAL, validate=_no_rules, group="",
    short_names=("ns",), categories=(),
)  # fmt: skip


CORE_NODE = Kind(
    name="Node", plural="nodes", type=core_views.CoreNode, home=Home.REGION, validate=_no_rules, group="",
    short_names=("no",), categories=(),
)  # fmt: skip
POD = Kind(
    name="Pod", plural="pods", type=core_views.Pod, home=Home.REGION, validate=_no_rules, group="", namespaced=True,
    short_names=("po",), categories=(),
)  # fmt: skip
_READ = ("get", "list", "watch")


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is what clients see, `stored` what the store holds. They differ for views."""

    kind: Kind
    stored: Kind
    head: bytes
    show: Callable[[Any], Object] | None = None
    store: Callable[[Any, Any], Object] | None = None
    complete: Callable[[Any, Objects], Object] | None = None
    """Adds data of other records to a view when it is read. It is neither patched nor stored."""
    tracked: bool = True
    """Whether managedFields are kept; not for kinds that only components write, and often."""
    strategic: bool = False
    """Whether strategic merge patches are accepted: only for kinds built into stock clients."""
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    def shown(self, item: Object) -> Object:
        return item if self.show is None else self.show(item)

    def encoded(self, item: Object, objects: Objects | None = None) -> bytes:
        """The JSON that a client sees of a stored object. `objects` are the records that complete a view."""
        shown = self.shown(item)
        if self.complete is not None and objects is not None:
            shown = self.complete(shown, objects)
        return self.head + _encoder.encode(shown)[1:]

    def plain(self, item: Object) -> dict[str, Any]:
        """The same as plain JSON data, for patches."""
        found: dict[str, Any] = msgspec.json.decode(self.encoded(item))
        return found

    def to_store(self, item: Object, before: Object | None) -> Object:
        return item if self.store is None else self.store(item, before)


def _tenant_of(namespace: core.Namespace, before: Tenant | None) -> Tenant:
    """A write to a Namespace never removes the platform's finalizers from its Tenant: clients do not know them."""
    labels = {key: value for key, value in namespace.metadata.labels.items() if key != NAME_LABEL}
    meta = msgspec.structs.replace(namespace.metadata, labels=labels)
    if before is None:
        return Tenant(metadata=meta)
    own = tuple(f for f in before.metadata.finalizers if f in FINALIZERS and f not in meta.finalizers)
    return msgspec.structs.replace(before, metadata=msgspec.structs.replace(meta, finalizers=(*own, *meta.finalizers)))


def _head(kind: Kind) -> bytes:
    return f'{{"apiVersion":"{kind.api_version}","kind":"{kind.name}",'.encode()


def _resource(kind: Kind) -> Resource:
    built_in = kind.group != GROUP
    subresources = (*(("status",) if kind.has_status and not kind.internal else ()), *(("scale",) * kind.scalable))
    return Resource(
        kind=kind, stored=kind, head=_head(kind), tracked=not (kind.ephemeral or kind.internal or built_in),
        strategic=built_in, subresources=subresources,
    )  # fmt: skip


NAMESPACES = Resource(
    kind=NAMESPACE, stored=BY_NAME["Tenant"], head=_head(NAMESPACE), show=core.namespace_of, store=_tenant_of,
    strategic=True, subresources=("status", "finalize"),
)  # fmt: skip

CORE_NODES = Resource(
    kind=CORE_NODE, stored=BY_NAME["Node"], head=_head(CORE_NODE), show=core_views.core_node_of,
    store=core_views.node_from_core, complete=with_heartbeats, tracked=False, strategic=True,
    verbs=(*_READ, "patch", "update"),
)  # fmt: skip
PODS = Resource(
    kind=POD, stored=BY_NAME["Binding"], head=_head(POD), show=core_views.pod_of, tracked=False,
    subresources=("eviction", "log"), verbs=_READ,
)  # fmt: skip

RESOURCES: tuple[Resource, ...] = (NAMESPACES, CORE_NODES, PODS, *(_resource(kind) for kind in ALL))
SERVED: dict[tuple[str, str], Resource] = {(r.kind.group, r.kind.plural): r for r in RESOURCES}
GROUPS: tuple[str, ...] = ("", GROUP, "coordination.k8s.io")
