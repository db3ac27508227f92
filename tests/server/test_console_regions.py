"""What the console does in a region under the user's own name: logs, cordon and drain, and what is refused there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present

from holdfast.client.contract import SessionLink
from holdfast.console.region_calls import RegionRequest
from holdfast.console.region_hub import RegionHub
from holdfast.console.region_reads import RegionReader, region_history
from holdfast.console.uplink import ConsoleUplink
from holdfast.console.viewer import asserted_principal, viewer_of
from holdfast.gate.audit import read_records
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.errors import Expired
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node, NodeSpec
from holdfast.model.principal import CONTROLLERS, OPERATORS, TENANT_PREFIX, VIEWERS, agent
from holdfast.model.template import Template
from holdfast.model.writes import Create
from holdfast.server.asserted_calls import AssertedCalls

from .conftest import World, running
from .test_console import Browser, link_code, refusals
from .test_core_views import answered

NODE = "/console/api/regions/west/nodes/n1"
LOG = "/console/api/regions/west/pods/shop/web-0.1/log"
MERGE = [("content-type", "application/merge-patch+json")]
CORDON = {"spec": {"unschedulable": True}}


class HubClient:
    """The region's connection without HTTP between the two cells."""

    def __init__(self, hub: RegionHub) -> None:
        self.hub = hub

    async def region_queries(self, region: str) -> AsyncIterator[bytes]:
        queue = self.hub.connect(region)
        try:
            while (query := await queue.get()) is not None:
                yield msgspec.json.encode(query)
        finally:
            self.hub.disconnect(region, queue)

    async def answer_region_query(self, region: str, query: str, data: bytes) -> None:
        self.hub.resolve(region, query, data)

    def open_region_session(self, region: str, session_id: str) -> AbstractAsyncContextManager[SessionLink]:
        raise ConnectionError(f"region {region}: session {session_id} needs HTTP")


@pytest.fixture
async def region(world: World, tmp_path: Path) -> AsyncIterator[World]:
    """Region west with a node and a bound replica, connected to the console of the global cell."""
    folder = tmp_path / "west"
    folder.mkdir()
    async for made in running("west", folder):
        node = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(zone="west-a", capacity={"cpu": "4"}))
        await made.gate.commit(agent("n1", region="west"), [Create(node)])
        spec = BindingSpec(
            replica="web-0",
            intent=Intent("uid-0", "h", 1),
            node="n1",
            workload="web",
            template=Template(command=("serve",)),
            resources={"cpu": "500m"},
        )
        await made.commit(
            Create(Binding(metadata=ObjectMeta(name="web-0.1", namespace="shop"), spec=spec)), role="authority"
        )
        client = HubClient(present(world.app.console).hub)
        reader, history = (
            RegionReader("west", made.objects, made.ports),
            region_history("west", made.objects, made.ports),
        )
        uplink = ConsoleUplink(client, reader, history, AssertedCalls(made.app))
        running_uplink = asyncio.ensure_future(uplink.run())
        await asyncio.sleep(0)
        yield made
        running_uplink.cancel()
        await uplink.stop()


async def browser_of(world: World, groups: tuple[str, ...], name: str) -> Browser:
    browser = Browser(world)
    assert (await browser.sign_in(token=world.tokens.issue(name, name, groups))).code == 200
    return browser


def spec_of(region: World) -> NodeSpec:
    return of_type(region.objects.get(BY_NAME["Node"], "", "n1"), Node).spec


async def people_in_audit(world: World) -> set[tuple[str, str, str]]:
    await world.gate.audit.flush()
    found = [record for _, record in await read_records(world.store, limit=10_000)]
    return {(r["principal"], r["verb"], r["result"]) for r in found}


async def test_operator_cordons_a_node_of_a_region_after_a_dry_run(world: World, region: World) -> None:
    browser = Browser(world)
    await browser.sign_in(code=await link_code(world))
    assert (await browser.call("GET", NODE)).json["metadata"]["name"] == "n1"
    dry = await browser.call("PATCH", f"{NODE}?dryRun=All", CORDON, headers=MERGE)
    assert dry.json["spec"]["unschedulable"] is True and not spec_of(region).unschedulable
    assert (await browser.call("PATCH", NODE, CORDON, headers=MERGE)).code == 200
    assert spec_of(region).unschedulable
    assert ("ada", "update", "Committed") in await people_in_audit(region), "the region names the user"
    assert ("ada", "patch", "Allowed") in await people_in_audit(world), "and so does the global cell"


