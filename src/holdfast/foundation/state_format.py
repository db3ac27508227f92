"""The format of a state directory: `version.json`, and the migrations from older formats.

- A directory of a newer format is refused before anything in it is read.
- A directory of an older format is migrated at start, one format after the other, after a copy of its files was made.
- A migration that was interrupted starts again from that copy, so a migration need not be idempotent.

A directory without the file has format 1. The caller must own the directory: no other process may use it meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog

from holdfast import __version__
from holdfast.model.errors import StoreFailed

VERSION_FILE = "version.json"
UPGRADE_PAGE = "docs/how-to/upgrade.md"
COPIES_PER_SECOND_MAX = 1_000
"""Copies whose names could be the same. A migration takes longer than a millisecond."""
_FIRST = 1
_log = structlog.get_logger()


class StateVersion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Content of version.json."""

    format: int
    holdfast: str
    """The release that last started on the directory."""
    kind: str = ""
    migrating_to: int = 0
    """Set while a migration runs. `copy` then holds the files as they were before it."""
    copy: str = ""
    """The directory's newest copy, made before its last migration; a name within the directory."""


class Migration(msgspec.Struct, frozen=True):
    """Changes the files of a directory from the format before `to`. `about` says what it changes."""

    to: int
    about: str
    apply: Callable[[Path], None]


class StateFormat(msgspec.Struct, frozen=True):
    """A kind of state directory: the files that belong to its format, as patterns, and all migrations, in order."""

    kind: str
    files: tuple[str, ...]
    migrations: tuple[Migration, ...] = ()

    @property
    def current(self) -> int:
        return self.migrations[-1].to if self.migrations else _FIRST


def open_state(folder: Path, form: StateFormat) -> StateVersion:
    """Checks the directory's format, migrates it if it is older, and notes this release. Raises StoreFailed.

    Processes that open the same directory at once take turns.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return _open(folder, form)
    finally:
        os.close(handle)


def _open(folder: Path, form: StateFormat) -> StateVersion:
    found = read_version(folder, form)
    if found.format > form.current:
        raise StoreFailed(
            f"state directory {folder}: written by a newer release (expected format {form.current} or older, found "
            f"{found.format} of holdfast {found.holdfast}); next: start that release, or go back as {UPGRADE_PAGE} says"
        )
    for migration in form.migrations:
        if migration.to > found.format:
            found = _migrate(folder, form, found, migration)
    noted = msgspec.structs.replace(found, holdfast=__version__, kind=form.kind)
    if noted != found or not (folder / VERSION_FILE).exists():
        try:
            _write(folder, noted)
        except OSError as error:
            # The format is unchanged, and a full disk must not keep an agent from its tasks.
            _log.warning("state_version_write_failed", path=str(folder), message=str(error))
    return noted


def read_version(folder: Path, form: StateFormat) -> StateVersion:
    """The directory's version. A new, empty directory has the current format."""
    path = folder / VERSION_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=StateVersion)
    except FileNotFoundError:
        is_new = next(_files(folder, form), None) is None
        return StateVersion(form.current if is_new else _FIRST, "", form.kind)
    except (OSError, msgspec.DecodeError) as error:
        text = f"{path}: unreadable ({error}); next: copy it from a backup of the directory, or see {UPGRADE_PAGE}"
        raise StoreFailed(text) from error
    if found.kind != form.kind:
        text = f"state directory {folder}: of another kind (expected {form.kind}, found {found.kind})"
        raise StoreFailed(f"{text}; next: correct the state directory's path")
    return found


def _migrate(folder: Path, form: StateFormat, found: StateVersion, migration: Migration) -> StateVersion:
    _log.info("state_migration_started", path=str(folder), to=migration.to, about=migration.about)
    try:
        if found.migrating_to:
            _restore(folder, form, folder / found.copy)
        else:
            found = _copy(folder, form, found, migration.to)
        migration.apply(folder)
        done = StateVersion(migration.to, __version__, form.kind, copy=found.copy)
        _write(folder, done)
    except OSError as error:
        text = f"state directory {folder}: not migrated to format {migration.to} ({error.strerror or error})"
        raise StoreFailed(f"{text}; next: free space or correct the rights, and start again") from error
    _log.info("state_migration_finished", path=str(folder), to=migration.to, copy=found.copy)
    return done


def _copy(folder: Path, form: StateFormat, found: StateVersion, to: int) -> StateVersion:
    """Copies the files of the format into the directory itself, and marks the migration as begun."""
    stem = f"before-format-{to}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, COPIES_PER_SECOND_MAX)))
    name = next(name for name in names if not (folder / name).exists())
    part = folder / f".{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    for path in _files(folder, form):
        target = part / path.relative_to(folder)
        _copy_file(path, target)
    _write(part, StateVersion(found.format, found.holdfast, form.kind))
    part.rename(folder / name)
    _sync(folder)
    begun = StateVersion(found.format, found.holdfast, form.kind, migrating_to=to, copy=name)
    _write(folder, begun)
    return begun


def _restore(folder: Path, form: StateFormat, copy: Path) -> None:
    """Puts the copied files back, and removes those that the interrupted migration has added."""
    for path in list(_files(folder, form)):
        if not (copy / path.relative_to(folder)).exists():
            path.unlink()
    for path in list(_files(copy, form)):
        _copy_file(path, folder / path.relative_to(copy))


def _copy_file(path: Path, target: Path) -> None:
    """Never writes through a symbolic link: a directory may have files of tasks beside its own."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.copying")
    new.unlink(missing_ok=True)
    shutil.copy2(path, new, follow_symlinks=False)
    _sync(new)
    os.replace(new, target)


def _files(folder: Path, form: StateFormat) -> Iterator[Path]:
    for pattern in form.files:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.is_symlink() and path.name != VERSION_FILE:
                yield path


def _write(folder: Path, version: StateVersion) -> None:
    path = folder / VERSION_FILE
    new = path.with_name(f".{VERSION_FILE}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(version) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
