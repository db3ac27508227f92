"""Which paths of a node a tenant may mount: one rule for the scheduler, the authority and the agent.

A node allows nothing by default. The longest rule that names the tenant decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.template import Template


class NodeHostPath(ApiStruct, frozen=True):
    """A directory whose content the named tenants may mount. `*` is every tenant."""

    path: str
    read_only: bool = visible_default(True)
    tenants: tuple[str, ...] = ()


class PathRule(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def tenants(self) -> tuple[str, ...]: ...


RuleT = TypeVar("RuleT", bound=PathRule)
HostPathNeeds = tuple[tuple[str, bool], ...]
"""Paths that a template mounts, and whether only for reading."""


def find_host_path_rule(rules: Sequence[RuleT], tenant: str, path: str) -> RuleT | None:
    """The longest rule that allows the path to the tenant."""
    allowed = [
        rule
        for rule in rules
        if (tenant in rule.tenants or "*" in rule.tenants)
        and (path == rule.path.rstrip("/") or path.startswith(f"{rule.path.rstrip('/')}/"))
    ]
    return max(allowed, key=lambda rule: len(rule.path), default=None)


def host_path_needs(template: Template) -> HostPathNeeds:
    return tuple((v.host_path.path, v.read_only) for v in template.volumes if v.host_path is not None)


def refused_host_path(rules: Sequence[PathRule], tenant: str, needs: HostPathNeeds) -> str:
    """The first path that a node with these rules refuses to the tenant; empty if it allows all."""
    for path, read_only in needs:
        rule = find_host_path_rule(rules, tenant, path)
        if rule is None or (rule.read_only and not read_only):
            return path
    return ""
