"""In-process client: for components inside a cell's own process, without serialization, under the same rules.

Reads return the shared published objects. Writes pass the gate as the client's principal. Placement calls go to the
region's authority; the global cell has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.client.contract import CommitReceipt, FencingToken, Listing, WatchEvent
from holdfast.gate.authorize import call_refusal
from holdfast.gate.events import EventLog
from holdfast.gate.gate import Gate
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.placement_api import BindRequest, PlacementResponse, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.principal import Principal
from holdfast.model.writes import Notice, Write
from holdfast.store.objects import ObjectChange

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class PlacementService(Protocol):
    """A region's authority as its callers see it. Callers are authorized already; every item is checked again."""

    async def reserve(self, who: Principal, request: ReserveRequest) -> PlacementResponse: ...

    async def bind(self, who: Principal, request: BindRequest) -> PlacementResponse: ...

    async def release(
        self, who: Principal, request: ReleaseRequest, *, token: FencingToken | None = None
    ) -> PlacementResponse: ...

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse: ...


class LocalClient:
    def __init__(
        self, gate: Gate, who: Principal, *, placement: PlacementService | None = None, events: EventLog | None = None
    ) -> None:
        self._gate = gate
        self._objects = gate.objects
        self._who = who
        self._placement = placement
        self._events = events if events is not None else EventLog(gate.objects, gate.ports)

    @property
    def cell(self) -> str:
        return self._gate.cell

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        return cast("O | None", self._objects.get(kind_of(kind), namespace, name))

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        items, revision = self._objects.list(kind_of(kind), namespace, fields=fields)
        return Listing(cast("tuple[O, ...]", tuple(items)), revision)

    def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        return LocalWatch(self._objects.stream(kind_of(kind), namespace, after=after, fields=fields))

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        return await self._gate.commit(self._who, writes, token=token, request="in-process")

    async def reserve(self, request: ReserveRequest) -> PlacementResponse:
        return await self._authority("reserve").reserve(self._who, request)

    async def bind(self, request: BindRequest) -> PlacementResponse:
        return await self._authority("bind").bind(self._who, request)

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        return await self._authority("release").release(self._who, request, token=token)

    async def renew(self, request: RenewRequest) -> PlacementResponse:
        nodes = [item.node for item in request.items]
        return await self._authority("renew", nodes).renew(self._who, request)

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        await self._events.record(notices, component=component)

    async def close(self) -> None:
        """Nothing to release: the gate and the objects belong to the cell."""

    def _authority(self, verb: str, nodes: Sequence[str] = ()) -> PlacementService:
        if self._placement is None:
            raise BadRequest(f"{verb}: the {self.cell} cell does not place replicas; next: call the region's cell")
        refused = call_refusal(self._who, verb, nodes=nodes, cell=self.cell)
        if refused is not None:
            self._gate.audit.record_refusal(self._who, verb, "placement", refused.reason, message=refused.message)
            raise Forbidden(refused.message, facts=refused.facts)
        return self._placement


class LocalWatch(Generic[O]):
    """Adapts a stream of object changes to watch events. Like the stream, it survives a cancelled wait."""

    def __init__(self, stream: AsyncIterator[Sequence[ObjectChange]]) -> None:
        self._stream = stream

    def __aiter__(self) -> LocalWatch[O]:
        return self

    async def __anext__(self) -> Sequence[WatchEvent[O]]:
        return [_seen(change) for change in await anext(self._stream)]


def _seen(change: ObjectChange) -> WatchEvent[Any]:
    if change.new is None:
        return WatchEvent(change.old, change.old, True, change.revision)
    return WatchEvent(change.new, change.old, False, change.revision)
