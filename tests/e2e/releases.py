"""Two releases of the package, each a wheel in a virtual environment of its own: the previous one and this tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.platforms import ROOT

import holdfast as this_tree

NEXT_VERSION = f"{this_tree.__version__}.post1"
"""This tree is built with a version of its own, so that the state directories show which release runs."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, f"{command}: {completed.stdout}\n{completed.stderr}"
    return completed.stdout


def installed(source: Path, place: Path) -> Path:
    """Builds a wheel of the source and installs it. Returns the Python of its environment, with our dependencies."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place / "dist", cwd=source)
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv")
    packages = next((place / "venv" / "lib").glob("python3*/site-packages"))
    wheel = next((place / "dist").glob("*.whl"))
    shutil.unpack_archive(wheel, packages, "zip")
    # Read after the environment's own packages, and without the path file of our editable install.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv" / "bin" / "python"


def previous_release(place: Path) -> Path:
    """The sources of the last commit. If this tree changes nothing in the package, of the commit before the newest one
    that does: otherwise both releases would be the same code."""
    commit = "HEAD"
    if not run("git", "status", "--porcelain", "src", "pyproject.toml"):
        newest = run("git", "rev-list", "--parents", "-1", "HEAD", "--", "src").split()
        commit = newest[1] if len(newest) > 1 else commit  # a shallow clone has no other one
    source = place / "source"
    source.mkdir(parents=True)
    run("git", "archive", "-o", place / "source.tar", commit)
    shutil.unpack_archive(place / "source.tar", source, filter="data")
    return source


def tree(place: Path) -> Path:
    """The files of this tree that git has or would add, with the next version."""
    source = place / "source"
    for name in run("git", "ls-files", "-co", "--exclude-standard", "src", "examples").splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    for name in ("pyproject.toml", "src/holdfast/__init__.py"):
        text = (source / name).read_text()
        assert f'version__ = "{this_tree.__version__}"' in text or f'version = "{this_tree.__version__}"' in text
        (source / name).write_text(text.replace(f'"{this_tree.__version__}"', f'"{NEXT_VERSION}"', 1))
    return source
