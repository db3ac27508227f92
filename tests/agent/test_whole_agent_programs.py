"""The complete agent with programs around the main task: reports, restarts with back-off, adoption, logs."""

from __future__ import annotations

from pathlib import Path

from tests.agent.agent_world import TENANT, World, eventually, template
from tests.agent.test_whole_agent import agent, nothing_left, world
from tests.expected import present

from holdfast.agent import logs
from holdfast.model.replica import ExecutionBlock, Phase
from holdfast.model.task_programs import InitTask, Sidecar
from holdfast.model.template_volume import ScratchVolume, TemplateVolume

__all__ = ["nothing_left", "world"]


def execution(world: World) -> ExecutionBlock:
    return world.replica("a").status.execution or ExecutionBlock(phase=Phase.STARTING)


async def test_agent_reports_programs_adopts_them_and_acknowledges_their_end(world: World, tmp_path: Path) -> None:
    script = "echo preparing; while ! test -e gate; do sleep 0.05; done; echo made > $HOLDFAST_VOLUME_DATA/f"
    made = template(
        "sh",
        "-c",
        "cat $HOLDFAST_VOLUME_DATA/f; exec sleep 300",
        init_tasks=(InitTask(name="prepare", command=("sh", "-c", script)),),
        sidecars=(Sidecar(name="beside", command=("sleep", "300")),),
        volumes=(TemplateVolume(name="data", mount_path="/data", scratch=ScratchVolume("8Mi")),),
    )
    async with agent(world, tmp_path):
        await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        assert present(world.node()).status.execution.scratch_limit in ("image", "measured")
        await world.bind("a", made)
        await eventually(lambda: execution(world).reason == "Initializing")
        assert execution(world).message == "init task prepare (1 of 1) is running" and not execution(world).ready
    # The agent ends while the init task runs; the next one adopts the run.
    async with agent(world, tmp_path):
        (work,) = (tmp_path / "tasks").glob("*/work")
        (work / "gate").touch()
        await eventually(lambda: world.ready("a"))
        await eventually(
            lambda: [one.state.value for one in execution(world).programs] == ["Ended", "Running", "Running"]
        )
        pid = execution(world).pid
        await eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"))
        (found,) = logs.find_task_logs(tmp_path / "tasks", TENANT, "a")
        assert any("made" in line.text for line in logs.tail(present(found.of_program("work")), 10))
        assert any("preparing" in line.text for line in logs.tail(present(found.of_program("prepare")), 10))
        assert found.of_program("../x") is None
        await world.request_stop("a")
        await eventually(lambda: world.binding("a").status.acknowledged_at)
        assert world.binding("a").status.phase is Phase.STOPPED and not Path(f"/proc/{pid}").exists()


async def test_agent_restarts_a_run_whose_init_task_failed(world: World, tmp_path: Path) -> None:
    script = "echo x >> count; test $(wc -l < count) -ge 2"
    made = template("sleep", "300", init_tasks=(InitTask(name="flaky", command=("sh", "-c", script)),))
    async with agent(world, tmp_path, stop_work=True):
        await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        await world.bind("a", made)
        await eventually(lambda: execution(world).phase is Phase.BACKING_OFF)
        assert execution(world).reason == "InitTaskFailed" and "init task flaky (1 of 1)" in execution(world).message
        await eventually(lambda: world.ready("a"))
        assert execution(world).restarts == 1 and present(execution(world).last_exit).reason == "InitTaskFailed"


async def test_programs_of_a_task_share_its_working_directory(world: World, tmp_path: Path) -> None:
    """The state is below /tmp here, which is private to the task: each program must get the directory mounted again."""
    made = template(
        "sh",
        "-c",
        "cat from-init; exec sleep 300",
        init_tasks=(InitTask(name="prepare", command=("sh", "-c", "echo written by init > from-init")),),
    )
    async with agent(world, tmp_path, stop_work=True):
        await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
        await world.bind("a", made)
        await eventually(lambda: world.ready("a"))
        (found,) = logs.find_task_logs(tmp_path / "tasks", TENANT, "a")
        await eventually(lambda: list(logs.tail(present(found.of_program("work")), 10)))
        assert [line.text for line in logs.tail(present(found.of_program("work")), 10)] == ["written by init"]
