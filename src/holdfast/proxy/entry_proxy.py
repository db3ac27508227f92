"""The process `holdfast proxy`: keeps HAProxy running, and its configuration in step with the serving addresses.

- An address that is withdrawn is drained in every worker at once, before the new configuration is checked and loaded.
- A configuration that HAProxy refuses changes nothing: the running one stays, and readiness reports it.
- If no cell answers, the last configuration stays. After a restart it is used again if the settings are the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.client.holdfast_async import AsyncHoldfast
from holdfast.dns.address_table import AddressTable
from holdfast.dns.endpoint_feed import EndpointFeed
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.proxy.backends import ProxyPlan, plan_backends, removed_servers
from holdfast.proxy.haproxy_config import render, settings_mark
from holdfast.proxy.haproxy_process import CONFIG, HaproxyProcess, ProxyRefusal
from holdfast.proxy.settings import ProxySettings
from holdfast.proxy.status_server import StatusServer

CHECK_EVERY_S = 1.0
"""Without a change the addresses are compared this often: those of a silent region expire by time."""
SETTLE_S = 0.05
"""Changes that arrive together are loaded together."""
RELOAD_MIN_S = 0.5
"""Shortest time between two reloads. Each leaves a worker that lives until its connections end, so this and
`drain_seconds` bound their number. Drains are not delayed."""
REFUSED_AGAIN_S = 5.0
"""A configuration that HAProxy refused is tried again after this time: a port that was in use may be free by then."""
RESTART_FIRST_S, RESTART_MAX_S = 0.2, 15.0
HEALTHY_AFTER_S = 30.0
"""A process that ran for this long is restarted without delay."""
ALL_ADDRESSES_S = 15.0
"""Time for all cells to answer a proxy that serves by its last configuration. After that, the known addresses are
loaded."""

_log = structlog.get_logger()


class EntryProxy:
    def __init__(
        self, client: AsyncHoldfast, settings: ProxySettings, program: str, folder: Path, ports: Ports
    ) -> None:
        self._settings, self._folder, self._ports = settings, folder, ports
        self._table = AddressTable(settings.region, ports.clock)
        self.feed = EndpointFeed(client, settings.region, self._table, ports)
        self.process = HaproxyProcess(program, folder, ports.clock)
        self._plan = ProxyPlan((), ())
        self._loaded = ""
        self._refused_text, self._refused_at_s = "", float("-inf")
        self.refusal = "no configuration yet: no cell has answered"
        """Why the newest configuration is not in use; empty: it is."""

    def readiness(self) -> str:
        """Empty if the proxy serves the newest configuration, else the reason."""
        return self.refusal if self.process.running else "haproxy does not run"

    async def start(self) -> None:
        """Adopts a running process, or starts one with the last configuration if the settings have not changed."""
        self.process.take_lock()
        path = self._folder / CONFIG
        last = path.read_text(encoding="utf-8") if path.exists() else ""
        if await self.process.adopt():
            self._loaded = last
            return
        if last.startswith(settings_mark(self._settings) + "\n"):
            try:
                await self.process.check_current()
                await self._start_process()
                self._loaded = last
            except ProxyRefusal as error:
                _log.warning("proxy_last_configuration_unusable", error=str(error))

    async def _start_process(self) -> None:
        metrics.PROXY_STARTS.inc()
        await self.process.start()

    async def follow(self) -> None:
        """Loads every change of the serving addresses."""
        await self.feed.listed.wait()
        if self._loaded:
            await self._await_all_addresses()
        last_reload_s = float("-inf")
        while True:
            self.feed.changed.clear()
            metrics.PROXY_LAST_CONTACT.set(self.feed.last_contact_s)
            began_s = self._ports.clock.monotonic()
            plan = plan_backends(self._settings, self._table)
            text = render(self._settings, plan, drop_privileges=os.geteuid() == 0)
            if text == self._loaded:
                self._plan, self.refusal = plan, ""
            elif self._is_due(text, began_s):
                if gone := removed_servers(self._plan, plan):
                    await self.process.drain(gone)
                await self._ports.clock.sleep(max(0.0, last_reload_s + RELOAD_MIN_S - self._ports.clock.monotonic()))
                await self._load(text, plan)
                last_reload_s = self._ports.clock.monotonic()
                metrics.PROXY_UPDATE_DURATION.observe(last_reload_s - began_s)
            try:
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self.feed.changed.wait()
                await self._ports.clock.sleep(SETTLE_S)
            except TimeoutError:
                continue

    def _is_due(self, text: str, now_s: float) -> bool:
        if text == self._refused_text:
            return now_s - self._refused_at_s >= REFUSED_AGAIN_S
        return True

    async def _await_all_addresses(self) -> None:
        """The last configuration is in use. One with the addresses of some cells only would take away the standby
        region. Without the global cell the own region's addresses must do after a time."""
        try:
            async with asyncio.timeout(ALL_ADDRESSES_S):
                await self.feed.complete.wait()
        except TimeoutError:
            _log.warning("proxy_addresses_incomplete", waited_s=ALL_ADDRESSES_S)

    async def _load(self, text: str, plan: ProxyPlan) -> None:
        result = "invalid"
        try:
            await self.process.check(text)
            self.process.accept()
            result = "failed"
            if self.process.running:
                await self.process.reload()
            else:
                await self._start_process()
        except (ProxyRefusal, OSError) as error:
            self.refusal, self._refused_text, self._refused_at_s = str(error), text, self._ports.clock.monotonic()
            if result == "failed" and self._loaded:
                self._restore()
            metrics.PROXY_RELOADS.labels(result).inc()
            _log.error("proxy_configuration_refused", error=str(error), result=result)
            return
        self._loaded, self._plan, self.refusal, self._refused_text = text, plan, "", ""
        metrics.PROXY_RELOADS.labels("applied").inc()
        backends = (*plan.http, *plan.tcp)
        metrics.PROXY_BACKENDS.set(len(backends))
        metrics.PROXY_SERVERS.set(sum(len(backend.servers) for backend in backends))
        metrics.PROXY_OMITTED.labels("backends").set(plan.omitted)
        metrics.PROXY_OMITTED.labels("addresses").set(plan.refused)
        _log.info("proxy_configuration_applied", backends=len(backends), pid=self.process.pid)

    def _restore(self) -> None:
        """A restart must not use the configuration that was refused."""
        try:
            self.process.restore(self._loaded)
        except OSError as error:
            _log.error("proxy_configuration_not_restored", error=str(error))

    async def keep_running(self) -> None:
        """Restarts the process when it has exited, with the configuration that it had."""
        backoff = Backoff(self._ports.random, first_s=RESTART_FIRST_S, max_s=RESTART_MAX_S)
        while True:
            metrics.PROXY_RUNNING.set(self.process.running)
            if not self._loaded:
                await self._ports.clock.sleep(CHECK_EVERY_S)
                continue
            began_s = self._ports.clock.monotonic()
            await self.process.exited.wait()
            metrics.PROXY_RUNNING.set(0)
            if self._ports.clock.monotonic() - began_s > HEALTHY_AFTER_S:
                backoff.reset()
            await self._ports.clock.sleep(backoff.next_s())
            if not self.process.running:
                try:
                    await self._start_process()
                except (ProxyRefusal, OSError) as error:
                    _log.error("proxy_not_started", error=str(error))

    async def stop(self) -> None:
        await self.process.stop(float(self._settings.drain_seconds))
        self.process.release_lock()


async def run_entry_proxy(
    client: AsyncHoldfast,
    settings: ProxySettings,
    *,
    program: str,
    folder: Path,
    ports: Ports,
    announce: Callable[[], None],
) -> None:
    """Serves until SIGTERM or SIGINT. Then HAProxy accepts no more connections and finishes the open ones."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    proxy = EntryProxy(client, settings, program, folder, ports)
    status = StatusServer(settings.status, proxy.readiness)
    await proxy.start()
    tasks: list[asyncio.Task[None]] = []
    try:
        await status.start()
        tasks = [asyncio.create_task(work()) for work in (proxy.feed.run, proxy.follow, proxy.keep_running)]
        stop = asyncio.create_task(stopped.wait())
        announce()
        _log.info("entry_proxy_started", region=settings.region)
        done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a task that ended by itself has failed
    finally:
        await cancel_and_wait(*tasks)
        if stopped.is_set():  # after a failure of this process HAProxy goes on, and the next one adopts it
            await proxy.stop()
        await status.close()
        await client.close()
    _log.info("entry_proxy_stopped")
