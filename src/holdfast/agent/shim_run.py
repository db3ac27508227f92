"""One run, from the shim's side: launch, output, stop, deadline, exit. The invariants are in `shim`."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time

from holdfast.agent.shim import boot_id, read_record, reserve_record, start_ticks, write_record
from holdfast.agent.shim_guard import (
    NO_DEADLINE,
    BoottimeTimer,
    Deadline,
    boottime,
    has_processes,
    kill_user,
    libc,
    start_guard,
)
from holdfast.agent.shim_launch import Launch
from holdfast.agent.shim_mounts import VolumeMeasurement, stage_volumes
from holdfast.agent.shim_network import NetworkFailed, RunNetwork
from holdfast.agent.shim_output import LogWriter
from holdfast.agent.shim_programs import (
    ProgramsFile,
    RunProgram,
    exit_of,
    fork_program,
    open_gate,
    start_failure_reason,
)
from holdfast.agent.shim_sequence import DONE, Sequence
from holdfast.agent.shim_termination import make_termination_file, read_termination_file, save_termination_message

STATUS_FD = 3
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 65536
# Time without output after which an unfinished line is written to the log.
IDLE_FLUSH_MS = 1000
# Time to kill and reap the processes that the task left behind. After that, the shim records the exit.
ORPHAN_SWEEP_S = 5.0
# Reads per stream before the shim looks at its other events, so that a flood of output does not delay a stop.
READS_PER_POLL = 16
EXIT_RECORD_BYTES = 2048
STARTED_RECORD_BYTES = 512
# Attempts to take the lock of the task, two seconds in all. After that, the shim exits: an earlier run holds the lock.
LOCK_ATTEMPTS = 200
LOCK_PAUSE_S = 0.01
# Shortest wait for a step that is overdue, so that a process that the kernel cannot kill costs no CPU.
OVERDUE_WAIT_MS = 10


class Shim:
    def __init__(self, run: int) -> None:
        self.run = run
        self.dir = f"run-{run}"
        self.stop_grace_s = 0.0
        self.deadline_reason = ""
        self.guard = 0
        self.guard_fd = -1
        self.network = RunNetwork("", [])

    def try_start(self) -> str:
        """Starts the task. Returns why it did not start; empty on success."""
        started = read_record(f"{self.dir}/started")
        if started is not None:
            return "already started"
        if os.path.exists(f"{self.dir}/stop"):
            return "withdrawn"
        self.launch = launch = Launch(f"{self.dir}/launch")
        self.deadline = Deadline(launch.lease, launch.epoch, f"{self.dir}/until")
        reserve_record(f"{self.dir}/exit", EXIT_RECORD_BYTES)
        end_s, reason = self.deadline.read()
        if end_s - launch.lead_s <= boottime():
            self._record_exit(None, "", "NeverStarted", f"the deadline passed before the task could start ({reason})")
            return "too late"
        self._ensure_guard()
        self.network = RunNetwork(launch.network, launch.forwards)
        try:
            self.network.start()
            stage_volumes(launch)
            if launch.termination_owner[0] >= 0:
                make_termination_file(launch.termination_file, *launch.termination_owner)
        except NetworkFailed as error:
            self._cleanup()
            self._record_exit(127, "", "NetworkFailed", f"no network of its own: {error.strerror}")
            return "failed"
        except OSError as error:
            self._cleanup()
            self._record_exit(127, "", "VolumeUnavailable", f"cannot mount its volumes: {error.strerror or error}")
            return "failed"
        self.measurement = VolumeMeasurement(launch)
        self.streams: dict[int, tuple[LogWriter, int]] = {}
        self.poll = select.poll()
        several = bool(launch.around or launch.hooks)
        self.sequence = Sequence(launch, self._start, ProgramsFile(f"{self.dir}/programs") if several else None)
        first = self.sequence.first
        failure = self.sequence.begin()
        if failure:
            number, _, message = failure.partition(" ")
            command = os.fsdecode(first.launch.argv[0])
            if first is not self.sequence.main:
                command = f"{first.launch.kind} {first.name}: {command}"
            self._cleanup()
            self._record_exit(127, "", start_failure_reason(int(number), message), f"{command}: {message}")
            return "failed"
        return ""

    @property
    def child(self) -> int:
        """The process of the first program, which the agent is told."""
        return self.sequence.first.pid

    def _start(self, program: RunProgram) -> str:
        """Starts a program of the run. Returns why it could not execute; empty on success."""
        if program.output is None:
            name = "output.log" if program is self.sequence.main else f"program-{program.name}.log"
            program.output = LogWriter(name, self.launch.log_bytes, self.launch.log_files)
        program.pid, gate, failed, *streams = fork_program(self.launch, program.launch)
        program.last_pid = program.pid
        for index, fd in enumerate(streams):
            self.streams[fd] = (program.output, index)
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        if program is self.sequence.main or (program is self.sequence.first and not program.restarts):
            self._record_start(program)
        failure = open_gate(gate, failed)
        if failure:
            _, program.status = os.waitpid(program.pid, 0)
            program.pid = 0
        return failure

    def _record_start(self, program: RunProgram) -> None:
        """The run has started with its first program. When the main task starts, the record names its process."""
        if program is self.sequence.first:
            self.started_at = program.started_at
        record = {
            "run": str(self.run),
            "pid": str(program.pid),
            "ticks": str(start_ticks(program.pid)),
            "shim": str(os.getpid()),
            "boot": boot_id(),
            "at": repr(self.started_at),
        }
        write_record(f"{self.dir}/started", record)
        if program is not self.sequence.main:
            reserve_record(f"{self.dir}/started", STARTED_RECORD_BYTES)

    def _ensure_guard(self) -> None:
        """Starts the guard, again if it died: a task with a lease or a deadline always has one."""
        if not self.launch.lease and not os.path.exists(self.deadline.until):
            return
        if self.guard_fd >= 0:
            os.close(self.guard_fd)
        self.guard, self.guard_fd = start_guard(
            self.deadline, force_s=self.launch.force_s / 2, processes=self.launch.task_processes
        )

    def serve(self, wake: int) -> None:
        """Runs until every program has ended and nothing of the run is left."""
        poll, sequence = self.poll, self.sequence
        poll.register(wake, select.POLLIN)
        timer = BoottimeTimer()
        poll.register(timer.fd, select.POLLIN)
        timer.set(self.deadline.read()[0] - self.launch.lead_s)
        sequence.advance()
        while sequence.stage != DONE:
            events = poll.poll(self._poll_timeout_ms())
            if not events:
                self._flush()
            for fd, _ in events:
                if fd == wake:
                    self._on_wakeup(wake)
                elif fd == timer.fd:
                    timer.clear()
                    timer.set(self._check_deadline())
                elif not self._drain(fd, READS_PER_POLL):
                    self._close_stream(fd)
            sequence.advance()
            self.measurement.advance()
        self._sweep()
        for fd in list(self.streams):
            self._drain(fd, READS_PER_POLL)
        self._flush()
        self._record_end()

    def _flush(self) -> None:
        for program in self.sequence.programs:
            if program.output is not None:
                program.output.flush()

    def _close_stream(self, fd: int) -> None:
        self.poll.unregister(fd)
        os.close(fd)
        del self.streams[fd]

    def _poll_timeout_ms(self) -> int:
        pending = any(any(p.output.pending) for p in self.sequence.programs if p.output is not None)
        timeout_ms = IDLE_FLUSH_MS if pending else -1
        for at in (self.sequence.next_at(), self.measurement.next_at()):
            if at is not None:
                left_ms = max(OVERDUE_WAIT_MS, int((at - boottime()) * 1000) + 1)
                timeout_ms = left_ms if timeout_ms < 0 else min(timeout_ms, left_ms)
        return timeout_ms

    def _check_deadline(self) -> float:
        """Stops the task when its deadline is near. Returns when to check again."""
        end_s, reason = self.deadline.read()
        if boottime() < end_s - self.launch.lead_s:
            return end_s - self.launch.lead_s
        self.deadline_reason = reason
        self._stop_by(max(boottime(), end_s - self.launch.force_s))
        return NO_DEADLINE

    def _stop_by(self, kill_at: float) -> None:
        """The first call begins to stop, if there is time for it; later calls can only move the kill time earlier."""
        before = self.sequence.kill_at
        if before is None or kill_at < before:
            self.stop_grace_s = max(0.0, kill_at - boottime())
        self.sequence.stop_by(kill_at)

    def _on_wakeup(self, wake: int) -> None:
        os.read(wake, 4096)
        self._reap()
        request = read_record(f"{self.dir}/stop")
        if request is None or self.sequence.stage == DONE:
            return
        grace_s = float(request.get("grace", "0"))
        first = self.sequence.kill_at is None
        self._stop_by(boottime() + grace_s)
        if first:
            self.stop_grace_s = grace_s

    def _drain(self, fd: int, reads: int) -> bool:
        """Reads available output, up to a bound. Returns False when the stream has ended."""
        for _ in range(reads):
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            writer, stream = self.streams[fd]
            writer.feed(stream, data)
        return True

    def _reap(self) -> None:
        """Orphans of the task are reparented to the shim (subreaper) and reaped here.

        A program is reaped after its process group was killed: until then its pid denotes that group.
        """
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if self.sequence.owns(pid):
                try:  # noqa: SIM105 - the shim imports as little as it can
                    os.killpg(pid, signal.SIGKILL)
                except OSError:
                    pass
            _, status = os.waitpid(pid, 0)
            if pid == self.guard:
                self._ensure_guard()
            elif self.measurement.ended(pid, status):
                self.sequence.failure = ("VolumeFull", self.measurement.finding)
                self._stop_by(boottime() + self.launch.grace_s)
            elif self.network.ended(pid):
                self.sequence.failure = ("NetworkFailed", "slirp4netns ended, which connected its network to the node")
                self._stop_by(boottime() + self.launch.grace_s)
            else:
                self.sequence.ended(pid, status)

    def _children(self) -> list[int]:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
            return [pid for pid in map(int, f.read().split()) if pid not in (self.guard, self.network.pid)]

    def _kill_everything(self) -> None:
        self.sequence.signal_all(signal.SIGKILL)
        for pid in self._children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    def _sweep(self) -> None:
        """Kills processes that the task left behind, in other sessions too. Killing a parent reparents its children
        to the shim. Commands beside the task are not its descendants, but in its control groups and under its uid.

        Exclusive work is never given up: its exit is recorded only when nothing of it is left.
        """
        give_up = NO_DEADLINE if self.launch.lease else time.monotonic() + ORPHAN_SWEEP_S
        while (self._children() or self._kill_beside()) and time.monotonic() < give_up:
            self._kill_everything()
            self._reap()
            time.sleep(0.002)

    def _kill_beside(self) -> bool:
        """Kills what is not below the shim. Returns whether there was something."""
        processes = self.launch.task_processes
        if processes.groups:
            return any(has_processes(group) for group in processes.groups) and processes.kill() > 0
        return processes.uid > 0 and kill_user(processes.uid) and bool(processes.find())

    def _record_end(self) -> None:
        sequence = self.sequence
        last = (
            sequence.main
            if sequence.main.status is not None
            else next((one for one in reversed(sequence.init) if one.status is not None), sequence.main)
        )
        code, killed_by = exit_of(last.status) if last.status is not None else (None, "")
        pid, how = last.last_pid, "did not run"
        if last.status is not None:
            how = f"was killed by {killed_by}" if killed_by else f"exited with code {code}"
        if sequence.main_killed and killed_by == "SIGKILL":
            how = f"did not end within the grace period of {self.stop_grace_s:.3g} s and was killed"
            if self.stop_grace_s <= 0:
                how = "was killed at once, as requested"
        stopped = not sequence.ended_by_itself
        reason = "StoppedOnRequest" if stopped else "Killed" if killed_by else "Exited"
        who = f"process {pid}" if last is sequence.main else f"{last.launch.kind} task {last.name}, process {pid},"
        message = f"{who} {how}"
        if sequence.failure[0] and not self.deadline_reason:
            reason, message = sequence.failure
            code = code or 1  # the run has failed, whatever its last program said
        elif self.deadline_reason:
            reason, message = self.deadline_reason, f"{message}, because its deadline was reached"
        elif not stopped and code != 0:
            reason, message = self._refine_reason(reason, message)
        lost = [p.output for p in sequence.programs if p.output is not None and p.output.lost_bytes]
        lost_bytes = sum(writer.lost_bytes for writer in lost)
        if lost:
            message += f"; {lost_bytes} bytes of its output were lost ({lost[0].loss_reason})"
        self._save_termination_message(failed=not stopped and code != 0)
        self._cleanup()
        self._record_exit(code, killed_by, reason, message, lost_bytes=lost_bytes)

    def _save_termination_message(self, *, failed: bool) -> None:
        launch, output = self.launch, self.sequence.main.output
        found = read_termination_file(launch.termination_file) if launch.termination_file else b""
        if not found.strip() and failed and launch.output_is_message and output is not None:
            found = output.tail
        save_termination_message(self.dir, found)

    def _refine_reason(self, reason: str, how: str) -> tuple[str, str]:
        """Refines the reason of a failure with the event counters of the control groups."""
        for group in self.launch.groups:
            if read_event_counter(group, ("memory.events", "memory.oom_control"), b"oom_kill"):
                return "OutOfMemory", f"{how}: the task exceeded its memory limit"
        for group in self.launch.groups:
            if read_event_counter(group, ("pids.events",), b"max"):
                return "TooManyProcesses", f"{how}: the task reached its process limit"
        return reason, how

    def _cleanup(self) -> None:
        """Dismisses the guard, closes the network and removes the control groups. The agent removes groups that are
        still in use later."""
        self.network.close()
        if self.guard_fd >= 0:
            try:  # noqa: SIM105 - the shim imports as little as it can
                os.write(self.guard_fd, b"d")
            except OSError:
                pass
            guard, self.guard = self.guard, 0
            os.close(self.guard_fd)
            try:  # noqa: SIM105 - the same
                os.waitpid(guard, 0)
            except ChildProcessError:
                pass
        for group in self.launch.groups:
            try:
                os.rmdir(group)
            except OSError:
                continue

    def _record_exit(self, code: int | None, killed_by: str, reason: str, message: str, *, lost_bytes: int = 0) -> None:
        record = {
            "run": str(self.run),
            "code": "" if code is None else str(code),
            "signal": killed_by,
            "reason": reason,
            "message": message[:1500],
            "at": repr(time.time()),
            "lost": str(lost_bytes),
        }
        write_record(f"{self.dir}/exit", record)


def read_event_counter(group: str, names: tuple[str, ...], key: bytes) -> int:
    """A counter in an event file of a control group; 0 if there is none."""
    for name in names:
        try:
            with open(f"{group}/{name}", "rb") as f:
                for line in f:
                    counter, _, count = line.partition(b" ")
                    if counter == key:
                        return int(count)
        except (OSError, ValueError):
            continue
    return 0


def report_start(text: str) -> None:
    try:
        os.write(STATUS_FD, text.encode())
        os.close(STATUS_FD)
    except OSError:
        return  # the agent is gone; the next one reads the records


def watch_signals() -> int:
    """A descriptor that becomes readable on a signal. SIGUSR1 means that the `stop` file was written."""
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return wake_r


def take_lock(run_dir: str) -> bool:
    """Whether this process became the task's shim. A late shim of an earlier run may hold the lock briefly."""
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if os.path.exists(f"{run_dir}/started"):
                return False
            time.sleep(LOCK_PAUSE_S)
            continue
        return True
    return False


def close_inherited() -> None:
    """Closes what the agent's own parent left open: a task must not get a descriptor of anybody else."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > STATUS_FD:
            try:  # noqa: SIM105 - the shim imports as little as it can
                os.close(int(name))
            except OSError:
                pass


def main(task_dir: str, run: int) -> int:
    close_inherited()
    os.set_inheritable(STATUS_FD, False)
    os.chdir(task_dir)
    if not take_lock(f"run-{run}"):
        report_start("already started")
        return 0
    wake = watch_signals()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shim = Shim(run)
    try:
        why_not = shim.try_start()
    except OSError as error:
        why_not = f"refused {error.errno} {error}"
    report_start(why_not or f"started {shim.child} {shim.started_at!r}")
    if not why_not:
        shim.serve(wake)
    return 0
