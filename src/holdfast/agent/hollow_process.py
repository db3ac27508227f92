"""The process of `holdfast hollow`: many hollow nodes on one client, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal

from holdfast.agent.hollow import HollowConfig, HollowHost
from holdfast.client.http import HttpClient
from holdfast.foundation.ports import SystemPorts


async def run_hollow_nodes(config: HollowConfig, *, url: str, ca: str, cert: str, key: str) -> None:
    """A signal stops all nodes at once, like a power failure."""
    gc.set_threshold(50_000, 20, 100)
    ports = SystemPorts()
    client = HttpClient(url, ports, cell=config.region, ca=ca, cert=cert, key=key)
    running = asyncio.ensure_future(HollowHost(config, client, ports).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        await client.close()
