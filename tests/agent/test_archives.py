"""Unpacking archives of tenants: hostile ones change nothing outside their directory, whatever they contain."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import resource
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.hostile_archives import MIB, corpus, hardlink, member, symlink, tar, zipped

from holdfast.agent.drivers import archives
from holdfast.agent.drivers.archives import ArchiveRefused, unpack

FUZZ = settings(
    max_examples=2000 if os.environ.get("HOLDFAST_FUZZ") == "long" else 250,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def outside_tree(root: Path) -> Path:
    """A directory that no archive may change, with a file that only its owner may read."""
    outside = root / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "secret").write_text("key")
    (outside / "secret").chmod(0o600)
    (outside / "folder" / "file").write_text("content")
    return outside


def facts(root: Path, but: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that could have changed below `root`, except below `but`."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if Path(folder) / name != but]
        for name in (".", *folders, *names):
            path = os.path.join(folder, name)
            known = os.lstat(path)
            data = Path(path).read_bytes() if stat.S_ISREG(known.st_mode) else b""
            found[path] = (known.st_mode, known.st_ino, known.st_nlink, known.st_uid, known.st_mtime_ns, data)
    return found


def disk_bytes(root: Path) -> int:
    return sum(os.lstat(os.path.join(f, name)).st_size for f, _, names in os.walk(root) for name in names)


def do_unpack(file_name: str, data: bytes, target: Path) -> None:
    """From a real file, as the agent does: a file allocates what a read asks for, unlike a buffer in memory."""
    target.mkdir()
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with tempfile.TemporaryFile() as packed:
            packed.write(data)
            unpack(file_name, packed, folder, lambda: None)
    finally:
        os.close(folder)


def assert_safe(target: Path) -> None:
    """Nothing in the directory has special bits or types, and no link leads out of it."""
    inside = os.path.realpath(target)
    for folder, folders, names in os.walk(target):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            known = os.lstat(path)
            if stat.S_ISLNK(known.st_mode):
                led = os.path.realpath(path)
                assert led == inside or led.startswith(inside + os.sep), f"{path} leads to {led}"
            else:
                assert stat.S_ISREG(known.st_mode) or stat.S_ISDIR(known.st_mode), path
                assert not known.st_mode & 0o7022, oct(known.st_mode)


@pytest.fixture
def memory_limit() -> Iterator[None]:
    """A test that allocates 160 MiB more than it has now gets a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 160 * MIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("attack", sorted(corpus(Path("/x"))))
def test_hostile_archive_is_refused_and_changes_nothing_outside(attack: str, tmp_path: Path) -> None:
    outside = outside_tree(tmp_path)
    target = tmp_path / "in" / "target"
    target.parent.mkdir()
    name, build = corpus(outside)[attack]
    data = build()
    before = facts(tmp_path, target.parent)
    began = time.monotonic()
    with pytest.raises(ArchiveRefused) as refusal:
        do_unpack(name, data, target)
    assert str(refusal.value) and "\n" not in str(refusal.value)
    assert time.monotonic() - began < 20
    assert disk_bytes(target) <= archives.ARCHIVE_RATIO_EXEMPT_BYTES
    assert facts(tmp_path, target.parent) == before
    assert os.listdir(target.parent) == ["target"]
    assert_safe(target)


@pytest.mark.parametrize(
    "attack",
    [
        "size of a header in memory",
        "size of a compressed header in memory",
        "size of a long name in memory",
        "memory of xz",
    ],
)
def test_archive_that_claims_large_buffers_allocates_none(attack: str, tmp_path: Path, memory_limit: None) -> None:
    name, build = corpus(tmp_path)[attack]
    with pytest.raises(ArchiveRefused) as refusal:
        do_unpack(name, build(), tmp_path / "target")
    assert "MemoryError" not in str(refusal.value)


