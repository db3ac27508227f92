"""Restores of a cell from an older backup, as `holdfast restore` does, while agents and other cells keep running.

User changes since the backup may be lost. Nothing may run twice and no quota may be exceeded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.sim.lost_stores import Entries, entries_of

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.hosts import CellHost
    from holdfast.sim.simulation import Simulation

SAFETY_INVARIANTS = frozenset({"S1", "S2", "S3", "S4", "S5", "S7"})
"""Invariants that hold across a restore. The others compare with commits that the restore has undone."""


async def back_up_and_restore(simulation: Simulation, fault: ScheduledFault) -> None:
    """Backs up the cell now and restores it after `for_s`."""
    host = simulation.cell(fault.target)
    saved = await entries_of(host)
    await asyncio.sleep(fault.for_s)
    if not simulation.faults.healed:
        await restore(simulation, host, saved)


async def restore(simulation: Simulation, host: CellHost, saved: Entries) -> None:
    """Restores the cell from the backup and starts it."""
    simulation.checkers.check_only(SAFETY_INVARIANTS)
    await simulation.stores.restore_backup(host, saved)
    simulation.restored_cells.append(host.name)
