"""Pages of objects that the global cell reads from regions for clients of its API, over the regions' uplinks.

A region is always asked anew. If it does not answer, its last answer to the same question is returned with the time at
which it was given, or nothing at all. Callers never get the answer that another caller was given.
"""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from holdfast.console.region_calls import RegionRequest, RegionResponse
from holdfast.console.region_hub import RegionHub
from holdfast.console.viewer import Viewer
from holdfast.foundation.ports import Clock
from holdfast.model.errors import Expired, Fault

# Objects of one page that a region is asked for. A page must stay below the limit of a response over the uplink.
REGION_PAGE_OBJECTS = 400
# Size of the answers that are kept for regions that stop answering. The one that was used least recently is dropped.
ANSWERS_KEPT_BYTES = 64 * 1024 * 1024


class RegionQuestion(msgspec.Struct, frozen=True):
    """One list or object of a region: its path, and the parameters and form that the client requested."""

    path: str
    parameters: tuple[tuple[str, str], ...] = ()
    accept: str = ""


class RegionReply(msgspec.Struct, frozen=True):
    """What a region answered at `at_s`. `problem` says why it does not answer now; `code` is 0 if it never did."""

    region: str
    code: int = 0
    body: bytes = b""
    at_s: float = 0.0
    problem: str = ""

    @property
    def is_current(self) -> bool:
        return not self.problem


_Key = tuple[str, str, tuple[str, ...], RegionQuestion, str]


class RegionLists:
    def __init__(self, hub: RegionHub, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock
        self._kept: dict[_Key, RegionReply] = {}
        self._kept_bytes = 0

    async def page(
        self, region: str, viewer: Viewer, question: RegionQuestion, *, limit: int, token: str = ""
    ) -> RegionReply:
        """At most `limit` objects, fewer if they would not fit into one response. Raises Expired for an old token."""
        size = min(limit, REGION_PAGE_OBJECTS)
        while True:
            paging = (("limit", str(size)), *((("continue", token),) if token else ()))
            found = await self._call(region, viewer, question, paging)
            if isinstance(found, RegionResponse) and found.cut and size > 1:
                size = max(1, size // 2)
                continue
            return self._noted(region, viewer, question, token, found)

    async def one(self, region: str, viewer: Viewer, question: RegionQuestion) -> RegionReply:
        return self._noted(region, viewer, question, "", await self._call(region, viewer, question, ()))

    async def changes(
        self, region: str, viewer: Viewer, question: RegionQuestion, *, after: str, window_s: int
    ) -> RegionReply:
        """The watch events within the next `window_s`. The last one is a bookmark."""
        watch = (
            ("watch", "true"),
            ("resourceVersion", after),
            ("timeoutSeconds", str(window_s)),
            ("allowWatchBookmarks", "true"),
        )
        found = await self._call(region, viewer, question, watch)
        if isinstance(found, str):
            return RegionReply(region, problem=found)
        return RegionReply(region, found.code, found.body.encode(), self._clock.now())

    async def _call(
        self, region: str, viewer: Viewer, question: RegionQuestion, more: tuple[tuple[str, str], ...]
    ) -> RegionResponse | str:
        """The region's response, or why there is none."""
        query = urlencode((*more, *question.parameters))
        request = RegionRequest(method="GET", path=question.path, query=query, accept=question.accept)
        try:
            return await self._hub.call(region, viewer, request)
        except Fault as fault:
            return fault.message.partition("; next:")[0]

    def _noted(
        self, region: str, viewer: Viewer, question: RegionQuestion, token: str, found: RegionResponse | str
    ) -> RegionReply:
        key = (region, viewer.name, viewer.groups, question, token)
        if isinstance(found, str):
            before = self._kept.get(key)
            if before is None:
                return RegionReply(region, problem=found)
            return msgspec.structs.replace(before, problem=found)
        if found.code == Expired.code:
            raise Expired(f"region {region}: the list has changed too much since its first page; next: start again")
        if found.code >= 500 or found.code == 429:
            return self._noted(region, viewer, question, token, f"region {region} answered {found.code}")
        reply = RegionReply(region, found.code, found.body.encode(), self._clock.now())
        if found.code == 200:
            self._keep(key, reply)
        return reply

    def _keep(self, key: _Key, reply: RegionReply) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes += len(reply.body) - (len(before.body) if before is not None else 0)
        self._kept[key] = reply  # at the end: recently used
        while self._kept_bytes > ANSWERS_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))).body)


# Lists whose revisions are kept. A watch from an older list is refused, and the client lists again.
LIST_REVISIONS_KEPT = 1024


class ListRevisions:
    """The resourceVersion of a list over regions: a rising number that stands for the revision of each region.

    Known only to the process that made the list. Another one answers a watch with Expired, as after a compaction.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._regions: dict[str, dict[str, str]] = {}

    def add(self, regions: dict[str, str]) -> str:
        self._last = max(self._last + 1, int(self._clock.now() * 1000))
        self._regions[str(self._last)] = dict(regions)
        while len(self._regions) > LIST_REVISIONS_KEPT:
            self._regions.pop(next(iter(self._regions)))
        return str(self._last)

    def find(self, revision: str) -> dict[str, str] | None:
        return self._regions.get(revision)
