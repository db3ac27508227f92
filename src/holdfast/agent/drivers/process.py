"""Process driver: runs tasks as plain processes. Each run belongs to a shim (`agent.shim`) that outlives the agent.

- A start is on disk before its shim exists.
- The end of a shim comes from the kernel (pidfd), the exit of the task from the shim's record.
- A task counts as ended only when its shim is gone and none of its processes is left, by control group or by uid. If a
  shim was killed and the node has neither, exclusive work counts as running until an operator or a reboot ends it.
- No signal goes to a pid that was not verified to be the intended process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from pathlib import Path

import structlog

from holdfast.agent.cgroups import NoIsolation, TaskIsolation, Usage
from holdfast.agent.drivers.artifacts import ArtifactCache
from holdfast.agent.drivers.command_session import CommandSession
from holdfast.agent.drivers.commands import CommandRunner
from holdfast.agent.drivers.contract import (
    PROBE_OUTPUT_BYTES_MAX,
    DiscoveredTask,
    Driver,
    ExecResult,
    StartedTask,
    StartFailed,
    Task,
    TaskExit,
    TaskPrograms,
)
from holdfast.agent.drivers.live_shim import LiveShim
from holdfast.agent.drivers.lost_runs import LostRuns
from holdfast.agent.drivers.open_commands import OpenCommands
from holdfast.agent.drivers.program_launch import add_termination_file, has_programs, program_settings, read_programs
from holdfast.agent.drivers.records import (
    DISK_FULL_ERRNOS,
    TASK_MARK_ENV,
    StartedRecord,
    TaskDir,
    TaskRecord,
    write_in_place,
)
from holdfast.agent.drivers.removal import remove_tree
from holdfast.agent.drivers.shim_processes import read_start_report, spawn_shim
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.ports_in_use import find_port_in_use, port_in_use_failure
from holdfast.agent.shim_guard import encode_deadline
from holdfast.agent.task_config import TaskConfig
from holdfast.agent.task_decision import WATCHDOG_KILL_LEAD_S, WATCHDOG_LEAD_S
from holdfast.agent.task_users import UserAssignment
from holdfast.foundation.ports import Clock
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits, times
from holdfast.model.config_references import has_values
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus
from holdfast.model.template import udp_ports

# Time for a shim to report that its task runs. After that, the start has failed and the shim is killed.
AGENT_START_TIMEOUT_S = 20.0
# Time for a shim to write the exit record after its task was killed. After that, the shim is killed.
AGENT_EXIT_DRAIN_S = 5.0
# Ended tasks whose logs are kept on the node. The oldest are deleted.
AGENT_ENDED_TASKS_MAX = 64

_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HOME")
_POLL_S = 0.02

_log = structlog.get_logger()


class ProcessDriver(Driver):
    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        confinement: TaskIsolation | None = None,
        artifacts: ArtifactCache | None = None,
        users: UserAssignment | None = None,
        volumes: TaskVolumes | None = None,
        config: TaskConfig | None = None,
    ) -> None:
        """`root` holds one directory per task and the lease file of exclusive tasks. Without `users` tasks run as the
        user of this process.
        """
        self._root = root
        self._clock = clock
        self._confinement = confinement or NoIsolation()
        self._artifacts = artifacts
        self._live: dict[str, LiveShim] = {}
        self._exits: asyncio.Queue[TaskExit] = asyncio.Queue()
        self._users = users
        self._volumes = volumes or TaskVolumes()
        self._config = config
        self._sweeps: dict[str, asyncio.Task[None]] = {}
        self._lost_runs = LostRuns(clock)
        self._commands = CommandRunner()
        self._open_commands = OpenCommands()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o711)
        if users is not None:
            users.adopt(root)

    @property
    def name(self) -> str:
        return "process"

    # --- discovery ---------------------------------------------------------------------------------------------

    async def inspect(self) -> list[DiscoveredTask]:
        found = []
        for path in sorted(path for path in self._root.iterdir() if path.is_dir()):
            folder = TaskDir(path)
            record = await asyncio.to_thread(folder.read)
            if record is None and folder.shim_pid() == 0:
                remove_tree(path)  # the agent stopped before it had recorded a start
            if record is not None and not record.forgotten:
                found.append(await self._discover(folder, record.task))
        return found

    async def _discover(self, folder: TaskDir, task: Task) -> DiscoveredTask:
        """The state of one task. A recorded start that never launched is withdrawn, so that it cannot launch later."""
        pidfd = folder.open_shim_pidfd()
        if pidfd is not None and folder.exit(task.run) is None:
            started = await self._await_started(folder, task.run)
            if started is not None:
                self._watch(task, pidfd, folder.shim_pid())
                return DiscoveredTask(task=task, pid=started.pid, started_at_s=started.at_s)
        if pidfd is not None:
            await self._await_end(pidfd)
        if folder.started(task.run) is None and folder.exit(task.run) is None:
            late = await self._withdraw(folder, task)
            if late is not None:
                return late
        started = folder.started(task.run)
        if started is not None and folder.exit(task.run) is None and task.exclusive:
            # The end may not be certain for a long time, and the other tasks must not wait for it.
            self._live[task.id] = live = LiveShim(task, -1, 0)
            live.starting = True  # an exit within this call is returned by it, not by next_exit
            await asyncio.wait((self._finish_later(folder, live),), timeout=AGENT_EXIT_DRAIN_S)
            live.starting = False
            if not live.ended.done():
                return DiscoveredTask(task=task, pid=started.pid, started_at_s=started.at_s)
            exit_ = live.ended.result()
        else:
            exit_ = folder.exit(task.run) or await self._lost_runs.end(folder, task)
        at_s = times.parse_time(exit_.at) if exit_.at else 0.0
        return DiscoveredTask(
            task=task,
            pid=started.pid if started else 0,
            started_at_s=started.at_s if started else 0.0,
            exit=exit_,
            ended_at_s=at_s,
        )

    async def _withdraw(self, folder: TaskDir, task: Task) -> DiscoveredTask | None:
        """Ensures that a run without a shim never starts; returns the task if it started after all.

        The stop request is written before the lock is checked. A shim that comes later sees the request; a shim that
        took the lock earlier is seen here, and may have passed the check for the request already.
        """
        folder.request_stop(task.run, 0.0)
        pidfd = folder.open_shim_pidfd()
        if pidfd is None:
            return None
        started = await self._await_started(folder, task.run)
        if started is None:
            await self._await_end(pidfd)
            return None
        folder.withdraw_stop(task.run)
        self._watch(task, pidfd, folder.shim_pid())
        return DiscoveredTask(task=task, pid=started.pid, started_at_s=started.at_s)

    async def _await_started(self, folder: TaskDir, run: int) -> StartedRecord | None:
        give_up = self._clock.monotonic() + AGENT_START_TIMEOUT_S
        while self._clock.monotonic() < give_up:
            started = folder.started(run)
            if started is not None:
                return started
            if folder.shim_pid() == 0:
                return None
            await self._clock.sleep(_POLL_S)
        return None

    async def _await_end(self, pidfd: int) -> None:
        """Waits until a shim that wrote its exit, or received a stop request, is gone. Kills it after a timeout."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(AGENT_START_TIMEOUT_S):
                await ended.wait()
        except TimeoutError:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def unconfirmed(self) -> dict[str, str]:
        """Exclusive tasks whose shim was killed and of which processes may be left → what to do about each."""
        return self._lost_runs.unconfirmed()

    # --- starting ----------------------------------------------------------------------------------------------

    async def fetch(self, task: Task) -> None:
        if self._config is not None:
            await self._config.fetch(task)
        if self._artifacts is None or not task.template.artifacts:
            return
        try:
            await self._artifacts.fetch(task.namespace, task.id, task.template.artifacts)
        except OSError as error:
            raise StartFailed(start_failure_reason(error), f"artifacts: cannot store them ({error})") from error

    async def start(self, task: Task) -> StartedTask:
        folder = TaskDir(self._root / task.id)
        live = self._live.get(task.id)
        if live is not None:
            return self._already_started(folder, live, task)
        await self.fetch(task)
        taken = find_port_in_use(task.ports, udp_ports(task.template))
        if taken is not None:
            raise port_in_use_failure(task.template, *taken)
        try:
            await asyncio.to_thread(self._prepare_freeing_space, folder, task)
        except OSError as error:
            raise StartFailed(
                start_failure_reason(error), f"task directory {folder.path}: cannot prepare it ({error})"
            ) from error
        report_r, report_w = os.pipe()
        try:
            pid = spawn_shim(folder.path, task.run, report_w)
        except OSError as error:
            os.close(report_r)
            raise StartFailed(Reason.START_ERROR, f"cannot start the shim ({error})") from error
        finally:
            os.close(report_w)
        live = self._watch(task, os.pidfd_open(pid), pid)
        live.starting = True  # an exit before the shim has reported is returned by this call, not by next_exit
        report = await read_start_report(report_r, AGENT_START_TIMEOUT_S)
        if report.startswith("started"):
            live.starting = False
            if live.ended.done() and not live.stopping:
                self._exits.put_nowait(TaskExit(task_id=task.id, run=task.run, exit=live.ended.result()))
            _, work_pid, at = report.split()
            return StartedTask(pid=int(work_pid), started_at_s=float(at))
        return await self._not_started(folder, live, report)

    def _prepare_freeing_space(self, folder: TaskDir, task: Task) -> None:
        """If the disk is full, deletes the logs of ended tasks and tries again."""
        try:
            self._prepare(folder, task)
        except (OSError, StartFailed) as failure:
            full = (
                failure.reason == Reason.DISK_FULL
                if isinstance(failure, StartFailed)
                else failure.errno in DISK_FULL_ERRNOS
            )
            if not full or not self._delete_ended(0):
                raise
            self._prepare(folder, task)

    def _prepare(self, folder: TaskDir, task: Task) -> None:
        """Prepares the run in a thread: artifacts, control groups, records."""
        settings = self._confinement.prepare(task.id, task.resources)
        folder.empty_tmp()
        if self._users is not None:
            settings += self._users.prepare(task, folder.path)
        elif task.template.user:
            raise StartFailed(Reason.USER_NOT_ALLOWED, f"user {task.template.user}: not allowed by this driver")
        if task.exclusive:
            settings += [("lease", self._lease), ("epoch", task.node_epoch)]
        if task.exclusive or task.run_until_mono_s is not None:
            settings += [("lead", WATCHDOG_LEAD_S), ("force", WATCHDOG_KILL_LEAD_S)]
        if self._artifacts is not None and task.template.artifacts:
            self._artifacts.install(task.id, folder.path / "work")
        if self._config is not None:
            settings += self._config.install(task, folder.path / "work", settings)
        elif has_values(task.template):
            raise StartFailed(Reason.CONFIG_UNREACHABLE, "references to Secrets: not supported by this driver")
        settings += self._volumes.prepare(task, folder.path, settings)
        settings += program_settings(task, folder.path / "work")
        env = {**self._environment(folder, task), **self._volumes.environment(task, folder.path)}
        env |= add_termination_file(task, folder.path / "work", settings)
        folder.prepare(task, env, settings)
        folder.set_run_until(task.run, task.run_until_mono_s)

    @property
    def _lease(self) -> Path:
        return self._root / "lease"

    def set_lease(self, epoch: int, until_mono_s: float) -> None:
        """Overwrites the lease file in place: a renewal needs no free disk space, and need not survive a power loss."""
        write_in_place(self._lease, encode_deadline(epoch, until_mono_s))

    def set_run_until(self, task_id: str, until_mono_s: float | None) -> None:
        live = self._live.get(task_id)
        if live is not None:
            TaskDir(self._root / task_id).set_run_until(live.task.run, until_mono_s)

    def _already_started(self, folder: TaskDir, live: LiveShim, task: Task) -> StartedTask:
        started = folder.started(live.task.run)
        if live.task.run != task.run or started is None:
            message = f"task {task.id}: run {live.task.run} is still running; stop it before starting run {task.run}"
            raise StartFailed(Reason.START_ERROR, message)
        return StartedTask(pid=started.pid, started_at_s=started.at_s)

    async def _not_started(self, folder: TaskDir, live: LiveShim, report: str) -> StartedTask:
        """Waits until the shim is gone, so that its record is final, then raises StartFailed with the reason."""
        task = live.task
        try:
            async with asyncio.timeout(AGENT_START_TIMEOUT_S):
                ended = await asyncio.shield(live.ended)
        except TimeoutError:
            folder.request_stop(task.run, 0.0)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(live.pidfd, signal.SIGKILL)
            ended = await live.ended
        if report in ("failed", "too late"):
            raise StartFailed(ended.reason, ended.message)
        if report.startswith("refused"):
            _, number, message = report.split(" ", 2)
            if int(number) not in DISK_FULL_ERRNOS:
                raise StartFailed(Reason.START_ERROR, message)
            await asyncio.to_thread(self._delete_ended, 0)  # the records fitted, and then the disk was full
            raise StartFailed(Reason.DISK_FULL, message)
        raise StartFailed(Reason.START_ERROR, f"task {task.id}: the shim did not start it ({report or ended.message})")

    def _environment(self, folder: TaskDir, task: Task) -> dict[str, str]:
        """Environment of the task. Of the agent's own environment only the variables in _INHERITED are passed on."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        inherited.setdefault("PATH", os.defpath)
        if self._users is not None:
            inherited = self._users.environment(folder.path, inherited)
        return {**inherited, **task.env, TASK_MARK_ENV: folder.id}

    # --- stop and exit -----------------------------------------------------------------------------------------

    def _watch(self, task: Task, pidfd: int, shim_pid: int) -> LiveShim:
        live = LiveShim(task, pidfd, shim_pid)
        self._live[task.id] = live
        asyncio.get_running_loop().add_reader(pidfd, self._shim_gone, live)
        return live

    def _shim_gone(self, live: LiveShim) -> None:
        asyncio.get_running_loop().remove_reader(live.pidfd)
        os.close(live.pidfd)
        live.pidfd = -1
        with contextlib.suppress(ChildProcessError):  # an adopted shim is not our child
            os.waitpid(live.shim_pid, os.WNOHANG)
        folder = TaskDir(self._root / live.task.id)
        known = folder.exit(live.task.run)
        if known is not None and not self._open_commands.had_any(live.task.id):
            self._finish(live, known)
        else:
            self._finish_later(folder, live)

    def _finish_later(self, folder: TaskDir, live: LiveShim) -> asyncio.Task[None]:
        """Finishes a run when the end of its processes is certain: its shim left no exit record, or it had sessions."""

        async def finish() -> None:
            if self._open_commands.had_any(live.task.id):
                await self._open_commands.end(folder, live.task.run)
            self._finish(live, folder.exit(live.task.run) or await self._lost_runs.end(folder, live.task))

        sweep = self._sweeps[live.task.id] = asyncio.create_task(finish(), name=f"sweep:{live.task.id}")
        sweep.add_done_callback(lambda _: self._sweeps.pop(live.task.id, None))
        return sweep

    def _finish(self, live: LiveShim, exit_: ExitStatus) -> None:
        del self._live[live.task.id]
        live.end(TaskDir(self._root / live.task.id), exit_)
        if not live.stopping and not live.starting:
            self._exits.put_nowait(TaskExit(task_id=live.task.id, run=live.task.run, exit=exit_))

    async def stop(self, task_id: str, grace_s: float) -> ExitStatus:
        folder = TaskDir(self._root / task_id)
        live = self._live.get(task_id)
        if live is None:
            record = folder.read()
            known = folder.exit(record.task.run) if record is not None else None
            return known or ExitStatus(reason=Reason.NEVER_STARTED, message="the task is not running")
        live.stopping = True
        await asyncio.to_thread(folder.request_stop, live.task.run, grace_s)
        if not live.ended.done():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(live.pidfd, signal.SIGUSR1)
        try:
            async with asyncio.timeout(grace_s + limits.KILL_DURATION_MAX_S + AGENT_EXIT_DRAIN_S):
                return await asyncio.shield(live.ended)
        except TimeoutError:
            # The shim itself hangs (suspended or starved). Its death kills the task.
            _log.warning("shim_killed", task=task_id, shim=live.shim_pid)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(live.pidfd, signal.SIGKILL)
            return await asyncio.shield(live.ended)

    async def next_exit(self) -> TaskExit:
        return await self._exits.get()

    async def forget(self, task_id: str) -> None:
        await asyncio.to_thread(self._forget, task_id)

    def _forget(self, task_id: str) -> None:
        """Keeps the newest ended tasks for their logs and deletes older ones."""
        folder = TaskDir(self._root / task_id)
        record = folder.read()
        if self._artifacts is not None:
            self._artifacts.release(task_id)
        if self._config is not None:
            self._config.forget(task_id)
        if record is not None:
            remove_tree(folder.path / "work")
            emptied = self._volumes.remove(record.task, folder.path)
            folder.empty_tmp()
            self._confinement.forget(task_id)
            if self._users is not None and emptied and not (folder.path / "work").exists():
                self._users.release(task_id)
            try:
                folder.write(TaskRecord(task=record.task, forgotten=True))
            except OSError as error:
                _log.warning("task_logs_deleted", task=task_id, error=str(error))
                remove_tree(folder.path)
        self._delete_ended(AGENT_ENDED_TASKS_MAX)

    def _delete_ended(self, kept_tasks: int) -> int:
        """Deletes the directories of forgotten tasks, except the newest `kept_tasks`. Returns how many."""
        ended = []
        for path in self._root.iterdir():
            kept = TaskDir(path).read()
            if kept is not None and kept.forgotten:
                ended.append(((path / "task.json").stat().st_mtime, path))
        going = sorted(ended)[: max(0, len(ended) - kept_tasks)]
        for _, path in going:
            remove_tree(path)
        return len(going)

    # --- exec, usage and logs ----------------------------------------------------------------------------------

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = PROBE_OUTPUT_BYTES_MAX
    ) -> ExecResult:
        folder = TaskDir(self._root / task_id)
        live = self._live.get(task_id)
        if live is None:
            return ExecResult(code=127, output="the task is not running")
        try:
            return await self._commands.run(
                folder.path, live.task.run, command, timeout_s=timeout_s, output_bytes=output_bytes
            )
        except TimeoutError:
            raise
        except OSError as error:
            return ExecResult(code=127, output=f"{command[0]}: {error}")

    def programs(self, task_id: str) -> TaskPrograms | None:
        folder, live = TaskDir(self._root / task_id), self._live.get(task_id)
        record = folder.read() if live is None else None
        task = live.task if live is not None else record.task if record is not None else None
        if task is None or not has_programs(task):
            return None
        return read_programs(folder.run_dir(task.run) / "programs")

    def open_command(self, task_id: str, command: tuple[str, ...], *, tty: bool) -> CommandSession:
        live = self._live.get(task_id)
        if live is None or live.stopping or live.pidfd < 0:
            raise ProcessLookupError(errno.ESRCH, "the task is not running")
        opened = self._commands.open(self._root / task_id, live.task.run, command, tty=tty)
        return self._open_commands.add(task_id, opened)

    def usage(self, task_id: str) -> Usage | None:
        return self._confinement.usage(task_id) if task_id in self._live else None

    def logs(self, task_id: str) -> Path | None:
        return self._root / task_id / "output.log"

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for live in self._live.values():
            if live.pidfd >= 0:
                loop.remove_reader(live.pidfd)
                os.close(live.pidfd)
        await cancel_and_wait(*self._sweeps.values())
        self._commands.close()
        self._live.clear()


def start_failure_reason(error: OSError) -> Reason:
    return Reason.DISK_FULL if error.errno in DISK_FULL_ERRNOS else Reason.START_ERROR
