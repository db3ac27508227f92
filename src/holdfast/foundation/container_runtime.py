"""The container runtimes that the agent can use."""

from __future__ import annotations

import shutil
from pathlib import Path

RUNTIMES = ("crun", "runc")
CGROUPS = Path("/sys/fs/cgroup")


def find_runtime(cgroups: Path = CGROUPS) -> str:
    """Path of the first installed runtime that runs on this machine; empty if there is none."""
    usable = (name for name in RUNTIMES if name != "crun" or not has_controllers_on_both(cgroups))
    return next((path for name in usable if (path := shutil.which(name))), "")


def has_controllers_on_both(cgroups: Path = CGROUPS) -> bool:
    """Whether cgroup v1 is mounted and v2 beside it has controllers too: crun refuses every container then."""
    try:
        return bool((cgroups / "unified" / "cgroup.controllers").read_text().strip())
    except OSError:
        return False
