"""The numeric user of an image, from its configuration and its own `/etc/passwd` and `/etc/group`."""

from __future__ import annotations

import os

# Size of an image's `/etc/passwd` or `/etc/group` that is read. Users beyond it are not found.
USER_FILE_BYTES_MAX = 1024 * 1024
_ID_MAX = 2**31 - 1


def find_user(root: int, user: str) -> tuple[int, int]:
    """uid and gid of `USER` in the image with the root descriptor `root`: `name`, `uid`, `name:group`, `uid:gid`.

    Empty or unknown means root, which decides only about file modes: a task is never root by what its image says.
    """
    name, _, group = user.partition(":")
    uid, gid = _number(name), 0
    for row in _rows(root, "passwd"):
        if len(row) > 3 and (row[0] == name or (uid is not None and row[2] == str(uid))):
            uid, gid = _number(row[2]), _number(row[3]) or 0
            break
    if group:
        found = _number(group)
        rows = _rows(root, "group") if found is None else []
        gid = next((number for row in rows if row[0] == group and (number := _number(row[2])) is not None), found or 0)
    return uid or 0, gid


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= _ID_MAX else None


def _rows(root: int, name: str) -> list[list[str]]:
    """Rows of a file in the image's `/etc`, without following links."""
    try:
        folder = os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError:
        return []
    with os.fdopen(file, "rb") as opened:
        text = opened.read(USER_FILE_BYTES_MAX).decode(errors="replace")
    return [line.split(":") for line in text.splitlines() if line.count(":") >= 2]
