"""The small process that owns one run of the process driver: starts the work, keeps its output, records its end.

It survives the agent, so neither the work nor its logs nor the evidence of its exit depend on the agent's life.
Always: the lock file is held exactly while this process lives; `started` is written before the work can execute; a
run is started at most once; when `exit` is written, nothing of the work runs any more.
Here and in the `shim_*` modules: nothing outside the standard library's core, as it must start in a few milliseconds
(`python -I -S`).

Called as `shim.py TASK_DIR RUN`; descriptor 3 is a pipe to the agent that hears how the start went.
Files, all relative to TASK_DIR: `lock`, `output.log*`, and in `run-N/`: `launch`, `stop` and `until` (the agent
writes), `started` and `exit` (this process writes). The node's lease is a file the launch names.
"""

from __future__ import annotations

import os
import sys

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


def record_text(record: Record) -> bytes:
    return "".join(f"{key} {' '.join(value.split())}\n" for key, value in record.items()).encode()


def write_record(path: str, record: Record) -> None:
    """`key value` lines, on disk under its name only when whole."""
    part = path + ".part"
    # A part that was reserved keeps its blocks, so that an end can be recorded on a full disk.
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        data = record_text(record)
        os.write(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, path)


def reserve_record(path: str, size: int) -> None:
    """Takes the room a later `write_record` needs."""
    fd = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b" " * size)
    finally:
        os.close(fd)


def read_record(path: str) -> Record | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            pairs = (line.rstrip("\n").partition(" ") for line in f)
            return {key: value for key, _, value in pairs}
    except OSError:
        return None


if __name__ == "__main__":
    # The script's own folder is not on the path of an isolated interpreter; the package's is all that is needed.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from holdfast.agent.shim_run import main

    sys.exit(main())
