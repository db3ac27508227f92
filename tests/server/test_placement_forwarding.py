"""A forwarded placement call carries its caller's name, accepted only from a server of the same cell."""

from __future__ import annotations

import base64

import msgspec
import pytest
from tests.expected import present

from holdfast.client.contract import FencingToken
from holdfast.controllers.leader_election import NAMESPACE
from holdfast.model import codec
from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementResponse, RenewRequest
from holdfast.model.principal import HOLLOW_NODES, NODES, OPERATORS, SERVERS, Principal, controller, from_identity
from holdfast.server.placement_forwarding import (
    FORWARDED_FOR_HEADER,
    ForwardedPrincipal,
    ForwardingPlacement,
    election_identity,
    forwarded_principal,
    identity_url,
)
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


def forwarded(name: str, *groups: str) -> str:
    return base64.b64encode(msgspec.json.encode(ForwardedPrincipal(name, groups))).decode()


def server(cell: str = "us-east", *groups: str) -> Principal:
    return from_identity(f"holdfast:server:{cell}", groups or (SERVERS,), credential="certificate:1")


def test_call_forwarded_by_own_cell_has_original_caller() -> None:
    node = forwarded_principal(server(), forwarded("holdfast:node:us-east:n1", NODES), "us-east")
    assert (node.node, node.region, node.roles) == ("n1", "us-east", frozenset({"agent"}))
    scheduler = forwarded_principal(
        server(), forwarded("holdfast:controller:scheduler", "holdfast:controllers"), "us-east"
    )
    assert scheduler == controller("scheduler", cell="us-east")


@pytest.mark.parametrize(
    "by",
    [
        server("eu-west"),
        from_identity("holdfast:server:us-east", (OPERATORS,), credential="x"),
        from_identity("operator", (OPERATORS,), credential="x"),
        from_identity("holdfast:hollow:us-east:h-", (HOLLOW_NODES,), credential="x"),
        from_identity("mallory", (SERVERS,), credential="x"),
    ],
)
def test_call_forwarded_by_other_principal_is_forbidden(by: Principal) -> None:
    with pytest.raises(Forbidden):
        forwarded_principal(by, forwarded("holdfast:node:us-east:n1", NODES), "us-east")


@pytest.mark.parametrize("header", ["", "!", base64.b64encode(b"[]").decode(), "AAAA"])
def test_forwarded_call_with_invalid_header_is_forbidden(header: str) -> None:
    with pytest.raises(Forbidden):
        forwarded_principal(server(), header, "us-east")


async def elected(holder: str) -> Objects:
    """The objects of a server with the election lease."""
    objects = Objects(MemoryStore(), MemoryStore())
    await objects.start()
    lease = Lease(ObjectMeta(name="authority", namespace=NAMESPACE), LeaseSpec(holder_identity=holder))
    put = Put(kind_of(lease).store_key(NAMESPACE, "authority"), codec.encode(lease), lease)
    await objects.commit(kind_of(lease), Txn(writes=(put,)))
    return objects


class _Dialled:
    def __init__(self, url: str) -> None:
        self.url = url
        self.headers: list[dict[str, str]] = []

    async def call_placement(
        self, action: str, request: object, *, token: FencingToken | None = None, headers: dict[str, str] | None = None
    ) -> PlacementResponse:
        self.headers.append(present(headers))
        return PlacementResponse((), 7)


async def test_placement_call_is_forwarded_to_leader_address() -> None:
    dialled: dict[str, _Dialled] = {}

    def dial(url: str) -> _Dialled:
        return dialled.setdefault(url, _Dialled(url))

    there = "https://10.0.0.2:7401"
    assert identity_url(election_identity("us-east", there)) == there
    passing = ForwardingPlacement(
        await elected(election_identity("us-east", there)), None, "https://10.0.0.1:7401", dial
    )
    assert passing.is_available
    who = from_identity("holdfast:node:us-east:n1", (NODES,), credential="x")
    for _ in range(2):
        assert (await passing.renew(who, RenewRequest(()))).revision == 7
    assert list(dialled) == [there]
    assert forwarded_principal(server(), dialled[there].headers[0][FORWARDED_FOR_HEADER], "us-east").node == "n1"


async def test_placement_call_without_other_leader_is_unavailable() -> None:
    own = "https://10.0.0.1:7401"
    who = from_identity("holdfast:node:us-east:n1", (NODES,), credential="x")
    for holder in ("", election_identity("us-east", own), "us-east-0"):
        passing = ForwardingPlacement(await elected(holder), None, own, _Dialled)
        assert not passing.is_available
        with pytest.raises(Unavailable, match="not the region's elected authority"):
            await passing.renew(who, RenewRequest(()))
