"""Rollout with assign and scripted regions: waves, deadline, rollback, pause."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, only
from tests.factories import TEMPLATE, assignment, cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.controllers.cache import Cache
from holdfast.fleet import assign, batch_ttl, rollout, workload_status
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason, Purpose, assignment_name
from holdfast.model.meta import Condition, Key
from holdfast.model.region import HealthState, Region
from holdfast.model.template import Template, template_hash
from holdfast.model.workload import Batch, Rollout, RolloutBlock, Summary, Workload, WorkloadStatus, WorkloadType
from holdfast.model.writes import Create, Delete, SetStatus, Update

KEY = Key("acme", "api")
REGIONS = ("ap-south", "eu-west", "us-east")
T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def other(n: int) -> Template:
    return msgspec.structs.replace(TEMPLATE, args=(f"v{n}",))


def named(item: Assignment) -> str:
    return item.spec.region if item.spec.purpose is Purpose.NORMAL else f"{item.spec.region} recovers"


class RolloutHarness:
    """Repeats assign and rollout; regions serve their replicas when the test says so."""

    def __init__(self, **rules: Any) -> None:
        self.now = T0
        self.items = {r: region(r) for r in REGIONS}
        self.workload = workload(replicas=6, rollout=Rollout(progress_deadline_seconds=60, **rules))
        self.assignments: dict[str, Assignment] = {}
        self.bad: set[str] = set()
        self.held: dict[str, int] = {}

    def view(self) -> Cache:
        return cache_of(self.workload, tenant(), priority(), *self.items.values(), *self.assignments.values())

    def step(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for write in rollout.decide(KEY, self.view(), self.now).writes:
            assert isinstance(write, SetStatus)
            status = msgspec.structs.replace(self.workload.status, **write.blocks)
            self.workload = with_new_revision(self.workload, status=status)
        for write in assign.decide(KEY, self.view(), self.now).writes:
            if isinstance(write, Create):
                made = of_type(write.object, Assignment)
                self.assignments[named(made)] = with_new_revision(made, metadata=meta(made.metadata.name, "acme"))
            elif isinstance(write, Update) and isinstance(write.object, Assignment):
                self.assignments[named(write.object)] = with_new_revision(write.object)

    def serve(self, *names: str) -> None:
        for name in names or tuple(self.assignments):
            item = self.assignments[name]
            count = 0 if item.spec.revision in self.bad else item.spec.replicas
            status = AssignmentStatus(
                observed_epoch=item.spec.epoch,
                replicas=item.spec.replicas + (0 if count else 1),
                serving=item.spec.replicas,
                updated=item.spec.replicas,
                updated_serving=count,
                revision=item.spec.revision,
            )
            self.assignments[name] = with_new_revision(item, status=status)

    def health(self, name: str, state: HealthState) -> None:
        health = msgspec.structs.replace(self.items[name].status.health, state=state)
        status = msgspec.structs.replace(self.items[name].status, health=health)
        self.items[name] = with_new_revision(self.items[name], status=status)

    def recover(self, name: str, replicas: int) -> None:
        """A serving recovery Assignment in a region."""
        stored = assignment(where=name, replicas=replicas, purpose=Purpose.RECOVERY, disruption_share=0)
        title = assignment_name("api", name, Purpose.RECOVERY)
        self.assignments[named(stored)] = with_new_revision(stored, metadata=meta(title, "acme"))
        self.serve(named(stored))

    def settle(self, steps: int = 12) -> None:
        for _ in range(steps):
            self.step()
            self.serve()

    def change(self, template: Template, **rules: Any) -> None:
        spec = msgspec.structs.replace(
            self.workload.spec, template=template, rollout=msgspec.structs.replace(self.workload.spec.rollout, **rules)
        )
        newer = msgspec.structs.replace(self.workload.metadata, generation=self.workload.metadata.generation + 1)
        self.workload = with_new_revision(msgspec.structs.replace(self.workload, metadata=newer), spec=spec)

    @property
    def block(self) -> RolloutBlock:
        assert self.workload.status.rollout is not None
        return self.workload.status.rollout

    def running(self) -> dict[str, str]:
        return {name: a.spec.revision for name, a in sorted(self.assignments.items())}


def test_first_revision_rolls_out_to_all_regions_at_once() -> None:
    harness = RolloutHarness()
    harness.step()
    harness.step()
    assert set(harness.running()) == set(REGIONS)
    harness.settle()
    assert (harness.block.phase, harness.block.last_good_revision) == ("Complete", template_hash(TEMPLATE))


def test_next_revision_rolls_out_region_by_region() -> None:
    harness = RolloutHarness()
    harness.settle()
    old, new = template_hash(TEMPLATE), template_hash(other(2))
    harness.change(other(2))
    harness.step()
    harness.step()
    assert harness.running() == {"ap-south": new, "eu-west": old, "us-east": old}
    for _ in range(5):
        harness.step()  # ap-south does not report serving replicas
    assert harness.running()["eu-west"] == old
    harness.serve("ap-south")
    harness.step()
    harness.step()
    assert harness.running() == {"ap-south": new, "eu-west": new, "us-east": old}
    assert "region(s) follow" in harness.block.message
    harness.settle()
    assert harness.block.phase == "Complete" and harness.block.last_good_revision == new
    assert harness.block.previous_revision == old
    assert [r.outcome for r in harness.block.history] == ["Complete", "Complete"]


def test_report_about_old_revision_is_not_counted_as_progress() -> None:
    """A region out of contact has not received the new revision and still serves the old one."""
    harness = RolloutHarness()
    harness.settle()
    harness.change(other(2))
    for _ in range(3):
        harness.step()
    held = harness.assignments["ap-south"]
    assert held.spec.revision == template_hash(other(2)) and held.status.updated_serving == held.spec.replicas
    assert harness.block.serving == 0
    assert f"ap-south 0/{held.spec.replicas}" in harness.block.message
    harness.serve("ap-south")
    harness.step()
    assert harness.block.serving == held.spec.replicas


def test_wave_regions_sets_the_wave_size() -> None:
    harness = RolloutHarness(wave_regions=2)
    harness.settle()
    harness.change(other(2))
    harness.step()
    harness.step()
    assert list(harness.running().values()).count(template_hash(other(2))) == 2


def test_failing_revision_is_rolled_back_before_other_regions() -> None:
    harness = RolloutHarness()
    harness.settle()
    good, bad = template_hash(TEMPLATE), template_hash(other(2))
    harness.bad.add(bad)
    harness.change(other(2))
    for _ in range(8):
        harness.step(5.0)
        harness.serve()
        assert harness.running()["eu-west"] == good and harness.running()["us-east"] == good
    assert harness.block.phase == "Progressing"
    harness.step(60.0)
    assert harness.block.phase == "RollingBack" and "no progress for 60 s" in harness.block.message
    harness.settle()
    assert harness.block.phase == "RolledBack" and set(harness.running().values()) == {good}
    assert harness.block.last_good_revision == good
    before = harness.block
    harness.settle()
    assert harness.block == before, "it stays rolled back"
    harness.change(other(3))
    harness.settle(20)
    assert harness.block.phase == "Complete" and set(harness.running().values()) == {template_hash(other(3))}


def test_failed_rollout_reaches_the_other_regions_if_it_serves_later() -> None:
    """Seed 1500142: the first region served after the deadline, and the other one kept a broken revision forever."""
    harness = RolloutHarness(auto_rollback=False)
    harness.settle()
    slow = template_hash(other(2))
    harness.bad.add(slow)
    harness.change(other(2))
    harness.settle(3)
    harness.step(100.0)
    assert harness.block.phase == "Failed" and "automatic rollback is off" in harness.block.message
    assert list(harness.running().values()).count(slow) == 1, "the revision is still in the first wave"
    harness.bad.clear()
    harness.settle()
    assert harness.block.phase == "Complete" and set(harness.running().values()) == {slow}


def test_failed_rollout_that_fails_again_stays_failed() -> None:
    harness = RolloutHarness(auto_rollback=False)
    harness.settle()
    slow = template_hash(other(2))
    harness.bad.add(slow)
    harness.change(other(2))
    harness.settle(3)
    harness.step(100.0)
    (first,) = harness.block.regions
    harness.bad.clear()
    harness.serve(first)
    harness.bad.add(slow)
    for _ in range(5):
        harness.step()
        harness.serve(*(name for name in harness.running() if name != first))
    assert harness.block.phase == "Progressing" and len(harness.block.regions) == 2
    harness.step(100.0)
    for _ in range(5):
        harness.step()
    assert harness.block.phase == "Failed" and len(harness.block.regions) == 2, "the third region is not tried"


def test_paused_rollout_stops_the_deadline() -> None:
    harness = RolloutHarness()
    harness.settle()
    harness.change(other(2), paused=True)
    for _ in range(5):
        harness.step(100.0)
        harness.serve()
    assert harness.block.phase == "Paused"
    assert list(harness.running().values()).count(template_hash(other(2))) == 0
    harness.change(other(2), paused=False)
    harness.settle(20)
    assert harness.block.phase == "Complete"


def test_undo_during_a_failing_rollout_completes() -> None:
    harness = RolloutHarness()
    harness.settle()
    harness.bad.add(template_hash(other(2)))
    harness.change(other(2))
    harness.settle(3)
    harness.change(TEMPLATE)
    harness.settle()
    assert harness.block.phase == "Complete" and set(harness.running().values()) == {template_hash(TEMPLATE)}


def test_lost_region_does_not_block_a_rollout() -> None:
    harness = RolloutHarness()
    harness.settle()
    lost = harness.items["ap-south"]
    gone = msgspec.structs.replace(lost.status.health, state=HealthState.LOST)
    harness.items["ap-south"] = with_new_revision(lost, status=msgspec.structs.replace(lost.status, health=gone))
    assert isinstance(harness.items["ap-south"], Region)
    harness.change(other(2))
    for _ in range(12):
        harness.step()
        harness.serve("eu-west", "us-east")
    assert harness.block.phase == "Complete"
    assert harness.running()["eu-west"] == harness.running()["us-east"] == template_hash(other(2))


def test_recovery_replicas_are_updated_with_their_region() -> None:
    harness = RolloutHarness()
    harness.settle()
    harness.health("us-east", HealthState.LOST)
    harness.recover("ap-south", 3)
    old, new = template_hash(TEMPLATE), template_hash(other(2))
    harness.change(other(2))
    harness.step()
    harness.step()
    assert harness.running()["ap-south"] == harness.running()["ap-south recovers"] == new
    harness.serve("ap-south")
    for _ in range(3):
        harness.step()
    assert harness.running()["eu-west"] == old, "the recovery replicas do not serve it yet"
    assert "/3 for recovery" in harness.block.message and "1 region(s) follow" in harness.block.message
    harness.serve("ap-south recovers")
    harness.step()
    harness.step()
    assert harness.running()["eu-west"] == new
    harness.serve("eu-west")
    harness.step()
    assert harness.block.phase == "Complete"


def test_region_with_only_recovery_replicas_is_a_wave() -> None:
    harness = RolloutHarness()
    harness.workload = with_new_revision(
        harness.workload, spec=msgspec.structs.replace(harness.workload.spec, replicas=1)
    )
    harness.settle()
    assert list(harness.running()) == ["ap-south"]
    harness.recover("eu-west", 4)
    harness.change(other(2))
    harness.step()
    harness.step()
    assert harness.running()["eu-west recovers"] == template_hash(TEMPLATE)
    harness.settle()
    assert set(harness.running().values()) == {template_hash(other(2))} and harness.block.phase == "Complete"


def test_rollback_includes_recovery_replicas() -> None:
    harness = RolloutHarness()
    harness.settle()
    harness.recover("ap-south", 2)
    harness.bad.add(template_hash(other(2)))
    harness.change(other(2))
    harness.settle(3)
    assert harness.running()["ap-south recovers"] == template_hash(other(2))
    harness.step(70.0)
    harness.settle()
    assert harness.block.phase == "RolledBack" and set(harness.running().values()) == {template_hash(TEMPLATE)}


def test_pending_recovery_replicas_do_not_block_a_rollout() -> None:
    harness = RolloutHarness()
    harness.settle()
    harness.recover("ap-south", 4)
    harness.change(other(2))
    for _ in range(12):
        harness.step(20.0)
        harness.serve(*REGIONS)
        item = harness.assignments["ap-south recovers"]
        waits = AssignmentStatus(
            observed_epoch=item.spec.epoch,
            replicas=4,
            queued=4,
            updated=4,
            pending=(PendingReason(reason="InsufficientCpu", count=4),),
        )
        harness.assignments["ap-south recovers"] = with_new_revision(item, status=waits)
    assert harness.block.phase == "Complete"


def test_pending_recovery_replicas_prove_no_revision() -> None:
    harness = RolloutHarness(auto_rollback=False)
    harness.recover("ap-south", 4)
    item = harness.assignments["ap-south recovers"]
    harness.assignments["ap-south recovers"] = with_new_revision(
        item, status=AssignmentStatus(observed_epoch=1, replicas=4, queued=4, updated=4)
    )
    for name in REGIONS:
        harness.health(name, HealthState.UNKNOWN)
    harness.step()
    harness.step()
    assert harness.block.phase == "Progressing" and not harness.block.last_good_revision


@pytest.mark.parametrize("state", [HealthState.LOST, HealthState.SUSPECT, HealthState.AWAITING_WITNESS])
def test_deadline_stops_for_a_region_out_of_contact(state: HealthState) -> None:
    harness = RolloutHarness()
    harness.workload = with_new_revision(
        harness.workload, spec=msgspec.structs.replace(harness.workload.spec, replicas=1)
    )
    harness.settle()
    (only,) = harness.running()
    harness.change(other(2))
    harness.step()
    harness.step()
    harness.health(only, state)
    harness.step()
    assert only in harness.block.message and list(harness.block.unreachable_regions) == [only]
    for _ in range(20):
        harness.step(30.0)
        assert harness.block.phase == "Progressing", "it had 60 s before it was out of contact"
    harness.health(only, HealthState.HEALTHY)
    harness.step()
    harness.step(50.0)
    assert harness.block.phase == "Progressing" and harness.block.unreachable_regions == (), "its deadline restarts"
    harness.serve(only)
    harness.step()
    assert harness.block.phase == "Complete"


def test_deadline_counts_for_reachable_regions() -> None:
    harness = RolloutHarness(wave_regions=3)
    harness.settle()
    harness.bad.add(template_hash(other(2)))
    harness.change(other(2))
    harness.settle(2)
    harness.health("ap-south", HealthState.SUSPECT)
    harness.step()
    harness.step(70.0)
    assert harness.block.phase == "RollingBack"


def test_returned_region_gets_the_full_deadline() -> None:
    harness = RolloutHarness()
    harness.workload = with_new_revision(
        harness.workload, spec=msgspec.structs.replace(harness.workload.spec, replicas=1)
    )
    harness.settle()
    (only,) = harness.running()
    harness.bad.add(template_hash(other(2)))
    harness.change(other(2))
    harness.step()
    harness.step()
    harness.health(only, HealthState.LOST)
    harness.step(500.0)
    harness.health(only, HealthState.HEALTHY)
    harness.step()
    harness.serve(only)
    harness.step(59.0)
    assert harness.block.phase == "Progressing"
    harness.step(5.0)
    assert harness.block.phase == "RollingBack"


@pytest.mark.parametrize("back", [False, True])
def test_revision_is_not_proven_while_every_region_is_lost(back: bool) -> None:
    """Otherwise a failed revision would become the last good one, and the next rollback would return to it."""
    harness = RolloutHarness(auto_rollback=back)
    harness.settle()
    harness.bad = {template_hash(TEMPLATE), template_hash(other(2))}
    harness.change(other(2))
    harness.settle(3)
    harness.step(100.0)
    before = harness.block
    assert before.phase == ("RollingBack" if back else "Failed")
    for name, stored in harness.items.items():
        gone = msgspec.structs.replace(stored.status.health, state=HealthState.LOST)
        harness.items[name] = with_new_revision(stored, status=msgspec.structs.replace(stored.status, health=gone))
    harness.settle(3)
    assert harness.block == before
    assert harness.block.last_good_revision == template_hash(TEMPLATE)


def test_revision_history_is_bounded_and_keeps_the_last_good_one() -> None:
    harness = RolloutHarness(auto_rollback=False)
    harness.settle()
    good = template_hash(TEMPLATE)
    for n in range(2, 20):
        harness.bad.add(template_hash(other(n)))
        harness.change(other(n))
        harness.step()
    names = [r.revision for r in harness.block.history]
    assert len(names) <= 11 and good in names and names[0] == template_hash(other(19))


# Batch


def batch(*, succeeded: int, conditions: tuple[Condition, ...] = (), **given: Any) -> Workload:
    shape = Batch(**{"completions": 10, "parallelism": 2, "deadline_seconds": 100.0, **given})
    made = workload(type=WorkloadType.BATCH, batch=shape)
    return with_new_revision(made, status=WorkloadStatus(summary=Summary(succeeded=succeeded), conditions=conditions))


def on_time(item: Workload, at_s: float) -> Condition:
    write = only(workload_status.decide(KEY, cache_of(item), T0 + at_s).writes, SetStatus)
    return next(c for c in write.conditions if c.type == "OnTime")


@pytest.mark.parametrize(
    ("succeeded", "at_s", "status", "reason"),
    [
        (0, 10, "True", "OnTime"),
        (0, 60, "False", "DeadlineAtRisk"),
        (2, 10, "True", "OnTime"),
        (2, 40, "False", "DeadlineAtRisk"),
        (8, 60, "True", "OnTime"),
        (8, 101, "False", "DeadlineMissed"),
        (10, 90, "True", "OnTime"),
    ],
)
def test_batch_deadline_at_risk_is_reported_early(succeeded: int, at_s: int, status: str, reason: str) -> None:
    found = on_time(batch(succeeded=succeeded), at_s)
    assert (found.status, found.reason) == (status, reason)


def test_finished_batch_is_deleted_after_its_ttl() -> None:
    done = Condition(type="Complete", status="True", reason="Complete", last_transition_time="2026-01-01T00:00:30Z")
    item = batch(succeeded=10, conditions=(done,), ttl_after_finished_seconds=60.0)
    assert batch_ttl.decide(KEY, cache_of(item), T0 + 80).requeue_after_s == pytest.approx(10.0)
    (write,) = batch_ttl.decide(KEY, cache_of(item), T0 + 91).writes
    assert isinstance(write, Delete) and write.uid == item.uid
    unfinished = batch(succeeded=3, ttl_after_finished_seconds=60.0)
    assert batch_ttl.decide(KEY, cache_of(unfinished), T0 + 9999).writes == ()
    # The TTL of a failed batch counts from its failure, not from its start.
    began = Condition(
        type="Complete", status="False", reason="BackoffLimitExceeded", last_transition_time="2026-01-01T00:00:01Z"
    )
    gave_up = msgspec.structs.replace(began, type="Failed", status="True", last_transition_time="2026-01-01T01:00:00Z")
    failed = batch(succeeded=0, conditions=(began, gave_up), ttl_after_finished_seconds=60.0)
    assert batch_ttl.decide(KEY, cache_of(failed), T0 + 3610).requeue_after_s == pytest.approx(50.0)
    assert batch_ttl.decide(KEY, cache_of(failed), T0 + 3661).writes


def test_waves_name_every_region_in_the_order_in_which_it_changes() -> None:
    world = RolloutHarness()
    world.step()
    assert rollout.rollout_waves(world.workload, REGIONS) == (REGIONS,), "the first revision has nothing to protect"
    block = of_type(world.workload.status.rollout, RolloutBlock)
    running = msgspec.structs.replace(block, last_good_revision="before", regions=("us-east",))
    status = msgspec.structs.replace(world.workload.status, rollout=running)
    changed = msgspec.structs.replace(world.workload, status=status)
    assert rollout.rollout_waves(changed, REGIONS) == (("us-east",), ("ap-south",), ("eu-west",))
