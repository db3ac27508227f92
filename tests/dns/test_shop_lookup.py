"""The shop's own SRV lookup against the name server's zone, over real sockets."""

from __future__ import annotations

import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.dns.test_answers import endpoint, table_of
from tests.dns.test_messages import MANY, zone

from holdfast.dns.answers import RECORDS_MAX, resolve
from holdfast.dns.messages import Zone
from holdfast.samples.shop_dns import NoAnswer, fetch, lookup


@contextmanager
def serving(answers: Zone) -> Iterator[str]:
    """The zone at one port, over UDP and TCP."""
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams, socket.create_server(("127.0.0.1", 0)) as streams:
        port = streams.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))

        def over_udp() -> None:
            while True:
                query, sender = datagrams.recvfrom(65535)
                if not query:
                    return
                datagrams.sendto(answers.respond(query, udp=True)[0], sender)

        def over_tcp() -> None:
            while True:
                stream, _ = streams.accept()
                with stream, stream.makefile("rwb") as file:
                    head = file.read(2)
                    if not head:
                        return
                    response = answers.respond(file.read(struct.unpack(">H", head)[0]), udp=False)[0]
                    file.write(struct.pack(">H", len(response)) + response)

        threads = [threading.Thread(target=target) for target in (over_udp, over_tcp)]
        for thread in threads:
            thread.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            # An empty message ends each thread.
            with socket.socket(type=socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", port))
            socket.create_connection(("127.0.0.1", port)).close()
            for thread in threads:
                thread.join(10)


def test_lookup_returns_address_port_and_region_of_each_replica() -> None:
    with serving(zone("10.2.0.1", "fd00::1")) as server:
        found = lookup("web", "shop", server)
        assert {(t.address, t.port, t.region) for t in found} == {("10.2.0.1", 8080, "us"), ("fd00::1", 8081, "us")}
        assert lookup("absent", "shop", server) == []


def test_lookup_of_a_truncated_answer_repeats_it_over_tcp() -> None:
    with serving(zone(*MANY)) as server:
        assert len({t.address for t in lookup("web", "shop", server)}) == RECORDS_MAX


def test_lookup_without_a_name_server_says_which_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        server = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(NoAnswer, match=f"name server {server}"):
        lookup("web", "shop", server)


def test_fetch_without_setting_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DNS", raising=False)
    with pytest.raises(NoAnswer, match="next: set `dns` in the agent's configuration"):
        fetch("web", "shop", "/")


def test_fetch_skips_a_replica_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneAnswer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"replica": "web-us-1"}')

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.3", 0), OneAnswer) as replica:
        thread = threading.Thread(target=replica.serve_forever)
        thread.start()
        try:
            # Nothing listens at the address of the first replica. The second has the next port.
            table = table_of(endpoint("us", "127.0.0.2", "127.0.0.3", port=replica.server_port - 1))
            with serving(Zone("holdfast.internal", lambda name: resolve(table, name, 0))) as server:
                monkeypatch.setenv("HOLDFAST_DNS", server)
                assert fetch("web", "shop", "/") == {"replica": "web-us-1"}
        finally:
            replica.shutdown()
            thread.join(10)
