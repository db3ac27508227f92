"""The queries that a regional cell answers, by name. The caller's access is checked again here, in the region."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.console import region_decisions, region_details, region_what_if
from holdfast.console.answers import RegionAnswer, RegionQuery
from holdfast.console.node_rows import RESOURCES
from holdfast.console.past import CellHistory
from holdfast.console.region_hub import AT
from holdfast.console.region_reads import RegionReader
from holdfast.console.viewer import Viewer, asserted_viewer, read_refusal
from holdfast.model.errors import BadRequest, Fault, Forbidden

Parameters = dict[str, str]
Handler = Callable[[RegionReader, Viewer, Parameters], Awaitable[Any]]

# Part of a core that one kind of query may use.
BUSY_SHARE = 0.025
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
        reader, viewer, parameters.get("assignments", "[]"), parameters.get("ended", "[]")
    )


QUERIES: dict[str, Handler] = {
    "summary": _summary,
    "map": _map,
    "node": _node,
    "workload": _workload,
    "decision": _decision,
    "decisions": _decisions,
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


class RegionAnswers:
    """Answers queries, and repeats an expensive answer, with its time, until enough time has passed: so the console
    never uses more than BUSY_SHARE of a core per kind of query, however large the region is."""

    def __init__(self, reader: RegionReader, history: CellHistory[RegionReader]) -> None:
        self._reader = reader
        self._history = history
        self._handlers: dict[str, Handler] = {**QUERIES, "history": self._range}
        self._kept: dict[tuple[str, ...], tuple[float, RegionAnswer]] = {}

    async def _range(self, reader: RegionReader, viewer: Viewer, parameters: Parameters) -> Any:
        return await self._history.range()

    async def answer(self, query: RegionQuery) -> RegionAnswer:
        """The answer, with an error in place of data if there is none. Never raises a fault."""
        reader, clock = self._reader, self._reader.ports.clock
        now_s, began_s = clock.now(), clock.monotonic()
        try:
            handler = self._handlers.get(query.name)
            if handler is None:
                raise BadRequest(f"query {query.name[:40]}: unknown in this release of region {reader.region}")
            viewer = asserted_viewer(query.user, query.groups)
            key = (query.name, viewer.scope, *(f"{k}={v}" for k, v in sorted(query.parameters.items())))
            until_s, kept = self._kept.get(key, (0.0, None))
            if kept is not None and began_s < until_s:
                return kept
            if AT in query.parameters:
                reader, moment = await self._history.reader(parse_moment(query.parameters[AT]))
                data, now_s = await handler(reader, viewer, query.parameters), moment.at_s
            else:
                data = await handler(reader, viewer, query.parameters)
        except Fault as fault:
            return RegionAnswer(as_of=now_s, revision=reader.revision(), error=fault.message)
        found = RegionAnswer(as_of=now_s, revision=reader.revision(), data=data)
        cost_s = clock.monotonic() - began_s
        self._kept.pop(key, None)
        self._kept[key] = (began_s + cost_s / BUSY_SHARE, found)
        while len(self._kept) > ANSWERS_KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        return found
