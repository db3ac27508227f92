"""One row of what a principal may do, and the comparison of rows: does one cover a request, does a set cover another.

Pure. Rows come from the built-in roles (`builtin_roles`), the components (`authorize`) and roles that were bound to a
person (`granted_access`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

ANY = "*"
READ_VERBS = frozenset({"get", "list", "watch"})
CHANGE_VERBS = frozenset({"update", "patch"})
EVERY_VERB = READ_VERBS | CHANGE_VERBS | {"create", "delete", "deletecollection"}


class AccessRequest(msgspec.Struct, frozen=True):
    verb: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    fields: Mapping[str, str] = {}

    @property
    def path(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Allowance(msgspec.Struct, frozen=True):
    """Verbs on resources, everywhere unless limited. `fields` names selectors that the request must carry; `without`
    are resources that a wildcard does not include; `paths` are non-resource URLs."""

    verbs: frozenset[str]
    resources: frozenset[str]
    namespaces: frozenset[str] | None = None
    names: frozenset[str] | None = None
    fields: tuple[tuple[str, str], ...] = ()
    without: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()

    def covers(self, request: AccessRequest) -> bool:
        if request.verb not in self.verbs and ANY not in self.verbs:
            return False
        if not self.has_resource(request.resource, request.subresource):
            return False
        if self.namespaces is not None and request.namespace not in self.namespaces:
            return False
        if self.names is not None and (request.name or request.fields.get("metadata.name", "")) not in self.names:
            return False
        return all(_has_selector(request.fields, name, value) for name, value in self.fields)

    def has_resource(self, resource: str, subresource: str = "") -> bool:
        path = f"{resource}/{subresource}" if subresource else resource
        if path in self.resources:
            return True
        if resource in self.without:
            return False
        if ANY in self.resources:
            return True
        return bool(subresource) and (f"{ANY}/{subresource}" in self.resources or f"{resource}/{ANY}" in self.resources)

    def covers_path(self, path: str, verb: str) -> bool:
        if verb not in self.verbs and ANY not in self.verbs:
            return False
        return any(path == known or (known.endswith(ANY) and path.startswith(known[:-1])) for known in self.paths)


def _has_selector(fields: Mapping[str, str], name: str, value: str) -> bool:
    found = fields.get(name, fields.get(f"spec.{name}", ""))
    if value.endswith("*"):
        return found.startswith(value[:-1]) and bool(found)
    return found == value


def allow(verbs: Iterable[str], *resources: str, **limits: Any) -> Allowance:
    return Allowance(frozenset(verbs), frozenset(resources), **limits)


def uncovered(given: Iterable[Allowance], held: Iterable[Allowance]) -> Iterator[str]:
    """What the `given` rows allow and no single row of `held` allows, as text. Nothing if the holder may give them all.

    Rows that depend on field selectors count for nothing: they cannot be given.
    """
    unlimited = [row for row in held if not row.fields]
    for row in given:
        for verb in sorted(row.verbs):
            for resource in sorted(row.resources):
                if not any(_includes(own, row, verb, resource) for own in unlimited):
                    yield f"{verb} {resource}" + _where(row)
            for path in sorted(row.paths):
                if not any(_includes_path(own, verb, path) for own in unlimited):
                    yield f"{verb} {path}"


def _includes_path(own: Allowance, verb: str, path: str) -> bool:
    if path == ANY:
        return ANY in own.paths and (verb in own.verbs or ANY in own.verbs)
    return own.covers_path(path, verb)


def _includes(own: Allowance, given: Allowance, verb: str, resource: str) -> bool:
    if verb not in own.verbs and ANY not in own.verbs:
        return False
    plural, _, part = resource.partition("/")
    if resource == ANY:
        if ANY not in own.resources or not own.without <= given.without:
            return False
    elif not own.has_resource(plural, part):
        return False
    if own.namespaces is not None and (given.namespaces is None or not given.namespaces <= own.namespaces):
        return False
    return own.names is None or (given.names is not None and given.names <= own.names)


def _where(row: Allowance) -> str:
    named = f" named {', '.join(sorted(row.names)[:3])}" if row.names is not None else ""
    place = f" in tenant {', '.join(sorted(row.namespaces)[:3])}" if row.namespaces is not None else " in all tenants"
    return named + place
