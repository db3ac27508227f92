"""The archive's bounds, and the end of a log."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from holdfast.support.archive import SupportArchive
from holdfast.support.collection import TAIL_BYTES, text_tail
from holdfast.support.redaction import KNOWN_VALUES_MAX, Redaction


def bundle_files(bundle: Path) -> dict[str, bytes]:
    """The files of a bundle by name."""
    with tarfile.open(bundle) as tar:
        files = ((entry.name, tar.extractfile(entry)) for entry in tar)
        return {name.removeprefix("holdfast-support/"): file.read() for name, file in files if file is not None}


def test_log_tail_drops_the_cut_line(tmp_path: Path) -> None:
    log = tmp_path / "cell.log"
    log.write_text("hf_" + "a" * TAIL_BYTES + "\nlast line\n")
    text, cut = text_tail(log)
    assert text == "last line\n"
    assert cut.startswith("the last 10 bytes of ")
    log.write_text("b" * (TAIL_BYTES + 1))
    assert text_tail(log)[0] == ""


def test_archive_beyond_its_size_leaves_parts_out_and_says_so(tmp_path: Path) -> None:
    archive = SupportArchive(Redaction(), bytes_max=1_000)
    archive.add("small.txt", "x" * 400, "small")
    archive.add("large.txt", "x" * 4_000, "large")
    manifest = archive.write(tmp_path / "b.tar.gz", made_at="", version="")
    assert set(bundle_files(tmp_path / "b.tar.gz")) == {"manifest.json", "small.txt"}
    assert [row.what for row in manifest.left_out] == ["large.txt"]
    assert "1000 bytes" in manifest.left_out[0].why


def test_archive_with_too_many_values_to_search_leaves_texts_out(tmp_path: Path) -> None:
    archive = SupportArchive(Redaction())
    archive.add("objects.json", [{"env": {f"V{n}": f"value-{n:06}" for n in range(KNOWN_VALUES_MAX + 1)}}], "objects")
    archive.add("logs/cell.log", "value-000001", "log")
    manifest = archive.write(tmp_path / "b.tar.gz", made_at="", version="")
    files = bundle_files(tmp_path / "b.tar.gz")
    assert "logs/cell.log" not in files
    assert json.loads(files["objects.json"])[0]["env"]["V1"] == "[redacted]"
    assert [row.what for row in manifest.left_out] == ["logs/cell.log"]
