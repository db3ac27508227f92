"""Sessions through a real listener, a real agent loop and real processes, over loopback."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest
from tests.agent.agent_world import eventually, task

from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.rpc_server import AgentRpcServer
from holdfast.agent.sessions import TaskSessions
from holdfast.client.http import HttpClient
from holdfast.client.session_socket import SessionSocket
from holdfast.gate.audit import read_records
from holdfast.model import codec
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.pod_session import Channel, exit_code_of
from holdfast.model.principal import NODES, OPERATORS, TENANT_PREFIX, VIEWERS
from holdfast.server import agent_sessions, open_streams
from holdfast.server.listener import Listener, listen
from holdfast.server.websocket import BINARY, encode_frame
from holdfast.store.contract import Put, Txn

from .conftest import World

HOST = "127.0.0.1"
POD = "/api/v1/namespaces/acme/pods/a.1"
STREAMS = [("stdout", "true"), ("stderr", "true")]


class Reach:
    """A region with one agent and one running task, and the tokens of its users."""

    def __init__(self, world: World, listener: Listener, driver: ProcessDriver) -> None:
        self.world, self.listener, self.driver = world, listener, driver
        self.tokens = {
            "operator": world.tokens.issue("ops", "ada", (OPERATORS,)),
            "own user": world.tokens.issue("own", "tim", (f"{TENANT_PREFIX}acme",)),
            "other user": world.tokens.issue("other", "eve", (f"{TENANT_PREFIX}shop",)),
            "viewer": world.tokens.issue("view", "vic", (VIEWERS,)),
        }
        self.http = aiohttp.ClientSession()

    async def open(self, what: str, *query: tuple[str, str], user: str = "operator", protocol: str = "") -> Any:
        url = f"http://{HOST}:{self.listener.port}{POD}/{what}?{urlencode(query)}"
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        return await self.http.ws_connect(url, headers=headers, protocols=(protocol or "v5.channel.k8s.io",))

    async def run(self, *command: str, stdin: bytes | None = None, tty: bool = False) -> tuple[bytes, bytes, int]:
        query = [("command", word) for word in command] + STREAMS
        query += [("stdin", "true")] * (stdin is not None) + [("tty", "true")] * tty
        socket = SessionSocket(await self.open("exec", *query))
        if stdin is not None:
            await socket.send(Channel.STDIN, stdin)
            await socket.send(Channel.CLOSE, bytes((Channel.STDIN,)))
        return await collect(socket)

    def handshake(self, what: str, *query: tuple[str, str]) -> bytes:
        lines = (
            f"GET {POD}/{what}?{urlencode(query)} HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {self.tokens['operator']}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
        )
        return "\r\n".join((*lines, "", "")).encode()

    async def raw(self, what: str, *query: tuple[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection after the handshake, for clients that break the protocol."""
        reader, writer = await asyncio.open_connection(HOST, self.listener.port)
        writer.write(self.handshake(what, *query))
        assert b" 101 " in await reader.readline()
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    async def audited(self) -> list[str]:
        await self.world.gate.audit.flush()
        records = [record for _, record in await read_records(self.world.store, limit=1000)]
        return [str(record["message"]) for record in records if "replica acme" in str(record.get("message"))]


async def collect(socket: SessionSocket) -> tuple[bytes, bytes, int]:
    output = {Channel.STDOUT: b"", Channel.STDERR: b""}
    async with asyncio.timeout(20):
        while (message := await socket.receive()) is not None:
            if message[0] == Channel.ERROR:
                return output[Channel.STDOUT], output[Channel.STDERR], exit_code_of(message[1])[0]
            output[Channel(message[0])] += message[1]
    raise AssertionError("the session ended without an outcome")


@pytest.fixture
async def reach(region: World, tmp_path: Path) -> AsyncIterator[Reach]:
    listener = await listen(region.app, HOST, 0)
    driver = ProcessDriver(tmp_path / "tasks", region.ports.clock)
    script = "while true; do echo tick; echo tock >&2; sleep 0.1; done"
    one = msgspec.structs.replace(task("acme_a_1", "sh", "-c", script, env={"WHO": "me"}), replica="a", binding="a.1")
    echo = await asyncio.start_server(_echo, HOST, 0)
    one = msgspec.structs.replace(one, ports={"http": echo.sockets[0].getsockname()[1]})
    await driver.start(msgspec.structs.replace(one, ports={}))
    binding = Binding(
        metadata=ObjectMeta(name="a.1", namespace="acme", uid="b-1", generation=1),
        spec=BindingSpec(replica="a", intent=Intent("u", "h", 1), node="n1", template=one.template, ports=one.ports),
    )
    kind = BY_NAME["Binding"]
    key = kind.store_key("acme", "a.1")
    await region.objects.commit(kind, Txn(writes=(Put(key, codec.encode(binding)),)))
    token = region.tokens.issue("agent", "holdfast:node:west:n1", (NODES,))
    client = HttpClient(f"http://{HOST}:{listener.port}", region.ports, cell="west", token=token)

    def running() -> list[Any]:
        return [(one, driver)]

    sessions = TaskSessions("n1", HOST, client, region.ports, running)
    server = AgentRpcServer("n1", client, (tmp_path / "tasks",), region.ports, running, sessions=sessions)
    serving = asyncio.create_task(server.run())
    await eventually(lambda: "n1" in region.app.agent_rpc.agents)
    made = Reach(region, listener, driver)
    yield made
    await made.http.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    echo.close()
    await client.close()
    await listener.stop()
    await driver.stop(one.id, 0.0)
    await driver.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data.upper())
    writer.close()


