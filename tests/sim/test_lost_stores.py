"""The checker for lost records, and the faults that lose them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import TEMPLATE, assignment, replica, serving_status

from holdfast.model.kinds import kind_of
from holdfast.model.meta import API_VERSION, OwnerReference
from holdfast.sim import parallel_runs
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.removals import LAG_MAX_S, RemovalChecker
from holdfast.sim.fault_injection import LOST_STORES, FaultKind
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import Simulation
from holdfast.store.contract import Txn

EAST = "us-east"
REPLICATE, ASSIGN = "holdfast:controller:replicate", "holdfast:controller:assign"


def key_of(item: Any) -> str:
    return kind_of(item).store_key(item.metadata.namespace, item.metadata.name)


def commit(cell: str, at_s: float, old: Any, new: Any, *others: Any) -> ObservedCommit:
    item = new if new is not None else old
    state = {key_of(each): each for each in ((new,) if new is not None else ()) + others}
    change = ObservedChange(key_of(item), kind_of(item), old, new)
    return ObservedCommit(cell, at_s, at_s, Txn(), (change,), state)


def owned(of: Any, number: int = 0) -> Any:
    owner = OwnerReference(api_version=API_VERSION, kind="Assignment", name=of.metadata.name, uid=of.uid)
    made = replica(number, of, status=serving_status())
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=(owner,)))


def removal(checker: RemovalChecker, work: Any, at_s: float, *others: Any, writer: str = REPLICATE) -> list[Any]:
    return list(checker.check(commit(EAST, at_s, work, None, *others), writer))


def ordering(*states: tuple[float, Any]) -> RemovalChecker:
    checker = RemovalChecker()
    for at_s, state in states:
        assert not list(checker.check(commit("global", at_s, None, state), ASSIGN))
    return checker


def test_removal_without_an_order_is_found() -> None:
    wanted = assignment(replicas=2)
    checker = ordering((1.0, wanted))
    (found,) = removal(checker, owned(wanted), 5.0, owned(wanted, 1))
    assert found[0] == "amnesia"
    assert removal(RemovalChecker(), owned(wanted), 5.0), "an Assignment that nobody has seen orders nothing"


OTHER_TEMPLATE = msgspec.structs.replace(TEMPLATE, command=("other",))


@pytest.mark.parametrize("order", [assignment(replicas=1), assignment(replicas=2, template=OTHER_TEMPLATE)])
def test_ordered_removal_is_accepted_within_the_lag(order: Any) -> None:
    wanted = assignment(replicas=2)
    assert not removal(ordering((1.0, wanted), (2.0, order)), owned(wanted), 5.0, owned(wanted, 1))
    again = ordering((1.0, order), (2.0, wanted))
    assert not removal(again, owned(wanted), 5.0, owned(wanted, 1)), "the region may be behind"
    assert removal(again, owned(wanted), 5.0 + LAG_MAX_S, owned(wanted, 1))


def test_replaced_store_gives_no_order_by_what_it_lacks() -> None:
    wanted = assignment(replicas=1)
    checker = ordering((1.0, wanted))
    checker.store_replaced(commit("global", 2.0, wanted, None))
    assert removal(checker, owned(wanted), 5.0)
    checker.deletion_confirmed(EAST, 10.0)
    assert not removal(checker, owned(wanted), 6.0)
    assert removal(checker, owned(wanted), 11.0)


def test_removal_by_a_person_is_accepted() -> None:
    wanted = assignment(replicas=1)
    checker = ordering((1.0, wanted))
    assert not removal(checker, owned(wanted), 5.0, writer="operator")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", sorted(LOST_STORES - {FaultKind.STORE_EMPTIED}))
@pytest.mark.parametrize("target", ["global", "east"])
def test_cell_with_a_lost_store_is_restored_and_stops_no_work(kind: FaultKind, target: str) -> None:
    parallel_runs.silence_logs()
    fault = ScheduledFault(f"{kind}#1", kind, 40.0, target, 20.0, 0.1)
    simulation = Simulation(3, SimulationSize(nodes_per_region=4, faults_s=120.0), planned=(fault,), enabled=())
    outcome = simulation.run()
    assert outcome.ok, (outcome.violations[:3], outcome.unconverged[:3], outcome.failures)
    assert outcome.faults == {kind.value: 1}
