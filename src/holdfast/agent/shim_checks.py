"""Checks of sidecars, HTTP hooks and measurements of volumes: short child processes of a shim that exit with 0 or 1.

Each is a process of its own, so that one that hangs delays no stop and no deadline. The shim kills it when its time is
over. Commands run as the task; requests and measurements never execute anything of the task.
"""

from __future__ import annotations

import os
import signal

from holdfast.agent.shim_confine import execute
from holdfast.agent.shim_guard import libc
from holdfast.agent.shim_launch import Launch, confine
from holdfast.agent.shim_programs import PR_SET_PDEATHSIG, RESET_SIGNALS

# Files and directories of a measured volume. One with more counts as full: counting them costs the node time.
VOLUME_ENTRIES_MAX = 1_000_000
# Levels of directories of a measured volume. A deeper one counts as full: each level costs a descriptor.
VOLUME_DEPTH_MAX = 200
# Bytes of a response that a check reads: the status line.
RESPONSE_BYTES_MAX = 4096


def fork_check(launch: Launch, check: dict[str, object], timeout_s: float) -> int:
    """Starts a check or hook: `argv`, or `address`, `port` and for HTTP `path` and `scheme`. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _begin()
        argv = check.get("argv")
        if isinstance(argv, list):
            confine(launch)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            execute([os.fsencode(word) for word in argv], launch.env)
        code = 0 if _is_answered(check, timeout_s) else 1
    except Exception:
        code = 1
    finally:
        os._exit(code)


def fork_measurement(path: str, limit_bytes: int) -> int:
    """Starts a measurement that exits with 0 if the directory holds at most `limit_bytes`. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        _begin()
        code = 0 if measure(path, limit_bytes) <= limit_bytes else 1
    except Exception:
        code = 0  # a directory that changes while it is read is measured again
    finally:
        os._exit(code)


def _begin() -> None:
    os.setsid()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _is_answered(check: dict[str, object], timeout_s: float) -> bool:
    """Connects, and for HTTP sends a GET. Status 200 to 399 passes."""
    import socket

    address, port = str(check["address"]), int(str(check["port"]))
    connection = socket.create_connection((address, port), timeout=timeout_s)
    path = check.get("path")
    if not isinstance(path, str):
        return True
    if check.get("scheme") == "HTTPS":
        import ssl

        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = context.wrap_socket(connection)
    head = f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nUser-Agent: holdfast-probe\r\n"
    connection.sendall(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while b"\n" not in answer and len(answer) < RESPONSE_BYTES_MAX:
        data = connection.recv(RESPONSE_BYTES_MAX)
        if not data:
            break
        answer += data
    parts = answer.split(b"\n")[0].split()
    return len(parts) > 1 and parts[0].startswith(b"HTTP/") and parts[1].isdigit() and 200 <= int(parts[1]) < 400


def measure(path: str, limit_bytes: int) -> int:
    """Disk space of a directory, counted until it exceeds the limit. The task chose names, depth and links.

    Directories are opened one below the other without following links, so neither a long path nor a link leads
    outside. A file with several names counts once per name. Too many entries or levels count as more than the limit.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    total = entries = 0
    top = os.open(path, flags)
    open_folders = [(top, os.scandir(top))]
    while open_folders:
        folder, found = open_folders[-1]
        entry = next(found, None)
        if entry is None:
            open_folders.pop()
            os.close(folder)
            continue
        entries += 1
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * 512
            if entry.is_dir(follow_symlinks=False):
                lower = os.open(entry.name, flags, dir_fd=folder)
                open_folders.append((lower, os.scandir(lower)))
        except FileNotFoundError:
            continue  # removed in the meantime
        if total > limit_bytes or entries > VOLUME_ENTRIES_MAX or len(open_folders) > VOLUME_DEPTH_MAX:
            return max(total, limit_bytes + 1)
    return total
