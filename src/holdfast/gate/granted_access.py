"""What roles and bindings of a cell give a person: groups of built-in roles, and rows of the others.

Computed from the cell's own published objects, so a region decides by itself while it is cut off. The result is cached
per person until a role or binding changes, so that a change takes effect on the next request. Components of the
platform get nothing: their rights follow from field ownership.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.foundation.ports import Clock
from holdfast.gate.allowance import ANY, Allowance
from holdfast.gate.builtin_roles import BUILTIN_ROLES, VIRTUAL_RESOURCES, group_of, group_of_binding
from holdfast.gate.granted_rows import NO_ROWS, GrantedRows
from holdfast.model.break_glass_session import CLOSED_TO_SESSIONS
from holdfast.model.kinds import ALL, BY_NAME, Kind
from holdfast.model.ownership import OPERATOR, USER, deleters, owners
from holdfast.model.principal import AUTHENTICATED, COMPONENT_GROUPS, Principal, from_identity
from holdfast.model.rbac import BUILTIN_PREFIX, PolicyRule, RoleRef
from holdfast.store.objects import Objects

# People whose access is cached per cell. When there are more, the cache starts over.
GRANTED_ACCESS_CACHED_MAX = 4_096

_ROLE, _CLUSTER_ROLE = BY_NAME["Role"], BY_NAME["ClusterRole"]
_BINDING, _CLUSTER_BINDING = BY_NAME["RoleBinding"], BY_NAME["ClusterRoleBinding"]
_SESSION = BY_NAME["BreakGlassSession"]
_WATCHED = (_ROLE, _CLUSTER_ROLE, _BINDING, _CLUSTER_BINDING, _SESSION)
_TWO_GROUPS = {"nodes": ("", "holdfast.dev")}
"""Plurals that are served in two API groups."""


class GrantedAccess:
    """The bound roles of one cell."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._head = -1
        """The revision that was last looked at: without a change of any object, no role has changed."""
        self._version: tuple[int, ...] = ()
        self._people: dict[tuple[str, tuple[str, ...]], Principal] = {}
        self._rows: dict[tuple[str, tuple[str, ...]], tuple[GrantedRows, float]] = {}
        """Rows, and the monotonic time until which they are valid: the next end of a break-glass session."""
        self._deadlines: dict[str, float] = {}
        """Session uid → its end on the monotonic clock, counted from when this process first saw it."""

    def expand(self, who: Principal) -> Principal:
        """The principal with the groups of the built-in roles that are bound to it."""
        if not _is_person(who):
            return who
        self._refresh()
        key = (f"{who.credential}\n{who.name}", who.groups)
        found = self._people.get(key)
        if found is None:
            bound = (group_of_binding(ref.name, tenant) for ref, tenant in self._builtin_bindings(who))
            more = tuple(dict.fromkeys(group for group in bound if group and group not in who.groups))
            found = self._people[key] = with_groups(who, more) if more else who
        return found

    def rows(self, who: Principal) -> GrantedRows:
        """The rows of roles bound to the principal, except built-in roles that `expand` turns into groups."""
        if not _is_person(who):
            return NO_ROWS
        self._refresh()
        key = (who.name, who.groups)
        found = self._rows.get(key)
        if found is None or self._clock.monotonic() >= found[1]:
            sessions = list(self._sessions(who))
            rows = (*bound_rows(self._objects, who), *(row for row, _ in sessions))
            ends_s = min((ends_s for _, ends_s in sessions), default=float("inf"))
            found = self._rows[key] = (GrantedRows(rows), ends_s)
        return found[0]

    def _sessions(self, who: Principal) -> Iterator[tuple[Allowance, float]]:
        """The rows of the person's break-glass sessions in force, each with its end on the monotonic clock.

        A session ends when either clock says so: a wall clock that is set back does not extend it.
        """
        if who.name.endswith(ANY):
            return
        found: list[Any] = self._objects.list(_SESSION, fields={"requester": who.name})[0]
        for session in found:
            left_s = min(session.ends_s - self._clock.now(), session.spec.duration_seconds)
            ends_s = min(self._deadlines.get(session.uid, float("inf")), self._clock.monotonic() + left_s)
            self._deadlines[session.uid] = ends_s
            if not session.spec.closed and self._clock.monotonic() < ends_s:
                where = frozenset({session.spec.tenant}) if session.spec.tenant else None
                spec = session.spec
                row = Allowance(frozenset(spec.verbs), frozenset(spec.resources), where, without=CLOSED_TO_SESSIONS)
                yield row, ends_s

    def _builtin_bindings(self, who: Principal) -> Iterator[tuple[RoleRef, str]]:
        for ref, tenant in bindings_of(self._objects, who):
            if ref.kind == "ClusterRole" and ref.name in BUILTIN_ROLES:
                yield ref, tenant

    def _refresh(self) -> None:
        head = self._objects.head(_ROLE)
        is_full = len(self._people) + len(self._rows) > GRANTED_ACCESS_CACHED_MAX
        if head == self._head and not is_full:
            return
        self._head = head
        version = tuple(self._objects.changed_at(kind) for kind in _WATCHED)
        if version != self._version or is_full:
            self._version, self._people, self._rows = version, {}, {}


