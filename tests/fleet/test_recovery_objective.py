"""A Recovery keeps the outcome of its objective after it is closed, and names the late workloads."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import present
from tests.factories import meta, with_new_revision
from tests.fleet.test_recover import NOW, Fleet, fleet

from holdfast.fleet.recovery.objective import WORKLOADS_NAMED_MAX, objective_condition
from holdfast.fleet.recovery.proof import proof_of_workload
from holdfast.fleet.recovery.recover import RECOVERY_STABLE_S
from holdfast.model.meta import Condition, Key, find_condition
from holdfast.model.recovery import (
    OBJECTIVE_MET,
    ObjectiveOutcome,
    Recovery,
    RecoveryPhase,
    RecoverySpec,
    RecoveryStatus,
    WorkloadProgress,
    objective_outcome,
)
from holdfast.model.region import HealthState
from holdfast.model.times import micro_text
from holdfast.model.workload import Workload
from holdfast.model.writes import SetStatus
from holdfast.server.tables import COLUMNS

SPEC = RecoverySpec(region="a", started_at=micro_text(NOW), deadline_seconds=300)


def objective(f: Fleet) -> Condition:
    return present(find_condition(f.recovery.status.conditions, OBJECTIVE_MET))


def close(f: Fleet) -> None:
    f.health("a", HealthState.HEALTHY)
    for _ in range(int(RECOVERY_STABLE_S / 0.5) + 10):
        f.all_serve()
        f.step("a")
    assert f.phase() is RecoveryPhase.CLOSED


def lost(f: Fleet) -> None:
    f.health("a", HealthState.LOST)
    for _ in range(3):
        f.step("a")


def shown(f: Fleet) -> str:
    column = next(c for c in COLUMNS["Recovery"] if c.name == "Objective")
    return str(column.cell(f.recovery))


def test_recovery_in_time_is_met_after_it_is_closed() -> None:
    f = fleet()
    lost(f)
    assert (objective(f).status, objective(f).reason) == ("Unknown", "Recovering")
    assert shown(f) == "Pending"
    f.all_serve()
    f.step("a")
    close(f)
    assert (objective(f).status, objective(f).reason, shown(f)) == ("True", "Recovered", "Met")
    assert present(proof_of_workload((f.recovery,), "acme", "api0", None)).recovery == f.recovery.metadata.name


def test_late_recovery_is_missed_after_it_is_closed_and_proves_nothing() -> None:
    f = fleet(2)
    lost(f)
    f.now += 300
    f.step("a")
    assert (objective(f).status, objective(f).reason) == ("False", "ObjectiveMissed")
    assert "late: acme/api0: 0 of 4 serve in c (Recovering)" in objective(f).message, "the target b has stalled"
    f.all_serve()
    f.step("a")
    assert f.phase() is RecoveryPhase.RECOVERED
    close(f)
    assert (objective(f).status, objective(f).reason, shown(f)) == ("False", "ObjectiveMissed", "Missed")
    assert "late: acme/api0 (served after 314.0 s); acme/api1 (served after 314.0 s)" in objective(f).message
    assert proof_of_workload((f.recovery,), "acme", "api0", None) is None


def test_region_that_returns_in_time_neither_meets_nor_misses() -> None:
    f = fleet()
    lost(f)
    f.health("a", HealthState.HEALTHY)
    for _ in range(int(RECOVERY_STABLE_S / 0.5) + 2):
        f.step("a")
    assert f.phase() is not RecoveryPhase.OPEN
    assert (objective(f).status, objective(f).reason, shown(f)) == ("Unknown", "RegionReturned", "RegionReturned")
    assert "acme/api0: 3 of 4 serve in b" in objective(f).message
    recovered = present(find_condition(f.recovery.status.conditions, "Recovered"))
    assert recovered.status == "False", "nothing served elsewhere"
    assert proof_of_workload((f.recovery,), "acme", "api0", None) is None


def test_region_that_returns_just_before_the_deadline_is_pending_until_failback() -> None:
    f = fleet()
    lost(f)
    f.now += 285
    f.health("a", HealthState.HEALTHY)
    outcomes: list[str] = []
    while f.phase() is RecoveryPhase.OPEN:
        f.step("a")
        outcomes.append(shown(f))
    assert f.now > NOW + 300, "failback begins after the deadline"
    assert set(outcomes[:-1]) == {"Pending"} and outcomes[-1] == "RegionReturned"
    assert "not served elsewhere by then: acme/api0: 3 of 4 serve" in objective(f).message


def test_region_that_returns_just_before_the_deadline_and_is_lost_again_has_missed() -> None:
    f = fleet()
    lost(f)
    f.now += 285
    f.health("a", HealthState.HEALTHY)
    while f.now < NOW + 302:
        f.step("a")
    assert (objective(f).status, shown(f)) == ("Unknown", "Pending")
    assert "region a is healthy since" in objective(f).message
    lost(f)
    assert (objective(f).status, shown(f)) == ("False", "Missed")


def test_workload_that_serves_only_in_the_returned_region_proves_nothing() -> None:
    """The returned region becomes the target of a workload whose target stalls; its own replicas serve there."""
    f = fleet()
    lost(f)
    f.now += 200
    f.health("b", HealthState.SUSPECT)
    f.health("c", HealthState.SUSPECT)
    f.health("a", HealthState.HEALTHY)
    f.step("a")
    (row,) = f.recovery.status.workloads
    assert row.target == "a"
    f.all_serve()
    f.step("a")
    (row,) = f.recovery.status.workloads
    assert (row.serving, row.wanted, row.served_at) == (4, 4, "")
    assert (f.phase(), shown(f)) == (RecoveryPhase.OPEN, "Pending")
    for _ in range(int(RECOVERY_STABLE_S / 0.5) + 2):
        f.step("a")
    assert (f.phase() is not RecoveryPhase.OPEN, shown(f)) == (True, "RegionReturned")
    assert proof_of_workload((f.recovery,), "acme", "api0", None) is None


@pytest.mark.parametrize(
    ("status", "at_s", "outcome"),
    [
        (RecoveryStatus(), 300, ObjectiveOutcome.PENDING),
        (RecoveryStatus(), 301, ObjectiveOutcome.MISSED),
        (RecoveryStatus(recovered_at=micro_text(NOW + 300)), 900, ObjectiveOutcome.MET),
        (RecoveryStatus(recovered_at=micro_text(NOW + 301)), 900, ObjectiveOutcome.MISSED),
        (
            RecoveryStatus(phase=RecoveryPhase.FAILING_BACK, stable_since=micro_text(NOW + 200)),
            900,
            ObjectiveOutcome.REGION_RETURNED,
        ),
        (RecoveryStatus(phase=RecoveryPhase.CLOSED, stable_since=micro_text(NOW + 301)), 900, ObjectiveOutcome.MISSED),
        # Healthy for less than 30 s.
        (RecoveryStatus(stable_since=micro_text(NOW + 280)), 301, ObjectiveOutcome.PENDING),
        (RecoveryStatus(stable_since=micro_text(NOW + 301)), 302, ObjectiveOutcome.MISSED),
        # Lost again: the return before does not count, and `stableSince` is empty.
        (RecoveryStatus(phase=RecoveryPhase.OPEN, stable_since=""), 301, ObjectiveOutcome.MISSED),
        # Served elsewhere after the deadline, while the region was healthy since before it.
        (
            RecoveryStatus(
                phase=RecoveryPhase.FAILING_BACK, stable_since=micro_text(NOW + 290), recovered_at=micro_text(NOW + 310)
            ),
            900,
            ObjectiveOutcome.REGION_RETURNED,
        ),
        (
            RecoveryStatus(stable_since=micro_text(NOW + 290), recovered_at=micro_text(NOW + 299)),
            900,
            ObjectiveOutcome.MET,
        ),
    ],
)
def test_outcome_is_judged_by_the_deadline(status: RecoveryStatus, at_s: float, outcome: ObjectiveOutcome) -> None:
    assert objective_outcome(SPEC, status, NOW + at_s) is outcome


def test_workload_that_appears_after_the_recovery_is_not_proven_by_it() -> None:
    early = WorkloadProgress("acme", "early", serving=4, served_at=micro_text(NOW + 20))
    later = WorkloadProgress("acme", "later", serving=4, served_at=micro_text(NOW + 4000))
    status = RecoveryStatus(phase=RecoveryPhase.RECOVERED, workloads=(early, later), recovered_at=micro_text(NOW + 20))
    item = Recovery(meta("r1"), SPEC, status)
    assert proof_of_workload((item,), "acme", "early", None) is not None
    assert proof_of_workload((item,), "acme", "later", None) is None
    assert "late" not in objective_condition(item, item.status, NOW + 5000).message


def test_condition_names_a_bounded_number_of_workloads() -> None:
    rows = tuple(WorkloadProgress("acme", f"w{n}", target="b", reason="NoTarget") for n in range(20))
    item = Recovery(meta("r1"), SPEC, RecoveryStatus(workloads=rows))
    said = objective_condition(item, item.status, NOW + 301).message
    assert said.count("acme/") == WORKLOADS_NAMED_MAX and said.endswith(f"{20 - WORKLOADS_NAMED_MAX} more")


def rows(f: Fleet) -> dict[str, WorkloadProgress]:
    return {row.workload: row for row in f.recovery.status.workloads}


def withdraw(f: Fleet, name: str) -> None:
    f.cache.remove(Workload, Key("acme", name), int(meta("gone").resource_version))


def test_recovery_keeps_the_row_of_a_workload_that_is_deleted_before_it_closes() -> None:
    """Regression: the record of a drill lost the drill's own workload, which is deleted when the drill ends."""
    f = fleet(2)
    lost(f)
    f.all_serve()
    f.step("a")
    served = rows(f)["api0"]
    withdraw(f, "api0")
    f.step("a")
    kept = rows(f)["api0"]
    assert (kept.served_at, kept.serving, kept.served_after_seconds) == (served.served_at, 4, 13.5)
    assert kept.withdrawn_at
    assert kept.message == "the workload was deleted"
    assert "1 of 1 critical workload(s) serve elsewhere; 1 withdrawn since" in f.recovery.status.conditions[0].message
    assert "2 critical workload(s) served after 13.5 s" in objective(f).message
    assert not [w for w in f.step("a") if isinstance(w, SetStatus)], "it is recorded once"
    close(f)
    assert rows(f)["api0"] == kept
    assert proof_of_workload((f.recovery,), "acme", "api0", None) is None, "a new workload of its name is not proven"
    assert present(proof_of_workload((f.recovery,), "acme", "api1", None)).seconds == 13.5


