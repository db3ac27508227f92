"""A region exchanges only with the global cell that it knows by identity, and that knows the region."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, meta, region

from holdfast.controllers.cache import Cache
from holdfast.link import held_work, recognition, restore_handshake
from holdfast.model.cell_identity import CellIdentity, identity_term
from holdfast.model.election_term import Term
from holdfast.model.meta import find_condition
from holdfast.model.reasons import Reason
from holdfast.model.region import HOLDS_WORK, Region
from holdfast.model.writes import Create, Update

EAST = "us-east"
FIRST = CellIdentity("global", "one", "era-1", 1)
OWN = CellIdentity(EAST, "east", "era-e", 1)


def cell(identity: CellIdentity | None, *items: Any) -> Cache:
    """A cell with its identity; None for a cell of an earlier release."""
    return cache_of(*items, *([identity_term(identity, 0.0)] if identity is not None else []))


def followed(there: Cache) -> Cache:
    """A region that has followed this global cell."""
    here = cell(OWN, assignment())
    for write in (*recognition.record_writes(there, here), *restore_handshake.record_incarnation(there, here, EAST)):
        assert isinstance(write, Create | Update)
        made = write.object
        here.put(msgspec.structs.replace(made, metadata=meta(made.metadata.name)))
    assert recognition.mismatch(there, here, EAST) is None
    assert not list(recognition.record_writes(there, here))
    return here


def other_region() -> Region:
    return msgspec.structs.replace(region(EAST), metadata=meta(EAST, uid="created again"))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (cell(FIRST, region(EAST)), None),
        (cell(None), Reason.GLOBAL_CELL_REPLACED),
        (cell(FIRST), Reason.GLOBAL_CELL_REPLACED),
        (cell(FIRST, other_region()), None),
        (cell(None, other_region()), Reason.GLOBAL_CELL_REPLACED),
        (cell(msgspec.structs.replace(FIRST, identity="two"), region(EAST)), Reason.GLOBAL_CELL_REPLACED),
        (cell(msgspec.structs.replace(FIRST, era="era-2"), region(EAST)), Reason.GLOBAL_CELL_REPLACED),
        (cell(msgspec.structs.replace(FIRST, era="era-2", incarnation=2), region(EAST)), None),
    ],
    ids=[
        "same",
        "emptied",
        "region gone",
        "region created again",
        "both created again",
        "another identity",
        "another era",
        "restored",
    ],
)
def test_region_follows_only_the_global_cell_it_knows(found: Cache, reason: Reason | None) -> None:
    mismatch = recognition.mismatch(found, followed(cell(FIRST, region(EAST))), EAST)
    assert (mismatch.reason if mismatch is not None else None) is reason
    if mismatch is not None:
        assert "keeps its 1 Assignment" in mismatch.message and "ConfirmDeletion --region us-east" in mismatch.message


def test_first_contact_is_accepted_and_remembered() -> None:
    here = cell(OWN)
    assert recognition.mismatch(cell(FIRST, region(EAST)), here, EAST) is None
    (write,) = recognition.record_writes(cell(FIRST, region(EAST)), here)
    assert "one era-1 1" in of_type(of_type(write, Create).object, Term).spec.holder


def test_region_with_another_store_exchanges_nothing() -> None:
    known = region(EAST)
    report = msgspec.structs.replace(present(known.status.report), identity="east")
    known = msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, report=report))
    there = cell(FIRST, known)
    assert recognition.mismatch(there, cell(OWN), EAST) is None
    mismatch = recognition.mismatch(there, cell(CellIdentity(EAST, "fresh", "era-f", 1)), EAST)
    assert mismatch is not None and mismatch.reason is Reason.REGION_CELL_REPLACED


def test_region_says_why_it_holds_work_and_when_it_is_over() -> None:
    own = region(EAST)
    assert held_work.condition_write(own, None, 0.0) is None
    held = held_work.holding(cache_of(), cache_of(assignment(), assignment("web")), EAST, paused=False)
    assert held is not None and held.workloads == 2 and "acme/api, acme/web" in held.message
    write = held_work.condition_write(own, held, 0.0)
    assert write is not None and isinstance(write.object, Region)
    said = find_condition(write.object.status.conditions, HOLDS_WORK)
    assert said is not None and said.status == "True" and said.reason == Reason.DELETION_NOT_ORDERED
    assert held_work.condition_write(write.object, held, 1.0) is None, "said once"
    over = held_work.condition_write(write.object, None, 2.0)
    assert over is not None and isinstance(over.object, Region)
    said = find_condition(over.object.status.conditions, HOLDS_WORK)
    assert said is not None and said.status == "False"


def test_pause_of_removals_survives_a_restart() -> None:
    copies = cache_of(assignment())
    orders = cache_of(assignment(replicas=0))
    held = held_work.holding(orders, copies, EAST, paused=True)
    assert held is not None and held.reason is Reason.MASS_DELETION_PAUSED
    write = held_work.condition_write(region(EAST), held, 0.0)
    assert write is not None and isinstance(write.object, Region)
    assert held_work.was_paused(write.object) and not held_work.was_paused(region(EAST))
