"""A network of the run's own: the shim enters a new network namespace, and slirp4netns connects it to the node's.

Every program of the run inherits the namespace from the shim, so init tasks, sidecars and the main task share it. The
kernel removes it with their last process: nothing is left on the node, not even after a crash. slirp4netns runs
outside, carries connections out, and listens on the assigned ports of the node. It ends with the shim.
"""

from __future__ import annotations

import os
import select
import signal
import time

from holdfast.agent.shim_guard import libc

CLONE_NEWNET = 0x40000000
API_SOCKET = "network.sock"
LOG = "network.log"
LOW_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
READY_S = 10.0
"""Time for slirp4netns to set the network up. After that, the run has failed to start."""
ANSWER_BYTES_MAX = 65536


class NetworkFailed(OSError):
    """The run gets no network of its own."""


class RunNetwork:
    """`program` is slirp4netns, `forwards` are texts `PROTOCOL:HOST:PORT:PORT_INSIDE`. The working directory is that of
    the task."""

    def __init__(self, program: str, forwards: list[str]) -> None:
        self._program, self._forwards = program, forwards
        self.pid = 0
        self._exit_fd = -1

    def start(self) -> None:
        """Moves this process into its own network namespace. Raises NetworkFailed."""
        if not self._program:
            return
        entered_r, entered_w = os.pipe()
        ready_r, ready_w = os.pipe()
        exit_r, self._exit_fd = os.pipe()
        try:  # noqa: SIM105 - the shim imports as little as it can
            os.unlink(API_SOCKET)
        except FileNotFoundError:
            pass
        target = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(entered_w)
            os.close(self._exit_fd)
            self._execute(target, entered_r, ready_w, exit_r)
        for fd in (entered_r, ready_w, exit_r):
            os.close(fd)
        try:
            if libc.unshare(CLONE_NEWNET) != 0:
                raise NetworkFailed(0, "the kernel refuses a network namespace")
            _allow_low_ports()
            os.write(entered_w, b"1")
            readable, _, _ = select.select([ready_r], [], [], READY_S)
            if not readable or os.read(ready_r, 1) != b"1":
                raise NetworkFailed(0, f"slirp4netns did not set it up within {READY_S:g} s{_last_words()}")
            for forward in self._forwards:
                self._forward(forward)
        except OSError as error:
            self.close()
            raise error if isinstance(error, NetworkFailed) else NetworkFailed(0, str(error)) from None
        finally:
            os.close(entered_w)
            os.close(ready_r)

    def _execute(self, target: int, entered: int, ready: int, exit_: int) -> None:
        """In the child, which is still in the network of the node."""
        try:
            if os.read(entered, 1) != b"1":
                os._exit(1)
            log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for fd in (ready, exit_):
                os.set_inheritable(fd, True)
            options = ["--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"]
            channels = [f"--ready-fd={ready}", f"--exit-fd={exit_}", f"--api-socket={API_SOCKET}"]
            environment = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
            os.execve(self._program, [self._program, *options, *channels, str(target), "tap0"], environment)
        finally:
            os._exit(127)

    def _forward(self, text: str) -> None:
        """Opens one port of the node."""
        import json

        protocol, host, port, inside = text.split(":")
        given = {"proto": protocol, "host_addr": host, "host_port": int(port), "guest_port": int(inside)}
        said = json.loads(self._call(json.dumps({"execute": "add_hostfwd", "arguments": given}).encode()))
        if "error" in said:
            raise NetworkFailed(0, f"port {port} of the node cannot be forwarded ({said['error'].get('desc', '')})")

    def _call(self, request: bytes) -> bytes:
        import socket

        deadline = time.monotonic() + READY_S
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.settimeout(READY_S)
        try:
            while True:
                try:
                    channel.connect(API_SOCKET)
                    break
                except (FileNotFoundError, ConnectionRefusedError):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            channel.sendall(request)
            channel.shutdown(socket.SHUT_WR)
            answer = b""
            while part := channel.recv(ANSWER_BYTES_MAX):
                answer += part
            return answer
        finally:
            channel.close()

    def ended(self, pid: int) -> bool:
        """Whether this child was slirp4netns: the run has no connection to the node any more."""
        if not pid or pid != self.pid:
            return False
        self.pid = 0
        return True

    def close(self) -> None:
        """slirp4netns ends when the other end of its pipe is closed; it is killed if it does not."""
        if self._exit_fd >= 0:
            os.close(self._exit_fd)
            self._exit_fd = -1
        pid, self.pid = self.pid, 0
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def _allow_low_ports() -> None:
    """Lets every user listen on ports below 1024, as images expect: in this namespace they belong to the run alone.
    Where /proc/sys is read-only, only programs that need such a port fail."""
    try:
        with open(LOW_PORTS, "w", encoding="ascii") as f:
            f.write("0")
    except OSError:
        pass


def _last_words() -> str:
    try:
        with open(LOG, encoding="utf-8", errors="replace") as f:
            lines = f.read(4096).split("\n")
    except OSError:
        return ""
    found = [line for line in lines if line.strip()]
    return f": {found[-1][:200]}" if found else ""
