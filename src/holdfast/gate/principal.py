"""Who is asking. Made by authentication, read by everything behind it."""

from __future__ import annotations

import msgspec

OPERATORS = "holdfast:operators"
VIEWERS = "holdfast:viewers"
CONTROLLERS = "holdfast:controllers"
NODES = "holdfast:nodes"
REGIONS = "holdfast:regions"
AUTHENTICATED = "system:authenticated"
TENANT_PREFIX = "holdfast:tenant:"


class Principal(msgspec.Struct, frozen=True):
    """`roles` are the writers of model.ownership this principal may act as; they follow from its groups.

    A node's principal is bound to one node, a region's link to one region: `node` and `region` say which.
    """

    name: str
    groups: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    node: str = ""
    region: str = ""
    uid: str = ""
    credential: str = ""


def controller(name: str, *, cell: str) -> Principal:
    """The identity of an in-process controller, scheduler, authority or link."""
    return Principal(
        name=f"holdfast:controller:{name}", groups=(CONTROLLERS, AUTHENTICATED), roles=frozenset({name}),
        region="" if cell == "global" else cell, credential="in-process",
    )  # fmt: skip


def from_identity(name: str, groups: tuple[str, ...], *, credential: str, uid: str = "") -> Principal:
    """The principal a verified certificate or token stands for."""
    roles: set[str] = set()
    node = region = ""
    tenants = frozenset(g.removeprefix(TENANT_PREFIX) for g in groups if g.startswith(TENANT_PREFIX))
    if OPERATORS in groups:
        roles.add("operator")
    if tenants:
        roles.add("user")
    if NODES in groups and name.startswith("holdfast:node:"):
        _, _, region, node = name.split(":", 3)
        roles.add("agent")
    if REGIONS in groups and name.startswith("holdfast:region:"):
        region = name.split(":", 2)[2]
        roles.add("region")
    if CONTROLLERS in groups and name.startswith("holdfast:controller:"):
        roles.add(name.split(":", 2)[2])
    return Principal(
        name=name, groups=(*groups, AUTHENTICATED), roles=frozenset(roles), tenants=tenants,
        node=node, region=region, uid=uid, credential=credential,
    )  # fmt: skip
