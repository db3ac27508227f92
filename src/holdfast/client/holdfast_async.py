"""`AsyncHoldfast`: the same client as `Holdfast`, for programs that use asyncio.

Every request has a time limit. A read is repeated once. A write is sent once: if no reply came, it raises `Ambiguous`,
and the caller reads the object before it decides. Nothing is cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, overload

import aiohttp
import msgspec

from holdfast.client import cell_access
from holdfast.client.calls import (
    FIELD_MANAGER,
    ApiCall,
    apply_call,
    check_reply,
    decode_reply,
    delete_call,
    get_call,
    list_call,
    patch_call,
    refusal_fault,
    region_access,
    watch_call,
)
from holdfast.client.cell_access import CellAccess
from holdfast.client.contract import Listing
from holdfast.client.holdfast import CALL_S, WAIT_S, Holdfast
from holdfast.client.refusal_text import cell_label
from holdfast.client.resources import client_tls_context, decode_page
from holdfast.client.sync_api import PAGES_MAX
from holdfast.client.watch_cursor import Goal, WatchCursor, WatchedChange, deletion_timed_out, resume_delay_s
from holdfast.client.watch_lines import WATCH_LINE_BYTES_MAX, WATCH_SILENCE_S, parse_events
from holdfast.model.errors import Ambiguous, BadRequest, Expired, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.region import Region

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


Changes: TypeAlias = AsyncGenerator[WatchedChange[O], None]


class AsyncHoldfast:
    """The API of one cell. `connect_async` makes it; `region` returns the client of a regional cell."""

    def __init__(
        self, access: CellAccess, cell: str = "global", *, kubeconfig: Path | None = None, timeout_s: float = CALL_S
    ) -> None:
        self.cell = cell
        self._access = access
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        try:
            ca, cert, key = (str(path) if path is not None else "" for path in (access.ca, access.cert, access.key))
            self._tls = client_tls_context(ca, cert, key)
        except OSError as error:
            why = error.strerror or str(error)
            text = f"{access.url}: certificate or key not readable ({why}); next: check ca, cert and key"
            raise BadRequest(text) from error

    async def __aenter__(self) -> AsyncHoldfast:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def blocking(self) -> Holdfast:
        """A synchronous client with the same access, for `holdfast.insight` in a thread."""
        return Holdfast(self._access, self.cell, kubeconfig=self._kubeconfig, timeout_s=self._timeout_s)

    # Cells

    async def regions(self) -> list[str]:
        """Names of all regions."""
        return [region.metadata.name for region in await self.list(Region)]

    async def region(self, name: str) -> AsyncHoldfast:
        """The client of a regional cell: by the kubeconfig's context of that name, else at the region's endpoint."""
        if self._kubeconfig is not None and name in cell_access.contexts(self._kubeconfig):
            access = cell_access.contexts(self._kubeconfig)[name]
        else:
            found = await self.get(Region, name)
            access = region_access(self._access, found.spec, name)
        return AsyncHoldfast(access, name, kubeconfig=self._kubeconfig, timeout_s=self._timeout_s)

    # Reads

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O:
        """The object. Raises `NotFound`."""
        call = get_call(kind, name, namespace)
        return decode_reply(call, self.cell, *await self._send(call), kind)

    async def list(
        self, kind: type[O], namespace: str = "", *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> tuple[O, ...]:
        """All objects of a kind, in one tenant or in all."""
        return (await self._listing(kind, namespace, labels=labels, name=name)).items

    async def _listing(
        self, kind: type[O], namespace: str, *, labels: Mapping[str, str] | None, name: str
    ) -> Listing[O]:
        items: list[O] = []
        after = ""
        for _ in range(PAGES_MAX):
            call = list_call(kind, namespace, name=name, labels=labels, after=after)
            status, body = await self._send(call)
            check_reply(call, self.cell, status, body)
            page = decode_page(kind_of(kind), body)
            items += page.items
            after = page.continue_token
            if not after:
                return Listing(tuple(items), page.revision)
        raise Unavailable(f"{kind_of(kind).plural}: too many objects to list; next: select one tenant or labels")

    def watch(
        self, kind: type[O], namespace: str = "", *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> Changes[O]:
        """Every change, beginning with all objects that exist. Resumes by itself. `asyncio.timeout` ends it."""
        return self._follow(WatchCursor(), kind, namespace, labels=labels, name=name)

    async def _follow(
        self,
        cursor: WatchCursor[O],
        kind: type[O],
        namespace: str,
        *,
        labels: Mapping[str, str] | None = None,
        name: str = "",
    ) -> Changes[O]:
        """The changes from the cursor on."""
        failures = 0
        while True:
            try:
                if cursor.revision is None:
                    listing = await self._listing(kind, namespace, labels=labels, name=name)
                    for change in cursor.listed(listing.items, listing.revision):
                        yield change
                call = watch_call(kind, namespace, revision=cursor.revision or 0, name=name, labels=labels)
                async with aclosing(self._stream(call, kind, cursor)) as stream:
                    async for change in stream:
                        failures = 0
                        yield change
            except Expired:
                cursor.expire()
            except Unavailable:
                failures += 1
                await asyncio.sleep(resume_delay_s(failures))

    async def _stream(self, call: ApiCall, kind: type[O], cursor: WatchCursor[O]) -> Changes[O]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=WATCH_SILENCE_S)
        url = self._access.url.rstrip("/") + call.path
        try:
            async with self._opened().get(
                url, params={**call.query, "watch": "true"}, timeout=timeout, ssl=self._tls
            ) as reply:
                if reply.status >= 400:
                    raise refusal_fault(self.cell, call.path, reply.status, await reply.read())
                rest = b""
                async for chunk in reply.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > WATCH_LINE_BYTES_MAX:
                        text = f"{cell_label(self.cell)}: watch event too large (limit {WATCH_LINE_BYTES_MAX} bytes)"
                        raise Unavailable(text)
                    for change in cursor.received(parse_events(kind_of(kind), lines)):
                        yield change
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise Unavailable(f"{cell_label(self.cell)}: watch interrupted ({_cause(error)})") from error

    async def wait(
        self,
        kind: type[O],
        name: str,
        namespace: str = "",
        *,
        condition: str = "",
        until: Callable[[O], bool] | None = None,
        timeout_s: float = WAIT_S,
    ) -> O:
        """Waits until the object has a condition (`"Available"`, `"Failed=False"`) or `until(object)` is true, and
        returns the object. Raises `WaitTimedOut`, which says what was found."""
        goal: Goal[O] = Goal(condition, until)
        last: O | None = None
        try:
            async with asyncio.timeout(timeout_s) as limit, aclosing(self.watch(kind, namespace, name=name)) as changes:
                async for change in changes:
                    last = change.object if change.type != "deleted" else None
                    if last is not None and goal.is_met(last):
                        return last
        except TimeoutError:
            if not limit.expired():
                raise
        raise goal.timed_out(kind, name, namespace, timeout_s, last)

    # Writes

    @overload
    async def apply(
        self, item: O, *, manager: str = FIELD_MANAGER, force: bool = False, dry_run: bool = False
    ) -> O: ...
    @overload
    async def apply(
        self, item: Mapping[str, Any], *, manager: str = FIELD_MANAGER, force: bool = False, dry_run: bool = False
    ) -> Object: ...
    async def apply(
        self,
        item: Object | Mapping[str, Any],
        *,
        manager: str = FIELD_MANAGER,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Creates or updates the object (server-side apply) and returns it as stored. See `Holdfast.apply`."""
        call = apply_call(item, manager=manager, force=force, dry_run=dry_run)
        kind = type(item) if isinstance(item, Object) else None
        return decode_reply(call, self.cell, *await self._send(call), kind)

    async def patch(self, kind: type[O], name: str, namespace: str = "", *, changes: Mapping[str, Any]) -> O:
        """Changes single fields: `{"spec": {"replicas": 4}}`; None removes a field."""
        call = patch_call(kind, name, namespace, changes, manager=FIELD_MANAGER)
        return decode_reply(call, self.cell, *await self._send(call), kind)

    async def delete(self, kind: type[O], name: str, namespace: str = "", *, wait_s: float = 0.0) -> None:
        """Requests the deletion. With `wait_s` it waits until the object is gone, or raises `WaitTimedOut`."""
        call = delete_call(kind, name, namespace)
        check_reply(call, self.cell, *await self._send(call))
        if wait_s:
            await self._wait_gone(kind, name, namespace, wait_s)

    async def _wait_gone(self, kind: type[O], name: str, namespace: str, timeout_s: float) -> None:
        listing = await self._listing(kind, namespace, labels=None, name=name)
        cursor: WatchCursor[O] = WatchCursor()
        last = [change.object for change in cursor.listed(listing.items, listing.revision)]
        if not last:
            return
        following = self._follow(cursor, kind, namespace, name=name)
        try:
            async with asyncio.timeout(timeout_s) as limit, aclosing(following) as changes:
                async for change in changes:
                    if change.type == "deleted":
                        return
                    last = [change.object]
        except TimeoutError:
            if not limit.expired():
                raise
        raise deletion_timed_out(kind, last[0], timeout_s)

    async def _send(self, call: ApiCall) -> tuple[int, bytes]:
        attempts = 2 if call.method == "GET" else 1
        for attempt in range(attempts):
            try:
                return await self._exchange(call)
            except Unavailable:
                if attempt == attempts - 1:
                    raise
        raise AssertionError("unreachable")

    async def _exchange(self, call: ApiCall) -> tuple[int, bytes]:
        label = cell_label(self.cell)
        headers = {"Content-Type": call.content_type} if call.content_type else {}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        url = self._access.url.rstrip("/") + call.path
        try:
            async with self._opened().request(
                call.method,
                url,
                params=call.query,
                data=call.body or None,
                headers=headers,
                timeout=timeout,
                ssl=self._tls,
            ) as reply:
                return reply.status, await reply.read()
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(f"{label}: unreachable ({_cause(error)}); next: holdfast status") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if call.method == "GET":
                raise Unavailable(f"{label}: no reply ({_cause(error)}); next: repeat the call later") from error
            text = f"{label}: no reply ({_cause(error)}), the write may have happened"
            raise Ambiguous(f"{text}; next: read the object before you repeat it") from error

    def _opened(self) -> aiohttp.ClientSession:
        """The session is created on first use, because it needs the running event loop."""
        if self._session is None:
            headers = {"User-Agent": FIELD_MANAGER}
            if self._access.token:
                headers["Authorization"] = f"Bearer {self._access.token}"
            self._session = aiohttp.ClientSession(headers=headers)
        return self._session


def _cause(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
