"""Serving addresses while cells do not answer: the client of the commands against real TLS servers."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.address_source import AddressSource
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError
from holdfast.identity.certificates import issue, make_ca

WEST, EAST = ({"region": region, "replica": f"web-{region}-0", "address": "127.0.0.1"} for region in ("west", "east"))


class CellServer(http.server.ThreadingHTTPServer):
    """Lists these addresses, or answers 503. Without a server, connections are refused."""

    listed: tuple[dict[str, Any], ...] = ()
    is_overloaded = False


class Handler(http.server.BaseHTTPRequestHandler):
    server: CellServer

    def do_GET(self) -> None:
        is_list = self.path.startswith("/endpoints/")
        body: dict[str, Any] = {"workloads": {"web": self.server.listed}} if is_list else {"metadata": {}, "items": []}
        data = json.dumps(body).encode()
        self.send_response(503 if self.server.is_overloaded else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


class World:
    """A global cell and two regions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_ca(folder, now_s=time.time())
        issue(folder, "server", "server", now_s=time.time(), server=True, ips=("127.0.0.1",))
        self.servers = {name: self._serve() for name in ("global", "east", "west")}
        self.servers["global"].listed = (WEST, EAST)
        self.servers["west"].listed = (WEST,)
        self.servers["east"].listed = (EAST,)
        apis = {
            name: CellApi(f"https://127.0.0.1:{server.server_port}", name=name, ca=folder / "ca.crt", timeout_s=2.0)
            for name, server in self.servers.items()
        }
        self.source = AddressSource(apis.pop("global"), apis)

    def _serve(self) -> CellServer:
        server = CellServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._folder / "server.crt", self._folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def end(self, name: str) -> None:
        self.servers[name].shutdown()
        self.servers[name].server_close()

    def regions(self) -> list[str]:
        return [address["region"] for address in self.source.read("acme", "web")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for server in made.servers.values():
        server.shutdown()
        server.server_close()


def test_global_cell_is_believed_while_it_answers(world: World) -> None:
    world.servers["west"].listed = ()
    assert world.regions() == ["east", "west"] and world.source.notice == ""
    assert not world.source.is_known("acme", "nothing")


@pytest.mark.parametrize("how", ["ended", "overloaded"])
def test_regions_are_asked_while_the_global_cell_does_not_answer(world: World, how: str) -> None:
    """A region withdraws the addresses of a node that it has lost; the global cell cannot pass that on."""
    assert world.regions() == ["east", "west"]
    if how == "ended":
        world.end("global")
    else:
        world.servers["global"].is_overloaded = True
    assert world.regions() == ["east", "west"]
    world.servers["west"].listed = ()
    assert world.regions() == ["east"]
    assert "these are the addresses that the regions list" in world.source.notice
    assert world.source.is_known("acme", "web")


def test_addresses_of_a_region_that_does_not_answer_either_stay(world: World) -> None:
    assert world.regions() == ["east", "west"]
    world.end("global")
    world.end("west")
    assert world.regions() == ["east", "west"] and world.source.notice.endswith("; west did not answer")
    world.servers["east"].listed = ()
    assert world.regions() == ["west"]


def test_without_any_cell_nothing_is_known(world: World) -> None:
    for name in world.servers:
        world.end(name)
    assert world.source.read_or_none("acme", "web") is None
    with pytest.raises(CommandError, match="global cell: unreachable"):
        world.regions()


def test_list_of_a_returned_global_cell_is_not_believed_at_once(world: World) -> None:
    """It is as old as the outage: a region may have withdrawn addresses meanwhile."""
    world.servers["global"].is_overloaded = True
    world.servers["west"].listed = ()
    assert world.regions() == ["east"]
    world.servers["global"].is_overloaded = False
    assert world.regions() == ["east"] and world.source.notice == ""
    world.end("west")
    assert world.regions() == ["east", "west"], "of a region that does not answer only the global cell knows"
