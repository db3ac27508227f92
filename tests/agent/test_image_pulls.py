"""Pulls that are slow, cut off, or interrupted by kill -9: nothing half done ever counts as an image."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import eventually
from tests.agent.image_registry import Registry, file, layer, running_registry
from tests.agent.test_images import image_task, refusal

from holdfast.agent.drivers.images import ImageCache

BIG = layer([file("data", os.urandom(3_000_000))])
PULL = """
import asyncio, sys
from pathlib import Path
import msgspec
from holdfast.agent.drivers.contract import Task
from holdfast.agent.drivers.images import ImageCache
from holdfast.registry.allowed_registries import AllowedRegistries
task, allowed, root = sys.argv[1:]
async def pull():
    cache = ImageCache(Path(root), msgspec.json.decode(allowed, type=AllowedRegistries))
    await cache.fetch(msgspec.json.decode(task, type=Task))
asyncio.run(pull())
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


class Gateway(ThreadingHTTPServer):
    """Passes requests to a registry. A large blob stops halfway, until `released` is set; `cut` ends it there."""

    daemon_threads = True

    def __init__(self, behind: Registry, *, cut: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind, self.cut = behind, cut
        self.released = threading.Event()
        self.requests: list[str] = []


class _Passing(BaseHTTPRequestHandler):
    server: Gateway

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        connection = http.client.HTTPConnection(self.server.behind.address, timeout=30)
        connection.request("GET", self.path, headers={"Accept": self.headers.get("Accept", "*/*")})
        response = connection.getresponse()
        data = response.read()
        self.send_response(response.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            if len(data) < 1_000_000:
                self.wfile.write(data)
                return
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if self.server.cut:
                return
            self.server.released.wait(60)
            self.wfile.write(data[len(data) // 2 :])


@contextlib.contextmanager
def gateway(behind: Registry, *, cut: bool = False) -> Iterator[tuple[Gateway, Registry]]:
    server = Gateway(behind, cut=cut)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, Registry(f"127.0.0.1:{server.server_address[1]}", behind.root)
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


async def test_slow_pull_shows_its_progress_and_other_tasks_wait_for_it(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("slow:1", [BIG])
    with gateway(registry) as (server, slow):
        cache = ImageCache(tmp_path, slow.allowed())
        wanted = [image_task(name, slow.reference("slow:1"), digest) for name in ("a", "b")]
        pulls = [asyncio.create_task(cache.fetch(each)) for each in wanted]
        progress = await eventually(lambda: "layer 1 of 1" in (said := cache.progress(wanted[1])) and said)
        assert " of 3.0 MB" in progress
        server.released.set()
        await asyncio.gather(*pulls)
        assert sum("/blobs/" in path for path in server.requests) == 2, "configuration and layer, each once"
        assert cache.progress(wanted[0]) == ""


async def test_slow_pulls_of_one_tenant_delay_no_other(registry: Registry, tmp_path: Path) -> None:
    with gateway(registry) as (server, slow):
        cache = ImageCache(tmp_path, slow.allowed())
        pulls = []
        for number in range(4):
            digest = registry.push(f"many{number}:1", [layer([file("data", os.urandom(2_000_000))])])
            wanted = image_task(f"t{number}", slow.reference(f"many{number}:1"), digest)
            pulls.append(asyncio.create_task(cache.fetch(wanted)))
        await eventually(lambda: sum("/blobs/" in path for path in server.requests) >= 4)
        digest = registry.push("other:1", [layer([file("small", b"x")])])
        other = msgspec.structs.replace(image_task("o", slow.reference("other:1"), digest), namespace="other")
        async with asyncio.timeout(30):
            await cache.fetch(other)
        assert not any(pull.done() for pull in pulls)
        server.released.set()
        await asyncio.gather(*pulls)


async def test_cut_connection_fails_the_pull_and_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("cut:1", [BIG])
    with gateway(registry, cut=True) as (_, cut):
        cache = ImageCache(tmp_path, cut.allowed())
        failure = await refusal(cache, image_task("a", cut.reference("cut:1"), digest))
    assert failure.reason == "ImagePullFailed" and "ended early" in failure.message
    assert not list(tmp_path.iterdir())


async def test_withdrawn_task_does_not_wait_for_its_pull(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("withdrawn:1", [BIG])
    with gateway(registry) as (_, slow):
        cache = ImageCache(tmp_path, slow.allowed())
        wanted = image_task("a", slow.reference("withdrawn:1"), digest)
        pull = asyncio.create_task(cache.fetch(wanted))
        await eventually(lambda: "layer" in cache.progress(wanted))
        pull.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await pull
        assert time.monotonic() - began < 10


async def test_pull_killed_halfway_is_begun_again(registry: Registry, tmp_path: Path) -> None:
    digest, cached = registry.push("killed:1", [BIG]), tmp_path / "images"
    with gateway(registry) as (_, slow):
        wanted = image_task("a", slow.reference("killed:1"), digest)
        arguments = [msgspec.json.encode(each).decode() for each in (wanted, slow.allowed())]
        process = subprocess.Popen([sys.executable, "-c", PULL, *arguments, str(cached)])
        try:
            await eventually(lambda: any(cached.glob("part-*/layer")), within_s=60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    assert any(cached.glob("part-*")), "the killed pull left its part"
    cache = ImageCache(cached, registry.allowed())
    assert not any(cached.iterdir()) and cache.images() == ()
    again = image_task("a", registry.reference("killed:1"), digest)
    await cache.fetch(again)
    assert (cache.root_of(again)[0] / "data").stat().st_size == 3_000_000
