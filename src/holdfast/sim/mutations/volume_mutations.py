"""Mutations of persistent volumes."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority import reserve
from holdfast.authority import volumes as authority_volumes
from holdfast.authority.node_account import NodeAccount
from holdfast.model.quantity import amounts
from holdfast.scheduling import volume_release
from holdfast.scheduling.filters import volumes as volumes_filter
from holdfast.scheduling.snapshot import builder
from holdfast.scheduling.snapshot.claim import claim_of_volume
from holdfast.sim.mutations.patch import Mutation, Patch


def volume_node_not_compared(patch: Patch) -> None:
    """The node of a volume is compared neither by the planner nor at the commit."""

    def anywhere(node: str, held_on: str, *, terminating: bool = False) -> None:
        return None

    patch.set(authority_volumes, "volume_refusal", anywhere)
    patch.set(volumes_filter, "volume_refusal", anywhere)
    patch.set(volumes_filter, "node_problem", lambda snapshot, held: "")


def volume_made_again(patch: Patch) -> None:
    """A replica that was released is bound without its volume."""
    original = authority_volumes.__dict__["plan_volumes"]

    def forgetful(state: Any, replica: Any, node: str, created: str) -> Any:
        found = original(state, replica, node, created)
        return authority_volumes.NO_VOLUMES if replica.status.placement.attempt > 1 else found

    patch.set(reserve, "plan_volumes", forgetful)
    patch.set(reserve, "requested_amounts", lambda replica, use: amounts(replica.spec.template.resources))


def volume_space_not_counted(patch: Patch) -> None:
    """The space of volumes counts neither in the planner nor at the commit."""

    def nothing(volume: Any) -> Any:
        return msgspec.structs.replace(claim_of_volume(volume), amounts=())

    patch.set(builder, "claim_of_volume", nothing)
    patch.set(NodeAccount, "book_volume", lambda self, hold, sign: None)


def volume_deleted_without_order(patch: Patch) -> None:
    """A Volume with the policy Delete is deleted whenever no replica has its name, whatever its claim says."""
    patch.set(volume_release, "is_data_deletion_ordered", lambda claim, volume: True)
    patch.set(volume_release, "_has_replica", lambda volume, view: False)


SCENARIO = "volumes-stay"
TABLE = (
    Mutation(
        "volume-node-not-compared",
        "a replica is bound away from the node of its volume",
        volume_node_not_compared,
        scenario=SCENARIO,
    ),
    Mutation("volume-made-again", "a replica is bound without its volume", volume_made_again, scenario=SCENARIO),
    Mutation(
        "volume-deleted-without-order",
        "data of a volume is deleted although its claim does not order it",
        volume_deleted_without_order,
        scenario=SCENARIO,
    ),
    Mutation(
        "volume-space-not-counted", "space of volumes is not counted", volume_space_not_counted, scenario=SCENARIO
    ),
)
