"""Serves calls from the region: logs, exec, usage and sessions. The calls arrive on a stream that the agent itself
opened.

Each call runs in its own task, with limits on count and duration. A failed call reports its error to the caller and
affects no other call. This module never starts, stops or changes tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from holdfast.agent import logs
from holdfast.agent.drivers.contract import Driver, Task
from holdfast.agent.drivers.process import AGENT_ENDED_TASKS_MAX
from holdfast.agent.limits import AGENT_FLUSH_EVERY_S, AGENT_RETRY_FIRST_S
from holdfast.agent.sessions import TaskSessions
from holdfast.agent.shim_metrics import ShimUsage
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.foundation.metrics_text import agent_metrics
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.agent_rpc import AgentCall, AgentCallKind, ExecOutput, LogLine, MetricsText, UsageRow
from holdfast.model.errors import Fault
from holdfast.model.quantity import CPU, MEMORY
from holdfast.model.task_programs import MAIN_PROGRAM

# Calls in flight per agent. Further calls are refused.
AGENT_CALLS_PER_NODE_MAX = 32
# Log lines per chunk of a response, and lines buffered while following a log. At the limit the reader waits.
AGENT_CALL_LINES_MAX = 1_000
# Interval at which a followed log is checked for new lines.
LOG_FOLLOW_EVERY_S = 0.3
# Longest duration of `holdfast exec`. After that, the command is killed.
AGENT_EXEC_MAX_S = 3600.0
# Output of `holdfast exec`. The rest is cut off.
AGENT_EXEC_OUTPUT_BYTES_MAX = 256 * 1024

_log = structlog.get_logger()
_encoder = msgspec.json.Encoder()
_USAGE_WINDOW_S = 0.5


class AgentRpcStream(Protocol):
    """Connection to the region: calls in, response chunks out."""

    def agent_calls(self, node: str) -> AsyncIterator[AgentCall]: ...

    async def send_response(self, node: str, call_id: str, data: bytes, *, end: bool) -> bool:
        """Returns False when the caller has disconnected."""


class AgentRpcServer:
    """`running` returns the running tasks with their drivers."""

    def __init__(
        self,
        node: str,
        stream: AgentRpcStream,
        tasks_dirs: tuple[Path, ...],
        ports: Ports,
        running: Callable[[], Iterable[tuple[Task, Driver]]],
        *,
        sessions: TaskSessions | None = None,
        shims: ShimUsage | None = None,
    ) -> None:
        self._sessions, self._shims = sessions, shims
        self._open_sessions: dict[asyncio.Task[None], None] = {}
        self._node, self._stream, self._tasks_dirs, self._ports = node, stream, tasks_dirs, ports
        self._running = running
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        backoff = Backoff(self._ports.random, first_s=AGENT_RETRY_FIRST_S, max_s=limits.RECONNECT_MAX_S)
        try:
            while True:
                try:
                    async for call in self._stream.agent_calls(self._node):
                        backoff.reset()
                        self._start_call(call)
                except (Fault, OSError, TimeoutError) as fault:
                    _log.debug("agent_call_stream_failed", node=self._node, error=str(fault))
                # Without the stream nobody would notice that the server of an idle session is gone.
                await cancel_and_wait(*self._open_sessions)
                await self._ports.clock.sleep(backoff.next_s())
        finally:
            await cancel_and_wait(*self._tasks, *self._open_sessions)

    def _start_call(self, call: AgentCall) -> None:
        if call.session is not None:
            if self._sessions is not None:
                session = asyncio.create_task(_log_faults(self._sessions.serve(call), call), name=f"session:{call.id}")
                self._open_sessions[session] = None
                session.add_done_callback(lambda done: self._open_sessions.pop(done, None))
            return
        work = self._handle(call) if len(self._tasks) < AGENT_CALLS_PER_NODE_MAX else self._refuse_call(call)
        task = asyncio.create_task(_log_faults(work, call), name=f"call:{call.id}")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _refuse_call(self, call: AgentCall) -> None:
        error = f"node {self._node}: too many calls in progress (limit {AGENT_CALLS_PER_NODE_MAX}); try again"
        await self._send(call, [{"error": error}], end=True)

    async def _handle(self, call: AgentCall) -> None:
        match call.arguments.kind:
            case AgentCallKind.LOGS:
                await self._logs(call)
            case AgentCallKind.EXEC:
                await self._exec(call)
            case AgentCallKind.USAGE:
                await self._usage(call)
            case AgentCallKind.METRICS:
                if self._shims is not None:
                    await run_in_thread(self._shims.update)
                await self._send(call, [MetricsText(agent_metrics())], end=True)

    async def _send(self, call: AgentCall, rows: Iterable[object], *, end: bool = False) -> bool:
        data = b"".join(_encoder.encode(row) + b"\n" for row in rows)
        return await self._stream.send_response(self._node, call.id, data, end=end)

    async def _logs(self, call: AgentCall) -> None:
        found = [one for where in self._tasks_dirs for one in logs.find_task_logs(where, call.namespace, call.replica)]
        arguments = call.arguments
        selected = logs.select_log(found, attempt=arguments.attempt, previous=arguments.previous)
        if selected is None:
            which = "no logs of earlier runs" if arguments.previous and found else "no logs"
            kept = f"the logs of the last {AGENT_ENDED_TASKS_MAX} ended tasks are kept"
            error = f"replica {call.replica}: {which} on node {self._node} ({kept})"
            await self._send(call, [{"error": error}], end=True)
            return
        log, until = selected
        path = log.of_program(arguments.program)
        if path is None:
            known = ", ".join((MAIN_PROGRAM, *log.programs))
            error = f"container {arguments.program} is not valid for replica {call.replica} (it has {known})"
            await self._send(call, [{"error": error}], end=True)
            return

        def is_running() -> bool:
            mine = (
                task for task, _ in self._running() if (task.namespace, task.replica) == (call.namespace, call.replica)
            )
            return not until and any(task.attempt == log.attempt for task in mine)

        if not arguments.follow or not is_running():
            lines = [LogLine(line.at, line.stream, line.text) for line in logs.tail(path, limits.LOG_TAIL_LINES_MAX)]
            lines = [line for line in lines if not until or not line.at or line.at < until]
            lines = lines[-arguments.tail :] if arguments.tail else []
            for start in range(0, len(lines), AGENT_CALL_LINES_MAX):
                if not await self._send(call, lines[start : start + AGENT_CALL_LINES_MAX]):
                    return
            await self._send(call, [], end=True)
            return
        gathered: list[LogLine] = []
        listening = asyncio.create_task(self._send_gathered(call, gathered))
        try:
            async for line in logs.follow(path, self._ports.clock, lines=arguments.tail, is_growing=is_running):
                gathered.append(LogLine(line.at, line.stream, line.text))
                while len(gathered) >= AGENT_CALL_LINES_MAX and not listening.done():
                    await self._ports.clock.sleep(AGENT_FLUSH_EVERY_S)
                if listening.done():
                    return
        finally:
            await cancel_and_wait(listening)
        await self._send(call, gathered, end=True)

    async def _send_gathered(self, call: AgentCall, gathered: list[LogLine]) -> None:
        """Sends the gathered lines at short intervals. Returns when the caller has disconnected."""
        while True:
            rows, gathered[:] = list(gathered), []
            if not await self._send(call, rows):
                return
            await self._ports.clock.sleep(AGENT_FLUSH_EVERY_S if rows else LOG_FOLLOW_EVERY_S)

    async def _exec(self, call: AgentCall) -> None:
        arguments = call.arguments
        found = [(t, d) for t, d in self._running() if (t.namespace, t.replica) == (call.namespace, call.replica)]
        if not found:
            await self._send(call, [{"error": f"replica {call.replica}: not running on node {self._node}"}], end=True)
            return
        task, driver = found[0]
        _log.info("command_executed", task=task.id, command=arguments.command[:8])
        try:
            done = await driver.execute(
                task.id,
                arguments.command,
                min(arguments.timeout_seconds, AGENT_EXEC_MAX_S),
                AGENT_EXEC_OUTPUT_BYTES_MAX,
            )
        except TimeoutError:
            await self._send(
                call, [{"error": f"command did not finish within {arguments.timeout_seconds:g} s"}], end=True
            )
            return
        await self._send(call, [ExecOutput(code=done.code, output=done.output)], end=True)

    async def _usage(self, call: AgentCall) -> None:
        """CPU is the use within a short window, in millicores. A call on behalf of a tenant names the replicas of that
        tenant only.
        """
        before = {task.id: driver.usage(task.id) for task, driver in self._running()}
        began = self._ports.clock.monotonic()
        await self._ports.clock.sleep(_USAGE_WINDOW_S)
        took_s = max(0.001, self._ports.clock.monotonic() - began)
        rows = []
        for task, driver in self._running():
            was, now = before.get(task.id), driver.usage(task.id)
            cpu = int((now.cpu_s - was.cpu_s) / took_s * 1000) if was is not None and now is not None else 0
            rows.append(
                UsageRow(
                    namespace=task.namespace,
                    workload=task.workload,
                    replica=task.replica,
                    cpu=max(0, cpu),
                    cpu_requested=task.resources.get(CPU, 0),
                    memory=now.memory_bytes if now is not None else 0,
                    memory_requested=task.resources.get(MEMORY, 0),
                    processes=now.processes if now is not None else 0,
                )
            )
        await self._send(call, _visible_rows(rows, call.namespace), end=True)


def _visible_rows(rows: list[UsageRow], tenant: str) -> list[UsageRow]:
    """The tenant's own rows, and one row without names that sums up all others. Every row if no tenant is given."""
    if not tenant:
        return rows
    own = [row for row in rows if row.namespace == tenant]
    others = [row for row in rows if row.namespace != tenant]
    if others:
        amounts = ("cpu", "cpu_requested", "memory", "memory_requested", "processes")
        sums = {name: sum(getattr(row, name) for row in others) for name in amounts}
        own.append(UsageRow(namespace="", workload="", replica="", **sums))
    return own


async def _log_faults(work: Coroutine[Any, Any, None], call: AgentCall) -> None:
    try:
        await work
    except (Fault, OSError, TimeoutError) as fault:
        _log.info("agent_call_failed", id=call.id, kind=call.arguments.kind, error=str(fault))
