"""The revision of a checkout, to which evidence and figures are tied."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from holdfast.readiness.evidence import UNKNOWN_REVISION


def checkout_revision(folder: Path) -> str:
    """The commit of the checkout. Uncommitted changes add `+` and a digest of them, so that two states differ."""
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD").decode().strip()
        changed = _git(folder, "diff", "HEAD")
        new = _git(folder, "ls-files", "--others", "--exclude-standard", "-z")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN_REVISION
    if not changed and not new:
        return head
    digest = hashlib.sha256(changed)
    for name in sorted(filter(None, new.split(b"\0"))):
        digest.update(name)
        path = folder / name.decode()
        if path.is_file():
            digest.update(path.read_bytes())
    return f"{head}+{digest.hexdigest()[:8]}"


def _git(folder: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True).stdout
