"""A real HAProxy: every rendered configuration is accepted, requests reach the right replica, bounds hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from tests.dns.test_answers import endpoint, region, table_of
from tests.proxy.haproxy_program import haproxy_program

from holdfast.client.connecting import connect_async
from holdfast.dns.address_table import AddressTable
from holdfast.foundation.exit_codes import CommandError
from holdfast.foundation.ports import SystemClock, SystemPorts
from holdfast.model.endpoint import Endpoint
from holdfast.model.meta import ObjectMeta
from holdfast.model.region import HealthState
from holdfast.proxy.backends import ProxyPlan, plan_backends, removed_servers
from holdfast.proxy.entry_proxy import EntryProxy
from holdfast.proxy.haproxy_config import render
from holdfast.proxy.haproxy_process import CANDIDATE, CONFIG, HaproxyProcess, ProxyRefusal
from holdfast.proxy.settings import Hostname, HttpListener, ProxySettings, TcpListener

pytestmark = pytest.mark.timeout(120)
WEB = "web.shop.holdfast.internal"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Replica:
    """An HTTP server that answers with its name, after `delay_s`."""

    def __init__(self, name: str) -> None:
        self.name, self.delay_s, self.port = name, 0.0, 0
        self.headers: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.Response:
        self.headers = dict(request.headers)
        await asyncio.sleep(self.delay_s)
        return web.Response(text=self.name)


@contextlib.asynccontextmanager
async def replicas(*names: str) -> AsyncIterator[list[Replica]]:
    found, runners = [], []
    for name in names:
        replica = Replica(name)
        application = web.Application()
        application.router.add_route("*", "/{any:.*}", replica.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        replica.port = int(runner.addresses[0][1])
        found.append(replica)
        runners.append(runner)
    try:
        yield found
    finally:
        for runner in runners:
            await runner.cleanup()


def settings_of(http_port: int, **more: object) -> ProxySettings:
    listener = HttpListener(port=http_port, tenants=("shop",))
    return ProxySettings(**{"region": "us", "http": (listener,), "drain_seconds": 3, **more})  # type: ignore[arg-type]


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[HaproxyProcess]:
    made = HaproxyProcess(haproxy_program(), tmp_path / "proxy", SystemClock())
    made.take_lock()
    yield made
    await made.stop(1.0)
    made.release_lock()


async def load(process: HaproxyProcess, settings: ProxySettings, table: AddressTable) -> ProxyPlan:
    plan = plan_backends(settings, table)
    await process.check(render(settings, plan, drop_privileges=os.geteuid() == 0))
    process.accept()
    await (process.reload() if process.running else process.start())
    return plan


async def get(port: int, host: str = WEB, **more: str) -> tuple[int, str]:
    url, headers = f"http://127.0.0.1:{port}/", {"Host": host, **more}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as reply:
        return reply.status, await reply.text()


async def test_requests_reach_the_nearest_region_and_fail_over_by_serving_state(process: HaproxyProcess) -> None:
    port = free_port()
    async with replicas("near", "far") as (near, far):
        settings = settings_of(port)
        endpoints = endpoint("us", "127.0.0.1", port=near.port), endpoint("eu", "127.0.0.1", port=far.port)
        await load(process, settings, table_of(*endpoints, here="us"))
        assert {await get(port) for _ in range(6)} == {(200, "near")}
        lost = table_of(*endpoints, here="us", regions=(region("us", state=HealthState.LOST),))
        await load(process, settings, lost)
        assert {await get(port) for _ in range(6)} == {(200, "far")}


async def test_standby_region_answers_when_replicas_of_the_nearest_refuse(process: HaproxyProcess) -> None:
    port = free_port()
    async with replicas("far") as (far,):
        endpoints = endpoint("us", "127.0.0.1", port=free_port()), endpoint("eu", "127.0.0.1", port=far.port)
        await load(process, settings_of(port), table_of(*endpoints, here="us"))
        async with asyncio.timeout(20):
            while await get(port) != (200, "far"):
                await asyncio.sleep(0.2)


async def test_hostname_of_another_tenant_or_of_no_workload_is_not_found(process: HaproxyProcess) -> None:
    port, private = free_port(), free_port()
    async with replicas("web") as (replica,):
        listeners = (HttpListener(port=port, tenants=("other",)), HttpListener(port=private, tenants=("shop",)))
        own = Hostname(hostname="shop.example.com", workload="shop/web")
        table = table_of(endpoint("us", "127.0.0.1", port=replica.port), here="us")
        await load(process, settings_of(private, http=listeners, host=(own,)), table)
        assert await get(private) == (200, "web")
        assert await get(private, "SHOP.example.com.:80") == (200, "web")
        for host in (WEB, "shop.example.com", f"http:{private}:{WEB}", f"{private}:{WEB}", "tenants", "", "a b"):
            assert (await get(port, host))[0] in (400, 404), host


async def test_client_cannot_forge_forwarded_headers(process: HaproxyProcess) -> None:
    port = free_port()
    async with replicas("web") as (replica,):
        await load(process, settings_of(port), table_of(endpoint("us", "127.0.0.1", port=replica.port), here="us"))
        await get(port, **{"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https"})
        assert replica.headers["X-Forwarded-For"] == "127.0.0.1" and replica.headers["X-Forwarded-Proto"] == "http"


async def test_tenant_over_its_connection_limit_is_refused_and_others_are_served(process: HaproxyProcess) -> None:
    port, tcp = free_port(), free_port()
    async with replicas("web") as (replica,):
        replica.delay_s = 2.0
        flooded = endpoint("us", "127.0.0.1", port=replica.port)
        calm = Endpoint(metadata=ObjectMeta(name="web.us", namespace="calm"), spec=flooded.spec)
        listener = TcpListener(port=tcp, workload="calm/web")
        settings = settings_of(port, max_connections_per_tenant=3, tcp=(listener,))
        await load(process, settings, table_of(flooded, calm, here="us"))
        flood = [asyncio.create_task(get(port)) for _ in range(12)]
        await asyncio.sleep(0.5)
        calm_answer = asyncio.create_task(get(tcp))
        codes = sorted([status for status, _ in await asyncio.gather(*flood)])
        assert codes == [200] * 3 + [429] * 9
        assert await calm_answer == (200, "web")


async def test_reload_finishes_running_requests_and_drained_server_gets_no_new_ones(process: HaproxyProcess) -> None:
    port = free_port()
    async with replicas("one", "two") as (one, two):
        settings = settings_of(port)
        both = table_of(
            endpoint("us", "127.0.0.1", port=one.port), endpoint("eu", "127.0.0.1", port=two.port), here="us"
        )
        before = await load(process, settings, both)
        one.delay_s = 1.5
        running = asyncio.create_task(get(port))
        await asyncio.sleep(0.3)
        only_two = table_of(endpoint("eu", "127.0.0.1", port=two.port), here="us")
        gone = removed_servers(before, plan_backends(settings, only_two))
        assert len(gone) == 1 and "one" not in gone[0]
        await process.drain(gone)
        assert {await get(port) for _ in range(4)} == {(200, "two")}, "drained before the reload"
        await load(process, settings, only_two)
        assert {await get(port) for _ in range(4)} == {(200, "two")}
        assert await running == (200, "one"), "a request that had begun is answered"


async def test_configuration_that_haproxy_refuses_leaves_the_running_one(process: HaproxyProcess) -> None:
    port = free_port()
    async with replicas("web") as (replica,):
        await load(process, settings_of(port), table_of(endpoint("us", "127.0.0.1", port=replica.port), here="us"))
        with pytest.raises(ProxyRefusal, match="ALERT"):
            await process.check("frontend broken\n    bind 127.0.0.1:99999999\n")
        assert await get(port) == (200, "web")


async def test_reload_that_cannot_bind_is_refused_and_the_old_worker_serves(process: HaproxyProcess) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with replicas("web") as (replica,):
            table = table_of(endpoint("us", "127.0.0.1", port=replica.port), here="us")
            await load(process, settings_of(port), table)
            more = TcpListener(port=int(taken.getsockname()[1]), workload="shop/web")
            with pytest.raises(ProxyRefusal, match="did not start a worker"):
                await load(process, settings_of(port, tcp=(more,)), table)
            assert await get(port) == (200, "web")


def proxy_without_cells(settings: ProxySettings, folder: Path) -> EntryProxy:
    return EntryProxy(connect_async(url="https://127.0.0.1:1"), settings, haproxy_program(), folder, SystemPorts())


async def test_proxy_restarts_killed_haproxy_and_keeps_addresses_without_cells(tmp_path: Path) -> None:
    port = free_port()
    folder = tmp_path / "proxy"
    async with replicas("web") as (replica,):
        proxy = proxy_without_cells(settings_of(port), folder)
        await proxy.start()
        assert proxy.readiness() == "haproxy does not run"
        proxy.feed.table.put(endpoint("us", "127.0.0.1", port=replica.port))
        proxy.feed.listed.set()
        tasks = [asyncio.create_task(proxy.follow()), asyncio.create_task(proxy.keep_running())]
        try:
            await answers(port, "web")
            async with asyncio.timeout(10):
                while proxy.readiness():
                    await asyncio.sleep(0.05)
            killed = proxy.process.pid
            os.kill(killed, signal.SIGKILL)
            async with asyncio.timeout(30):
                while proxy.process.pid in (0, killed):
                    await asyncio.sleep(0.05)
            await answers(port, "web")
        finally:
            for task in tasks:
                task.cancel()
            await proxy.stop()
        again = proxy_without_cells(settings_of(port), folder)
        await again.start()
        try:
            await answers(port, "web")
        finally:
            await again.stop()
        assert (folder / CONFIG).exists()
        changed = settings_of(port, http=(HttpListener(port=port, tenants=("other",)),))
        narrowed = proxy_without_cells(changed, folder)
        await narrowed.start()
        assert not narrowed.process.running, "a configuration of other settings is not used again"
        await narrowed.stop()


async def test_port_in_use_is_reported_and_tried_again_until_it_is_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        async with replicas("web") as (replica,):
            proxy = proxy_without_cells(settings_of(port), tmp_path / "proxy")
            await proxy.start()
            proxy.feed.table.put(endpoint("us", "127.0.0.1", port=replica.port))
            proxy.feed.listed.set()
            following = asyncio.create_task(proxy.follow())
            try:
                async with asyncio.timeout(20):
                    while "did not start a worker" not in proxy.refusal:
                        await asyncio.sleep(0.05)
                assert proxy.readiness() == "haproxy does not run"
                taken.close()
                await answers(port, "web")
            finally:
                following.cancel()
                await proxy.stop()


async def test_refused_reload_leaves_the_configuration_of_the_next_start(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with replicas("web") as (replica,):
            listener = TcpListener(port=int(taken.getsockname()[1]), workload="shop/web")
            folder, table = tmp_path / "proxy", endpoint("us", "127.0.0.1", port=replica.port)
            first = proxy_without_cells(settings_of(port), folder)
            await first.start()
            first.feed.table.put(table)
            first.feed.listed.set()
            following = asyncio.create_task(first.follow())
            await answers(port, "web")
            following.cancel()
            good = (folder / CONFIG).read_text()
            first.process.release_lock()
            second = proxy_without_cells(settings_of(port, tcp=(listener,)), folder)
            await second.start()
            second.feed.table.put(table)
            second.feed.listed.set()
            following = asyncio.create_task(second.follow())
            try:
                async with asyncio.timeout(20):
                    while "did not start a worker" not in second.readiness():
                        await asyncio.sleep(0.05)
                assert (folder / CONFIG).read_text() == good and await get(port) == (200, "web")
            finally:
                following.cancel()
                await second.stop()


async def test_directory_that_cannot_be_written_is_reported_and_the_proxy_goes_on(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "proxy"
    async with replicas("first", "second") as (first, second):
        proxy = proxy_without_cells(settings_of(port), folder)
        await proxy.start()
        proxy.feed.table.put(endpoint("us", "127.0.0.1", port=first.port))
        proxy.feed.listed.set()
        following = asyncio.create_task(proxy.follow())
        try:
            await answers(port, "first")
            (folder / CANDIDATE).mkdir()  # no configuration can be written there
            proxy.feed.table.put(endpoint("us", "127.0.0.1", port=second.port))
            async with asyncio.timeout(20):
                while "directory" not in proxy.readiness():
                    await asyncio.sleep(0.05)
            assert (await get(port))[0] == 503, "the address that left is drained"
            (folder / CANDIDATE).rmdir()
            await answers(port, "second")
        finally:
            following.cancel()
            await proxy.stop()


async def answers(port: int, text: str) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                if await get(port) == (200, text):
                    return
            await asyncio.sleep(0.05)


async def test_haproxy_outlives_its_manager_and_the_next_one_adopts_it(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / ("long-" * 20) / "proxy"
    async with replicas("web", "new") as (replica, new):
        first = HaproxyProcess(haproxy_program(), folder, SystemClock())
        first.take_lock()
        table = table_of(endpoint("us", "127.0.0.1", port=replica.port), here="us")
        await load(first, settings_of(port), table)
        second = HaproxyProcess(haproxy_program(), folder, SystemClock())
        with pytest.raises(CommandError, match="another `holdfast proxy`"):
            second.take_lock()
        first.release_lock()
        second.take_lock()
        assert await second.adopt() and second.pid == first.pid
        await load(second, settings_of(port), table_of(endpoint("us", "127.0.0.1", port=new.port), here="us"))
        assert await get(port) == (200, "new")
        await second.stop(1.0)
        assert not second.running
