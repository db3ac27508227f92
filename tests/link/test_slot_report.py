"""Recovery slots of a region report: a slot counts only where the active policy lets a replica be placed."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import only, present
from tests.factories import cache_of, meta, region, with_new_revision
from tests.fleet.test_backing import CPU, NOW, world
from tests.link.test_node_shapes import node

from holdfast.fleet.recovery import backing
from holdfast.link.report import region_report
from holdfast.model.meta import Key
from holdfast.model.recovery_slot import (
    RecoverySlot,
    RecoverySlotSpec,
    RecoverySlotStatus,
    SlotAdmissionStatus,
    SlotConsumer,
)
from holdfast.model.region import RecoverySlotReport, Region, RegionReport
from holdfast.model.scheduler_policy import (
    FilterExpression,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
)
from holdfast.model.writes import SetStatus


def slot(name: str, on: str, *, consumed: bool = False) -> RecoverySlot:
    consumer = SlotConsumer(replica_uid="r") if consumed else None
    status = RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True), consumer=consumer)
    return RecoverySlot(metadata=meta(name), spec=RecoverySlotSpec(budget="z", node=on, resources=CPU), status=status)


def reported(expression: str, *, stage: PromotionStage = PromotionStage.ACTIVE, used: bool = False) -> list[int]:
    """Admitted slots of region z by the report, with two slots on a node of pool lab and two of pool default."""
    return [row.admitted for row in slot_reports(expression, stage=stage, used=used)]


def slot_reports(
    expression: str, *, stage: PromotionStage = PromotionStage.ACTIVE, used: bool = False
) -> tuple[RecoverySlotReport, ...]:
    rules = PolicyRules(filter_expressions=(FilterExpression(name="closed", expression=expression),))
    here = cache_of(
        node("n1", 8000, 8, pool="lab"),
        node("n2", 8000, 8),
        *(slot(f"s{n}", on, consumed=used) for n, on in enumerate(("n1", "n1", "n2", "n2"))),
        PolicyRevision(metadata=meta("p1"), spec=PolicyRevisionSpec(policy="default", rules=rules, stage=stage)),
    )
    write = only(tuple(region_report(cache_of(region("z")), here, "z", NOW)), SetStatus)
    report = write.blocks["report"]
    assert isinstance(report, RegionReport)
    return report.recovery_slots


@pytest.mark.parametrize(
    ("expression", "admitted"),
    [
        ("true", [4]),
        ("node.pool != 'lab'", [2]),
        ("false", []),
        ("node.labels.rack == 'r1'", []),  # nodes without the label: the evaluation fails, which refuses the node
        ("node.name != 'request'", [4]),
        ("node.pool != 'lab' || request.tenant == 'research'", [4]),  # some request may use the node
    ],
)
def test_slot_on_node_that_the_policy_closes_is_not_reported(expression: str, admitted: list[int]) -> None:
    assert reported(expression) == admitted


def test_slot_in_use_and_policy_that_does_not_decide_close_nothing() -> None:
    assert reported("false", used=True) == [4]
    assert reported("false", stage=PromotionStage.SHADOW) == [4]


@pytest.mark.parametrize(("expression", "backed"), [("node.pool != 'lab'", True), ("node.pool == 'cellar'", False)])
def test_policy_that_closes_nodes_with_slots_makes_an_objective_unbacked(expression: str, *, backed: bool) -> None:
    view = world()
    for name in ("x", "y", "z"):
        there = present(view.get(Region, name))
        rows = tuple(msgspec.structs.replace(row, budget=name) for row in slot_reports(expression))
        report = msgspec.structs.replace(present(there.status.report), recovery_slots=rows)
        view.put(with_new_revision(there, status=msgspec.structs.replace(there.status, report=report)))
    short = backing.unbacked_objectives(view, NOW)
    assert (Key("acme", "api") not in short) is backed
