"""Volumes of tasks with real mounts: sizes that hold, paths that hostile tenants write, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import TENANT, eventually, task
from tests.agent.test_process_driver import log_text
from tests.requirements import skip_or_fail

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.volume_images import choose_scratch_limit
from holdfast.agent.drivers.volumes import HostPathRule, TaskVolumes
from holdfast.agent.shim_checks import VOLUME_DEPTH_MAX, measure
from holdfast.agent.task_users import TaskUsers
from holdfast.foundation.ports import SystemClock
from holdfast.model.host_paths import find_host_path_rule
from holdfast.model.task_programs import InitTask
from holdfast.model.template_volume import HostPathVolume, Medium, ScratchVolume, TemplateVolume

ID = f"t{os.getpid()}"
"""Processes without a user of their own are told by this mark, so tests that run in parallel need different ones."""
MIB = 1024 * 1024


def scratch(size: str = "8Mi", *, medium: Medium = Medium.DISK, path: str = "/data", **more: Any) -> TemplateVolume:
    return TemplateVolume(name="data", mount_path=path, scratch=ScratchVolume(size, medium), **more)


def host(path: Path | str, *, at: str = "/data", read_only: bool = False) -> TemplateVolume:
    return TemplateVolume(name="data", mount_path=at, read_only=read_only, host_path=HostPathVolume(str(path)))


class Node:
    """A process driver as an agent of root makes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        first = 1_700_000_000 + os.getpid() * 64  # tests that run in parallel must not end each other's users
        self.users = TaskUsers(root / "state", uids=(first, first + 63))
        self.drivers: list[ProcessDriver] = []

    def driver(self, limit: str = "measured", rules: tuple[HostPathRule, ...] = ()) -> ProcessDriver:
        volumes = TaskVolumes(can_mount=self.users.makes_views, limit=limit, rules=rules, hidden=(str(self.root),))
        made = ProcessDriver(self.root / "state" / "tasks", SystemClock(), users=self.users, volumes=volumes)
        self.drivers.append(made)
        return made


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    if os.geteuid() != 0:
        skip_or_fail("only root can mount; next: run as root")
    made = Node(tmp_path)
    if not made.users.makes_views:
        skip_or_fail("the kernel gives no mount namespaces")
    yield made
    for driver in made.drivers:
        for name in list(driver._live):
            await driver.stop(name, 0.0)
        await driver.close()


async def said(driver: ProcessDriver, script: str, *volumes: TemplateVolume, **more: Any) -> str:
    """The output of a task that runs the script and ends."""
    made = task(ID, "sh", "-c", f"{script}; echo over", volumes=volumes, **more)
    await driver.start(made)
    ended = await driver.next_exit()
    text = await eventually(lambda: log_text(driver, ID))
    assert isinstance(text, str) and ended.exit.reason in ("Exited", "VolumeFull"), ended
    return "\n".join(line.split(" ", 2)[2] for line in text.splitlines())


@pytest.mark.parametrize("path", ["/data", "/srv/app/data", "/var/lib/holdfast-test/deep/data"])
async def test_scratch_is_private_and_writable_at_a_path_the_node_lacks(node: Node, path: str) -> None:
    text = await said(
        node.driver(),
        f"echo hello > {path}/f; cat $HOLDFAST_VOLUME_DATA/f; echo $HOLDFAST_VOLUME_DATA",
        scratch(path=path),
    )
    assert text.splitlines()[:2] == ["hello", path]
    assert not Path(path).exists(), "the mount point is in the view of the task only"


async def test_task_with_a_volume_sees_the_rest_of_the_node(node: Node) -> None:
    text = await said(node.driver(), "ls -d /etc /usr/bin /proc/self /dev/null; id -u; ls /root", scratch())
    lines = text.splitlines()
    assert lines[:4] == ["/dev/null", "/etc", "/proc/self", "/usr/bin"] and lines[4] != "0", text


async def test_scratch_in_memory_is_limited_by_the_kernel(node: Node) -> None:
    script = "dd if=/dev/zero of=/data/f bs=1M count=16 2>&1; stat -f -c %T /data; wc -c < /data/f"
    text = await said(node.driver(), script, scratch("4Mi", medium=Medium.MEMORY))
    assert "No space left" in text and "tmpfs" in text and str(4 * MIB) in text


