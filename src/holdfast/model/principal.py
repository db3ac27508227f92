"""The authenticated caller. Created by authentication, read by authorization and the gate."""

from __future__ import annotations

import msgspec

OPERATORS = "holdfast:operators"
VIEWERS = "holdfast:viewers"
MONITORS = "holdfast:monitors"
"""May read /metrics and nothing else: the identity of a Prometheus server."""
CONTROLLERS = "holdfast:controllers"
NODES = "holdfast:nodes"
HOLLOW_NODES = "holdfast:hollow-nodes"
REGIONS = "holdfast:regions"
SERVERS = "holdfast:servers"
AUTHENTICATED = "system:authenticated"
TENANT_PREFIX = "holdfast:tenant:"
TENANT_ADMIN_PREFIX = "holdfast:tenant-admin:"
APPROVERS = "holdfast:approvers"
BREAK_GLASS = "holdfast:break-glass"
COMPONENT_GROUPS = frozenset({CONTROLLERS, NODES, HOLLOW_NODES, REGIONS, SERVERS})
"""Groups of the platform's processes. No role can be bound to them, and nobody can impersonate them."""


def is_group_of_people(group: str) -> bool:
    """Whether the group stands for a built-in role of people: what a user may have, never a component."""
    return group in (OPERATORS, VIEWERS, APPROVERS, BREAK_GLASS) or group.startswith(
        (TENANT_PREFIX, TENANT_ADMIN_PREFIX)
    )


class Principal(msgspec.Struct, frozen=True):
    """`roles` are the writers of `model.ownership` that this principal may act as; they follow from its groups.

    A node's principal is bound to one node, a region's link to one region: `node` and `region`. A process that runs
    many hollow nodes is bound to a prefix instead, written `prefix*`.
    """

    name: str
    groups: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    node: str = ""
    region: str = ""
    uid: str = ""
    credential: str = ""
    generation: int = 0
    """Generation of a joined node's certificate: which join issued it."""
    server: str = ""
    """The Server that a cell's certificate names; empty for certificates that no join issued."""

    def is_node(self, name: str) -> bool:
        """Whether this principal represents the node of that name."""
        if self.node.endswith("*"):
            return name.startswith(self.node[:-1])
        return bool(name) and self.node == name


def controller(name: str, *, cell: str) -> Principal:
    """The identity of an in-process controller, scheduler, authority or link."""
    return Principal(
        name=f"holdfast:controller:{name}",
        groups=(CONTROLLERS, AUTHENTICATED),
        roles=frozenset({name}),
        region="" if cell == "global" else cell,
        credential="in-process",
    )


def agent(node: str, *, region: str) -> Principal:
    """The identity of a node's agent that runs in this process."""
    return from_identity(f"holdfast:node:{region}:{node}", (NODES,), credential="in-process")


def from_identity(
    name: str, groups: tuple[str, ...], *, credential: str, uid: str = "", generation: int = 0, server: str = ""
) -> Principal:
    """The principal of a verified certificate or token."""
    roles: set[str] = set()
    node = region = ""
    tenants = frozenset(g.removeprefix(TENANT_PREFIX) for g in groups if g.startswith(TENANT_PREFIX))
    tenants |= frozenset(g.removeprefix(TENANT_ADMIN_PREFIX) for g in groups if g.startswith(TENANT_ADMIN_PREFIX))
    if OPERATORS in groups:
        roles.add("operator")
    if APPROVERS in groups:
        roles.add("approver")
    if BREAK_GLASS in groups:
        roles.add("break-glass")
    if tenants:
        roles.add("user")
    if NODES in groups and name.startswith("holdfast:node:") and name.count(":") == 3:
        _, _, region, node = name.split(":", 3)
        roles.add("agent")
    if HOLLOW_NODES in groups and name.startswith("holdfast:hollow:") and name.count(":") == 3:
        _, _, region, prefix = name.split(":", 3)
        node = prefix + "*"
        roles.add("agent")
    if REGIONS in groups and name.startswith("holdfast:region:"):
        region = name.split(":", 2)[2]
        roles.add("region")
    if CONTROLLERS in groups and name.startswith("holdfast:controller:"):
        roles.add(name.split(":", 2)[2])
    if AUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return Principal(
        name=name,
        groups=groups,
        roles=frozenset(roles),
        tenants=tenants,
        node=node,
        region=region,
        uid=uid,
        credential=credential,
        generation=generation,
        server=server if REGIONS in groups or SERVERS in groups else "",
    )
