"""Notifications to systemd: readiness, stopping and watchdog keep-alives."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from holdfast.controllers.lifetime import notify_systemd, notify_watchdog


def test_notify_systemd_sends_state_to_notify_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify_systemd("READY=1")
        assert receiver.recv(100) == b"READY=1"
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify_systemd("STOPPING=1")


async def test_watchdog_keepalive_stops_while_loop_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        loop = asyncio.get_running_loop()
        telling = asyncio.create_task(notify_watchdog())
        for _ in range(3):
            assert await asyncio.wait_for(loop.sock_recv(receiver, 100), 5) == b"WATCHDOG=1"
        time.sleep(0.3)  # the loop hangs
        with pytest.raises(BlockingIOError):
            receiver.recv(100)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        for name, value in (("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "0")):
            monkeypatch.setenv(name, value)
            await asyncio.wait_for(notify_watchdog(), 1)
