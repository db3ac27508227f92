"""Values for a start: what is missing is named, and a node that cannot reach its region uses what it holds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.shim_launch import read_values
from holdfast.agent.task_config import TaskConfig
from holdfast.agent.task_memory import TaskMemory
from holdfast.model.config_references import ConfigFile, EnvValue
from holdfast.model.config_values import TaskFile, TaskValues
from holdfast.model.errors import Fault, NotFound, Unavailable
from holdfast.model.registry_login import RegistryLogin
from holdfast.model.template import Template

TEMPLATE = Template(
    env={"MODE": "own"},
    env_values=(EnvValue(name="TOKEN", secret="db", key="token"),),
    files=(ConfigFile(path="creds", secret="db"),),
)
TASK = Task(
    id="t",
    run=1,
    namespace="shop",
    replica="r",
    replica_uid="u",
    workload="w",
    binding="b",
    binding_uid="bu",
    attempt=1,
    epoch=1,
    node_epoch=1,
    template=TEMPLATE,
    env={"MODE": "own"},
)
VALUES = TaskValues(
    env={"TOKEN": b"canary", "MODE": b"from a ConfigMap"}, files=(TaskFile("creds/token", 0o400, b"canary"),)
)


class Region:
    """What the region answers next."""

    def __init__(self, *answers: TaskValues | Fault) -> None:
        self.answers = list(answers)

    async def task_values(self, node: str, tenant: str, binding: str) -> TaskValues:
        assert (node, tenant, binding) == ("n1", "shop", "b")
        answer = self.answers.pop(0)
        if isinstance(answer, Fault):
            raise answer
        return answer

    async def registry_login(self, node: str, tenant: str, binding: str) -> RegistryLogin:
        raise Unavailable("no route")


@pytest.fixture
def memory(tmp_path: Path) -> TaskMemory:
    (tmp_path / "shm").mkdir()
    return TaskMemory(tmp_path / "state", tmp_path / "shm")


def run(number: int) -> Task:
    return msgspec.structs.replace(TASK, run=number)


async def test_values_are_fetched_once_per_run_and_own_environment_wins(memory: TaskMemory, tmp_path: Path) -> None:
    config = TaskConfig("n1", Region(VALUES), memory)
    await config.fetch(TASK)
    await config.fetch(TASK)
    assert read_values(str(memory.env_file("t"))) == {b"TOKEN": b"canary"}
    work = tmp_path / "work"
    work.mkdir()
    settings = dict(config.install(TASK, work, []))
    assert settings == {"values": memory.env_file("t"), "visible": memory.files_dir("t")}
    assert (work / "creds" / "token").read_bytes() == b"canary"
    config.forget("t")
    assert not memory.holds("t")
    with pytest.raises(StartFailed, match="not in memory"):
        config.install(TASK, work, [])


async def test_missing_value_fails_the_start_with_its_reason(memory: TaskMemory) -> None:
    gap = TaskValues(reason="SecretMissing", message='Secret db: has no key "token"')
    with pytest.raises(StartFailed) as failure:
        await TaskConfig("n1", Region(gap), memory).fetch(TASK)
    assert (failure.value.reason, failure.value.message) == ("SecretMissing", 'Secret db: has no key "token"')
    assert not memory.holds("t")


async def test_restart_without_the_region_uses_the_values_that_the_node_holds(memory: TaskMemory) -> None:
    cut_off = Unavailable("no route")
    config = TaskConfig("n1", Region(cut_off, VALUES, cut_off), memory)
    with pytest.raises(StartFailed) as failure:
        await config.fetch(run(1))
    assert failure.value.reason == "ConfigUnreachable"
    await config.fetch(run(2))
    await config.fetch(run(3))
    assert read_values(str(memory.env_file("t"))) == {b"TOKEN": b"canary"}
    restarted = TaskConfig("n1", Region(cut_off), memory)
    await restarted.fetch(run(4))  # another agent process finds them too


async def test_withdrawn_binding_does_not_start(memory: TaskMemory) -> None:
    with pytest.raises(StartFailed) as failure:
        await TaskConfig("n1", Region(NotFound("gone")), memory).fetch(TASK)
    assert failure.value.reason == "NeverStarted"


async def test_node_without_tmpfs_says_so(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no writable tmpfs"):
        await TaskConfig("n1", Region(VALUES), TaskMemory(tmp_path, None)).fetch(TASK)
