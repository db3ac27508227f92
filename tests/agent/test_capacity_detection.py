"""Detected capacity: never more than the agent itself may use."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.agent.agent_world import config, template

from holdfast.agent.capacity_detection import SYSTEM_RESERVED_BYTES, detect_capacity, detect_devices
from holdfast.agent.config import AgentConfig, load
from holdfast.agent.status_blocks import environment
from holdfast.model.binding import Binding, BindingSpec, DeviceClaim, Intent
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Device

MIB = 1024 * 1024
GPUS = {"0000:01:00.0": "GPU-11111111-2222", "0000:41:00.0": "GPU-33333333-4444"}


def groups(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    (folder / "own").write_text(own)
    for name, text in files.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(text)
    return folder / "fs", folder / "own"


def test_detected_capacity_without_limits_is_the_whole_machine(tmp_path: Path) -> None:
    found = detect_capacity(tmp_path / "nowhere", tmp_path / "missing")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") - SYSTEM_RESERVED_BYTES
    assert found == {"cpu": str(len(os.sched_getaffinity(0))), "memory": f"{memory_bytes // MIB}Mi"}


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (
            "0::/box/agent\n",
            {
                "box/memory.max": f"{768 * MIB}\n",
                "box/agent/memory.max": "max\n",
                "box/cpu.max": "50000 100000\n",
                "box/agent/cpu.max": "max 100000\n",
            },
        ),
        (
            "4:memory:/box\n1:cpu,cpuacct:/\n",
            {
                "memory/box/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.limit_in_bytes": f"{768 * MIB}\n",
                "cpu/cpu.cfs_quota_us": "50000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_detected_capacity_respects_limits_of_parent_cgroups(tmp_path: Path, own: str, files: dict[str, str]) -> None:
    assert detect_capacity(*groups(tmp_path, own, files)) == {"cpu": "500m", "memory": "512Mi"}


def test_gpus_are_detected_by_uuid_unless_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for slot, uuid in GPUS.items():
        (tmp_path / "gpus" / slot).mkdir(parents=True)
        text = f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t 42\nGPU UUID: \t {uuid}\n"
        (tmp_path / "gpus" / slot / "information").write_text(text)
    (tmp_path / "gpus" / "broken").mkdir()
    (tmp_path / "gpus" / "broken" / "information").write_text("Model: unknown\nGPU UUID: ??\n")
    found = detect_devices(tmp_path / "gpus")
    assert found == tuple(Device(id=uuid, model="nvidia-a100-sxm4-40gb") for uuid in GPUS.values())
    monkeypatch.setattr("holdfast.agent.config.detect_devices", lambda: found)
    node = {"name": "n1", "region": "r", "zone": "z", "state_dir": str(tmp_path)}
    assert load(**node).devices == found
    assert load(**node, devices=()).devices == (), "an empty configuration overrides detection"


def test_task_environment_shows_only_assigned_gpus() -> None:
    first, second = GPUS.values()
    node = msgspec.structs.replace(config(), devices=(Device(id=first), Device(id=second)))
    assert seen(node, first) == (first, first)
    assert seen(node) == ("", "void")
    assert seen(config()) == (None, None), "a node without GPUs sets no variable"


def seen(node: AgentConfig, *claimed: str) -> tuple[str | None, str | None]:
    spec = BindingSpec(
        replica="a",
        intent=Intent(replica_uid="u", template_hash="h", attempt=1),
        node="n1",
        workload="w",
        template=template("true"),
        devices=tuple(DeviceClaim(id=each) for each in claimed),
    )
    env = environment(Binding(metadata=ObjectMeta(name="a.1", namespace="t"), spec=spec), node)
    return env.get("CUDA_VISIBLE_DEVICES"), env.get("NVIDIA_VISIBLE_DEVICES")
