"""Checks of the machine itself: ports, clock, disk, limits, kernel features, control groups and container runtimes."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.foundation.container_runtime import find_runtime, has_controllers_on_both, private_network_refusal
from holdfast.install.findings import DoctorFinding

# Free disk below which an installation is refused, and below which it is warned about.
DISK_FREE_MIN_BYTES = 256 * 1024 * 1024
DISK_FREE_WARN_BYTES = 4 * 1024 * 1024 * 1024
# Median time of a synced write above which commits become slow. A disk fit for a store needs under 10 ms.
FSYNC_WARN_S = 0.02
FSYNC_SAMPLES = 10
# Open files of a process: connections of nodes, watches and users.
OPEN_FILES_MIN = 4096
_OPENAT2 = 437
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# What adjtimex returns while nothing keeps the clock right, and the size of its argument, which this reads only.
_TIME_ERROR = 5
_TIMEX_BYTES = 256


def port_check(port: int) -> DoctorFinding:
    name = f"port {port}"
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                step = f"ss -ltnp 'sport = :{port}' names the process; or choose another port: --advertise HOST:PORT"
                return DoctorFinding(name, "fail", "in use by another process", step)
            if error.errno == errno.EACCES:
                return DoctorFinding(
                    name, "fail", "may not be bound by this user", "choose a port above 1023, or use root"
                )
    return DoctorFinding(name, "ok", "free")


def task_port_checks(low: int, high: int, local: Path = LOCAL_PORTS) -> Iterator[DoctorFinding]:
    """Whether other processes hold ports that tasks of the node get, or outgoing connections may take them."""
    name = f"task ports {low}-{high}"
    held = [port for port in range(low, high + 1) if not _is_free(port)]
    if held:
        some = ", ".join(map(str, held[:3])) + (", …" if len(held) > 3 else "")
        step = "tasks get other ports; stop that process, or choose another range: --ports FROM-TO"
        yield DoctorFinding(name, "warn", f"{len(held)} in use by other processes ({some})", step)
    else:
        yield DoctorFinding(name, "ok", "free")
    first, last = _local_ports(local)
    if first <= high and low <= last and not _is_reserved(low, high, local.with_name("ip_local_reserved_ports")):
        step = f"choose another range: --ports FROM-TO; or: sysctl net.ipv4.ip_local_reserved_ports={low}-{high}"
        yield DoctorFinding(name, "warn", f"the kernel gives {first}-{last} to outgoing connections", step)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _local_ports(path: Path) -> tuple[int, int]:
    """The ports that the kernel gives to outgoing connections; none if it does not say."""
    try:
        first, last = path.read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return 1, 0


def _is_reserved(low: int, high: int, path: Path) -> bool:
    try:
        parts = [part.partition("-") for part in path.read_text().strip().split(",") if part]
    except OSError:
        return False
    return any(int(first) <= low and high <= int(last or first) for first, _, last in parts)


def clock_state() -> int:
    """What the kernel says about its clock; -1 if it does not say."""
    return int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))


def clock_sync_finding(state: int) -> DoctorFinding:
    """The first machine of a fleet has no other cell with which its clock could be compared."""
    if state < 0:
        return DoctorFinding("clock", "warn", "the kernel does not say whether it is kept right", "timedatectl status")
    if state == _TIME_ERROR:
        step = "run chrony or systemd-timesyncd: certificates and leases need clocks that agree within seconds"
        return DoctorFinding("clock", "warn", "not synchronized", step)
    return DoctorFinding("clock", "ok", "synchronized")


def disk_checks(state: Path) -> Iterator[DoctorFinding]:
    folder = next(path for path in (state, *state.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free at {folder}"
    if free < DISK_FREE_MIN_BYTES:
        yield DoctorFinding("disk space", "fail", text, "free some space, or choose another --state")
    elif free < DISK_FREE_WARN_BYTES:
        yield DoctorFinding(
            "disk space", "warn", text, f"{DISK_FREE_WARN_BYTES // 2**30} GiB leave room for growth and logs"
        )
    else:
        yield DoctorFinding("disk space", "ok", text)
    try:
        delay_s = sync_delay_s(folder)
    except OSError as error:
        yield DoctorFinding(
            "disk sync", "fail", f"{folder} is not writable ({error.strerror})", "choose another --state"
        )
        return
    slow = delay_s > FSYNC_WARN_S
    text = f"{delay_s * 1000:.1f} ms per synced write at {folder}"
    step = "use a local SSD: every commit waits for one sync"
    yield DoctorFinding("disk sync", "warn" if slow else "ok", text, step if slow else "")


def sync_delay_s(folder: Path) -> float:
    """Median time of a small write with fdatasync, as a commit does."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(FSYNC_SAMPLES):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
    return statistics.median(took)


