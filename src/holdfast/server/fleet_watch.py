"""Watch over all regions in the global cell. Nothing connects downwards, so each region is polled over its uplink
for the watch events of the last second.

Every change of a region is sent once and in the region's order. If a region stops answering, or answers again after the
list, the stream ends with an ERROR event: a client must never take the silence of a region for the absence of changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.console.region_lists import RegionLists
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.errors import Expired, Fault, Unavailable
from holdfast.server import status
from holdfast.server.console import service_of
from holdfast.server.content_negotiation import ResponseShape
from holdfast.server.fleet_forms import EventMarker, MarkedEvent, column_definitions
from holdfast.server.fleet_objects import LIST_OBJECTS_MAX, FleetScope, FleetWalk, requested_scope
from holdfast.server.read import target_resource
from holdfast.server.request import Request, StreamResponse
from holdfast.server.watch import INITIAL_EVENTS_END, WatchPlan, watch_plan

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Length of one poll. Also the longest delay of an event, while fewer watches run than regions answer at the same time.
POLL_WINDOW_S = 1
# Polls of one region in flight, of all watches together. Further watches take turns, and their events are later.
POLLS_PER_REGION = 8
# Time without an answer after which a region is out of touch and the watch ends.
SILENCE_MAX_S = 30.0
# Interval at which a region that did not answer the list is tried.
RETURN_CHECK_EVERY_S = 5.0
# Events that wait for a client. A region is not polled further until the client has read some.
EVENTS_WAITING_MAX = 1_000

_seats: dict[str, asyncio.Semaphore] = {}


async def watch(app: Application, request: Request) -> StreamResponse:
    scope, plan = requested_scope(app, request), watch_plan(request)
    position: dict[str, str] | None = None
    if not plan.initial:
        position = service_of(app).revisions.find(request.query.get("resourceVersion", ""))
        if position is None:
            raise Expired("resourceVersion: not of a recent list over all regions; next: list again")
    return StreamResponse(_FleetWatch(app, request, scope, plan).chunks(position))


class _FleetWatch:
    def __init__(self, app: Application, request: Request, scope: FleetScope, plan: WatchPlan) -> None:
        self._app = app
        self._request = request
        self._scope = scope
        self._plan = plan
        self._lists: RegionLists = service_of(app).lists
        self._position: dict[str, str] = {}
        self._as_table = scope.form.shape is ResponseShape.TABLE
        self._first = True
        self._events: asyncio.Queue[MarkedEvent | Fault] = asyncio.Queue(EVENTS_WAITING_MAX)

    async def chunks(self, position: dict[str, str] | None) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._plan.timeout_s
        if position is None:
            async for chunk in self._initial():
                yield chunk
        else:
            self._position = dict(position)
        pollers = [asyncio.ensure_future(self._poll_region(region)) for region in self._scope.regions]
        bookmark_at = loop.time() + limits.BOOKMARK_EVERY_S if self._plan.bookmarks else ends_at
        try:
            while loop.time() < ends_at:
                try:
                    async with asyncio.timeout_at(min(ends_at, bookmark_at)):
                        event = await self._events.get()
                except TimeoutError:
                    bookmark_at = loop.time() + limits.BOOKMARK_EVERY_S
                    if self._plan.bookmarks:
                        yield self._bookmark()
                    continue
                if isinstance(event, Fault):
                    yield b'{"type":"ERROR","object":' + status.encode(status.status_dict(event)) + b"}\n"
                    return
                yield b'{"type":"' + event.type.encode() + b'","object":' + event.object + b"}\n"
        finally:
            await cancel_and_wait(*pollers)

    async def _initial(self) -> AsyncIterator[bytes]:
        """ADDED for every object of the regions that answer."""
        walk = FleetWalk(self._lists, self._scope, self._request, self._app.ports.clock.now())
        self._position = await walk.begin(LIST_OBJECTS_MAX)
        entries = await walk.collect(self._scope.regions, 0)
        for entry in entries:
            yield b'{"type":"ADDED","object":' + self._alone(entry) + b"}\n"
        if self._plan.announce_end:
            yield self._bookmark(ended=True)

    def _alone(self, entry: bytes) -> bytes:
        """An entry of a list as the object of an event."""
        if not self._as_table:
            return entry
        columns = column_definitions(self._scope.kind) if self._first else []
        self._first = False
        head = f'{{"kind":"Table","apiVersion":"meta.k8s.io/{self._scope.form.version}","metadata":{{}}'
        return head.encode() + b',"columnDefinitions":' + status.encode(columns) + b',"rows":[' + entry + b"]}"

    async def _poll_region(self, region: str) -> None:
        try:
            if region not in self._position:
                await self._wait_for_return(region)
            await self._poll(region)
        except Fault as fault:
            await self._events.put(fault)
        except msgspec.MsgspecError:
            await self._events.put(Unavailable(f"region {region}: its answer cannot be read; next: list again"))

    async def _wait_for_return(self, region: str) -> None:
        """A region that did not answer the list: once it answers, the client must list again."""
        scope = self._scope
        while True:
            await self._app.ports.clock.sleep(RETURN_CHECK_EVERY_S)
            reply = await self._lists.page(region, scope.viewer, scope.question, limit=1)
            if reply.is_current and reply.code == 200:
                raise Expired(f"region {region}: answers again; next: list again")

    async def _poll(self, region: str) -> None:
        clock, scope = self._app.ports.clock, self._scope
        answered_s = clock.monotonic()
        while True:
            marker = EventMarker(region, scope.kind, as_table=self._as_table)
            async with _seats.setdefault(region, asyncio.Semaphore(POLLS_PER_REGION)):
                reply = await self._lists.changes(
                    region, scope.viewer, scope.question, after=self._position[region], window_s=POLL_WINDOW_S
                )
            if reply.code != 200:
                if reply.code == Expired.code:
                    raise Expired(f"region {region}: changes since the list are no longer known; next: list again")
                if clock.monotonic() - answered_s > SILENCE_MAX_S:
                    why = reply.problem or f"region {region} answered {reply.code}"
                    raise Unavailable(f"{why} for {SILENCE_MAX_S:g} s; next: list again")
                await clock.sleep(POLL_WINDOW_S)
                continue
            answered_s = clock.monotonic()
            for line in reply.body.splitlines():
                event = marker.mark(line, first=self._first)
                if event.type == "ERROR":
                    raise Expired(f"region {region}: its watch ended; next: list again")
                if event.revision:
                    self._position[region] = event.revision
                if event.type != "BOOKMARK":
                    self._first = False
                    await self._events.put(event)

    def _bookmark(self, *, ended: bool = False) -> bytes:
        revision = service_of(self._app).revisions.add(self._position)
        kind = target_resource(self._request).kind
        meta: dict[str, object] = {"resourceVersion": revision, "creationTimestamp": None}
        if ended:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        made: dict[str, object] = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta}
        version = self._scope.form.version
        if self._as_table:
            rows = [{"cells": [], "object": made}] if ended else []
            made = {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": meta}
            made.update(columnDefinitions=[], rows=rows)
        elif self._scope.form.shape is ResponseShape.PARTIAL:
            made.update(kind="PartialObjectMetadata", apiVersion=f"meta.k8s.io/{version}")
        return b'{"type":"BOOKMARK","object":' + status.encode(made) + b"}\n"
