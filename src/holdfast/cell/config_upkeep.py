"""Upkeep of Secrets and ConfigMaps in a cell process: resealing after a key rotation, versions for rollouts, and the
deletion of objects whose tenant or owners are gone.

Each derives what is left to do from the stored objects, so that a killed process continues where it stopped. Each is
harmless if two processes do it: every write is compared.
"""

from __future__ import annotations

import asyncio

import structlog

from holdfast.cell.cell import GLOBAL, Cell
from holdfast.gate.sealing import CannotOpen
from holdfast.model.config_references import ConfigObject, restarting_objects
from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_NAME, Home, kind_of
from holdfast.model.meta import Object, OwnerReference
from holdfast.model.principal import controller
from holdfast.model.secret import ConfigMap, Secret
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.model.workload_blocks import ConfigBlock
from holdfast.model.writes import Delete, SetStatus, Write

# Interval at which changed Secrets, ConfigMaps and key files are looked for.
CONFIG_UPKEEP_EVERY_S = 1.0

_log = structlog.get_logger()
_SECRET, _CONFIG_MAP, _WORKLOAD, _TENANT = map(kind_of, (Secret, ConfigMap, Workload, Tenant))


class ConfigUpkeep:
    """A component of `Lifetime`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._versions_at = -1
        self._collected_at = -1
        self._resealed_at: tuple[int, str] = (-1, "")
        self._unreadable: set[str] = set()

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        while True:
            try:
                # One process only: two with different key files would reseal in turns for ever.
                if self._cell.election.leading:
                    await self._reseal()
                if self._cell.name == GLOBAL and self._cell.election.leading:
                    await self._update_versions()
                    await self._delete_orphans()
            except Fault as fault:
                _log.warning("config_upkeep_failed", reason=fault.reason, message=fault.message)
            await self._cell.ports.clock.sleep(CONFIG_UPKEEP_EVERY_S)

    async def _reseal(self) -> None:
        objects, sealer = self._cell.objects, self._cell.gate.sealer
        if not objects.list(_SECRET)[0]:
            return
        state = (objects.changed_at(_SECRET), sealer.source.all()[0].id)
        if state == self._resealed_at:
            return
        old = [item for item in objects.list(_SECRET)[0] if isinstance(item, Secret) and not sealer.is_current(item)]
        who = controller("reseal", cell=self._cell.name)
        for item in old:
            if item.uid in self._unreadable:
                continue
            try:
                await self._cell.gate.reseal(who, [item])
            except CannotOpen as fault:
                self._unreadable.add(item.uid)
                _log.error("secret_unreadable", secret=str(item.key), message=fault.message)
            await asyncio.sleep(0)
        if old:
            _log.info("secrets_resealed", secrets=len(old), key=state[1])
        self._resealed_at = (objects.changed_at(_SECRET), state[1])

    async def _delete_orphans(self) -> None:
        """Deletes objects of terminating tenants, and those whose owners are all gone."""
        objects = self._cell.objects
        newest = max(objects.changed_at(kind) for kind in (_SECRET, _CONFIG_MAP, _TENANT))
        owned = False
        if newest == self._collected_at:
            return
        gone: list[Write] = []
        for kind in (_SECRET, _CONFIG_MAP):
            for item in objects.list(kind)[0]:
                meta = item.metadata
                owned = owned or bool(meta.owner_references)
                tenant = objects.get(_TENANT, "", meta.namespace)
                ends = tenant is None or tenant.metadata.terminating
                if not meta.terminating and (ends or self._has_lost_owners(item)):
                    gone.append(Delete(kind.name, item.key, item.uid))
        if gone:
            await self._cell.client_of("collect").commit(gone)
        elif not owned:  # owners of any kind may disappear, so owned objects are looked at again
            self._collected_at = newest

    def _has_lost_owners(self, item: Object) -> bool:
        owners = item.metadata.owner_references
        return bool(owners) and not any(self._exists(ref, item.metadata.namespace) for ref in owners)

    def _exists(self, ref: OwnerReference, namespace: str) -> bool:
        """An owner that this cell does not store counts as existing: the cell cannot know."""
        kind = BY_NAME.get(ref.kind)
        if kind is None or kind.home is Home.REGION:
            return True
        found = self._cell.objects.get(kind, namespace if kind.namespaced else "", ref.name)
        return found is not None and found.uid == ref.uid

    async def _update_versions(self) -> None:
        """Writes the versions of content that a template with `onChange: Restart` refers to."""
        objects = self._cell.objects
        newest = max(objects.changed_at(kind) for kind in (_SECRET, _CONFIG_MAP, _WORKLOAD))
        if newest == self._versions_at:
            return
        writes = []
        for item in objects.list(_WORKLOAD)[0]:
            assert isinstance(item, Workload)
            wanted = restarting_objects(item.spec.template)
            if not wanted and item.status.config is None:
                continue
            versions = {found.text: self._version(item.metadata.namespace, found) for found in wanted}
            block = ConfigBlock(versions)
            if item.status.config != block:
                writes.append(SetStatus(kind="Workload", key=item.key, uid=item.uid, blocks={"config": block}))
        if writes:
            await self._cell.client_of("config-versions").commit(writes)
        self._versions_at = newest

    def _version(self, namespace: str, wanted: ConfigObject) -> str:
        """Which content, without the content: a hash of a guessable secret would reveal it."""
        found = self._cell.objects.get(BY_NAME[wanted.kind], namespace, wanted.name)
        return f"{found.uid}.{found.metadata.generation}" if found is not None else "missing"
