"""The small process that owns one run of the process driver: starts the work, keeps its output, records its end.

It survives the agent, so neither the work nor its logs nor the evidence of its exit depend on the agent's life.
Always: the lock file is held exactly while this process lives; `started` is written before the work can execute; a
run is started at most once; when `exit` is written, nothing of the work runs any more.
Never imports anything outside the standard library's core: it must start in a few milliseconds (`python -I -S`).

Called as `shim.py TASK_DIR RUN`; descriptor 3 is a pipe to the agent that hears how the start went.
Files, all relative to TASK_DIR: `lock`, `output.log*`, and in `run-N/`: `launch` and `stop` (the agent writes),
`started` and `exit` (this process writes).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import sys
import time

STATUS_FD = 3
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 65536
LINE_BYTES_MAX = 16384
IDLE_FLUSH_MS = 1000
SWEEP_S = 5.0
READS_PER_TURN = 16

Record = dict[str, str]


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is none. With the pid it is an identity."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def write_record(path: str, record: Record) -> None:
    """`key value` lines, on disk under its name only when whole."""
    text = "".join(f"{key} {' '.join(value.split())}\n" for key, value in record.items())
    part = path + ".part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, path)


def read_record(path: str) -> Record | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            pairs = (line.rstrip("\n").partition(" ") for line in f)
            return {key: value for key, _, value in pairs}
    except OSError:
        return None


class Launch:
    """The `launch` file: NUL-separated words, as neither commands nor environments can hold a NUL."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            words = f.read().split(b"\0")
        self.cwd, self.user = os.fsdecode(words[0]), words[1].decode()
        self.log_bytes, self.log_files = int(words[2]), int(words[3])
        count = int(words[4])
        self.argv = words[5 : 5 + count]
        pairs = (word.partition(b"=") for word in words[5 + count :])
        self.env = {key: value for key, _, value in pairs}


class Output:
    """The log: lines of both streams in the order they came, stamped, in a bounded number of bounded files.

    A line is `TIME TAG text`; the tag is O or E for the end of a line of stdout or stderr, o or e for a piece of a
    long or unfinished one. A full disk costs log lines, never the work.
    """

    def __init__(self, path: str, max_bytes: int, files: int) -> None:
        self.path, self.max_bytes, self.files = path, max_bytes, files
        self.pending = [b"", b""]
        self._open()

    def _open(self) -> None:
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self.fd).st_size

    def feed(self, stream: int, data: bytes) -> None:
        data = self.pending[stream] + data
        cut = data.rfind(b"\n") + 1
        self.pending[stream] = data[cut:]
        if cut:
            mark = self._mark(b"OE"[stream : stream + 1])
            self._write(mark + data[: cut - 1].replace(b"\n", b"\n" + mark) + b"\n")
        while len(self.pending[stream]) > LINE_BYTES_MAX:
            self._write(self._mark(b"oe"[stream : stream + 1]) + self.pending[stream][:LINE_BYTES_MAX] + b"\n")
            self.pending[stream] = self.pending[stream][LINE_BYTES_MAX:]

    def flush(self) -> None:
        for stream, rest in enumerate(self.pending):
            if rest:
                self._write(self._mark(b"oe"[stream : stream + 1]) + rest + b"\n")
                self.pending[stream] = b""

    def _mark(self, tag: bytes) -> bytes:
        now = time.time()
        return b"%s.%06dZ %s " % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)).encode(), now % 1 * 1e6, tag)

    def _write(self, data: bytes) -> None:
        # One write never exceeds what a file may hold, so the bound holds whatever the work prints.
        for start in range(0, len(data), self.max_bytes):
            piece = data[start : start + self.max_bytes]
            if self.size + len(piece) > self.max_bytes:
                self._rotate()
            try:
                self.size += os.write(self.fd, piece)
            except OSError:
                return

    def _rotate(self) -> None:
        try:
            os.close(self.fd)
            for index in range(self.files - 1, 0, -1):
                older = f"{self.path}.{index - 1}" if index > 1 else self.path
                if os.path.exists(older):
                    os.rename(older, f"{self.path}.{index}")
            if self.files <= 1:
                os.unlink(self.path)
        finally:
            self._open()


def child_main(launch: Launch, gate: int, streams: tuple[int, int], failed: int) -> None:
    """Becomes the work. Leads its own session, so that a signal to its group reaches all of it."""
    stage = "start"
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        if os.read(gate, 1) != b"g":
            os._exit(127)
        if launch.user:
            stage = f"become user {launch.user}"
            become(launch.user)
        stage = f"enter the working directory {launch.cwd}"
        os.chdir(launch.cwd)
        stage = "execute"
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which would clear it
        os.execvpe(launch.argv[0], launch.argv, launch.env)
    except (OSError, KeyError) as error:
        code = getattr(error, "errno", 0) or 0
        why = getattr(error, "strerror", None) or str(error)
        os.write(failed, f"{code} cannot {stage}: {why}".encode(errors="replace")[:4000])
    finally:
        os._exit(127)


