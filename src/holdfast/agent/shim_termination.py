"""The termination message of a run: what its main task wrote to its termination file, or the end of its output.

The task owns the file, so it is opened without following links, and only if it is a plain file of the task's own. What
is kept is bounded. Without free disk space there is no message, and the exit is recorded all the same.
"""

from __future__ import annotations

import os
import stat

# Bytes of a termination file that are kept: its end. The same limit as in Kubernetes.
TERMINATION_FILE_BYTES_MAX = 4096
# Bytes of output that become the message of a failed task with `FallbackToLogsOnError`. As in Kubernetes.
TERMINATION_OUTPUT_BYTES_MAX = 2048

TERMINATION_RECORD = "termination"


def make_termination_file(path: str, uid: int, gid: int) -> None:
    """An empty file for a container, in the file system that the shim mounted for it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, uid, gid)
    finally:
        os.close(fd)


def read_termination_file(path: str) -> bytes:
    """The end of the file; empty if there is none, or it is not a plain file of the directory's owner."""
    folder, name = os.path.split(path)
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return b""
    finally:
        os.close(parent)
    try:
        found = os.fstat(fd)
        # A second name may belong to a file that the task cannot read.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return b""
        return os.pread(fd, TERMINATION_FILE_BYTES_MAX, max(0, found.st_size - TERMINATION_FILE_BYTES_MAX))
    except OSError:
        return b""
    finally:
        os.close(fd)


def save_termination_message(run_dir: str, message: bytes) -> None:
    """Written before the record of the exit, which the agent waits for."""
    if not message.strip():
        return
    try:
        fd = os.open(f"{run_dir}/{TERMINATION_RECORD}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(fd, message)
    except OSError:
        return
    finally:
        os.close(fd)


def termination_text(message: bytes) -> str:
    """For people: without control characters, and without the first character if it was cut."""
    text = message.decode(errors="replace").lstrip("\ufffd").strip()
    return "".join(char for char in text if char in "\n\t" or char.isprintable())
