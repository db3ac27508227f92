"""Recovery: opened on evidence, rate limited, never doubled, and returned."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import assignment, cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.fleet.recovery import recover, recovery_status
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.meta import Key, Object
from holdfast.model.quota import Grant
from holdfast.model.recovery import Recovery, RecoveryPhase
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, RecoverySlotReport, RegionHealth
from holdfast.model.times import micro_text
from holdfast.model.workload import RecoveryObjective
from holdfast.model.writes import Create, Delete, SetStatus, Update

NOW = 1_800_000_000.0


class Fleet:
    """The global cell's objects; writes of recover are applied at once."""

    def __init__(self, *items: Object) -> None:
        self.cache = cache_of(tenant(), priority("critical", 1000), priority(), *items)
        self.now = NOW

    def step(self, name: str) -> list[object]:
        outcome = recover.decide(Key("", name), self.cache, self.now)
        for write in outcome.writes:
            self._do(write)
        self.now += 0.5
        return list(outcome.writes)

    def _do(self, write: object) -> None:
        match write:
            case Create():
                stored = meta(
                    write.object.metadata.name, write.object.metadata.namespace, labels=write.object.metadata.labels
                )
                self.cache.put(msgspec.structs.replace(write.object, metadata=stored))
            case Update():
                self.cache.put(with_new_revision(write.object))
            case Delete():
                self.cache.remove(Assignment, write.key, int(meta("gone").resource_version))
            case SetStatus(kind="Recovery"):
                item = present(self.cache.get(Recovery, write.key.name))
                names = {f.encode_name: f.name for f in msgspec.structs.fields(item.status)}
                status = msgspec.structs.replace(item.status, **{names[k]: v for k, v in write.blocks.items()})
                self.cache.put(
                    with_new_revision(item, status=msgspec.structs.replace(status, conditions=write.conditions))
                )

    def health(self, name: str, state: HealthState) -> None:
        from holdfast.model.region import Region

        item = present(self.cache.get(Region, name))
        health = RegionHealth(
            state=state,
            since=micro_text(self.now),
            last_contact_at=micro_text(self.now - 12),
            reason="UnreachableConfirmed",
            last_sequence=1,
        )
        self.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, health=health)))

    def assignments(self, purpose: Purpose) -> dict[tuple[str, str], Assignment]:
        return {(a.spec.workload, a.spec.region): a for a in self.cache.list(Assignment) if a.spec.purpose is purpose}

    def all_serve(self) -> None:
        self._serve(self.cache.list(Assignment))

    def serve(self, name: str, workload: str) -> None:
        """All replicas of one workload serve in one region."""
        self._serve([a for a in self.cache.list(Assignment) if (a.spec.region, a.spec.workload) == (name, workload)])

    def _serve(self, assignments: Iterable[Assignment]) -> None:
        from holdfast.model.region import Region

        for item in list(assignments):
            there = self.cache.get(Region, item.spec.region)
            if there is not None and there.status.health.state is HealthState.HEALTHY:
                n = item.spec.replicas
                status = AssignmentStatus(observed_epoch=item.spec.epoch, replicas=n, bound=n, ready=n, serving=n)
                self.cache.put(with_new_revision(item, status=status))

    @property
    def recovery(self) -> Recovery:
        (found,) = self.cache.list(Recovery)
        return found

    def phase(self) -> RecoveryPhase:
        return self.recovery.status.phase


def fleet(count: int = 1, *more: Object) -> Fleet:
    items: list[Object] = [region(name) for name in ("a", "b", "c")]
    for number in range(count):
        name = f"api{number}"
        items.append(
            workload(name, replicas=6, priority_class_name="critical", recovery=RecoveryObjective(min_serving=4))
        )
        for where in ("a", "b"):
            items.append(
                assignment(
                    name,
                    where,
                    replicas=3,
                    status=AssignmentStatus(observed_epoch=1, replicas=3, bound=3, ready=3, serving=3),
                )
            )
    return Fleet(*items, *more)


def test_no_recovery_opens_while_regions_are_healthy() -> None:
    f = fleet()
    assert f.step("a") == [] and not f.cache.list(Recovery)


@pytest.mark.parametrize("state", [HealthState.SUSPECT, HealthState.AWAITING_WITNESS, HealthState.UNKNOWN])
def test_suspect_region_opens_no_recovery(state: HealthState) -> None:
    f = fleet()
    f.health("a", state)
    assert f.step("a") == []


def test_lost_region_is_recovered_where_fewest_replicas_are_missing() -> None:
    f = fleet()
    f.health("a", HealthState.LOST)
    f.step("a")
    first = f.recovery
    assert first.spec.region == "a" and first.spec.evidence
    f.step("a")
    suspended = f.assignments(Purpose.NORMAL)[("api0", "a")]
    assert suspended.spec.suspended and suspended.spec.replicas == 3
    made = f.assignments(Purpose.RECOVERY)
    assert {key: a.spec.replicas for key, a in made.items()} == {("api0", "b"): 1}
    f.all_serve()
    f.step("a")
    row = f.recovery.status.workloads[0]
    assert (row.target, row.serving, row.wanted) == ("b", 4, 4)
    assert (row.recovery_replicas, row.assigned) == (1, 4), "three ordinary replicas were there before"
    assert f.recovery.status.phase is RecoveryPhase.RECOVERED and f.recovery.status.clock.serving_at


