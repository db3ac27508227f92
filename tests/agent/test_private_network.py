"""Containers with a network of their own, with a real runtime, a real registry and slirp4netns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import eventually
from tests.agent.image_registry import Registry, free_port, program, running_registry, shell_layer
from tests.agent.test_images import image_task
from tests.agent.test_oci_driver import TOOLS, text
from tests.requirements import skip_or_fail

from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.container_network import ContainerNetwork
from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.images import ImageCache
from holdfast.agent.drivers.oci import OciDriver
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.sessions import forward_target
from holdfast.agent.task_users import RuntimeUser, TaskUsers
from holdfast.foundation import container_runtime
from holdfast.foundation.ports import SystemClock
from holdfast.model.reasons import Reason
from holdfast.model.task_programs import InitTask, Sidecar
from holdfast.model.template import (
    DriverName,
    NetworkMode,
    Port,
    Protocol,
    Template,
    listening_ports,
    required_driver,
    validate_template,
)

LOOP = "while true; do sleep 0.05; done"
INTERFACES = "grep -c : /proc/net/dev"


@pytest.fixture(autouse=True)
def tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{TOOLS}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def shell(registry: Registry) -> str:
    return registry.push("shell:1", [shell_layer()], Entrypoint=["/bin/sh", "-c"], Env=["PATH=/bin"])


def crun(folder: Path) -> str:
    """crun. Where cgroup v1 and v2 both have controllers it runs nothing: there it gets a view without v2."""
    found = program("crun")
    if not container_runtime.has_controllers_on_both():
        return found
    (folder / "runtime").mkdir()
    script = folder / "runtime" / "crun"
    hide = f"umount {container_runtime.CGROUPS}/unified"
    script.write_text(f"""#!/bin/sh\nexec unshare -m sh -c '{hide}; exec {found} "$@"' crun "$@"\n""")
    script.chmod(0o755)
    return str(script)


@pytest.fixture(params=["runc", "crun"])
async def driver(tmp_path: Path, registry: Registry, request: pytest.FixtureRequest) -> AsyncIterator[OciDriver]:
    if why := container_runtime.private_network_refusal():
        skip_or_fail(f"no private networks: {why}; next: make tools")
    as_runtime = RuntimeUser()
    users = TaskUsers(tmp_path / "oci", registry=tmp_path / "registry")
    inner = ProcessDriver(tmp_path / "oci" / "tasks", SystemClock(), users=as_runtime)
    cache = ImageCache(tmp_path / "images", registry.allowed())
    network = ContainerNetwork("127.0.0.1")
    runtime = crun(tmp_path) if request.param == "crun" else program(request.param)
    made = OciDriver(
        inner, tmp_path / "oci", runtime, users, (), images=cache, runtime_user=as_runtime, network=network
    )
    yield made
    for name in ("a", "b"):
        await made.stop(name, 0.0)
    await made.close()


def private(
    name: str, registry: Registry, digest: str, script: str, port: int = 0, *, inside: int = 0, **more: Any
) -> Task:
    reference = registry.reference("shell:1")
    ports = (Port("http", 0, container_port=inside),) if port else ()
    made = image_task(name, reference, digest, args=(script,), network=NetworkMode.PRIVATE, ports=ports, **more)
    given = {"http": port} if port else {}
    env = {**made.env, "PORT": str(inside or port)}
    return msgspec.structs.replace(made, ports=given, env=env)


async def run(driver: OciDriver, wanted: Task) -> None:
    await driver.fetch(wanted)
    await driver.start(wanted)


async def page(port: int) -> bytes:
    def get() -> bytes:
        url = f"http://127.0.0.1:{port}/own.txt"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as reply:
            return bytes(reply.read())
        return b""

    async with asyncio.timeout(20):
        while not (found := await asyncio.to_thread(get)):
            await asyncio.sleep(0.1)
    return found


