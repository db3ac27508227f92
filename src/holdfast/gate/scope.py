"""Where a write may be made and by whom: the home of a kind, and the one node, region or tenant a principal speaks for.

Pure. Answers with a `Refused` that says where the write belongs instead, or None. Ownership of single fields is
`gate/ownership.py`; what a request may ask for before it becomes writes is `gate/authorize.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.gate.principal import CONTROLLERS, Principal
from holdfast.model.errors import Refused
from holdfast.model.kinds import Home, Kind
from holdfast.model.meta import Object
from holdfast.model.override import break_glass_prefix
from holdfast.model.ownership import AGENT, COLLECT, LINK, OPERATOR, REGION, USER

GLOBAL_CELL = "global"

# The kinds that nobody owns field by field: who may write them at all. Tenants' users only in their own namespace.
_FREE_WRITERS: dict[str, Callable[[Principal], bool]] = {
    "Event": lambda who: bool(who.roles),
    "Lease": lambda who: OPERATOR in who.roles or CONTROLLERS in who.groups,
    "Term": lambda who: CONTROLLERS in who.groups,
}
_ENDPOINTS_AT_GLOBAL = frozenset({REGION, COLLECT, OPERATOR})
FREE_KINDS = frozenset(_FREE_WRITERS)


def why_not_here(who: Principal, kind: Kind, cell: str, name: str = "") -> Refused | None:
    """The home rule: every object is written in the one cell that is its authority."""
    if cell == GLOBAL_CELL:
        if kind.home is Home.REGION:
            return Refused("WrongCell", f"{kind.plural} live in regions: write it to the cell of its region")
        if kind.name == "Endpoint" and not who.roles & _ENDPOINTS_AT_GLOBAL:
            return Refused("WrongCell", "endpoints here are reported by their regions: write it to the region's cell")
        return None
    if kind.home is not Home.GLOBAL or LINK in who.roles:
        return None
    copies = f"{kind.plural} in region {cell!r} are copies: write it to the global cell"
    if kind.name != "Override":
        return Refused("WrongCell", copies)
    if name.startswith(break_glass_prefix(cell)) and REGION not in who.roles:
        return None
    return Refused("WrongCell", f"{copies}; while that is out of reach, name it {break_glass_prefix(cell)}…")


def why_not_in_scope(
    who: Principal, kind: Kind, cell: str, namespace: str, around: tuple[Object | None, Object | None]
) -> Refused | None:
    """The principal's own limits: its node, its region, its tenants. `around` (before, after) must both be inside."""
    free = _FREE_WRITERS.get(kind.name)
    if free is not None and not free(who):
        return Refused("NotPermitted", f"{who.name!r} may not write {kind.plural}")
    if OPERATOR in who.roles or CONTROLLERS in who.groups:
        return None
    if who.region and cell not in (GLOBAL_CELL, who.region):
        return Refused("WrongRegion", f"{who.name!r} belongs to region {who.region!r}, and this is {cell!r}")
    states = [item for item in around if item is not None]
    if AGENT in who.roles:
        return _outside_node(who, kind, states)
    if REGION in who.roles:
        return _outside_region(who, kind, states)
    if USER in who.roles and (not kind.namespaced or namespace not in who.tenants):
        return Refused("WrongTenant", f"{who.name!r} may write only in its own tenants")
    return None


def _outside_node(who: Principal, kind: Kind, states: list[Object]) -> Refused | None:
    if kind.name == "Event":
        return None
    node_of = _NODE_OF.get(kind.name)
    if node_of is None:
        return Refused("NotPermitted", f"a node's agent writes no {kind.plural}")
    for item in states:
        node = node_of(item)
        if not who.is_node(node):
            where = f"belongs to node {node!r}" if node else "is on no node"
            return Refused("WrongNode", f"it {where}, and {who.name!r} speaks for node {who.node!r} only")
    return None


def _outside_region(who: Principal, kind: Kind, states: list[Object]) -> Refused | None:
    if kind.name == "Event":
        return None
    region_of = _REGION_OF.get(kind.name)
    if region_of is None:
        return Refused("NotPermitted", f"a region's link writes no {kind.plural} here")
    for item in states:
        region = region_of(item)
        if region != who.region:
            return Refused("WrongRegion", f"it belongs to region {region!r}, and {who.name!r} to {who.region!r}")
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


_NODE_OF: dict[str, Callable[[Object], str]] = {"Node": _own_name, "Binding": _spec_node, "Replica": _placed_node}
_REGION_OF: dict[str, Callable[[Object], str]] = {
    "Region": _own_name,
    "Assignment": _spec_region,
    "Grant": _spec_region,
    "Endpoint": _spec_region,
    "Override": _break_glass_region,
}
