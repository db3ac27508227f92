"""One run, from the shim's side: launch, output, stop, deadline, exit. The invariants are in `shim`."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import sys
import time

from holdfast.agent.shim import boot_id, read_record, reserve_record, start_ticks, write_record
from holdfast.agent.shim_guard import NO_DEADLINE, BoottimeTimer, Deadline, boottime, kill_all, libc, start_guard
from holdfast.agent.shim_output import LogWriter

STATUS_FD = 3
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 65536
# Time without output after which an unfinished line is written to the log.
IDLE_FLUSH_MS = 1000
# Time to kill and reap the processes that the task left behind. Then the shim records the exit.
ORPHAN_SWEEP_S = 5.0
# Reads per stream before the shim looks at its other events, so that a flood of output does not delay a stop.
READS_PER_POLL = 16
EXIT_RECORD_BYTES = 2048
# Attempts to take the lock of the task, two seconds in all. Then the shim exits: an earlier run still holds the lock.
LOCK_ATTEMPTS = 200
LOCK_PAUSE_S = 0.01
RESET_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)


class Launch:
    """The `launch` file: NUL-separated strings, because neither commands nor environments can contain NUL.

    First `key=value` settings up to an empty string, then the length of the command, the command, and the environment.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            parts = f.read().split(b"\0")
        end = parts.index(b"")
        self.groups: list[str] = []
        settings: dict[str, str] = {}
        for part in parts[:end]:
            key, _, value = os.fsdecode(part).partition("=")
            if key == "group":
                self.groups.append(value)
            settings[key] = value
        self.cwd, self.user, self.mark = settings["cwd"], settings["user"], settings["mark"].encode()
        self.log_bytes, self.log_files = int(settings["log_bytes"]), int(settings["log_files"])
        self.lease, self.epoch = settings.get("lease", ""), int(settings.get("epoch", "0"))
        self.lead_s, self.force_s = float(settings.get("lead", "0")), float(settings.get("force", "0"))
        self.uid, self.checkpoint = int(settings.get("uid", "0")), int(settings.get("checkpoint", "0"))
        self.processes_max, self.memory_bytes = int(settings.get("processes", "0")), int(settings.get("memory", "0"))
        count = int(parts[end + 1])
        self.argv = parts[end + 2 : end + 2 + count]
        pairs = (part.partition(b"=") for part in parts[end + 2 + count :])
        self.env = {key: value for key, _, value in pairs}


def child_main(launch: Launch, gate: int, streams: tuple[int, int], failed: int) -> None:
    """Becomes the task. It leads its own session, so that a signal to its process group reaches all of it."""
    stage = "start"
    try:
        os.setsid()
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        if os.read(gate, 1) != b"g":
            os._exit(127)
        for group in launch.groups:
            stage = f"enter the control group {group}"
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as f:
                f.write("0")
        stage = "set its limits"
        set_rlimits(launch)
        if launch.user or launch.uid:
            stage = f"become user {launch.user or launch.uid}"
            switch_user(launch.user, launch.uid)
        stage = f"enter the working directory {launch.cwd}"
        os.chdir(launch.cwd)
        stage = "execute"
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which would clear it
        os.execvpe(launch.argv[0], launch.argv, launch.env)
    except (OSError, KeyError, ValueError) as error:
        code = getattr(error, "errno", 0) or 0
        why = getattr(error, "strerror", None) or str(error)
        os.write(failed, f"{code} cannot {stage}: {why}".encode(errors="replace")[:4000])
    finally:
        os._exit(127)


