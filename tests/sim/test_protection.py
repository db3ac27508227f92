"""The checker of protected quota: what a nomination may take from another tenant, and what not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import binding, meta, replica

from holdfast.authority.protected_quota import ProtectedQuota
from holdfast.model.binding import (
    Binding,
    CapacityClass,
    DesiredRunState,
    Intent,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.scheduling.plan.victim_selection import VictimSelection
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.protection import ProtectionChecker
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.parallel_runs import silence_logs
from holdfast.sim.scenario_files import DeclaredFault, Scenario, ScenarioExpectations, WorldSize
from holdfast.sim.scenario_runs import run_variants
from holdfast.store.contract import Txn

replace = msgspec.structs.replace


def runs(number: int, **spec: Any) -> Binding:
    made = binding(replica(number))
    own = replace(made.spec, resources={"cpu": "4"}, **spec)
    return replace(made, metadata=meta(f"low-{number}.1", "other"), spec=own)


def nominated(name: str, *victims: str, tenant: str = "acme") -> Reservation:
    intent = Intent(replica_uid=name, template_hash="h", attempt=1)
    spec = ReservationSpec(replica=name, intent=intent, node="n1", victims=victims, priority=9)
    return Reservation(meta(f"{name}.1", tenant), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))


def judged(made: Reservation, *there: Any, protected: str = "4") -> list[str]:
    copy = GrantCopy(meta("normal", "other"), GrantCopySpec(protected={"cpu": protected}))
    items = (made, copy, *there)
    state = {kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name): item for item in items}
    key = kind_of(Reservation).store_key(made.metadata.namespace, made.metadata.name)
    commit = ObservedCommit(
        "east", 1.0, 1.0, Txn(writes=()), (ObservedChange(key, kind_of(Reservation), None, made),), state
    )
    return [promise for promise, _, _ in ProtectionChecker().check(commit)]


ONE = nominated("hi", "other/low-0.1")


def test_what_is_beyond_the_protected_part_may_go() -> None:
    assert not judged(ONE, runs(0), runs(1))
    assert judged(ONE, runs(0)) == ["protection"]
    assert judged(ONE, runs(0), runs(1), protected="5") == ["protection"]


def test_two_nominations_count_together() -> None:
    assert judged(ONE, runs(0), runs(1), nominated("too", "other/low-1.1", tenant="third")) == ["protection"]


def test_a_tenant_may_take_from_itself() -> None:
    assert not judged(nominated("hi", "low-0.1", tenant="other"), runs(0))


@pytest.mark.parametrize(
    "spec",
    [{"capacity_class": CapacityClass.RECLAIMABLE}, {"capacity_class": CapacityClass.RECOVERY}, {"run_until": "soon"}],
)
def test_what_is_not_ordinary_is_not_protected_and_protects_nobody(spec: dict[str, Any]) -> None:
    assert not judged(ONE, runs(0, **spec), runs(1))
    assert judged(ONE, runs(0), runs(1, **spec)) == ["protection"]


def test_what_stops_for_a_reason_of_its_own_counts_until_it_is_gone() -> None:
    assert not judged(ONE, runs(0), runs(1, desired=DesiredRunState.STOP))
    assert judged(ONE, runs(0), runs(1, quota_released=True)) == ["protection"]


SCARCE = Scenario(
    "scarce",
    "All but one node of each region take no new work: who is stronger finds room only where others leave.",
    ScenarioExpectations(),
    size=WorldSize(
        nodes_per_region=3, faults_s=120.0, profiles=("service", "urgent", "batch", "resident", "hungry", "probed")
    ),
    faults=tuple(
        DeclaredFault(FaultKind.CORDON, f"{region}-n{number}", at_s=2.0 + number, for_s=110.0)
        for region in ("east", "west")
        for number in range(2)
    ),
)
SEEDS_TRIED = 12


@pytest.mark.slow
def test_a_world_in_which_nothing_is_protected_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule a world breaks the promise; the very same world with it keeps all of them."""
    silence_logs()
    with monkeypatch.context() as patch:
        patch.setattr(VictimSelection, "_outside_protected_quota", lambda self, requirements, firm: True)
        patch.setattr(ProtectedQuota, "protected_victim", lambda self, taker, victims: None)
        seed = next((s for s in range(1, SEEDS_TRIED + 1) if "protection" in promises_broken(s)), 0)
    assert seed, "in none of these worlds would anyone take what is protected"
    assert not promises_broken(seed)


def promises_broken(seed: int) -> set[str]:
    (played,) = run_variants(SCARCE, seed)
    return {violation.invariant for violation in played.outcome.violations}
