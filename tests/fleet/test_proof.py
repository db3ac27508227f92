"""When a promise was last proven: by the newest Recovery that kept it in time."""

from __future__ import annotations

import msgspec
from tests.expected import only, present
from tests.factories import meta
from tests.fleet.test_backing import NOW, budget, with_places, world

from holdfast.fleet.recovery import backing
from holdfast.fleet.recovery.proof import proof_of_budget, proof_of_workload
from holdfast.fleet.recovery.recovery_status import budget_writes
from holdfast.model.recovery import (
    Recovery,
    RecoveryPhase,
    RecoveryProof,
    RecoverySpec,
    RecoveryStatus,
    WorkloadProgress,
)
from holdfast.model.times import micro_text
from holdfast.model.writes import SetStatus


def recovery(name: str, *, took_s: float, lost_at: float = NOW, serving: int = 4, recovered: bool = True) -> Recovery:
    row = WorkloadProgress("acme", "api", target="z", recovery_replicas=4, serving=serving)
    if serving >= row.wanted:
        row = msgspec.structs.replace(row, served_at=micro_text(lost_at + took_s))
    done = micro_text(lost_at + took_s) if recovered else ""
    phase = RecoveryPhase.RECOVERED if recovered else RecoveryPhase.OPEN
    spec = RecoverySpec(region="x", started_at=micro_text(lost_at))
    return Recovery(
        metadata=meta(name), spec=spec, status=RecoveryStatus(phase=phase, workloads=(row,), recovered_at=done)
    )


def test_newest_recovery_in_time_is_the_proof() -> None:
    first, second = recovery("first", took_s=12.0), recovery("second", took_s=20.0, lost_at=NOW + 1000)
    proof = present(proof_of_workload((second, first), "acme", "api", None))
    assert (proof.recovery, proof.region, proof.seconds) == ("second", "x", 20.0)
    assert present(proof_of_budget((first, second), budget("z", 4).spec, 4, None)).recovery == "second"


def test_open_late_or_short_recovery_proves_nothing() -> None:
    late, short = recovery("late", took_s=301.0), recovery("short", took_s=10.0, serving=3)
    still_open = recovery("open", took_s=10.0, recovered=False)
    assert proof_of_workload((late, short, still_open), "acme", "api", None) is None
    assert proof_of_workload((recovery("other", took_s=5.0),), "acme", "web", None) is None
    assert proof_of_budget((late,), budget("z", 4).spec, 4, None) is None
    assert proof_of_budget((recovery("elsewhere", took_s=5.0),), budget("y", 4).spec, 4, None) is None


def test_recovery_proves_only_the_budget_whose_slots_it_uses() -> None:
    done = recovery("done", took_s=5.0)
    closed = msgspec.structs.replace(done, status=msgspec.structs.replace(done.status, phase=RecoveryPhase.CLOSED))
    assert proof_of_budget((done,), budget("z", 4).spec, 0, None) is None
    assert proof_of_budget((done,), budget("z", 4, tenants=("globex",)).spec, 4, None) is None
    assert proof_of_budget((closed,), budget("z", 4).spec, 4, None) is None
    assert present(proof_of_budget((done,), budget("z", 4, tenants=()).spec, 1, None)).recovery == "done"


def test_proof_outlives_its_recovery_until_a_newer_one() -> None:
    known = RecoveryProof(micro_text(NOW), "old", "x", 9.0)
    assert proof_of_workload((), "acme", "api", known) == known
    assert present(proof_of_workload((recovery("new", took_s=5.0),), "acme", "api", known)).recovery == "new"


def test_backing_and_budget_show_the_proof() -> None:
    view = world(recovery("proven", took_s=12.0))
    write = only(backing.decide(backing.ALL_OBJECTIVES, view, NOW).writes, SetStatus)
    assert present(write.blocks["backing"]).last_proven.recovery == "proven"
    region = with_places("z", a=2, b=2)
    assert [w.blocks["last_proven"] for w in budget_writes(region, view) if isinstance(w, SetStatus)] == [None]
    report = present(region.status.report)
    used = tuple(msgspec.structs.replace(slot, consumed=2) for slot in report.recovery_slots)
    report = msgspec.structs.replace(report, recovery_slots=used)
    region = msgspec.structs.replace(region, status=msgspec.structs.replace(region.status, report=report))
    shown = [w.blocks["last_proven"] for w in budget_writes(region, view) if isinstance(w, SetStatus)]
    assert [present(proof).recovery for proof in shown] == ["proven"]
    assert budget("z", 4).status.last_proven is None
    assert backing.woken_by_recovery(recovery("r", took_s=1.0), recovery("r", took_s=1.0, recovered=False), view)
    assert not backing.woken_by_recovery(recovery("r", took_s=1.0), recovery("r", took_s=1.0), view)
