"""The resources of the API: every kind of the kind table, and views for stock clients (Namespace, core Node, Pod).

A `Resource` defines how a stored object looks to clients and how a client's write is stored. Internal kinds are served
too, for operators and controllers, but hidden from discovery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.gate.sealing import Sealer
from holdfast.model import core, core_views, pod_view
from holdfast.model.kinds import ALL, BY_NAME, Home, Kind
from holdfast.model.meta import GROUP, Object
from holdfast.model.ownership import FINALIZERS
from holdfast.model.tenant import Tenant
from holdfast.model.validation import Causes
from holdfast.server.ended_pods import find_ended_pod
from holdfast.server.heartbeats import node_with_heartbeat
from holdfast.server.joined_pods import POD_JOIN, ViewJoin, joined_pod
from holdfast.store.objects import Objects

NAME_LABEL = "kubernetes.io/metadata.name"
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_encoder = msgspec.json.Encoder()


def _no_rules(item: Any, old: Any) -> Causes:
    return iter(())


NAMESPACE = Kind(
    name="Namespace",
    plural="namespaces",
    type=core.Namespace,
    home=Home.GLOBAL,
    validate=_no_rules,
    group="",
    short_names=("ns",),
    categories=(),
)


CORE_NODE = Kind(
    name="Node",
    plural="nodes",
    type=core_views.CoreNode,
    home=Home.REGION,
    validate=_no_rules,
    group="",
    short_names=("no",),
    categories=(),
)
POD = Kind(
    name="Pod",
    plural="pods",
    type=pod_view.Pod,
    home=Home.REGION,
    validate=_no_rules,
    group="",
    namespaced=True,
    short_names=("po",),
    categories=(),
)
_READ = ("get", "list", "watch")
SESSIONS = ("exec", "attach", "portforward")
"""Subresources of a pod that leave HTTP. Each method of them needs the right to create."""
_WRITTEN_BY_USERS = frozenset({"Secret", "ConfigMap"})


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is what clients see, `stored` what the store holds. They differ for views."""

    kind: Kind
    stored: Kind
    json_head: bytes
    to_view: Callable[[Any], Object] | None = None
    from_view: Callable[[Any, Any], Object] | None = None
    complete_view: Callable[[Any, Objects], Object] | None = None
    """The view with data of other records, for reads. It is neither patched nor stored."""
    joins: ViewJoin | None = None
    """Records of another kind whose changes are changes of the view, for watches."""
    tracks_managed_fields: bool = True
    """Whether managedFields are kept; not for kinds that only components write, and often."""
    accepts_strategic_patch: bool = False
    """Whether strategic merge patches are accepted: only for kinds built into stock clients."""
    find_ended: Callable[[Objects, str, str], Object | None] | None = None
    """Finds an object that is no longer stored, for reads by name."""
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    advice: dict[str, str] = {}
    """What to do instead of a verb that the resource does not have."""

    def view_of(self, item: Object, objects: Objects | None = None) -> Object:
        """The object as clients see it; with `objects`, completed with other records. A view is returned as it is."""
        is_view = self.kind is not self.stored and isinstance(item, self.kind.type)
        if is_view:
            return item
        if self.complete_view is not None and objects is not None:
            return self.complete_view(item, objects)
        return item if self.to_view is None else self.to_view(item)

    def encode(self, item: Object, objects: Objects | None = None) -> bytes:
        """The JSON that a client sees of a stored object. `objects` are the records that complete a view."""
        return self.json_head + _encoder.encode(self.view_of(item, objects))[1:]

    def to_plain(self, item: Object) -> dict[str, Any]:
        """The same as plain JSON data, for patches."""
        found: dict[str, Any] = msgspec.json.decode(self.encode(item))
        return found

    def to_store(self, item: Object, before: Object | None) -> Object:
        return item if self.from_view is None else self.from_view(item, before)


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
        kind=kind,
        stored=kind,
        json_head=_head(kind),
        tracks_managed_fields=not (
            kind.ephemeral or kind.internal or (built_in and kind.name not in _WRITTEN_BY_USERS)
        ),
        accepts_strategic_patch=built_in,
        subresources=subresources,
    )


NAMESPACES = Resource(
    kind=NAMESPACE,
    stored=BY_NAME["Tenant"],
    json_head=_head(NAMESPACE),
    to_view=core.namespace_of,
    from_view=_tenant_of,
    accepts_strategic_patch=True,
    subresources=("status", "finalize"),
)

CORE_NODES = Resource(
    kind=CORE_NODE,
    stored=BY_NAME["Node"],
    json_head=_head(CORE_NODE),
    to_view=core_views.core_node_of,
    from_view=core_views.node_from_core,
    complete_view=node_with_heartbeat,
    tracks_managed_fields=False,
    accepts_strategic_patch=True,
    verbs=(*_READ, "patch", "update"),
    advice={
        "delete": "nodes: not deleted in the core view, because replicas of the node would lose their place; next: "
        "holdfast node drain NAME, stop its agent, then kubectl delete nodes.holdfast.dev NAME"
    },
)
PODS = Resource(
    kind=POD,
    stored=BY_NAME["Binding"],
    json_head=_head(POD),
    to_view=pod_view.pod_of,
    complete_view=joined_pod,
    joins=POD_JOIN,
    tracks_managed_fields=False,
    find_ended=find_ended_pod,
    subresources=("eviction", "log", *SESSIONS),
    verbs=(*_READ, "delete"),
)


def opening_resources(sealer: Sealer) -> dict[str, Resource]:
    """The resources whose stored form is sealed, by kind, as a server with these keys shows them."""
    secrets = SERVED["", "secrets"]
    return {secrets.kind.name: msgspec.structs.replace(secrets, to_view=sealer.open)}


RESOURCES: tuple[Resource, ...] = (NAMESPACES, CORE_NODES, PODS, *(_resource(kind) for kind in ALL))
SERVED: dict[tuple[str, str], Resource] = {(r.kind.group, r.kind.plural): r for r in RESOURCES}
GROUPS: tuple[str, ...] = ("", GROUP, "coordination.k8s.io", "rbac.authorization.k8s.io")
