"""Authorization of requests: verbs on resources, by namespace, name and field selector. A table computed per principal.

The gate checks the writes themselves again (ownership, node, region, tenant), so an error here alone cannot let a wrong
write through. Reads are checked only here: every handler that serves reads or watches must call `access_refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.gate.scope import GLOBAL_CELL
from holdfast.model.errors import Refused
from holdfast.model.kinds import ALL, BY_PLURAL, Home, Kind
from holdfast.model.ownership import AGENT, OWNERS, REGION, UNOWNED, deleters, owners
from holdfast.model.principal import CONTROLLERS, OPERATORS, VIEWERS, Principal

READ_VERBS = frozenset({"get", "list", "watch"})
CHANGE_VERBS = frozenset({"update", "patch"})
EVERY_VERB = READ_VERBS | CHANGE_VERBS | {"create", "delete", "deletecollection"}
CALL_ROLES = {"reserve": "scheduler", "bind": "scheduler", "release": "release"}
"""Placement call → role that may make it. `renew` is for the node's own agent, `commit` for every writer."""

# Resources without a stored kind: plural → API group.
VIRTUAL_RESOURCES = {
    "namespaces": "",
    "pods": "",
    "selfsubjectaccessreviews": "authorization.k8s.io",
    "selfsubjectrulesreviews": "authorization.k8s.io",
    "subjectaccessreviews": "authorization.k8s.io",
    "selfsubjectreviews": "authentication.k8s.io",
    "tokenreviews": "authentication.k8s.io",
    "customresourcedefinitions": "apiextensions.k8s.io",
}
OPEN_PATHS = ("/api", "/apis", "/version", "/openapi", "/healthz", "/livez", "/readyz")
_SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")
_NAMESPACED = tuple(k.plural for k in ALL if k.namespaced and not k.internal)
_LINK_READS = (*(k.plural for k in ALL if k.mirrored and not k.namespaced), "namespaces")


class Allowance(msgspec.Struct, frozen=True):
    """One row: verbs on resources, everywhere unless limited. `fields` names selectors that the request must carry."""

    verbs: frozenset[str]
    resources: frozenset[str]
    namespaces: frozenset[str] | None = None
    names: frozenset[str] | None = None
    fields: tuple[tuple[str, str], ...] = ()

    def covers(self, request: AccessRequest) -> bool:
        if request.verb not in self.verbs or not self._covers_resource(request.resource, request.subresource):
            return False
        if self.namespaces is not None and request.namespace not in self.namespaces:
            return False
        if self.names is not None and (request.name or request.fields.get("metadata.name", "")) not in self.names:
            return False
        return all(_has_selector(request.fields, name, value) for name, value in self.fields)

    def _covers_resource(self, resource: str, subresource: str) -> bool:
        path = f"{resource}/{subresource}" if subresource else resource
        return "*" in self.resources or path in self.resources


class AccessRequest(msgspec.Struct, frozen=True):
    verb: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    fields: Mapping[str, str] = {}


def _has_selector(fields: Mapping[str, str], name: str, value: str) -> bool:
    found = fields.get(name, fields.get(f"spec.{name}", ""))
    if value.endswith("*"):
        return found.startswith(value[:-1]) and bool(found)
    return found == value


def _row(verbs: Iterable[str], *resources: str, **limits: Any) -> Allowance:
    return Allowance(frozenset(verbs), frozenset(resources), **limits)


def _with_subresources(plurals: Iterable[str]) -> Iterator[str]:
    """Each plural and its subresources."""
    for plural in plurals:
        yield plural
        kind = BY_PLURAL.get(plural)
        if kind is None or kind.has_status:
            yield f"{plural}/status"
        if kind is not None and kind.scalable:
            yield f"{plural}/scale"


def _for_viewer(who: Principal) -> Iterator[Allowance]:
    yield _row(READ_VERBS, "*")


