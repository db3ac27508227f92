"""Stores that are lost, emptied, truncated, swapped or old, and the operator who restores them.

A cell whose store is not the one it used refuses to start. The operator then restores its newest backup. In `store
emptied` the operator first makes the usual mistake and creates the cell again: regions and agents must not follow it.
Half of the faults happen twice in a row.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.authority import restore_records
from holdfast.cell.identity import identity_in, identity_put
from holdfast.identity.cell_record import RecordedIdentity
from holdfast.model.cell_identity import CellIdentity
from holdfast.model.errors import Fault
from holdfast.model.meta import ObjectMeta, find_condition
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec
from holdfast.model.region import HOLDS_WORK, Region
from holdfast.model.writes import Create
from holdfast.sim import actors
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.ports import EPOCH_S
from holdfast.store.contract import Put, Remove, Txn

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.hosts import CellHost
    from holdfast.sim.simulation import Simulation

BACKUP_EVERY_S = 15.0
BACKUPS_KEPT = 4
LOOK_EVERY_S = 2.0
CONFIRM_AFTER_S = 20.0
"""How long work is held after a restore before the operator confirms its deletion."""
OVERRIDE_TTL_S = 60.0
DRAIN_S = 180.0
"""How long the removal of confirmed work may take after the override has expired."""
TWICE_FRACTION = 0.5

Entries = tuple[Put, ...]


class LostStores:
    """The backups of one simulation, and the operator who looks after its stores."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._backups: dict[str, list[Entries]] = {}
        self._down: set[str] = set()
        """Cells whose store is lost and not yet restored."""
        self._restores = 0

    async def run(self) -> None:
        """Backs up every cell, and confirms the deletion of work that a restored cell does not contain. Runs until
        cancelled."""
        held_since_s: dict[str, float] = {}
        backed_up_s = -BACKUP_EVERY_S
        while True:
            now_s = self._simulation.loop.time()
            if now_s - backed_up_s >= BACKUP_EVERY_S and not self._down:
                backed_up_s = now_s
                for host in self._simulation.cells():
                    kept = self._backups.setdefault(host.name, [])
                    kept.append(await entries_of(host))
                    del kept[:-BACKUPS_KEPT]
            await asyncio.sleep(LOOK_EVERY_S)
            for region in self._simulation.size.regions:
                if self._down or not await self.holds_work(region):
                    held_since_s.pop(region, None)
                elif now_s - held_since_s.setdefault(region, now_s) > CONFIRM_AFTER_S:
                    held_since_s.pop(region)
                    await self._confirm(region)

    async def holds_work(self, region: str) -> bool:
        """Whether the region says that it holds work, as its operator sees it."""
        try:
            found = await self._simulation.operator_client(region).get(Region, region)
        except Fault:
            return False
        condition = find_condition(found.status.conditions, HOLDS_WORK) if found is not None else None
        return condition is not None and condition.status == "True"

    async def _confirm(self, region: str) -> None:
        now_s = self._simulation.loop.time()
        self._simulation.checkers.removals.deletion_confirmed(region, now_s + OVERRIDE_TTL_S + DRAIN_S)
        name = f"confirm-{region}-{int(self._simulation.loop.time())}"
        scope = OverrideScope(region=region)
        spec = OverrideSpec(
            kind=OverrideKind.CONFIRM_DELETION, scope=scope, reason="not in the backup", ttl_seconds=OVERRIDE_TTL_S
        )
        try:
            await self._simulation.operator.commit([Create(Override(metadata=ObjectMeta(name=name), spec=spec))])
            second = self._simulation.operator_client("global", user="second")
            await actors.edit_spec(second, Override, name, "", approver="second")
        except Fault:
            return  # seen again at the next look

    async def lose(self, fault: ScheduledFault) -> None:
        host = self._simulation.cell(fault.target)
        for _ in range(2 if fault.amount < TWICE_FRACTION else 1):
            saved = self._backups.get(host.name)
            if not saved or host.name in self._down:
                return  # no backup yet, or the operator is at work there
            self._down.add(host.name)
            try:
                await self._lose_and_restore(host, fault, saved[0 if fault.kind is FaultKind.STORE_OLD else -1])
            finally:
                self._down.discard(host.name)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _lose_and_restore(self, host: CellHost, fault: ScheduledFault, saved: Entries) -> None:
        before = await entries_of(host)
        host.crash()
        match fault.kind:
            case FaultKind.STORE_LOST:
                await self._run_on(host, (), fault)
            case FaultKind.STORE_TRUNCATED:
                await self._run_on(host, before[: len(before) // 2], fault)
            case FaultKind.STORE_SWAPPED:
                others = [other for other in self._simulation.cells() if other is not host]
                await self._run_on(host, await entries_of(others[int(fault.amount * 100) % len(others)]), fault)
            case FaultKind.STORE_EMPTIED:
                await self._start_anew(host, fault)
            case _:  # the operator has only an earlier backup
                host.held_down = True
                await self._sleep(fault.for_s)
        await self.restore(host, saved, before)

    async def _run_on(self, host: CellHost, entries: Entries, fault: ScheduledFault) -> None:
        """The process is restarted on a store that is not its own. It must refuse, until the operator comes."""
        before = await entries_of(host)
        await _overwrite(host, entries)  # unseen by the checkers: no process may use it
        host.boot()
        await self._sleep(fault.for_s)
        if host.serving_process() is not None:
            found = ("amnesia", f"{host.name} serves a store that is not its own ({fault.kind})", ())
            self._simulation.checkers.report(host.name, (found,))
        host.crash()
        await _overwrite(host, before)

    async def _start_anew(self, host: CellHost, fault: ScheduledFault) -> None:
        """The operator's mistake: the cell is created again on an empty store. It serves until the operator looks."""
        self._restores += 1
        fresh = CellIdentity(host.name, f"{host.name}-anew-{self._restores}", f"{host.name}-era-{self._restores}")
        await self._replace(host, ())
        host.disk.record.write(RecordedIdentity(fresh, created=False))
        host.boot()
        await self._sleep(fault.for_s)

    async def restore_backup(self, host: CellHost, saved: Entries) -> None:
        """Restores the backup over the present content, once no other restore is under way in the cell."""
        while host.name in self._down:
            await asyncio.sleep(LOOK_EVERY_S)
        self._down.add(host.name)
        try:
            host.crash()
            await self.restore(host, saved, await entries_of(host))
        finally:
            self._down.discard(host.name)

    async def restore(self, host: CellHost, saved: Entries, before: Entries) -> None:
        """Restores the backup `saved` over the content `before`, as `holdfast restore --replace` does."""
        host.crash()
        self._restores += 1
        uid, now_s = f"{host.name}-restore-{self._restores}", EPOCH_S + self._simulation.loop.time()
        known = restore_records.incarnation_in(before)
        entries, incarnation = restore_records.restored_entries(host.name, saved, now_s, uid, known)
        own = identity_in(before)
        assert own is not None
        restored = msgspec.structs.replace(own, era=uid, incarnation=incarnation)
        await self._replace(host, (*entries, identity_put(restored, now_s)))
        host.disk.record.write(RecordedIdentity(restored))
        if host.name in self._simulation.size.regions:
            self._simulation.checkers.removals.region_restored(host.name)
        host.held_down = False
        host.boot()

    async def _sleep(self, for_s: float) -> None:
        until_s = self._simulation.loop.time() + for_s
        while self._simulation.loop.time() < until_s and not self._simulation.faults.healed:
            await asyncio.sleep(1.0)

    async def _replace(self, host: CellHost, entries: Entries) -> None:
        """Replaces the whole content of a stopped cell. No watch continues across it."""
        kept = {put.key for put in entries}
        removals = [Remove(e.key) for e in (await host.disk.store.range("")).entries if e.key not in kept]
        host.crash()
        with self._simulation.checkers.replacing_store():
            await host.disk.commit(Txn(writes=(*removals, *entries)))
        await host.disk.store.compact(host.disk.store.head)


async def lose_record(simulation: Simulation, fault: ScheduledFault) -> None:
    """The store of a region loses one Binding, as by a damaged page or a hand in the database."""
    host = simulation.cell(fault.target)
    found = [e.key for e in (await host.disk.store.range("/bindings/")).entries]
    if found:
        with simulation.checkers.losing_record():
            await host.disk.commit(Txn(writes=(Remove(found[int(fault.amount * len(found))]),)))


async def _overwrite(host: CellHost, entries: Entries) -> None:
    store, kept = host.disk.store, {put.key for put in entries}
    removals = [Remove(e.key) for e in (await store.range("")).entries if e.key not in kept]
    await store.commit(Txn(writes=(*removals, *entries)))
    await store.compact(store.head)


async def entries_of(host: CellHost) -> Entries:
    return tuple(Put(e.key, e.value) for e in (await host.disk.store.range("")).entries)
