"""Where a write may be made, and by whom: the home cell of a kind, and the node, region or tenant of a principal. Pure.

Returns a `Refused` that names the right place, or None. A principal learns nothing about objects outside its scope: a
name outside of it is refused before the object is read, and another node's or region's object is treated as missing.
Field ownership is in `gate/ownership.py`; authorization of requests is in `gate/authorize.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.model.errors import Refused
from holdfast.model.kinds import Home, Kind, kind_of
from holdfast.model.meta import Object
from holdfast.model.override import break_glass_prefix
from holdfast.model.ownership import AGENT, GARBAGE_COLLECTOR, LINK, OPERATOR, REGION, USER
from holdfast.model.principal import CONTROLLERS, Principal

GLOBAL_CELL = "global"
CLUSTER_NAMESPACE = "default"
"""Namespace of Events about objects without a namespace."""

# Writers of the kinds without field ownership. Users of a tenant may write only in its own namespace.
_FREE_WRITERS: dict[str, Callable[[Principal], bool]] = {
    "Event": lambda who: bool(who.roles),
    "Lease": lambda who: OPERATOR in who.roles or CONTROLLERS in who.groups,
    "Term": lambda who: CONTROLLERS in who.groups,
}
_ENDPOINTS_AT_GLOBAL = frozenset({REGION, GARBAGE_COLLECTOR, OPERATOR})
_TO_REGION = "next: repeat the command with --context and the region's name"
FREELY_DELETED = frozenset({"Event", "Lease"})
"""Kinds that their writers may delete."""


def wrong_cell_refusal(who: Principal, kind: Kind, cell: str, name: str = "") -> Refused | None:
    """The home rule: every object is written in its home cell. Returns why this cell is wrong, else None."""
    if cell == GLOBAL_CELL:
        if kind.home is Home.REGION:
            return Refused("WrongCell", f"stored in regions, not in the global cell; {_TO_REGION}")
        if kind.name == "Endpoint" and not who.roles & _ENDPOINTS_AT_GLOBAL:
            return Refused("WrongCell", f"reported by its region, not written in the global cell; {_TO_REGION}")
        return None
    if kind.home is not Home.GLOBAL or LINK in who.roles:
        return None
    copy = f"read-only copy in region {cell} (expected a write to the global cell); next: repeat the command with"
    if kind.name != "Override":
        return Refused("WrongCell", f"{copy} --context global")
    if name.startswith(break_glass_prefix(cell)) and REGION not in who.roles:
        return None
    step = f"--context global or, while the global cell is unreachable, name it {break_glass_prefix(cell)}…"
    return Refused("WrongCell", f"{copy} {step}")


def name_refusal(who: Principal, kind: Kind, cell: str, namespace: str, name: str) -> Refused | None:
    """Why the principal may not write an object of this name, whether it exists or not. Checked before it is read."""
    if OPERATOR in who.roles or CONTROLLERS in who.groups:
        return None
    if who.region and cell not in (GLOBAL_CELL, who.region):
        return Refused("WrongRegion", f'User "{who.name}" belongs to region {who.region}, not to {cell}')
    if AGENT in who.roles:
        if kind.name == "Node" and not who.is_node(name):
            return Refused("WrongNode", f'User "{who.name}" may write only for node {who.node} (found node {name})')
        return None
    if REGION in who.roles:
        if kind.name == "Region" and name != who.region:
            found = f'User "{who.name}" may write only for region {who.region} (found region {name})'
            return Refused("WrongRegion", found)
        return None
    if USER in who.roles and (not kind.namespaced or namespace not in who.tenants):
        return Refused("WrongTenant", f'User "{who.name}" may write only in its own tenants')
    return None


def is_hidden(who: Principal, kind: Kind, item: Object) -> bool:
    """Whether the object belongs to another node or region than the principal. To that principal it does not exist."""
    if OPERATOR in who.roles or CONTROLLERS in who.groups:
        return False
    if AGENT in who.roles:
        node_of = _NODE_OF.get(kind.name)
        return node_of is not None and not who.is_node(node_of(item))
    if REGION in who.roles:
        region_of = _REGION_OF.get(kind.name)
        return region_of is not None and region_of(item) != who.region
    return False


def event_refusal(who: Principal, cell: str, namespace: str, about: Object | None) -> Refused | None:
    """Why the principal may not write an Event in this namespace about this object; None if allowed.

    `about` is None if the object does not exist. The refusal is the same then, so that it reveals nothing.
    """
    if OPERATOR in who.roles or CONTROLLERS in who.groups:
        return None
    if USER in who.roles and namespace in who.tenants:
        return None  # people may note what they like in their own tenant
    of_own = (who.region == cell and AGENT in who.roles) or (cell == GLOBAL_CELL and REGION in who.roles)
    if of_own and about is not None and (about.metadata.namespace or CLUSTER_NAMESPACE) == namespace:
        kind = kind_of(about)
        owned = _NODE_OF if AGENT in who.roles else _REGION_OF
        if kind.name in owned and not is_hidden(who, kind, about):
            return None
    whose = f"node {who.node}" if who.node else f"region {who.region}" if who.region else "its own tenants"
    return Refused("EventOutOfScope", f'User "{who.name}" may write Events only about existing objects of {whose}')


def scope_refusal(
    who: Principal, kind: Kind, cell: str, namespace: str, around: tuple[Object | None, Object | None]
) -> Refused | None:
    """The principal's limits: its node, region or tenants. Both states in `around` (before, after) must be within
    them.
    """
    free = _FREE_WRITERS.get(kind.name)
    if free is not None and not free(who):
        return Refused("NotPermitted", f'User "{who.name}" may not write {kind.plural}')
    if OPERATOR in who.roles or CONTROLLERS in who.groups:
        return None
    if who.region and cell not in (GLOBAL_CELL, who.region):
        return Refused("WrongRegion", f'User "{who.name}" belongs to region {who.region}, not to {cell}')
    states = [item for item in around if item is not None]
    if AGENT in who.roles:
        return _node_refusal(who, kind, states)
    if REGION in who.roles:
        return _region_refusal(who, kind, states)
    if USER in who.roles and (not kind.namespaced or namespace not in who.tenants):
        return Refused("WrongTenant", f'User "{who.name}" may write only in its own tenants')
    return None


def _node_refusal(who: Principal, kind: Kind, states: list[Object]) -> Refused | None:
    if kind.name == "Event":
        return None
    node_of = _NODE_OF.get(kind.name)
    if node_of is None:
        return Refused("NotPermitted", f"an agent may not write {kind.plural}")
    for item in states:
        node = node_of(item)
        if not who.is_node(node):
            where = f"node {node}" if node else "no node"
            return Refused("WrongNode", f'User "{who.name}" may write only for node {who.node} (found {where})')
    return None


def _region_refusal(who: Principal, kind: Kind, states: list[Object]) -> Refused | None:
    if kind.name == "Event":
        return None
    region_of = _REGION_OF.get(kind.name)
    if region_of is None:
        return Refused("NotPermitted", f"a region's link may not write {kind.plural} in this cell")
    for item in states:
        region = region_of(item)
        if region != who.region:
            found = f'User "{who.name}" may write only for region {who.region} (found region {region})'
            return Refused("WrongRegion", found)
    return None


def _spec_node(item: Object) -> str:
    return str(item.spec.node)  # type: ignore[attr-defined]


def _placed_node(item: Object) -> str:
    return str(item.status.placement.node)  # type: ignore[attr-defined]


def _spec_region(item: Object) -> str:
    return str(item.spec.region)  # type: ignore[attr-defined]


def _break_glass_region(item: Object) -> str:
    given: Any = item
    return given.spec.break_glass.region if given.spec.break_glass is not None else ""


def _own_name(item: Object) -> str:
    return item.metadata.name


_NODE_OF: dict[str, Callable[[Object], str]] = {
    "Node": _own_name,
    "Binding": _spec_node,
    "Replica": _placed_node,
    "Volume": _spec_node,
}
_REGION_OF: dict[str, Callable[[Object], str]] = {
    "Region": _own_name,
    "Assignment": _spec_region,
    "Grant": _spec_region,
    "Endpoint": _spec_region,
    "Override": _break_glass_region,
}
