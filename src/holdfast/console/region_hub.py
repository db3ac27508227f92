"""Asks regions on behalf of the console: connected regions, pending queries, and the last answer of each.

A query is sent at most once per `FRESH_S`, however many pages ask. If a region does not answer, its last answer is
returned with its own time, so that a page can show how old it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.console.answers import RegionAnswer, RegionQuery
from holdfast.console.region_calls import (
    CALL,
    CALL_TIMEOUT_S,
    SESSION,
    SESSION_OPEN_TIMEOUT_S,
    RegionRequest,
    RegionResponse,
)
from holdfast.console.viewer import Viewer
from holdfast.foundation.ports import Ports
from holdfast.model.errors import Forbidden, Unavailable

# Age up to which an answer is shared by all pages that ask the same.
FRESH_S = 0.9
# Time that a region has to answer. After that, the page shows its last answer.
ANSWER_TIMEOUT_S = 2.0
# Time that a region has to answer about its past: it may have to read its history first.
PAST_ANSWER_TIMEOUT_S = 15.0
# Answers kept. The one that was asked for least recently is dropped.
ANSWERS_KEPT = 512
# Queries in flight. A further one is answered with what is known.
QUERIES_PENDING_MAX = 256

AT = "at"
"""Parameter of a query about the past: the time, in seconds since the epoch."""

_decoder = msgspec.json.Decoder(RegionAnswer)


class KnownAnswer(msgspec.Struct, frozen=True):
    """What is known of a region. `problem` says why it is not current; `answer` is None if it never answered."""

    region: str
    answer: RegionAnswer | None
    problem: str = ""
    parsed: dict[Any, Any] = {}
    """The answer's data by the type that it was read as. Shared by all who ask, until the data changes."""


class _Kept(msgspec.Struct):
    answer: RegionAnswer | None = None
    parsed: dict[Any, Any] = {}
    asked_s: float = 0.0
    asking: asyncio.Task[str] | None = None