def slirp_processes(folder: Path) -> list[int]:
    """slirp4netns processes whose working directory is below the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"slirp4netns" in (entry / "cmdline").read_bytes().split(b"\0")[0]:
                environment = (entry / "cmdline").read_bytes()
                if str(folder) in os.readlink(entry / "cwd") or b"network.sock" in environment:
                    found.append(int(entry.name))
    return found


async def test_assigned_port_is_forwarded_and_the_network_is_its_own(
    driver: OciDriver, registry: Registry, shell: str
) -> None:
    port = free_port()
    script = f"cd /tmp; echo here >own.txt; {INTERFACES}; httpd -p $PORT -h /tmp; {LOOP}"
    await run(driver, private("a", registry, shell, script, port))
    assert await page(port) == b"here\n"
    assert "2" in text(driver, "a").split(), "loopback and one interface, whatever the node has"
    inside = await driver.execute("a", ("cat", "/proc/net/dev"), 10.0)
    assert "tap0" in inside.output and "eth0" not in inside.output, "a command in the container sees its network"
    assert "nameserver 10.0.2.3" in (await driver.execute("a", ("cat", "/etc/resolv.conf"), 10.0)).output


async def test_two_containers_use_the_same_port_inside(driver: OciDriver, registry: Registry, shell: str) -> None:
    ports = free_port(), free_port()
    for name, port in zip("ab", ports, strict=True):
        script = f"cd /tmp; echo {name} >own.txt; httpd -p 80 -h /tmp && httpd -p $PORT -h /tmp && echo both; {LOOP}"
        await run(driver, private(name, registry, shell, script, port))
    assert [await page(port) for port in ports] == [b"a\n", b"b\n"]
    assert "both" in text(driver, "a") and "both" in text(driver, "b"), "port 80 was free in each"


async def test_port_of_the_node_leads_to_the_container_port(driver: OciDriver, registry: Registry, shell: str) -> None:
    ports = free_port(), free_port()
    for name, port in zip("ab", ports, strict=True):
        script = f"cd /tmp; echo {name} >own.txt; httpd -p 80 -h /tmp; {LOOP}"
        await run(driver, private(name, registry, shell, script, port, inside=80))
    assert [await page(port) for port in ports] == [b"a\n", b"b\n"]
    wanted = private("a", registry, shell, LOOP, ports[0], inside=80)
    assert [forward_target(wanted, number) for number in (80, ports[0], 81)] == [ports[0], ports[0], None]


def test_container_port_that_differs_from_the_port_needs_a_network_of_its_own() -> None:
    web = Port("http", 8080, container_port=80)
    host = Template(image="r.example.com/a:1", driver=DriverName.OCI, ports=(web,))
    (cause,) = validate_template("t", host)
    assert cause.field == "t.ports[0].containerPort" and "set network: Private" in cause.message
    assert not list(validate_template("t", msgspec.structs.replace(host, network=NetworkMode.PRIVATE)))
    same = msgspec.structs.replace(host, ports=(Port("http", 80, container_port=80),))
    assert not list(validate_template("t", same))
    chosen = msgspec.structs.replace(host, ports=(Port("http", container_port=80),))
    assert [c.field for c in validate_template("t", chosen)] == ["t.ports[0].containerPort"]
    twice = msgspec.structs.replace(
        host,
        network=NetworkMode.PRIVATE,
        ports=(web, Port("dns", 0, Protocol.UDP, 80), Port("other", 0, container_port=80)),
    )
    assert [c.field for c in validate_template("t", twice)] == ["t.ports[2]"], "a UDP port has its own numbers"
    assert listening_ports(twice, {"http": 8080, "other": 1, "dns": 2}) == {"http": 80, "dns": 80, "other": 80}


async def test_container_reaches_other_machines_but_not_the_loopback_of_its_node(
    driver: OciDriver, registry: Registry, shell: str
) -> None:
    node = own_address()
    async with answering("0.0.0.0") as everywhere, answering("127.0.0.1") as loopback:
        script = (
            f"echo | busybox nc -w 3 {node} {everywhere} && echo out; "
            f"echo | busybox nc -w 3 127.0.0.1 {loopback} || echo no-loopback; "
            f"echo | busybox nc -w 3 10.0.2.2 {loopback} || echo no-gateway; echo finished; {LOOP}"
        )
        await run(driver, private("a", registry, shell, script))
        await eventually(lambda: "finished" in text(driver, "a"), within_s=30)
        said = text(driver, "a")
    assert "no-loopback" in said and "no-gateway" in said and "out" in said.split(), said


def own_address() -> str:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            skip_or_fail("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@contextlib.asynccontextmanager
async def answering(host: str) -> AsyncIterator[int]:
    """The port of a server that closes every connection."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), host, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
    with socket.socket() as server:
        server.bind((host, 0))
        server.listen(8)
        yield int(server.getsockname()[1])


