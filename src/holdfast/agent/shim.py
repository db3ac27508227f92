"""The shim: a small process that owns one run of the process driver. It starts the task, writes its log, records its
exit.

It survives the agent, so neither the task nor its log nor its exit record depends on the agent.
- The lock file is held exactly while this process lives.
- `started` is written before the task can execute. A run is started at most once.
- When `exit` is written, nothing of the task runs.

It must start in a few milliseconds (`python -I -S`): the `shim*` modules import only the core standard library.
Called as `shim.py TASK_DIR RUN`; descriptor 3 is a pipe that tells the agent how the start went. Files below
TASK_DIR: `lock`, `output.log*`, and in `run-N/`: `launch`, `stop`, `until` (written by the agent), `started`, `exit`
(by the shim). `shim.py beside` and `shim.py sweep` are short calls of the agent (`shim_calls`).
"""

from __future__ import annotations

import os
import sys

ShimRecord = dict[str, str]


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if there is none. With the pid it identifies the process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def encode_record(record: ShimRecord) -> bytes:
    return "".join(f"{key} {' '.join(value.split())}\n" for key, value in record.items()).encode()


def write_record(path: str, record: ShimRecord) -> None:
    """`key value` lines. The file becomes visible under its name only when complete."""
    part = path + ".part"
    # A reserved file keeps its disk blocks, so that an exit can be recorded on a full disk.
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        data = encode_record(record)
        os.write(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, path)


def reserve_record(path: str, size: int) -> None:
    """Reserves the disk space that a later `write_record` needs."""
    fd = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b" " * size)
    finally:
        os.close(fd)


def read_record(path: str) -> ShimRecord | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            pairs = (line.rstrip("\n").partition(" ") for line in f)
            return {key: value for key, _, value in pairs}
    except OSError:
        return None


if __name__ == "__main__":
    # An isolated interpreter does not have the package on its path.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if os.path.isabs(sys.argv[1]):
        from holdfast.agent.shim_run import main

        sys.exit(main(sys.argv[1], int(sys.argv[2])))
    from holdfast.agent import shim_calls

    sys.exit(shim_calls.main(sys.argv[1:]))
