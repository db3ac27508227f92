"""State that survives a restart of the agent: lease epoch, fenced epoch, lease end, the identity and newest
incarnation of the region's cell, and the time of the agent's start.

A changed epoch or incarnation is durable before it is used. The lease end is on a clock that is valid only for the
current boot of the node.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from holdfast.agent.drivers.records import write_atomically
from holdfast.agent.shim import boot_id
from holdfast.agent.state_format import AGENT_STATE
from holdfast.foundation.state_format import open_state
from holdfast.model.errors import Unavailable

_log = structlog.get_logger()


class PersistedState(msgspec.Struct, frozen=True):
    epoch: int = 0
    fenced_epoch: int = 0
    lease_until_mono_s: float = 0.0
    boot: str = ""
    incarnation: int = 0
    started_s: int = 0
    """Second of the newest start of the agent. Later than that of every earlier start, whatever the clock says."""
    identity: str = ""
    """Identity of the region's cell that gave the lease."""

    @property
    def durable_fields(self) -> tuple[int, int, int, str, int]:
        """The fields that must be durable before they are acted on."""
        return self.epoch, self.fenced_epoch, self.incarnation, self.identity, self.started_s


class StateStore(Protocol):
    def load(self) -> PersistedState: ...

    def save(self, facts: PersistedState) -> None:
        """On return, a change of `durable_fields` is durable; the lease end may be lost in a power failure."""


def record_start(store: StateStore, now_s: float) -> int:
    """The second of this start, above that of every earlier one. On a full disk it goes unrecorded: the agent must
    start, and the clock alone orders its reports.
    """
    facts = store.load()
    started_s = max(facts.started_s + 1, int(now_s))
    try:
        store.save(msgspec.structs.replace(facts, started_s=started_s))
    except OSError as error:
        _log.warning("agent_start_persist_failed", error=str(error))
    return started_s


class FileStateStore(StateStore):
    """`agent.json` in the state directory, locked exclusively by this process."""

    def __init__(self, state_dir: Path) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self._path = state_dir / "agent.json"
        self._boot = boot_id()
        self._lock = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            message = f"state directory {state_dir}: in use by another agent; next: stop it, or set another `state_dir`"
            raise Unavailable(message) from error
        try:
            open_state(state_dir, AGENT_STATE)
        except BaseException:
            os.close(self._lock)
            raise
        self._last = self._read()

    def _read(self) -> PersistedState:
        try:
            facts = msgspec.json.decode(self._path.read_bytes(), type=PersistedState)
        except (OSError, msgspec.DecodeError):
            return PersistedState(boot=self._boot)
        return (
            facts
            if facts.boot == self._boot
            else msgspec.structs.replace(facts, boot=self._boot, lease_until_mono_s=0.0)
        )

    def load(self) -> PersistedState:
        return self._last

    def save(self, facts: PersistedState) -> None:
        facts = msgspec.structs.replace(facts, boot=self._boot)
        data = msgspec.json.encode(facts)
        if facts.durable_fields != self._last.durable_fields:
            write_atomically(self._path, data)
        else:
            part = self._path.with_name("agent.json.soft")
            part.write_bytes(data)
            part.rename(self._path)
        self._last = facts

    def close(self) -> None:
        os.close(self._lock)
