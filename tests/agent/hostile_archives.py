"""Archives that attack the node that unpacks them. Each is built here, byte by byte where no library would write it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

MIB = 1024 * 1024


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, target, mode
    return made


def symlink(name: str, target: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, target)


def hardlink(name: str, target: str, mode: int = 0o777) -> tarfile.TarInfo:
    return member(name, tarfile.LNKTYPE, target, mode)


def tar(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for given in members:
            item, data = given if isinstance(given, tuple) else (given, b"evil")
            item.size = len(data) if item.type in tarfile.REGULAR_TYPES else 0
            archive.addfile(item, io.BytesIO(data))
    return out.getvalue()


def zipped(*items: tuple[str, int, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, mode, data in items:
            item = zipfile.ZipInfo("placeholder")
            item.filename, item.external_attr, item.compress_type = name, mode << 16, method
            archive.writestr(item, data)
    return out.getvalue()


def header(name: bytes, kind: bytes, size: bytes) -> bytes:
    """A tar header with any size field, which `tarfile` would not write."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108], block[108:116], block[116:124] = b"0000777\0", b"0000000\0", b"0000000\0"
    block[124:136], block[136:148], block[156:157] = size.ljust(12, b"\0"), b"00000000000\0", kind
    block[257:265], block[148:156] = b"ustar\x0000", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def negative(size: int) -> bytes:
    return b"\xff" + (size & (2**88 - 1)).to_bytes(11, "big")


def pax(**records: str) -> bytes:
    body = b""
    for key, value in records.items():
        text = f" {key}={value}\n".encode()
        length = len(text) + 1
        while length != len(str(length)) + len(text):
            length = len(str(length)) + len(text)
        body += str(length).encode() + text
    return header(b"pax", b"x", b"%011o\0" % len(body)) + body.ljust(-(-len(body) // 512) * 512, b"\0")


def overlapping_zip(copies: int, size: int) -> bytes:
    """Many directory entries that share one compressed file."""
    whole = zipped(("a", 0o644, bytes(size)))
    start = whole.index(b"PK\1\2")
    record, local = whole[start : whole.index(b"PK\5\6")], whole[:start]
    directory = b"".join(record[:46] + b"%c" % (65 + index) + record[47:] for index in range(copies))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, copies, copies, len(directory), len(local), 0)
    return local + directory + end


def xz_that_needs_3_gib() -> bytes:
    """A small archive whose header declares a dictionary of 3 GiB."""
    small = lzma.compress(tar((member("a"), b"x")), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}])
    block = bytearray(small[12:24])
    block[4] = 39
    block[8:12] = struct.pack("<I", zlib.crc32(bytes(block[:8])))
    return small[:12] + bytes(block) + small[24:]


