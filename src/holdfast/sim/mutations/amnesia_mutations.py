"""Mutations of the defences against a cell that lost its records."""

from __future__ import annotations

from typing import Any

from holdfast.agent.registration import Registration
from holdfast.agent.task_unit import TaskUnit
from holdfast.authority.lost_claims import LostClaims
from holdfast.gate import garbage_collection, write_plan
from holdfast.link import deletion_orders, recognition
from holdfast.model.kinds import kind_of
from holdfast.model.ownership import OPERATOR
from holdfast.model.writes import Delete
from holdfast.sim.mutations.patch import Mutation, Patch


def absence_deletes(patch: Patch) -> None:
    """Regions take any global cell for their own, and delete what it does not contain."""
    patch.set(recognition, "mismatch", lambda *_: None)
    patch.set(deletion_orders, "removal_writes", lambda copy, *_: (Delete(kind_of(copy).name, copy.key, copy.uid),))
    patch.set(garbage_collection, "_is_work", lambda item: False)


def missing_binding_stops(patch: Patch) -> None:
    """Agents stop a task whose Binding is missing from the list."""
    patch.set(TaskUnit, "is_held", property(lambda self: False))


def other_cell_obeyed(patch: Patch) -> None:
    """Agents believe a fence by a cell that lost the region's records."""

    def accept(self: Registration, response: Any) -> None:
        self._identity = response.identity

    patch.set(Registration, "_check_identity", accept)


def lost_claims_stay(patch: Patch) -> None:
    """The authority does not notice that a replica's Binding is gone."""

    async def nothing(self: LostClaims) -> None:
        return None

    patch.set(LostClaims, "repair", nothing)


def operators_delete_records(patch: Patch) -> None:
    """The gate lets operators delete every kind."""
    allowed = write_plan.__dict__["deleters"]
    patch.set(write_plan, "deleters", lambda kind, **more: allowed(kind, **more) | {OPERATOR})


TABLE = (
    Mutation(
        "lost-claims-stay",
        "a replica whose Binding is gone counts as serving",
        lost_claims_stay,
        "a lost record is not noticed",
        scenario="records-lost",
    ),
    Mutation(
        "operators-delete-records",
        "an operator deletes records of components",
        operators_delete_records,
        "a lost record is not noticed",
        scenario="records-lost",
    ),
    Mutation(
        "absence-deletes",
        "a region deletes work that the global cell does not contain",
        absence_deletes,
        "an empty global cell is believed",
        scenario="global-store-emptied",
    ),
    Mutation(
        "missing-binding-stops",
        "an agent stops tasks whose Bindings are missing",
        missing_binding_stops,
        "an empty regional cell is believed",
        scenario="region-store-emptied",
    ),
    Mutation(
        "other-cell-obeyed",
        "an agent obeys a cell of another identity",
        other_cell_obeyed,
        "an empty regional cell is believed",
        scenario="region-store-emptied",
    ),
)