def _for_tenants(who: Principal) -> Iterator[Allowance]:
    own = who.tenants
    yield _row(EVERY_VERB, "workloads", "workloads/scale", namespaces=own)
    yield _row(READ_VERBS, *_with_subresources(_NAMESPACED), namespaces=own)
    yield _row(READ_VERBS, "pods", "pods/log", namespaces=own)
    yield _row({"delete"}, "replicas", namespaces=own)
    yield _row(EVERY_VERB, "events", namespaces=own)
    yield _row(READ_VERBS, *_with_subresources(("tenants", "namespaces")), names=own)
    yield _row(READ_VERBS, *_with_subresources(("regions", "priorityclasses")))


def _for_node(who: Principal) -> Iterator[Allowance]:
    on_it = (("node", who.node),)
    yield _row(READ_VERBS, "bindings", "bindings/status", "replicas", "replicas/status", fields=on_it)
    # The gate checks the name as well; the prefix of a hollow host cannot be a list of names.
    named = None if who.node.endswith("*") else frozenset({who.node})
    yield _row(READ_VERBS | CHANGE_VERBS | {"create", "delete"}, "nodes", "nodes/status", names=named)
    yield _row(CHANGE_VERBS, "bindings/status", "replicas/status")
    yield _row({"create", "update", "patch"}, "events")


def _for_region(who: Principal) -> Iterator[Allowance]:
    yield _row(READ_VERBS, *_with_subresources(_LINK_READS))
    yield _row(
        READ_VERBS, *_with_subresources(("assignments", "grants", "endpoints")), fields=(("region", who.region),)
    )
    yield _row(CHANGE_VERBS, "assignments/status", "grants/status")
    yield _row(CHANGE_VERBS, "regions/status", names=frozenset({who.region}))
    yield _row(CHANGE_VERBS | {"create", "delete"}, "endpoints", "endpoints/status")
    yield _row(CHANGE_VERBS | {"create"}, "overrides")
    yield _row({"create", "update", "patch"}, "events")


def _for_controller(who: Principal) -> Iterator[Allowance]:
    yield _row(READ_VERBS, "*")
    for kind in ALL:
        if kind.name in UNOWNED:
            yield _row(EVERY_VERB, kind.plural)
            continue
        if who.roles & owners(kind.name, "metadata"):
            yield _row({"create"}, kind.plural)
        groups = OWNERS[kind.name]
        if any(who.roles & roles for group, roles in groups.items() if not group.startswith("status")):
            yield _row(CHANGE_VERBS, kind.plural)
        if any(who.roles & roles for group, roles in groups.items() if group.startswith("status")):
            yield _row(CHANGE_VERBS, f"{kind.plural}/status")
        if who.roles & deleters(kind.name):
            yield _row({"delete"}, kind.plural)


@lru_cache(maxsize=4096)
def allowances(who: Principal, cell: str = "") -> tuple[Allowance, ...]:
    """All rows that apply to a principal in a cell (any cell if empty)."""
    rows: list[Allowance] = [_row({"create"}, *_SELF_REVIEWS)]
    if OPERATORS in who.groups:
        rows.append(_row(EVERY_VERB | {"impersonate"}, "*"))
    if VIEWERS in who.groups:
        rows += _for_viewer(who)
    if who.tenants:
        rows += _for_tenants(who)
    if AGENT in who.roles and cell in ("", who.region):
        rows += _for_node(who)
    if REGION in who.roles and cell in ("", GLOBAL_CELL):
        rows += _for_region(who)
    if CONTROLLERS in who.groups:
        rows += _for_controller(who)
    return tuple(rows)


