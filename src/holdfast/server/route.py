"""How a path becomes a target: the pattern matcher behind the route table, and what a request turns out to be about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.server.resources import SERVED, Resource

MAX_PATH = 2048


class Route(msgspec.Struct, frozen=True):
    """One row: methods, a pattern with `{names}`, and who answers. What `access` means is said with the table.

    `label` tells apart what authorization is asked about: resources, reviews, or the path alone.
    """

    methods: tuple[str, ...]
    pattern: str
    handler: Callable[..., Any]
    access: str = "rules"
    label: str = ""


class Target(msgspec.Struct):
    """What a request is about. Resource requests have a `resource`; the others only their path."""

    resource: Resource | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    verb: str = ""
    parameters: dict[str, str] = {}
    route: Route | None = None


class _Row(msgspec.Struct, frozen=True):
    """A pattern taken apart: which words it fixes after the first, and what the others are called."""

    fixed: tuple[tuple[int, str], ...]
    named: tuple[tuple[int, str], ...]
    route: Route


class Router:
    """Finds the row for a path. Rows are tried in order among those with the same length and first word."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._rows: dict[tuple[int, str], list[_Row]] = {}
        for route in routes:
            words = tuple(route.pattern.strip("/").split("/"))
            fixed = tuple((at, word) for at, word in enumerate(words) if at and not word.startswith("{"))
            named = tuple((at, word[1:-1]) for at, word in enumerate(words) if word.startswith("{"))
            self._rows.setdefault((len(words), words[0]), []).append(_Row(fixed, named, route))

    def find(self, path: str) -> list[tuple[Route, dict[str, str]]]:
        """All rows whose pattern fits, with what their names stand for; the method picks among them."""
        if len(path) > MAX_PATH:
            return []
        words = path.strip("/").split("/")
        found = []
        for row in self._rows.get((len(words), words[0]), ()):
            for at, word in row.fixed:
                if words[at] != word:
                    break
            else:
                parameters = {name: words[at] for at, name in row.named}
                if all(parameters.values()):
                    found.append((row.route, parameters))
        return found


def resource_target(parameters: dict[str, str]) -> Target | None:
    """The target of a resource route; None where the server has no such resource."""
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
    return Target(
        resource=resource, namespace=namespace, name=parameters.get("name", ""), subresource=subresource,
        parameters=parameters,
    )  # fmt: skip
