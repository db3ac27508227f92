"""systemd is told when the process is ready, and when it stops."""

from __future__ import annotations

import socket

from holdfast.runtime.lifetime import tell_supervisor


def test_systemd_is_told_where_it_asked(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        tell_supervisor("READY=1")
        assert heard.recv(100) == b"READY=1"
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    tell_supervisor("STOPPING=1")
