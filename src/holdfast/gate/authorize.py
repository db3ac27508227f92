"""Authorization of requests: verbs on resources, by namespace, name and field selector. A table computed per principal.

The gate checks the writes themselves again (ownership, node, region, tenant), so an error here alone cannot let a wrong
write through. Reads are checked only here: every handler that serves reads or watches must call `access_refusal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.gate.allowance import CHANGE_VERBS, READ_VERBS, AccessRequest, Allowance, allow
from holdfast.gate.builtin_roles import (
    BUILTIN_ROLES,
    GROUP_ROLES,
    SECRET_RESOURCES,
    TENANT_GROUP_ROLES,
    group_of,
    policy_rules,
    with_subresources,
)
from holdfast.gate.granted_rows import NO_ROWS, GrantedRows
from holdfast.gate.scope import FREELY_DELETED, GLOBAL_CELL
from holdfast.model.cell_identity import IDENTITY_TERM
from holdfast.model.errors import Refused
from holdfast.model.kinds import ALL, Home, Kind
from holdfast.model.ownership import AGENT, OWNERS, REGION, UNOWNED, deleters, owners
from holdfast.model.principal import APPROVERS, CONTROLLERS, MONITORS, OPERATORS, VIEWERS, Principal

CALL_ROLES = {"reserve": "scheduler", "bind": "scheduler", "release": "release"}
"""Placement call → role that may make it. `renew` is for the node's own agent, `commit` for every writer, `notify` for
components and operators."""

OPEN_PATHS = ("/api", "/apis", "/version", "/openapi", "/healthz", "/livez", "/readyz")
_SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")
_LINK_READS = (*(k.plural for k in ALL if k.mirrored and k.name != "Assignment"), "namespaces")
"""What a region mirrors. Of Assignments, Grants and Endpoints it reads only its own."""


def _for_node(who: Principal) -> Iterator[Allowance]:
    on_it = (("node", who.node),)
    yield allow(READ_VERBS, "bindings", "bindings/status", "replicas", "replicas/status", fields=on_it)
    yield allow(READ_VERBS, "volumes", "volumes/status", fields=on_it)
    # The gate checks the name as well; the prefix of a hollow host cannot be a list of names.
    named = None if who.node.endswith("*") else frozenset({who.node})
    yield allow(READ_VERBS | CHANGE_VERBS | {"create", "delete"}, "nodes", "nodes/status", names=named)
    yield allow(CHANGE_VERBS, "bindings/status", "replicas/status")
    yield allow({"create", "update", "patch"}, "events")


def _for_region(who: Principal) -> Iterator[Allowance]:
    yield allow(READ_VERBS, *with_subresources(_LINK_READS))
    yield allow(
        READ_VERBS, *with_subresources(("assignments", "grants", "endpoints")), fields=(("region", who.region),)
    )
    yield allow(READ_VERBS, "terms", names=frozenset({IDENTITY_TERM}))
    yield allow(CHANGE_VERBS, "assignments/status", "grants/status")
    yield allow(CHANGE_VERBS, "regions/status", names=frozenset({who.region}))
    yield allow(CHANGE_VERBS | {"create", "delete"}, "endpoints", "endpoints/status")
    yield allow(CHANGE_VERBS | {"create"}, "overrides")
    yield allow({"create", "update", "patch"}, "events")


def _for_controller(who: Principal) -> Iterator[Allowance]:
    yield allow(READ_VERBS, "*", without=SECRET_RESOURCES)
    for kind in ALL:
        if kind.name in UNOWNED:
            deletes = {"delete", "deletecollection"} if kind.name in FREELY_DELETED else set()
            yield allow(READ_VERBS | CHANGE_VERBS | {"create"} | deletes, kind.plural)
            continue
        if who.roles & owners(kind.name, "metadata"):
            yield allow({"create"}, kind.plural)
        groups = OWNERS[kind.name]
        if any(who.roles & roles for group, roles in groups.items() if not group.startswith("status")):
            yield allow(CHANGE_VERBS, kind.plural)
        if any(who.roles & roles for group, roles in groups.items() if group.startswith("status")):
            yield allow(CHANGE_VERBS, f"{kind.plural}/status")
        if who.roles & deleters(kind.name):
            yield allow({"delete"}, kind.plural)


@lru_cache(maxsize=4096)
def allowances(who: Principal, cell: str = "") -> tuple[Allowance, ...]:
    """All rows that apply to a principal in a cell (any cell if empty)."""
    rows: list[Allowance] = [allow({"create"}, *_SELF_REVIEWS)]
    for group, role in GROUP_ROLES.items():
        if group in who.groups:
            rows += BUILTIN_ROLES[role](None)
    for prefix, role in TENANT_GROUP_ROLES.items():
        tenants = frozenset(group.removeprefix(prefix) for group in who.groups if group.startswith(prefix))
        if tenants:
            rows += BUILTIN_ROLES[role](tenants)
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
    granted: GrantedRows = NO_ROWS,
) -> Refused | None:
    """Why the request is refused; None if allowed. `granted` are the rows of roles that were bound to the principal.

    `resource` is a plural, with or without its group; `fields` are the field selectors. For a GET of one object by a
    principal that is limited by fields, pass the object's own values as `fields`.
    """
    plural = resource.partition(".")[0]
    request = AccessRequest(verb, plural, subresource, namespace, name, fields or {})
    if any(row.covers(request) for row in allowances(who, cell)) or granted.covers(request):
        return None
    return Refused(
        "Forbidden", _refusal_message(who, request), {"name": name, "group": group_of(plural), "kind": plural}
    )


def _refusal_message(who: Principal, request: AccessRequest) -> str:
    group = group_of(request.resource)
    full = f"{request.resource}.{group}" if group else request.resource
    named = f' "{request.name}"' if request.name else ""
    where = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    action = f'cannot {request.verb} resource "{request.path}" in API group "{group}" {where}'
    return f'{full}{named} is forbidden: User "{who.name}" {action}'


def path_refusal(who: Principal, path: str, verb: str = "get", *, granted: GrantedRows = NO_ROWS) -> Refused | None:
    """Why a non-resource path is refused; None if allowed. Discovery, health and documents are open to everyone."""
    stem = "/" + path.strip("/").partition("/")[0]
    if verb in ("get", "head") and stem in OPEN_PATHS:
        return None
    reads = verb in ("get", "head")
    if OPERATORS in who.groups or (VIEWERS in who.groups and reads) or granted.covers_path(path, verb):
        return None
    if APPROVERS in who.groups and reads:
        return None
    if MONITORS in who.groups and reads and stem == "/metrics":
        return None
    return Refused("Forbidden", f'forbidden: User "{who.name}" cannot {verb} path "{path}"')


def call_refusal(who: Principal, verb: str, *, nodes: Sequence[str] = (), cell: str = "") -> Refused | None:
    """Why a call of the placement API is refused; None if allowed. The gate checks each write of a `commit`."""
    if verb == "commit":
        allowed = bool(who.roles)
    elif verb == "notify":
        of_region = (AGENT in who.roles and cell in ("", who.region)) or (
            REGION in who.roles and cell in ("", GLOBAL_CELL)
        )
        allowed = of_region or OPERATORS in who.groups or CONTROLLERS in who.groups
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


def rules_for(who: Principal, namespace: str = "", *, cell: str = "", granted: GrantedRows = NO_ROWS) -> dict[str, Any]:
    """The status of a SelfSubjectRulesReview: what the principal may do in a namespace."""
    rules: list[dict[str, Any]] = []
    paths = [f"{p}{end}" for p in OPEN_PATHS for end in ("", "/*")]
    path_rules: list[dict[str, Any]] = [{"verbs": ["get"], "nonResourceURLs": paths}]
    for row in (*allowances(who, cell), *granted.rows):
        if row.namespaces is not None and namespace not in row.namespaces:
            continue
        for rule in policy_rules(row):
            (path_rules if rule.non_resource_urls else rules).append(msgspec.json.decode(msgspec.json.encode(rule)))
    return {"resourceRules": rules, "nonResourceRules": path_rules, "incomplete": False}


def is_served_in(kind: Kind, cell: str) -> bool:
    """Whether objects of this kind exist in this cell."""
    if cell == GLOBAL_CELL:
        return kind.home is not Home.REGION
    return kind.home is not Home.GLOBAL or kind.mirrored
