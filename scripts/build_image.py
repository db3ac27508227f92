"""`make wheel` and `make image`: the wheel, and a container image as an OCI layout. No container tool is needed.

    python scripts/build_image.py --wheel-only     dist/holdfast-VERSION-py3-none-any.whl
    python scripts/build_image.py                  dist/image, for `skopeo copy oci:dist/image …` or `podman load`

The image has one layer: this Python without its tests, the libraries it needs, the locked dependencies, and the wheel.
It has no shell and runs as user 65532. The same checkout and Python give the same bytes: entries are sorted, owners and
times are fixed, and compiled files are left out.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from terminal import say

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PREFIX = "opt/python"
SITE = f"{PREFIX}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PYTHON = f"{PREFIX}/bin/python3"
USER = 65532
LEFT_OUT = {"__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"}
"""Directories of the standard library that a server does not need."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SCRIPT = f"#!/{PYTHON}\nimport sys\n\nfrom holdfast.cli.app import run\n\nsys.exit(run())\n"

Entries = dict[str, tuple[bytes, int]]
"""Path in the image → content and mode."""


def source_epoch() -> int:
    """The time of the last commit, so that a build does not depend on its own time."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given:
        return int(given)
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def build_wheel(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(source_epoch())}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: the wheel was not built\n{done.stderr}\nnext: make install-dev")
    return max(folder.glob("holdfast-*.whl"), key=lambda path: path.stat().st_mtime)


def image_entries(wheel: Path) -> Entries:
    found: Entries = {}
    library = Path(sys.base_prefix) / "lib"
    standard = library / Path(SITE).parent.name
    for path in sorted(standard.rglob("*")):
        parts = path.relative_to(standard).parts
        if path.is_file() and not LEFT_OUT.intersection(parts) and not parts[0].startswith("config-"):
            found[f"{PREFIX}/lib/{standard.name}/{'/'.join(parts)}"] = (path.read_bytes(), _mode(path))
    found[PYTHON] = (Path(sys.executable).resolve().read_bytes(), 0o755)
    for path in library.glob("libpython*.so.*"):
        found[f"{PREFIX}/lib/{path.name}"] = (path.read_bytes(), 0o755)
    for name in sorted(runtime_distributions()):
        for path, place in _files(name):
            found[f"{SITE}/{place}"] = (path.read_bytes(), _mode(path))
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            found[f"{SITE}/{member}"] = (archive.read(member), 0o644)
    found[f"{PREFIX}/bin/holdfast"] = (SCRIPT.encode(), 0o755)
    for path in system_libraries(content for content, _ in found.values()):
        found[str(path).lstrip("/")] = (path.resolve().read_bytes(), 0o755)
    found["etc/passwd"] = (f"root:x:0:0::/:/\nholdfast:x:{USER}:{USER}::/:/\n".encode(), 0o644)
    found["etc/group"] = (f"root:x:0:\nholdfast:x:{USER}:\n".encode(), 0o644)
    return found


def runtime_distributions() -> set[str]:
    """Names of the packages that the installed `holdfast` needs, itself excluded."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = ["holdfast"]
    while waiting:
        name = waiting.pop()
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
            key = re.sub(r"[-_.]+", "-", needed.name).lower()
            if wanted and key not in found:
                found.add(key)
                waiting.append(key)
    return found


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """Files of an installed package with their places below site-packages, without scripts and compiled files."""
    for file in importlib.metadata.distribution(name).files or ():
        place = str(file)
        if place.startswith("..") or place.endswith((".pyc", "/RECORD", "/INSTALLER", "/REQUESTED", "direct_url.json")):
            continue
        yield Path(str(file.locate())), place


def system_libraries(contents: Iterator[bytes]) -> list[Path]:
    """Libraries of the system that the programs among the contents load."""
    scratch = DIST / ".libraries"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    found: set[Path] = set()
    for number, content in enumerate(contents):
        if not content.startswith(b"\x7fELF"):
            continue
        program = scratch / str(number)
        program.write_bytes(content)
        program.chmod(0o755)
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for match in re.finditer(r"(?<=\s)(/(?:usr/)?lib\S*/\S+) \(0x", listed):
            found.add(Path(match[1]))
    shutil.rmtree(scratch)
    return sorted(found)


def _mode(path: Path) -> int:
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def layer_of(entries: Entries, epoch: int) -> bytes:
    """A tar archive whose bytes depend on the entries and the time only."""
    folders = {"tmp": 0o1777, "var/lib/holdfast": 0o700}
    for name in (*entries, *folders):
        for parent in Path(name).parents:
            if str(parent) != ".":
                folders.setdefault(str(parent), 0o755)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted({*entries, *folders}):
            info = tarfile.TarInfo(name)
            info.mtime = epoch
            if name in entries:
                content, info.mode = entries[name]
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.mode = tarfile.DIRTYPE, folders[name]
                info.uid = info.gid = USER if name == "var/lib/holdfast" else 0
                archive.addfile(info)
    return made.getvalue()


class OciLayout:
    """Writes an image layout of the OCI image specification."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "blobs" / "sha256").mkdir(parents=True)

    def blob(self, media_type: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (self._folder / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def write(self, name: str, value: object) -> None:
        (self._folder / name).write_bytes(_json(value))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write_image(folder: Path, entries: Entries, epoch: int, version: str) -> str:
    """Writes the layout and returns the digest of the image."""
    import datetime

    layer = layer_of(entries, epoch)
    layout = OciLayout(folder)
    packed = layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress(layer, compresslevel=6, mtime=0))
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "config": {
            "User": str(USER),
            "Entrypoint": [f"/{PREFIX}/bin/holdfast"],
            "Cmd": ["--help"],
            "Env": [f"PATH=/{PREFIX}/bin", f"LD_LIBRARY_PATH=/{PREFIX}/lib", "PYTHONDONTWRITEBYTECODE=1"],
            "WorkingDir": "/var/lib/holdfast",
            "Labels": {"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    about = layout.blob("application/vnd.oci.image.config.v1+json", _json(config))
    media_type = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": media_type, "config": about, "layers": [packed]}
    described = layout.blob(media_type, _json(manifest))
    tagged = {**described, "annotations": {"org.opencontainers.image.ref.name": version}}
    layout.write("index.json", {"schemaVersion": 2, "manifests": [tagged]})
    layout.write("oci-layout", {"imageLayoutVersion": "1.0.0"})
    return str(described["digest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel-only", action="store_true", help="build the wheel, not the image")
    parser.add_argument("--out", type=Path, default=DIST, help="directory of the results (default: dist)")
    options = parser.parse_args()
    wheel = build_wheel(options.out)
    say(f"{wheel} sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    if options.wheel_only:
        return
    entries = image_entries(wheel)
    version = importlib.metadata.version("holdfast")
    digest = write_image(options.out / "image", entries, source_epoch(), version)
    size = sum(path.stat().st_size for path in (options.out / "image" / "blobs" / "sha256").iterdir())
    say(f"{options.out / 'image'} {digest} ({size / 2**20:.0f} MiB)")


if __name__ == "__main__":
    main()
