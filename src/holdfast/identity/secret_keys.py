"""Keys that seal the Secrets of one cell: a file with mode 0600 beside the store, or the output of a command (a KMS).

The first key seals new values; the others only open old ones. The file is read again when it changes. A key that was
read once stays usable for opening until the process ends, so that a dropped key does not break a request in flight.
Backups never contain the file: without it the Secrets of a backup cannot be opened.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.gate.sealing import KEY_BYTES, CannotOpen, EncryptionKey
from holdfast.model.errors import StoreFailed
from holdfast.model.secret import Secret
from holdfast.model.times import seconds_text

KEYS_FILE = "secret-keys.json"
# Time for the key command to print the keys. After that, Secrets can be neither opened nor sealed.
KEY_COMMAND_TIMEOUT_S = 10.0
# Keys of one file. More are refused: every rotation leaves at most two.
KEYS_MAX = 16

_Stat = tuple[int, int, int]


class _KeyDocument(msgspec.Struct, frozen=True):
    keys: tuple[EncryptionKey, ...]


class KeyFile:
    """Implements `gate.sealing.KeySource`. With `command` the keys are what the command prints; there is no file."""

    def __init__(self, path: Path, command: str = "") -> None:
        self.path = path
        self._command = command
        self._seen: _Stat | None = None
        self._keys: tuple[EncryptionKey, ...] = ()
        self._known: dict[str, EncryptionKey] = {}

    @property
    def name(self) -> str:
        return f"key command {self._command.split()[0]}" if self._command else f"key file {self.path}"

    def all(self) -> Sequence[EncryptionKey]:
        if self._command:
            if not self._keys:
                self.refresh()
        else:
            self._read_if_changed()
        return self._keys

    def refresh(self) -> None:
        if self._command:
            self._take(_decode(_run_command(self._command), self.name))
        else:
            self._seen = None
            self._read_if_changed()

    def _read_if_changed(self) -> None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise CannotOpen(
                f"{self.name}: does not exist; next: put the key file of this cell in place (docs/operations/backup.md)"
            ) from None
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen != self._seen:
            self._take(read_keys(self.path))
            self._seen = seen

    def _take(self, keys: tuple[EncryptionKey, ...]) -> None:
        self._known |= {key.id: key for key in keys}
        present = {key.id for key in keys}
        self._keys = (*keys, *(key for key in self._known.values() if key.id not in present))


def create_keys(path: Path, now_s: float | None = None) -> None:
    """Writes a file with one new key, unless the file exists."""
    if not path.exists():
        _write(path, (_draw(now_s if now_s is not None else time.time()),), replace=False)


def add_key(path: Path, now_s: float | None = None) -> EncryptionKey:
    """Adds a new key that seals from now on, and returns it. The others stay for opening."""
    drawn = _draw(now_s if now_s is not None else time.time())
    _write(path, (drawn, *read_keys(path)), replace=True)
    return drawn


def drop_keys(path: Path, dropped: Iterable[str]) -> None:
    """Removes keys that nothing is sealed with. The first key stays in any case."""
    first, *others = read_keys(path)
    gone = set(dropped)
    _write(path, (first, *(key for key in others if key.id not in gone)), replace=True)


def read_keys(path: Path) -> tuple[EncryptionKey, ...]:
    name = f"key file {path}"
    try:
        mode = path.stat().st_mode & 0o777
        data = path.read_bytes()
    except OSError as error:
        raise CannotOpen(f"{name}: cannot read it ({error.strerror})") from None
    if mode & 0o077:
        raise CannotOpen(f"{name}: others may read it (expected mode 600, found {mode:o}); next: chmod 600 {path}")
    return _decode(data, name)


def check_secrets(cell: str, stored: Iterable[Secret], source: KeyFile) -> None:
    """Raises StoreFailed if a stored Secret names a key that the source does not have: a restore needs its keys."""
    used: dict[str, int] = {}
    for secret in stored:
        if secret.sealed is not None:
            used[secret.sealed.key] = used.get(secret.sealed.key, 0) + 1
    try:
        known = {key.id for key in source.all()} if used else set()
    except CannotOpen as fault:
        raise StoreFailed(f"Secrets of cell {cell}: {fault.message}") from None
    missing = {key: count for key, count in used.items() if key not in known}
    if missing:
        named = ", ".join(f"{count} with key {key}" for key, count in sorted(missing.items()))
        raise StoreFailed(
            f"Secrets of cell {cell}: {source.name} lacks their keys ({named}); next: put the key file that was "
            "in use when the data was written in place (docs/operations/backup.md)"
        )


def _draw(now_s: float) -> EncryptionKey:
    at = seconds_text(now_s)
    day = at.partition("T")[0].replace("-", "")
    return EncryptionKey(f"{day}-{secrets.token_hex(4)}", os.urandom(KEY_BYTES), at)


def _decode(data: bytes, name: str) -> tuple[EncryptionKey, ...]:
    try:
        keys = msgspec.json.decode(data, type=_KeyDocument).keys
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CannotOpen(f"{name}: not a list of keys (expected JSON with `keys`)") from None
    ids = {key.id for key in keys}
    if not 1 <= len(keys) <= KEYS_MAX or len(ids) != len(keys) or any(len(key.key) != KEY_BYTES for key in keys):
        raise CannotOpen(f"{name}: expected 1 to {KEYS_MAX} keys of {KEY_BYTES} bytes with different ids")
    return keys


def _run_command(command: str) -> bytes:
    name = command.split(maxsplit=1)[0]
    try:
        # The operator configures this command line of the cell, so it may use the shell.
        done = subprocess.run(command, shell=True, capture_output=True, timeout=KEY_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotOpen(f"key command {name}: failed ({type(error).__name__})") from None
    if done.returncode != 0:
        raise CannotOpen(f"key command {name}: failed (exit status {done.returncode})")
    return done.stdout


def _write(path: Path, keys: Sequence[EncryptionKey], *, replace: bool) -> None:
    """Durable and atomic. Never readable by others, not even for a moment."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.format(msgspec.json.encode(_KeyDocument(tuple(keys))), indent=2) + b"\n")
        os.fsync(fd)
        os.close(fd)
        if replace:
            part.rename(path)
        else:
            os.link(part, path)  # fails if another process was first, whose key then counts
    except FileExistsError:
        pass
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