def _is_person(who: Principal) -> bool:
    return AUTHENTICATED in who.groups and not COMPONENT_GROUPS.intersection(who.groups)


def with_groups(who: Principal, more: tuple[str, ...]) -> Principal:
    made = from_identity(who.name, (*who.groups, *more), credential=who.credential, uid=who.uid)
    return msgspec.structs.replace(made, generation=who.generation)


def bindings_of(objects: Objects, who: Principal) -> Iterator[tuple[RoleRef, str]]:
    """The roles bound to a person, each with its tenant; "" means everywhere."""
    for subject in (f"User:{who.name}", *(f"Group:{group}" for group in who.groups)):
        if subject.endswith(ANY):
            continue  # a selector would take it for a prefix
        for kind in (_BINDING, _CLUSTER_BINDING):
            found: list[Any] = objects.list(kind, fields={"subject": subject})[0]
            for binding in found:
                if not binding.metadata.terminating:
                    yield binding.role_ref, binding.metadata.namespace


def bound_rows(objects: Objects, who: Principal) -> Iterator[Allowance]:
    for ref, tenant in dict.fromkeys(bindings_of(objects, who)):
        if ref.kind == "ClusterRole" and group_of_binding(ref.name, tenant):
            continue  # a group says it
        yield from role_rows(objects, ref, tenant) or ()


def role_rows(objects: Objects, ref: RoleRef, tenant: str) -> tuple[Allowance, ...] | None:
    """The rows of a role in a tenant, or everywhere if empty; None if there is no such role."""
    where = frozenset({tenant}) if tenant else None
    if ref.kind == "ClusterRole" and ref.name in BUILTIN_ROLES:
        return tuple(BUILTIN_ROLES[ref.name](where))
    role: Any = objects.get(
        _ROLE if ref.kind == "Role" else _CLUSTER_ROLE, tenant if ref.kind == "Role" else "", ref.name
    )
    if role is None or ref.name.startswith(BUILTIN_PREFIX):
        return None
    return tuple(rule_rows(role.rules, where))


def rule_rows(rules: tuple[PolicyRule, ...], where: frozenset[str] | None) -> Iterator[Allowance]:
    """The rows of these rules. A rule about a resource of another API group than the rule's gives nothing."""
    for rule in rules:
        verbs = frozenset(rule.verbs)
        names = frozenset(rule.resource_names) or None
        if rule.non_resource_urls:
            if where is None:
                yield Allowance(verbs, frozenset(), paths=frozenset(rule.non_resource_urls))
            continue
        resources = frozenset(_paths(rule))
        if resources:
            yield Allowance(verbs, resources, namespaces=where, names=names)


def _paths(rule: PolicyRule) -> Iterator[str]:
    groups = frozenset(rule.api_groups)
    for path in rule.resources:
        plural = path.partition("/")[0]
        if ANY in groups:
            yield path
        elif plural == ANY:
            yield from _all_paths(groups, path)
        elif groups.intersection(_TWO_GROUPS.get(plural, (group_of(plural),))):
            yield path


def _all_paths(groups: frozenset[str], path: str) -> Iterator[str]:
    """`*` or `*/part` within some API groups, spelled out."""
    part = path.partition("/")[2]
    plurals = [kind.plural for kind in ALL if kind.group in groups]
    plurals += [plural for plural, group in VIRTUAL_RESOURCES.items() if group in groups]
    for plural in plurals:
        if not part:
            yield plural
        yield f"{plural}/{part or ANY}"


def acting_principal(who: Principal, kind: Kind, verb: str, namespace: str) -> Principal:
    """The principal of one request that a bound role allows, with the field ownership of a tenant's user if users may
    write the kind, else of an operator. Authorization has limited the request to this verb, resource and name."""
    writers = deleters(kind.name) if verb in ("delete", "deletecollection") else owners(kind.name, "metadata")
    of_user = bool(namespace) and (USER in writers or kind.name == "Event")
    return msgspec.structs.replace(
        who,
        roles=frozenset({USER if of_user else OPERATOR}),
        tenants=frozenset({namespace}) if namespace else frozenset(),
    )
