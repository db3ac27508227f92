"""Checks that both cells of a link know each other by identity, and reports why a region holds work.

While one cell was replaced by a new one, the region keeps everything and exchanges nothing (`recognition`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.controllers.cache import Cache
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.link import deletion_orders, held_work, mirror, recognition, restore_handshake
from holdfast.model.assignment import Assignment
from holdfast.model.cell_identity import IDENTITY_TERM, CellIdentity, cell_identity
from holdfast.model.election_term import Term
from holdfast.model.errors import Fault, StaleToken
from holdfast.model.override import Override
from holdfast.model.region import Region, RegionReport
from holdfast.model.writes import Create, Notice, SetStatus, Write

# How long one check that the global cell is the known one serves for deletions that follow it.
RECOGNITION_VALID_S = 0.2
# Interval at which a region that does not recognize the global cell looks at it again.
HOLD_CHECK_EVERY_S = 5.0


class Recognizer:
    """`global_client` calls the global cell as this region. `mirror_client` writes in this region as role `link`."""

    def __init__(self, region: str, global_client: Client, mirror_client: Client, here: Cache, ports: Ports) -> None:
        self.recognized: CellIdentity | None = None
        """The global cell when it was last recognized; None before, and for a cell of an earlier release."""
        self._region = region
        self._global_client = global_client
        self._mirror_client = mirror_client
        self._here = here
        self._clock = ports.clock
        self._recognized_mono_s = -math.inf
        """Monotonic time at which the global cell was last found to be the known one."""
        self._said = ""
        """The last message about held work, so that each gives one event."""
        self._log = structlog.get_logger().bind(region=region)

    async def check(self) -> None:
        """Reads whether the global cell is the known one. Raises StaleToken if it is not."""
        mono_s = self._clock.monotonic()
        if mono_s - self._recognized_mono_s < RECOGNITION_VALID_S:
            return
        found = await self._read_global_cell()
        mismatch = recognition.mismatch(found, self._here, self._region)
        if mismatch is not None:
            raise StaleToken(mismatch.message, facts={"reason": mismatch.reason.value})
        await self._commit(recognition.record_writes(found, self._here))  # a restore draws a new era
        self.recognized = cell_identity(found)
        self._recognized_mono_s = mono_s

    async def until_recognized(self) -> None:
        """Returns when the cells recognize each other, or when an override accepts the new global cell."""
        while True:
            found = await self._read_global_cell()
            mismatch = recognition.mismatch(found, self._here, self._region)
            if mismatch is None:
                await self._commit(recognition.record_writes(found, self._here))
                self.recognized = cell_identity(found)
                return
            overrides = (await self._global_client.list(Override)).items
            if deletion_orders.confirms_region(overrides, self._region):
                self._log.warning("global_cell_accepted", reason=mismatch.reason, message=mismatch.message)
                await self._accept(found)
                self.recognized = cell_identity(found)
                return
            work = len(self._here.list(Assignment))
            await self.say(held_work.Holding(mismatch.reason, mismatch.message, work), found.get(Region, self._region))
            await self._clock.sleep(HOLD_CHECK_EVERY_S)

    async def say(self, found: held_work.Holding | None, unrecognized: Region | None = None) -> None:
        """Says why this region holds work: condition, event and metric. The Region of a global cell that is not
        recognized gets the same message, and nothing else."""
        metrics.REGION_HELD_WORKLOADS.clear()
        if found is not None:
            metrics.REGION_HELD_WORKLOADS.labels(found.reason).set(found.workloads)
        try:
            await self._write_condition(found, unrecognized)
            if unrecognized is not None and found is not None:
                await self._tell(unrecognized, found.message)
        except Fault as fault:
            self._log.info("hold_report_failed", reason=fault.reason, message=fault.message)

    async def _write_condition(self, found: held_work.Holding | None, unrecognized: Region | None) -> None:
        own = self._here.get(Region, self._region)
        if own is None:
            if found is not None and unrecognized is not None:  # the region's own store was lost
                await self._commit([Create(mirror.copy_of(unrecognized))])
            return
        write = held_work.condition_write(own, found, self._clock.now())
        if write is not None:
            await self._commit([write])
        if found is not None and found.message != self._said:
            self._log.warning("work_held", reason=found.reason, message=found.message)
            notice = Notice(own, found.reason, found.message, warning=True)
            await self._mirror_client.notify([notice], component="link")
        self._said = found.message if found is not None else ""

    async def _tell(self, region: Region, message: str) -> None:
        report = region.status.report or RegionReport()
        if report.holding != message:
            blocks = {"report": msgspec.structs.replace(report, holding=message)}
            await self._global_client.commit([SetStatus("Region", region.key, region.uid, blocks=blocks)])

    async def _accept(self, found: Cache) -> None:
        """Follows the new global cell from now on. An accepted region reports its own new identity."""
        records = restore_handshake.record_incarnation(found, self._here, self._region)
        await self._commit([*recognition.record_writes(found, self._here), *records])
        region = found.get(Region, self._region)
        if region is not None and region.status.report is not None:
            mine = recognition.own_identity(self._here)
            blocks = {"report": msgspec.structs.replace(region.status.report, identity=mine, holding="")}
            await self._global_client.commit([SetStatus("Region", region.key, region.uid, blocks=blocks)])

    async def _read_global_cell(self) -> Cache:
        """The records by which the global cell is recognized, read now: the caches may show an earlier era."""
        found = Cache()
        for item in (
            await self._global_client.get(Region, self._region),
            await self._global_client.get(Term, IDENTITY_TERM),
        ):
            if item is not None:
                found.put(item)
        return found

    async def _commit(self, writes: Iterable[Write]) -> None:
        if found := list(writes):
            await self._mirror_client.commit(found)
