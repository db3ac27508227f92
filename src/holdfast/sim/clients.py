"""Clients of simulated processes, over the network and inside a cell. They implement `client.contract`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.client import readback
from holdfast.client.contract import Client, CommitReceipt, FencingToken, Listing, WatchEvent
from holdfast.foundation.ports import Ports
from holdfast.model.errors import Ambiguous, Expired, Fault, Unavailable
from holdfast.model.meta import Object
from holdfast.model.placement_api import (
    BindItem,
    BindRequest,
    PlacementOutcome,
    PlacementResponse,
    ReleaseRequest,
    RenewRequest,
    ReserveRequest,
)
from holdfast.model.reasons import Reason
from holdfast.model.writes import Notice, SetStatus, Write
from holdfast.sim.fault_injection import FaultInjector, FaultKind
from holdfast.sim.network import DELAY_S, STALL_S, CallTarget, Network

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object
T = TypeVar("T")
REPEAT_DELAY_S = (0.05, 40.0)
BIND_DELAYS_S = ((0.0, 1.0), (0.0, 1.0), (0.0, 10.0), (50.0, 70.0))
"""Delays between reserve and bind, one range drawn for each call. A reservation expires after a minute."""
BIND_RETRY_S = 2.0
BIND_ATTEMPTS_MAX = 30
STALL_CHECK_S = 5.0
"""Interval at which a stalled watch checks whether the stall is over."""


class ClientObserver(Protocol):
    """Observer of all clients, implemented by the checkers."""

    def acknowledged(self, cell: str, items: Sequence[Object | None]) -> None:
        """Called for every commit that a caller considers successful, with the returned objects."""

    def watched(self, cell: str, kind: str, after: int, batch: Sequence[WatchEvent[Any]]) -> None:
        """Called for every batch of a watch of a whole kind, as the cell sends it."""

    def watch_crossed_tenants(self, cell: str, kind: str, namespace: str, others: Sequence[str]) -> None:
        """Called when a watch of one namespace delivers objects of another."""

    def skew_detected(self, cell: str, what: str) -> None:
        """Called when a message between two releases is refused or loses a field that both know."""

    def reasons_reported(self, reasons: Iterable[str]) -> None:
        """Called with the reasons of events and of the authority's responses, which are not stored."""