def processes_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


async def test_exec_carries_input_output_and_exit_code(reach: Reach) -> None:
    assert await reach.run("sh", "-c", "echo $WHO; echo bad >&2; exit 3") == (b"me\n", b"bad\n", 3)
    big = os.urandom(700_000)
    output, _, code = await reach.run("cat", stdin=big)
    assert (output == big, code) == (True, 0)
    assert (await reach.run("no-such-program"))[2] == 127
    assert (await reach.run("sh", "-c", "kill -9 $$"))[2] == 137


async def test_exec_is_audited_before_and_after_with_amounts(reach: Reach) -> None:
    await reach.run("echo", "for the record")
    await eventually(lambda: len(reach.world.app.agent_rpc.sessions) == 0)
    records = await reach.audited()
    assert any(text == "replica acme/a: echo for the record" for text in records), records
    assert any("ended (it ended; " in text and "15 bytes out" in text for text in records), records


async def test_terminal_has_a_size_and_follows_resizes(reach: Reach) -> None:
    query = [("command", "sh"), ("stdin", "true"), ("stdout", "true"), ("tty", "true")]
    socket = SessionSocket(await reach.open("exec", *query))
    await socket.send(Channel.RESIZE, b'{"Width":91,"Height":17}')
    await socket.send(Channel.RESIZE, b'{"Width":-5,"Height":"x"}')
    await socket.send(Channel.STDIN, b"stty size; test -t 0 && echo terminal; exit 5\n")
    output, _, code = await collect(socket)
    assert b"17 91" in output and b"terminal" in output and code == 5


async def test_command_and_its_jobs_are_killed_when_the_client_leaves(reach: Reach) -> None:
    script = "set -m; sleep 4242.5 & sleep 4242.5"
    socket = await reach.open("exec", ("command", "sh"), ("command", "-c"), ("command", script), *STREAMS)
    await eventually(lambda: len(processes_with("4242.5")) >= 2)
    await socket.close()
    await eventually(lambda: not processes_with("4242.5"))


async def test_client_that_vanishes_without_a_close_ends_its_command(reach: Reach) -> None:
    _, writer = await reach.raw("exec", ("command", "sleep"), ("command", "4343.5"), *STREAMS)
    await eventually(lambda: processes_with("4343.5"))
    writer.transport.abort()
    await eventually(lambda: not processes_with("4343.5"))


async def test_slow_reader_stops_the_command_instead_of_filling_memory(reach: Reach) -> None:
    command = [("command", word) for word in ("sh", "-c", "yes | head -c 300000000")]
    reader, writer = await reach.raw("exec", *command, *STREAMS)
    await asyncio.sleep(1.0)
    buffered = sum(len(stream._buffer) for stream in _raw_streams(reach))
    assert buffered < 1_000_000, "what is not read stays in the command's pipe"
    assert processes_with("300000000"), "the command waits for its reader"
    del reader
    writer.transport.abort()
    await eventually(lambda: not processes_with("300000000"))


def _raw_streams(reach: Reach) -> list[Any]:
    import gc

    from holdfast.server.upgrade import RawStream

    return [one for one in gc.get_objects() if isinstance(one, RawStream)]


@pytest.mark.parametrize(
    "frames",
    [
        b"\xff\xff\xff\xff\xff\xff",
        encode_frame(BINARY, b"\x00unmasked"),
        b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff",
        encode_frame(BINARY, b"", mask=b"abcd") * 100 + b"\x80",
    ],
)
async def test_malformed_frames_end_only_their_session(reach: Reach, frames: bytes) -> None:
    reader, writer = await reach.raw("exec", ("command", "sleep"), ("command", "4444.5"), ("stdin", "true"), *STREAMS)
    writer.write(frames)
    if frames.endswith(b"\x80"):
        writer.write_eof()
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    await eventually(lambda: not processes_with("4444.5"))
    assert (await reach.run("true"))[2] == 0


async def test_bytes_before_the_handshake_is_answered_are_kept_or_refused(reach: Reach) -> None:
    reader, writer = await asyncio.open_connection(HOST, reach.listener.port)
    early = encode_frame(BINARY, b"\x00early", mask=b"abcd") + encode_frame(BINARY, b"\xff\x00", mask=b"abcd")
    writer.write(reach.handshake("exec", ("command", "cat"), ("stdin", "true"), *STREAMS) + early)
    async with asyncio.timeout(20):
        assert b"\x01early" in await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("user", "allowed"), [("operator", True), ("own user", True), ("other user", False), ("viewer", False)]
)
@pytest.mark.parametrize("what", ["exec", "attach", "portforward"])
async def test_session_is_for_operators_and_the_tenants_own_users(
    reach: Reach, user: str, allowed: bool, what: str
) -> None:
    query = [("command", "true"), ("stdout", "true"), ("ports", "80")]
    protocol = "v4.channel.k8s.io"
    if allowed:
        await (await reach.open(what, *query, user=user, protocol=protocol)).close()
        return
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await reach.open(what, *query, user=user, protocol=protocol)
    assert refused.value.status == 403
    assert not reach.world.app.agent_rpc.sessions


