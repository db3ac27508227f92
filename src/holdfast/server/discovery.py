"""API discovery, in the legacy and the aggregated form, generated from the table of resources.

Every listed group is served: a group that fails to respond costs an error line on every kubectl command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import __version__
from holdfast.gate.authorize import is_served_in
from holdfast.server import pod_metrics, status
from holdfast.server.access_reviews import REVIEWS
from holdfast.server.content_negotiation import ResponseForm, ResponseShape, discovery_form
from holdfast.server.fleet_objects import is_read_in_regions
from holdfast.server.request import Request, Response, json_response
from holdfast.server.resources import GROUPS, RESOURCES, SESSIONS, Resource

if TYPE_CHECKING:
    from holdfast.server.app import Application

VERSION = "v1"
MAJOR, MINOR = "1", "32"
REVIEW_GROUPS = tuple(dict.fromkeys(group for group, _ in REVIEWS))
_VARY = (b"vary", b"Accept")


def group_version(group: str) -> str:
    return f"{group}/{_version_of(group)}" if group else VERSION


def visible_resources(cell: str, group: str) -> list[Resource]:
    """The resources of a group that a cell shows: its own kinds, its mirrors, and in the global cell those that it
    reads from regions. Internal kinds are not shown.
    """
    of_group = [r for r in RESOURCES if r.kind.group == group and not r.kind.internal]
    return [
        r if is_served_in(r.stored, cell) else _read_only(r)
        for r in of_group
        if is_served_in(r.stored, cell) or is_read_in_regions(r, cell)
    ]


def _read_only(resource: Resource) -> Resource:
    parts = tuple(name for name in resource.subresources if name == "log")
    return msgspec.structs.replace(resource, verbs=("get", "list", "watch"), subresources=parts)


async def version(app: Application, request: Request) -> Response:
    """Clients choose their behaviour by it: the API is that of Kubernetes 1.32."""
    return json_response(
        {
            "major": MAJOR,
            "minor": MINOR,
            "gitVersion": f"v{MAJOR}.{MINOR}.0+holdfast-{__version__}",
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "none",
            "compiler": "none",
            "platform": "linux/amd64",
        }
    )


async def core(app: Application, request: Request) -> Response:
    """`/api`"""
    form = discovery_form(request.headers.get("accept", ""))
    if form.shape is ResponseShape.DISCOVERY:
        return _aggregated(app, form, ("",))
    return _vary_by_accept(
        json_response({"kind": "APIVersions", "versions": [VERSION], "serverAddressByClientCIDRs": []})
    )


async def groups(app: Application, request: Request) -> Response:
    """`/apis`"""
    form = discovery_form(request.headers.get("accept", ""))
    named = tuple(group for group in _group_names(app.cell) if group)
    if form.shape is ResponseShape.DISCOVERY:
        return _aggregated(app, form, named)
    listed = [_group(group) for group in named]
    return _vary_by_accept(json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}))


async def group(app: Application, request: Request) -> Response:
    """`/apis/{group}`"""
    name = request.target.parameters["group"]
    if name not in _group_names(app.cell):
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")
    return json_response({"kind": "APIGroup", "apiVersion": "v1", **_group(name)})


def _group_names(cell: str) -> tuple[str, ...]:
    """The groups that a cell serves."""
    return (*GROUPS, *REVIEW_GROUPS, pod_metrics.GROUP)


def _version_of(group: str) -> str:
    return pod_metrics.VERSION if group == pod_metrics.GROUP else VERSION


def _group(name: str) -> dict[str, Any]:
    row = {"groupVersion": group_version(name), "version": _version_of(name)}
    return {"name": name, "versions": [row], "preferredVersion": row}


async def resources(app: Application, request: Request) -> Response:
    """`/api/v1` and `/apis/{group}/{version}`"""
    name = request.target.parameters.get("group", "")
    if name not in _group_names(app.cell) or request.target.parameters.get("version", VERSION) != _version_of(name):
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")
    rows: list[dict[str, Any]] = []
    for resource in visible_resources(app.cell, name):
        rows += _rows(resource)
    rows += [_review_row(kind, plural) for (at, plural), kind in REVIEWS.items() if at == name]
    if name == pod_metrics.GROUP:
        rows += [
            {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]}
            for plural, kind, namespaced in pod_metrics.RESOURCES
        ]
    return json_response(
        {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(name), "resources": rows}
    )


def _rows(resource: Resource) -> list[dict[str, Any]]:
    kind = resource.kind
    row: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(resource.verbs),
    }
    if kind.short_names:
        row["shortNames"] = list(kind.short_names)
    if kind.categories:
        row["categories"] = list(kind.categories)
    rows = [row]
    for name in resource.subresources:
        below: dict[str, Any] = {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": _subresource_verbs(name),
        }
        if name == "scale":
            below.update(group="autoscaling", version="v1", kind="Scale")
        elif name == "eviction":
            below.update(group="policy", version="v1", kind="Eviction")
        rows.append(below)
    return rows


def _subresource_verbs(name: str) -> list[str]:
    if name in SESSIONS:
        return ["create", "get"]
    return {"finalize": ["update"], "eviction": ["create"], "log": ["get"]}.get(name, ["get", "patch", "update"])


def _review_row(kind: str, plural: str) -> dict[str, Any]:
    return {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": ["create"]}


def _aggregated(app: Application, form: ResponseForm, names: tuple[str, ...]) -> Response:
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None},
            "versions": [
                {"version": _version_of(name), "freshness": "Current", "resources": _aggregated_rows(app.cell, name)}
            ],
        }
        for name in names
    ]
    body = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{form.version}",
        "metadata": {},
        "items": items,
    }
    kind = f"application/json;g=apidiscovery.k8s.io;v={form.version};as=APIGroupDiscoveryList"
    return _vary_by_accept(Response(status.encode(body), content_type=kind))


def _aggregated_rows(cell: str, group: str) -> list[dict[str, Any]]:
    rows = [_aggregated_row(resource) for resource in visible_resources(cell, group)]
    for (at, plural), kind in REVIEWS.items():
        if at == group:
            rows.append(
                {
                    "resource": plural,
                    "responseKind": _kind_ref(group, kind),
                    "scope": "Cluster",
                    "singularResource": kind.lower(),
                    "verbs": ["create"],
                }
            )
    if group == pod_metrics.GROUP:
        rows += [
            {
                "resource": plural,
                "responseKind": _kind_ref(group, kind),
                "scope": "Namespaced" if namespaced else "Cluster",
                "singularResource": "",
                "verbs": ["get", "list"],
            }
            for plural, kind, namespaced in pod_metrics.RESOURCES
        ]
    return rows


def _kind_ref(group: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": _version_of(group), "kind": kind}


def _aggregated_row(resource: Resource) -> dict[str, Any]:
    kind = resource.kind
    row: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": _kind_ref(kind.group, kind.name),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(resource.verbs),
    }
    if kind.short_names:
        row["shortNames"] = list(kind.short_names)
    if kind.categories:
        row["categories"] = list(kind.categories)
    kinds = {"scale": _kind_ref("autoscaling", "Scale"), "eviction": _kind_ref("policy", "Eviction")}
    if resource.subresources:
        row["subresources"] = [
            {
                "subresource": name,
                "verbs": _subresource_verbs(name),
                "responseKind": kinds.get(name, _kind_ref(kind.group, kind.name)),
            }
            for name in resource.subresources
        ]
    return row


def _vary_by_accept(response: Response) -> Response:
    response.headers.append(_VARY)
    return response
