"""What every built-in role and one custom role may do, per kind, verb and tenant; written by hand.

The table is compared with the application in process (`test_role_matrix.py`) and with the servers of a platform
(`tests/e2e/test_access_matrix.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, RoleSubject
from holdfast.server.resources import Resource

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
