"""Facts about the machine that Kubernetes clients show of a node: kernel, operating system, ids. Read once, at start.

A fact that cannot be read is empty. Nothing decides by them.
"""

from __future__ import annotations

import platform
from pathlib import Path

from holdfast.model.node import NodeSystem

# Length of a fact. The rest is cut off: the files belong to the machine's owner, not to Holdfast.
FACT_CHARS_MAX = 200

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Kubernetes clients use Go's names."""


def detect_system(root: Path = Path("/")) -> NodeSystem:
    machine = platform.machine()
    return NodeSystem(
        architecture=ARCHITECTURES.get(machine, machine),
        operating_system=platform.system().lower(),
        kernel_version=platform.release(),
        os_image=_os_image(root / "etc/os-release"),
        machine_id=_first_line(root / "etc/machine-id"),
        boot_id=_first_line(root / "proc/sys/kernel/random/boot_id"),
        system_uuid=_first_line(root / "sys/class/dmi/id/product_uuid"),
    )


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(FACT_CHARS_MAX).strip()
    except OSError:
        return ""


def _os_image(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition("=")[2].strip("\"'") for line in lines if line.startswith("PRETTY_NAME="))
    return next(named, "")[:FACT_CHARS_MAX]
