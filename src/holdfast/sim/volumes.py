"""Persistent volumes of a simulated machine, for the agent's upkeep. The machine has their data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.agent.drivers.local_volumes import StagedVolume, VolumeStore
from holdfast.model.volume import BoundVolume
from holdfast.sim.machine import Machine


class SimVolumes(VolumeStore):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def stage(self, namespace: str, volume: BoundVolume, uid: int, gid: int) -> StagedVolume:
        raise AssertionError("the simulated driver stages volumes itself")

    def path(self, volume: BoundVolume) -> Path:
        return Path("/volumes") / volume.uid

    def has(self, uid: str) -> bool:
        return uid in self._machine.volumes

    def delete(self, uid: str) -> None:
        self._machine.volumes.pop(uid, None)


async def call_now(call: Callable[[], Any]) -> Any:
    """Calls at once: threads are not deterministic."""
    return call()
