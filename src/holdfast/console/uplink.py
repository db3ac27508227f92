"""The region's connection for the console. Regions connect to the global cell, never the other way: so the region holds
a stream open, receives queries on it, and posts the answers.

Not part of any decision: if the connection fails, pages show older facts, and nothing else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
import structlog

from holdfast.console.answers import RegionAnswer, RegionQuery
from holdfast.console.node_usage import NodeUsage
from holdfast.console.past import CellHistory
from holdfast.console.region_calls import CALL, SESSION, RegionApi, RegionRequest, RegionSessionOpener
from holdfast.console.region_hub import AT
from holdfast.console.region_queries import RegionAnswers
from holdfast.console.region_reads import RegionReader
from holdfast.console.viewer import asserted_principal
from holdfast.foundation.backoff import Backoff
from holdfast.model.errors import Fault

# Queries that a region answers at the same time. Further ones wait.
QUERIES_AT_ONCE = 4
# Requests to the region's API that run at the same time. A slow agent must not delay the queries of pages.
CALLS_AT_ONCE = 4
# Polls of watches that run at the same time. Each takes about a second and must not delay other requests.
WATCH_POLLS_AT_ONCE = 8
# Queries about the past and what-if questions that are answered at the same time. They must not delay live pages.
SLOW_QUERIES_AT_ONCE = 2
# Queries that wait. Further ones are dropped; the page asks again.
QUERIES_WAITING_MAX = 64
# Sessions with tasks that are open at the same time through the console. Further ones are refused.
UPLINK_SESSIONS_MAX = 64

_log = structlog.get_logger()
_decoder = msgspec.json.Decoder(RegionQuery)
_encoder = msgspec.json.Encoder()


class UplinkClient(RegionSessionOpener, Protocol):
    """What the uplink needs of a client of the global cell."""

    def region_queries(self, region: str) -> AsyncIterator[bytes]: ...

    async def answer_region_query(self, region: str, query: str, data: bytes) -> None: ...


class ConsoleUplink:
    def __init__(
        self, client: UplinkClient, reader: RegionReader, history: CellHistory[RegionReader], api: RegionApi
    ) -> None:
        self._client = client
        self._reader = reader
        self._api = api
        self._usage = NodeUsage(api, reader.ports)
        self._answers = RegionAnswers(reader, history)
        self._answering: set[asyncio.Task[None]] = set()
        self._sessions: set[asyncio.Task[None]] = set()
        self._seats = asyncio.Semaphore(QUERIES_AT_ONCE)
        self._call_seats = asyncio.Semaphore(CALLS_AT_ONCE)
        self._slow_seats = asyncio.Semaphore(SLOW_QUERIES_AT_ONCE)
        self._watch_seats = asyncio.Semaphore(WATCH_POLLS_AT_ONCE)

    async def start(self) -> None:
        """Connects when it runs."""

    async def stop(self) -> None:
        self._usage.stop()
        for task in (*self._answering, *self._sessions):
            task.cancel()

    async def run(self) -> None:
        backoff = Backoff(self._reader.ports.random)
        while True:
            try:
                async for line in self._client.region_queries(self._reader.region):
                    backoff.reset()
                    self._take(_decoder.decode(line))
            except (Fault, msgspec.DecodeError) as fault:
                _log.debug("console_uplink_interrupted", message=str(fault))
            await self._reader.ports.clock.sleep(backoff.next_s())

    def _take(self, query: RegionQuery) -> None:
        opens = query.name == SESSION and len(self._sessions) < UPLINK_SESSIONS_MAX
        tasks = self._sessions if opens else self._answering
        if not opens and len(tasks) >= QUERIES_WAITING_MAX:
            return
        task = asyncio.ensure_future(self._session(query) if opens else self._answer(query))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _session(self, query: RegionQuery) -> None:
        """Opens the session that the console asks for, and runs it to its end under the user's name."""
        region = self._reader.region
        try:
            who = asserted_principal(query.user, query.groups)
            request = msgspec.convert(query.parameters, RegionRequest)
            async with self._client.open_region_session(region, query.id) as link:
                await self._api.run_session(who, request, link)
        except (Fault, ConnectionError, msgspec.ValidationError) as wrong:
            _log.debug("console_session_failed", query=query.id, message=str(wrong))
        except Exception:
            await _log.aexception("console_session_failed", query=query.id)

    async def _answer(self, query: RegionQuery) -> None:
        async with self._seats_of(query):
            try:
                if query.name == "map" and AT not in query.parameters:
                    self._refresh_usage(query)
                await self._client.answer_region_query(self._reader.region, query.id, await self._found(query))
            except Fault as fault:
                _log.debug("console_answer_failed", query=query.name, message=fault.message)
            except Exception:
                await _log.aexception("console_query_failed", query=query.name)

    async def _found(self, query: RegionQuery) -> bytes:
        if query.name == SESSION:
            error = f"region {self._reader.region}: too many open sessions (limit {UPLINK_SESSIONS_MAX})"
            return _encoder.encode(RegionAnswer(as_of=self._reader.ports.clock.now(), error=error))
        if query.name == CALL:
            return _encoder.encode(await self._call(query))
        return await self._answers.encoded(query)

    def _refresh_usage(self, query: RegionQuery) -> None:
        """The map shows what the agents answered last; the agents are asked anew now and then."""
        names = [node.name for node in self._reader.node_rows()]
        self._usage.refresh(asserted_principal(query.user, query.groups), names)
        self._reader.used = self._usage.used

    def _seats_of(self, query: RegionQuery) -> asyncio.Semaphore:
        if query.name == CALL:
            return self._watch_seats if query.parameters.get("query", "").startswith("watch=") else self._call_seats
        is_slow = AT in query.parameters or query.name.startswith("what-if")
        return self._slow_seats if is_slow else self._seats

    async def _call(self, query: RegionQuery) -> RegionAnswer:
        """Runs a request of a user in this region's API. The user's groups are those of people, whatever is claimed."""
        now_s, revision = self._reader.ports.clock.now(), self._reader.revision()
        try:
            who = asserted_principal(query.user, query.groups)
            request = msgspec.convert(query.parameters, RegionRequest)
        except (Fault, msgspec.ValidationError) as wrong:
            return RegionAnswer(as_of=now_s, revision=revision, error=str(wrong))
        return RegionAnswer(as_of=now_s, revision=revision, data=await self._api.call(who, request))
