"""Sessions of commands with running replicas: a terminal, output, forwarded ports and copied files.

The replica's region is found by asking the regions. Terminal settings are restored however a session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO
from urllib.parse import quote

import msgspec

from holdfast.client.pod_sessions import open_pod_session
from holdfast.client.session_socket import SessionSocket
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.pod_session import Channel, TerminalSize, exit_code_of
from holdfast.platform.agent_calls import ReplicaLocation, find_replicas

_READ_BYTES = 32 * 1024
COMMAND_NOT_FOUND = 127
"""Exit code of a command that does not exist, as shells have it."""
_PORT_HEAD_BYTES = 2
# Connections through one forwarded port at a time. Further ones are closed.
LOCAL_CONNECTIONS_MAX = 32

Sink = Callable[[int, bytes], None]


def running_replica(state: str, name: str, next_step: str) -> ReplicaLocation:
    """The one running replica of that name. Raises CommandError if there is none, or several."""
    found = [placed for placed in find_replicas(state, name) if placed.binding]
    if not found:
        raise CommandError(f"{name}: no running replica (expected 1, found 0)", next_step="holdfast get replicas")
    if len(found) > 1:
        names = [f"{p.tenant}/{p.name}" for p in found]
        shown = ", ".join(names[:10])
        raise CommandError(
            f"{name}: matches several running replicas (expected 1, found {len(names)}: {shown})",
            next_step=next_step.replace("REPLICA", names[0]),
        )
    return found[0]


def execute(
    placed: ReplicaLocation,
    command: tuple[str, ...],
    *,
    source: IO[bytes] | None = None,
    sink: Sink | None = None,
    tty: bool = False,
) -> int:
    """Runs a command with streams in both directions and returns its exit code."""
    query = [("command", word) for word in command]
    query += [("stdout", "true"), ("stderr", "true"), ("stdin", str(source is not None).lower())]
    query.append(("tty", str(tty).lower()))

    async def run() -> int:
        async with open_pod_session(placed.api, placed.tenant, placed.binding, "exec", query) as link:
            if tty:
                _follow_terminal_size(link)
            if source is not None:
                _send_input(link, source)
            return await _receive_until_end(link, sink or _print_output)

    with _raw_terminal() if tty else contextlib.nullcontext():
        return asyncio.run(run())


def attach(placed: ReplicaLocation, sink: Sink | None = None) -> int:
    async def run() -> int:
        query = [("stdout", "true"), ("stderr", "true")]
        async with open_pod_session(placed.api, placed.tenant, placed.binding, "attach", query) as link:
            return await _receive_until_end(link, sink or _print_output)

    return asyncio.run(run())


async def _receive_until_end(link: SessionSocket, sink: Sink) -> int:
    while (message := await link.receive()) is not None:
        channel, data = message
        if channel == Channel.ERROR:
            code, why = exit_code_of(data)
            if why:
                raise CommandError(why)
            return code
        if channel in (Channel.STDOUT, Channel.STDERR):
            sink(channel, data)
    raise CommandError("the connection was lost", next_step="run the command again")


def _print_output(channel: int, data: bytes) -> None:
    stream = sys.stderr if channel == Channel.STDERR else sys.stdout
    stream.buffer.write(data)
    stream.buffer.flush()


def _send_input(link: SessionSocket, source: IO[bytes]) -> None:
    """Sends what the source has, in a thread of its own, because reading a terminal or a file blocks."""
    loop = asyncio.get_running_loop()

    def send() -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            while data := os.read(source.fileno(), _READ_BYTES):
                asyncio.run_coroutine_threadsafe(link.send(Channel.STDIN, data), loop).result()
            closing = link.send(Channel.CLOSE, bytes((Channel.STDIN,)))
            asyncio.run_coroutine_threadsafe(closing, loop).result()

    threading.Thread(target=send, daemon=True).start()


def _follow_terminal_size(link: SessionSocket) -> None:
    loop = asyncio.get_running_loop()
    sending: set[asyncio.Task[None]] = set()

    def send() -> None:
        columns, lines = shutil.get_terminal_size()
        size = msgspec.json.encode(TerminalSize(columns, lines))
        task = loop.create_task(link.send(Channel.RESIZE, size))
        sending.add(task)
        task.add_done_callback(sending.discard)

    send()
    loop.add_signal_handler(signal.SIGWINCH, send)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Keys go to the replica's terminal unchanged, also Ctrl-C. Without a terminal nothing changes."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed already is kept
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# Port-forward --------------------------------------------------------------------------------------------------------


def port_number(placed: ReplicaLocation, text: str) -> int:
    """The number of a port that is given by its name or its number."""
    if text.isascii() and text.isdigit():
        return int(text)
    path = f"/apis/holdfast.dev/v1/namespaces/{quote(placed.tenant)}/bindings/{quote(placed.binding)}"
    known: dict[str, int] = placed.api.get(path)["spec"].get("ports", {})
    if text not in known:
        names = ", ".join(f"{name}={port}" for name, port in known.items()) or "none"
        raise CommandError(f"port {text}: not a port of replica {placed.name} (expected one of {names})")
    return known[text]


def forward_port(placed: ReplicaLocation, local: int, remote: int, announce: Callable[[int], None]) -> None:
    """Serves the local port on loopback until interrupted. `announce` gets the port that was opened."""

    async def serve() -> None:
        connections: set[asyncio.Task[None]] = set()
        first_problem: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if len(connections) >= LOCAL_CONNECTIONS_MAX:
                writer.close()
                return
            connections.add(task)
            try:
                await _forward_connection(placed, remote, reader, writer)
            except CommandError as problem:
                if not first_problem.done():
                    first_problem.set_exception(problem)
            except OSError:
                return
            finally:
                connections.discard(task)
                writer.close()

        try:
            server = await asyncio.start_server(connected, "127.0.0.1", local, limit=_READ_BYTES)
        except OSError as error:
            raise CommandError(
                f"port {local}: cannot listen on it ({os.strerror(error.errno or 0)})", next_step="choose another port"
            ) from None
        async with server:
            announce(server.sockets[0].getsockname()[1])
            await first_problem

    asyncio.run(serve())


async def _forward_connection(
    placed: ReplicaLocation, remote: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    query = [("ports", str(remote))]
    async with open_pod_session(placed.api, placed.tenant, placed.binding, "portforward", query) as link:

        async def to_replica() -> None:
            while data := await reader.read(_READ_BYTES):
                await link.send(Channel.STDIN, data)
            await asyncio.Event().wait()  # the answer may still be on its way

        async def from_replica() -> None:
            heads = 0
            while (message := await link.receive()) is not None:
                channel, data = message
                if heads < 2 and len(data) == _PORT_HEAD_BYTES:
                    heads += 1  # each channel begins with the number of its port
                elif channel == 1:
                    raise CommandError(f"replica {placed.name}: {data.decode(errors='replace')}")
                else:
                    writer.write(data)
                    await writer.drain()

        sending, receiving = asyncio.ensure_future(to_replica()), asyncio.ensure_future(from_replica())
        try:
            await receiving
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


# Copies --------------------------------------------------------------------------------------------------------------


def copy_to_replica(placed: ReplicaLocation, source: str, target: str) -> None:
    """Packs the file or directory here and unpacks it beside the task, with the task's rights."""
    import subprocess

    folder, name = os.path.split(target.rstrip("/"))
    packing = subprocess.Popen(
        ["tar", "cf", "-", "--transform", f"s,^{_quoted(os.path.basename(source.rstrip('/')))},{_quoted(name)},", "-C",
         os.path.dirname(os.path.abspath(source.rstrip("/"))), os.path.basename(source.rstrip("/"))],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert packing.stdout is not None
    errors = bytearray()
    code = execute(
        placed,
        ("tar", "xmf", "-", "-C", folder or "."),
        source=packing.stdout,
        sink=lambda channel, data: errors.extend(data[:4096]),
    )
    if packing.wait() != 0 or code != 0:
        why = errors.decode(errors="replace").strip() or f"tar ended with {packing.returncode} here and {code} there"
        raise copy_failure(f"{placed.name}:{target}", code, why, "check the path and its permissions")


def copy_failure(what: str, code: int, why: str, step: str) -> CommandError:
    """Copies need the program `tar` beside the task, which small images do not have."""
    if code == COMMAND_NOT_FOUND or "executable file" in why:
        why = f"there is no program tar in its image or on its node: {why}"
        step = "use an image that contains tar, or a volume, or send the file through exec, for example: cat"
    return CommandError(f"{what}: not copied ({why})", next_step=step)


def copy_from_replica(placed: ReplicaLocation, source: str, target: str) -> None:
    """Packs beside the task and unpacks here. Only what was asked for is written, below the target."""
    import tarfile
    import tempfile

    errors = bytearray()
    with tempfile.TemporaryFile() as packed:

        def keep(channel: int, data: bytes) -> None:
            if channel == Channel.STDOUT:
                packed.write(data)
            else:
                errors.extend(data[:4096])

        code = execute(placed, ("tar", "cf", "-", "--", source.rstrip("/")), sink=keep)
        if code != 0:
            packed.seek(0)
            start = packed.read(512)  # a runtime that cannot start tar says so there
            said = bytes(errors) or (start if b"executable file" in start else b"")
            why = said.decode(errors="replace").strip() or f"tar ended with {code}"
            raise copy_failure(f"{placed.name}:{source}", code, why, "check the path")
        packed.seek(0)
        wanted = source.strip("/")
        target = os.path.join(target, os.path.basename(wanted)) if os.path.isdir(target) else target
        with tarfile.open(fileobj=packed) as archive:
            for member in archive:
                if member.name == wanted or member.name.startswith(f"{wanted}/"):
                    _extract(archive, member, target + member.name[len(wanted) :], target)


def _extract(archive: object, member: object, path: str, target: str) -> None:
    """Files and directories only: the replica's side is not trusted to write elsewhere through links or `..`."""
    import tarfile

    assert isinstance(archive, tarfile.TarFile) and isinstance(member, tarfile.TarInfo)
    top = os.path.realpath(os.path.dirname(os.path.abspath(target)))
    if ".." in path.split("/") or not os.path.realpath(path).startswith(top):
        raise CommandError(f"{member.name}: leads outside of {target}; not copied")
    if member.isdir():
        os.makedirs(path, exist_ok=True)
    elif member.isfile() and (content := archive.extractfile(member)) is not None:
        with open(path, "wb") as file:
            shutil.copyfileobj(content, file)
        os.chmod(path, member.mode & 0o777)


def _quoted(text: str) -> str:
    """For the s,,, expression of tar."""
    return "".join(f"\\{letter}" if letter in "\\,&.*[]^$" else letter for letter in text)
