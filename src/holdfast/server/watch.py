"""Watch: changes as they happen, one JSON line each.

Every change after the starting revision is sent once and in order, or the stream ends with an ERROR event of reason
`Expired`. Plain JSON lines are encoded once per change and shared by all watchers. A client that stops reading is
disconnected, so nothing is buffered for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.gate.sealing import CannotOpen
from holdfast.model import codec, limits
from holdfast.model.errors import Cause, Expired, Fault, Invalid
from holdfast.model.meta import Object
from holdfast.server import status
from holdfast.server.content_negotiation import ResponseShape
from holdfast.server.read import (
    FUTURE_REVISION_WAIT_S,
    parse_revision,
    requested_revision,
    requested_selection,
    response_encoder,
    target_resource,
)
from holdfast.server.representations import ENCODE_SLICE_OBJECTS, ResponseEncoder
from holdfast.server.request import Request, StreamResponse
from holdfast.server.selectors import Selection
from holdfast.store.objects import ObjectChange, ObjectStream

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Bytes of watch events sent as one chunk. More events follow in the next chunk.
WATCH_CHUNK_BYTES = 256 * 1024
# Maximum duration of a watch. After that, the server ends it and the client continues, as in Kubernetes.
WATCH_DURATION_MAX_S = 3600.0

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_ADDED, _MODIFIED, _DELETED = (
    b'{"type":"ADDED","object":',
    b'{"type":"MODIFIED","object":',
    b'{"type":"DELETED","object":',
)
_END = b"}\n"


class WatchPlan(msgspec.Struct, frozen=True):
    """The options of one watch."""

    after: int
    initial: bool
    announce_end: bool
    bookmarks: bool
    timeout_s: float


async def watch(app: Application, request: Request) -> StreamResponse:
    """Everything that can be refused is refused here, before the stream starts."""
    resource = target_resource(request)
    plan = watch_plan(request)
    if plan.after > app.objects.head(resource.stored) and not await app.objects.wait_for(
        resource.stored, plan.after, timeout_s=FUTURE_REVISION_WAIT_S
    ):
        # A revision from before a restore of the store: the client must list again.
        raise Expired(f"resourceVersion {plan.after}: newer than this server's state; next: list again")
    stream = _WatchStream(app, request, plan)
    return StreamResponse(stream.chunks())


def watch_plan(request: Request) -> WatchPlan:
    named = "sendInitialEvents" in request.query
    wants_initial = request.flag("sendInitialEvents")
    if wants_initial and request.query.get("resourceVersionMatch", "") != "NotOlderThan":
        message = 'Forbidden: sendInitialEvents requires setting resourceVersionMatch to "NotOlderThan"'
        raise Invalid(
            f"ListOptions is invalid: resourceVersionMatch: {message}",
            (Cause("resourceVersionMatch", "FieldValueForbidden", message),),
        )
    # With initial events, NotOlderThan is valid without a resourceVersion and means any state.
    after = (
        parse_revision(request.query.get("resourceVersion", ""))
        if wants_initial
        else requested_revision(request).revision
    )
    return WatchPlan(
        after=after,
        initial=wants_initial or (after == 0 and not named),
        announce_end=wants_initial,
        bookmarks=request.flag("allowWatchBookmarks"),
        timeout_s=_timeout(request),
    )


def _timeout(request: Request) -> float:
    text = request.query.get("timeoutSeconds", "")
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return min(float(text), WATCH_DURATION_MAX_S)
    return WATCH_DURATION_MAX_S


class _WatchStream:
    def __init__(self, app: Application, request: Request, plan: WatchPlan) -> None:
        self._app = app
        self._plan = plan
        self._resource = target_resource(request)
        self._namespace = request.target.namespace
        self._wanted: Selection = requested_selection(request)
        self._shaper: ResponseEncoder = response_encoder(app, request)
        self._shared = self._shaper.form.shape is ResponseShape.PLAIN and self._resource.to_view is None
        self._first = True
        self._position = plan.after

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._plan.timeout_s
        if self._plan.initial:
            async for chunk in self._initial():
                yield chunk
        elif self._position == 0:
            self._position = self._app.objects.head(self._resource.stored)
        stream = self._changes()
        bookmark_at = loop.time() + limits.BOOKMARK_EVERY_S if self._plan.bookmarks else ends_at
        try:
            while loop.time() < ends_at:
                try:
                    async with asyncio.timeout_at(min(ends_at, bookmark_at)):
                        changes = await anext(stream)
                except TimeoutError:
                    changes = ()
                lines = [line for change in changes if (line := self._event_line(change)) is not None]
                if changes:
                    self._position = changes[-1].revision
                for chunk in _chunked(lines):
                    yield chunk
                if self._plan.bookmarks and loop.time() >= bookmark_at:
                    bookmark_at = loop.time() + limits.BOOKMARK_EVERY_S
                    yield self._bookmark(self._safe_position(stream))
            if self._plan.bookmarks:
                # The client resumes from here, however long nothing has changed.
                yield self._bookmark(self._safe_position(stream))
        except StopAsyncIteration:
            pass
        except CannotOpen as fault:
            # A past revision may be sealed with a key that a rotation has dropped. The present one never is.
            old = Expired(f"{fault.message}; next: list again")
            yield b'{"type":"ERROR","object":' + status.encode(status.status_dict(old)) + _END
        except Fault as fault:
            yield b'{"type":"ERROR","object":' + status.encode(status.status_dict(fault)) + _END
        finally:
            await stream.aclose()

    def _changes(self) -> ObjectStream:
        objects, resource = self._app.objects, self._resource
        if resource.joins is not None:
            return objects.joint_stream((resource.stored, resource.joins.kind), self._namespace, after=self._position)
        fields = self._wanted.indexed_terms(resource.stored.type) or None
        return objects.stream(resource.stored, self._namespace, after=self._position, fields=fields)

    def _safe_position(self, stream: ObjectStream) -> int:
        """The newest revision up to which everything was sent. If nothing is outstanding, that is the store's head."""
        if stream.caught_up:
            self._position = max(self._position, self._app.objects.head(self._resource.stored))
        return self._position

    async def _initial(self) -> AsyncIterator[bytes]:
        """ADDED for every existing object. The stream then continues from exactly the revision of this list."""
        if self._plan.after:
            await self._app.objects.wait_for(self._resource.stored, self._plan.after, timeout_s=FUTURE_REVISION_WAIT_S)
        found, revision = self._app.objects.list(
            self._resource.stored,
            self._namespace,
            fields=self._wanted.indexed_terms(self._resource.stored.type) or None,
        )
        self._position = revision
        lines: list[bytes] = []
        for index, item in enumerate(found):
            if self._wanted.matches(self._resource.view_of(item, self._app.objects)):
                lines.append(self._event(_ADDED, item))
            if index % ENCODE_SLICE_OBJECTS == ENCODE_SLICE_OBJECTS - 1:
                for chunk in _chunked(lines):
                    yield chunk
                lines = []
        for chunk in _chunked(lines):
            yield chunk
        if self._plan.announce_end:
            yield self._bookmark(revision, ended=True)

    def _event_line(self, change: ObjectChange) -> bytes | None:
        """The event of one change for this watcher; None if the change does not concern it."""
        joins, objects = self._resource.joins, self._app.objects
        old, new = joins.change(change, objects) if joins is not None else (change.old, change.new)
        if self._wanted.matches_all:
            if self._shared:
                return _shared_line(change)
            now, before = new is not None, old is not None
        else:
            now = new is not None and self._wanted.matches(self._resource.view_of(new, objects))
            before = old is not None and self._wanted.matches(self._resource.view_of(old, objects))
            if self._shared and now == (new is not None) and before == (old is not None) and (now or before):
                return _shared_line(change)
        if now and new is not None:
            return self._event(_MODIFIED if before else _ADDED, new)
        if before and old is not None:
            return self._event(_DELETED, _with_revision(old, change.revision))
        return None

    def _event(self, head: bytes, item: Object) -> bytes:
        line = head + self._shaper.encode_event(item, first=self._first) + _END
        self._first = False
        return line

    def _bookmark(self, revision: int, *, ended: bool = False) -> bytes:
        kind = self._resource.kind
        meta: dict[str, object] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if ended:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        made: dict[str, object] = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
        if self._shaper.form.shape is ResponseShape.TABLE:
            made = {
                "kind": "Table",
                "apiVersion": f"meta.k8s.io/{self._shaper.form.version}",
                "metadata": {"resourceVersion": str(revision)},
                "columnDefinitions": [],
                "rows": [{"cells": [], "object": made}] if ended else [],
            }
        elif self._shaper.form.shape is ResponseShape.PARTIAL:
            made.update(kind="PartialObjectMetadata", apiVersion=f"meta.k8s.io/{self._shaper.form.version}")
        return b'{"type":"BOOKMARK","object":' + status.encode(made) + _END


def _shared_line(change: ObjectChange) -> bytes:
    if change.line is None:
        head = _DELETED if change.new is None else _ADDED if change.old is None else _MODIFIED
        change.line = head + codec.wire_bytes(change.kind, change.value, change.revision) + _END
    return change.line


def _with_revision(item: Object, revision: int) -> Object:
    """The last state of an object, with the revision of its removal."""
    meta = msgspec.structs.replace(item.metadata, resource_version=str(revision))
    return msgspec.structs.replace(item, metadata=meta)


def _chunked(lines: list[bytes]) -> list[bytes]:
    """Lines joined into chunks of a size that a connection can send at once."""
    chunks: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= WATCH_CHUNK_BYTES:
            chunks.append(b"".join(part))
            part, size = [], 0
    if part:
        chunks.append(b"".join(part))
    return chunks