class RegionHub:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._streams: dict[str, list[asyncio.Queue[RegionQuery | None]]] = {}
        self._pending: dict[str, asyncio.Future[RegionAnswer]] = {}
        self._kept: dict[tuple[str, str, tuple[tuple[str, str], ...], str], _Kept] = {}

    def connect(self, region: str) -> asyncio.Queue[RegionQuery | None]:
        queue: asyncio.Queue[RegionQuery | None] = asyncio.Queue()
        self._streams.setdefault(region, []).append(queue)
        return queue

    def disconnect(self, region: str, queue: asyncio.Queue[RegionQuery | None]) -> None:
        left = [held for held in self._streams.get(region, []) if held is not queue]
        if left:
            self._streams[region] = left
        else:
            self._streams.pop(region, None)

    def resolve(self, region: str, query: str, body: bytes) -> bool:
        """Takes a region's answer. Returns whether anyone still waits for it."""
        waiting = self._pending.get(query)
        if waiting is None or waiting.done() or not query.startswith(f"{region}."):
            return False
        try:
            waiting.set_result(_decoder.decode(body))
        except msgspec.DecodeError as wrong:
            waiting.set_result(RegionAnswer(as_of=self._ports.clock.now(), error=f"unreadable answer ({wrong})"))
        return True

    async def ask_all(
        self, regions: Iterable[str], name: str, viewer: Viewer, **parameters: str
    ) -> dict[str, KnownAnswer]:
        """The answers of these regions, asked at the same time."""
        names = list(regions)
        found = await asyncio.gather(*(self.ask(region, name, viewer, **parameters) for region in names))
        return dict(zip(names, found, strict=True))

    async def ask(self, region: str, name: str, viewer: Viewer, **parameters: str) -> KnownAnswer:
        if not viewer.reaches(region):
            return KnownAnswer(region, None, limited_reason(region))
        key = (region, name, tuple(sorted(parameters.items())), viewer.scope)
        kept = self._kept.pop(key, None) or _Kept()
        self._kept[key] = kept  # at the end: recently used
        while len(self._kept) > ANSWERS_KEPT:
            self._kept.pop(next(iter(self._kept)))
        now_s = self._ports.clock.monotonic()
        if kept.answer is not None and now_s - kept.asked_s < FRESH_S:
            return KnownAnswer(region, kept.answer, parsed=kept.parsed)
        if kept.asking is None or kept.asking.done():
            kept.asking = asyncio.ensure_future(self._ask(region, name, viewer, parameters, kept))
        problem = await asyncio.shield(kept.asking)
        return KnownAnswer(region, kept.answer, problem, kept.parsed)

    async def _ask(self, region: str, name: str, viewer: Viewer, parameters: dict[str, str], kept: _Kept) -> str:
        """Asks once and keeps the answer. Returns why there is none."""
        timeout_s = PAST_ANSWER_TIMEOUT_S if AT in parameters else ANSWER_TIMEOUT_S
        held = kept.answer
        found = await self._send(
            region, name, viewer, parameters, timeout_s, known=held.etag if held is not None else ""
        )
        if isinstance(found, str):
            return found
        if found.unchanged and held is not None:
            found = msgspec.structs.replace(found, data=held.data, unchanged=False)
        else:
            kept.parsed = {}
        kept.answer, kept.asked_s = found, self._ports.clock.monotonic()
        return ""

    async def call(self, region: str, viewer: Viewer, request: RegionRequest) -> RegionResponse:
        """A request to the region's API on behalf of the caller. Never repeated, never answered from an older one."""
        if not viewer.reaches(region):
            raise Forbidden(limited_reason(region))
        parameters: dict[str, str] = msgspec.to_builtins(request)
        found = await self._send(region, CALL, viewer, parameters, CALL_TIMEOUT_S + ANSWER_TIMEOUT_S)
        if isinstance(found, str):
            raise Unavailable(f"{found}; next: look at the object, then try again")
        return msgspec.convert(found.data, RegionResponse)

    def new_id(self, region: str) -> str:
        return f"{region}.{self._ports.ids.uid()}"

    async def ask_session(self, region: str, viewer: Viewer, session_id: str, request: RegionRequest) -> str:
        """Asks the region to open a session. Returns why it did not: the region answers only then."""
        parameters: dict[str, str] = msgspec.to_builtins(request)
        found = await self._send(region, SESSION, viewer, parameters, SESSION_OPEN_TIMEOUT_S, session_id)
        return found if isinstance(found, str) else f"region {region} did not open the session"

    async def _send(  # noqa: PLR0917 - a query, in the order of its fields
        self,
        region: str,
        name: str,
        viewer: Viewer,
        parameters: dict[str, str],
        timeout_s: float,
        query: str = "",
        known: str = "",
    ) -> RegionAnswer | str:
        """The region's answer, or why there is none."""
        streams = self._streams.get(region)
        if not streams:
            return f"region {region[:100]} is not connected to the console of this cell"
        if len(self._pending) >= QUERIES_PENDING_MAX:
            return "too many queries in flight"
        query = query or self.new_id(region)
        future: asyncio.Future[RegionAnswer] = asyncio.get_running_loop().create_future()
        self._pending[query] = future
        try:
            # The newest stream: an older one may be a connection that died unnoticed.
            asked = RegionQuery(
                id=query, name=name, parameters=parameters, user=viewer.name, groups=viewer.groups, known=known
            )
            streams[-1].put_nowait(asked)
            async with asyncio.timeout(timeout_s):
                found = await future
        except TimeoutError:
            return f"region {region} did not answer within {timeout_s:g} s"
        finally:
            self._pending.pop(query, None)
        return found.error or found


def limited_reason(region: str) -> str:
    return f"your token is not valid in region {region[:100]}"


class PastHub:
    """Asks regions about a moment in the past."""

    def __init__(self, hub: RegionHub, at_s: float) -> None:
        self._hub = hub
        self._at = f"{at_s:.3f}"

    async def ask_all(
        self, regions: Iterable[str], name: str, viewer: Viewer, **parameters: str
    ) -> dict[str, KnownAnswer]:
        return await self._hub.ask_all(regions, name, viewer, **parameters, at=self._at)

    async def ask(self, region: str, name: str, viewer: Viewer, **parameters: str) -> KnownAnswer:
        return await self._hub.ask(region, name, viewer, **parameters, at=self._at)