async def test_programs_of_a_task_share_its_network(driver: OciDriver, registry: Registry, shell: str) -> None:
    port = free_port()
    count = ("/bin/sh", "-c", f"{INTERFACES}")
    serve = ("/bin/sh", "-c", "cd /tmp; echo side >own.txt; httpd -f -p 8099 -h /tmp")
    fetch = f"sleep 1; busybox wget -q -O - http://127.0.0.1:8099/own.txt; {LOOP}"
    wanted = private(
        "a", registry, shell, fetch, port,
        init_tasks=(InitTask("count", command=count),), sidecars=(Sidecar("side", command=serve),),
    )  # fmt: skip
    await run(driver, wanted)
    assert await eventually(lambda: "side" in text(driver, "a"), within_s=30)


async def test_network_ends_with_the_task_and_its_loss_stops_the_task(
    driver: OciDriver, registry: Registry, shell: str, tmp_path: Path
) -> None:
    port = free_port()
    before = set(slirp_processes(tmp_path))
    await run(driver, private("a", registry, shell, LOOP, port))
    (first,) = set(slirp_processes(tmp_path)) - before
    await driver.stop("a", 0.0)
    assert await eventually(lambda: first not in slirp_processes(tmp_path))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    await run(driver, private("b", registry, shell, LOOP, port))
    (second,) = set(slirp_processes(tmp_path)) - before
    os.kill(second, signal.SIGKILL)
    ended = await asyncio.wait_for(driver.next_exit(), 20)
    assert ended.task_id == "b" and ended.exit.reason == Reason.NETWORK_FAILED


async def test_port_taken_on_the_node_fails_the_start_with_its_number(
    driver: OciDriver, registry: Registry, shell: str
) -> None:
    with listening("127.0.0.1") as taken:
        wanted = private("a", registry, shell, LOOP, taken)
        await driver.fetch(wanted)
        with pytest.raises(StartFailed, match=str(taken)):
            await driver.start(wanted)


async def test_node_that_cannot_refuses_with_the_reason(
    driver: OciDriver, registry: Registry, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = private("a", registry, shell, LOOP)
    await driver.fetch(wanted)
    monkeypatch.setattr(container_runtime, "TUN_DEVICE", Path("/dev/net/absent"))
    with pytest.raises(StartFailed, match=r"network Private: this node cannot make one .*absent is missing") as failure:
        await driver.start(wanted)
    assert failure.value.reason == Reason.DRIVER_MISSING


def test_node_names_the_capability_only_where_it_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := container_runtime.private_network_refusal():
        skip_or_fail(f"no private networks: {why}; next: make tools")
    base = AgentConfig(name="n", region="r", zone="z", state_dir="/nowhere", drivers=("process", "oci"))
    assert "oci-network" in base.listed_drivers
    ipv6 = msgspec.structs.replace(base, address="2001:db8::1")
    assert "oci-network" not in ipv6.listed_drivers and "IPv6" in ipv6.private_network_refusal()
    without = msgspec.structs.replace(base, drivers=("process",))
    assert "oci-network" not in without.listed_drivers
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert base.private_network_refusal() == "the agent is not root"
    assert "oci-network" not in base.listed_drivers


def test_template_with_a_private_network_needs_a_container_and_a_node_that_can() -> None:
    plain = Template(command=("a",), network=NetworkMode.PRIVATE)
    assert [cause.field for cause in validate_template("t", plain)] == ["t.network"]
    image = msgspec.structs.replace(plain, image="r.example.com/a:1")
    assert required_driver(image) == "oci-image-network"
    assert required_driver(msgspec.structs.replace(image, network=NetworkMode.HOST)) == "oci-image"
    frozen = msgspec.structs.replace(plain, network=NetworkMode.HOST, read_only_root=True)
    assert [cause.field for cause in validate_template("t", frozen)] == ["t.readOnlyRoot"]
    udp = msgspec.structs.replace(image, ports=(Port("dns", 0, Protocol.UDP),))
    assert not list(validate_template("t", udp))