def test_one_incident_opens_one_recovery() -> None:
    f = fleet()
    f.health("a", HealthState.LOST)
    f.step("a")
    f.step("a")
    assert len(f.cache.list(Recovery)) == 1


def test_second_lost_region_adds_only_missing_replicas() -> None:
    f = fleet()
    f.health("a", HealthState.LOST)
    f.step("a")
    f.step("a")
    f.health("b", HealthState.LOST)
    for _ in range(4):
        f.step("b")
        f.step("a")
    made = {key: a.spec.replicas for key, a in f.assignments(Purpose.RECOVERY).items()}
    assert made[("api0", "c")] == 4
    assert sum(n for (_, where), n in made.items() if where == "c") == 4


def test_recovery_starts_follow_rate_limit_and_priority() -> None:
    slots = (SlotShape(resources={"cpu": "500m", "memory": "1Gi"}, count=100),)
    pace = RecoveryBudget(
        metadata=meta("b"), spec=RecoveryBudgetSpec(region="b", slot_shapes=slots, starts_per_second=2.0)
    )
    f = fleet(20, pace)
    f.health("a", HealthState.LOST)
    f.step("a")
    begun = f.now
    per_pass = []
    for _ in range(40):
        per_pass.append(sum(isinstance(w, Create) for w in f.step("a")))
    assert sum(per_pass) == 20
    # Two starts per second after a short burst.
    last = max(i for i, n in enumerate(per_pass) if n)
    assert last * 0.5 >= 8.0 and max(per_pass) <= 3
    assert f.now - begun < 60


def test_recovery_pass_writes_a_bounded_number_of_assignments() -> None:
    count = recover.RECOVERY_WRITES_PER_PASS_MAX + 6
    slots = (SlotShape(resources={"cpu": "500m", "memory": "1Gi"}, count=2 * count),)
    spec = RecoveryBudgetSpec(region="b", slot_shapes=slots, starts_per_second=1000.0)
    f = fleet(count, RecoveryBudget(metadata=meta("b"), spec=spec))
    f.health("a", HealthState.LOST)
    created = [sum(isinstance(w, Create) and isinstance(w.object, Assignment) for w in f.step("a")) for _ in range(6)]
    assert max(created) == recover.RECOVERY_WRITES_PER_PASS_MAX and sum(created) == count


def lose_recover_and_heal(f: Fleet) -> None:
    """Region a is lost, its workloads serve elsewhere, and it is healthy again."""
    f.health("a", HealthState.LOST)
    for _ in range(3):
        f.step("a")
        f.all_serve()
    f.health("a", HealthState.HEALTHY)
    f.step("a")


def test_failback_waits_returns_everything_and_closes() -> None:
    f = fleet()
    lose_recover_and_heal(f)
    assert f.recovery.status.stable_since and f.phase() is RecoveryPhase.RECOVERED
    assert f.assignments(Purpose.NORMAL)[("api0", "a")].spec.suspended
    f.now += 31
    f.step("a")
    assert f.phase() is RecoveryPhase.FAILING_BACK
    f.step("a")
    assert not f.assignments(Purpose.NORMAL)[("api0", "a")].spec.suspended
    # The home region has not applied its newest epoch, so nothing is returned yet.
    assert f.assignments(Purpose.RECOVERY)[("api0", "b")].spec.replicas == 1
    for _ in range(4):
        f.all_serve()
        f.step("a")
    assert not f.assignments(Purpose.RECOVERY)
    assert f.recovery.status.phase is RecoveryPhase.CLOSED and f.recovery.status.remaining == ()


def test_recovery_records_who_borrowed_and_when_it_was_returned() -> None:
    f = fleet(2)
    f.health("a", HealthState.LOST)
    for _ in range(3):
        f.step("a")
        f.all_serve()
    (share,) = f.recovery.status.borrowed
    assert (share.tenant, share.region, share.peak_replicas) == ("acme", "b", 2), "one replica of each workload"
    assert share.peak == {"cpu": "1", "memory": "2Gi"}
    assert share.percent_of_region == 6.25, "1 of 16 CPUs; memory is the smaller share"
    assert share.since and not share.returned_at
    f.health("a", HealthState.HEALTHY)
    f.step("a")
    f.now += 31
    for _ in range(8):
        f.step("a")
        f.all_serve()
    assert f.phase() is RecoveryPhase.CLOSED
    (closed,) = f.recovery.status.borrowed
    assert closed.returned_at == f.recovery.status.closed_at and closed.since == share.since


