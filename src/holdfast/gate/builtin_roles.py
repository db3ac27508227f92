"""The built-in roles of people, as rows: viewer, operator, approver, tenant admin, tenant user, break-glass.

The code decides by these rows, never by the stored ClusterRoles of the same names, which only show them to clients.
`TENANT_RESOURCES` is the single table of what people of a tenant may do with its objects. A new kind of a tenant that
is not listed there can be read by the tenant and written by operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.gate.allowance import ANY, CHANGE_VERBS, EVERY_VERB, READ_VERBS, Allowance, allow
from holdfast.model.kinds import ALL, BY_PLURAL
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import APPROVERS, BREAK_GLASS, OPERATORS, TENANT_ADMIN_PREFIX, TENANT_PREFIX, VIEWERS
from holdfast.model.rbac import ClusterRole, PolicyRule

OPERATOR_ROLE, VIEWER_ROLE = "holdfast:operator", "holdfast:viewer"
APPROVER_ROLE, BREAK_GLASS_ROLE = "holdfast:approver", "holdfast:break-glass"
TENANT_ADMIN_ROLE, TENANT_USER_ROLE = "holdfast:tenant-admin", "holdfast:tenant-user"

CREATE = frozenset({"create"})
# Resource → verbs of a tenant's users, verbs of its admins.
TENANT_RESOURCES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "workloads": (EVERY_VERB, EVERY_VERB),
    "workloads/scale": (EVERY_VERB, EVERY_VERB),
    "events": (EVERY_VERB, EVERY_VERB),
    "replicas": (READ_VERBS | {"delete"}, READ_VERBS | {"delete"}),
    "pods": (READ_VERBS | {"delete"}, READ_VERBS | {"delete"}),
    "pods/log": (READ_VERBS, READ_VERBS),
    "configmaps": (EVERY_VERB, EVERY_VERB),
    "cronworkloads": (EVERY_VERB, EVERY_VERB),
    "secrets": (EVERY_VERB, EVERY_VERB),
    "volumeclaims": (EVERY_VERB, EVERY_VERB),
    "volumes": (READ_VERBS | {"delete"}, READ_VERBS | {"delete"}),
    "roles": (READ_VERBS, EVERY_VERB),
    "rolebindings": (READ_VERBS, EVERY_VERB),
    **dict.fromkeys(
        ("replicas/exec", "pods/exec", "pods/attach", "pods/portforward", "pods/eviction"), (CREATE, CREATE)
    ),
}
SECRET_RESOURCES = frozenset({"secrets"})
"""Not included in a viewer's wildcard: reading everything does not mean reading credentials."""
_NAMESPACED = tuple(k.plural for k in ALL if k.namespaced and not k.internal)


