"""What a stored Decision says about its inputs and result, and the conditions that the authority writes."""

from __future__ import annotations

from tests.authority.cell import TENANT, Cell
from tests.authority.test_slot_admission import put_slot
from tests.controllers.virtual import until
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.decision import PLACED, Decision
from holdfast.model.meta import Condition, Object, find_condition
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.replica import BOUND, Replica
from holdfast.model.times import parse_time


def condition_of(item: Object, kind: str) -> Condition:
    status = item.status  # type: ignore[attr-defined]
    found = find_condition(status.conditions, kind)
    assert found is not None and found.last_transition_time
    assert found.observed_generation == status.observed_generation == item.metadata.generation
    return found


def test_decision_names_its_inputs_and_the_next_owner() -> None:
    async def test(region: Region) -> None:
        await region.cell.grant(limit={"cpu": "4", "memory": "1000Gi"})
        await region.request("web", await region.replicas(2), workload_generation=7, priority=3)
        await until(lambda: len(region.bound()) == 2)
        (decision,) = region.cell.every(Decision)
        spec = decision.spec
        assert (spec.workload, spec.workload_generation, spec.policy_revision) == ("web", 7, "builtin")
        assert spec.queued_at == region.stored().metadata.creation_timestamp and parse_time(spec.decided_at)
        assert spec.queue.priority == 3 and spec.queue.limit["cpu"] == "4"
        assert spec.inputs.headroom_known and spec.inputs.quota_headroom["cpu"] == "4"
        assert spec.snapshot_revision > 0 and spec.snapshot_hash
        assert {"Node", "Binding", "GrantCopy"} <= set(spec.revisions)
        assert (spec.nodes, spec.feasible, spec.next_owner) == (3, 3, "agent")
        for entry in spec.entries:
            assert (entry.result, entry.reason) == ("Accepted", "")
            assert entry.scores and entry.runner_up
        replica = region.cell.get_replica()
        assert replica.status.placement.decision == decision.metadata.name

    in_region(test)


def test_decision_condition_says_how_many_replicas_were_placed() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(2))
        await until(lambda: len(region.bound()) == 2)
        (placed,) = region.cell.every(Decision)
        condition = condition_of(placed, PLACED)
        assert (condition.status, condition.reason) == ("True", Reason.ALL_PLACED)
        assert condition.message == "2 of 2 replica(s) placed"
        big = [await region.cell.replica(f"big-{n}", template={"resources": {"cpu": "100"}}) for n in range(2)]
        await region.request("big", big)
        await until(lambda: len(region.cell.every(Decision)) == 2)
        (refused,) = [d for d in region.cell.every(Decision) if d.spec.request == "big"]
        condition = condition_of(refused, PLACED)
        assert (condition.status, condition.reason) == ("False", Reason.INSUFFICIENT_CPU)
        assert condition.message == "0 of 2 replica(s) placed"

    in_region(test)


def bound_of(cell: Cell) -> Condition:
    return condition_of(cell.get_replica(), BOUND)


async def test_replica_condition_bound_follows_reserve_bind_and_release(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.reserve(cell.item(replica), bind=False)
    held = bound_of(cell)
    assert (held.status, held.reason, held.message) == ("False", Reason.RESERVED, "node n1, attempt 1")
    await cell.place(replica)
    assert bound_of(cell).status == "False", "the reservation is not bound by a repeated reserve"
    await cell.release(replica, ReleaseAction.FREE)
    released = bound_of(cell)
    assert (released.status, released.message) == ("False", "attempt 2 is queued") and released.reason
    await cell.place(cell.get_replica())
    bound = bound_of(cell)
    assert (bound.status, bound.reason, bound.message) == ("True", Reason.BOUND, "node n1, attempt 2")
    (stored,) = cell.every(Replica)
    assert stored.metadata.namespace == TENANT


async def test_slot_condition_admitted_has_the_reason_of_a_refusal(cell: Cell) -> None:
    await cell.lead()
    await put_slot(cell, "fits", "6")
    await put_slot(cell, "too-large", "60")
    await cell.authority.tick()
    slots = {slot.metadata.name: condition_of(slot, "Admitted") for slot in cell.every(RecoverySlot)}
    assert (slots["fits"].status, slots["fits"].reason) == ("True", Reason.SLOT_ADMITTED)
    assert (slots["too-large"].status, slots["too-large"].reason) == ("False", Reason.SLOTS_UNSCHEDULABLE)
    assert "missing cpu" in slots["too-large"].message
