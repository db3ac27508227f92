"""A forwarded placement call carries its caller's name, accepted only from a server of the same cell."""

from __future__ import annotations

import base64

import msgspec
import pytest

from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementResponse, RenewRequest
from holdfast.model.principal import HOLLOW_NODES, NODES, OPERATORS, SERVERS, controller, from_identity
from holdfast.server.placement_forwarding import (
    FORWARDED_FOR_HEADER,
    ForwardedPrincipal,
    ForwardingPlacement,
    election_identity,
    forwarded_principal,
    identity_url,
)


def forwarded(name: str, *groups: str) -> str:
    return base64.b64encode(msgspec.json.encode(ForwardedPrincipal(name, groups))).decode()


def server(cell: str = "us-east", *groups: str):
    return from_identity(f"holdfast:server:{cell}", groups or (SERVERS,), credential="certificate:1")


def test_call_forwarded_by_own_cell_has_original_caller():
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
def test_call_forwarded_by_other_principal_is_forbidden(by):
    with pytest.raises(Forbidden):
        forwarded_principal(by, forwarded("holdfast:node:us-east:n1", NODES), "us-east")


@pytest.mark.parametrize("header", ["", "!", base64.b64encode(b"[]").decode(), "AAAA"])
def test_forwarded_call_with_invalid_header_is_forbidden(header):
    with pytest.raises(Forbidden):
        forwarded_principal(server(), header, "us-east")


class _Objects:
    """The election lease as a server sees it."""

    def __init__(self, holder: str) -> None:
        self._lease = Lease(ObjectMeta(name="authority"), LeaseSpec(holder_identity=holder))

    def get(self, kind, namespace, name):
        return self._lease


class _Dialled:
    def __init__(self, url: str) -> None:
        self.url = url
        self.headers: list[dict[str, str]] = []

    async def call_placement(self, action, request, *, token=None, headers=None):
        self.headers.append(headers)
        return PlacementResponse((), 7)


async def test_placement_call_is_forwarded_to_leader_address():
    dialled: dict[str, _Dialled] = {}

    def dial(url: str) -> _Dialled:
        return dialled.setdefault(url, _Dialled(url))

    there = "https://10.0.0.2:7401"
    assert identity_url(election_identity("us-east", there)) == there
    passing = ForwardingPlacement(_Objects(election_identity("us-east", there)), None, "https://10.0.0.1:7401", dial)
    assert passing.is_available
    who = from_identity("holdfast:node:us-east:n1", (NODES,), credential="x")
    for _ in range(2):
        assert (await passing.renew(who, RenewRequest(()))).revision == 7
    assert list(dialled) == [there]
    assert forwarded_principal(server(), dialled[there].headers[0][FORWARDED_FOR_HEADER], "us-east").node == "n1"


async def test_placement_call_without_other_leader_is_unavailable():
    own = "https://10.0.0.1:7401"
    who = from_identity("holdfast:node:us-east:n1", (NODES,), credential="x")
    for holder in ("", election_identity("us-east", own), "us-east-0"):
        passing = ForwardingPlacement(_Objects(holder), None, own, _Dialled)
        assert not passing.is_available
        with pytest.raises(Unavailable, match="not the region's elected authority"):
            await passing.renew(who, RenewRequest(()))