async def test_scratch_image_is_limited_by_its_file_system(node: Node) -> None:
    if choose_scratch_limit("auto", can_mount=True) != "image":
        skip_or_fail("this node cannot mount images")
    text = await said(
        node.driver("image"), "dd if=/dev/zero of=/data/f bs=1M count=16 2>&1; ls -a /data", scratch("8Mi")
    )
    assert "No space left" in text and "lost+found" not in text


async def test_measured_scratch_that_is_too_large_stops_the_task(node: Node) -> None:
    driver = node.driver()
    script = "dd if=/dev/zero of=/data/f bs=1M count=16; exec sleep 300"
    await driver.start(task(ID, "sh", "-c", script, volumes=(scratch("8Mi"),)))
    ended = await driver.next_exit()
    assert ended.exit.reason == "VolumeFull" and ended.exit.code, ended
    assert "volume data" in ended.exit.message and "8Mi" in ended.exit.message


async def test_scratch_is_shared_by_programs_and_empty_for_the_next_run(node: Node) -> None:
    for limit, medium in (("measured", Medium.DISK), ("measured", Medium.MEMORY)):
        driver = node.driver(limit)
        for run in (1, 2):
            first = InitTask(name="i", command=("sh", "-c", "ls /data; echo made > /data/f"))
            made = task(
                f"{ID}{medium}", "cat", "/data/f", run=run, volumes=(scratch(medium=medium),), init_tasks=(first,)
            )
            await driver.start(made)
            await driver.next_exit()
        assert log_text(driver, f"{ID}{medium}").count("made") == 2
        init_log = node.root / "state" / "tasks" / f"{ID}{medium}" / "program-i.log"
        assert init_log.read_text() == "", "a run finds its scratch empty"


async def test_volume_read_only_is_enforced(node: Node) -> None:
    text = await said(node.driver(), "touch /data/x 2>&1", scratch(read_only=True))
    assert "Read-only file system" in text


async def test_forgotten_task_leaves_no_volume_and_no_mount(node: Node) -> None:
    driver = node.driver("image" if choose_scratch_limit("auto", can_mount=True) == "image" else "measured")
    await said(driver, "mkdir -p /data/a/b; touch /data/a/b/c", scratch())
    await driver.forget(ID)
    folder = node.root / "state" / "tasks" / ID
    assert not (folder / "volumes").exists() and not (folder / "volume-images").exists()
    assert str(node.root) not in Path("/proc/self/mountinfo").read_text()


async def test_killed_shim_leaves_no_mount(node: Node) -> None:
    driver = node.driver()
    await driver.start(task(ID, "sleep", "300", volumes=(scratch(medium=Medium.MEMORY),)))
    os.kill(driver._live[ID].shim_pid, 9)
    await driver.next_exit()
    assert str(node.root) not in Path("/proc/self/mountinfo").read_text()


async def test_node_without_mounts_names_the_directory_and_refuses_memory(tmp_path: Path) -> None:
    driver = ProcessDriver(tmp_path / "tasks", SystemClock())
    text = await said(driver, "echo x > $HOLDFAST_VOLUME_DATA/f; echo $HOLDFAST_VOLUME_DATA", scratch())
    assert str(tmp_path / "tasks" / ID / "volumes" / "data") in text
    with pytest.raises(StartFailed) as refusal:
        await driver.start(task("m", "true", volumes=(scratch(medium=Medium.MEMORY),)))
    assert refusal.value.reason == "VolumeUnavailable" and "next:" in refusal.value.message
    await driver.close()


# --- hostPath ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "f").write_text("content\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("PRIVATE\n")
    for path in (folder, folder / "in", tmp_path):
        path.chmod(0o755)
    return folder


def rule(path: Path, *, read_only: bool = True, tenants: tuple[str, ...] = (TENANT,)) -> HostPathRule:
    return HostPathRule(path=str(path), read_only=read_only, tenants=tenants)


async def test_allowed_host_path_is_mounted_read_only(node: Node, shared: Path) -> None:
    driver = node.driver(rules=(rule(shared),))
    text = await said(driver, "cat /data/f; touch /data/x 2>&1", host(shared / "in", read_only=True))
    assert text.startswith("content") and "Read-only" in text
    await driver.forget(ID)
    assert (shared / "in" / "f").read_text() == "content\n", "nothing of the node is removed with the task"


