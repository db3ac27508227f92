"""Keeps the node's persistent volumes in step with its Volume objects: reports data that exists, deletes what must go.

Data is deleted only if its Volume is being deleted and no Binding uses it, by a list of Bindings that is newer than the
deletion. The authority binds nothing to a Volume that is being deleted, so no later Binding can.
A volume without an object is left alone: the object may be missing by mistake, and the data is all there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from holdfast.agent.binding_watch import list_and_watch
from holdfast.agent.drivers.contract import Task
from holdfast.agent.drivers.local_volumes import VolumeStore
from holdfast.agent.limits import AGENT_CALL_TIMEOUT_S
from holdfast.client.contract import Client
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model.binding import Binding
from holdfast.model.errors import Fault
from holdfast.model.meta import Key
from holdfast.model.times import micro_text
from holdfast.model.volume import DataPhase, Volume, VolumeData
from holdfast.model.writes import SetStatus

# Interval at which volumes are looked at whose data is expected or must be deleted.
VOLUME_UPKEEP_EVERY_S = 2.0

_log = structlog.get_logger()


class VolumeUpkeep:
    """`running` are the tasks that run now. `call` runs calls of the store, which may block."""

    def __init__(
        self,
        node: str,
        client: Client,
        ports: Ports,
        store: VolumeStore,
        *,
        running: Callable[[], Sequence[Task]],
        call: Callable[[Callable[[], Any]], Awaitable[Any]] = run_in_thread,
    ) -> None:
        self._node, self._client, self._ports, self._store = node, client, ports, store
        self._running, self._call = running, call
        self._volumes: dict[Key, Volume] = {}

    async def run(self) -> None:
        watching = asyncio.create_task(
            list_and_watch(Volume, self._client, self._node, self._ports, listed=self._listed, changed=self._changed),
            name="agent:volume-watch",
        )
        try:
            while True:
                for volume in list(self._volumes.values()):
                    await self._keep(volume)
                await self._ports.clock.sleep(VOLUME_UPKEEP_EVERY_S)
        finally:
            await cancel_and_wait(watching)

    async def _listed(self, volumes: tuple[Volume, ...]) -> None:
        self._volumes = {volume.key: volume for volume in volumes}

    def _changed(self, volume: Volume, /, *, deleted: bool) -> None:
        if deleted:
            self._volumes.pop(volume.key, None)
        else:
            self._volumes[volume.key] = volume

    async def _keep(self, volume: Volume) -> None:
        """One step for one volume. A failure is logged, and the next round tries again."""
        known = volume.status.data.phase if volume.status.data is not None else None
        try:
            if volume.metadata.terminating and known is not DataPhase.DELETED:
                if await self._may_delete(volume):
                    await self._call(lambda: self._store.delete(volume.uid))
                    await self._report(volume, DataPhase.DELETED)
            elif known is None and await self._call(lambda: self._store.has(volume.uid)):
                await self._report(volume, DataPhase.PRESENT)
        except (Fault, OSError, TimeoutError) as error:
            _log.warning("volume_upkeep_failed", volume=str(volume.key), error=str(error) or type(error).__name__)

    async def _may_delete(self, volume: Volume) -> bool:
        if any(used.uid == volume.uid for task in self._running() for used in task.volumes):
            return False
        async with asyncio.timeout(AGENT_CALL_TIMEOUT_S):
            listing = await self._client.list(Binding, fields={"node": self._node})
        used = any(v.uid == volume.uid for binding in listing.items for v in binding.spec.volumes)
        return not used and listing.revision >= volume.revision

    async def _report(self, volume: Volume, phase: DataPhase) -> None:
        data = VolumeData(phase=phase, at=micro_text(self._ports.clock.now()))
        async with asyncio.timeout(AGENT_CALL_TIMEOUT_S):
            await self._client.commit((SetStatus("Volume", volume.key, volume.uid, blocks={"data": data}),))