def with_subresources(plurals: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
    """Each plural and its subresources."""
    for plural in plurals:
        yield plural
        kind = BY_PLURAL.get(plural)
        if kind is None or kind.has_status:
            yield f"{plural}/status"
        if kind is not None and kind.scalable:
            yield f"{plural}/scale"


def _operator(tenants: frozenset[str] | None) -> Iterator[Allowance]:
    yield allow({ANY}, ANY, namespaces=tenants, paths=frozenset({ANY} if tenants is None else ()))


def _viewer(tenants: frozenset[str] | None) -> Iterator[Allowance]:
    paths = frozenset({ANY} if tenants is None else ())
    yield allow(READ_VERBS, ANY, namespaces=tenants, without=SECRET_RESOURCES, paths=paths)


def _approver(tenants: frozenset[str] | None) -> Iterator[Allowance]:
    yield from _viewer(tenants)
    yield allow(CHANGE_VERBS, "overrides", "breakglasssessions", namespaces=tenants)


def _break_glass(tenants: frozenset[str] | None) -> Iterator[Allowance]:
    yield allow(READ_VERBS | {"create", "update", "patch"}, "breakglasssessions", namespaces=tenants)
    yield allow(READ_VERBS, *with_subresources(("regions",)))  # commands find the cells by them


def _of_tenant(tenants: frozenset[str] | None, *, admin: bool) -> Iterator[Allowance]:
    by_verbs: dict[frozenset[str], list[str]] = {}
    for path, verbs in TENANT_RESOURCES.items():
        by_verbs.setdefault(verbs[admin], []).append(path)
    for allowed, paths in by_verbs.items():
        if allowed:
            yield allow(allowed, *paths, namespaces=tenants)
    others = tuple(plural for plural in _NAMESPACED if plural not in TENANT_RESOURCES)
    listed = (f"{plural}/status" for plural in TENANT_RESOURCES if plural in BY_PLURAL and BY_PLURAL[plural].has_status)
    yield allow(READ_VERBS, *with_subresources(others), *listed, namespaces=tenants)
    yield allow(READ_VERBS, *with_subresources(("tenants", "namespaces")), names=tenants)
    yield allow(READ_VERBS, *with_subresources(("regions", "priorityclasses")))


def _tenant_admin(tenants: frozenset[str] | None) -> Iterator[Allowance]:
    return _of_tenant(tenants, admin=True)


def _tenant_user(tenants: frozenset[str] | None) -> Iterator[Allowance]:
    return _of_tenant(tenants, admin=False)


Rows = Callable[[frozenset[str] | None], Iterator[Allowance]]
# ClusterRole → its rows in these tenants; None means everywhere.
BUILTIN_ROLES: dict[str, Rows] = {
    OPERATOR_ROLE: _operator,
    VIEWER_ROLE: _viewer,
    APPROVER_ROLE: _approver,
    BREAK_GLASS_ROLE: _break_glass,
    TENANT_ADMIN_ROLE: _tenant_admin,
    TENANT_USER_ROLE: _tenant_user,
}
# Groups that stand for a built-in role everywhere, and prefixes that stand for one in a tenant.
GROUP_ROLES = {OPERATORS: OPERATOR_ROLE, VIEWERS: VIEWER_ROLE, APPROVERS: APPROVER_ROLE, BREAK_GLASS: BREAK_GLASS_ROLE}
TENANT_GROUP_ROLES = {TENANT_PREFIX: TENANT_USER_ROLE, TENANT_ADMIN_PREFIX: TENANT_ADMIN_ROLE}
_GROUP_OF_ROLE = {role: group for group, role in GROUP_ROLES.items()}
_PREFIX_OF_ROLE = {role: prefix for prefix, role in TENANT_GROUP_ROLES.items()}


def group_of_binding(role: str, tenant: str) -> str:
    """The group that stands for this built-in role bound in this tenant, or everywhere if empty; "" if none does."""
    if tenant:
        prefix = _PREFIX_OF_ROLE.get(role, "")
        return prefix + tenant if prefix else ""
    return _GROUP_OF_ROLE.get(role, "")


def published_roles() -> Iterator[ClusterRole]:
    """The built-in roles as ClusterRoles, for `kubectl get clusterroles`."""
    for name, rows in BUILTIN_ROLES.items():
        rules = tuple(rule for row in rows(None) for rule in policy_rules(row))
        yield ClusterRole(metadata=ObjectMeta(name=name, labels={"holdfast.dev/built-in": "true"}), rules=rules)


def policy_rules(row: Allowance) -> Iterator[PolicyRule]:
    """One row in the form of Kubernetes, one rule per API group."""
    verbs = tuple(sorted(row.verbs))
    names = tuple(sorted(row.names)) if row.names is not None else ()
    by_group: dict[str, list[str]] = {}
    for path in sorted(row.resources):
        by_group.setdefault(ANY if path == ANY else group_of(path.partition("/")[0]), []).append(path)
    for group, paths in by_group.items():
        yield PolicyRule(verbs=verbs, api_groups=(group,), resources=tuple(paths), resource_names=names)
    if row.paths:
        yield PolicyRule(verbs=verbs, non_resource_urls=tuple(sorted(row.paths)))


# Resources without a stored kind: plural → API group.
VIRTUAL_RESOURCES = {
    "namespaces": "",
    "pods": "",
    "configmaps": "",
    "secrets": "",
    "selfsubjectaccessreviews": "authorization.k8s.io",
    "selfsubjectrulesreviews": "authorization.k8s.io",
    "subjectaccessreviews": "authorization.k8s.io",
    "localsubjectaccessreviews": "authorization.k8s.io",
    "selfsubjectreviews": "authentication.k8s.io",
    "tokenreviews": "authentication.k8s.io",
    "customresourcedefinitions": "apiextensions.k8s.io",
}


def group_of(plural: str) -> str:
    kind = BY_PLURAL.get(plural)
    return kind.group if kind is not None else VIRTUAL_RESOURCES.get(plural, "")
