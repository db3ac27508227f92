"""Reports of nodes and tasks that neither simulations nor whole-agent tests produce."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.agent.agent_world import KeptMemory, ScriptedDriver, ScriptedProber, World, config, template, unnumbered
from tests.controllers import virtual
from tests.expected import present

from holdfast.agent.config import AgentConfig
from holdfast.agent.limits import AGENT_RESYNC_S
from holdfast.agent.node_report import NODE_REPORT_EVERY_S, NodeTraits
from holdfast.agent.status_blocks import execution_block, overcommit_message
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.agent.task_decision import TaskObservation, TaskState
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import find_condition
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus, Phase
from holdfast.store.contract import Put, Txn


def node_condition_reasons(
    traits: NodeTraits, given: AgentConfig, bound: dict[str, str] | None = None
) -> dict[str, str]:
    """The reasons of the node's conditions, by type, after an agent with these traits has settled."""
    found: dict[str, str] = {}

    async def main() -> None:
        ports = virtual.VirtualPorts()
        driver, world = ScriptedDriver(ports), World(ports)
        await world.start()
        supervisor = TaskSupervisor(
            given,
            world.agent(),
            drivers={"process": driver},
            prober=ScriptedProber(driver),
            memory=KeptMemory(),
            ports=ports,
            traits=lambda: traits,
        )
        task = asyncio.create_task(supervisor.run())
        await virtual.until(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        if bound:
            await world.bind("a", template(), resources=bound)
            await virtual.until(
                lambda: find_condition(present(world.node()).status.conditions, "Overcommitted") is not None
            )
            found["over"] = present(find_condition(present(world.node()).status.conditions, "Overcommitted")).message
            await world.request_stop("a", stop_reason="Drained")
            await virtual.until(lambda: world.binding("a").status.acknowledged_at)
            await world.free("a")
            await virtual.until(
                lambda: (
                    present(find_condition(present(world.node()).status.conditions, "Overcommitted")).status == "False"
                )
            )
        await virtual.until(lambda: not traits.isolation or present(world.node()).status.conditions)
        found.update({c.type: c.reason for c in present(world.node()).status.conditions})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.close()

    virtual.run(main)
    return found


def test_node_reports_resource_limits_condition() -> None:
    found = node_condition_reasons(NodeTraits(isolation="cgroup2"), config())
    assert found["ResourceLimitsEnforced"] == Reason.RESOURCE_LIMITS_ENFORCED
    weak = NodeTraits(isolation="rlimits", limitation="memory is not held")
    assert node_condition_reasons(weak, config())["ResourceLimitsEnforced"] == Reason.RESOURCE_LIMITS_PARTIAL


@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        (NodeTraits(isolation="cgroup2"), Reason.TASKS_ISOLATED),
        (NodeTraits(isolation="cgroup2", exposure="the agent is not root"), Reason.TASKS_NOT_ISOLATED),
        (NodeTraits(isolation="none", exposure="x", unconfirmed="task a"), Reason.END_UNCONFIRMED),
    ],
)
def test_node_reports_how_far_tasks_are_separated(traits: NodeTraits, reason: str) -> None:
    assert node_condition_reasons(traits, config())["TasksIsolated"] == reason


def test_overcommitted_node_reports_condition_until_claims_fit() -> None:
    small = msgspec.structs.replace(config(), capacity={"cpu": "1"})
    found = node_condition_reasons(NodeTraits(), small, bound={"cpu": "1500m"})
    assert "cpu by 500m" in found["over"]
    assert found["Overcommitted"] == Reason.CAPACITY_PRESENT


def test_claims_that_fit_cause_no_overcommit_message() -> None:
    assert not overcommit_message({"cpu": "1"}, [None])


def test_task_ended_without_reason_is_reported_backing_off() -> None:
    async def main() -> None:
        world = World(virtual.VirtualPorts())
        await world.start()
        binding = await world.bind("a", template())
        block = execution_block(
            binding, TaskObservation(state=TaskState.ENDED, run=1, failures=1, exit=ExitStatus()), config()
        )
        assert block is not None
        assert (block.phase, block.reason) == (Phase.BACKING_OFF, Reason.BACKING_OFF)
        await world.close()

    virtual.run(main)


def test_node_report_lost_by_cell_is_sent_again() -> None:
    """As when the cell ran an older release for a while, which rewrote the Node without unknown fields."""

    async def main() -> None:
        ports = virtual.VirtualPorts()
        driver, world = ScriptedDriver(ports), World(ports)
        await world.start()
        supervisor = TaskSupervisor(
            config(),
            world.agent(),
            drivers={"process": driver},
            prober=ScriptedProber(driver),
            memory=KeptMemory(),
            ports=ports,
            traits=lambda: NodeTraits(cached_artifacts=("model",), isolation="cgroup2"),
        )
        task = asyncio.create_task(supervisor.run())
        await virtual.until(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        first_report = present(world.node()).status.execution
        assert (first_report.cached_artifacts, first_report.isolation) == (("model",), "cgroup2")
        await ports.clock.sleep(2 * NODE_REPORT_EVERY_S)
        kind = BY_NAME["Node"]
        entry = present(world.objects.entry(kind, "", "n1"))
        less = msgspec.json.decode(entry.value)
        del less["status"]["execution"]["cachedArtifacts"], less["status"]["execution"]["isolation"]
        await world.objects.commit(kind, Txn(writes=(Put(entry.key, msgspec.json.encode(less)),)))
        assert present(world.node()).status.execution.isolation == ""
        await virtual.until(lambda: unnumbered(present(world.node()).status.execution) == unnumbered(first_report))
        revision = present(world.node()).revision
        await ports.clock.sleep(3 * AGENT_RESYNC_S)
        assert present(world.node()).revision == revision, "nothing is sent after that"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.close()

    virtual.run(main)