def corpus(outside: Path) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Name of the attack, file name, content. `outside` is a directory that must not change; it holds `secret`."""
    secret = str(outside / "secret")
    up = "../" * 12
    relative = up + secret.lstrip("/")
    dots = "b/" * 12 + up.rstrip("/")
    return {
        "absolute path": ("a.tar", lambda: tar(member(secret))),
        "parent path": ("a.tar", lambda: tar(member(relative))),
        "parent path inside": ("a.tar", lambda: tar(member("a/../../x"))),
        "link to absolute path": ("a.tar", lambda: tar(symlink("s", secret), member("s"))),
        "link to parent": ("a.tar", lambda: tar(symlink("s", relative))),
        "write through link": ("a.tar", lambda: tar(symlink("d", str(outside)), member("d/secret"))),
        "link to itself, then up": ("a.tar", lambda: tar(symlink("b", "."), symlink("c", dots), member("c/escaped"))),
        "link through a link": ("a.tar", lambda: tar(symlink("b", "."), symlink("c", "b/../" * 12 + "x"))),
        "link through a later link": ("a.tar", lambda: tar(symlink("c", "d/.."), member("d", tarfile.DIRTYPE))),
        "directory through link": ("a.tar", lambda: tar(symlink("b", "."), member("b/d", tarfile.DIRTYPE))),
        "hard link to absolute path": ("a.tar", lambda: tar(hardlink("h", secret))),
        "hard link to parent": ("a.tar", lambda: tar(hardlink("h", relative), member("h"))),
        "hard link through link": ("a.tar", lambda: tar(symlink("d", str(outside)), hardlink("h", "d/secret"))),
        "hard link to a link": ("a.tar", lambda: tar(symlink("s", "x"), hardlink("h", "s"))),
        "hard link to a directory": ("a.tar", lambda: tar(member("d", tarfile.DIRTYPE), hardlink("h", "d"))),
        "hard link to the archive": ("a.tar", lambda: tar(hardlink("h", "../fetched"))),
        "character device": ("a.tar", lambda: tar(member("null", tarfile.CHRTYPE))),
        "block device": ("a.tar", lambda: tar(member("disk", tarfile.BLKTYPE))),
        "fifo": ("a.tar", lambda: tar(member("pipe", tarfile.FIFOTYPE))),
        "unknown type": ("a.tar", lambda: tar(member("x", b"Q"))),
        "file under a file": ("a.tar", lambda: tar(member("a"), member("a/b"))),
        "file over a directory": ("a.tar", lambda: tar(member("a", tarfile.DIRTYPE), member("a"))),
        "no name": ("a.tar", lambda: tar(member("."))),
        "too deep": ("a.tar", lambda: tar(member("d/" * 200 + "f"))),
        "long name": ("a.tar", lambda: tar(member("n" * 300))),
        "long path": ("a.tar", lambda: tar(member("/".join(["n" * 200] * 10)))),
        "negative size": ("a.tar", lambda: header(b"a", b"0", negative(-1024)) * 4),
        "size of a header in memory": ("a.tar", lambda: header(b"x", b"x", b"77777777777\0") + bytes(4096)),
        "size of a long name in memory": ("a.tar", lambda: header(b"x", b"L", b"77777777777\0") + bytes(4096)),
        "size of a compressed header in memory": ("a.tar.gz", lambda: _large_header(256 * MIB)),
        "chain of headers": ("a.tar", lambda: pax(path="a") * 3000 + tar(member("a"))),
        "path by extended header": ("a.tar", lambda: pax(path=secret) + tar(member("a"))),
        "NUL in a name": ("a.tar", lambda: pax(path="a\0b") + tar(member("a"))),
        "negative size by extended header": ("a.tar", lambda: pax(size="-1000") + tar(member("a"))),
        "sparse file of a terabyte": ("a.tar", _sparse),
        "file larger than the archive": ("a.tar", lambda: header(b"a", b"0", b"77777777777\0") + b"short"),
        "many entries": ("a.tar.gz", lambda: gzip.compress(header(b"d/", b"5", b"0\0") * 10 + _many(70_000), 1)),
        "many directories": ("a.tar.gz", lambda: _packed(*(member(f"{i:x}/" * 30 + "f") for i in range(400)))),
        "bomb, gzip": ("a.tar.gz", lambda: _packed((member("zeros"), bytes(96 * MIB)))),
        "bomb, bzip2": ("a.tar.bz2", lambda: bz2.compress(tar((member("zeros"), bytes(64 * MIB))))),
        "bomb, xz": ("a.tar.xz", lambda: lzma.compress(tar((member("zeros"), bytes(64 * MIB))), preset=0)),
        "memory of xz": ("a.tar.xz", xz_that_needs_3_gib),
        "cut gzip": ("a.tar.gz", lambda: gzip.compress(tar((member("a"), os.urandom(4096))))[:2000]),
        "cut xz": ("a.tar.xz", lambda: lzma.compress(tar((member("a"), os.urandom(4096))))[:2000]),
        "no archive": ("a.tar", lambda: b"no archive"),
        "zip: absolute path": ("a.zip", lambda: zipped((secret, stat.S_IFREG | 0o777, b"evil"))),
        "zip: parent path": ("a.zip", lambda: zipped((relative, stat.S_IFREG | 0o777, b"evil"))),
        "zip: link out": ("a.zip", lambda: zipped(("s", stat.S_IFLNK | 0o777, secret.encode()))),
        "zip: write through link": (
            "a.zip",
            lambda: zipped(("d", stat.S_IFLNK | 0o777, str(outside).encode()), ("d/secret", 0o777, b"evil")),
        ),
        "zip: link upwards": (
            "a.zip",
            lambda: zipped(("b", stat.S_IFLNK | 0o777, b"."), ("c", stat.S_IFLNK | 0o777, dots.encode())),
        ),
        "zip: device": ("a.zip", lambda: zipped(("null", stat.S_IFCHR | 0o666, b""))),
        "zip: bomb": ("a.zip", lambda: zipped(("zeros", 0o644, bytes(300 * MIB)))),
        "zip: overlapping bomb": ("a.zip", lambda: overlapping_zip(26, 4 * MIB)),
        "zip: bzip2 in memory": ("a.zip", lambda: zipped(("z", 0o644, bytes(MIB)), method=zipfile.ZIP_BZIP2)),
        "zip: many entries": ("a.zip", lambda: _many_zipped(66_000)),
        "zip: large directory": ("a.zip", lambda: _large_directory(9 * MIB)),
        "zip: damaged data": ("a.zip", lambda: zipped(("a", 0o644, os.urandom(4096))).replace(b"PK\3\4", b"PK\3\5")),
        "zip: no archive": ("a.zip", lambda: b"PK\3\4 no archive"),
        "zip: empty file": ("a.zip", lambda: b""),
    }


def _packed(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    return gzip.compress(tar(*members), 9)


def _large_header(size: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as archive:
        archive.write(header(b"x", b"x", b"%011o\0" % size))
        for _ in range(size // MIB):
            archive.write(bytes(MIB))
    return out.getvalue()


def _many(count: int) -> bytes:
    return b"".join(header(b"%x" % index, b"0", b"0\0") for index in range(count))


def _many_zipped(count: int) -> bytes:
    whole = zipped(("aaaa", 0o644, b""), method=zipfile.ZIP_STORED)
    start = whole.index(b"PK\1\2")
    record, local = whole[start : whole.index(b"PK\5\6")], whole[:start]
    directory = b"".join(record[:46] + b"%04x" % (index % 65_536) for index in range(count))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count % 65_536, count % 65_536, len(directory), len(local), 0)
    return local + directory + end


def _large_directory(size: int) -> bytes:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size, 0, 0)
    return bytes(size) + end


def _sparse() -> bytes:
    """An old GNU sparse file: no data, and an apparent size of a terabyte."""
    block = bytearray(header(b"sparse", b"S", b"0\0"))
    block[386:398], block[398:410] = b"00000000000\0", b"00000000000\0"
    block[483:495] = b"\x80" + (2**40).to_bytes(11, "big")
    block[257:265], block[148:156] = b"ustar  \0", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)
