"""Capacity of this machine: CPUs, memory and GPUs, as the kernel reports them.

Never more than the agent itself may use: CPU affinity and the limits of its control groups count. Configured capacity
overrides detected capacity.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.model.node import Device
from holdfast.model.quantity import CPU, MEMORY, Amount, amount_text

SYSTEM_RESERVED_BYTES = 256 * 1024 * 1024
"""Memory not offered to tasks: reserved for the system, the agent and the shims."""
MEBIBYTE_BYTES = 1024 * 1024
NVIDIA_GPUS_DIR = Path("/proc/driver/nvidia/gpus")
GPU_UUID_PREFIX = "GPU-"
_CGROUP_ROOT, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def detect_capacity(root: Path = _CGROUP_ROOT, own: Path = _OWN_CGROUPS) -> dict[str, Amount]:
    """CPUs and memory that this process may use, minus the system reserve."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu_milli = len(os.sched_getaffinity(0)) * 1000
    for folder in _own_cgroups(root, own):
        memory_limits = (*_read_limit(folder, "memory.max"), *_read_limit(folder, "memory.limit_in_bytes"))
        memory_bytes = min((memory_bytes, *memory_limits))
        cpu_milli = min((cpu_milli, *_quota_milli(folder)))
    usable_bytes = max(MEBIBYTE_BYTES, memory_bytes - SYSTEM_RESERVED_BYTES) // MEBIBYTE_BYTES * MEBIBYTE_BYTES
    return {CPU: amount_text(CPU, max(1, cpu_milli)), MEMORY: amount_text(MEMORY, usable_bytes)}


def detect_devices(nvidia: Path = NVIDIA_GPUS_DIR) -> tuple[Device, ...]:
    """The GPUs known to NVIDIA's kernel driver, by UUID, which does not change with the slot."""
    found = []
    for about in sorted(nvidia.glob("*/information")):
        try:
            pairs = (line.partition(":") for line in about.read_text().splitlines())
            facts = {key.strip(): value.strip() for key, _, value in pairs}
        except OSError:
            continue
        if facts.get("GPU UUID", "").startswith(GPU_UUID_PREFIX):
            found.append(Device(id=facts["GPU UUID"], model=facts.get("Model", "").lower().replace(" ", "-")))
    return tuple(found)


def _own_cgroups(root: Path, own: Path) -> list[Path]:
    """The control groups of this process in every hierarchy, up to the root: a parent's limit applies here too."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for top in [root / name for name in controllers.split(",")] if controllers else [root]:
            here = top / group.lstrip("/")
            found += [here, *(above for above in here.parents if above.is_relative_to(top))]
    return found


def _read_limit(folder: Path, name: str) -> list[int]:
    """The number in a file; empty if the file is missing or contains no limit."""
    try:
        text = (folder / name).read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []


def _quota_milli(folder: Path) -> list[int]:
    """CPU quota of a control group (v2 or v1), in millicores."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quotas, periods = _read_limit(folder, "cpu.cfs_quota_us"), _read_limit(folder, "cpu.cfs_period_us")
        return [quotas[0] * 1000 // periods[0]] if quotas and periods and periods[0] else []
    return [int(quota) * 1000 // int(period)] if quota.isdigit() else []
