"""The container runtimes that the agent can use."""

from __future__ import annotations

import shutil

RUNTIMES = ("crun", "runc")


def find_runtime() -> str:
    """Path of the first installed runtime; empty if there is none."""
    return next((path for name in RUNTIMES if (path := shutil.which(name))), "")
