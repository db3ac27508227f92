"""Sessions that clients open with running tasks: exec, attach, and connections through forwarded ports.

Each session is one WebSocket that the agent opens to its region. A session touches only its own task: an exec'd
command has the task's user, limits and view, and a port must be one of the task's own. When the session ends, its
command is killed; when the task ends, its processes are, so a stop that was acknowledged left nothing of a session
behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from holdfast.agent import logs
from holdfast.agent.drivers.command_session import CommandSession
from holdfast.agent.drivers.contract import Driver, Task
from holdfast.client.contract import SessionLink
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_quietly
from holdfast.model.agent_rpc import AgentCall
from holdfast.model.pod_session import (
    Channel,
    SessionArguments,
    SessionKind,
    decode_size,
    outcome_of_code,
    outcome_of_failure,
)
from holdfast.model.template import udp_ports

# Open sessions per agent. Further ones are refused.
AGENT_SESSIONS_MAX = 64
# Time to connect to a port of a task. After that, the connection fails.
FORWARD_CONNECT_TIMEOUT_S = 5.0
# Interval at which an attached session checks whether its task still runs.
ATTACH_CHECK_EVERY_S = 0.5
_READ_BYTES = 32 * 1024

_log = structlog.get_logger()


class SessionOpener(Protocol):
    def open_session(self, node: str, session_id: str) -> AbstractAsyncContextManager[SessionLink]: ...


class TaskSessions:
    """`running` returns the running tasks with their drivers; `address` is where tasks listen."""

    def __init__(
        self,
        node: str,
        address: str,
        opener: SessionOpener,
        ports: Ports,
        running: Callable[[], Iterable[tuple[Task, Driver]]],
    ) -> None:
        self._node, self._address, self._opener, self._ports = node, address, opener, ports
        self._running = running
        self._open = 0

    async def serve(self, call: AgentCall) -> None:
        """Opens the session and runs it to its end. Raises Unavailable if the region is gone."""
        assert call.session is not None
        async with self._opener.open_session(self._node, call.id) as link:
            if self._open >= AGENT_SESSIONS_MAX:
                await _fail(link, f"node {self._node}: too many open sessions (limit {AGENT_SESSIONS_MAX})")
                return
            self._open += 1
            try:
                await self._run(call, call.session, link)
            except ConnectionError:
                return
            finally:
                self._open -= 1

    async def _run(self, call: AgentCall, arguments: SessionArguments, link: SessionLink) -> None:
        found = self._find(call)
        if found is None:
            await _fail(link, f"replica {call.replica}: not running on node {self._node}; next: retry", "NotFound", 404)
            return
        task, driver = found
        _log.info("session_opened", task=task.id, kind=arguments.kind, command=arguments.command[:8])
        match arguments.kind:
            case SessionKind.EXEC:
                await self._exec(task, driver, arguments, link)
            case SessionKind.ATTACH:
                await self._attach(task, driver, call, link)
            case SessionKind.PORT_FORWARD:
                await self._forward(task, arguments.port, link)
        _log.info("session_ended", task=task.id, kind=arguments.kind)

    def _find(self, call: AgentCall) -> tuple[Task, Driver] | None:
        assert call.session is not None
        wanted = (call.namespace, call.replica, call.session.binding)
        running = (pair for pair in self._running() if (pair[0].namespace, pair[0].replica, pair[0].binding) == wanted)
        return next(running, None)

    # Exec ----------------------------------------------------------------------------------------------------------

    async def _exec(self, task: Task, driver: Driver, arguments: SessionArguments, link: SessionLink) -> None:
        try:
            command = driver.open_command(task.id, arguments.command, tty=arguments.tty)
        except OSError as error:
            await _fail(link, f"{arguments.command[0]}: not started ({error.strerror or error})")
            return
        if not arguments.stdin and not arguments.tty:
            await command.close_stdin()
        channels = [Channel.STDOUT] if arguments.tty else [Channel.STDOUT, Channel.STDERR]
        wanted = {Channel.STDOUT: arguments.stdout, Channel.STDERR: arguments.stderr}
        outputs = asyncio.ensure_future(_send_outputs(command, link, channels, wanted))
        inputs = asyncio.ensure_future(_receive_input(command, link))
        try:
            await asyncio.wait((inputs, outputs), return_when=asyncio.FIRST_COMPLETED)
            if inputs.done() and not outputs.done():
                return  # the client is gone, and the command is killed
            outputs.result()
            await link.send(Channel.ERROR, outcome_of_code(await command.wait()))
        finally:
            await cancel_quietly(inputs, outputs)
            command.close()

    # Attach --------------------------------------------------------------------------------------------------------

    async def _attach(self, task: Task, driver: Driver, call: AgentCall, link: SessionLink) -> None:
        assert call.session is not None
        path = driver.logs(task.id)
        if path is None:
            await _fail(link, f"driver {driver.name}: keeps no output to attach to")
            return
        is_terminal = call.session.tty
        wanted = {"stdout": call.session.stdout, "stderr": call.session.stderr or is_terminal}

        async def follow() -> None:
            async for line in logs.follow(path, self._ports.clock, lines=0):
                if wanted[line.stream]:
                    channel = Channel.STDERR if line.stream == "stderr" and not is_terminal else Channel.STDOUT
                    end = b"\n" if line.complete else b""
                    await link.send(channel, line.text.encode(errors="surrogateescape") + end)

        async def ended() -> None:
            while (found := self._find(call)) is not None and found[0].run == task.run:
                await self._ports.clock.sleep(ATTACH_CHECK_EVERY_S)
            await self._ports.clock.sleep(ATTACH_CHECK_EVERY_S)  # the last lines are still on their way

        following, waiting = asyncio.ensure_future(follow()), asyncio.ensure_future(ended())
        gone = asyncio.ensure_future(_client_left(link))
        try:
            done, _ = await asyncio.wait({following, waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if waiting in done:
                await link.send(Channel.ERROR, outcome_of_code(0))
            elif following in done:
                following.result()
        finally:
            await cancel_quietly(following, waiting, gone)

    # Port-forward --------------------------------------------------------------------------------------------------

    async def _forward(self, task: Task, port: int, link: SessionLink) -> None:
        target = forward_target(task, port)
        if target is None:
            known = ", ".join(f"{name}={number}" for name, number in task.ports.items()) or "none"
            await _fail(
                link,
                f"port {port}: not a TCP port of replica {task.replica} (expected one of {known})",
                "Forbidden",
                403,
            )
            return
        try:
            async with asyncio.timeout(FORWARD_CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._address, target, limit=_READ_BYTES)
        except (OSError, TimeoutError) as error:
            why = str(error) or "it did not answer"
            await _fail(link, f"port {port} of replica {task.replica}: no connection ({why})")
            return
        try:
            await _relay_connection(link, reader, writer)
        finally:
            writer.close()


def forward_target(task: Task, port: int) -> int | None:
    """The port on the node for a port that a client names: an allocated port, or the fixed number or
    `containerPort` of a declared one."""
    udp = udp_ports(task.template)
    for name, number in task.ports.items():
        if name not in udp and number == port:
            return number
    declared = [one for one in task.template.ports if port in (one.port, one.container_port) and one.name in task.ports]
    return next((task.ports[one.name] for one in declared if one.name not in udp), None)


async def _relay_connection(link: SessionLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def to_task() -> None:
        while (message := await link.receive()) is not None:
            channel, data = message
            if channel == Channel.STDIN:
                writer.write(data)
                await writer.drain()
            elif channel == Channel.CLOSE and writer.can_write_eof():
                writer.write_eof()

    async def to_client() -> None:
        while data := await reader.read(_READ_BYTES):
            await link.send(Channel.STDOUT, data)
        await link.send(Channel.ERROR, outcome_of_code(0))

    pumps = {asyncio.ensure_future(to_task()), asyncio.ensure_future(to_client())}
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in done:
            pump.result()
    except OSError as error:
        await _fail(link, f"the connection was reset ({error})")
    finally:
        await cancel_quietly(*pumps)


async def _send_outputs(
    command: CommandSession, link: SessionLink, channels: list[Channel], wanted: dict[Channel, bool]
) -> None:
    await asyncio.gather(*(_send_output(command, link, one, wanted=wanted[one]) for one in channels))


async def _send_output(command: CommandSession, link: SessionLink, channel: Channel, *, wanted: bool) -> None:
    while data := await command.read(channel):
        if wanted:
            await link.send(channel, data)


async def _receive_input(command: CommandSession, link: SessionLink) -> None:
    """Until the client is gone."""
    while (message := await link.receive()) is not None:
        channel, data = message
        if channel == Channel.STDIN:
            await command.write(data)
        elif channel == Channel.CLOSE and data == bytes((Channel.STDIN,)):
            await command.close_stdin()
        elif channel == Channel.RESIZE and (size := decode_size(data)) is not None:
            command.resize(size)


async def _client_left(link: SessionLink) -> None:
    while await link.receive() is not None:
        pass


async def _fail(link: SessionLink, message: str, reason: str = "InternalError", code: int = 500) -> None:
    await link.send(Channel.ERROR, outcome_of_failure(message, reason, code))
