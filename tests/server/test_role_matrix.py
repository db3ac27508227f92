"""Every built-in role and one custom role, for every kind, verb, tenant and cell, against the running application.

The table is written by hand. Roles are given by bindings, as an operator would give them; in a region the link has
copied them. `pytest -s` prints how many requests were compared.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.gate.audit import AUDIT_LOG, REFUSED, decode_record
from holdfast.model.kinds import ALL
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, RoleSubject
from holdfast.model.writes import Create
from holdfast.server.resources import RESOURCES, Resource

from . import conftest
from .conftest import Api, World, running

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
READS = "get list watch"
EVERY = " ".join(VERBS)
OWN, OTHER = "shop", "other"
# Kinds that a new table row is not needed for: kinds of a tenant can be read by its people.
WRITTEN_BY_TENANTS = "workloads events configmaps cronworkloads secrets volumeclaims"
# role → (kinds, verbs, places). `NAMESPACED` are the kinds of a tenant, `CLUSTER` the others, `*` both. Place "" is the
# cluster scope. Everything else is refused.
ALLOWED: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "viewer": [("*", READS, (OWN, OTHER, ""))],
    "operator": [("*", EVERY, (OWN, OTHER, ""))],
    "approver": [("*", READS, (OWN, OTHER, "")), ("overrides breakglasssessions", "update patch", ("",))],
    "tenant-user": [
        (WRITTEN_BY_TENANTS, EVERY, (OWN,)),
        ("replicas pods volumes", "delete", (OWN,)),
        ("NAMESPACED", READS, (OWN,)),
        ("regions priorityclasses", READS, ("",)),
    ],
    "tenant-admin": [
        (WRITTEN_BY_TENANTS, EVERY, (OWN,)),
        ("roles rolebindings", EVERY, (OWN,)),
        ("replicas pods volumes", "delete", (OWN,)),
        ("NAMESPACED", READS, (OWN,)),
        ("regions priorityclasses", READS, ("",)),
    ],
    "break-glass": [("breakglasssessions", f"{READS} create update patch", ("",)), ("regions", READS, ("",))],
    "custom": [("workloads", "get patch", (OWN,)), ("nodes", "list", ("",))],
    "nobody": [],
}
NOT_FOR_VIEWERS = ("secrets",)
BOUND_IN_TENANT = ("tenant-user", "tenant-admin")


def is_allowed(role: str, resource: Resource, verb: str, place: str, name: str) -> bool:
    plural, namespaced = resource.kind.plural, resource.kind.namespaced
    if plural in NOT_FOR_VIEWERS and role in ("viewer", "approver"):
        return False
    if role in BOUND_IN_TENANT and plural in ("tenants", "namespaces") and verb == "get":
        return name == OWN
    internal = resource.kind.internal
    for kinds, verbs, places in ALLOWED[role]:
        named = kinds == "*" or plural in kinds.split() or (kinds == "NAMESPACED" and namespaced and not internal)
        if named and verb in verbs.split() and place in places:
            return True
    return False


def people() -> Iterator[Object]:
    """Bindings of the roles to users of the same name, and the custom roles."""
    for role in ("viewer", "operator", "approver", "break-glass"):
        ref = RoleRef(kind="ClusterRole", name=f"holdfast:{role}")
        yield ClusterRoleBinding(metadata=ObjectMeta(name=role), role_ref=ref, subjects=(_user(role),))
    for role in BOUND_IN_TENANT:
        ref = RoleRef(kind="ClusterRole", name=f"holdfast:{role}")
        yield RoleBinding(metadata=ObjectMeta(name=role, namespace=OWN), role_ref=ref, subjects=(_user(role),))
    rule = PolicyRule(verbs=("get", "patch"), api_groups=("holdfast.dev",), resources=("workloads",))
    yield Role(metadata=ObjectMeta(name="patcher", namespace=OWN), rules=(rule,))
    ref = RoleRef(kind="Role", name="patcher")
    yield RoleBinding(metadata=ObjectMeta(name="patcher", namespace=OWN), role_ref=ref, subjects=(_user("custom"),))
    rule = PolicyRule(verbs=("list",), api_groups=("holdfast.dev",), resources=("nodes",))
    yield ClusterRole(metadata=ObjectMeta(name="lists-nodes"), rules=(rule,))
    ref = RoleRef(kind="ClusterRole", name="lists-nodes")
    subject = RoleSubject(kind="Group", name="on-call")
    yield ClusterRoleBinding(metadata=ObjectMeta(name="lists-nodes"), role_ref=ref, subjects=(subject,))


def _user(name: str) -> RoleSubject:
    return RoleSubject(kind="User", name=name)


@pytest.fixture(params=["global", "west"])
async def cell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    groups: dict[str, tuple[str, ...]] = {role: () for role in ALLOWED} | {"custom": ("on-call",)}
    monkeypatch.setattr(conftest, "GROUPS", conftest.GROUPS | groups)
    async for world in running(request.param, tmp_path):
        if world.cell == "global":
            operator = conftest._operator(world, Api(world.app))
            for item in people():
                await world.gate.commit(operator, [Create(item)])
        else:
            for item in people():
                await world.commit(Create(item), role="link")
        yield world


def requests_of(resource: Resource, verb: str, place: str) -> Iterator[tuple[str, str, str, Any]]:
    """Name, method, path and body of one matrix row. Writes are dry runs."""
    kind = resource.kind
    base = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"
    base += f"/namespaces/{place}/{kind.plural}" if kind.namespaced else f"/{kind.plural}"
    dry = "?dryRun=All"
    for name in (OWN, OTHER) if kind.plural in ("tenants", "namespaces") and verb == "get" else ("thing",):
        at = f"{base}/{name}"
        match verb:
            case "get":
                yield name, "GET", at, None
            case "list":
                yield name, "GET", base, None
            case "watch":
                yield name, "GET", f"{base}?watch=true&resourceVersion=none", None  # refused after authorization
            case "create":
                yield name, "POST", base + dry, {"metadata": {"name": name}}
            case "update":
                yield name, "PUT", at + dry, {"metadata": {"name": name, "resourceVersion": "1"}}
            case "patch":
                yield name, "PATCH", at + dry, {}
            case "delete":
                yield name, "DELETE", at + dry, None
            case "deletecollection":
                yield name, "DELETE", base + dry, None


def is_refused_by_authorization(code: int, body: bytes) -> bool:
    return code == 403 and b"is forbidden: User " in body and b" cannot " in body


async def test_role_matrix_matches_table(cell: World, capsys: pytest.CaptureFixture[str]) -> None:
    wrong: list[str] = []
    count = refused = answered_403 = 0
    for role in ALLOWED:
        api = Api(cell.app, role)
        for resource in RESOURCES:
            for verb in VERBS:
                for place in (OWN, OTHER) if resource.kind.namespaced else ("",):
                    for name, method, path, body in requests_of(resource, verb, place):
                        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
                        reply = await api.call(method, path, body, type=kind)
                        answered_403 += reply.code == 403
                        if reply.code in (404, 405) and (b"not stored in" in reply.body or reply.code == 405):
                            continue  # not served in this cell, whoever asks
                        count += 1
                        denied = is_refused_by_authorization(reply.code, reply.body)
                        refused += denied
                        if denied == is_allowed(role, resource, verb, place, name):
                            wrong.append(f"{role} {verb} {path} in {cell.cell}: {reply.code} {reply.body[:120]!r}")
                        if reply.code == 500:
                            wrong.append(f"{role} {verb} {path}: 500")
    with capsys.disabled():
        print(f"\n{count} requests compared in {cell.cell}, {refused} refused")
    assert wrong == []
    page = (Path(__file__).parents[2] / "docs" / "access.md").read_text()
    stated = re.search(r"at least ([\d,]+) requests in each cell, of which more than ([\d,]+) are refused", page)
    assert stated is not None
    assert count >= int(stated[1].replace(",", ""))
    assert refused > int(stated[2].replace(",", ""))
    # Read from the store: each answer was sent after its record was durable.
    recorded = [decode_record(r.value) for r in await cell.store.read_log(AUDIT_LOG, limit=100_000)]
    assert sum(record.count for record in recorded if record.result == REFUSED) == answered_403


def test_table_names_only_known_kinds() -> None:
    later = {"configmaps", "cronworkloads", "secrets", "breakglasssessions"}
    known = {kind.plural for kind in ALL} | {"pods"} | later
    named = {k for rows in ALLOWED.values() for kinds, _, _ in rows for k in kinds.split()} - {"*", "NAMESPACED"}
    assert named <= known
