"""The container runtimes that the agent can use."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

RUNTIMES = ("crun", "runc")
CGROUPS = Path("/sys/fs/cgroup")
PROBE_S = 10.0
NETWORK_PROGRAM = "slirp4netns"
TUN_DEVICE = Path("/dev/net/tun")


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


def private_network_program() -> str:
    """Path of the program that connects a container's own network; empty if this machine cannot make one."""
    return (shutil.which(NETWORK_PROGRAM) or "") if not private_network_refusal() else ""


def private_network_refusal() -> str:
    """Why containers of this machine cannot have a network of their own; empty if they can."""
    if os.geteuid() != 0:
        return "the agent is not root"
    if not shutil.which(NETWORK_PROGRAM):
        return f"{NETWORK_PROGRAM} is not installed"
    if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        return f"{TUN_DEVICE} is missing"
    return "" if _can_make_network_namespace() else "the kernel refuses network namespaces"


@lru_cache(1)
def _can_make_network_namespace() -> bool:
    """Tried in a child, which keeps the new namespace to itself."""
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=PROBE_S, check=False)
    return done.returncode == 0
