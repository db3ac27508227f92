"""Writes the built-in roles as ClusterRoles when a server of the global cell starts, so that clients can list them.

Nothing is decided by these objects: the rows in `gate/builtin_roles` are. A release that changes a role updates its
object at the next start; links copy it to the regions.
"""

from __future__ import annotations

import msgspec
import structlog

from holdfast.gate.builtin_roles import published_roles
from holdfast.gate.gate import Gate
from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_NAME
from holdfast.model.ownership import BUILTIN_ROLES
from holdfast.model.principal import controller
from holdfast.model.rbac import ClusterRole
from holdfast.model.writes import Create, Update, Write

_log = structlog.get_logger()


class BuiltinRolePublisher:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def start(self) -> None:
        who = controller(BUILTIN_ROLES, cell=self._gate.cell)
        try:
            await self._gate.commit(who, list(self._writes()))
        except Fault as fault:  # another server of the cell wrote them, or the next start will
            _log.info("builtin_roles_not_written", reason=fault.reason, message=fault.message)

    async def stop(self) -> None:
        """Nothing to stop: the roles are written once."""

    def _writes(self) -> list[Write]:
        writes: list[Write] = []
        for role in published_roles():
            held = self._gate.objects.get(BY_NAME["ClusterRole"], "", role.metadata.name)
            if held is None:
                writes.append(Create(role))
            elif isinstance(held, ClusterRole) and held.rules != role.rules:
                writes.append(Update(msgspec.structs.replace(held, rules=role.rules)))
        return writes