def set_rlimits(launch: Launch) -> None:
    """Resource limits, used where there are no control groups. Core files are disabled because they fill disks."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if launch.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (launch.memory_bytes, launch.memory_bytes))
    if launch.processes_max:
        resource.setrlimit(resource.RLIMIT_NPROC, (launch.processes_max, launch.processes_max))


def switch_user(user: str, uid: int) -> None:
    if not user:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        return
    import pwd

    entry = pwd.getpwnam(user)
    if os.geteuid() == entry.pw_uid:
        return
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


class Shim:
    def __init__(self, run: int) -> None:
        self.run = run
        self.dir = f"run-{run}"
        self.child = 0
        self.status: int | None = None
        self.kill_at: float | None = None
        self.terminate_at: float | None = None
        """When SIGTERM follows the checkpoint signal, if the task is still running."""
        self.killed = False
        self.stop_grace_s = 0.0
        self.deadline_reason = ""
        self.guard = 0
        self.guard_fd = -1

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
        self.output = LogWriter("output.log", launch.log_bytes, launch.log_files)
        return self._start(launch)

    def _start(self, launch: Launch) -> str:
        gate_r, gate_w = os.pipe()
        failed_r, failed_w = os.pipe()
        (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(gate_w)
            child_main(launch, gate_r, (out_w, err_w), failed_w)
        for fd in (gate_r, failed_w, out_w, err_w):
            os.close(fd)
        self.streams = {out_r: 0, err_r: 1}
        self.started_at = time.time()
        record = {
            "run": str(self.run),
            "pid": str(self.child),
            "ticks": str(start_ticks(self.child)),
            "shim": str(os.getpid()),
            "boot": boot_id(),
            "at": repr(self.started_at),
        }
        write_record(f"{self.dir}/started", record)
        os.write(gate_w, b"g")
        os.close(gate_w)
        failure = os.read(failed_r, 4096).decode(errors="replace")  # returns when exec closes the pipe or fails
        os.close(failed_r)
        if failure:
            os.waitpid(self.child, 0)
            number, _, message = failure.partition(" ")
            absent = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
            missing = message.startswith("cannot execute") and int(number) in absent
            command = os.fsdecode(launch.argv[0])
            self._cleanup()
            self._record_exit(127, "", "CommandNotFound" if missing else "StartError", f"{command}: {message}")
            return "failed"
        return ""

    def _ensure_guard(self) -> None:
        """Starts the guard, again if it died: a task with a lease or a deadline always has one."""
        if not self.launch.lease and not os.path.exists(self.deadline.until):
            return
        if self.guard_fd >= 0:
            os.close(self.guard_fd)
        self.guard, self.guard_fd = start_guard(
            self.deadline, force_s=self.launch.force_s / 2, groups=self.launch.groups, mark=self.launch.mark
        )

    def serve(self, wake: int) -> None:
        """Runs until the task has ended and nothing of it is left."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        timer = BoottimeTimer()
        poll.register(timer.fd, select.POLLIN)
        timer.set(self.deadline.read()[0] - self.launch.lead_s)
        for fd in self.streams:
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        while self.status is None:
            events = poll.poll(self._poll_timeout_ms())
            if not events:
                self.output.flush()
            for fd, _ in events:
                if fd == wake:
                    self._on_wakeup(wake)
                elif fd == timer.fd:
                    timer.clear()
                    timer.set(self._check_deadline())
                elif not self._drain(fd, READS_PER_POLL):
                    poll.unregister(fd)
                    os.close(fd)
                    del self.streams[fd]
            if self.terminate_at is not None and boottime() >= self.terminate_at:
                self.terminate_at = None
                self._signal_group(signal.SIGTERM)
            if self.kill_at is not None and boottime() >= self.kill_at and not self.killed:
                self.killed = True
                self._kill_everything()
        self._sweep()
        for fd in list(self.streams):
            self._drain(fd, READS_PER_POLL)
        self.output.flush()
        self._record_end()

    def _poll_timeout_ms(self) -> int:
        timeout_ms = IDLE_FLUSH_MS if any(self.output.pending) else -1
        if self.kill_at is not None and not self.killed:
            next_at = self.kill_at if self.terminate_at is None else min(self.kill_at, self.terminate_at)
            left_ms = max(0, int((next_at - boottime()) * 1000) + 1)
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
        """The first call sends SIGTERM if there is time for it; later calls can only move the kill time earlier."""
        if self.kill_at is None:
            self.kill_at, self.stop_grace_s = kill_at, kill_at - boottime()
            if self.stop_grace_s > 0 and self.launch.checkpoint:
                self.terminate_at = kill_at - self.stop_grace_s / 2
                self._signal_group(self.launch.checkpoint)
            elif self.stop_grace_s > 0:
                self._signal_group(signal.SIGTERM)
        elif kill_at < self.kill_at:
            self.kill_at, self.stop_grace_s = kill_at, max(0.0, kill_at - boottime())
            if self.terminate_at is not None:
                self.terminate_at = min(self.terminate_at, kill_at - self.stop_grace_s / 2)

    def _on_wakeup(self, wake: int) -> None:
        os.read(wake, 4096)
        self._reap()
        request = read_record(f"{self.dir}/stop")
        if request is None or self.status is not None:
            return
        grace_s = float(request.get("grace", "0"))
        first = self.kill_at is None
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
            self.output.feed(self.streams[fd], data)
        return True

    def _reap(self) -> None:
        """Orphans of the task are reparented to the shim (subreaper) and reaped here."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status
            elif pid == self.guard:
                self._ensure_guard()

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.child, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            os.kill(self.child, number)

    def _children(self) -> list[int]:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
            return [pid for pid in map(int, f.read().split()) if pid != self.guard]

    def _kill_everything(self) -> None:
        self._signal_group(signal.SIGKILL)
        for pid in self._children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    def _sweep(self) -> None:
        """Kills processes that the task left behind, in other sessions too. Killing a parent reparents its children
        to the shim.
        """
        give_up = time.monotonic() + ORPHAN_SWEEP_S
        while self._children() and time.monotonic() < give_up:
            self._kill_everything()
            if self.launch.groups:
                kill_all(self.launch.groups, self.launch.mark)
            self._reap()
            time.sleep(0.002)

    def _record_end(self) -> None:
        status = self.status or 0
        killed_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        how = f"was killed by {killed_by}" if killed_by else f"exited with code {code}"
        if self.killed and killed_by == "SIGKILL":
            how = f"did not end within the grace period of {self.stop_grace_s:.3g} s and was killed"
            if self.stop_grace_s <= 0:
                how = "was killed at once, as requested"
        reason = "StoppedOnRequest" if self.kill_at is not None else "Killed" if killed_by else "Exited"
        if self.deadline_reason:
            reason, how = self.deadline_reason, f"{how}, because its deadline was reached"
        elif self.kill_at is None and code != 0:
            reason, how = self._refine_reason(reason, how)
        if self.output.lost_bytes:
            how += f"; {self.output.lost_bytes} bytes of its output were lost ({self.output.loss_reason})"
        self._cleanup()
        self._record_exit(code, killed_by, reason, f"process {self.child} {how}")

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
        """Dismisses the guard and removes the control groups. The agent removes groups that are still in use later."""
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

    def _record_exit(self, code: int | None, killed_by: str, reason: str, message: str) -> None:
        record = {
            "run": str(self.run),
            "code": "" if code is None else str(code),
            "signal": killed_by,
            "reason": reason,
            "message": message[:1500],
            "at": repr(time.time()),
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


def main() -> int:
    os.set_inheritable(STATUS_FD, False)
    os.chdir(sys.argv[1])
    if not take_lock(f"run-{sys.argv[2]}"):
        report_start("already started")
        return 0
    wake = watch_signals()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shim = Shim(int(sys.argv[2]))
    try:
        why_not = shim.try_start()
    except OSError as error:
        why_not = f"refused {error.errno} {error}"
    report_start(why_not or f"started {shim.child} {shim.started_at!r}")
    if not why_not:
        shim.serve(wake)
    return 0