@pytest.mark.parametrize(
    ("limit", "value", "data"),
    [
        ("ARCHIVE_ENTRIES_MAX", 20, tar(*(member(f"f{index}") for index in range(21)))),
        ("ARCHIVE_ENTRIES_MAX", 20, tar(member("d/" * 21 + "f"))),
        ("ARCHIVE_SYMLINKS_MAX", 5, tar(*(symlink(f"s{index}", "x") for index in range(6)))),
        ("ARCHIVE_UNPACKED_BYTES_MAX", 64 * 1024, tar((member("f"), bytes(64 * 1024)))),
        ("ARCHIVE_DEPTH_MAX", 3, tar(member("a/b/c/d/f"))),
    ],
)
def test_archive_over_a_limit_is_refused(
    limit: str, value: int, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_unpack("a.tar", data, tmp_path / "within")
    monkeypatch.setattr(archives, limit, value)
    with pytest.raises(ArchiveRefused):
        do_unpack("a.tar", data, tmp_path / "beyond")


def test_ordinary_archives_are_unpacked_with_links_and_modes(tmp_path: Path) -> None:
    data = tar(
        member("./bin", tarfile.DIRTYPE),
        (member("bin/run", mode=0o6755), b"#!/bin/sh\n"),
        (member("lib/x.so.1", mode=0o600), b"code"),
        symlink("lib/x.so", "x.so.1"),
        symlink("bin/lib", "../lib"),
        symlink("here", "."),
        hardlink("bin/again", "bin/run"),
        (member("bin/twice"), b"first"),
        (member("bin/twice"), b"second"),
    )
    for index, packed in enumerate((data, gzip.compress(data), lzma.compress(data))):
        target = tmp_path / str(index)
        do_unpack("a.tar.gz", packed, target)
        assert (target / "bin" / "lib" / "x.so").read_bytes() == b"code"
        assert (target / "here" / "bin" / "again").read_bytes() == b"#!/bin/sh\n"
        assert (target / "bin" / "twice").read_bytes() == b"second"
        modes = {p.name: stat.S_IMODE(os.lstat(p).st_mode) for p in (target / "bin" / "run", target / "lib" / "x.so.1")}
        assert modes == {"run": 0o555, "x.so.1": 0o444}
        assert_safe(target)


def test_ordinary_zip_is_unpacked(tmp_path: Path) -> None:
    link = stat.S_IFLNK | 0o777
    do_unpack("A.ZIP", zipped(("d/run", 0o755, b"x"), ("d/plain", 0, b"y"), ("l", link, b"d/run")), tmp_path / "t")
    assert (tmp_path / "t" / "l").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "t" / "d" / "run").stat().st_mode) == 0o555
    assert stat.S_IMODE((tmp_path / "t" / "d" / "plain").stat().st_mode) == 0o444


def test_disk_check_stops_an_archive_between_chunks(tmp_path: Path) -> None:
    class Full(Exception):
        pass

    def check() -> None:
        if disk_bytes(tmp_path / "t") >= MIB:
            raise Full

    (tmp_path / "t").mkdir()
    folder = os.open(tmp_path / "t", os.O_RDONLY)
    with pytest.raises(Full):
        unpack("a.tar", io.BytesIO(tar((member("zeros"), bytes(8 * MIB)))), folder, check)
    os.close(folder)
    assert disk_bytes(tmp_path / "t") < 2 * MIB


# --- random archives -------------------------------------------------------------------------------------------------

# Mostly ordinary names: an archive is refused at its first bad entry, and the entries before it must be reached.
_ordinary = st.lists(st.sampled_from(["a", "b", "c", "."]), min_size=1, max_size=3).map("/".join)
_names = st.sampled_from(["a", "b", ".", "..", "", "secret", "outside", "é", "\\", "-", "*"])
_hostile = st.lists(_names, min_size=1, max_size=6).map("/".join) | st.text(max_size=12)
_paths = st.one_of(_ordinary, _ordinary, _ordinary, _ordinary, _ordinary, _hostile)
_up = st.builds(lambda n, path: "../" * n + path, st.integers(0, 6), _ordinary)
_through = st.builds(lambda first, n: "/".join([first, *[".."] * n]), _ordinary, st.integers(1, 4))
_targets = st.one_of(_ordinary, _ordinary, _up, _through, _hostile)
_types = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE] * 4 + [tarfile.CHRTYPE, tarfile.FIFOTYPE, b"7"]
)
_members = st.lists(
    st.tuples(_paths, _types, _targets, st.sampled_from([0o644, 0o777, 0o4755, 0o7777, 0]), st.binary(max_size=600)),
    min_size=1,
    max_size=12,
)


