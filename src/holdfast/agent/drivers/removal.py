"""Removes the files of a task. The tenant's task chose their depth, number and links.

`shutil.rmtree` needs a stack frame and a descriptor per level: a task that made 1,000 nested directories could not be
removed. Here each directory is emptied by moving its subdirectories up, so that any depth takes constant space.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Removes a file or a directory with its content, without following links. Leaves what cannot be removed."""
    with contextlib.suppress(OSError):
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_at(path.name, parent)
        finally:
            os.close(parent)


def remove_at(name: str, parent: int) -> None:
    """Removes whatever has this name in the directory with the descriptor `parent`. Raises OSError if it cannot."""
    if _unlink(name, parent):
        return
    top = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        _make_writable(top)
        while _empty_once(top):
            pass
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty_once(top: int) -> bool:
    """Removes or flattens every entry of `top`. Returns whether another pass may remove more."""
    progress = False
    with os.scandir(top) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                progress |= _unlink(entry.name, top) or _flatten(entry.name, top)
    return progress


def _flatten(name: str, top: int) -> bool:
    """Empties a subdirectory: files are removed, directories move up into `top`. Returns whether anything changed."""
    folder = os.open(name, _DIRECTORY, dir_fd=top)
    changed = False
    try:
        _make_writable(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not _unlink(entry.name, folder):
                        os.rename(entry.name, f"removed-{secrets.token_hex(16)}", src_dir_fd=folder, dst_dir_fd=top)
                    changed = True
    finally:
        os.close(folder)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError:
        return changed
    return True


def _unlink(name: str, parent: int) -> bool:
    """Returns False if the name is that of a directory."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
        return False
    return True


def _make_writable(folder: int) -> None:
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
