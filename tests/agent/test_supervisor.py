"""The supervisor with scripted tasks in virtual time, against the real gate, store and lease book."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from tests.agent.agent_world import (
    Behaviour,
    KeptMemory,
    ScriptedDriver,
    ScriptedProber,
    World,
    config,
    template,
    unnumbered,
)
from tests.controllers import virtual
from tests.expected import present

from holdfast.agent.limits import AGENT_RESYNC_S
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.agent.task_decision import RESTARTS_ON_FAILURE_MAX
from holdfast.model import limits, times
from holdfast.model.artifact import Artifact
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node
from holdfast.model.probe import HttpProbe, Probe
from holdfast.model.replica import Phase, PlacementBlock
from holdfast.model.template import Port, Probes, RestartPolicy
from holdfast.model.workload import Exclusivity
from holdfast.model.writes import Create, SetStatus

PROBED = {"ports": (Port(name="http"),)}


class Scene:
    """One region and one node. Agents come and go; the driver's tasks stay."""

    def __init__(self) -> None:
        self.ports = virtual.VirtualPorts()
        self.driver = ScriptedDriver(self.ports)
        self.memory = KeptMemory()
        self.world = World(self.ports)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[TaskSupervisor]:
        supervisor = TaskSupervisor(
            config(),
            self.world.agent(),
            drivers={"process": self.driver},
            prober=ScriptedProber(self.driver),
            memory=self.memory,
            ports=self.ports,
        )
        task = asyncio.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def node(self) -> Node | None:
        return self.world.node()

    def acknowledged(self, name: str) -> str:
        return self.world.binding(name).status.acknowledged_at

    def reconciled(self) -> bool:
        node = self.node()
        return node is not None and node.status.execution.reconciled

    async def until(self, fact: Callable[[], object], within_s: float = 60.0) -> None:
        await virtual.until(fact, within_s=within_s)


def play(body: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Scene()
        await scene.world.start()
        try:
            await body(scene)
        finally:
            await scene.world.close()

    virtual.run(main)


def test_agent_registers_and_becomes_reconciled() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            node = s.node()
            assert node is not None
            assert node.spec.zone == "z-a" and node.spec.drivers == ("process",)
            assert node.status.execution.epoch == 1
            await asyncio.sleep(30)
        epochs = [epoch for _, epoch in s.world.renewal_service.requests]
        assert epochs[0] == 0 and set(epochs[1:]) == {1}
        assert 5 <= len(epochs) <= 10

    play(body)


def test_task_is_started_reported_stopped_and_acknowledged() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template(), ports={})
            await s.until(lambda: s.world.ready("a"))
            block = s.world.replica("a").status.execution
            assert block is not None
            assert (block.phase, block.attempt, block.restarts) == (Phase.RUNNING, 1, 0)
            assert block.pid and block.started_at and block.ready_since
            reports = [
                w for batch in s.world.commits for w in batch if isinstance(w, SetStatus) and w.kind == "Replica"
            ]
            assert len(reports) == 1, "starting and ready are merged into one write"

            await s.world.request_stop("a", stop_reason="Drained")
            await s.until(lambda: s.world.binding("a").status.acknowledged_at)
            status = s.world.binding("a").status
            assert status.phase is Phase.STOPPED and present(status.last_exit).signal == "SIGTERM"
            assert s.driver.running() == []
            assert s.world.phase("a") == Phase.STOPPED

            await s.world.free("a")
            await s.until(lambda: not s.driver.found)

    play(body)


