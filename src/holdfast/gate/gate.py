"""Every write passes here, whoever makes it: validate, admit, check ownership, stamp, audit, commit.

One commit is one transaction, its audit record included. Nothing else writes objects to the store, except the authority's
ledger, which commits placement through the same audit and ownership rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client.contract import Committed, Token
from holdfast.gate.principal import Principal
from holdfast.model.writes import Write
from holdfast.runtime.ports import Ports
from holdfast.store.objects import Objects


class Gate:
    def __init__(self, cell: str, objects: Objects, ports: Ports) -> None:
        raise NotImplementedError

    async def commit(
        self,
        who: Principal,
        writes: Sequence[Write],
        *,
        token: Token | None = None,
        dry_run: bool = False,
        request: str = "",
    ) -> Committed:
        """All of the writes or none. `request` describes the request in the audit record.

        Raises Forbidden, Invalid (with every cause), NotFound, AlreadyExists, Conflict, StaleToken.
        """
        raise NotImplementedError
