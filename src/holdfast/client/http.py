"""The client over HTTP: typed objects, pooled connections, TLS, a deadline on every call.

- Nothing below this client repeats a write. A commit without a response is read back first (`client.readback`).
- Reads are retried within a retry budget, with jittered backoff, and not before an overloaded server's Retry-After.
- A fault says whether the call may have taken effect: after `Unavailable` and `Overloaded` it did not, after
  `Ambiguous` it is unknown.

A watch over HTTP does not know previous states: `WatchEvent.old` is None. Informers keep their own cache.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from holdfast import __version__
from holdfast.client import readback, wire
from holdfast.client.certificate_calls import CertificateCalls
from holdfast.client.contract import CommitReceipt, FencingToken, Listing, WatchEvent
from holdfast.client.resources import (
    ListPage,
    client_tls_context,
    decode_shared_page,
    fault_from,
    field_selector_query,
    is_outcome_unknown,
    resource_path,
)
from holdfast.client.server_urls import split_urls
from holdfast.client.session_socket import SESSION_PROTOCOL, SessionSocket
from holdfast.client.watch_lines import WATCH_LINE_BYTES_MAX, WATCH_SILENCE_S, parse_shared_events
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.foundation.retry_budget import RetryBudget
from holdfast.model import limits
from holdfast.model.agent_rpc import AgentCall
from holdfast.model.config_values import ConfigVersion, ConfigVersions, TaskValues
from holdfast.model.errors import Ambiguous, Expired, Fault, NotFound, Overloaded, Unavailable
from holdfast.model.kinds import BY_NAME, kind_of
from holdfast.model.meta import ApiStruct, Object
from holdfast.model.placement_api import BindRequest, PlacementResponse, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.pod_session import SESSION_MESSAGE_BYTES_MAX
from holdfast.model.registry_login import RegistryLogin
from holdfast.model.writes import Notice, Write

# Time to open a connection. After that, the call fails as Unavailable.
CONNECT_DEADLINE_S = 3.0
# Time for one call other than a commit. After that, the call fails as Unavailable.
CALL_DEADLINE_S = 10.0
# Connections of one client for calls. Further calls wait for a free one; watches have their own.
HTTP_CONNECTIONS_MAX = 64

# Statuses with which a server says that it cannot serve the cell now, for example without its etcd.
_SERVER_CANNOT = frozenset({502, 503, 504})

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object
T = TypeVar("T")


class _BriefClient:
    """A client whose commits return only their revision."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        return await self._client.get(kind, name, namespace)

    async def commit_once(self, writes: Sequence[Write], *, token: FencingToken | None = None) -> CommitReceipt:
        return await self._client.commit_once(writes, token=token, brief=True)