@pytest.mark.parametrize(
    ("groups", "name"),
    [pytest.param((VIEWERS,), "vera", id="viewer"), pytest.param((f"{TENANT_PREFIX}shop",), "tina", id="tenant")],
)
async def test_forged_action_on_a_node_is_refused_and_audited(
    world: World, region: World, groups: tuple[str, ...], name: str
) -> None:
    browser = await browser_of(world, groups, name)
    assert (await browser.call("PATCH", NODE, CORDON, headers=MERGE)).code == 403
    assert not spec_of(region).unschedulable
    assert (name, "patch", "Forbidden") in await refusals(world)
    direct = AssertedCalls(region.app)
    request = RegionRequest(
        method="PATCH",
        path="/apis/holdfast.dev/v1/nodes/n1",
        body='{"spec":{"unschedulable":true}}',
        content_type="application/merge-patch+json",
    )
    assert (await direct.call(asserted_principal(name, groups), request)).code == 403, "the region checks again"
    assert (name, "patch", "Forbidden") in await refusals(region)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(RegionRequest(method="GET", path="/apis/holdfast.dev/v1/nodeidentities"), id="list"),
        pytest.param(RegionRequest(method="DELETE", path="/apis/holdfast.dev/v1/nodes/n1"), id="delete"),
        pytest.param(RegionRequest(method="POST", path="/agent/v1/replicas/shop/web-0", body="{}"), id="exec"),
        pytest.param(RegionRequest(method="POST", path="/placement/v1/bind", body="{}"), id="bind"),
        pytest.param(
            RegionRequest(
                method="PATCH",
                path="/apis/holdfast.dev/v1/nodes/n1",
                body='{"spec":{"taints":[]}}',
                content_type="application/merge-patch+json",
            ),
            id="another field",
        ),
    ],
)
async def test_region_takes_only_listed_requests_even_from_an_operator(region: World, request_: RegionRequest) -> None:
    who = asserted_principal("ada", (OPERATORS,))
    assert (await AssertedCalls(region.app).call(who, request_)).code == 403


async def test_asserted_groups_are_those_of_people() -> None:
    who = asserted_principal("holdfast:controller:authority", (CONTROLLERS, VIEWERS))
    assert not who.roles and CONTROLLERS not in who.groups


async def test_tenant_reads_the_log_of_its_own_replica_only(world: World, region: World) -> None:
    rows = [{"at": "2026-01-02T03:04:01Z", "stream": "stdout", "text": "<b>line</b>"}]
    own = await browser_of(world, (f"{TENANT_PREFIX}shop",), "shop-user")
    other = await browser_of(world, (f"{TENANT_PREFIX}other",), "other-user")
    assert (await other.call("GET", LOG)).code == 403
    assert ("other-user", "get", "Forbidden") in await refusals(world)
    agent_answers = asyncio.create_task(answered(region, rows))
    while "n1" not in region.app.agent_rpc.agents:
        await asyncio.sleep(0)
    reply = await own.call("GET", LOG)
    await agent_answers
    assert (reply.code, reply.body) == (200, b"2026-01-02T03:04:01Z <b>line</b>\n")
    assert reply.headers["content-type"] == "text/plain" and reply.headers["x-content-type-options"] == "nosniff"


async def test_log_of_a_silent_agent_and_of_a_missing_region_say_why(world: World, region: World) -> None:
    browser = Browser(world)
    await browser.sign_in(code=await link_code(world))
    silent = await browser.call("GET", LOG)
    assert silent.code == 503 and "agent is not connected" in silent.json["message"]
    away: Any = await browser.call("GET", LOG.replace("/west/", "/east/"))
    assert away.code == 503 and "not connected" in away.json["message"]


