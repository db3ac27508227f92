"""The protection checker: what a nomination may preempt from another tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.factories import binding, meta, replica
from tests.fleet.staged_simulation import REPLICAS, Staged, template

from holdfast.authority.protected_quota import ProtectedQuota
from holdfast.model.assignment import Assignment
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
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Disruption, Workload, WorkloadSpec
from holdfast.scheduling.plan.victim_selection import VictimSelection
from holdfast.sim import actors
from holdfast.sim.checkers import ObservedChange, ObservedCommit, Violation
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.checkers.protection import ProtectionChecker
from holdfast.sim.parallel_runs import silence_logs
from holdfast.sim.scenario_files import SimulationSize
from holdfast.store.contract import Txn

replace = msgspec.structs.replace
URGENT_REPLICAS = 8
"""More than the reclaimable replicas that other tenants may have, so that some need the room of firm work."""


def running_binding(number: int, **spec: Any) -> Binding:
    made = binding(replica(number))
    changed_spec = replace(made.spec, resources={"cpu": "4"}, **spec)
    return replace(made, metadata=meta(f"low-{number}.1", "other"), spec=changed_spec)


def nominated(name: str, *victims: str, tenant: str = "acme") -> Reservation:
    intent = Intent(replica_uid=name, template_hash="h", attempt=1)
    spec = ReservationSpec(replica=name, intent=intent, node="n1", victims=victims, priority=9)
    return Reservation(meta(f"{name}.1", tenant), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))


def violated_invariants(made: Reservation, *others: Any, protected: str = "4") -> list[str]:
    copy = GrantCopy(meta("normal", "other"), GrantCopySpec(protected={"cpu": protected}))
    items = (made, copy, *others)
    state = {kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name): item for item in items}
    key = kind_of(Reservation).store_key(made.metadata.namespace, made.metadata.name)
    commit = ObservedCommit(
        "east", 1.0, 1.0, Txn(writes=()), (ObservedChange(key, kind_of(Reservation), None, made),), state
    )
    return [invariant for invariant, _, _ in ProtectionChecker().check(commit)]


ONE = nominated("hi", "other/low-0.1")


def test_replica_beyond_protected_quota_may_be_evicted() -> None:
    assert not violated_invariants(ONE, running_binding(0), running_binding(1))
    assert violated_invariants(ONE, running_binding(0)) == ["protection"]
    assert violated_invariants(ONE, running_binding(0), running_binding(1), protected="5") == ["protection"]


def test_victims_of_two_reservations_that_together_exceed_protection_are_reported() -> None:
    assert violated_invariants(
        ONE, running_binding(0), running_binding(1), nominated("too", "other/low-1.1", tenant="third")
    ) == ["protection"]


def test_tenant_may_preempt_itself() -> None:
    assert not violated_invariants(nominated("hi", "low-0.1", tenant="other"), running_binding(0))


@pytest.mark.parametrize(
    "spec",
    [{"capacity_class": CapacityClass.RECLAIMABLE}, {"capacity_class": CapacityClass.RECOVERY}, {"run_until": "soon"}],
)
def test_other_capacity_classes_are_not_protected(spec: dict[str, Any]) -> None:
    assert not violated_invariants(ONE, running_binding(0, **spec), running_binding(1))
    assert violated_invariants(ONE, running_binding(0), running_binding(1, **spec)) == ["protection"]


def test_stopping_replica_counts_until_its_quota_is_released() -> None:
    assert not violated_invariants(ONE, running_binding(0), running_binding(1, desired=DesiredRunState.STOP))
    assert violated_invariants(ONE, running_binding(0), running_binding(1, quota_released=True)) == ["protection"]


class Preempting(Staged):
    """Work of tenant other within its protected quota fills every node. Then tenant pay creates preempting work."""

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        await self._create(self.fill())
        await self.until(self._is_full, 60)
        urgent = WorkloadSpec(
            replicas=URGENT_REPLICAS,
            template=Template(command=("serve",), resources={"cpu": "600m", "memory": "64Mi"}),
            priority_class_name="urgent",
        )
        await self._create([Workload(metadata=ObjectMeta(name="urgent", namespace="pay"), spec=urgent)])
        await asyncio.sleep(30.0)
        return await self._converge()

    def work(self) -> Iterator[Object]:
        yield from self.tenant()
        spec = WorkloadSpec(replicas=REPLICAS, template=template(), priority_class_name="high")
        yield Workload(metadata=ObjectMeta(name="risk", namespace="pay"), spec=spec)

    def fill(self) -> Iterator[Object]:
        quota: dict[str, Amount] = {"cpu": "40", "memory": "64Gi"}
        yield Tenant(metadata=ObjectMeta(name="other"))
        yield Quota(
            metadata=ObjectMeta(name="quota", namespace="other"), spec=QuotaSpec(hard=quota, protected={"cpu": "40"})
        )
        full = Template(command=("serve",), resources={"cpu": "500m", "memory": "16Mi"})
        yield Workload(
            metadata=ObjectMeta(name="full", namespace="other"),
            spec=WorkloadSpec(replicas=40, template=full, disruption=Disruption(max_unavailable=40)),
        )

    async def _create(self, items: Iterable[Object]) -> None:
        for item in items:
            await self._persist(partial(actors.create_object, self.operator, item))

    async def _is_full(self) -> bool:
        held = [a for a in (await self.operator.list(Assignment)).items if a.spec.workload == "full"]
        return bool(held) and all(a.status.bound and a.status.queued for a in held)


@pytest.mark.slow
def test_simulation_without_protection_rule_violates_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule the simulation violates the invariant; with the rule it does not."""
    silence_logs()
    assert not violations()
    monkeypatch.setattr(VictimSelection, "_outside_protected_quota", lambda self, requirements, firm: True)
    monkeypatch.setattr(ProtectedQuota, "protected_victim", lambda self, taker, victims: None)
    found = violations()
    assert {violation.invariant for violation in found} == {"protection"}
    assert any("preempts cpu of tenant other " in violation.message for violation in found)


def violations() -> tuple[Violation, ...]:
    return Preempting(1, SimulationSize(regions=("east", "west"), nodes_per_region=4), enabled=()).run().violations