def _built_tar(members: list[Any], outside: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target, mode, data in members:
            item = member(_placed(name, outside), kind, _placed(target, outside), mode)
            item.size = len(data) if kind in tarfile.REGULAR_TYPES else 0
            with contextlib.suppress(ValueError, UnicodeError):
                archive.addfile(item, io.BytesIO(data))
    return out.getvalue()


def _built_zip(members: list[Any], outside: Path) -> bytes:
    kinds = {tarfile.SYMTYPE: stat.S_IFLNK, tarfile.CHRTYPE: stat.S_IFCHR, tarfile.DIRTYPE: stat.S_IFDIR}
    items = []
    for name, kind, target, mode, data in members:
        text = _placed(target, outside).encode(errors="replace") if kind == tarfile.SYMTYPE else data
        slash = "/" if kind == tarfile.DIRTYPE else ""
        items.append((_placed(name, outside) + slash, kinds.get(kind, stat.S_IFREG) | mode, text))
    try:
        return zipped(*items)
    except (ValueError, UnicodeError, zipfile.LargeZipFile):
        return b""


def _placed(path: str, outside: Path) -> str:
    """Paths with `outside` lead to the directory that must not change."""
    return path.replace("outside", str(outside))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@FUZZ
@given(_members, st.booleans(), st.data())
def test_random_archive_changes_nothing_outside(members: list[Any], as_zip: bool, data: Any) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        outside, target = outside_tree(root), root / "in" / "target"
        target.parent.mkdir()
        packed = _built_zip(members, outside) if as_zip else _built_tar(members, outside)
        packed = _mutated(packed, data)
        before = facts(root, target.parent)
        with contextlib.suppress(ArchiveRefused):
            do_unpack("a.zip" if as_zip else "a.tar", packed, target)
        assert facts(root, target.parent) == before
        assert os.listdir(target.parent) == ["target"]
        assert disk_bytes(target) <= archives.ARCHIVE_RATIO_EXEMPT_BYTES
        assert_safe(target)


_short = st.sampled_from(["a", "b", "c", "a/b"])
_steps = st.lists(st.sampled_from([".", "..", "a", "b"]), min_size=1, max_size=4).map("/".join)
_linked = st.lists(st.tuples(_short, st.just(tarfile.SYMTYPE), _steps, st.just(0o777), st.just(b"")), max_size=4)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@FUZZ
@given(_linked, st.booleans())
def test_random_links_never_lead_out(members: list[Any], as_zip: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        packed = _built_zip(members, root) if as_zip else _built_tar(members, root)
        with contextlib.suppress(ArchiveRefused):
            do_unpack("a.zip" if as_zip else "a.tar", packed, root / "target")
        assert_safe(root / "target")


def _mutated(packed: bytes, data: Any) -> bytes:
    """Sometimes a few bytes are changed, which reaches the parsers."""
    changes = data.draw(st.lists(st.tuples(st.integers(0, max(0, len(packed) - 1)), st.integers(0, 255)), max_size=4))
    out = bytearray(packed)
    for position, value in changes if data.draw(st.booleans()) else ():
        if out:
            out[position] = value
    return bytes(out)


@FUZZ
@given(
    st.binary(max_size=3000),
    st.sampled_from(["a.tar", "a.zip", "a.tar.gz"]),
    st.sampled_from([b"", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"PK\3\4"]),
)
def test_random_bytes_are_refused_or_empty(data: bytes, name: str, magic: bytes) -> None:
    with tempfile.TemporaryDirectory() as made, contextlib.suppress(ArchiveRefused):
        do_unpack(name, magic + data, Path(made) / "target")