async def test_live_pages_are_answered_while_the_past_is_being_read(
    world: World, region: World, monkeypatch: Any
) -> None:
    reading = asyncio.Event()

    async def stuck(self: Any, at_s: float) -> Any:
        await reading.wait()
        raise Expired("not kept")

    monkeypatch.setattr("holdfast.console.past.CellHistory.reader", stuck)
    hub = present(world.app.console).hub
    viewer = viewer_of(asserted_principal("ada", (OPERATORS,)))
    asking = [asyncio.ensure_future(hub.ask("west", "summary", viewer, at=str(i + 1))) for i in range(8)]
    await asyncio.sleep(0.05)
    known = await hub.ask("west", "summary", viewer)
    assert known.answer is not None and not known.problem
    reading.set()
    assert all("not kept" in found.problem for found in await asyncio.gather(*asking))


async def test_map_shows_what_the_agent_measured(world: World, region: World) -> None:
    hub = present(world.app.console).hub
    viewer = viewer_of(asserted_principal("ada", (OPERATORS,)))
    rows = [{"namespace": "shop", "workload": "web", "replica": f"web-{i}", "cpu": 500, "memory": 1} for i in (0, 1)]
    agent_answers = asyncio.create_task(answered(region, rows))  # type: ignore[arg-type]
    while "n1" not in region.app.agent_rpc.agents:
        await asyncio.sleep(0)

    async def used() -> Any:
        known = await hub.ask("west", "map", viewer, resource="cpu")
        return present(present(known.answer).data["zones"][0]).get("used")

    assert await used() == [], "the first map does not wait for the agents"
    await agent_answers
    async with asyncio.timeout(30.0):
        while await used() != [250]:  # 1 of 4 CPUs
            await asyncio.sleep(0.1)


async def test_token_that_is_limited_to_the_global_cell_reaches_no_region(world: World, region: World) -> None:
    limited = Browser(world)
    token = world.tokens.issue("gloria", "gloria", (OPERATORS,), cells=("global",))
    assert (await limited.sign_in(token=token)).code == 200
    found = (await limited.call("GET", "/console/api/pages/overview")).json["data"]["regions"][0]
    assert found["asOf"] == 0.0 and "your token is not valid in region west" in found["problem"]
    for method, path in (("GET", NODE), ("GET", LOG), ("PATCH", NODE)):
        reply = await limited.call(method, path, CORDON if method == "PATCH" else None, headers=MERGE)
        assert reply.code == 403 and "not valid in region west" in reply.json["message"]
    assert not spec_of(region).unschedulable
    assert ("gloria", "patch", "Forbidden") in await refusals(world)
    ada = Browser(world)
    await ada.sign_in(code=await link_code(world))
    other = (await ada.call("GET", "/console/api/pages/overview")).json["data"]["regions"][0]
    assert not other["problem"], "answers are not shared with a caller that reaches less"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", NODE), ("GET", f"{NODE}/usage"), ("POST", "/console/api/what-if")],
    ids=["node", "usage", "what-if"],
)
async def test_tenant_is_refused_what_shows_other_tenants(world: World, region: World, method: str, path: str) -> None:
    tenant = await browser_of(world, (f"{TENANT_PREFIX}shop",), "tina")
    body = "kind: Workload" if method == "POST" else None
    assert (await tenant.call(method, path, body)).code == 403
    assert ("tina", "get" if method == "GET" else "read", "Forbidden") in await refusals(world)


async def test_what_if_refuses_what_would_cost_too_much(world: World) -> None:
    browser = Browser(world)
    await browser.sign_in(code=await link_code(world))
    for body, text in (
        (b"a: 1\n---\n" * 200, "too many documents"),
        (b"a: &a [x]\nb: *a", "anchors and aliases"),
        (b"kind: Node", "no Workload in it"),
        (b"kind: Workload\nspec: {replicas: many}", "not a valid Workload"),
    ):
        reply = await browser.call("POST", "/console/api/what-if", body)
        assert reply.code == 400 and text in reply.json["message"]
    assert (await browser.call("POST", "/console/api/what-if", b"x" * (64 * 1024 + 1))).code == 413
