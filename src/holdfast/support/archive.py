"""The parts of a support bundle, their bounds, the manifest, and the file.

Parts are held until `write`, because a later part may show which values an earlier one must not contain.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from holdfast.support.redaction import KNOWN_VALUES_MAX, REDACTED, Redaction

BUNDLE_BYTES_MAX = 64 * 1024 * 1024
"""Size of all parts before compression. Parts that would exceed it are left out."""
MANIFEST = "manifest.json"


class PartFact(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    bytes: int
    about: str
    cut: str = ""
    """What of the source is missing in the part, and why; empty if it is whole."""


class LeftOut(msgspec.Struct, frozen=True, rename="camel"):
    what: str
    why: str


class BundleManifest(msgspec.Struct, frozen=True, rename="camel"):
    made_at: str
    holdfast: str
    unreachable: dict[str, str]
    """Cells that did not answer, with the error."""
    parts: tuple[PartFact, ...]
    left_out: tuple[LeftOut, ...]
    redactions: int
    redacted_as: str = REDACTED


class _Part(msgspec.Struct, frozen=True):
    path: str
    content: Any
    about: str
    cut: str


class SupportArchive:
    """Collects redacted parts. A text is stored as it is, every other value as JSON."""

    def __init__(self, redaction: Redaction, *, bytes_max: int = BUNDLE_BYTES_MAX) -> None:
        self._redaction = redaction
        self._bytes_max = bytes_max
        self._parts: list[_Part] = []
        self._left_out: list[LeftOut] = []
        self.unreachable: dict[str, str] = {}

    def add(self, path: str, content: Any, about: str, *, cut: str = "") -> None:
        redacted = self._redaction.text(content) if isinstance(content, str) else self._redaction.object(content)
        self._parts.append(_Part(path, redacted, about, cut))

    def leave_out(self, what: str, why: str) -> None:
        self._left_out.append(LeftOut(what, self._redaction.text(why)))

    def write(self, target: Path, *, made_at: str, version: str) -> BundleManifest:
        """Writes the archive, readable by its owner only, and returns the manifest."""
        files, facts, size = list[tuple[str, bytes]](), list[PartFact](), 0
        for part in self._parts:
            if self._redaction.is_overfull and isinstance(part.content, str):
                why = f"more than {KNOWN_VALUES_MAX} values of environments would have to be searched in it"
                self._left_out.append(LeftOut(part.path, why))
                continue
            data = _encoded(self._redaction.scrub(part.content))
            if size + len(data) > self._bytes_max:
                why = f"the bundle would exceed {self._bytes_max} bytes with its {len(data)} bytes"
                self._left_out.append(LeftOut(part.path, why))
                continue
            size += len(data)
            files.append((part.path, data))
            facts.append(PartFact(part.path, len(data), part.about, part.cut))
        manifest = BundleManifest(
            made_at=made_at,
            holdfast=version,
            unreachable=self._redaction.scrub({c: self._redaction.text(why) for c, why in self.unreachable.items()}),
            parts=tuple(facts),
            left_out=tuple(self._left_out),
            redactions=self._redaction.replaced,
        )
        _write_tar(target, [(MANIFEST, _encoded(msgspec.to_builtins(manifest))), *files])
        return manifest


def _encoded(content: Any) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return text.encode(errors="replace")


def _write_tar(target: Path, files: list[tuple[str, bytes]]) -> None:
    new = target.with_name(f".{target.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        with gzip.GzipFile(fileobj=file, mode="wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            for name, data in files:
                entry = tarfile.TarInfo(f"holdfast-support/{name}")
                entry.size, entry.mode = len(data), 0o600
                tar.addfile(entry, io.BytesIO(data))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, target)