class RemoteClient:
    """Client over the simulated network. Without `watching`, watches stay open and deliver nothing."""

    def __init__(
        self,
        network: Network,
        caller: str,
        host: CallTarget,
        ports: Ports,
        observer: ClientObserver,
        *,
        watching: bool = True,
    ) -> None:
        self._network = network
        self._caller = caller
        self._host = host
        self._ports = ports
        self._observer = observer
        self._watching = watching

    @property
    def cell(self) -> str:
        return self._host.name

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        return await self._read(lambda client: client.get(kind, name, namespace))

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        return await self._read(lambda client: client.list(kind, namespace, fields=fields))

    def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        if not self._watching:
            return silent_watch()
        return self._network.stream(
            self._caller,
            f"{self._caller}/{kind.__name__}",
            self._host,
            lambda client: _observed_watch(client, kind, namespace, after, fields=fields, observer=self._observer),
        )

    async def commit_once(self, writes: Sequence[Write], *, token: FencingToken | None = None) -> CommitReceipt:
        faults, statuses = self._network.faults, [write for write in writes if isinstance(write, SetStatus)]
        if any(faults.cache_stall_s(self._caller, status.kind) > 0 for status in statuses):
            raise Unavailable("the status did not arrive (simulated)")
        return await self._write(lambda client: client.commit(writes, token=token))

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        committed = await readback.commit(self, writes, token=token, ports=self._ports)
        self._observer.acknowledged(self._host.name, committed.objects)
        return committed

    async def reserve(self, request: ReserveRequest) -> PlacementResponse:
        return self._observed(await self._write(lambda client: client.reserve(request)))

    async def bind(self, request: BindRequest) -> PlacementResponse:
        return self._observed(await self._write(lambda client: client.bind(request)))

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        return await self._write(lambda client: client.release(request, token=token))

    def _observed(self, answers: PlacementResponse) -> PlacementResponse:
        self._observer.reasons_reported(answer.reason for answer in answers.results if answer.reason)
        return answers

    async def renew(self, request: RenewRequest) -> PlacementResponse:
        return await self._network.call(
            self._caller, self._host, lambda client: client.renew(request), writes=True, own_lane=True
        )

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        self._observer.reasons_reported(str(notice.reason) for notice in notices)
        try:
            await self._write(lambda client: client.notify(notices, component=component))
        except Fault:
            return  # events are best effort

    async def close(self) -> None:
        return None

    async def _read(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return await self._network.call(self._caller, self._host, work, writes=False)

    async def _write(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return await self._network.call(self._caller, self._host, work, writes=True)


class InCellClient:
    """Client of a component inside a cell: without network, but with watch faults and lost placement responses."""

    def __init__(
        self,
        inner: Client,
        faults: FaultInjector,
        observer: ClientObserver,
        *,
        watching: bool = True,
        before_bind: Callable[[str, str], None] = lambda cell, node: None,
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._observer = observer
        self._watching = watching
        self._before_bind = before_bind
        self._later: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        if not self._watching:
            return silent_watch()
        return self._watch(kind, namespace, after, fields)

    async def _watch(
        self, kind: type[O], namespace: str, after: int, fields: Mapping[str, str] | None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        faults, cell = self._faults, self._inner.cell
        strikes, place = faults.draw, f"{cell}/{kind.__name__}"
        if strikes(FaultKind.WATCH_EXPIRED, place) is not None:
            raise Expired("the revision is compacted (simulated): list again")
        reporter = _WatchReporter(self._observer, cell, kind, namespace, after, whole=not namespace and not fields)
        async for batch in self._inner.watch(kind, namespace, after=after, fields=fields):
            reporter.report(batch)
            if faults.healed:
                yield batch
                continue
            if strikes(FaultKind.WATCH_DROP, place) is not None:
                raise Unavailable("the watch was dropped (simulated)")
            if (own := strikes(FaultKind.WATCH_STALL, place)) is not None:
                await asyncio.sleep(own.uniform(*STALL_S))
                raise Unavailable("the watch stalled and was dropped (simulated)")
            if (own := strikes(FaultKind.WATCH_DELAY, place)) is not None:
                await asyncio.sleep(own.uniform(*DELAY_S))
            while (left_s := faults.cache_stall_s(cell, kind.__name__)) > 0:
                await asyncio.sleep(min(left_s, STALL_CHECK_S))
            yield batch
            if strikes(FaultKind.WATCH_DUPLICATE, place) is not None:
                yield batch

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        committed = await self._inner.commit(writes, token=token, brief=brief)
        self._observer.acknowledged(self._inner.cell, committed.objects)
        return committed

    async def reserve(self, request: ReserveRequest) -> PlacementResponse:
        self._repeat_by_fault(lambda: self._inner.reserve(request))
        own = self._faults.draw(FaultKind.BIND_IN_TWO_STEPS, self._inner.cell) if request.bind else None
        if own is not None:
            return self._lose_by_fault(await self._reserve_only(request, own))
        return self._lose_by_fault(await self._inner.reserve(request))

    async def _reserve_only(self, request: ReserveRequest, rng: random.Random) -> PlacementResponse:
        """Reserves without binding, and binds later. Half of the calls leave the choice of devices to the authority."""
        items = request.items
        if rng.random() < 0.5:
            items = tuple(msgspec.structs.replace(item, devices=()) for item in items)
        answers = await self._inner.reserve(msgspec.structs.replace(request, items=items, bind=False))
        reserved = {
            BindItem(item.namespace, item.replica, item.intent): answer.node
            for item, answer in zip(items, answers.results, strict=True)
            if answer.result is PlacementOutcome.ACCEPTED
        }
        if reserved:
            self._run_later(self._bind_later(reserved, rng))
        return answers

    async def _bind_later(self, reserved: dict[BindItem, str], rng: random.Random) -> None:
        """Binds after a delay, again while the authority says that victims or gang members are missing."""
        await asyncio.sleep(rng.uniform(*rng.choice(BIND_DELAYS_S)))
        waiting = tuple(reserved)
        for _ in range(BIND_ATTEMPTS_MAX):
            for item in waiting:
                self._before_bind(self._inner.cell, reserved[item])
            await asyncio.sleep(rng.uniform(0.0, 0.02))
            with contextlib.suppress(Fault):
                answers = await self._inner.bind(BindRequest(waiting))
                self._observer.reasons_reported(answer.reason for answer in answers.results if answer.reason)
                pairs = zip(waiting, answers.results, strict=True)
                waiting = tuple(i for i, a in pairs if a.reason in (Reason.WAITING, Reason.WAITING_FOR_GANG))
            if not waiting:
                return
            await asyncio.sleep(BIND_RETRY_S)

    async def bind(self, request: BindRequest) -> PlacementResponse:
        self._repeat_by_fault(lambda: self._inner.bind(request))
        return self._lose_by_fault(await self._inner.bind(request))

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse:
        self._repeat_by_fault(lambda: self._inner.release(request))
        return self._lose_by_fault(await self._inner.release(request, token=token))

    def _repeat_by_fault(self, work: Callable[[], Coroutine[Any, Any, PlacementResponse]]) -> None:
        """May deliver the call to the authority a second time, later."""
        own = self._faults.draw(FaultKind.CALL_REPEATED, self._inner.cell)
        if own is None:
            return

        async def repeat(after_s: float) -> None:
            await asyncio.sleep(after_s)
            with contextlib.suppress(Fault):
                await work()

        self._run_later(repeat(own.uniform(*REPEAT_DELAY_S)))

    def _run_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        self._observer.reasons_reported(str(notice.reason) for notice in notices)
        await self._inner.notify(notices, component=component)

    def _lose_by_fault(self, answers: PlacementResponse) -> PlacementResponse:
        self._observer.reasons_reported(answer.reason for answer in answers.results if answer.reason)
        if self._faults.draw(FaultKind.ANSWER_LOST, self._inner.cell) is not None:
            raise Ambiguous("the authority did not respond (simulated, committed)")
        return answers


async def _observed_watch(
    client: Client,
    kind: type[O],
    namespace: str,
    after: int,
    *,
    fields: Mapping[str, str] | None,
    observer: ClientObserver,
) -> AsyncGenerator[Sequence[WatchEvent[O]], None]:
    reporter = _WatchReporter(observer, client.cell, kind, namespace, after, whole=not namespace and not fields)
    async for batch in client.watch(kind, namespace, after=after, fields=fields):
        reporter.report(batch)
        yield batch


class _WatchReporter:
    """Reports the batches of one watch to the observer."""

    def __init__(
        self, observer: ClientObserver, cell: str, kind: type[Object], namespace: str, after: int, *, whole: bool
    ) -> None:
        self._observer = observer
        self._cell = cell
        self._kind = kind.__name__
        self._namespace = namespace
        self._after = after
        self._whole = whole

    def report(self, batch: Sequence[WatchEvent[Any]]) -> None:
        namespace = self._namespace
        if namespace:
            others = [
                str(event.object.key)
                for event in batch
                if event.object is not None and _is_other_namespace(event, namespace)
            ]
            if others:
                self._observer.watch_crossed_tenants(self._cell, self._kind, namespace, others)
        if self._whole and batch:
            self._observer.watched(self._cell, self._kind, self._after, batch)
            self._after = batch[-1].revision


def _is_other_namespace(event: WatchEvent[Any], namespace: str) -> bool:
    return bool(namespace) and event.object is not None and event.object.metadata.namespace != namespace


async def silent_watch() -> AsyncIterator[Sequence[Any]]:
    """A watch that stays open and delivers nothing."""
    await asyncio.get_running_loop().create_future()
    yield ()
