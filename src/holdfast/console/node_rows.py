"""One node as the pages show it: its state, its capacity, and what occupies it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model.node import ContactState, Node, node_capacity, unschedulable_reason
from holdfast.model.quantity import CPU, GPU, MEMORY

RESOURCES = (CPU, MEMORY, GPU)

STATES = {
    "l": "Live",
    "c": "Cordoned",
    "d": "Draining",
    "q": "Quarantined",
    "r": "Reconciling",
    "x": "Expired",
    "f": "Fenced",
    "t": "Terminating",
}
"""Letter of a state in the packed columns of the map."""

UNKNOWN_LETTER = "u"
"""Letter of all nodes of a region that is out of contact. No region answers it."""

_LETTERS = {
    "": "l",
    "NodeCordoned": "c",
    "NodeDraining": "d",
    "NodeQuarantined": "q",
    "NodeReconciling": "r",
    "NodeUnreachable": "x",
    "NodeFenced": "f",
    "NodeTerminating": "t",
}


class NodeRow(msgspec.Struct, frozen=True):
    name: str
    zone: str
    letter: str
    reason: str
    since: str
    total: Mapping[str, int]

    @property
    def live(self) -> bool:
        return self.letter not in "xft"


def node_row(node: Node) -> NodeRow:
    why = unschedulable_reason(node)
    letter = _LETTERS.get(why, "q")
    if node.status.contact.state is ContactState.FENCED:
        letter = "f"
    total = node_capacity(node)
    return NodeRow(
        node.metadata.name,
        node.spec.zone,
        letter,
        why,
        node.status.contact.since,
        {name: total.get(name, 0) for name in RESOURCES},
    )