def test_slow_artifacts_and_a_slow_start_are_reported_apart() -> None:
    async def body(s: Scene) -> None:
        def starting_because(name: str) -> str:
            block = s.world.replica(name).status.execution
            return str(block.reason) if block is not None and block.phase is Phase.STARTING else ""

        async with s.agent():
            await s.until(s.reconciled)
            s.driver.acts["a"] = Behaviour(fetch_s=20, start_s=20)
            s.driver.acts["b"] = Behaviour(start_s=20)
            data = (Artifact(name="data", source="https://example.com/data"),)
            await s.world.bind("a", template(artifacts=data))
            await s.world.bind("b", template())
            await s.until(lambda: starting_because("a") and starting_because("b"), within_s=10)
            assert (starting_because("a"), starting_because("b")) == ("FetchingArtifacts", "Started")
            await s.until(lambda: starting_because("a") == "Started", within_s=30)
            await s.until(lambda: s.world.ready("a"))

    play(body)


def test_binding_stopped_before_start_is_acknowledged_as_never_started() -> None:
    async def body(s: Scene) -> None:
        await s.world.bind("a", template())
        await s.world.request_stop("a")
        async with s.agent():
            await s.until(lambda: s.world.binding("a").status.acknowledged_at)
            status = s.world.binding("a").status
            assert (status.phase, present(status.last_exit).reason) == (Phase.STOPPED, "NeverStarted")
            assert s.driver.log == []

    play(body)


def test_failing_task_restarts_with_growing_backoff() -> None:
    async def body(s: Scene) -> None:
        s.driver.acts["a"] = Behaviour(run_s=0.5, code=1)
        async with s.agent():
            await s.until(s.reconciled)
            began = s.ports.clock.monotonic()
            await s.world.bind("a", template())
            await s.until(lambda: "start a run 5" in s.driver.log)
            assert 1 + 2 + 4 + 8 < s.ports.clock.monotonic() - began < 20
            await s.until(lambda: present(s.world.replica("a").status.execution).restarts == 4)
            await s.until(lambda: s.world.phase("a") == Phase.BACKING_OFF)
            block = present(s.world.replica("a").status.execution)
            assert present(block.last_exit).code == 1 and "restarts" in block.message

    play(body)


def test_batch_task_ends_as_succeeded_or_failed_for_good() -> None:
    async def body(s: Scene) -> None:
        s.driver.acts["good"] = Behaviour(run_s=2, code=0)
        s.driver.acts["bad"] = Behaviour(run_s=0.1, code=3)
        s.driver.acts["once"] = Behaviour(run_s=0.1, code=3)
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("good", template(restart_policy=RestartPolicy.ON_FAILURE))
            await s.world.bind("bad", template(restart_policy=RestartPolicy.ON_FAILURE))
            await s.world.bind("once", template(restart_policy=RestartPolicy.NEVER))
            for name, phase in (("good", Phase.SUCCEEDED), ("once", Phase.FAILED), ("bad", Phase.FAILED)):
                await s.until(partial(s.acknowledged, name), within_s=600)
                assert s.world.binding(name).status.phase is phase
                assert s.world.phase(name) == phase
            runs = [line for line in s.driver.log if line.startswith("start bad")]
            assert len(runs) == RESTARTS_ON_FAILURE_MAX + 1
            before = len(s.driver.log)
            await asyncio.sleep(400)
            assert len(s.driver.log) == before, "a task that ended permanently is not restarted"

    play(body)


def test_missing_command_is_reported_and_retried() -> None:
    async def body(s: Scene) -> None:
        s.driver.acts["a"] = Behaviour(fails="CommandNotFound")
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.phase("a") == Phase.BACKING_OFF)
            assert present(s.world.replica("a").status.execution).reason == "CommandNotFound"
            s.driver.acts["a"].fails = ""
            await s.until(lambda: s.world.ready("a"))

    play(body)


def probed(**kinds: Probe) -> Probes:
    return Probes(**kinds)


def check(**more: float) -> Probe:
    return Probe(http=HttpProbe(path="/"), **more)  # type: ignore[arg-type]