def access_refusal(  # noqa: PLR0917 - the parts of a request, in the order clients name them
    who: Principal,
    verb: str,
    resource: str,
    subresource: str = "",
    namespace: str = "",
    name: str = "",
    *,
    fields: Mapping[str, str] | None = None,
    cell: str = "",
) -> Refused | None:
    """Why the request is refused; None if allowed.

    `resource` is a plural, with or without its group; `fields` are the field selectors. For a GET of one object by a
    principal that is limited by fields, pass the object's own values as `fields`.
    """
    plural = resource.partition(".")[0]
    request = AccessRequest(verb, plural, subresource, namespace, name, fields or {})
    if any(row.covers(request) for row in allowances(who, cell)):
        return None
    return Refused(
        "Forbidden", _refusal_message(who, request), {"name": name, "group": group_of(plural), "kind": plural}
    )


def group_of(plural: str) -> str:
    kind = BY_PLURAL.get(plural)
    return kind.group if kind is not None else VIRTUAL_RESOURCES.get(plural, "")


def _refusal_message(who: Principal, request: AccessRequest) -> str:
    group = group_of(request.resource)
    full = f"{request.resource}.{group}" if group else request.resource
    named = f' "{request.name}"' if request.name else ""
    path = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
    where = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    action = f'cannot {request.verb} resource "{path}" in API group "{group}" {where}'
    return f'{full}{named} is forbidden: User "{who.name}" {action}'


def path_refusal(who: Principal, path: str, verb: str = "get") -> Refused | None:
    """Why a non-resource path is refused; None if allowed. Discovery, health and documents are open to everyone."""
    stem = "/" + path.strip("/").partition("/")[0]
    if verb in ("get", "head") and stem in OPEN_PATHS:
        return None
    if OPERATORS in who.groups or (VIEWERS in who.groups and verb in ("get", "head")):
        return None
    return Refused("Forbidden", f'forbidden: User "{who.name}" cannot {verb} path "{path}"')


def call_refusal(who: Principal, verb: str, *, nodes: Sequence[str] = (), cell: str = "") -> Refused | None:
    """Why a call of the placement API is refused; None if allowed. The gate checks each write of a `commit`."""
    if verb == "commit":
        allowed = bool(who.roles)
    elif verb == "renew":
        allowed = AGENT in who.roles and cell in ("", who.region) and all(who.is_node(node) for node in nodes)
    else:
        allowed = CALL_ROLES.get(verb, "") in who.roles
    if allowed:
        return None
    other = next((n for n in nodes if not who.is_node(n)), "")
    about = f' for node "{other}"' if verb == "renew" and nodes else ""
    text = f'placement is forbidden: User "{who.name}" cannot {verb}{about} in cell "{cell}"'
    return Refused("Forbidden", text, {"kind": "placement"})


def rules_for(who: Principal, namespace: str = "", *, cell: str = "") -> dict[str, Any]:
    """The status of a SelfSubjectRulesReview: what the principal may do in a namespace."""
    rules: list[dict[str, Any]] = []
    for row in allowances(who, cell):
        if row.namespaces is not None and namespace not in row.namespaces:
            continue
        for group, resources in _by_group(row.resources).items():
            rule: dict[str, Any] = {"verbs": sorted(row.verbs), "apiGroups": [group], "resources": resources}
            if row.names is not None:
                rule["resourceNames"] = sorted(row.names)
            rules.append(rule)
    paths = [f"{p}{end}" for p in OPEN_PATHS for end in ("", "/*")]
    open_rules = [{"verbs": ["get"], "nonResourceURLs": paths}]
    if OPERATORS in who.groups:
        open_rules = [{"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return {"resourceRules": rules, "nonResourceRules": open_rules, "incomplete": False}


def _by_group(resources: frozenset[str]) -> dict[str, list[str]]:
    if "*" in resources:
        return {"*": ["*"]}
    found: dict[str, list[str]] = {}
    for path in sorted(resources):
        found.setdefault(group_of(path.partition("/")[0]), []).append(path)
    return found


def is_served_in(kind: Kind, cell: str) -> bool:
    """Whether objects of this kind exist in this cell."""
    if cell == GLOBAL_CELL:
        return kind.home is not Home.REGION
    return kind.home is not Home.GLOBAL or kind.mirrored
