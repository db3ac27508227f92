"""Revokes the certificates of a region or of one server, at once and for good, and cleans up what depends on them.

One audited commit under the operator's name marks the servers, withdraws their URLs, and deletes join tokens of the
region, with which a stolen machine could join again. A revocation that ends work is questioned first: without
confirmation it is refused with its effects. The revoked region loses only its connection; what it runs is for
recovery to decide, as with a region that is partitioned.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.gate.gate import Gate
from holdfast.gate.scope import GLOBAL_CELL
from holdfast.model.assignment import Assignment
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.join import JoinToken, RevokeRequest
from holdfast.model.kinds import BY_NAME
from holdfast.model.principal import Principal
from holdfast.model.region import HealthState, Region
from holdfast.model.server import Server
from holdfast.model.times import seconds_text
from holdfast.model.writes import Delete, Update, Write

_SERVER, _REGION, _TOKEN, _ASSIGNMENT = (BY_NAME[name] for name in ("Server", "Region", "JoinToken", "Assignment"))


class RevocationResult(msgspec.Struct, frozen=True):
    """What was revoked or deleted, and what the operator does next."""

    revoked: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    next: str = ""


class CellRevocation:
    """In the global cell only."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def revoke_region(
        self, who: Principal, name: str, asked: RevokeRequest, *, request: str = ""
    ) -> RevocationResult:
        """Raises Conflict with the effects if they are not confirmed."""
        region = self._gate.objects.get(_REGION, "", name)
        if not isinstance(region, Region):
            raise NotFound(f"region {name}: not found")
        servers = self._servers(name)
        effects = self._region_effects(region, len(servers))
        if effects and not asked.confirm:
            raise Conflict(f"region {name}: {effects}; next: confirm it (holdfast region revoke {name} --yes)")
        writes = [_revoked(server) for server in servers]
        now = seconds_text(self._gate.ports.clock.now())
        spec = msgspec.structs.replace(region.spec, revoked_before=now, endpoint="", endpoints=())
        writes.append(Update(msgspec.structs.replace(region, spec=spec)))
        tokens = list(self._tokens(name))
        writes += [Delete(kind="JoinToken", key=token.key, uid=token.uid) for token in tokens]
        await self._gate.commit(who, writes, request=_described(request, asked))
        return RevocationResult(
            revoked=tuple(server.metadata.name for server in servers),
            tokens=tuple(token.metadata.name for token in tokens),
            next=f"the region's work is recovered elsewhere when it counts as lost; to admit it again: holdfast region "
            f"token {name}, then holdfast init region --join on a clean machine",
        )

    async def revoke_server(
        self, who: Principal, name: str, asked: RevokeRequest, *, request: str = ""
    ) -> RevocationResult:
        """Raises Conflict for the last server of a cell, and with the effects if they are not confirmed."""
        found = self._gate.objects.get(_SERVER, "", name)
        if not isinstance(found, Server):
            known = ", ".join(item.metadata.name for item in self._gate.objects.list(_SERVER)[0]) or "none"
            raise NotFound(f"server {name}: not found (found {known})")
        if found.spec.revoked:
            return RevocationResult(revoked=(), next="it was revoked before")
        cell = found.spec.cell
        others = [server for server in self._servers(cell) if server.metadata.name != name]
        if not others:
            instead = f"holdfast region revoke {cell}" if cell != GLOBAL_CELL else "let another server join first"
            raise Conflict(f"server {name}: it is the only one of cell {cell}; next: {instead}")
        if not asked.confirm:
            left = f"{len(others)} other{'s serve' if len(others) > 1 else ' serves'} the cell"
            key = " It has the key of the CA: if it was stolen, rotate the CA too." if cell == GLOBAL_CELL else ""
            raise Conflict(
                f"server {name} of cell {cell} at {found.spec.url}: its certificates and its etcd member are given up, "
                f"{left}.{key}; next: confirm it (holdfast server revoke {name} --yes)"
            )
        writes: list[Write] = [_revoked(found), *self._without_endpoint(found, others)]
        await self._gate.commit(who, writes, request=_described(request, asked))
        rotate = "holdfast ca rotate, because it had the CA's key" if cell == GLOBAL_CELL else ""
        return RevocationResult(revoked=(name,), next=rotate)

    def _servers(self, cell: str) -> list[Server]:
        found = (s for s in self._gate.objects.list(_SERVER)[0] if isinstance(s, Server))
        return [s for s in found if s.spec.cell == cell and not s.spec.revoked]

    def _tokens(self, region: str) -> Iterator[JoinToken]:
        for token in self._gate.objects.list(_TOKEN)[0]:
            if isinstance(token, JoinToken) and token.spec.region == region:
                yield token

    def _region_effects(self, region: Region, servers: int) -> str:
        """What the revocation ends; empty if the region never joined and holds nothing."""
        name = region.metadata.name
        assigned = self._gate.objects.list(_ASSIGNMENT, fields={"region": name})[0]
        replicas = sum(a.spec.replicas for a in assigned if isinstance(a, Assignment))
        report = region.status.report
        nodes = report.live_nodes if report is not None else 0
        if not (servers or nodes or replicas or region.spec.endpoint):
            return ""
        healthy = sum(
            isinstance(other, Region)
            and other.metadata.name != name
            and other.status.health.state is HealthState.HEALTHY
            for other in self._gate.objects.list(_REGION)[0]
        )
        elsewhere = f"{healthy} other regions are healthy" if healthy else "NO other region is healthy"
        return (
            f"{servers} servers lose their certificates, {nodes} live nodes and {replicas} replicas are cut off from "
            f"the global cell, and {elsewhere}"
        )

    def _without_endpoint(self, server: Server, others: list[Server]) -> Iterator[Write]:
        region = self._gate.objects.get(_REGION, "", server.spec.cell)
        if not isinstance(region, Region):
            return
        left = tuple(dict.fromkeys(other.spec.url for other in others if other.spec.url != server.spec.url))
        first = region.spec.endpoint if region.spec.endpoint in left else left[0] if left else region.spec.endpoint
        spec = msgspec.structs.replace(region.spec, endpoint=first, endpoints=left)
        yield Update(msgspec.structs.replace(region, spec=spec))


def _revoked(server: Server) -> Write:
    return Update(msgspec.structs.replace(server, spec=msgspec.structs.replace(server.spec, revoked=True)))


def _described(request: str, asked: RevokeRequest) -> str:
    return f"{request} ({asked.reason[:200]})" if asked.reason else request