def test_readiness_follows_probe_and_failed_liveness_restarts_task() -> None:
    async def body(s: Scene) -> None:
        s.driver.acts["a"] = Behaviour(well=False)
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template(probes=probed(readiness=check()), **PROBED), ports={"http": 20001})
            await s.until(lambda: s.world.phase("a") == Phase.RUNNING)
            assert not s.world.ready("a")
            s.driver.acts["a"].well = True
            await s.until(lambda: s.world.ready("a"))
            s.driver.acts["a"].well = False
            await s.until(lambda: not s.world.ready("a"))
            block = present(s.world.replica("a").status.execution)
            assert block.reason == "BecameUnready" and "503" in block.message

            s.driver.acts["b"] = Behaviour(well=True)
            await s.world.bind("b", template(probes=probed(liveness=check()), **PROBED), ports={"http": 20002})
            await s.until(lambda: s.world.ready("b"))
            s.driver.acts["b"].well = False
            await s.until(lambda: "stop b run 1" in s.driver.log)
            s.driver.acts["b"].well = True
            await s.until(lambda: "start b run 2" in s.driver.log)
            await s.until(lambda: s.world.ready("b"))
            block = present(s.world.replica("b").status.execution)
            assert present(block.last_exit).reason == "LivenessFailed" and block.restarts == 1

    play(body)


def test_failed_startup_probe_restarts_task_before_other_probes_run() -> None:
    async def body(s: Scene) -> None:
        s.driver.acts["a"] = Behaviour(well=False)
        async with s.agent():
            await s.until(s.reconciled)
            probes = probed(startup=check(failure_threshold=5), liveness=check(failure_threshold=1))
            await s.world.bind("a", template(probes=probes, **PROBED), ports={"http": 20001})
            await s.until(lambda: s.world.phase("a") == Phase.STARTING)
            await s.until(lambda: "stop a run 1" in s.driver.log)
            await s.until(lambda: present(s.world.replica("a").status.execution).last_exit is not None)
            block = present(s.world.replica("a").status.execution)
            assert (block.phase, present(block.last_exit).reason) == (Phase.BACKING_OFF, "StartupFailed")

    play(body)


def test_fenced_agent_stops_tasks_and_registers_under_new_epoch() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
            fenced = s.world.renewal_service.fence("n1")
            await s.until(lambda: s.driver.running() == [])
            await s.until(lambda: present(s.node()).status.execution.epoch == fenced + 1 and s.reconciled())
            # The binding of the fenced epoch is acknowledged, never started again.
            await s.until(lambda: s.world.binding("a").status.acknowledged_at)
            assert s.world.binding("a").status.phase is Phase.STOPPED
            await s.world.bind("b", template(), node_epoch=fenced + 1)
            await s.until(lambda: s.world.ready("b"))
            assert s.driver.log == ["start a run 1", "stop a run 1", "start b run 1"]

    play(body)


def test_renewal_of_fenced_epoch_is_not_accepted() -> None:
    """The Node object records the fence; the renewal endpoint has lost it."""

    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
            epoch = present(s.node()).status.execution.epoch
            await s.world.fence(epoch)
            await s.until(lambda: s.driver.running() == [], within_s=2 * AGENT_RESYNC_S)
            await s.until(lambda: present(s.node()).status.execution.epoch == epoch + 1 and s.reconciled())
            await s.world.bind("b", template(), node_epoch=epoch + 1)
            await s.until(lambda: s.world.ready("b"))

    play(body)


def test_restarted_agent_keeps_epoch_and_reports_no_unready_task() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template(probes=probed(readiness=check()), **PROBED), ports={"http": 20001})
            await s.until(lambda: s.world.ready("a"))
        before = unnumbered(s.world.replica("a").status.execution)
        assert s.driver.running() == ["a"], "tasks outlive their agent"
        commits_before = len(s.world.commits)
        async with s.agent():
            await asyncio.sleep(10)
            assert unnumbered(s.world.replica("a").status.execution) == before, (
                "an agent restart does not look like a task restart"
            )
            assert present(s.node()).status.execution.epoch == 1
            unready = [
                w
                for batch in s.world.commits[commits_before:]
                for w in batch
                if isinstance(w, SetStatus) and w.kind == "Replica" and not w.blocks["execution"].ready
            ]
            assert unready == []

    play(body)