def test_workload_that_gives_up_its_objective_delays_the_recovery_no_longer() -> None:
    f = fleet(2)
    lost(f)
    item = present(f.cache.get(Workload, "api0", "acme"))
    f.cache.put(with_new_revision(item, spec=msgspec.structs.replace(item.spec, recovery=None)))
    for other in ("b", "c"):
        f.serve(other, "api1")
    f.step("a")
    assert f.phase() is RecoveryPhase.RECOVERED
    assert rows(f)["api0"].message == "the workload has no recovery objective any more"
    assert "1 critical workload(s) served after" in objective(f).message, "api0 did not serve elsewhere"
    f.now += 300
    f.step("a")
    assert (objective(f).status, shown(f)) == ("True", "Met")


def test_new_critical_workload_of_the_same_name_replaces_the_row() -> None:
    f = fleet(2)
    lost(f)
    f.all_serve()
    f.step("a")
    item = present(f.cache.get(Workload, "api0", "acme"))
    withdraw(f, "api0")
    f.step("a")
    f.cache.put(with_new_revision(item))
    f.step("a")
    assert not rows(f)["api0"].withdrawn_at
    assert len(f.recovery.status.workloads) == 2


def test_each_workload_records_its_own_seconds_and_proves_them() -> None:
    f = fleet(2)
    lost(f)
    f.serve("b", "api0")
    f.step("a")
    f.now += 3
    f.all_serve()
    f.step("a")
    took = {name: row.served_after_seconds for name, row in rows(f).items()}
    assert took == {"api0": 13.5, "api1": 17.0}
    proofs = [present(proof_of_workload((f.recovery,), "acme", name, None)).seconds for name in ("api0", "api1")]
    assert proofs == [13.5, 17.0]
    cells = {c.name: c.cell(f.recovery) for c in COLUMNS["Recovery"]}
    assert (cells["Seconds"], cells["Deadline"]) == ("17.0", "300")
