"""Requests of a signed-in user to the API of a region, carried over the region's uplink.

A region accepts only the requests of `PERMITTED`, whoever asks: a global cell in wrong hands can close and drain nodes,
read logs, nodes, placements and use, and open sessions with tasks, whose commands it chooses anyway, and nothing else.
The region authorizes, audits and answers each request as its own API does.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from holdfast.client.contract import SessionLink
from holdfast.console.answers import AnswerRow
from holdfast.model.principal import Principal

CALL = "call"
"""Name of the query that carries a request."""

SESSION = "session"
"""Name of the query that asks the region to open a session with a task, by the query's id."""

READ_IN_REGIONS = ("nodes", "pods", "replicas", "schedulingrequests")
"""Resources of regions that the API of the global cell reads for its clients."""

PERMITTED = frozenset(
    {
        ("patch", "nodes", ""),
        ("get", "pods", "log"),
        *(("create", "pods", session) for session in ("exec", "attach", "portforward")),
        ("call", "nodes", "usage"),
        ("get", "metrics", ""),
        *((verb, plural, "") for verb in ("get", "list", "watch") for plural in READ_IN_REGIONS),
    }
)
"""Verb, resource and subresource of the requests that a region accepts over its uplink."""

NODE_FIELDS = frozenset({"unschedulable", "drain", "drainSeconds"})
"""Fields of a node's spec that a request over the uplink may change."""

# Longest body of a request. The uplink sends a query as one line, which the region's client limits to 128 KiB.
CALL_BODY_CHARS_MAX = 16 * 1024
# Longest response. The rest is cut off; a log is asked for with a lower limit.
CALL_RESPONSE_BYTES_MAX = 1024 * 1024
# Time that a region has for one request. After that, it is answered with 504.
CALL_TIMEOUT_S = 8.0
# Time for the region to open its side of a session. After that, the page is told so.
SESSION_OPEN_TIMEOUT_S = 10.0


class RegionRequest(AnswerRow, frozen=True, kw_only=True):
    method: str
    path: str
    query: str = ""
    body: str = ""
    content_type: str = ""
    accept: str = ""


class RegionResponse(AnswerRow, frozen=True, kw_only=True):
    code: int
    body: str = ""
    content_type: str = "application/json"
    cut: bool = False
    """Whether the end of the body is missing because the response reached its limit."""


class RegionApi(Protocol):
    """The API of this region, in this process."""

    async def call(self, who: Principal, request: RegionRequest) -> RegionResponse: ...

    async def run_session(self, who: Principal, request: RegionRequest, link: SessionLink) -> None:
        """Runs the session to its end. A refusal is sent as its outcome. Raises ConnectionError."""


class RegionSessionOpener(Protocol):
    def open_region_session(self, region: str, session_id: str) -> AbstractAsyncContextManager[SessionLink]: ...
