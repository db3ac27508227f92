"""A region on etcd made of many real processes, behind proxies that the test owns; the global cell keeps SQLite.

hollow nodes, operator ─► front ─► api-1, api-2 ─► wires ─► etcd (three members)
                          schedulers s-1, s-2 and controllers c-1, c-2 beside them
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tests import etcd_cluster

from holdfast.client.resources import client_tls_context
from holdfast.identity.cell_record import IdentityFile, initialize
from holdfast.identity.certificates import issue, make_ca
from holdfast.identity.tokens import TokenFile
from holdfast.model.principal import HOLLOW_NODES, OPERATORS, REGIONS, SERVERS

REGION = "us-east"
PARTS = {
    "api-1": "api,authority",
    "api-2": "api,authority",
    "s-1": "scheduler",
    "s-2": "scheduler",
    "c-1": "controllers",
    "c-2": "controllers",
}


class Proxy:
    """Forwards connections to the first target that accepts them, until it is cut."""

    def __init__(self, *targets: int) -> None:
        self._targets = targets
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.is_cut = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.held = bytearray()
        """What was sent through it since it was stalled; `arrived` once it was passed on."""
        self.arrived = False

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """Forwards nothing any more; existing connections go silent and are then reset."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    def heal(self) -> None:
        self.is_cut = False

    def stall(self) -> None:
        """Holds back data sent from now on, until it is let through."""
        self.held.clear()
        self.arrived = False
        self._flowing.clear()

    def let_through(self) -> None:
        self._flowing.set()

    def end(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = None
        for target in self._targets if not self.is_cut else ():
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", target)
                break
        if there is None:
            writer.transport.abort()
            return
        self._open |= {writer, there[1]}
        try:
            await asyncio.gather(self._pump(reader, there[1], self.held), self._pump(there[0], writer, bytearray()))
        finally:
            for each in (writer, there[1]):
                self._open.discard(each)
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                stalled = not self._flowing.is_set()
                held += data if stalled else b""
                while not self._flowing.is_set():
                    with contextlib.suppress(TimeoutError):
                        more = await asyncio.wait_for(reader.read(65536), 0.05)
                        held += more
                        data += more
                writer.write(data)
                await writer.drain()
                self.arrived = self.arrived or stalled
        writer.transport.abort()


class Fleet:
    def __init__(self, folder: Path, cluster: etcd_cluster.Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._argv: dict[str, list[str]] = {}
        ports = etcd_cluster.free_ports(len(PARTS) + 1)
        self.ports = dict(zip((*PARTS, "global"), ports, strict=True))
        self.wires: dict[str, list[Proxy]] = {}
        self.front: Proxy | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self, nodes: int, names: Sequence[str] = tuple(PARTS)) -> None:
        """`names` are the region's processes to start; without hollow nodes, other nodes may join."""
        self._certificates()
        TokenFile(self.folder / "tokens.json").issue("unused", "unused", ())
        self.front = await Proxy(self.ports["api-1"], self.ports["api-2"]).start()
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32))
        for name, cell in (("global", "global"), (names[0], REGION)):
            (self.folder / name).mkdir()
            initialize(IdentityFile(self.folder / name), cell)
        self.run("global", self._serve("global", "global"))
        for name in names:
            members = [int(url.rpartition(":")[2]) for url in self.cluster.endpoints]
            self.wires[name] = [await Proxy(port).start() for port in members]
            self.run(name, self._serve(name, REGION))
        if nodes:
            self.start_hollow("hollow", nodes)

    def start_hollow(self, name: str, nodes: int, *options: str) -> None:
        pki = self.folder / "pki"
        assert self.front is not None
        self.run(
            name,
            [
                "hollow",
                "--count",
                str(nodes),
                "--region",
                REGION,
                "--zone",
                f"{REGION}-a",
                "--zone",
                f"{REGION}-b",
                "--url",
                f"https://127.0.0.1:{self.front.port}",
                "--ca",
                f"{pki}/ca.crt",
                "--cert",
                f"{pki}/hollow.crt",
                "--key",
                f"{pki}/hollow.key",
                *options,
            ],
        )

    def run(self, name: str, arguments: list[str] | None = None) -> None:
        """Starts or restarts a process."""
        if arguments is not None:
            self._argv[name] = [sys.executable, "-m", "holdfast.cli", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._argv[name], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"}
            )

    def signal(self, name: str, what: signal.Signals) -> None:
        self._processes[name].send_signal(what)
        if what is signal.SIGKILL:
            self._processes[name].wait()

    async def end(self) -> None:
        if self._session is not None:
            await self._session.close()
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for proxy in (self.front, *(each for wires in self.wires.values() for each in wires)):
            if proxy is not None:
                proxy.end()

    def alive(self) -> dict[str, int | None]:
        return {name: process.poll() for name, process in self._processes.items()}

    async def ask(self, where: str, path: str, body: Any = None, method: str = "") -> Any:
        """One request of the operator; raises unless it succeeds."""
        port = self.front.port if where == "front" and self.front else self.ports[where]
        pki = self.folder / "pki"
        context = client_tls_context(f"{pki}/ca.crt", f"{pki}/operator.crt", f"{pki}/operator.key")
        assert self._session is not None
        async with self._session.request(
            method or ("GET" if body is None else "POST"),
            f"https://127.0.0.1:{port}{path}",
            json=body,
            ssl=context,
            timeout=aiohttp.ClientTimeout(total=15),
        ) as answer:
            content = await answer.json(content_type=None)
            if answer.status >= 400:
                raise RuntimeError(f"{answer.status}: {content}")
            return content

    async def until(self, what: str, true: Any, timeout_s: float) -> float:
        """Waits until an asynchronous predicate holds. Returns how long it took."""
        began = time.monotonic()
        last: object = None
        while time.monotonic() - began < timeout_s:
            try:
                if await true():
                    return time.monotonic() - began
            except (RuntimeError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                last = error
            await asyncio.sleep(0.3)
        raise AssertionError(f"waited {timeout_s} s for {what}: {last}; processes: {self.alive()}")

    def leader_of(self, election: str, lease: dict[str, Any]) -> str:
        port = int(lease["spec"]["holderIdentity"].rpartition(":")[2] or 0)
        return next((name for name, own in self.ports.items() if own == port), "")

    def _certificates(self) -> None:
        pki, now_s = self.folder / "pki", time.time()
        make_ca(pki, now_s=now_s)
        make_ca(self.folder / "nodes", now_s=now_s, common_name=f"holdfast nodes of {REGION}")
        issue(
            pki,
            "server",
            "holdfast-cell",
            now_s=now_s,
            server=True,
            client=False,
            dns=("localhost",),
            ips=("127.0.0.1",),
        )
        issue(pki, "link", f"holdfast:region:{REGION}", (REGIONS,), now_s=now_s)
        issue(pki, "peer", f"holdfast:server:{REGION}", (SERVERS,), now_s=now_s)
        issue(pki, "hollow", f"holdfast:hollow:{REGION}:hollow-", (HOLLOW_NODES,), now_s=now_s)
        issue(pki, "operator", "operator", (OPERATORS,), now_s=now_s)

    def _serve(self, name: str, cell: str) -> list[str]:
        pki = self.folder / "pki"
        arguments = [
            "serve",
            "--cell",
            cell,
            "--state",
            str(self.folder / name),
            "--port",
            str(self.ports[name]),
            "--tls-cert",
            f"{pki}/server.crt",
            "--tls-key",
            f"{pki}/server.key",
            "--client-ca",
            f"{pki}/ca.crt",
            "--tokens",
            str(self.folder / "tokens.json"),
        ]
        if cell == "global":
            return arguments
        return [
            *arguments,
            "--global-url",
            f"https://127.0.0.1:{self.ports['global']}",
            "--link-cert",
            f"{pki}/link.crt",
            "--link-key",
            f"{pki}/link.key",
            "--store",
            "etcd",
            "--parts",
            PARTS[name],
            "--etcd-endpoints",
            ",".join(f"http://127.0.0.1:{wire.port}" for wire in self.wires[name]),
            "--peer-cert",
            f"{pki}/peer.crt",
            "--peer-key",
            f"{pki}/peer.key",
            "--node-ca",
            str(self.folder / "nodes" / "ca.crt"),
            "--node-ca-key",
            str(self.folder / "nodes" / "ca.key"),
        ]
