"""Takes the pictures of the console that the documentation shows, with the browser tests: `make pictures`.

`make pictures PART=pages` (or `actions`, `sessions`) runs one file of tests and replaces the pictures that it takes.
Each picture has at most 256 colours, which makes the file about a third as large.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TESTS = {
    "pages": "tests/e2e/test_console.py",
    "actions": "tests/e2e/test_console_actions.py",
    "sessions": "tests/e2e/test_console_sessions.py",
}
THEMES = ("light", "dark")
PAGES = (
    "overview",
    "map",
    "workloads",
    "workload",
    "schedules",
    "pipeline",
    "queues",
    "decisions",
    "decision",
    "what-if",
    "audit",
    "recoveries",
    "recovery",
    "quotas",
    "policies",
    "overrides",
    "repairs",
    "config",
    "access",
    "system",
)
STATES = (
    "action-drain-light",
    "action-undo",
    "config-filled",
    "decision-390-dark",
    "decision-waiting",
    "drill-report",
    "log",
    "map-390-light",
    "map-way-light",
    "overview-390-light",
    "overrides-active",
    "overview-lost",
    "past",
    "policies-shadow",
    "queues-waiting",
    "recovery-390-dark",
    "region-silent",
    "schedules-filled",
    "search",
    "shell",
    "sign-in",
    "stale",
    "what-if-drain",
    "workload-390-light",
    "workload-indexes",
)
WANTED = (*(f"{page}-{theme}" for page in PAGES for theme in THEMES), *STATES)
COLOURS = 256
FREQUENT = 160
"""Colours of the palette that are chosen by how often they occur. The others are chosen by their distance."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"

Pixels = NDArray[np.uint8]


def read_png(data: bytes) -> Pixels:
    """The pixels of a screenshot: 8 bits a channel, not interlaced. Alpha is dropped."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("not a PNG file")
    at, body, head = len(_SIGNATURE), b"", b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        part = data[at + 8 : at + 8 + size]
        head, body = (part if kind == b"IHDR" else head), (body + part if kind == b"IDAT" else body)
        at += size + 12
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    channels = {2: 3, 6: 4}.get(colour, 0)
    if bits != 8 or not channels or interlaced:
        raise ValueError(f"PNG: expected 8 bits of RGB or RGBA, found {bits} bits of colour type {colour}")
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + width * channels)
    found = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y, row in enumerate(rows):
        above = found[y] = _unfiltered(int(row[0]), row[1:], above, channels)
    return found.reshape(height, width, channels)[:, :, :3]


def _unfiltered(method: int, row: Pixels, above: Pixels, channels: int) -> Pixels:
    if method == 0:
        return row
    if method == 1:
        return row.reshape(-1, channels).cumsum(axis=0, dtype=np.uint8).reshape(-1)
    if method == 2:
        return row + above
    found, up, raw = [0] * len(row), above.tolist(), row.tolist()
    for i, value in enumerate(raw):
        left = found[i - channels] if i >= channels else 0
        corner = up[i - channels] if i >= channels else 0
        near = (left + up[i]) // 2 if method == 3 else _paeth(left, up[i], corner)
        found[i] = (value + near) & 255
    return np.array(found, np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    distances = (abs(guess - left), abs(guess - up), abs(guess - corner))
    return (left, up, corner)[distances.index(min(distances))]


def _palette(every: NDArray[np.int32], counts: NDArray[np.intp]) -> NDArray[np.int32]:
    """The most frequent colours, and then those that are farthest from all chosen ones: a thin red line stays red."""
    chosen = every[np.argsort(-counts, kind="stable")[:FREQUENT]]
    distance = np.full(len(every), np.iinfo(np.int32).max, np.int32)
    for colour in chosen:
        distance = np.minimum(distance, ((every - colour) ** 2).sum(axis=1))
    while len(chosen) < min(COLOURS, len(every)):
        farthest = every[int(distance.argmax())]
        chosen = np.concatenate([chosen, farthest[None, :]])
        distance = np.minimum(distance, ((every - farthest) ** 2).sum(axis=1))
    return chosen


def write_png(pixels: Pixels) -> bytes:
    """A PNG with a palette. A colour that is not in it becomes the nearest one of it."""
    height, width, _ = pixels.shape
    packed = pixels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    colours, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    every = np.stack([colours >> 16, (colours >> 8) & 255, colours & 255], axis=1).astype(np.int32)
    palette = _palette(every, counts)
    nearest = np.empty(len(colours), np.uint8)
    for first in range(0, len(colours), 1024):
        block = every[first : first + 1024]
        nearest[first : first + 1024] = ((block[:, None, :] - palette[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    indexes = nearest[places.reshape(-1)].reshape(height, width)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indexes], axis=1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in parts
    )


def keep(folder: Path, target: Path = PICTURES) -> list[str]:
    """Copies the wanted pictures. Returns the names of those that no test took."""
    missing = []
    for name in WANTED:
        source = folder / f"{name}.png"
        if source.is_file():
            (target / f"console-{name}.png").write_bytes(write_png(read_png(source.read_bytes())))
        else:
            missing.append(name)
    return missing


def main(part: str = "") -> int:
    if part and part not in TESTS:
        sys.stderr.write(f"pictures: {part}: no such part (expected one of {', '.join(TESTS)})\n")
        return 2
    tests = [TESTS[part]] if part else list(TESTS.values())
    with tempfile.TemporaryDirectory(prefix="holdfast-pictures-") as made:
        folder = Path(os.environ.get("HOLDFAST_SCREENSHOTS", made))
        if folder == Path(made):
            env = {**os.environ, "HOLDFAST_SCREENSHOTS": made}
            ran = subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT, env=env, check=False)
            if ran.returncode:
                sys.stderr.write("pictures: a browser test failed; docs/pictures is unchanged\n")
                return ran.returncode
        missing = keep(folder)
    sys.stdout.write(f"pictures: {len(WANTED) - len(missing)} of {len(WANTED)} taken\n")
    if part:
        return 1 if len(missing) == len(WANTED) else 0
    for name in missing:
        sys.stderr.write(f"pictures: {name}: no test took it (expected keep_picture in {', '.join(tests)})\n")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2]))