def test_region_lost_again_during_failback_is_recovered_again() -> None:
    f = fleet()
    lose_recover_and_heal(f)
    f.now += 31
    f.step("a")
    f.health("a", HealthState.LOST)
    f.step("a")
    assert f.recovery.status.phase is RecoveryPhase.OPEN
    f.step("a")
    assert len(f.cache.list(Recovery)) == 1
    assert f.assignments(Purpose.RECOVERY)[("api0", "b")].spec.replicas == 1


def test_recovery_stays_open_while_a_recovery_grant_is_in_use() -> None:
    from holdfast.model.quota import GrantClass, GrantSpec, GrantStatus

    grant = Grant(
        metadata=meta("b.recovery", "acme"),
        spec=GrantSpec(region="b", grant_class=GrantClass.RECOVERY),
        status=GrantStatus(used={"cpu": "500m"}),
    )
    f = fleet(1, grant)
    lose_recover_and_heal(f)
    f.now += 31
    for _ in range(6):
        f.all_serve()
        f.step("a")
    assert f.recovery.status.phase is RecoveryPhase.FAILING_BACK
    assert f.recovery.status.remaining == ("grant acme/b.recovery: recovery quota in use",)


def test_recovery_is_decided_again_when_health_conditions_or_slots_of_a_region_change() -> None:
    old = region("b")
    report = present(old.status.report)
    slots = (RecoverySlotReport(budget="b", zone="b-a", resources={"cpu": "1"}, admitted=1),)
    changes = {
        "report": (msgspec.structs.replace(report, sequence=report.sequence + 1), ()),
        "slots": (msgspec.structs.replace(report, recovery_slots=slots), ("b",)),
        "no report": (None, ()),
    }
    for what, (new_report, woken) in changes.items():
        new = with_new_revision(old, status=msgspec.structs.replace(old.status, report=new_report))
        assert tuple(key.name for key in recover.woken_by_region(new, old, cache_of())) == woken, what
    lost = msgspec.structs.replace(old.status.health, state=HealthState.LOST)
    new = with_new_revision(old, status=msgspec.structs.replace(old.status, health=lost))
    assert [key.name for key in recover.woken_by_region(new, old, cache_of())] == ["b"]
    assert [key.name for key in recover.woken_by_region(new, None, cache_of())] == ["b"]
    assert not recover.woken_by_region(None, old, cache_of())


def test_assignments_of_a_lost_region_are_suspended_in_bounded_passes() -> None:
    count = recovery_status.SUSPENSIONS_PER_PASS + 2
    seen = cache_of(*(assignment(f"web{number}", "a") for number in range(count)))
    assert (
        len(list(recovery_status.suspension_writes("a", seen, suspended=True))) == recovery_status.SUSPENSIONS_PER_PASS
    )
    assert not list(recovery_status.suspension_writes("a", seen, suspended=False))


def test_budget_status_is_written_when_its_slots_or_its_spec_change_and_then_never_again() -> None:
    slots = (SlotShape(resources={"cpu": "1"}, count=2, min_zones=2),)
    budget = RecoveryBudget(metadata=meta("b", generation=1), spec=RecoveryBudgetSpec(region="b", slot_shapes=slots))

    def written(stored: RecoveryBudget, *places: RecoverySlotReport) -> SetStatus | None:
        item = region("b")
        report = msgspec.structs.replace(present(item.status.report), recovery_slots=places)
        there = with_new_revision(item, status=msgspec.structs.replace(item.status, report=report))
        found = recovery_status.budget_writes(there, cache_of(stored, there))
        assert len(found) <= 1
        return of_type(found[0], SetStatus) if found else None

    def place(zone: str, *, consumed: int = 0) -> RecoverySlotReport:
        return RecoverySlotReport(budget="b", zone=zone, resources={"cpu": "1"}, admitted=1, consumed=consumed)

    def applied(write: SetStatus) -> RecoveryBudget:
        status = msgspec.structs.replace(
            budget.status,
            admitted=write.blocks["admitted"],
            consumed=write.blocks["consumed"],
            last_proven=write.blocks["last_proven"],
            conditions=write.conditions,
            observed_generation=present(write.observed_generation),
        )
        return with_new_revision(budget, status=status)

    first = present(written(budget, place("a"), place("b")))
    assert (first.blocks["admitted"], first.conditions[0].status) == (2, "True")
    stored = applied(first)
    assert written(stored, place("a"), place("b")) is None
    one_zone = present(written(stored, place("a"), place("a")))
    assert (one_zone.blocks["admitted"], one_zone.conditions[0].status) == (2, "False"), "two zones are asked for"
    assert present(written(stored, place("a"), place("b", consumed=1))).blocks["consumed"] == 1
    assert present(written(stored, place("a"))).conditions[0].status == "False"
    newer = with_new_revision(stored, metadata=msgspec.structs.replace(stored.metadata, generation=2))
    assert present(written(newer, place("a"), place("b"))).observed_generation == 2
    other = msgspec.structs.replace(stored.spec, region="elsewhere")
    assert written(with_new_revision(stored, spec=other)) is None, "a budget of another region"
