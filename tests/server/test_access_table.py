"""Every route, for every kind of caller: what is answered, that nothing is revealed, and that it is audited.

The table is written by hand and independent of the code. A route without a row fails. Each request is made twice, about
an object that exists and about one that does not: a caller without access gets the same answer to both.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.expected import of_type

from holdfast.gate.audit import read_records
from holdfast.model import codec
from holdfast.model.kinds import ALL, BY_NAME
from holdfast.model.meta import Object, ObjectMeta
from holdfast.server.resources import RESOURCES, Resource
from holdfast.server.routes import ROUTES
from holdfast.store.contract import Put, Txn

from .conftest import Api, Reply, World, running

ANONYMOUS, UNKNOWN, TENANT, NODE, OPERATOR = "anonymous", "unknown token", "another tenant", "another node", "operator"
CALLERS = {ANONYMOUS: "", UNKNOWN: "", TENANT: "tim", NODE: "holdfast:node:west:n1", OPERATOR: "ada"}
SESSIONS = ("/exec", "/attach", "/portforward")
THERE, MISSING = "there", "missing"
"""Names of the object that exists and of the one that does not. It belongs to tenant `other` and node `there`."""
ANY = range(200, 500)
OPEN = dict.fromkeys(CALLERS, ANY)
# 404: the path is not served in this cell.
KNOWN_CALLERS = {ANONYMOUS: (401,), UNKNOWN: (401,), TENANT: (200, 404), NODE: (200, 404), OPERATOR: (200, 404)}
OPERATORS_ONLY = {ANONYMOUS: (401,), UNKNOWN: (401,), TENANT: (403,), NODE: (403,), OPERATOR: ANY}
NOBODY_HERE = {ANONYMOUS: (401,), UNKNOWN: (401,), TENANT: (403,), NODE: (403,), OPERATOR: (403,)}
EVERYONE_ABOUT_ITSELF = {ANONYMOUS: (401,), UNKNOWN: (401,), TENANT: (201, 400), NODE: (201, 400), OPERATOR: ANY}
# A write about another node's object is answered as if the object did not exist.
RESOURCES_OF_OTHERS = {ANONYMOUS: (401,), UNKNOWN: (401,), TENANT: (403,), NODE: (403, 404), OPERATOR: ANY}
METRICS_OF_OTHERS = {ANONYMOUS: (401,), UNKNOWN: (401,), TENANT: (403, 404), NODE: (403, 404), OPERATOR: (200, 404)}

TABLE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("/version", "/healthz", "/livez", "/readyz"), OPEN),
    **dict.fromkeys(("/healthz/{check}", "/livez/{check}", "/readyz/{check}"), OPEN),
    "/metrics": OPERATORS_ONLY,
    "/metrics/nodes": OPERATORS_ONLY,
    "/metrics/nodes/{node}": OPERATORS_ONLY,
    "/audit/v1": OPERATORS_ONLY,
    "/audit/v1/checkpoints": OPERATORS_ONLY,
    **dict.fromkeys(("/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"), KNOWN_CALLERS),
    "/openapi/v3/apis/{group}/{version}": KNOWN_CALLERS,
    **dict.fromkeys(("/api", "/apis", "/apis/{group}", "/api/v1", "/apis/{group}/{version}"), KNOWN_CALLERS),
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": EVERYONE_ABOUT_ITSELF,
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": EVERYONE_ABOUT_ITSELF,
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": EVERYONE_ABOUT_ITSELF,
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": OPERATORS_ONLY,
    "/apis/authentication.k8s.io/v1/tokenreviews": OPERATORS_ONLY,
    **dict.fromkeys((f"/placement/v1/{call}" for call in ("reserve", "bind", "release", "renew")), NOBODY_HERE),
    "/join/v1": dict.fromkeys(CALLERS, (401, 503)),  # the token in the body is the credential, and it is unknown
    "/join/v1/renew": {ANONYMOUS: (401,), UNKNOWN: (401,), **dict.fromkeys((TENANT, NODE, OPERATOR), (403, 503))},
    "/join/v1/ca": OPEN,  # public; a joining machine compares it with the hash in its token
    "/join/v1/region": dict.fromkeys(CALLERS, (401, 503)),  # as for nodes: the token is the credential
    "/join/v1/region/renew": {
        ANONYMOUS: (401,),
        UNKNOWN: (401,),
        **dict.fromkeys((TENANT, NODE, OPERATOR), (403, 503)),
    },
    # Only for a server of the same cell; operators may not read the keys either. 503: this server shares none.
    "/join/v1/server/material": {
        ANONYMOUS: (401,),
        UNKNOWN: (401,),
        **dict.fromkeys((TENANT, NODE, OPERATOR), (403, 503)),
    },
    "/join/v1/regions/{name}/revoke": OPERATORS_ONLY,
    "/join/v1/servers/{name}/revoke": OPERATORS_ONLY,
    "/commit/v1": RESOURCES_OF_OTHERS,
    "/notify/v1": {**OPERATORS_ONLY, NODE: (200, 403)},  # received, and dropped; a node has no business globally
    "/node/v1/{node}/calls": NOBODY_HERE,
    "/node/v1/{node}/responses/{id}": NOBODY_HERE,
    "/node/v1/{node}/sessions/{id}": NOBODY_HERE,
    # Served by the regions only; reading the use of pods and nodes needs the right to read these.
    "/apis/metrics.k8s.io/v1beta1/nodes": METRICS_OF_OTHERS,
    "/apis/metrics.k8s.io/v1beta1/nodes/{name}": METRICS_OF_OTHERS,
    "/apis/metrics.k8s.io/v1beta1/pods": METRICS_OF_OTHERS,
    "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods": METRICS_OF_OTHERS,
    "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{name}": METRICS_OF_OTHERS,
    "/agent/v1/replicas/{tenant}/{replica}": OPERATORS_ONLY,
    "/agent/v1/nodes/{node}": OPERATORS_ONLY,
    "/region/v1/{region}/queries": NOBODY_HERE,
    "/region/v1/{region}/answers/{id}": NOBODY_HERE,
    "/region/v1/{region}/config": NOBODY_HERE,
    "/region/v1/{region}/config/{kind}/{tenant}/{name}": NOBODY_HERE,
    "/node/v1/{node}/values/{tenant}/{binding}": NOBODY_HERE,
    "/node/v1/{node}/registry-login/{tenant}/{binding}": NOBODY_HERE,
    "/region/v1/{region}/sessions/{id}": NOBODY_HERE,
    "/secrets/v1/keys": OPERATORS_ONLY,
    **dict.fromkeys(("/", "/console", "/console/{a}", "/console/{a}/{b}", "/console/{a}/{b}/{c}"), OPEN),
    **dict.fromkeys(("/console/{a}/{b}/{c}/{d}", "/console/assets/{file}"), OPEN),
    **dict.fromkeys(("/docs", "/docs/{a}", "/docs/{a}/{b}", "/docs/{a}/{b}/{c}", "/docs/{a}/{b}/{c}/{d}"), OPEN),
    "/console/api/session": OPEN,  # signing in needs no credential but what the body carries
    "/console/api/sign-in": OPEN,  # the ways to sign in that the page offers
    "/console/api/oidc": OPEN,  # the way to the issuer, and back with what it said
    "/console/api/links": {**KNOWN_CALLERS, NODE: (403, 404)},
    # With a certificate alone, another site could have caused the request.
    **dict.fromkeys(("/console/api/pages/{page}", "/console/api/stream", "/console/api/history"), NOBODY_HERE),
    "/console/api/regions/{region}/pods/{tenant}/{name}/log": NOBODY_HERE,
    "/console/api/regions/{region}/pods/{tenant}/{name}/exec": NOBODY_HERE,
    "/console/api/drills": NOBODY_HERE,
    "/console/api/what-if": NOBODY_HERE,
    "/console/api/regions/{region}/nodes/{node}": NOBODY_HERE,
    "/console/api/regions/{region}/nodes/{node}/usage": NOBODY_HERE,
    "/endpoints/{tenant}": OPERATORS_ONLY,
    "/endpoints/{tenant}/{workload}": OPERATORS_ONLY,
    **{
        f"{base}{item}{part}": RESOURCES_OF_OTHERS
        for base, item in (
            ("/api/v1/namespaces", "/{name}"),
            ("/api/{version}/namespaces/{namespace}/{plural}", "/{name}"),
            ("/api/{version}/{plural}", "/{name}"),
            ("/apis/{group}/{version}/namespaces/{namespace}/{plural}", "/{name}"),
            ("/apis/{group}/{version}/{plural}", "/{name}"),
        )
        for item in ("", item)
        for part in (("", "/scale", "/eviction", "/log", *SESSIONS, "/{subresource}") if item else ("",))
    },
}
READABLE_BY_TENANTS = frozenset({"regions", "priorityclasses"})
"""Kinds of the platform that every tenant may read: a Workload names them."""


def test_every_route_has_a_row() -> None:
    assert {route.pattern for route in ROUTES} == TABLE.keys()
    assert all(row.keys() == CALLERS.keys() for row in TABLE.values())


# Objects ---------------------------------------------------------------------------------------------------------


def minimal(wanted: Any) -> Any:
    """The simplest value of a type: only required fields are set."""
    origin = typing.get_origin(wanted)
    if origin in (tuple, list, dict, frozenset):
        return origin()
    if origin in (typing.Union, types.UnionType):
        return minimal(typing.get_args(wanted)[0])
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return next(iter(wanted))
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        fields = msgspec.structs.fields(wanted)
        return wanted(**{field.name: minimal(field.type) for field in fields if field.required})
    return wanted("x") if wanted is str else wanted(1)


def made(resource: Resource, name: str) -> Object:
    """An object of tenant `other` on node `there`, whatever its kind has of both."""
    kind = resource.stored
    meta = ObjectMeta(name=name, namespace="other" if kind.namespaced else "", uid="some-uid", generation=1)
    fields = {f.name: minimal(f.type) for f in msgspec.structs.fields(kind.type) if f.required and f.name != "metadata"}
    item: Any = kind.type(metadata=meta, **fields)
    if kind.name == "Binding":
        item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, node=THERE, replica=THERE))
    if kind.name == "Replica":
        placed = msgspec.structs.replace(item.status.placement, node=THERE)
        item = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, placement=placed))
    return of_type(item, Object)


async def plant_everything(world: World) -> None:
    """One object of every kind, directly in the store."""
    for resource in RESOURCES:
        if resource.kind is resource.stored:
            item = made(resource, THERE)
            key = resource.stored.store_key(item.metadata.namespace, THERE)
            await world.objects.commit(resource.stored, Txn(writes=(Put(key, codec.encode(item)),)))


@pytest.fixture(params=["global", "west"])
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> typing.AsyncIterator[World]:
    async for world in running(request.param, tmp_path):
        await plant_everything(world)
        yield world


# Requests --------------------------------------------------------------------------------------------------------


def requests(name: str) -> Iterator[tuple[str, str, str, Any]]:
    """Pattern, method, path and body of every route and, for resources, of every kind that the route serves."""
    about = {"kind": "Binding", "namespace": "other", "name": name}
    bodies: dict[str, Any] = {
        "/commit/v1": {"writes": [{"op": "delete", **about, "uid": "u"}]},
        "/notify/v1": {"notices": [{"about": about, "reason": "R"}]},
        "/join/v1": {"token": "hfj.west.x", "node": name, "csr": "x"},
        "/placement/v1/renew": {"items": [{"node": name}]},
        "/agent/v1/replicas/{tenant}/{replica}": {"kind": "Exec", "command": ["id"]},
        "/agent/v1/nodes/{node}": {"kind": "Usage"},
        "/join/v1/renew": {"csr": "x"},
        "/join/v1/region": {
            "token": "hfj.global.x",
            "region": name,
            "endpoint": "https://10.0.0.1:7401",
            "requests": {"link": "x", "server": "x"},
        },
        "/join/v1/region/renew": {"link": "x", "server": "x"},
        "/join/v1/server/material": {"csr": "x"},
        "/console/api/links": None,
    }
    for route in ROUTES:
        for method in route.methods:
            if route.label == "resource":
                for resource in RESOURCES:
                    path = path_of(route.pattern, resource, name)
                    if path:
                        yield route.pattern, method, path, body_of(method, route.pattern, resource, name)
                continue
            path = route.pattern
            values = {
                "tenant": "other",
                "workload": name,
                "replica": name,
                "node": name,
                "id": f"{name}.x",
                "name": name,
            }
            for parameter, value in (values | {"group": "holdfast.dev", "version": "v1", "check": "ping"}).items():
                path = path.replace(f"{{{parameter}}}", value)
            yield route.pattern, method, path, bodies.get(route.pattern, {}) if method == "POST" else None


def path_of(pattern: str, resource: Resource, name: str) -> str:
    """The path of a resource under this pattern; empty if the pattern is for others."""
    kind = resource.kind
    if pattern.startswith("/api/v1/namespaces"):
        return pattern.replace("{name}", name).replace("{subresource}", "status") if kind.plural == "namespaces" else ""
    grouped, scoped = "{group}" in pattern, "{namespace}" in pattern
    lists = "{name}" not in pattern
    if (
        bool(kind.group) is not grouped
        or (scoped and not kind.namespaced)
        or (kind.namespaced and not (scoped or lists))
    ):
        return ""
    values = {"version": "v1", "group": kind.group, "plural": kind.plural, "namespace": "other", "name": name}
    for parameter, value in (values | {"subresource": "status"}).items():
        pattern = pattern.replace(f"{{{parameter}}}", value)
    return pattern


def body_of(method: str, pattern: str, resource: Resource, name: str) -> Any:
    if method in ("GET", "HEAD"):
        return None
    if method in ("PATCH", "DELETE") or pattern.endswith(("/scale", "/eviction")):
        return {}
    item: Any = made(resource, name)
    if resource.kind is not resource.stored:
        return {"metadata": {"name": name}}
    plain: dict[str, Any] = json.loads(codec.encode(item))
    plain["metadata"] = {"name": name, "resourceVersion": "1"} if method == "PUT" else {"name": name}
    if resource.kind.name == "Event":
        plain["involvedObject"] = {"kind": "Binding", "namespace": "other", "name": name}
    return plain


async def send(world: World, caller: str, method: str, path: str, body: Any) -> Reply:
    headers = [("authorization", "Bearer nonsense")] if caller == UNKNOWN else []
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    return await Api(world.app, CALLERS[caller], headers).call(method, path, body, type=content_type)


async def audited(world: World) -> list[dict[str, Any]]:
    await world.gate.audit.flush()
    return [record for _, record in await read_records(world.store, limit=100_000)]


def expected(pattern: str, caller: str, method: str, path: str) -> Any:
    if caller == TENANT and method in ("GET", "HEAD") and path.split("/")[4:5] and not path.startswith("/api/"):
        plural = path.split("/")[4]
        if plural in READABLE_BY_TENANTS and "namespaces" not in path:
            return (200, 404)
    return TABLE[pattern][caller]


@pytest.mark.parametrize("caller", [ANONYMOUS, UNKNOWN, TENANT, NODE])
async def test_answer_without_access_is_as_the_table_says_and_reveals_nothing(cell: World, caller: str) -> None:
    wrong: list[str] = []
    for (pattern, method, path, body), (_, _, other_path, other_body) in zip(
        requests(THERE), requests(MISSING), strict=True
    ):
        before = len(await audited(cell))
        reply, other = [
            await send(cell, caller, method, at, content) for at, content in ((path, body), (other_path, other_body))
        ]
        what = f"{method} {path} by {caller} in {cell.cell}"
        if reply.code in (404, 405) and reply.code == other.code and _same(reply, other) and _not_served(reply):
            continue  # the kind or the method is not served in this cell, whoever asks
        if reply.code not in expected(pattern, caller, method, path):
            wrong.append(f"{what}: {reply.code} {reply.body[:150]!r}")
        elif TABLE[pattern] is not OPEN and not _is_visible(pattern, caller, path) and not _same(reply, other):
            wrong.append(f"{what}: reveals whether it exists: {reply.body[:200]!r} or {other.body[:200]!r}")
        denied = reply.code in (401, 403) or (caller == NODE and reply.code == 404 and method not in ("GET", "HEAD"))
        if denied and len(await audited(cell)) == before:
            wrong.append(f"{what}: {reply.code} without an audit record")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:40])


def _is_visible(pattern: str, caller: str, path: str) -> bool:
    """Whether the table lets this caller see the object, or the route says nothing about objects."""
    return TABLE[pattern] in (KNOWN_CALLERS, EVERYONE_ABOUT_ITSELF) or expected(pattern, caller, "GET", path) == (
        200,
        404,
    )


def _not_served(reply: Reply) -> bool:
    if not reply.body:
        return reply.code == 405
    if not reply.body.startswith(b"{"):
        return False  # a page for people, such as that of a documentation that is not built
    message = json.loads(reply.body).get("message", "")
    return reply.code == 405 or "not stored in the" in message or "could not find the requested resource" in message


def _same(one: Reply, other: Reply) -> bool:
    return one.code == other.code and one.body.replace(THERE.encode(), b"") == other.body.replace(MISSING.encode(), b"")


async def test_operator_is_refused_nothing_that_operators_may_do(cell: World) -> None:
    wrong = []
    for pattern, method, path, body in requests(MISSING):
        if method == "DELETE" and "{name}" not in pattern:
            continue  # deleting whole collections would remove what other requests need
        before = len(await audited(cell))
        reply = await send(cell, OPERATOR, method, path, body)
        if reply.code == 201 and TABLE[pattern] is RESOURCES_OF_OTHERS and len(await audited(cell)) == before:
            wrong.append(f"{method} {path}: created without an audit record")
        refused = reply.code == 401 or (reply.code == 403 and "is forbidden: User" in reply.json.get("message", ""))
        if refused and TABLE[pattern][OPERATOR] is ANY:
            wrong.append(f"{method} {path}: {reply.code} {reply.body[:150]!r}")
    assert not wrong, "\n".join(wrong)


async def test_allowed_use_leaves_an_audit_record(tmp_path: Path) -> None:
    async for world in running("west", tmp_path):
        await plant_everything(world)
        node = Api(world.app, "holdfast:node:west:n1")
        binding = made(next(r for r in RESOURCES if r.kind.name == "Binding"), "own")
        binding = msgspec.structs.replace(binding, spec=msgspec.structs.replace(binding.spec, node="n1"))  # type: ignore[attr-defined]
        key = BY_NAME["Binding"].store_key("other", "own")
        await world.objects.commit(BY_NAME["Binding"], Txn(writes=(Put(key, codec.encode(binding)),)))
        about = {"kind": "Binding", "namespace": "other", "name": "own"}
        event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R"}
        assert (await node.post("/api/v1/namespaces/other/events", event)).code == 201
        assert (await node.post("/notify/v1", {"notices": [{"about": about, "reason": "R"}]})).code == 200
        command = {"kind": "Exec", "command": ["cat", "/etc/passwd"]}
        assert (await Api(world.app).post(f"/agent/v1/replicas/other/{THERE}", command)).code == 503, (
            "no agent is there"
        )
        allowed = {
            (r["principal"], r["verb"], r["resource"], r["message"])
            for r in await audited(world)
            if r["result"] == "Allowed"
        }
        assert allowed == {
            ("holdfast:node:west:n1", "create", "events/other", "about Binding other/own"),
            ("holdfast:node:west:n1", "notify", "events/other", "about Binding other/own"),
            ("ada", "exec", "replicas/exec", f"replica other/{THERE}: cat /etc/passwd"),
        }


def test_every_kind_is_in_the_table_of_resources() -> None:
    assert {kind.name for kind in ALL} <= {resource.stored.name for resource in RESOURCES}