async def test_session_ends_when_its_token_is_revoked(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "STREAM_CREDENTIALS_CHECK_EVERY_S", 0.1)
    socket = SessionSocket(
        await reach.open("exec", ("command", "sleep"), ("command", "4545.5"), *STREAMS, user="own user")
    )
    await eventually(lambda: processes_with("4545.5"))
    reach.world.tokens.revoke("own")
    async with asyncio.timeout(20):
        channel, data = await socket.receive() or (0, b"")
    assert channel == Channel.ERROR and b"no longer permits" in data
    await eventually(lambda: not processes_with("4545.5"))


async def test_session_ends_with_a_message_when_the_server_stops(reach: Reach) -> None:
    socket = SessionSocket(await reach.open("exec", ("command", "sleep"), ("command", "4646.5"), *STREAMS))
    await eventually(lambda: processes_with("4646.5"))
    stopping = asyncio.create_task(reach.listener.stop())
    async with asyncio.timeout(20):
        channel, data = await socket.receive() or (0, b"")
        await stopping
    assert channel == Channel.ERROR and b"run the command again" in data
    await eventually(lambda: not processes_with("4646.5"))


async def test_sessions_of_a_tenant_are_limited(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sessions, "SESSIONS_PER_TENANT_MAX", 2)
    command = (("command", "sleep"), ("command", "30"))
    opened = [await reach.open("exec", *command, *STREAMS) for _ in range(2)]
    await eventually(lambda: len(reach.world.app.agent_rpc.sessions) == 2)
    socket = SessionSocket(await reach.open("exec", *command, *STREAMS))
    channel, data = await socket.receive() or (0, b"")
    assert channel == Channel.ERROR and b"too many open sessions" in data
    for one in opened:
        await one.close()
    await eventually(lambda: not reach.world.app.agent_rpc.sessions)
    assert (await reach.run("true"))[2] == 0


async def test_attach_shows_both_streams_and_refuses_input(reach: Reach) -> None:
    socket = SessionSocket(await reach.open("attach", *STREAMS))
    seen: set[tuple[int, bytes]] = set()
    async with asyncio.timeout(20):
        while len(seen) < 2:
            message = await socket.receive()
            assert message is not None
            seen.add(message)
    assert seen == {(Channel.STDOUT, b"tick\n"), (Channel.STDERR, b"tock\n")}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await reach.open("attach", *STREAMS, ("stdin", "true"))
    assert refused.value.status == 400


async def test_port_forward_reaches_the_tasks_port_and_no_other(reach: Reach) -> None:
    known = reach.world.objects.get(BY_NAME["Binding"], "acme", "a.1")
    assert isinstance(known, Binding)
    port = known.spec.ports["http"]
    socket = SessionSocket(
        await reach.open("portforward", ("ports", f"{port},{reach.listener.port}"), protocol="v4.channel.k8s.io")
    )
    await socket.send(0, b"hello")
    received: dict[int, bytes] = {}
    async with asyncio.timeout(20):
        while b"HELLO" not in received.get(0, b"") or b"not a TCP port" not in received.get(3, b""):
            channel, data = await socket.receive() or (9, b"")
            assert channel != 9, received
            received[channel] = received.get(channel, b"") + data
    assert received[0][:2] == port.to_bytes(2, "little")


async def test_agent_opens_only_sessions_it_was_asked_for(reach: Reach) -> None:
    headers = {"Authorization": f"Bearer {reach.world.tokens.issue('a2', 'holdfast:node:west:n1', (NODES,))}"}
    for path, status in (("/node/v1/n1/sessions/n1.made-up", 400), ("/node/v1/n2/sessions/n2.x", 403)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await reach.http.ws_connect(f"http://{HOST}:{reach.listener.port}{path}", headers=headers)
        assert refused.value.status == status


async def test_stop_of_the_task_leaves_no_process_of_a_session(reach: Reach) -> None:
    script = "setsid sleep 4747.5 & sleep 4747.5"
    socket = SessionSocket(
        await reach.open("exec", ("command", "sh"), ("command", "-c"), ("command", script), *STREAMS)
    )
    await eventually(lambda: len(processes_with("4747.5")) >= 2)
    await reach.driver.stop("acme_a_1", 0.0)
    assert not [pid for pid in processes_with("4747.5") if not _is_zombie(pid)], "nothing is left when stop returns"
    assert (await collect(socket))[2] == 137
    assert (await reach.run("true"))[2] == 1, "a task that has ended runs no commands"


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
