"""The network between simulated processes, and the client that goes over it.

A call is carried out by the process that answers it: it runs there, dies with it, and its answer may be lost on the way
back. Whoever asked then knows only that it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.client import readback
from holdfast.client.contract import Client, Committed, Listing, Seen, Token
from holdfast.model.errors import Ambiguous, Fault, Unavailable
from holdfast.model.meta import Object
from holdfast.model.placement import Answers, BindRequest, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.writes import Notice, Write
from holdfast.runtime.ports import Ports
from holdfast.sim.chaos import Chaos, Kind
from holdfast.sim.loop import Process, VirtualLoop

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object
T = TypeVar("T")

LATENCY_S = (0.0005, 0.02)
NO_ANSWER_S = 2.0


class Host(Protocol):
    """A process that answers calls: the one that lives now, and a client inside it for a given caller."""

    name: str

    def answering(self) -> Process | None: ...

    def client_for(self, caller: str) -> Client: ...


class Network:
    def __init__(self, loop: VirtualLoop, chaos: Chaos, chance: Any) -> None:
        self.loop = loop
        self.chaos = chaos
        self._chance = chance
        self._cut: set[tuple[str, str]] = set()

    def cut(self, one: str, other: str) -> None:
        self._cut |= {(one, other), (other, one)}

    def join(self, one: str, other: str) -> None:
        self._cut -= {(one, other), (other, one)}

    def reachable(self, one: str, other: str) -> bool:
        return (one, other) not in self._cut

    async def call(
        self, caller: str, host: Host, work: Callable[[Client], Coroutine[Any, Any, T]], *, writes: bool
    ) -> T:
        """Carries a call over and its answer back, or fails the way networks do."""
        await self._travel()
        target = host.answering()
        if target is None or not self.reachable(caller, host.name) or self.chaos.strikes(Kind.CALL_LOST):
            await asyncio.sleep(self._chance.uniform(0.05, NO_ANSWER_S))
            raise Unavailable(f"{host.name} cannot be reached from {caller} (simulated)")
        answer: asyncio.Future[T] = self.loop.create_future()
        self.loop.spawn(target, self._carry_out(work(host.client_for(caller)), answer), name=f"call from {caller}")
        lost = self.chaos.strikes(Kind.REPLY_LOST)
        try:
            async with asyncio.timeout(NO_ANSWER_S * 5):
                result = await asyncio.shield(answer)
        except TimeoutError:
            raise self._no_answer(host, writes) from None
        if lost or not self.reachable(caller, host.name):
            await asyncio.sleep(NO_ANSWER_S)
            raise self._no_answer(host, writes)
        await self._travel()
        return result

    def _no_answer(self, host: Host, writes: bool) -> Fault:
        if writes:
            return Ambiguous(f"{host.name} did not answer (simulated)")
        return Unavailable(f"{host.name} did not answer (simulated)")

    @staticmethod
    async def _carry_out(work: Coroutine[Any, Any, T], answer: asyncio.Future[T]) -> None:
        try:
            result = await work
        except Fault as fault:
            if not answer.done():
                answer.set_exception(fault)
        else:
            if not answer.done():
                answer.set_result(result)

    async def _travel(self) -> None:
        await asyncio.sleep(self._chance.uniform(*LATENCY_S))


class RemoteClient:
    """A client of another simulated process; implements `client.contract.Client`."""

    def __init__(self, network: Network, caller: str, host: Host, ports: Ports) -> None:
        self._network = network
        self._caller = caller
        self._host = host
        self._ports = ports

    @property
    def cell(self) -> str:
        return self._host.name

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        return await self._read(lambda client: client.get(kind, name, namespace))

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        return await self._read(lambda client: client.list(kind, namespace, fields=fields))

    async def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[Seen[O]]]:
        """A stream from the other process: ends when that dies, the path is cut, or chance has it."""
        pipe: asyncio.Queue[Sequence[Seen[O]] | Fault] = asyncio.Queue()
        network, host = self._network, self._host
        target = host.answering()
        if target is None or not network.reachable(self._caller, host.name):
            await asyncio.sleep(0.2)
            raise Unavailable(f"{host.name} cannot be reached from {self._caller} (simulated)")
        client = host.client_for(self._caller)

        async def send() -> None:
            try:
                async for batch in client.watch(kind, namespace, after=after, fields=fields):
                    pipe.put_nowait(batch)
            except Fault as fault:
                pipe.put_nowait(fault)

        sending = network.loop.spawn(target, send(), name=f"watch for {self._caller}")
        try:
            while True:
                try:
                    async with asyncio.timeout(NO_ANSWER_S):
                        item = await pipe.get()
                except TimeoutError:
                    if not target.alive or not network.reachable(self._caller, host.name):
                        raise Unavailable(f"the watch of {host.name} broke (simulated)") from None
                    continue
                if isinstance(item, Fault):
                    raise item
                if not network.reachable(self._caller, host.name) or network.chaos.strikes(Kind.WATCH_DROP):
                    raise Unavailable(f"the watch of {host.name} was dropped (simulated)")
                yield item
        finally:
            if target.alive:
                sending.cancel()

    async def commit_once(self, writes: Sequence[Write], *, token: Token | None = None) -> Committed:
        return await self._network.call(
            self._caller, self._host, lambda client: client.commit(writes, token=token), writes=True
        )

    async def commit(self, writes: Sequence[Write], *, token: Token | None = None) -> Committed:
        return await readback.commit(self, writes, token=token, ports=self._ports)

    async def reserve(self, request: ReserveRequest) -> Answers:
        return await self._write(lambda client: client.reserve(request))

    async def bind(self, request: BindRequest) -> Answers:
        return await self._write(lambda client: client.bind(request))

    async def release(self, request: ReleaseRequest, *, token: Token | None = None) -> Answers:
        return await self._write(lambda client: client.release(request, token=token))

    async def renew(self, request: RenewRequest) -> Answers:
        return await self._write(lambda client: client.renew(request))

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
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


class Flaky:
    """The client of a part inside a cell: no network, but its watches break and its placement answers get lost."""

    def __init__(self, inner: Client, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[Seen[O]]]:
        async for batch in self._inner.watch(kind, namespace, after=after, fields=fields):
            if self._chaos.strikes(Kind.WATCH_DROP):
                raise Unavailable("the watch was dropped (simulated)")
            yield batch

    async def reserve(self, request: ReserveRequest) -> Answers:
        answers = await self._inner.reserve(request)
        if self._chaos.strikes(Kind.TIMEOUT_AFTER):
            raise Ambiguous("the authority did not answer (simulated, committed)")
        return answers

    async def release(self, request: ReleaseRequest, *, token: Token | None = None) -> Answers:
        answers = await self._inner.release(request, token=token)
        if self._chaos.strikes(Kind.TIMEOUT_AFTER):
            raise Ambiguous("the authority did not answer (simulated, committed)")
        return answers
