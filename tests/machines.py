"""Machines for installation tests: network namespaces with an address each, on one bridge, and their own `/etc` and
`/var/lib`. Real processes run in them, by the commands of a documentation page.

Without root there is one machine: loopback, with a directory per role.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.agent.shim import start_ticks

ROOT = Path(__file__).parent.parent
UIDS = Path("/var/lib/holdfast/task-uids")
"""Agents of one kernel share their blocks of uids, whatever machine they seem to be on."""


class Machine:
    """One machine. Commands run in its namespaces, with `ADDRESS` set."""

    def __init__(self, fleet: Fleet, name: str, address: str) -> None:
        self.fleet = fleet
        self.name = name
        self.address = address
        self.folder = fleet.folder / "machines" / name
        self.folder.mkdir(parents=True)
        self.started: list[int] = []
        """Processes that a test started beside the installed services."""

    def start(self, arguments: Sequence[str]) -> None:
        """Starts a process that keeps running."""
        log = self.fleet.folder / f"{self.name}.log"
        printed = self.run(f"nohup {shlex.join(arguments)} >> {log} 2>&1 < /dev/null & echo $!")
        self.started.append(int(printed))

    def command(self, script: str) -> list[str]:
        return ["bash", "-e", "-o", "pipefail", "-c", script]

    def env(self, **more: str) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") and k != "XDG_RUNTIME_DIR"}
        path = f"{self.fleet.programs}:{ROOT / '.tools' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**inherited, "PATH": path, "ADDRESS": self.address, "CI": "true", **more}

    def run(self, script: str, *, timeout_s: float = 300.0, region: str = "") -> str:
        """Runs the script and returns what it printed; fails with the output if it fails."""
        log = self.folder / "commands.log"
        with log.open("ab+") as file:
            start = file.seek(0, os.SEEK_END)
            done = subprocess.run(
                self.command(script),
                cwd=self.fleet.folder,
                env=self.env(**({"REGION": region} if region else {})),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=timeout_s,
                check=False,
            )
            file.seek(start)
            printed = file.read().decode(errors="replace")
        assert done.returncode == 0, f"{self.name}: exit {done.returncode}\n{script}\n{printed}"
        return printed

    def kill_all(self) -> None:
        """Ends every process of the machine at once, as a power loss does."""

    def cut(self) -> None:
        """Takes the machine off the network."""

    def reconnect(self) -> None:
        """Puts it on the network again."""


class NamespaceMachine(Machine):
    def __init__(self, fleet: NamespaceFleet, name: str, number: int) -> None:
        super().__init__(fleet, name, f"10.77.0.{number}")
        self._namespace = f"{fleet.prefix}-{number}"
        self._veth = f"{fleet.prefix}v{number}"
        for upper in ("etc", "lib"):
            for part in ("upper", "work"):
                (self.folder / upper / part).mkdir(parents=True)
        (self.folder / "uids").mkdir()
        _ip("netns", "add", self._namespace)
        _ip("link", "add", self._veth, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        _ip("link", "set", self._veth, "master", fleet.bridge, "up")
        _ip("-n", self._namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self._namespace, "link", "set", "eth0", "up")
        _ip("-n", self._namespace, "link", "set", "lo", "up")
        self._relay: subprocess.Popen[bytes] | None = None
        if fleet.shapes_traffic:
            self._shape_traffic(fleet.bridge)
        self._holder = self._hold()

    def _shape_traffic(self, bridge: str) -> None:
        """Delay and loss to and from this machine: by the kernel, or where it has no netem, by a process."""
        shape = ["tc", "qdisc", "add", "dev", self._veth, "root", "netem", "delay", "10ms", "2ms", "loss", "0.5%"]
        if subprocess.run(shape, capture_output=True, check=False).returncode == 0:
            return
        near, far = f"{self._veth}r", f"{self._veth}s"
        _ip("link", "set", self._veth, "nomaster")
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "master", bridge, "up")
        _ip("link", "set", near, "up")
        relay = [sys.executable, str(ROOT / "tests" / "lossy_link.py")]
        inside = ["ip", "netns", "exec", self._namespace, *relay, "--disable-offloads", "eth0"]
        subprocess.run(inside, check=True)
        for interface in (self._veth, near, far):
            subprocess.run([*relay, "--disable-offloads", interface], check=True)
        self._relay = subprocess.Popen([*relay, self._veth, near, "5", "2", "0.0025"])

    def _hold(self) -> subprocess.Popen[bytes]:
        """A process that keeps the machine's mounts and host name, for the commands that enter them."""
        at, overlay = self.folder, "mount -t overlay overlay -o"
        setup = [
            f"mount --bind {UIDS} {at}/uids",
            f"{overlay} lowerdir=/etc,upperdir={at}/etc/upper,workdir={at}/etc/work /etc",
            f"{overlay} lowerdir=/var/lib,upperdir={at}/lib/upper,workdir={at}/lib/work /var/lib",
            f"mkdir -p {UIDS}",
            f"mount --bind {at}/uids {UIDS}",
            "mkdir -p /run/systemd",
            "mount -t tmpfs tmpfs /run/systemd",
            f"hostname {self.name}",
            f"exec {sys.executable} -I {ROOT / 'tests' / 'machine_init.py'}",
        ]
        # With process ids of its own: all agents have one state directory, so one block of uids, and end by uid what a
        # killed shim has left.
        own = ["--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        inside = ["unshare", *own, "sh", "-e", "-c", "\n".join(setup)]
        made = subprocess.Popen(["ip", "netns", "exec", self._namespace, *inside], stdout=subprocess.PIPE)
        assert made.stdout is not None
        assert made.stdout.readline() == b"ready\n", f"{self.name}: its mounts failed"
        children = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
        self._first_process = int(children[0])
        return made

    def command(self, script: str) -> list[str]:
        enter = ["nsenter", "--target", str(self._first_process), "--mount", "--net", "--uts", "--pid"]
        return [*enter, f"--wd={self.fleet.folder}", *super().command(script)]

    def kill_all(self) -> None:
        deadline = time.monotonic() + 30
        while pids := self._pids():
            assert time.monotonic() < deadline, f"{self.name}: processes {pids} do not end"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def processes(self, *words: str) -> set[tuple[int, int]]:
        """Process id and start time of every process whose command line has these words after its program."""
        wanted = [word.encode() for word in words]
        found = set()
        for pid in self._pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1 : 1 + len(wanted)] == wanted:
                    found.add((pid, start_ticks(pid)))
        return found

    def _pids(self) -> list[int]:
        """By the namespace of the holder: its name below /run/netns can lead elsewhere when others mount there."""
        own, found = os.readlink(f"/proc/{self._holder.pid}/ns/net"), []
        kept = (self._holder.pid, self._first_process)
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            with contextlib.suppress(OSError):
                if pid not in kept and os.readlink(f"/proc/{pid}/ns/net") == own:
                    found.append(pid)
        return found

    def cut(self) -> None:
        _ip("link", "set", self._veth, "down")

    def reconnect(self) -> None:
        _ip("link", "set", self._veth, "up")

    def remove(self) -> None:
        self.kill_all()
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
            _ip("link", "del", f"{self._veth}r")
        self._holder.kill()
        self._holder.wait()
        _ip("netns", "del", self._namespace)


