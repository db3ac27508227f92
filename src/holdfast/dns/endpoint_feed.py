"""Follows Endpoints and Regions, and keeps the address table up to date.

The global cell is watched: it knows every region. The own region is watched as well, so that local changes are seen at
once and while the global cell is down, and listed every few seconds, which shows whether it answers. If it does not,
the global cell's copies of its Endpoints count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

import structlog

from holdfast.client.holdfast_async import AsyncHoldfast
from holdfast.client.watch_cursor import ChangeType, WatchedChange
from holdfast.dns.address_table import AddressTable
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.model.endpoint import Endpoint
from holdfast.model.errors import Fault
from holdfast.model.meta import Object
from holdfast.model.region import Region

OWN_REGION_EVERY_S = 2.0
OWN_REGION_FAILURES_MAX = 3
"""Unanswered lists in a row after which the own region's last answer no longer counts."""
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 15.0

_log = structlog.get_logger()
O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class EndpointFeed:
    def __init__(self, client: AsyncHoldfast, region: str, table: AddressTable, ports: Ports) -> None:
        self._client, self._region, self.table, self._ports = client, region, table, ports
        self.listed = asyncio.Event()
        """Set when the global cell or the own region has answered once."""
        self.complete = asyncio.Event()
        """Set when the global cell and the own region have answered once, so that the table lacks nothing they know."""
        self.changed = asyncio.Event()
        """Set after every change of the table. A follower clears it."""
        self.last_contact_s = 0.0
        """When a cell last answered, by the clock; 0 before. Regions report often, so a watch is never silent long."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(Endpoint, self._endpoint_changed))
            group.create_task(self._follow(Region, self._region_changed))
            group.create_task(self._await_complete())
            if self._region:
                group.create_task(self._follow_own_region())
                group.create_task(self._watch_own_region())

    async def _await_complete(self) -> None:
        """A watch does not say when it has sent all existing objects: the table is compared with a list until it has
        them. The list itself is not stored, because it may be older than the watch's last change."""
        backoff = Backoff(self._ports.random, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while True:
            try:
                regions, endpoints = await self._client.list(Region), await self._client.list(Endpoint)
                if self.table.has_all(regions, endpoints):
                    break
            except Fault as fault:
                _log.warning("list_refused", error=str(fault))
            await self._ports.clock.sleep(backoff.next_s())
        self.complete.set()

    async def _follow(self, kind: type[O], changed: Callable[[WatchedChange[O]], None]) -> None:
        backoff = Backoff(self._ports.random, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while True:
            try:
                async with aclosing(self._client.watch(kind)) as changes:
                    async for change in changes:
                        backoff.reset()
                        changed(change)
            except Fault as fault:
                _log.warning("watch_refused", kind=kind.__name__, error=str(fault))
            await self._ports.clock.sleep(backoff.next_s())

    def _endpoint_changed(self, change: WatchedChange[Endpoint]) -> None:
        if change.type is ChangeType.DELETED:
            self.table.remove(change.object)
        else:
            self.table.put(change.object)
        self._note_change()

    def _region_changed(self, change: WatchedChange[Region]) -> None:
        if change.type is ChangeType.DELETED:
            self.table.remove_region(change.object.metadata.name)
        else:
            self.table.put_region(change.object)
        self._note_change()

    def _own_changed(self, change: WatchedChange[Endpoint]) -> None:
        if change.type is ChangeType.DELETED:
            self.table.remove_own(change.object)
        else:
            self.table.put_own(change.object)
        self._note_change()

    def _note_change(self) -> None:
        self.last_contact_s = self._ports.clock.now()
        self.listed.set()
        self.changed.set()

    async def _follow_own_region(self) -> None:
        async for listed in self._own_lists():
            self.table.replace_own(listed)
            self.changed.set()
            if listed is not None:
                self.last_contact_s = self._ports.clock.now()
                self.listed.set()

    async def _watch_own_region(self) -> None:
        """Changes between two lists, at once: a replica stops soon after its address is withdrawn."""
        backoff = Backoff(self._ports.random, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while True:
            try:
                client = await self._client.region(self._region)
                async with client, aclosing(client.watch(Endpoint)) as changes:
                    async for change in changes:
                        backoff.reset()
                        self._own_changed(change)
            except Fault as fault:
                _log.warning("watch_refused", kind="Endpoint", region=self._region, error=str(fault))
            await self._ports.clock.sleep(backoff.next_s())

    async def _own_lists(self) -> AsyncIterator[tuple[Endpoint, ...] | None]:
        """The own region's Endpoints, again and again; None when it has not answered for some time."""
        client: AsyncHoldfast | None = None
        failures = 0
        while True:
            try:
                client = client or await self._client.region(self._region)
                yield await client.list(Endpoint)
                failures = 0
            except Fault as fault:
                failures += 1
                if failures == OWN_REGION_FAILURES_MAX:
                    _log.warning("own_region_unreachable", region=self._region, error=str(fault))
                    yield None
            await self._ports.clock.sleep(OWN_REGION_EVERY_S)
