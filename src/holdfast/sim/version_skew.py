"""Version-skew proxy: encodes each message with the current release, rewrites it to another release's schema, and
decodes it again, in both directions.

Fields known to both releases must arrive unchanged; any difference is reported as a violation. The proxy never invents
a response. It is used where a cell serves a caller of another release (`CellHost.client_for`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.client import wire
from holdfast.client.contract import Client, CommitReceipt, FencingToken, Listing, WatchEvent
from holdfast.client.resources import decode_page
from holdfast.client.watch_lines import parse_events
from holdfast.model.codec import object_wire_bytes
from holdfast.model.errors import Ambiguous, BadRequest, Fault
from holdfast.model.kinds import Kind, kind_of
from holdfast.model.meta import Object
from holdfast.model.placement_api import BindRequest, PlacementResponse, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.writes import Notice, Write
from holdfast.server.internal_api import PLACEMENT_CALLS
from holdfast.server.status import status_dict
from holdfast.sim.releases import (
    UNKNOWN,
    UNKNOWN_VALUE,
    ReleaseVersion,
    kind_type,
    next_release_notices,
    next_release_writes,
    read_by,
    written_by,
)

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object
T = TypeVar("T")
Rewrite = Callable[[type[Any], Any], Any]
_json = msgspec.json
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


class _Around(msgspec.Struct):
    """Marker type of envelopes, for which the model has no type."""


def _unchanged(kind: type[Any], tree: Any) -> Any:
    return tree


class VersionSkewProxy:
    """Client inside a cell of release `peer` for a caller of release `own`. Calls `misunderstood` on differences."""

    def __init__(
        self, inner: Client, own: ReleaseVersion, peer: ReleaseVersion, misunderstood: Callable[[str], None]
    ) -> None:
        self._inner = inner
        self._own = own
        self._peer = peer
        self._misunderstood = misunderstood

    @property
    def cell(self) -> str:
        return self._inner.cell

    # Reading

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        found = await self._call(self._inner.get(kind, name, namespace))
        if found is None:
            return None
        row, body = kind_of(kind), object_wire_bytes(found)
        decoded: Any = self._decode_response(
            f"a {row.name}",
            lambda rewrite: _json.encode(rewrite(row.type, _json.decode(body))),
            lambda data: wire.decode_object(data, row),
        )
        return decoded  # type: ignore[no-any-return]

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        found = await self._call(self._inner.list(kind, namespace, fields=fields))
        row = kind_of(kind)

        def body(rewrite: Rewrite) -> bytes:
            items = [rewrite(row.type, _json.decode(object_wire_bytes(item))) for item in found.items]
            tree = {"metadata": {"resourceVersion": str(found.revision)}, "items": items}
            return _json.encode(rewrite(_Around, tree))

        page = self._decode_response(f"a list of {row.plural}", body, lambda data: decode_page(row, data))
        return Listing(page.items, page.revision)

    def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        stream = self._inner.watch(kind, namespace, after=after, fields=fields)
        return _Translated(stream, lambda batch: self._batch(kind_of(kind), batch))

    def _batch(self, kind: Kind, batch: Sequence[WatchEvent[Any]]) -> Sequence[WatchEvent[Any]]:
        def lines(rewrite: Rewrite) -> bytes:
            made = (rewrite(_Around, _line(event, lambda tree: rewrite(kind.type, tree))) for event in batch)
            return b"\n".join(map(_json.encode, made))

        decoded = self._decode_response(
            f"a watch of {kind.plural}", lines, lambda data: parse_events(kind, data.split(b"\n"))
        )
        return [
            now if now.deleted else msgspec.structs.replace(now, old=event.old)
            for now, event in zip(decoded, batch, strict=True)
        ]

    # Writing

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        if self._own is ReleaseVersion.NEXT:
            writes = next_release_writes(writes, self.cell)
        body = wire.encode_commit(writes, token, brief=brief)
        request = self._send("a commit", lambda rewrite: _commit_body(body, rewrite), _decode_commit)
        response = await self._call(self._inner.commit(request.writes, token=request.token, brief=request.brief))

        def answer(rewrite: Rewrite) -> bytes:
            tree = _json.decode(wire.encode_committed(response))
            tree["objects"] = [i if i is None else rewrite(kind_type(i["kind"]), i) for i in tree.get("objects", ())]
            return _json.encode(rewrite(_Around, tree))

        try:
            return self._decode_response("the answer to a commit", answer, wire.decode_committed)
        except (*_UNREADABLE, BadRequest) as error:
            raise Ambiguous(f"the answer to a commit cannot be read: {error}") from error

    async def reserve(self, request: ReserveRequest) -> PlacementResponse:
        return self._placement_response(await self._call(self._inner.reserve(self._request("reserve", request))))

    async def bind(self, request: BindRequest) -> PlacementResponse:
        return self._placement_response(await self._call(self._inner.bind(self._request("bind", request))))

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        return self._placement_response(
            await self._call(self._inner.release(self._request("release", request), token=token))
        )

    async def renew(self, request: RenewRequest) -> PlacementResponse:
        return self._placement_response(await self._call(self._inner.renew(self._request("renew", request))))

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        if self._own is ReleaseVersion.NEXT:
            notices = next_release_notices(notices)
        body = wire.encode_notify(notices, component=component)
        read = self._send(
            "a notice",
            lambda rewrite: _json.encode(rewrite(wire.NotifyRequest, _json.decode(body))),
            wire.decode_notify,
        )
        decoded = [
            Notice(about=notice.about, reason=form.reason, message=form.message, warning=form.warning)
            for notice, form in zip(notices, read.notices, strict=True)
        ]
        await self._inner.notify(decoded, component=read.component)

    async def close(self) -> None:
        return None

    # Both ways

    def _request(self, call: str, request: Any) -> Any:
        body = _json.encode(request)
        try:
            return self._send(
                f"a {call} request",
                lambda rewrite: _json.encode(rewrite(type(request), _json.decode(body))),
                PLACEMENT_CALLS[call].decode,
            )
        except _UNREADABLE as wrong:
            raise BadRequest(f"the {call} request cannot be decoded: {wrong}") from wrong

    def _placement_response(self, answers: PlacementResponse) -> PlacementResponse:
        body = _json.encode(answers)
        try:
            return self._decode_response(
                "an answer of the authority",
                lambda rewrite: _json.encode(rewrite(PlacementResponse, _json.decode(body))),
                lambda data: _json.decode(data, type=PlacementResponse),
            )
        except _UNREADABLE as error:
            raise Ambiguous(f"the answer cannot be read: {error}") from error

    def _send(self, what: str, body: Callable[[Rewrite], bytes], decode: Callable[[bytes], T]) -> T:
        """A request of the caller, as the cell decodes it."""
        return self._receive(what, self._own, self._peer, body, decode)

    def _decode_response(self, what: str, body: Callable[[Rewrite], bytes], decode: Callable[[bytes], T]) -> T:
        """A response of the cell, as the caller decodes it."""
        return self._receive(what, self._peer, self._own, body, decode)

    def _receive(
        self,
        what: str,
        by: ReleaseVersion,
        to: ReleaseVersion,
        body: Callable[[Rewrite], bytes],
        decode: Callable[[bytes], T],
    ) -> T:
        def rewrite(kind: type[Any], tree: Any) -> Any:
            return read_by(to, kind.__name__, written_by(by, kind, tree))

        try:
            found = decode(body(rewrite))
        except (*_UNREADABLE, Fault) as error:
            self._misunderstood(f"{what} of the {by} was refused by the {to}: {error}")
            raise
        if by is ReleaseVersion.NEXT and to is ReleaseVersion.CURRENT and found != decode(body(_unchanged)):
            self._misunderstood(f"{what} of the {by} reached the {to} without a field that both know")
        return found

    async def _call(self, work: Awaitable[T]) -> T:
        """Rewrites faults too."""
        try:
            return await work
        except Fault as fault:
            tree = status_dict(fault)
            if self._peer is ReleaseVersion.NEXT:
                tree = {UNKNOWN: UNKNOWN_VALUE, **tree, "details": {**tree.get("details", {}), UNKNOWN: UNKNOWN_VALUE}}
            decoded = wire.fault_of(fault.code, _json.encode(tree), retry_after_s=fault.retry_after_s)
            if not isinstance(fault, type(decoded)):
                self._misunderstood(
                    f"a {type(fault).__name__} of the {self._peer} was decoded as {type(decoded).__name__}"
                )
            raise decoded from fault


def _decode_commit(body: bytes) -> wire.CommitRequest:
    """Decodes a commit without its warnings about unknown fields."""
    return msgspec.structs.replace(wire.decode_commit(body), unknown=())


def _line(event: WatchEvent[Any], rewrite: Callable[[Any], Any]) -> dict[str, Any]:
    if event.object is None:
        return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(event.revision)}}}
    tree = _json.decode(object_wire_bytes(event.object))
    tree["metadata"]["resourceVersion"] = str(event.revision)
    kind = "DELETED" if event.deleted else "ADDED" if event.old is None else "MODIFIED"
    return {"type": kind, "object": rewrite(tree)}


def _commit_body(body: bytes, rewrite: Rewrite) -> bytes:
    """A commit request with objects, status blocks and envelope rewritten."""
    tree = _json.decode(body)
    around = rewrite(_Around, {})
    for write in tree.get("writes", ()):
        if "object" in write:
            write["object"] = rewrite(kind_type(write["object"]["kind"]), write["object"])
        elif "blocks" in write:
            # As a whole object, so that the rules of the object apply to its status blocks.
            write["blocks"] = rewrite(kind_type(write["kind"]), {"status": write["blocks"]})["status"]
        write.update(around)
    return _json.encode({**tree, **around})


class _Translated:
    """A watch whose batches are rewritten from another release."""

    def __init__(
        self, stream: AsyncIterator[Sequence[Any]], translate: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> None:
        self._stream = stream
        self._translate = translate

    def __aiter__(self) -> _Translated:
        return self

    async def __anext__(self) -> Sequence[Any]:
        return self._translate(await anext(self._stream))


class NextReleaseClient:
    """Client of a component inside a cell of the next release: adds unknown labels and conditions to its writes."""

    def __init__(self, inner: Client) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        return await self._inner.commit(next_release_writes(writes, self._inner.cell), token=token, brief=brief)

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        await self._inner.notify(next_release_notices(notices), component=component)