class HttpClient(CertificateCalls):
    """Implements `client.contract.Client`. Authenticates with a client certificate (`cert`, `key`) or a bearer
    `token`. `base_url` may name several servers of the cell, separated by commas: if one does not answer, later calls
    go to the next. No call is sent to two servers.
    """

    def __init__(
        self,
        base_url: str,
        ports: Ports,
        *,
        cell: str,
        ca: str = "",
        cert: str = "",
        key: str = "",
        token: str = "",
        call_deadline_s: float = CALL_DEADLINE_S,
        commit_deadline_s: float = limits.COMMIT_DEADLINE_S,
    ) -> None:
        self._urls = split_urls(base_url)
        self._base_url = self._urls[0]
        self._ports = ports
        self._cell = cell
        self._call_deadline_s = call_deadline_s
        self._commit_deadline_s = commit_deadline_s
        self._ca, self._cert, self._key = ca, cert, key
        self._ssl: ssl.SSLContext | bool = (
            client_tls_context(ca, cert, key) if self._base_url.startswith("https:") else True
        )
        self._headers = {"User-Agent": f"holdfast/{__version__}", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._budget = RetryBudget(ports.clock)
        self._calls: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None
        """Watches have their own connections, so that they never exhaust the pool of the calls."""
        self._retired: list[aiohttp.ClientSession] = []
        self._of_one_server: list[HttpClient] = []

    @property
    def cell(self) -> str:
        return self._cell

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers of the cell that this client knows."""
        return self._urls

    def use_servers(self, urls: Sequence[str]) -> None:
        """Replaces the known servers. The one in use stays in use if it is among them."""
        if urls:
            self._urls = tuple(urls)
            self._base_url = self._base_url if self._base_url in self._urls else self._urls[0]

    def of_server(self, url: str) -> HttpClient:
        """A client of one server alone, with the same credentials, until `drop_server_client`."""
        made = HttpClient(url, self._ports, cell=self._cell, ca=self._ca, cert=self._cert, key=self._key)
        made._headers = self._headers
        self._of_one_server.append(made)
        return made

    async def drop_server_client(self, client: HttpClient) -> None:
        if client in self._of_one_server:
            self._of_one_server.remove(client)
        await client.close()

    def _server_failed(self, url: str) -> None:
        """Later calls go to the next server, unless another call has noticed the failure before."""
        if url == self._base_url and len(self._urls) > 1:
            following = (self._urls.index(url) + 1) % len(self._urls) if url in self._urls else 0
            self._base_url = self._urls[following]
            metrics.CLIENT_FAILOVERS.labels(self._cell).inc()

    # Reads

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        row = kind_of(kind)

        async def once() -> O | None:
            try:
                body = await self._call("GET", resource_path(row, namespace, name), verb="get")
            except NotFound:
                return None
            found: O = wire.decode_object(body, row)  # type: ignore[assignment]
            return found

        return await self._retry_read("get", once)

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        """All pages as of one revision. If that revision is compacted before the last page, it starts over."""
        for attempt in range(limits.READ_ATTEMPTS):
            try:
                return await self._list_once(kind, namespace, fields)
            except Expired:
                if attempt == limits.READ_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _list_once(self, kind: type[O], namespace: str, fields: Mapping[str, str] | None) -> Listing[O]:
        row = kind_of(kind)
        items: list[O] = []
        following = ""
        while True:
            query = {"limit": str(limits.LIST_PAGE_OBJECTS), **field_selector_query(fields)}
            if following:
                query["continue"] = following

            async def once(query: dict[str, str] = query) -> ListPage:
                return decode_shared_page(
                    row, await self._call("GET", resource_path(row, namespace), query=query, verb="list")
                )

            page = await self._retry_read("list", once)
            items += page.items
            following = page.continue_token
            if not following:
                return Listing(items=tuple(items), revision=page.revision)

    async def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        """One stream, until it ends; the caller resumes."""
        row = kind_of(kind)
        query = {
            "watch": "true",
            "resourceVersion": str(after),
            "allowWatchBookmarks": "true",
            **field_selector_query(fields),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_DEADLINE_S, sock_read=WATCH_SILENCE_S)
        server = self._base_url
        where = f"watch of {row.plural} at {server}"
        try:
            async with self._session(watches=True).get(
                server + resource_path(row, namespace), params=query, timeout=timeout, ssl=self._ssl
            ) as response:
                if response.status != 200:
                    raise fault_from(response.status, await response.read(), response.headers.get("Retry-After", ""))
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > WATCH_LINE_BYTES_MAX:
                        raise Unavailable(f"{where}: line too long (limit {WATCH_LINE_BYTES_MAX} bytes)")
                    batch = parse_shared_events(row, lines)
                    if batch:
                        yield batch
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            self._server_failed(server)
            raise Unavailable(f"{where}: interrupted ({error or type(error).__name__})") from error
        raise Unavailable(f"{where}: ended by the server")

    # Agent calls

    async def agent_calls(self, node: str) -> AsyncIterator[AgentCall]:
        """The calls for a node's agent, until the stream ends; the caller reconnects."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_DEADLINE_S, sock_read=2.5 * limits.AGENT_CALL_KEEPALIVE_S
        )
        url = f"{self._base_url}/node/v1/{quote(node)}/calls"
        try:
            async with self._session(watches=True).get(url, timeout=timeout, ssl=self._ssl) as response:
                if response.status != 200:
                    raise fault_from(response.status, await response.read(), response.headers.get("Retry-After", ""))
                async for line in response.content:
                    if line.strip():
                        yield msgspec.json.decode(line, type=AgentCall)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"agent calls at {self._base_url}: stream interrupted ({why})") from error

    async def send_response(self, node: str, call_id: str, data: bytes, *, end: bool) -> bool:
        """Sends a part of a response. Returns False if the caller has disconnected."""
        path = f"/node/v1/{quote(node)}/responses/{quote(call_id)}"
        query = {"end": "true"} if end else {}
        response = await self._call("POST", path, body=data, query=query, verb="response")
        return bool(msgspec.json.decode(response).get("more"))

    def open_session(self, node: str, session_id: str) -> AbstractAsyncContextManager[SessionSocket]:
        """The agent's side of a session that the region asked for. Raises Unavailable."""
        return self._socket(f"/node/v1/{quote(node)}/sessions/{quote(session_id)}")

    @asynccontextmanager
    async def _socket(self, path: str) -> AsyncGenerator[SessionSocket]:
        url = self._base_url + path
        try:
            # The server's pings keep the connection alive. It does not answer ours while its client reads slowly.
            opened = await self._session(watches=True).ws_connect(
                url, ssl=self._ssl, protocols=(SESSION_PROTOCOL,), max_msg_size=2 * SESSION_MESSAGE_BYTES_MAX
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"session at {self._base_url}: not opened ({error})") from error
        try:
            yield SessionSocket(opened)
        finally:
            await opened.close()

    # Console queries

    async def region_queries(self, region: str) -> AsyncIterator[bytes]:
        """The console's queries to a region, one JSON document each, until the stream ends; the caller reconnects."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_DEADLINE_S, sock_read=2.5 * limits.AGENT_CALL_KEEPALIVE_S
        )
        url = f"{self._base_url}/region/v1/{quote(region)}/queries"
        try:
            async with self._session(watches=True).get(url, timeout=timeout, ssl=self._ssl) as response:
                if response.status != 200:
                    raise fault_from(response.status, await response.read(), response.headers.get("Retry-After", ""))
                async for line in response.content:
                    if line.strip():
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"console queries at {self._base_url}: stream interrupted ({why})") from error

    async def answer_region_query(self, region: str, query: str, data: bytes) -> None:
        path = f"/region/v1/{quote(region)}/answers/{quote(query)}"
        await self._call("POST", path, body=data, verb="console_answer")

    def open_region_session(self, region: str, session_id: str) -> AbstractAsyncContextManager[SessionSocket]:
        """The region's side of a session that the console of the global cell asked for. Raises Unavailable."""
        return self._socket(f"/region/v1/{quote(region)}/sessions/{quote(session_id)}")

    # Secrets and ConfigMaps

    async def region_config(self, region: str) -> ConfigVersions:
        body = await self._call("GET", f"/region/v1/{quote(region)}/config", verb="config")
        return msgspec.json.decode(body, type=ConfigVersions)

    async def region_config_object(self, region: str, version: ConfigVersion) -> Object:
        path = f"/region/v1/{quote(region)}/config/{version.kind}/{quote(version.namespace)}/{quote(version.name)}"
        return wire.decode_object(await self._call("GET", path, verb="config"), BY_NAME[version.kind])

    async def task_values(self, node: str, tenant: str, binding: str) -> TaskValues:
        path = f"/node/v1/{quote(node)}/values/{quote(tenant)}/{quote(binding)}"
        return msgspec.json.decode(await self._call("GET", path, verb="values"), type=TaskValues)

    async def registry_login(self, node: str, tenant: str, binding: str) -> RegistryLogin:
        path = f"/node/v1/{quote(node)}/registry-login/{quote(tenant)}/{quote(binding)}"
        return msgspec.json.decode(await self._call("GET", path, verb="values"), type=RegistryLogin)

    # Writes

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        return await readback.commit(_BriefClient(self) if brief else self, writes, token=token, ports=self._ports)

    async def commit_once(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        """Sends once; raises `Ambiguous` if there is no response. Callers use `commit`."""
        body = wire.encode_commit(writes, token, brief=brief)
        response = await self._call(
            "POST", wire.COMMIT_PATH, body=body, verb="commit", deadline_s=self._commit_deadline_s
        )
        try:
            return wire.decode_committed(response)
        except (msgspec.DecodeError, Fault) as error:
            raise Ambiguous(f"commit at {self._base_url}: cannot decode the response ({error})") from error

    async def reserve(self, request: ReserveRequest) -> PlacementResponse:
        return await self.call_placement("reserve", request)

    async def bind(self, request: BindRequest) -> PlacementResponse:
        return await self.call_placement("bind", request)

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        return await self.call_placement("release", request, token=token)

    async def renew(self, request: RenewRequest) -> PlacementResponse:
        return await self.call_placement("renew", request)

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        if notices:
            await self._call(
                "POST", wire.NOTIFY_PATH, body=wire.encode_notify(notices, component=component), verb="notify"
            )

    async def call_placement(
        self,
        action: str,
        request: ApiStruct,
        *,
        token: FencingToken | None = None,
        headers: dict[str, str] | None = None,
    ) -> PlacementResponse:
        """Items carry their identity (replica, template, attempt; node, epoch), so the caller may safely retry."""
        body = msgspec.json.encode(request)
        token_header = {} if token is None else {wire.TOKEN_HEADER: wire.encode_token(token)}
        path = f"{wire.PLACEMENT_PATH}/{action}"
        response = await self._call(
            "POST",
            path,
            body=body,
            headers=token_header | (headers or {}),
            verb=action,
            deadline_s=self._commit_deadline_s,
        )
        try:
            return msgspec.json.decode(response, type=PlacementResponse)
        except msgspec.DecodeError as error:
            raise Ambiguous(f"{action} at {self._base_url}: cannot decode the response ({error})") from error

    async def reload_certificate(self) -> None:
        """Reads `ca`, `cert` and `key` again. New calls use the new certificate; calls in flight continue.

        Connections with the old certificate stay open until the next reload, for calls in flight on them.
        """
        if not isinstance(self._ssl, ssl.SSLContext) or not self._cert:
            return
        self._ssl = client_tls_context(self._ca, self._cert, self._key)
        before, self._retired = self._retired, [s for s in (self._calls, self._watches) if s is not None]
        self._calls = self._watches = None
        for session in before:
            await session.close()
        for client in self._of_one_server:
            await client.reload_certificate()

    async def close(self) -> None:
        for session in (self._calls, self._watches, *self._retired):
            if session is not None:
                await session.close()
        self._calls = self._watches = None
        self._retired = []
        for client in self._of_one_server:
            await client.close()
        self._of_one_server = []

    # Single calls and retried reads

    async def _call(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> bytes:
        """One request, never retried. Raises the fault of its response, or of a missing response."""
        began = self._ports.clock.monotonic()
        outcome = "ok"
        try:
            sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
            return await self._send(
                method, path, query=query or {}, body=body, headers=sent, deadline_s=deadline_s or self._call_deadline_s
            )
        except Fault as fault:
            outcome = fault.reason
            raise
        finally:
            metrics.CLIENT_CALLS.labels(verb, outcome).observe(max(0.0, self._ports.clock.monotonic() - began))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
        deadline_s: float,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_DEADLINE_S)
        server = self._base_url
        where = f"{method} {server}{path}"
        no_response: type[Fault] = Unavailable if method == "GET" else Ambiguous
        try:
            async with self._session().request(
                method, server + path, params=query, data=body, headers=headers, timeout=timeout, ssl=self._ssl
            ) as response:
                content = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._server_failed(server)
            raise Unavailable(f"{where}: cannot connect ({error or 'timed out'})") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._server_failed(server)
            why = str(error) or type(error).__name__
            raise no_response(f"{where}: no response within {deadline_s:g} s ({why})") from error
        if response.status < 400:
            return content
        if response.status in _SERVER_CANNOT:
            self._server_failed(server)
        if method != "GET" and is_outcome_unknown(response.status, content):
            raise Ambiguous(f"{where}: status {response.status}, which leaves open whether the write happened")
        raise fault_from(response.status, content, response.headers.get("Retry-After", ""))

    async def _retry_read(self, verb: str, once: Callable[[], Awaitable[T]]) -> T:
        """A read, retried after transient faults as far as the retry budget allows."""
        backoff = Backoff(self._ports.random)
        for attempt in range(limits.READ_ATTEMPTS):
            try:
                return await once()
            except (Unavailable, Overloaded, Ambiguous) as fault:
                if attempt == limits.READ_ATTEMPTS - 1:
                    raise
                if not self._budget.take():
                    metrics.CLIENT_RETRIES_SUPPRESSED.labels(verb).inc()
                    raise
                metrics.CLIENT_RETRIES.labels(verb).inc()
                await self._ports.clock.sleep(max(backoff.next_s(), fault.retry_after_s))
        raise AssertionError("unreachable")

    def _session(self, *, watches: bool = False) -> aiohttp.ClientSession:
        """Sessions are created on first use, because they need the running event loop."""
        if watches:
            if self._watches is None:
                self._watches = self._new_session(0)
            return self._watches
        if self._calls is None:
            self._calls = self._new_session(HTTP_CONNECTIONS_MAX)
        return self._calls

    def _new_session(self, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=30.0)
        return aiohttp.ClientSession(connector=connector, headers=self._headers, auto_decompress=True)
