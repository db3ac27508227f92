"""Values from Secrets and ConfigMaps in containers: environment and files, in memory only, with a real runtime."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import eventually
from tests.agent.image_registry import Registry, running_registry, shell_layer
from tests.agent.test_image_tasks import LOOP, shell_task
from tests.agent.test_oci_driver import runc
from tests.requirements import skip_or_fail

from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.images import ImageCache
from holdfast.agent.drivers.oci import OciDriver
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.task_config import ContainerConfig
from holdfast.agent.task_memory import TaskMemory, find_tmpfs
from holdfast.agent.task_users import RuntimeUser, TaskUsers
from holdfast.foundation.ports import SystemClock
from holdfast.model.config_references import ConfigFile, EnvValue
from holdfast.model.config_values import TaskFile, TaskValues
from holdfast.model.registry_login import RegistryLogin
from holdfast.model.task_programs import InitTask

CANARY = "canary-5f1c7"
FILES = (ConfigFile(path="/etc/app", secret="db"), ConfigFile(path="conf/one.txt", config_map="settings", key="one"))
ENV = (EnvValue(name="TOKEN", secret="db", key="token"), EnvValue(name="FROM", config_map="settings", key="from"))


class Region:
    """Answers with the values of the moment."""

    def __init__(self) -> None:
        self.token, self.one = CANARY.encode(), b"first"

    async def task_values(self, node: str, tenant: str, binding: str) -> TaskValues:
        files = (TaskFile("etc/app/token", 0o400, self.token, True), TaskFile("conf/one.txt", 0o440, self.one, True))
        return TaskValues(env={"TOKEN": self.token, "FROM": b"values", "SET": b"values"}, files=files)

    async def registry_login(self, node: str, tenant: str, binding: str) -> RegistryLogin:
        return RegistryLogin()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def shell(registry: Registry) -> str:
    return registry.push("shell:1", [shell_layer()], Env=["FROM=image", "PATH=/bin"], WorkingDir="/srv", User="app")


@pytest.fixture
async def made(tmp_path: Path, registry: Registry) -> AsyncIterator[tuple[OciDriver, ContainerConfig, Region]]:
    if not runc() or os.geteuid() != 0:
        skip_or_fail("runc is missing, or this is not root; next: make tools")
    region, as_runtime = Region(), RuntimeUser()
    values = ContainerConfig("n1", region, TaskMemory(tmp_path, find_tmpfs()))
    users = TaskUsers(tmp_path / "oci", registry=tmp_path / "registry")
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock(), users=as_runtime, config=values)
    cache = ImageCache(tmp_path / "images", registry.allowed())
    driver = OciDriver(inner, tmp_path / "oci", runc(), users, (), images=cache, runtime_user=as_runtime, values=values)
    yield driver, values, region
    await driver.stop("a", 0.0)
    await driver.forget("a")
    await driver.close()


def files_with(folder: Path, text: str) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if text.encode() in path.read_bytes()]


async def test_container_gets_values_and_nothing_of_them_is_on_disk(
    made: tuple[OciDriver, ContainerConfig, Region], registry: Registry, shell: str, tmp_path: Path
) -> None:
    driver, values, region = made
    init = InitTask(name="first", command=("sh", "-c", 'test -n "$TOKEN" && cat /etc/app/token >/dev/null'))
    wanted = shell_task(
        "a", registry, shell, command=("sh", "-c", LOOP), env_values=ENV, files=FILES, init_tasks=(init,)
    )
    wanted = msgspec.structs.replace(wanted, env={"SET": "template"})
    await driver.fetch(wanted)
    await driver.start(wanted)

    async def shown(*command: str) -> str:
        return (await driver.execute("a", command, 10.0)).output

    await eventually(lambda: (p := driver.programs("a")) is not None and p.pid)
    assert await shown("sh", "-c", "echo $TOKEN $FROM $SET") == f"{CANARY} values template"
    assert await shown("cat", "/etc/app/token") == CANARY and await shown("cat", "/srv/conf/one.txt") == "first"
    assert (await driver.execute("a", ("sh", "-c", "echo x > /etc/app/token"), 10.0)).code != 0, "read-only"
    assert files_with(tmp_path, CANARY) == []

    region.token, region.one = b"canary-next", b"second and longer"
    await values._refresh(wanted)
    assert await shown("cat", "/etc/app/token") == "canary-next"
    assert await shown("cat", "/srv/conf/one.txt") == "second and longer", "a file that is mounted alone is rewritten"
    region.one = b"short"
    await values._refresh(wanted)
    assert await shown("cat", "/srv/conf/one.txt") == "short"
    assert await shown("sh", "-c", "echo $TOKEN") == CANARY, "the environment of a process does not change"

    await driver.stop("a", 0.0)
    await driver.forget("a")
    assert values.runtime_dir("a") is None and values.bundle_dir("a") is None


async def test_value_that_cannot_be_an_environment_variable_is_named(
    made: tuple[OciDriver, ContainerConfig, Region], registry: Registry, shell: str
) -> None:
    driver, _, region = made
    region.token = b"\xff\xfe"
    wanted = shell_task("a", registry, shell, command=("sh", "-c", LOOP), env_values=ENV, files=FILES)
    await driver.fetch(wanted)
    with pytest.raises(StartFailed) as failure:
        await driver.start(wanted)
    assert failure.value.reason == "ConfigUnusable" and "TOKEN" in failure.value.message


async def test_file_is_not_mounted_over_the_systems_own(
    made: tuple[OciDriver, ContainerConfig, Region], registry: Registry, shell: str
) -> None:
    driver, _, _ = made
    hostile = (ConfigFile(path="proc/self", secret="db"),)
    wanted = shell_task("a", registry, shell, command=("sh", "-c", LOOP), working_dir="/", files=hostile)
    await driver.fetch(wanted)
    with pytest.raises(StartFailed, match="must not be at or below /proc"):
        await driver.start(wanted)
