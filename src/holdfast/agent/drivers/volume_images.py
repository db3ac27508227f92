"""File systems in image files: they limit the size of a volume. A task that fills one gets "no space left"."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

# Time for `mkfs.ext4` and for the trial mount. After that, the volume cannot be made.
MAKE_VOLUME_TIMEOUT_S = 20.0

_TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"


def make_image(path: Path, size: int, uid: int, gid: int, *, journal: bool = False) -> None:
    """A sparse file with an ext4 file system that belongs to the task. Data that must survive a crash needs a journal.
    Raises OSError."""
    with path.open("wb") as file:
        file.truncate(size)
    options = f"root_owner={uid}:{gid},lazy_itable_init=1,nodiscard"
    features = "has_journal" if journal else "^has_journal"
    argv = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", features, "-E", options, str(path))
    _run(argv, f"make a file system in {path}")


def choose_scratch_limit(wanted: str, *, can_mount: bool) -> str:
    """How sizes of scratch volumes on disk are enforced: `image` if this node can mount images, else `measured`."""
    if wanted == "measured" or not can_mount or not all(map(_which, ("mkfs.ext4", "mount", "unshare"))):
        return "measured"
    with tempfile.TemporaryDirectory() as folder:
        image, place = Path(folder, "image"), Path(folder, "place")
        place.mkdir()
        try:
            make_image(image, 1024 * 1024, 0, 0)
            _run(("unshare", "-m", "mount", "-o", "loop,nosuid,nodev", str(image), str(place)), "mount an image")
        except OSError:
            return "measured"
    return "image"


def _which(name: str) -> str | None:
    return shutil.which(name, path=_TOOLS)


def _run(argv: tuple[str, ...], what: str) -> None:
    program = _which(argv[0])
    if program is None:
        raise OSError(f"cannot {what}: no program {argv[0]}")
    try:
        done = subprocess.run(
            (program, *argv[1:]),
            env={"PATH": _TOOLS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAKE_VOLUME_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"cannot {what} within {MAKE_VOLUME_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise OSError(f"cannot {what}: {' '.join(done.stderr.split())[:300]}")
