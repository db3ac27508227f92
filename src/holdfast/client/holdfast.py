"""`Holdfast`: the Python client of one cell, for programs and notebooks. Typed, synchronous, thread-confined.

Every request has a time limit. A read is repeated once on a new connection. A write is sent once: if no reply came, it
raises `Ambiguous`, and the caller reads the object before it decides. Nothing is cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from holdfast.client import cell_access
from holdfast.client.calls import (
    FIELD_MANAGER,
    ApiCall,
    apply_call,
    check_reply,
    decode_reply,
    delete_call,
    fault_of_command,
    get_call,
    list_call,
    patch_call,
    refusal_fault,
    region_access,
    watch_call,
)
from holdfast.client.cell_access import CellAccess
from holdfast.client.contract import Listing
from holdfast.client.resources import decode_page
from holdfast.client.sync_api import PAGES_MAX, ApiRefusal, CellApi
from holdfast.client.watch_cursor import Goal, WatchCursor, WatchedChange, deletion_timed_out, resume_delay_s
from holdfast.client.watch_lines import WATCH_SILENCE_S, parse_events
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.errors import Ambiguous, BadRequest, Expired, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.region import Region

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object

CALL_S = 10.0
WAIT_S = 60.0


class Holdfast:
    """The API of one cell. `connect` makes it; `region` returns the client of a regional cell."""

    def __init__(
        self, access: CellAccess, cell: str = "global", *, kubeconfig: Path | None = None, timeout_s: float = CALL_S
    ) -> None:
        self.cell = cell
        self._access = access
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        try:
            self._api = access.api(cell, timeout_s=timeout_s)
        except CommandError as error:
            text = f"{access.url}: certificate or key not readable ({error.message}); next: check ca, cert and key"
            raise BadRequest(text) from error

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._api.close()

    @property
    def cell_api(self) -> CellApi:
        """The transport, for `holdfast.insight`."""
        return self._api

    # Cells

    def regions(self) -> list[str]:
        """Names of all regions."""
        return [region.metadata.name for region in self.list(Region)]

    def region(self, name: str) -> Holdfast:
        """The client of a regional cell: by the kubeconfig's context of that name, else at the region's endpoint."""
        if self._kubeconfig is not None and name in cell_access.contexts(self._kubeconfig):
            access = cell_access.contexts(self._kubeconfig)[name]
        else:
            access = region_access(self._access, self.get(Region, name).spec, name)
        return Holdfast(access, name, kubeconfig=self._kubeconfig, timeout_s=self._timeout_s)

    # Reads

    def get(self, kind: type[O], name: str, namespace: str = "") -> O:
        """The object. Raises `NotFound`."""
        call = get_call(kind, name, namespace)
        return decode_reply(call, self.cell, *self._send(call), kind)

    def list(
        self, kind: type[O], namespace: str = "", *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> tuple[O, ...]:
        """All objects of a kind, in one tenant or in all."""
        return self._listing(kind, namespace, labels=labels, name=name).items

    def _listing(self, kind: type[O], namespace: str, *, labels: Mapping[str, str] | None, name: str) -> Listing[O]:
        items: list[O] = []
        after = ""
        for _ in range(PAGES_MAX):
            call = list_call(kind, namespace, name=name, labels=labels, after=after)
            status, body = self._send(call)
            check_reply(call, self.cell, status, body)
            page = decode_page(kind_of(kind), body)
            items += page.items
            after = page.continue_token
            if not after:
                return Listing(tuple(items), page.revision)
        raise Unavailable(f"{kind_of(kind).plural}: too many objects to list; next: select one tenant or labels")

    def watch(
        self,
        kind: type[O],
        namespace: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        name: str = "",
        timeout_s: float | None = None,
    ) -> Generator[WatchedChange[O], None, None]:
        """Every change, beginning with all objects that exist. Resumes by itself; ends after `timeout_s` if given."""
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        return self._follow(WatchCursor(), kind, namespace, labels=labels, name=name, ends_s=ends_s)

    def _follow(
        self,
        cursor: WatchCursor[O],
        kind: type[O],
        namespace: str,
        *,
        labels: Mapping[str, str] | None = None,
        name: str = "",
        ends_s: float | None = None,
    ) -> Generator[WatchedChange[O], None, None]:
        """The changes from the cursor on."""
        failures = 0
        while ends_s is None or time.monotonic() < ends_s:
            try:
                if cursor.revision is None:
                    listing = self._listing(kind, namespace, labels=labels, name=name)
                    yield from cursor.listed(listing.items, listing.revision)
                call = watch_call(kind, namespace, revision=cursor.revision or 0, name=name, labels=labels)
                for change in self._stream(call, kind, cursor, ends_s):
                    failures = 0
                    yield change
            except Expired:
                cursor.expire()
            except Unavailable:
                failures += 1
                delay_s = resume_delay_s(failures)
                time.sleep(delay_s if ends_s is None else max(0.0, min(delay_s, ends_s - time.monotonic())))

    def _stream(
        self, call: ApiCall, kind: type[O], cursor: WatchCursor[O], ends_s: float | None
    ) -> Iterator[WatchedChange[O]]:
        silence_s = WATCH_SILENCE_S if ends_s is None else min(WATCH_SILENCE_S, max(0.05, ends_s - time.monotonic()))
        try:
            for line in self._api.watch_lines(call.path, call.query, silence_s=silence_s):
                yield from cursor.received(parse_events(kind_of(kind), [line]))
                if ends_s is not None and time.monotonic() >= ends_s:
                    return
        except ApiRefusal as refusal:
            raise refusal_fault(self.cell, call.path, refusal.status, refusal.body) from refusal
        except CommandError as error:
            raise fault_of_command(error) from error

    def wait(
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
        for change in self.watch(kind, namespace, name=name, timeout_s=timeout_s):
            last = change.object if change.type != "deleted" else None
            if last is not None and goal.is_met(last):
                return last
        raise goal.timed_out(kind, name, namespace, timeout_s, last)

    # Writes

    @overload
    def apply(self, item: O, *, manager: str = FIELD_MANAGER, force: bool = False, dry_run: bool = False) -> O: ...
    @overload
    def apply(
        self, item: Mapping[str, Any], *, manager: str = FIELD_MANAGER, force: bool = False, dry_run: bool = False
    ) -> Object: ...
    def apply(
        self,
        item: Object | Mapping[str, Any],
        *,
        manager: str = FIELD_MANAGER,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Creates or updates the object (server-side apply) and returns it as stored.

        `manager` then owns the fields that `item` sets. A field that another manager set differently is a `Conflict`;
        `force` takes it over. `dry_run` validates and returns the result without storing it.
        """
        call = apply_call(item, manager=manager, force=force, dry_run=dry_run)
        kind = type(item) if isinstance(item, Object) else None
        return decode_reply(call, self.cell, *self._send(call), kind)

    def patch(self, kind: type[O], name: str, namespace: str = "", *, changes: Mapping[str, Any]) -> O:
        """Changes single fields: `{"spec": {"replicas": 4}}`; None removes a field."""
        call = patch_call(kind, name, namespace, changes, manager=FIELD_MANAGER)
        return decode_reply(call, self.cell, *self._send(call), kind)

    def delete(self, kind: type[O], name: str, namespace: str = "", *, wait_s: float = 0.0) -> None:
        """Requests the deletion. With `wait_s` it waits until the object is gone, or raises `WaitTimedOut`."""
        call = delete_call(kind, name, namespace)
        check_reply(call, self.cell, *self._send(call))
        if wait_s:
            self._wait_gone(kind, name, namespace, wait_s)

    def _wait_gone(self, kind: type[O], name: str, namespace: str, timeout_s: float) -> None:
        listing = self._listing(kind, namespace, labels=None, name=name)
        cursor: WatchCursor[O] = WatchCursor()
        last = [change.object for change in cursor.listed(listing.items, listing.revision)]
        if not last:
            return
        for change in self._follow(cursor, kind, namespace, name=name, ends_s=time.monotonic() + timeout_s):
            if change.type == "deleted":
                return
            last = [change.object]
        raise deletion_timed_out(kind, last[0], timeout_s)

    def _send(self, call: ApiCall) -> tuple[int, bytes]:
        attempts = 2 if call.method == "GET" else 1
        for attempt in range(attempts):
            try:
                return self._api.exchange(call.method, call.target, call.body, call.content_type)
            except CommandError as error:
                if attempt == attempts - 1:
                    raise self._no_reply(call, error) from error
        raise AssertionError("unreachable")

    def _no_reply(self, call: ApiCall, error: CommandError) -> Unavailable | Ambiguous:
        message = f"{error.message}; next: {error.next_step or 'repeat the call later'}"
        refused = isinstance(error.__cause__, ConnectionRefusedError) or error.code is not ExitCode.UNREACHABLE
        if call.method == "GET" or refused:
            return Unavailable(message)
        return Ambiguous(f"{error.message}, the write may have happened; next: read the object before you repeat it")
