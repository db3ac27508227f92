"""Router: matches paths against the route table and resolves the target of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.server.resources import SERVED, SESSIONS, Resource

# Length of a request path. A longer one is not found.
MAX_PATH = 2048

_NAMED_PARTS = frozenset({"scale", "eviction", "log", *SESSIONS})
"""Subresources with routes of their own."""


class Route(msgspec.Struct, frozen=True):
    """One row: methods, a pattern with `{names}`, and the handler. The values of `access` are documented with the
    table.

    `label` selects what is authorized: resources, reviews, or the path alone. `max_body_bytes` is the largest body that
    is read, 0 for a route without one. `check` raises Forbidden before the body is read; handlers may check further.
    """

    methods: tuple[str, ...]
    pattern: str
    handler: Callable[..., Any]
    access: str = "authorized"
    label: str = ""
    max_body_bytes: int = 0
    check: Callable[..., None] | None = None


class RouteTarget(msgspec.Struct):
    """What a request addresses. Resource requests have a `resource`, others only their path."""

    resource: Resource | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    verb: str = ""
    parameters: dict[str, str] = {}
    route: Route | None = None


class _Row(msgspec.Struct, frozen=True):
    """A parsed pattern: its fixed segments after the first, the positions of its names, and its routes."""

    fixed: tuple[tuple[int, str], ...]
    named: tuple[tuple[int, str], ...]
    routes: list[Route]


class Router:
    """Finds the routes of a path. Routes are tried in order among those with the same length and first segment."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._rows: dict[tuple[int, str], list[_Row]] = {}
        for route in routes:
            segments = tuple(route.pattern.strip("/").split("/"))
            fixed = tuple((at, segment) for at, segment in enumerate(segments) if at and not segment.startswith("{"))
            named = tuple((at, segment[1:-1]) for at, segment in enumerate(segments) if segment.startswith("{"))
            rows = self._rows.setdefault((len(segments), segments[0]), [])
            before = rows[-1].routes[0] if rows else None
            if before is None or (before.pattern, before.label) != (route.pattern, route.label):
                rows.append(_Row(fixed, named, []))
            rows[-1].routes.append(route)

    def find(self, path: str) -> list[tuple[Route, dict[str, str]]]:
        """All routes whose pattern matches, with their parameters. The caller selects by method.

        Neighbouring routes of one pattern share one dict of parameters.
        """
        if len(path) > MAX_PATH:
            return []
        segments = path.strip("/").split("/")
        found: list[tuple[Route, dict[str, str]]] = []
        for row in self._rows.get((len(segments), segments[0]), ()):
            for at, segment in row.fixed:
                if segments[at] != segment:
                    break
            else:
                parameters = {name: segments[at] for at, name in row.named}
                if all(parameters.values()):
                    found += [(route, parameters) for route in row.routes]
        return found

    def differs_in_case(self, path: str) -> bool:
        """Whether a path that has no route would have one in lower case."""
        lower = path.lower()
        return lower != path and any(
            route.label != "resource" or resource_target(parameters) is not None
            for route, parameters in self.find(lower)
        )


def route_target(route: Route, parameters: dict[str, str]) -> RouteTarget | None:
    """What a request of this route addresses; None if there is no such resource."""
    if route.label != "resource":
        return RouteTarget(parameters=parameters)
    named = route.pattern.rpartition("/")[2]
    return resource_target({**parameters, "subresource": named} if named in _NAMED_PARTS else parameters)


def resource_target(parameters: dict[str, str]) -> RouteTarget | None:
    """The target of a resource route; None if there is no such resource."""
    group = parameters.get("group", "")
    plural = parameters.get("plural", "namespaces")
    resource = SERVED.get((group, plural))
    if resource is None or parameters.get("version", "v1") != "v1":
        return None
    subresource = parameters.get("subresource", "")
    if subresource and subresource not in resource.subresources:
        return None
    namespace = parameters.get("namespace", "")
    if namespace and not resource.kind.namespaced:
        return None
    if resource.kind.namespaced and not namespace and "name" in parameters:
        return None
    return RouteTarget(
        resource=resource,
        namespace=namespace,
        name=parameters.get("name", ""),
        subresource=subresource,
        parameters=parameters,
    )


def with_opened_view(target: RouteTarget, opening: Mapping[str, Resource]) -> RouteTarget:
    """The target, with the resource of this server if objects of its kind are stored sealed."""
    if target.resource is not None:
        target.resource = opening.get(target.resource.kind.name, target.resource)
    return target