@pytest.mark.parametrize(
    ("volume", "tenants"),
    [
        (lambda root: host("/etc", read_only=True), (TENANT,)),
        (lambda root: host(root / "shared", read_only=True), ("other",)),
        (lambda root: host(root / "shared", read_only=True), ()),
        (lambda root: host(root / "shared"), (TENANT,)),
        (lambda root: host(root / "shared-2", read_only=True), (TENANT,)),
        (lambda root: host(f"{root}/shared/../secret", read_only=True), (TENANT,)),
        (lambda root: host(f"{root}/shared/./in", read_only=True), (TENANT,)),
    ],
)
async def test_host_path_outside_the_rules_is_refused(
    node: Node, shared: Path, volume: Any, tenants: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "shared-2").mkdir()
    driver = node.driver(rules=(rule(shared, tenants=tenants),))
    with pytest.raises(StartFailed) as refusal:
        await driver.start(task(ID, "true", volumes=(volume(tmp_path),)))
    assert refusal.value.reason == "HostPathNotAllowed"


@pytest.mark.parametrize("link", ["link", "link/below"])
async def test_link_below_an_allowed_path_is_not_followed(node: Node, shared: Path, link: str, tmp_path: Path) -> None:
    (tmp_path / "secret" / "below").mkdir()
    (shared / "link").symlink_to(tmp_path / "secret")
    driver = node.driver(rules=(rule(shared),))
    with pytest.raises(StartFailed) as refusal:
        await driver.start(task(ID, "cat", "/data/key", volumes=(host(shared / link, read_only=True),)))
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("path", ["/usr", "/etc", "/proc/1", "/tmp/x", "/dev/shm", "data", "/a/../b", "/"])
async def test_agent_refuses_a_mount_path_that_admission_would(node: Node, path: str) -> None:
    with pytest.raises(StartFailed) as refusal:
        await node.driver().start(task(ID, "true", volumes=(scratch(path=path),)))
    assert refusal.value.reason == "VolumeUnavailable"


async def test_volume_must_not_cover_the_agent(node: Node) -> None:
    for path in (str(node.root), str(node.root / "state" / "x"), str(node.root.parent)):
        if path.startswith("/tmp"):
            continue  # refused by the rule of mount paths already
        with pytest.raises(StartFailed):
            await node.driver().start(task(ID, "true", volumes=(scratch(path=path),)))
    driver = ProcessDriver(node.root / "other", SystemClock(), volumes=TaskVolumes(hidden=("/opt/agent/lib",)))
    for path in ("/opt/agent", "/opt/agent/lib", "/opt/agent/lib/x"):
        with pytest.raises(StartFailed):
            await driver.start(task(ID, "true", volumes=(scratch(path=path),)))


def test_longest_rule_that_names_the_tenant_decides() -> None:
    rules = (HostPathRule("/a", True, ("*",)), HostPathRule("/a/b", False, ("x",)))
    found = find_host_path_rule(rules, "x", "/a/b/c")
    assert found is not None and not found.read_only
    assert find_host_path_rule(rules, "y", "/a/b/c") == rules[0]
    assert find_host_path_rule(rules, "x", "/ab") is None


# --- measuring -----------------------------------------------------------------------------------------------------


def test_measurement_counts_blocks_without_following_links(tmp_path: Path) -> None:
    volume = tmp_path / "v"
    (volume / "d").mkdir(parents=True)
    (volume / "d" / "f").write_bytes(b"x" * MIB)
    (tmp_path / "outside").write_bytes(b"x" * 8 * MIB)
    (volume / "link").symlink_to(tmp_path / "outside")
    (volume / "up").symlink_to("..")
    assert MIB <= measure(str(volume), 100 * MIB) < 2 * MIB
    assert measure(str(volume), MIB // 2) > MIB // 2


def test_measurement_of_too_deep_volume_counts_as_full(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(VOLUME_DEPTH_MAX + 1):
        os.mkdir("d", dir_fd=here)
        lower = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = lower
    os.close(here)
    assert measure(str(tmp_path), 1 << 40) > 1 << 40


def test_task_record_with_volumes_is_read_back() -> None:
    made = task(ID, "true", volumes=(scratch(), host("/srv/x", at="/x")))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Task) == made
