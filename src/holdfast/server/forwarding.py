"""Placement calls of a server that is not the region's authority, passed on to the one that is.

The elected authority's lease names its address. A call is passed on once, under the caller's own name: the receiving
server believes that name only from a server of its own cell, shown by certificate, and judges the call anew. An answer
that does not come is `Ambiguous`, as it would be from the authority itself; items name what they are about, so asking
again is safe.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.authority.commits import not_leader
from holdfast.client.contract import Token
from holdfast.gate.local import Placement
from holdfast.gate.principal import CONTROLLERS, SERVERS, Principal, controller, from_identity
from holdfast.model.core import Lease
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.placement import Answers, BindRequest, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.runtime import metrics
from holdfast.runtime.leader import NAMESPACE
from holdfast.store.objects import Objects

HEADER = "x-holdfast-forwarded-for"
_LEASE = kind_of(Lease)


class Who(msgspec.Struct, frozen=True):
    """A principal on its way from one server to another."""

    name: str
    groups: tuple[str, ...] = ()


class Dialled(Protocol):
    """A client of another server of this cell."""

    async def place(
        self, action: str, request: Any, *, token: Token | None = None, headers: dict[str, str] | None = None
    ) -> Answers: ...


class Leading(Placement, Protocol):
    @property
    def leading(self) -> bool: ...


def identity_of(cell: str, url: str) -> str:
    """How a process is called in elections: its address is part of it, so that others can find the winner."""
    return f"{cell}@{url}"


def address_of(identity: str) -> str:
    return identity.partition("@")[2]


def forwarded(by: Principal, header: str, cell: str) -> Principal:
    """The principal that another server of this cell speaks for."""
    if SERVERS not in by.groups or by.name != f"holdfast:server:{cell}":
        raise Forbidden(f'User "{by.name}" cannot speak for others: only a server of the cell {cell} can')
    try:
        who = msgspec.json.decode(base64.b64decode(header), type=Who)
    except (ValueError, msgspec.MsgspecError) as wrong:
        raise Forbidden("the forwarded principal cannot be read") from wrong
    if CONTROLLERS in who.groups:
        return controller(who.name.rpartition(":")[2], cell=cell)
    return from_identity(who.name, who.groups, credential=f"forwarded by {by.credential}")


class Forwarding:
    """Implements `Placement`: by the local authority while it leads, else by the one that does."""

    def __init__(
        self, objects: Objects, local: Leading | None, url: str, dial: Callable[[str], Dialled] | None
    ) -> None:
        self._objects = objects
        self._local = local
        self._url = url
        self._dial = dial
        self._clients: dict[str, Dialled] = {}

    @property
    def known(self) -> bool:
        """Whether placement calls can be answered, here or elsewhere."""
        if self._local is not None and self._local.leading:
            return True
        return self._dial is not None and bool(self._leader())

    async def reserve(self, who: Principal, request: ReserveRequest) -> Answers:
        local = self._here()
        return await (local.reserve(who, request) if local else self._send("reserve", who, request))

    async def bind(self, who: Principal, request: BindRequest) -> Answers:
        local = self._here()
        return await (local.bind(who, request) if local else self._send("bind", who, request))

    async def release(self, who: Principal, request: ReleaseRequest, *, token: Token | None = None) -> Answers:
        local = self._here()
        if local:
            return await local.release(who, request, token=token)
        return await self._send("release", who, request, token)

    async def renew(self, who: Principal, request: RenewRequest) -> Answers:
        local = self._here()
        return await (local.renew(who, request) if local else self._send("renew", who, request))

    def _here(self) -> Leading | None:
        return self._local if self._local is not None and self._local.leading else None

    def _leader(self) -> str:
        lease = self._objects.get(_LEASE, NAMESPACE, "authority")
        url = address_of(lease.spec.holder_identity) if isinstance(lease, Lease) else ""
        return url if url != self._url else ""

    async def _send(self, verb: str, who: Principal, request: Any, token: Token | None = None) -> Answers:
        url = self._leader()
        if not url or self._dial is None:
            raise not_leader()
        client = self._clients.get(url)
        if client is None:
            client = self._clients[url] = self._dial(url)
        told = base64.b64encode(msgspec.json.encode(Who(who.name, who.groups))).decode()
        try:
            answers = await client.place(verb, request, token=token, headers={HEADER: told})
        except Unavailable as fault:
            metrics.SERVER_FORWARDED.labels(verb, "unavailable").inc()
            raise Unavailable(
                f"the region's authority at {url} cannot be asked: {fault.message}", facts=fault.facts
            ) from fault
        metrics.SERVER_FORWARDED.labels(verb, "answered").inc()
        return answers