def test_node_is_reconciled_only_after_zombies_are_stopped() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("z", template())
            await s.until(lambda: s.world.ready("z"))
        await s.world.free("z")
        s.world.renewal_service.fence("n1")
        async with s.agent():
            await s.until(lambda: present(s.node()).status.execution.epoch == 2 and s.reconciled())
            assert s.driver.running() == []

    play(body)


def test_partitioned_agent_keeps_tasks_running_and_reports_later() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.world.bind("x", template(), exclusive=Exclusivity())
            await s.until(lambda: s.world.ready("a") and s.world.ready("x"))
            s.world.renewal_service.away = True
            await s.until(lambda: s.driver.running() == ["a"])  # the exclusive task ends with the lease
            await asyncio.sleep(60)
            assert s.driver.running() == ["a"]
            s.world.renewal_service.away = False
            await s.until(lambda: s.driver.running() == ["a", "x"])  # not fenced in the meantime: it may run again
            await s.until(lambda: s.world.ready("x") and present(s.world.replica("x").status.execution).restarts == 1)

    play(body)


def test_task_whose_binding_the_region_lost_keeps_running() -> None:
    """The region deletes a Binding after the acknowledged end of its task. A missing one is no order to stop."""

    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.world.bind("x", template(), exclusive=Exclusivity())
            await s.until(lambda: s.world.ready("a") and s.world.ready("x"))
        await s.world.free("a")
        await s.world.free("x")
        async with s.agent():
            await asyncio.sleep(3 * AGENT_RESYNC_S)
            assert s.driver.running() == ["a", "x"], "the lease of the exclusive task is renewed"
            assert "2 tasks have no Binding" in present(s.node()).status.execution.message
            s.world.renewal_service.away = True
            await s.until(lambda: s.driver.running() == ["a"])  # it ends with the lease, with or without a Binding
            s.world.renewal_service.away = False
            s.world.renewal_service.fence("n1")
            await s.until(lambda: s.driver.running() == [])

    play(body)


def test_task_whose_binding_was_seen_deleted_is_stopped() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
            await s.world.free("a")
            await s.until(lambda: s.driver.running() == [])

    play(body)


def test_lost_binding_written_again_is_acknowledged_only_when_its_task_has_stopped() -> None:
    """The new Binding has another uid. The agent must not report that it runs nothing while the old task runs."""

    async def body(s: Scene) -> None:
        s.driver.acts["a"] = Behaviour(stop_s=20.0)
        async with s.agent():
            await s.until(s.reconciled)
            lost = await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
        await s.world.free("a")
        async with s.agent():
            await asyncio.sleep(AGENT_RESYNC_S)
            assert s.driver.running() == ["a"]
            spec = msgspec.structs.replace(
                lost.spec, desired=DesiredRunState.STOP, stop_reason="ClaimLost", stop_grace_seconds=30.0
            )
            meta = ObjectMeta(name=lost.metadata.name, namespace=lost.metadata.namespace)
            await s.world.write("authority", Create(Binding(metadata=meta, spec=spec)))
            assert s.world.binding("a").uid != lost.uid
            while not s.acknowledged("a"):
                await asyncio.sleep(0.5)
                assert not (s.acknowledged("a") and s.driver.running())
            assert s.driver.running() == [] and s.world.phase("a") == "Stopped"

    play(body)


def test_fence_by_another_cell_stops_no_task() -> None:
    """A region whose store was lost fences every epoch that it does not know."""

    async def body(s: Scene) -> None:
        service = s.world.renewal_service
        service.identity = "first"
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.world.bind("x", template(), exclusive=Exclusivity())
            await s.until(lambda: s.world.ready("a") and s.world.ready("x"))
        service.identity = "another"
        service.fence("n1")
        async with s.agent():
            await asyncio.sleep(2 * AGENT_RESYNC_S)
            assert s.driver.running() == ["a"], "the exclusive task ends with the lease"
            service.identity = "first"
            await s.until(lambda: s.driver.running() == [])  # the known cell is obeyed

    play(body)


