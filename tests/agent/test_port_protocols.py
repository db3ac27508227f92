"""The agent's check of ports before a start, with real sockets: TCP and UDP ports of one number are different ports."""

from __future__ import annotations

import socket

import pytest

from holdfast.agent.ports_in_use import find_port_in_use


@pytest.mark.parametrize(("kind", "udp_is_taken"), [(socket.SOCK_STREAM, False), (socket.SOCK_DGRAM, True)])
def test_port_is_in_use_only_for_the_protocol_that_listens(kind: socket.SocketKind, udp_is_taken: bool) -> None:
    with socket.socket(type=kind) as other:
        other.bind(("127.0.0.1", 0))
        if not udp_is_taken:
            other.listen()
        port = other.getsockname()[1]
        assert find_port_in_use({"p": port}, udp=("p",)) == (("p", port) if udp_is_taken else None)
        assert find_port_in_use({"p": port}) == (None if udp_is_taken else ("p", port))
