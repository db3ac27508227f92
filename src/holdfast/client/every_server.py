"""Runs a task for every server of a cell, for connections that each of its servers needs, and follows new servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.client.http import HttpClient
from holdfast.foundation.ports import Clock
from holdfast.foundation.tasks import cancel_and_wait

# Interval at which a new server of the cell is noticed.
SERVERS_CHECK_EVERY_S = 2.0


class EveryServer:
    """`serve` runs with a client of one server alone, for as long as `client` knows the server. It must not end."""

    def __init__(self, client: HttpClient, serve: Callable[[HttpClient], Awaitable[None]], clock: Clock) -> None:
        self._client = client
        self._serve = serve
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Connects when it runs."""

    async def stop(self) -> None:
        await cancel_and_wait(*self._running.values())
        self._running.clear()

    async def run(self) -> None:
        try:
            while True:
                for url in self._client.urls:
                    if url not in self._running:
                        self._running[url] = asyncio.create_task(self._run_one(url), name=f"server {url}")
                for url in [url for url in self._running if url not in self._client.urls]:
                    await cancel_and_wait(self._running.pop(url))
                for task in self._running.values():
                    if task.done():
                        task.result()  # raises what ended it
                await self._clock.sleep(SERVERS_CHECK_EVERY_S)
        finally:
            await self.stop()

    async def _run_one(self, url: str) -> None:
        client = self._client.of_server(url)
        try:
            await self._serve(client)
        finally:
            await self._client.drop_server_client(client)
