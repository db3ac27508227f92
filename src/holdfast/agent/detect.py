"""What this machine has to give: processors, memory, and GPUs, as the kernel says it.

Never more than the agent itself may use: its affinity, and the limits of the control groups it runs in, count. What an
operator configures goes before anything detected here.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.model.node import Device
from holdfast.model.quantity import CPU, MEMORY, Amount, amount_text

SYSTEM_MEMORY_BYTES = 256 * 1024 * 1024
"""What a node keeps for itself: the system, the agent and the shims need some too."""
WHOLE_MEBIBYTE = 1024 * 1024
NVIDIA = Path("/proc/driver/nvidia/gpus")
GPU_UUID = "GPU-"
_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def detect_capacity(root: Path = _ROOT, own: Path = _OWN) -> dict[str, Amount]:
    """The processors this process may use, and the memory it may, less what the system keeps."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu_milli = len(os.sched_getaffinity(0)) * 1000
    for folder in _own_folders(root, own):
        memory_limits = (*_numbers(folder, "memory.max"), *_numbers(folder, "memory.limit_in_bytes"))
        memory_bytes = min((memory_bytes, *memory_limits))
        cpu_milli = min((cpu_milli, *_quota_milli(folder)))
    usable_bytes = max(WHOLE_MEBIBYTE, memory_bytes - SYSTEM_MEMORY_BYTES) // WHOLE_MEBIBYTE * WHOLE_MEBIBYTE
    return {CPU: amount_text(CPU, max(1, cpu_milli)), MEMORY: amount_text(MEMORY, usable_bytes)}


def detect_devices(nvidia: Path = NVIDIA) -> tuple[Device, ...]:
    """The GPUs that NVIDIA's kernel driver knows, by the identity that stays theirs whatever slot they are in."""
    found = []
    for about in sorted(nvidia.glob("*/information")):
        try:
            pairs = (line.partition(":") for line in about.read_text().splitlines())
            facts = {key.strip(): value.strip() for key, _, value in pairs}
        except OSError:
            continue
        if facts.get("GPU UUID", "").startswith(GPU_UUID):
            found.append(Device(id=facts["GPU UUID"], model=facts.get("Model", "").lower().replace(" ", "-")))
    return tuple(found)


def _own_folders(root: Path, own: Path) -> list[Path]:
    """The groups this process is in, of every hierarchy, up to the root: a limit above is a limit here."""
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


def _numbers(folder: Path, name: str) -> list[int]:
    """The number in a file; none where there is no such file, or it says that there is no limit."""
    try:
        text = (folder / name).read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []


def _quota_milli(folder: Path) -> list[int]:
    """How much of how many processors a group may use, in thousandths: of version 2, or of version 1."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quotas, periods = _numbers(folder, "cpu.cfs_quota_us"), _numbers(folder, "cpu.cfs_period_us")
        return [quotas[0] * 1000 // periods[0]] if quotas and periods and periods[0] else []
    return [int(quota) * 1000 // int(period)] if quota.isdigit() else []
