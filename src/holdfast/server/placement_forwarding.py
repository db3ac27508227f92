"""Forwards placement calls to the region's elected authority, if another server holds that role.

The authority's election lease names its address. A call is forwarded once, under the caller's own name. The receiving
server accepts that name only from a server of its own cell, proven by certificate, and authorizes the call again. A
missing response is `Ambiguous`, as from the authority itself; items carry their identity, so a retry is safe.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.authority.commits import not_leader_error
from holdfast.client.contract import FencingToken
from holdfast.controllers.leader_election import NAMESPACE
from holdfast.foundation import metrics
from holdfast.gate.local_client import PlacementService
from holdfast.model.core import Lease
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.placement_api import BindRequest, PlacementResponse, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.principal import CONTROLLERS, SERVERS, Principal, controller, from_identity
from holdfast.store.objects import Objects

FORWARDED_FOR_HEADER = "x-holdfast-forwarded-for"
_LEASE = kind_of(Lease)


class ForwardedPrincipal(msgspec.Struct, frozen=True):
    """A principal as forwarded from one server to another."""

    name: str
    groups: tuple[str, ...] = ()


class PlacementClient(Protocol):
    """A client of another server of this cell."""

    async def call_placement(
        self, action: str, request: Any, *, token: FencingToken | None = None, headers: dict[str, str] | None = None
    ) -> PlacementResponse: ...


class ElectedPlacement(PlacementService, Protocol):
    @property
    def leading(self) -> bool: ...


def election_identity(cell: str, url: str) -> str:
    """A process's identity in elections. It contains the address, so that others can find the leader."""
    return f"{cell}@{url}"


def identity_url(identity: str) -> str:
    return identity.partition("@")[2]


def forwarded_principal(by: Principal, header: str, cell: str) -> Principal:
    """The principal on whose behalf another server of this cell calls."""
    if SERVERS not in by.groups or by.name != f"holdfast:server:{cell}":
        raise Forbidden(f'User "{by.name}" cannot forward calls of other users (expected a server of cell {cell})')
    try:
        who = msgspec.json.decode(base64.b64decode(header), type=ForwardedPrincipal)
    except (ValueError, msgspec.MsgspecError) as wrong:
        raise Forbidden("forwarded call: cannot decode the principal") from wrong
    if CONTROLLERS in who.groups:
        return controller(who.name.rpartition(":")[2], cell=cell)
    return from_identity(who.name, who.groups, credential=f"forwarded by {by.credential}")


class ForwardingPlacement:
    """Implements `PlacementService`: through the local authority while it leads, else through the leader's server."""

    def __init__(
        self, objects: Objects, local: ElectedPlacement | None, url: str, dial: Callable[[str], PlacementClient] | None
    ) -> None:
        self._objects = objects
        self._local = local
        self._url = url
        self._dial = dial
        self._clients: dict[str, PlacementClient] = {}

    @property
    def is_available(self) -> bool:
        """Whether placement calls can be served, here or by the leader."""
        if self._local is not None and self._local.leading:
            return True
        return self._dial is not None and bool(self._leader())

    async def reserve(self, who: Principal, request: ReserveRequest) -> PlacementResponse:
        local = self._here()
        return await (local.reserve(who, request) if local else self._send("reserve", who, request))

    async def bind(self, who: Principal, request: BindRequest) -> PlacementResponse:
        local = self._here()
        return await (local.bind(who, request) if local else self._send("bind", who, request))

    async def release(
        self, who: Principal, request: ReleaseRequest, *, token: FencingToken | None = None
    ) -> PlacementResponse:
        local = self._here()
        if local:
            return await local.release(who, request, token=token)
        return await self._send("release", who, request, token)

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse:
        local = self._here()
        return await (local.renew(who, request) if local else self._send("renew", who, request))

    def _here(self) -> ElectedPlacement | None:
        return self._local if self._local is not None and self._local.leading else None

    def _leader(self) -> str:
        lease = self._objects.get(_LEASE, NAMESPACE, "authority")
        url = identity_url(lease.spec.holder_identity) if isinstance(lease, Lease) else ""
        return url if url != self._url else ""

    async def _send(
        self, verb: str, who: Principal, request: Any, token: FencingToken | None = None
    ) -> PlacementResponse:
        url = self._leader()
        if not url or self._dial is None:
            raise not_leader_error()
        client = self._clients.get(url)
        if client is None:
            client = self._clients[url] = self._dial(url)
        encoded = base64.b64encode(msgspec.json.encode(ForwardedPrincipal(who.name, who.groups))).decode()
        try:
            response = await client.call_placement(verb, request, token=token, headers={FORWARDED_FOR_HEADER: encoded})
        except Unavailable as fault:
            metrics.SERVER_FORWARDED.labels(verb, "unavailable").inc()
            raise Unavailable(
                f"authority of the region at {url}: unreachable ({fault.message})", facts=fault.facts
            ) from fault
        metrics.SERVER_FORWARDED.labels(verb, "answered").inc()
        return response
