"""Pictures of the documentation: read, reduced to 256 colours and written, and every page has its pictures."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pictures
import pytest
from tests.e2e.test_console import DETAIL_PAGES, PAGES

METHODS = (0, 1, 2, 3, 4)


def png(pixels: pictures.Pixels, method: int) -> bytes:
    """A PNG whose rows all use one filter method, as the specification defines it."""
    height, width, channels = pixels.shape
    rows, above = [], np.zeros(width * channels, np.int32)
    for line in pixels.reshape(height, -1).astype(np.int32):
        left = np.concatenate([np.zeros(channels, np.int32), line[:-channels]])
        corner = np.concatenate([np.zeros(channels, np.int32), above[:-channels]])
        paeth = [pictures._paeth(*trio) for trio in zip(left.tolist(), above.tolist(), corner.tolist(), strict=True)]
        near = (0 * line, left, above, (left + above) // 2, np.array(paeth))[method]
        rows.append(bytes([method]) + ((line - near) & 255).astype(np.uint8).tobytes())
        above = line
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(rows))),
        (b"IEND", b""),
    )
    chunks = (struct.pack(">I", len(p)) + kind + p + struct.pack(">I", zlib.crc32(kind + p)) for kind, p in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("method", METHODS)
def test_picture_is_read_whatever_filter_its_rows_use(method: int) -> None:
    drawn = np.random.default_rng(7).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    assert (pictures.read_png(png(drawn, method)) == drawn).all()


def test_written_picture_keeps_frequent_colours_and_approximates_rare_ones() -> None:
    drawn = np.zeros((40, 40, 3), np.uint8)
    drawn[:20] = (47, 87, 201)
    shades = np.arange(300, dtype=np.int64)
    drawn[30:38].reshape(-1, 3)[:300] = np.stack([shades % 256, shades // 256, 0 * shades + 9], axis=1)
    written = pictures.write_png(drawn)
    size, kind = struct.unpack(">I4s", written[33:41])
    assert kind == b"PLTE" and size == 3 * pictures.COLOURS
    body = written[written.index(b"IDAT") + 4 : written.index(b"IEND") - 8]
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(40, 41)[:, 1:]
    palette = np.frombuffer(written[41 : 41 + size], np.uint8).reshape(-1, 3)
    found = palette[rows].astype(int)
    assert (found[:20] == (47, 87, 201)).all()
    assert np.abs(found - drawn).max() <= 50


def test_file_that_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="not a PNG"):
        pictures.read_png(b"<svg/>")


def test_every_page_has_its_pictures_in_both_themes() -> None:
    assert set(pictures.PAGES) == {*PAGES, *DETAIL_PAGES}
    missing = [name for name in pictures.WANTED if not (pictures.PICTURES / f"console-{name}.png").is_file()]
    assert not missing, f"next: make pictures ({', '.join(missing)})"


def test_part_that_does_not_exist_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert pictures.main("rooms") == 2
    assert "expected one of pages, actions, sessions" in capsys.readouterr().err
    assert all((pictures.ROOT / path).is_file() for path in pictures.TESTS.values())


def test_pictures_that_no_test_took_are_named(tmp_path: Path) -> None:
    assert pictures.keep(tmp_path, tmp_path) == list(pictures.WANTED)
