"""The container image: valid by its digests, the same bytes twice, and a program that runs in it."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def build_image() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        described = importlib.util.spec_from_file_location("build_image", ROOT / "scripts" / "build_image.py")
        assert described is not None and described.loader is not None
        module = importlib.util.module_from_spec(described)
        described.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def blob(folder: Path, described: dict[str, Any]) -> bytes:
    """A blob whose digest and size are checked."""
    content: bytes = (folder / "blobs" / "sha256" / described["digest"].removeprefix("sha256:")).read_bytes()
    assert hashlib.sha256(content).hexdigest() == described["digest"].removeprefix("sha256:")
    assert len(content) == described["size"]
    return content


def layer(folder: Path) -> bytes:
    manifest = json.loads(blob(folder, json.loads((folder / "index.json").read_bytes())["manifests"][0]))
    unpacked = gzip.decompress(blob(folder, manifest["layers"][0]))
    config = json.loads(blob(folder, manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    assert config["config"]["User"] == "65532"
    return unpacked


def test_layout_is_valid_and_does_not_depend_on_order_or_time(build_image: ModuleType, tmp_path: Path) -> None:
    entries = {"a/b": (b"1", 0o755), "a/c": (b"22", 0o644), "z": (b"", 0o644)}
    first = build_image.write_image(tmp_path / "1", entries, 1_700_000_000, "0.1.0")
    second = build_image.write_image(tmp_path / "2", dict(reversed(entries.items())), 1_700_000_000, "0.1.0")
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(layer(tmp_path / "1"))) as archive:
        assert [m.name for m in archive] == ["a", "a/b", "a/c", "tmp", "var", "var/lib", "var/lib/holdfast", "z"]
        assert {m.mtime for m in archive} == {1_700_000_000}


def test_image_needs_no_development_package(build_image: ModuleType) -> None:
    names = build_image.runtime_distributions()
    assert {"click", "msgspec", "cryptography", "uvloop"} <= names
    assert not {"pytest", "mypy", "ruff", "hatchling"} & names


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_is_the_same_twice_and_runs_in_the_image(build_image: ModuleType, tmp_path: Path) -> None:
    wheels = [build_image.build_wheel(tmp_path / name) for name in ("1", "2")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as packed:
        assert "holdfast/console/assets/index.html" in packed.namelist(), "the console is missing; next: make console"
    build_image.write_image(tmp_path / "image", build_image.image_entries(wheels[0]), 1_700_000_000, "0.1.0")
    root = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(layer(tmp_path / "image"))) as archive:
        archive.extractall(root, filter="tar")
    inside = ["chroot", str(root), "/opt/python/bin/holdfast", "version"]
    command = inside if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", *inside]
    env = {"PATH": "/opt/python/bin:/usr/sbin:/usr/bin", "LD_LIBRARY_PATH": "/opt/python/lib"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "holdfast" in done.stdout