def file_limit_check() -> DoctorFinding:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unlimited = hard == resource.RLIM_INFINITY
    if unlimited or hard >= OPEN_FILES_MIN:
        return DoctorFinding("open files", "ok", f"limit {'unlimited' if unlimited else hard}")
    step = "the systemd unit raises it; elsewhere: ulimit -Hn 65536"
    return DoctorFinding("open files", "warn", f"limit {hard} (expected {OPEN_FILES_MIN})", step)


def agent_checks() -> Iterator[DoctorFinding]:
    yield _cgroups()
    yield _namespaces()
    yield _openat2()
    yield _container_runtime()
    yield _private_networks()
    if os.geteuid() != 0:
        step = "run the agent as root; otherwise tasks run as its user"
        yield DoctorFinding("task isolation", "warn", "the agent is not root, so tasks are not isolated from it", step)


def _container_runtime() -> DoctorFinding:
    if found := find_runtime():
        return DoctorFinding("container runtime", "ok", Path(found).name)
    mixed = has_controllers_on_both()
    why = "crun does not run with controllers on cgroup v1 and v2" if shutil.which("crun") else "none found"
    step = f"install {'runc' if mixed else 'crun'} for workloads with driver oci; driver process needs none"
    return DoctorFinding("container runtime", "warn", why, step)


def _cgroups() -> DoctorFinding:
    root = Path("/sys/fs/cgroup")
    if not (root / "cgroup.controllers").exists():
        step = "boot with systemd.unified_cgroup_hierarchy=1; until then limits are soft"
        return DoctorFinding("cgroups v2", "warn", "not mounted at /sys/fs/cgroup", step)
    line = next((each for each in Path("/proc/self/cgroup").read_text().splitlines() if each.startswith("0::")), "0::/")
    own = root / line.removeprefix("0::").lstrip("/")
    missing = {"cpu", "memory", "pids"} - set((root / "cgroup.controllers").read_text().split())
    if missing:
        return DoctorFinding("cgroups v2", "warn", f"without {', '.join(sorted(missing))}", "enable these controllers")
    if os.geteuid() != 0 and not os.access(own, os.W_OK):
        return DoctorFinding("cgroups v2", "warn", f"{own} is not delegated to this user", "the unit sets Delegate=yes")
    return DoctorFinding("cgroups v2", "ok", "cpu, memory and pids")


def _namespaces() -> DoctorFinding:
    missing = [name for name in ("mnt", "pid", "user") if not Path(f"/proc/self/ns/{name}").exists()]
    if missing:
        return DoctorFinding("namespaces", "warn", f"without {', '.join(missing)}", "use a kernel with namespaces")
    return DoctorFinding("namespaces", "ok", "mount, pid and user")


def _openat2() -> DoctorFinding:
    """The call is made with a bad argument: a kernel that knows it says EINVAL or EFAULT, another one ENOSYS."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(-100), None, None, ctypes.c_size_t(0))
    if ctypes.get_errno() == errno.ENOSYS:
        return DoctorFinding("openat2", "warn", "the kernel lacks it", "use Linux 5.6 or newer")
    return DoctorFinding("openat2", "ok", "available")


def _private_networks() -> DoctorFinding:
    if why := private_network_refusal():
        step = "needed only for `network: Private`: install slirp4netns, and run the agent as root"
        return DoctorFinding("private networks", "warn", f"{why}; containers use the node's network", step)
    return DoctorFinding("private networks", "ok", "slirp4netns")
