"""A replica whose Binding or Reservation is missing from the store is stopped with proof and placed again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, WHO, Cell, yield_to_loop
from tests.expected import present
from tests.factories import meta

from holdfast.authority.lost_claims import LOST_CLAIMS_PER_MINUTE
from holdfast.authority.stop_orders import stop_order
from holdfast.model.binding import Binding, DesiredRunState, Reservation
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome, ReleaseAction
from holdfast.model.quantity import amounts
from holdfast.model.quota import GrantClass
from holdfast.model.replica import ExecutionBlock, Phase, Replica
from holdfast.model.template import Port
from holdfast.model.times import micro_text
from holdfast.model.workload import Exclusivity

STOP, FREE = ReleaseAction.STOP, ReleaseAction.FREE
replace = msgspec.structs.replace


async def placed(cell: Cell, name: str = "web-0", **spec: Any) -> Replica:
    await cell.place(await cell.replica(name, **spec))
    return cell.get_replica(name)


async def lose(cell: Cell, name: str) -> None:
    """The Binding disappears from the store, not by the authority."""
    await cell.remove(present(cell.binding(name)))


async def test_lost_binding_is_written_again_as_stop_order(cell: Cell) -> None:
    await placed(cell)
    await lose(cell, "web-0.1")
    await cell.authority.tick()
    order = present(cell.binding("web-0.1"))
    assert (order.spec.desired, order.spec.stop_reason) == (DesiredRunState.STOP, "ClaimLost")
    assert (order.spec.node, order.spec.node_epoch, order.spec.intent.attempt) == ("n1", 1, 1)
    assert cell.authority.ledger.used[TENANT, GrantClass.NORMAL] == amounts(order.spec.resources)
    cell.check_ledger()


@pytest.mark.parametrize("exclusive", [None, Exclusivity()])
async def test_lost_binding_frees_its_replica_only_after_the_agent_acknowledged(
    cell: Cell, exclusive: Exclusivity | None
) -> None:
    """The task may still run: without proof a second instance of an exclusive replica could start (S7)."""
    replica = await placed(cell, exclusive=exclusive)
    await lose(cell, "web-0.1")
    for action in (FREE, STOP, FREE):
        await cell.release(replica, action)
        assert cell.get_replica().status.placement.attempt == 1
    refused = await cell.release(replica, FREE)
    assert (refused.result, refused.reason) == (PlacementOutcome.REJECTED, "StopNotConfirmed")
    await cell.acknowledge("web-0.1")
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ACCEPTED
    assert cell.get_replica().status.placement.attempt == 2 and not cell.every(Binding)
    cell.check_ledger()


async def test_lost_binding_of_fenced_node_is_freed_at_the_fence(cell: Cell) -> None:
    replica = await placed(cell)
    await lose(cell, "web-0.1")
    await cell.authority.tick()
    await cell.change_node(fence=1)
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ACCEPTED
    assert present(cell.binding("web-0.1")).spec.quota_released


async def test_lost_reservation_frees_its_replica_at_once(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.reserve(cell.item(replica), bind=False)
    (held,) = cell.every(Reservation)
    await cell.remove(held)
    await cell.authority.tick()
    after = cell.get_replica().status.placement
    assert (after.attempt, after.reservation, after.released_reason) == (2, "", "ClaimLost")
    assert (await cell.place(cell.get_replica())).result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_consumed_reservation_of_lost_binding_does_not_expire_into_a_second_instance(cell: Cell) -> None:
    replica = await cell.replica(exclusive=Exclusivity())
    (held,) = await cell.reserve(cell.item(replica), bind=False)
    assert held.result is PlacementOutcome.ACCEPTED
    item = BindItem(TENANT, replica.metadata.name, intent=cell.item(replica).intent)
    await cell.authority.bind(WHO, BindRequest((item,)))
    await lose(cell, "web-0.1")
    cell.clock.wall_s += 3600.0
    await cell.authority.tick()
    assert cell.get_replica().status.placement.attempt == 1
    assert present(cell.binding("web-0.1")).spec.desired is DesiredRunState.STOP


async def test_many_lost_bindings_are_repaired_at_a_bounded_rate(cell: Cell) -> None:
    await cell.node("big", capacity={"cpu": "100", "memory": "100Gi"})
    names = [f"web-{i}" for i in range(LOST_CLAIMS_PER_MINUTE + 3)]
    for name in names:
        await cell.place(await cell.replica(name), "big")
    for name in names:
        await lose(cell, f"{name}.1")
    await cell.authority.tick()
    assert len(cell.every(Binding)) == LOST_CLAIMS_PER_MINUTE
    await cell.authority.tick()
    assert len(cell.every(Binding)) == LOST_CLAIMS_PER_MINUTE
    await cell.renew("big", 1)
    await cell.clock.advance(61.0)
    await cell.authority.tick()
    assert len(cell.every(Binding)) == len(names)


@pytest.mark.parametrize(
    ("kind", "scope", "left_s", "paused"),
    [
        (OverrideKind.PAUSE_REPAIR, OverrideScope(), 60.0, True),
        (OverrideKind.PAUSE_REPAIR, OverrideScope(tenant=TENANT, workload="web"), 60.0, True),
        (OverrideKind.PAUSE_REPAIR, OverrideScope(tenant="rival"), 60.0, False),
        (OverrideKind.PAUSE_REPAIR, OverrideScope(region="eu-west"), 60.0, False),
        (OverrideKind.PAUSE_REPAIR, OverrideScope(), -60.0, False),
        (OverrideKind.PAUSE_AUTOSCALER, OverrideScope(), 60.0, False),
    ],
    ids=["everywhere", "this workload", "another tenant", "another region", "expired", "another kind"],
)
async def test_paused_repair_leaves_lost_bindings_alone(
    cell: Cell, kind: OverrideKind, scope: OverrideScope, left_s: float, *, paused: bool
) -> None:
    await placed(cell)
    await lose(cell, "web-0.1")
    status = OverrideStatus(phase=ACTIVE, expires_at=micro_text(cell.clock.now() + left_s))
    spec = OverrideSpec(kind=kind, scope=scope, reason="the store is being restored")
    await cell.put(Override(metadata=meta("pause"), spec=spec, status=status))
    await cell.authority.tick()
    assert bool(cell.every(Binding)) is not paused


FIXED_PORT = {"ports": (Port("http", 20_007),)}
WHOLE_GPUS = {"resources": {"cpu": "1", "memory": "1Gi", "gpu": "2"}}
SHARED_GPU = {"resources": {"cpu": "1", "memory": "1Gi", "gpu": "600m"}}
ALL_CPU = {"resources": {"cpu": "8", "memory": "1Gi"}}


@pytest.mark.parametrize("restarted", [False, True], ids=["same authority", "next authority"])
@pytest.mark.parametrize("repaired", [False, True], ids=["before the stop order", "after the stop order"])
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (FIXED_PORT, "PortInUse"),
        (WHOLE_GPUS, "InsufficientDevices"),
        (SHARED_GPU, "InsufficientDevices"),
        (ALL_CPU, "InsufficientCpu"),
    ],
    ids=["port", "whole devices", "share of a device", "resources"],
)
async def test_claim_of_a_lost_binding_is_not_given_to_another_replica_while_its_task_may_run(
    cell: Cell, template: dict[str, Any], reason: str, *, repaired: bool, restarted: bool
) -> None:
    await cell.lead(run=True)
    await cell.node("gpus", gpus=2 if template is WHOLE_GPUS else 1)
    replica = await cell.replica(template=template)
    assert (await cell.place(replica, "gpus")).result is PlacementOutcome.ACCEPTED
    before = cell.authority.ledger.claims[f"{TENANT}/web-0.1"]
    await lose(cell, "web-0.1")
    await yield_to_loop()
    if repaired:
        await cell.authority.tick()
    if restarted:
        await cell.lead()
    held = cell.authority.ledger.claims[f"{TENANT}/web-0.1"]
    assert (held.amounts, held.devices, held.ports) == (before.amounts, before.devices, before.ports)
    other = await cell.replica("api-0", template=template)
    refused = await cell.place(other, "gpus")
    assert (refused.result, refused.reason) == (PlacementOutcome.REJECTED, reason)
    cell.check_ledger()
    await cell.authority.tick()
    await cell.acknowledge("web-0.1")
    assert (await cell.release(cell.get_replica(), FREE)).result is PlacementOutcome.ACCEPTED
    assert (await cell.place(other, "gpus")).result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_lost_binding_that_was_bound_in_a_second_step_keeps_devices_ports_and_slots(cell: Cell) -> None:
    await cell.node("gpus", gpus=1)
    replica = await cell.replica(template={**SHARED_GPU, **FIXED_PORT})
    await cell.reserve(cell.item(replica, "gpus"), bind=False)
    assert not cell.get_replica().status.placement.ports, "only a bound task uses them"
    item = BindItem(TENANT, "web-0", intent=cell.item(replica, "gpus").intent)
    await cell.authority.bind(WHO, BindRequest((item,)))
    bound = present(cell.binding("web-0.1")).spec
    await lose(cell, "web-0.1")
    await cell.authority.tick()
    order = present(cell.binding("web-0.1")).spec
    assert (order.devices, order.ports) == (bound.devices, bound.ports) and order.devices and order.ports
    assert (order.resources, order.capacity_class) == (bound.resources, bound.capacity_class)
    cell.check_ledger()


async def test_lost_binding_keeps_its_claim_while_repair_is_paused(cell: Cell) -> None:
    await placed(cell, template=FIXED_PORT)
    await lose(cell, "web-0.1")
    status = OverrideStatus(phase=ACTIVE, expires_at=micro_text(cell.clock.now() + 60.0))
    spec = OverrideSpec(kind=OverrideKind.PAUSE_REPAIR, reason="the store is being restored")
    await cell.put(Override(metadata=meta("pause"), spec=spec, status=status))
    await cell.authority.tick()
    assert (await cell.place(await cell.replica("api-0", template=FIXED_PORT))).reason == "PortInUse"


async def test_lost_binding_of_a_deleted_replica_frees_its_claim(cell: Cell) -> None:
    """No record of the task is left. The agent stops a task whose Binding and replica are gone."""
    await placed(cell, template=FIXED_PORT)
    await lose(cell, "web-0.1")
    await cell.remove(cell.get_replica())
    await cell.authority.tick()
    assert not cell.authority.ledger.claims
    assert (await cell.place(await cell.replica("api-0", template=FIXED_PORT))).result is PlacementOutcome.ACCEPTED


async def test_ports_of_a_binding_by_an_earlier_release_are_read_from_the_agents_report(cell: Cell) -> None:
    replica = await placed(cell, template=FIXED_PORT)
    older = replace(replica.status.placement, ports={}, devices=())
    report = ExecutionBlock(phase=Phase.RUNNING, attempt=1, ports={"http": 20_007})
    for execution, ports in ((None, {}), (replace(report, attempt=0), {}), (report, {"http": 20_007})):
        status = replace(replica.status, placement=older, execution=execution)
        assert stop_order(replace(replica, status=status), ()).spec.ports == ports