class LoopbackMachine(Machine):
    """A role on loopback, by a user that is not root. Its files are below directories of its own."""

    def __init__(self, fleet: Fleet, name: str, address: str) -> None:
        super().__init__(fleet, name, address)

    def env(self, **more: str) -> dict[str, str]:
        data, config = self.folder / "data", self.folder / "config"
        state = {"STATE": str(data / "holdfast"), "XDG_DATA_HOME": str(data), "XDG_CONFIG_HOME": str(config)}
        return super().env(**state, **more)

    def kill_all(self) -> None:
        records = self.folder.glob("data/holdfast/*/service.json")
        for pid in (*self.started, *(msgspec.json.decode(record.read_bytes())["pid"] for record in records)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.started.clear()


class Fleet:
    """A working directory that all machines see, as if its files were copied between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self.machines: dict[str, Machine] = {}
        self.install_release(Path(sys.executable))

    def install_release(self, python: Path) -> None:
        """Puts the package of this Python on every machine. Services that run keep theirs until they are restarted."""
        program = self.programs / "holdfast"
        program.write_text(f'#!/bin/sh\nexec {python} -m holdfast.cli "$@"\n')
        program.chmod(0o755)

    def add(self, name: str, number: int) -> Machine:
        """Cells get ports of their own, because all of them listen on one address."""
        made = LoopbackMachine(self, name, f"127.0.0.1:{28400 + number}")
        self.machines[name] = made
        return made

    def remove(self) -> None:
        for machine in self.machines.values():
            machine.kill_all()


class NamespaceFleet(Fleet):
    _letters = itertools.cycle(string.ascii_lowercase)
    """Names of a fleet are its own: the kernel removes the interfaces of the last one after its namespaces."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.prefix = f"hf{os.getpid() % 100000}{next(self._letters)}"
        self.bridge = f"{self.prefix}b"
        self.shapes_traffic = False
        """Whether machines that are added get delay and loss: 5 to 12 ms and 0.25 to 0.5 % each way."""
        UIDS.mkdir(parents=True, exist_ok=True)
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "up")

    def add(self, name: str, number: int) -> Machine:
        made = NamespaceMachine(self, name, number)
        self.machines[name] = made
        return made

    def remove(self) -> None:
        for machine in self.machines.values():
            if isinstance(machine, NamespaceMachine):
                machine.remove()
        _ip("link", "del", self.bridge)


@contextlib.contextmanager
def running_fleet(folder: Path) -> Iterator[Fleet]:
    fleet = NamespaceFleet(folder) if has_namespaces() else Fleet(folder)
    try:
        yield fleet
    finally:
        fleet.remove()
    # The machines' files are kept if the test failed: their logs say why.
    shutil.rmtree(fleet.folder / "machines", ignore_errors=True)


def has_namespaces() -> bool:
    """Whether machines can be namespaces: root, `ip`, and a kernel that lets root mount overlays."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    options = "lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w"
    test = f"mount -t tmpfs tmpfs /mnt && mkdir /mnt/u /mnt/w && mount -t overlay overlay -o {options} /etc"
    return subprocess.run(["unshare", "--mount", "sh", "-c", test], capture_output=True, check=False).returncode == 0


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
