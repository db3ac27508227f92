"""The few facts an agent keeps across its own death: its lease epoch, what was fenced, how long the lease runs, and
the newest incarnation of its cell that it has heard.

A changed epoch or incarnation is durable before it is used. The lease's end is on a clock that only this boot of the
node knows.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.agent.drivers.records import write_whole
from holdfast.agent.shim import boot_id
from holdfast.model.errors import Unavailable


class Facts(msgspec.Struct, frozen=True):
    epoch: int = 0
    fenced_epoch: int = 0
    lease_until_mono_s: float = 0.0
    boot: str = ""
    incarnation: int = 0

    @property
    def lasting(self) -> tuple[int, int, int]:
        """What must be durable before it is acted on."""
        return self.epoch, self.fenced_epoch, self.incarnation


class Memory(Protocol):
    def load(self) -> Facts: ...

    def save(self, facts: Facts) -> None:
        """Durable on return when what lasts has changed; the lease's end may be lost with the node's power."""


class FileMemory(Memory):
    """`agent.json` in the state directory, which this process has for itself while it lives."""

    def __init__(self, state_dir: Path) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self._path = state_dir / "agent.json"
        self._boot = boot_id()
        self._lock = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            message = f"another agent uses {state_dir}; end it first, or give this one a state directory of its own"
            raise Unavailable(message) from error
        self._last = self._read()

    def _read(self) -> Facts:
        try:
            facts = msgspec.json.decode(self._path.read_bytes(), type=Facts)
        except (OSError, msgspec.DecodeError):
            return Facts(boot=self._boot)
        return facts if facts.boot == self._boot else msgspec.structs.replace(
            facts, boot=self._boot, lease_until_mono_s=0.0
        )  # fmt: skip

    def load(self) -> Facts:
        return self._last

    def save(self, facts: Facts) -> None:
        facts = msgspec.structs.replace(facts, boot=self._boot)
        data = msgspec.json.encode(facts)
        if facts.lasting != self._last.lasting:
            write_whole(self._path, data)
        else:
            part = self._path.with_name("agent.json.soft")
            part.write_bytes(data)
            part.rename(self._path)
        self._last = facts

    def close(self) -> None:
        os.close(self._lock)