def test_confirmed_new_cell_is_obeyed() -> None:
    async def body(s: Scene) -> None:
        service = s.world.renewal_service
        service.identity = "first"
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
            service.identity = "another"
            fenced = service.fence("n1")
            await asyncio.sleep(60)
            assert s.driver.running() == ["a"]
            service.confirms_deletion = True
            await s.until(lambda: s.driver.running() == [])
            await s.until(lambda: present(s.node()).status.execution.epoch == fenced + 1)

    play(body)


def test_confirmed_new_cell_with_a_lower_incarnation_is_obeyed() -> None:
    """A restored cell has the clock as its incarnation, a cell that was created again has 1."""

    async def body(s: Scene) -> None:
        service = s.world.renewal_service
        service.identity, service.incarnation = "first", 27_000_000
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
            service.identity, service.incarnation = "another", 1
            service.confirms_deletion = True
            fenced = service.fence("n1")
            await s.until(lambda: s.driver.running() == [])
            await s.until(lambda: present(s.node()).status.execution.epoch == fenced + 1)

    play(body)


def test_node_that_joined_a_mistaken_cell_follows_the_restored_one() -> None:
    """The node has no tasks, so it has nothing to protect from a cell that may have lost its records."""

    async def body(s: Scene) -> None:
        service = s.world.renewal_service
        service.identity, service.incarnation = "mistaken", 5
        async with s.agent():
            await s.until(s.reconciled)
            service.identity, service.incarnation = "restored", 2
            fenced = service.fence("n1")
            await s.until(lambda: present(s.node()).status.execution.epoch == fenced + 1)
            await s.world.bind("a", template(), node_epoch=fenced + 1)
            await s.until(lambda: s.world.ready("a"))
            service.identity = "mistaken"
            service.fence("n1")
            await asyncio.sleep(60)
            assert s.driver.running() == ["a"], "it has a task of the restored cell now, which must not stop"

    play(body)


def test_exclusive_task_is_stopped_before_its_node_can_be_fenced() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("x", template(), exclusive=Exclusivity())
            await s.until(lambda: s.world.ready("x"))
            s.world.renewal_service.away = True
            began = s.ports.clock.monotonic()
            await s.until(lambda: s.driver.running() == [])
            assert s.ports.clock.monotonic() - began < s.world.renewal_service.book.grace_s - limits.KILL_DURATION_MAX_S

    play(body)


def test_provisional_task_stops_at_run_until() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            until = times.micro_text(s.ports.clock.now() + 20)
            await s.world.bind("p", template(), run_until=until)
            await s.until(lambda: s.world.ready("p"))
            await asyncio.sleep(15)
            assert s.driver.running() == ["p"]
            await asyncio.sleep(6)
            assert s.driver.running() == []
            assert s.world.binding("p").status.phase is Phase.STOPPED

    play(body)


def test_refused_report_does_not_block_others() -> None:
    async def body(s: Scene) -> None:
        async with s.agent():
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            b = await s.world.bind("b", template())
            # The region moved b's replica to another node between the bind and the first report.
            moved = PlacementBlock(attempt=2, node="n2", binding="b.2")
            await s.world.write(
                "authority",
                SetStatus("Replica", Key("acme", "b"), b.spec.intent.replica_uid, blocks={"placement": moved}),
            )
            await s.until(lambda: s.world.ready("a"))
            assert s.world.replica("b").status.execution is None

    play(body)


def test_stop_work_stops_all_tasks_and_reports_them() -> None:
    async def body(s: Scene) -> None:
        async with s.agent() as supervisor:
            await s.until(s.reconciled)
            await s.world.bind("a", template())
            await s.until(lambda: s.world.ready("a"))
            await supervisor.stop_work()
            assert s.driver.running() == [] and s.world.phase("a") == Phase.STOPPED
        async with s.agent():
            await s.until(lambda: s.world.ready("a"))

    play(body)
