"""The queries that a regional cell answers, by name. The caller's access is checked again here, in the region."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from holdfast.console import region_decisions, region_details, region_what_if
from holdfast.console.answers import RegionAnswer, RegionQuery
from holdfast.console.node_rows import RESOURCES
from holdfast.console.past import CellHistory
from holdfast.console.region_hub import AT
from holdfast.console.region_reads import RegionReader
from holdfast.console.viewer import Viewer, asserted_viewer, read_refusal
from holdfast.insight.shadow_comparison import compare_shadow
from holdfast.model.decision import Decision
from holdfast.model.errors import BadRequest, Fault, Forbidden

Parameters = dict[str, str]
Handler = Callable[[RegionReader, Viewer, Parameters], Awaitable[Any]]

_encoder = msgspec.json.Encoder()

# Part of a core that all queries together may use, once each was answered.
BUSY_SHARE = 0.025
# An answer that took at least this long counts as expensive.
EXPENSIVE_S = 0.001
# A query that was not asked for this long no longer counts for that share.
ASKED_WITHIN_S = 10.0
# Answers that a region keeps to repeat them. The oldest is dropped.
ANSWERS_KEPT_MAX = 64
# Latest time that a question may name: the year 9999.
MOMENT_MAX_S = 253_402_300_800.0
# Longest text that a search looks for. The rest is ignored.
SEARCH_CHARS_MAX = 100


async def _summary(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return reader.summary(viewer)


async def _map(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    refused = read_refusal(viewer, "nodes")
    if refused is not None:
        raise Forbidden(refused.message, facts=refused.facts)
    resource = parameters.get("resource", "cpu")
    if resource not in RESOURCES:
        raise BadRequest(f"resource {resource[:40]}: unknown (expected one of {', '.join(RESOURCES)})")
    return reader.map(viewer, resource)


async def _node(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return region_details.node_detail(reader, viewer, parameters.get("node", ""))


async def _workload(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    offset = parameters.get("offset", "0")
    where = int(offset) if offset.isdigit() and len(offset) < 8 else 0
    return region_details.workload_part(
        reader, viewer, parameters.get("tenant", ""), parameters.get("workload", ""), where
    )


async def _decision(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return await region_decisions.decision(reader, viewer, parameters.get("tenant", ""), parameters.get("decision", ""))


async def _decisions(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    found = region_details.decisions(reader, viewer)
    return found[: region_details.DECISIONS_MAX]


async def _shadow(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    if viewer.tenants is not None:
        raise Forbidden("shadow results: need access to all tenants; next: ask an operator for the viewer role")
    decisions = cast("list[Decision]", reader.all(Decision))
    return compare_shadow(reader.region, decisions, parameters.get("revision", ""))


async def _search(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return region_details.search(reader, viewer, parameters.get("text", "")[:SEARCH_CHARS_MAX])


async def _repairs(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return reader.repairs(viewer)


async def _system(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    refused = read_refusal(viewer, "leases")
    if refused is not None:
        raise Forbidden(refused.message, facts=refused.facts)
    return region_details.system(reader)


async def _what_if_drain(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return await region_what_if.drained(reader, viewer, parameters.get("node", ""))


async def _what_if_apply(reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
    return await region_what_if.applied(
        reader,
        viewer,
        parameters.get("assignments", "[]"),
        parameters.get("ended", "[]"),
        parameters.get("grants", "[]"),
    )


QUERIES: dict[str, Handler] = {
    "summary": _summary,
    "map": _map,
    "node": _node,
    "workload": _workload,
    "decision": _decision,
    "decisions": _decisions,
    "shadow": _shadow,
    "search": _search,
    "repairs": _repairs,
    "system": _system,
    "what-if-drain": _what_if_drain,
    "what-if-apply": _what_if_apply,
}


def parse_moment(text: str) -> float:
    """A time in seconds since the epoch, as an address carries it."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found < MOMENT_MAX_S:
        raise BadRequest(f"at: must be a time in seconds since the epoch, found {text[:40]}")
    return found


class _KeptAnswer(msgspec.Struct):
    """An answer with its time, the time that it took, and when it was computed and last asked for."""

    answer: RegionAnswer
    cost_s: float
    computed_s: float
    asked_s: float
    body: bytes = b""
    """The data as JSON, encoded once for all who ask."""


class RegionAnswers:
    """Answers queries, and repeats answers, with their time, until enough time has passed: so the console never uses
    more than BUSY_SHARE of a core for all its queries, however large the region is and however many pages are open."""

    def __init__(self, reader: RegionReader, history: CellHistory[RegionReader]) -> None:
        self._reader = reader
        self._history = history
        self._handlers: dict[str, Handler] = {**QUERIES, "history": self._range}
        self._kept: dict[tuple[str, ...], _KeptAnswer] = {}

    async def _range(self, reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
        return await self._history.range()

    async def encoded(self, query: RegionQuery) -> bytes:
        """The answer as it is sent: without its data if the global cell has that already."""
        found = await self._answer(query)
        if isinstance(found, RegionAnswer):
            return _encoder.encode(found)
        if query.known and query.known == found.answer.etag:
            return _encoder.encode(msgspec.structs.replace(found.answer, data=None, unchanged=True))
        return _encoder.encode(msgspec.structs.replace(found.answer, data=msgspec.Raw(found.body)))

    async def answer(self, query: RegionQuery) -> RegionAnswer:
        """The answer, with an error in place of data if there is none. Never raises a fault."""
        found = await self._answer(query)
        return found if isinstance(found, RegionAnswer) else found.answer

    async def _answer(self, query: RegionQuery) -> _KeptAnswer | RegionAnswer:
        reader, clock = self._reader, self._reader.ports.clock
        now_s, began_s = clock.now(), clock.monotonic()
        try:
            handler = self._handlers.get(query.name)
            if handler is None:
                raise BadRequest(f"query {query.name[:40]}: unknown in this release of region {reader.region}")
            viewer = asserted_viewer(query.user, query.groups)
            key = (query.name, viewer.scope, *(f"{k}={v}" for k, v in sorted(query.parameters.items())))
            kept = self._kept.get(key)
            if kept is not None:
                kept.asked_s = began_s
                if began_s < kept.computed_s + kept.cost_s * self._sharing(began_s) / BUSY_SHARE:
                    return kept
            if AT in query.parameters:
                reader, moment = await self._history.reader(parse_moment(query.parameters[AT]))
                data, now_s = await handler(reader, viewer, query.parameters), moment.at_s
            else:
                data = await handler(reader, viewer, query.parameters)
        except Fault as fault:
            return RegionAnswer(as_of=now_s, revision=reader.revision(), error=fault.message)
        body = _encoder.encode(data)
        etag = hashlib.blake2b(body, digest_size=9).hexdigest()
        found = RegionAnswer(as_of=now_s, revision=reader.revision(), data=data, etag=etag)
        fresh = _KeptAnswer(found, clock.monotonic() - began_s, began_s, began_s, body)
        self._kept.pop(key, None)
        self._kept[key] = fresh
        while len(self._kept) > ANSWERS_KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        return fresh

    def _sharing(self, now_s: float) -> int:
        """Expensive answers that are asked for at present: each gets an equal part of BUSY_SHARE."""
        asked = (k for k in self._kept.values() if now_s - k.asked_s < ASKED_WITHIN_S)
        return max(1, sum(k.cost_s >= EXPENSIVE_S for k in asked))