def become(user: str) -> None:
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
        self.forced = False
        self.asked_grace_s = 0.0

    def begin(self) -> str:
        """Empty when the work runs, else why it does not."""
        started = read_record(f"{self.dir}/started")
        if started is not None:
            return "already started"
        if os.path.exists(f"{self.dir}/stop"):
            return "withdrawn"
        launch = Launch(f"{self.dir}/launch")
        self.output = Output("output.log", launch.log_bytes, launch.log_files)
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
        record = {"run": str(self.run), "pid": str(self.child), "ticks": str(start_ticks(self.child)),
                  "shim": str(os.getpid()), "boot": boot_id(), "at": repr(self.started_at)}  # fmt: skip
        write_record(f"{self.dir}/started", record)
        os.write(gate_w, b"g")
        os.close(gate_w)
        words = os.read(failed_r, 4096).decode(errors="replace")  # ends when exec closes the other side, or it fails
        os.close(failed_r)
        if words:
            os.waitpid(self.child, 0)
            number, _, message = words.partition(" ")
            missing = message.startswith("cannot execute") and int(number) in (
                errno.ENOENT,
                errno.EACCES,
                errno.ENOEXEC,
            )
            command = os.fsdecode(launch.argv[0])
            self._record_exit(127, "", "CommandNotFound" if missing else "StartError", f"{command}: {message}")
            return "failed"
        return ""

    def serve(self, wake: int) -> None:
        """Until the work has ended and nothing of it is left."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for fd in self.streams:
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        while self.status is None:
            timeout_ms = IDLE_FLUSH_MS if any(self.output.pending) else -1
            if self.kill_at is not None and not self.forced:
                left_ms = max(0, int((self.kill_at - time.monotonic()) * 1000) + 1)
                timeout_ms = left_ms if timeout_ms < 0 else min(timeout_ms, left_ms)
            events = poll.poll(timeout_ms)
            if not events:
                self.output.flush()
            for fd, _ in events:
                if fd == wake:
                    self._woken(wake)
                elif not self._drain(fd, READS_PER_TURN):
                    poll.unregister(fd)
                    os.close(fd)
                    del self.streams[fd]
            if self.kill_at is not None and time.monotonic() >= self.kill_at and not self.forced:
                self.forced = True
                self._kill_everything()
        self._sweep()
        for fd in list(self.streams):
            self._drain(fd, READS_PER_TURN)
        self.output.flush()
        self._record_end()

    def _woken(self, wake: int) -> None:
        os.read(wake, 4096)
        self._reap()
        asked = read_record(f"{self.dir}/stop")
        if asked is None or self.status is not None:
            return
        grace_s = float(asked.get("grace", "0"))
        kill_at = time.monotonic() + grace_s
        if self.kill_at is None:
            self.kill_at, self.asked_grace_s = kill_at, grace_s
            if grace_s > 0:
                self._signal_group(signal.SIGTERM)
        elif kill_at < self.kill_at:
            self.kill_at, self.asked_grace_s = kill_at, grace_s

    def _drain(self, fd: int, reads: int) -> bool:
        """Reads what is there, up to a bound; False when the stream has ended."""
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
        """Orphans of the work come to this process as their subreaper and are reaped with it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.child, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            os.kill(self.child, number)

    def _children(self) -> list[int]:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]

    def _kill_everything(self) -> None:
        self._signal_group(signal.SIGKILL)
        for pid in self._children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    def _sweep(self) -> None:
        """Ends what the work left behind, in other sessions too; killing a parent brings its children here."""
        give_up = time.monotonic() + SWEEP_S
        while self._children() and time.monotonic() < give_up:
            self._kill_everything()
            self._reap()
            time.sleep(0.002)

    def _record_end(self) -> None:
        status = self.status or 0
        killed_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        how = f"was ended by {killed_by}" if killed_by else f"exited with code {code}"
        if self.forced and killed_by == "SIGKILL":
            how = f"did not end within {self.asked_grace_s:g} s of being asked to and was killed"
            if self.asked_grace_s <= 0:
                how = "was killed at once, as asked"
        reason = "StoppedAsAsked" if self.kill_at is not None else "Killed" if killed_by else "Exited"
        self._record_exit(code, killed_by, reason, f"process {self.child} {how}")

    def _record_exit(self, code: int, killed_by: str, reason: str, message: str) -> None:
        record = {"run": str(self.run), "code": str(code), "signal": killed_by, "reason": reason,
                  "message": message, "at": repr(time.time())}  # fmt: skip
        write_record(f"{self.dir}/exit", record)


def tell_agent(words: str) -> None:
    try:
        os.write(STATUS_FD, words.encode())
        os.close(STATUS_FD)
    except OSError:
        return  # the agent is gone; it will find the records


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


def main() -> int:
    os.set_inheritable(STATUS_FD, False)
    os.chdir(sys.argv[1])
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        tell_agent("already started")
        return 0
    wake = watch_signals()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shim = Shim(int(sys.argv[2]))
    why_not = shim.begin()
    tell_agent(why_not or f"started {shim.child} {shim.started_at!r}")
    if not why_not:
        shim.serve(wake)
    return 0


if __name__ == "__main__":
    libc = ctypes.CDLL(None, use_errno=True)
    sys.exit(main())
