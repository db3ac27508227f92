"""Secrets and ConfigMaps for regions and agents: only what their own work refers to.

- `GET /region/v1/REGION/config`: versions of the objects that the Assignments of this region refer to.
- `GET /region/v1/REGION/config/KIND/TENANT/NAME`: one of these objects, opened. Everything else does not exist.
- `GET /secrets/v1/keys`: the keys of this cell and how many Secrets each seals, for operators. Never a key itself.
- `GET /node/v1/NODE/values/TENANT/BINDING`: the values that the template of a Binding of this node refers to.
- `GET /node/v1/NODE/registry-login/TENANT/BINDING`: the credentials for the registry of its image, from pull secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.gate.sealing import CannotOpen
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.config_references import ConfigObject, ReferencingTemplate, is_older_than_wanted, referenced_objects
from holdfast.model.config_values import ConfigVersion, ConfigVersions, resolve
from holdfast.model.errors import Forbidden, NotFound
from holdfast.model.kinds import BY_NAME, kind_of
from holdfast.model.meta import Object
from holdfast.model.principal import OPERATORS
from holdfast.model.registry_login import find_registry_login
from holdfast.model.replica import Replica
from holdfast.model.secret import ConfigMap, Secret, config_content
from holdfast.model.writes import Notice
from holdfast.server.request import Request, Response, json_response
from holdfast.server.resources import SERVED

if TYPE_CHECKING:
    from holdfast.server.app import Application

_encoder = msgspec.json.Encoder()


async def region_config(app: Application, request: Request) -> Response:
    region = request.target.parameters["region"]
    await app.objects.newest_revision(kind_of(Secret))
    found = []
    for namespace, wanted in sorted(_needed_in(app, region)):
        item = app.objects.get(BY_NAME[wanted.kind], namespace, wanted.name)
        if item is not None:
            found.append(ConfigVersion(wanted.kind, namespace, wanted.name, item.uid, item.metadata.generation))
    return Response(_encoder.encode(ConfigVersions(tuple(found))))


async def region_config_object(app: Application, request: Request) -> Response:
    given = request.target.parameters
    region, namespace = given["region"], given["tenant"]
    wanted = ConfigObject(given["kind"], given["name"])
    await app.objects.newest_revision(kind_of(Secret))
    item: Object | None = None
    if (namespace, wanted) in set(_needed_in(app, region)):
        item = app.objects.get(BY_NAME[wanted.kind], namespace, wanted.name)
    if item is None:
        # The same answer for an object that exists and is not needed there.
        raise NotFound(f"{wanted.kind[:40]} {namespace[:100]}/{wanted.name[:100]}: no work of region {region} needs it")
    app.gate.audit.record_use(
        request.principal, "get", f"{BY_NAME[wanted.kind].plural}/{namespace}", message=wanted.name, request=request.id
    )
    resource = SERVED["", BY_NAME[wanted.kind].plural]
    return Response(resource.encode(app.gate.sealer.open(item)))


def _binding_of_node(app: Application, request: Request) -> Binding:
    given = request.target.parameters
    binding = app.objects.get(kind_of(Binding), given["tenant"], given["binding"])
    runs_here = isinstance(binding, Binding) and binding.spec.node == given["node"]
    if not isinstance(binding, Binding) or not runs_here or binding.spec.desired is not DesiredRunState.RUN:
        raise NotFound(f"binding {given['tenant'][:100]}/{given['binding'][:100]}: not to run on node {given['node']}")
    return binding


async def registry_login(app: Application, request: Request) -> Response:
    binding = _binding_of_node(app, request)
    tenant, template = binding.metadata.namespace, binding.spec.template

    def find(name: str) -> Secret | None:
        item = app.objects.get(kind_of(Secret), tenant, name)
        try:
            return app.gate.sealer.open(item) if isinstance(item, Secret) else None
        except CannotOpen:
            return None  # the link fetches a copy again whose key this region has lost

    app.gate.audit.record_use(
        request.principal, "get", f"values/{tenant}", message=f"for binding {binding.metadata.name}", request=request.id
    )
    login = find_registry_login(template.image, template.image_pull_secrets, find)
    await _warn(app, request, binding, login.reason, login.message)
    return Response(_encoder.encode(login))


async def task_values(app: Application, request: Request) -> Response:
    binding = _binding_of_node(app, request)
    tenant = binding.metadata.namespace

    def find(wanted: ConfigObject) -> Mapping[str, bytes] | None:
        item = app.objects.get(BY_NAME[wanted.kind], tenant, wanted.name)
        template = binding.spec.template
        if item is not None and is_older_than_wanted(template, wanted, item.uid, item.metadata.generation):
            return None  # the new content has not reached this region yet
        if isinstance(item, ConfigMap):
            return config_content(item)
        try:
            return app.gate.sealer.open(item).data if isinstance(item, Secret) else None
        except CannotOpen:
            return None  # the link fetches a copy again whose key this region has lost

    app.gate.audit.record_use(
        request.principal, "get", f"values/{tenant}", message=f"for binding {binding.metadata.name}", request=request.id
    )
    values = resolve(binding.spec.template, find)
    await _warn(app, request, binding, values.reason, values.message)
    return Response(_encoder.encode(values))


async def _warn(app: Application, request: Request, binding: Binding, reason: str, message: str) -> None:
    replica = app.objects.get(kind_of(Replica), binding.metadata.namespace, binding.spec.replica)
    if reason and replica is not None:
        notice = Notice(replica, reason, message, warning=True)
        await app.events.record([notice], component=request.principal.name)


def check_operator(app: Application, request: Request) -> None:
    who = request.principal
    if OPERATORS not in who.groups:
        message = f'User "{who.name}" is not an operator'
        app.gate.audit.record_refusal(who, "get", "secretkeys", "Forbidden", message=message, request=request.id)
        raise Forbidden(message)


async def secret_keys(app: Application, request: Request) -> Response:
    used: dict[str, int] = {}
    for item in app.objects.list(kind_of(Secret))[0]:
        if isinstance(item, Secret) and item.sealed is not None:
            used[item.sealed.key] = used.get(item.sealed.key, 0) + 1
    known = app.gate.sealer.source.all()
    rows = [
        {"id": key.id, "created": key.created, "seals": not place, "secrets": used.pop(key.id, 0), "missing": False}
        for place, key in enumerate(known)
    ]
    rows += [{"id": k, "created": "", "seals": False, "secrets": n, "missing": True} for k, n in sorted(used.items())]
    return json_response({"cell": app.cell, "keys": rows})


def audit_read(app: Application, request: Request) -> None:
    """Reads of Secrets are recorded, summed per caller and tenant: whoever reads one may have kept it."""
    resource, target = request.target.resource, request.target
    if resource is not None and resource.stored.type is Secret:
        where = f"secrets/{target.namespace or '*'}"
        app.gate.audit.record_use(request.principal, target.verb, where, message=target.name, request=request.id)


def _needed_in(app: Application, region: str) -> Iterable[tuple[str, ConfigObject]]:
    """Objects that the Assignments of a region refer to. An Assignment exists only where placement rules allow it."""
    needed: dict[tuple[str, ConfigObject], None] = {}
    for item in app.objects.list(kind_of(Assignment), fields={"region": region})[0]:
        template: ReferencingTemplate = item.spec.template  # type: ignore[attr-defined]
        needed |= {(item.metadata.namespace, wanted): None for wanted in referenced_objects(template)}
    return needed
