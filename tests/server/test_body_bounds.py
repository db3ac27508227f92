"""Every route bounds the body that it reads, before it reads it, and no body costs much to decode."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.hostile_bodies import HOSTILE, VALUES_OF_PARAMETERS, body_routes

from holdfast.model.errors import BadRequest, Overloaded
from holdfast.model.principal import Principal, from_identity
from holdfast.server import flow_control
from holdfast.server.flow_control import FlowControl, PriorityLevel
from holdfast.server.patches import json_patch
from holdfast.server.request import MAX_BODY_BYTES, MAX_JOIN_BYTES
from holdfast.server.request_bodies import MAX_BODY_VALUES, MAX_YAML_VALUES, decode_json, decode_yaml
from holdfast.server.router import Route
from holdfast.server.routes import ROUTES
from holdfast.server.status import HttpRefusal

from .conftest import WORKLOADS, Api, World, workload

# CPU time of one hostile request, including routing and the response. It was 1.2 s for 396 KB of YAML.
CPU_MAX_S = 0.5
PATHS = [pytest.param(method, path, route, id=f"{method} {route.pattern}") for method, path, route in body_routes()]


def test_every_route_parameter_has_a_sample_value() -> None:
    named = {part[1:-1] for route in ROUTES for part in route.pattern.split("/") if part.startswith("{")}
    assert named <= VALUES_OF_PARAMETERS.keys()


@pytest.mark.parametrize(("method", "path", "route"), PATHS)
def test_route_that_takes_a_body_bounds_it(method: str, path: str, route: Route) -> None:
    assert 0 < route.max_body_bytes <= MAX_BODY_BYTES
    if route.access == "open":
        assert route.max_body_bytes <= MAX_JOIN_BYTES, "anyone may send this body"


def test_route_without_a_body_reads_none() -> None:
    assert all(not route.max_body_bytes for route in ROUTES if {"GET", "HEAD"} & set(route.methods))


class SlowSender:
    """A client that sends a body without end and counts what the server takes of it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.taken = 0
        self.code = 0

    async def send(self, method: str, path: str, declared: int | None) -> None:
        headers = [("content-type", "application/json")]
        headers.append(("transfer-encoding", "chunked") if declared is None else ("content-length", str(declared)))

        async def receive() -> Any:
            self.taken += 16_384
            return {"type": "http.request", "body": b" " * 16_384, "more_body": True}

        async def send(message: Any) -> None:
            self.code = message.get("status", self.code)

        await asyncio.wait_for(self._api.app(self._api.scope(method, path, headers), receive, send), 10)


@pytest.mark.parametrize("user", ["", "tim", "ada", "holdfast:node:west:n1"])
@pytest.mark.parametrize(("method", "path", "route"), PATHS)
async def test_larger_body_is_refused_before_it_is_kept(
    region: World, user: str, method: str, path: str, route: Route
) -> None:
    declared, streamed = SlowSender(Api(region.app, user)), SlowSender(Api(region.app, user))
    await declared.send(method, path, route.max_body_bytes + 1)
    assert declared.code in (401, 403, 404, 405, 413) and declared.taken == 0
    await streamed.send(method, path, None)
    assert streamed.code in (401, 403, 404, 405, 413)
    if streamed.code != 413:
        assert streamed.taken == 0, "a refused caller's body is not read"
    assert streamed.taken <= route.max_body_bytes + 16_384


async def test_body_of_a_refused_caller_is_not_read(world: World) -> None:
    for path in ("/placement/v1/reserve", "/placement/v1/renew", "/node/v1/n1/responses/n1.x", "/notify/v1"):
        sender = SlowSender(Api(world.app, "tim"))
        await sender.send("POST", path, None)
        assert (sender.code, sender.taken) == (403, 0), path


@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_body_is_refused_at_bounded_cost(world: World, what: str) -> None:
    """Each body on each route that a tenant can reach, with the body's own type."""
    content_type, body = HOSTILE[what]
    api = Api(world.app, "tim")
    assert (await api.post(WORKLOADS, workload())).code == 201
    sent = 0
    for method, path, route in body_routes():
        if "workloads" not in path and "events" not in path and "review" not in path and route.access == "authorized":
            continue
        began = time.process_time()
        reply = await api.call(method, path, body, type=content_type)
        cost_s = time.process_time() - began
        assert 400 <= reply.code < 500, (method, path, reply.body[:200])
        assert reply.json["kind"] == "Status"
        assert cost_s < CPU_MAX_S, (method, path, reply.code, cost_s)
        sent += reply.code not in (403, 404, 405)
    assert sent >= 5, "the body reached no decoder"


def test_body_at_the_limit_is_decoded() -> None:
    assert len(decode_json(b"[" + b"1," * (MAX_BODY_VALUES - 2) + b"1]")) == MAX_BODY_VALUES - 1
    with pytest.raises(HttpRefusal, match="too many values"):
        decode_json(b"[" + b"1," * MAX_BODY_VALUES + b"1]")
    assert len(decode_yaml(b"- 1\n" * (MAX_YAML_VALUES - 1))) == MAX_YAML_VALUES - 1
    commas = b'{"a":"' + b"[{,\\\\" * 50_000 + b'","b":"' + b'\\"{' * 50_000 + b'"}'
    assert decode_json(commas).keys() == {"a", "b"}, "separators inside strings are no values"


def test_json_patch_of_repeated_copies_is_refused() -> None:
    with pytest.raises(BadRequest, match="copies too many values"):
        json_patch({"a": {"b": 1}}, [{"op": "copy", "from": "", "path": f"/a/c{n}"} for n in range(40)])


# The price of a body ---------------------------------------------------------------------------------------------


def tenant_user(tenant: str) -> Principal:
    return from_identity(tenant, (f"holdfast:tenant:{tenant}",), credential="test")


def test_components_pay_nothing_and_people_pay_by_cost() -> None:
    flow = FlowControl()
    queues = flow._queues
    assert queues["users"].seats_for(0) == queues["users"].seats_for(50) == 1
    assert queues["users"].seats_for(MAX_BODY_VALUES) == 32
    assert queues["agents"].seats_for(MAX_BODY_VALUES) == queues["controllers"].seats_for(MAX_BODY_VALUES) == 1


async def test_expensive_bodies_run_one_after_another_while_agents_pass() -> None:
    flow = FlowControl()
    inside = most = 0

    async def expensive(tenant: str) -> None:
        nonlocal inside, most
        async with flow.admit(tenant_user(tenant), tenant, values=MAX_BODY_VALUES):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    running = [asyncio.create_task(expensive(f"t{n % 3}")) for n in range(9)]
    await asyncio.sleep(0)
    agent = from_identity("holdfast:node:west:n1", ("holdfast:nodes",), credential="test")
    async with asyncio.timeout(0.005):
        async with flow.admit(agent, "", values=MAX_BODY_VALUES):
            pass
    await asyncio.gather(*running)
    assert most == 2, "two bodies of half a level each"


async def test_body_bytes_in_memory_are_bounded_per_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = PriorityLevel("users", 8, 8, 5.0, 2, max_body_bytes=400)
    monkeypatch.setitem(flow_control.PRIORITY_LEVELS, "users", lane)
    flow = FlowControl()
    with flow.body_account(tenant_user("one"), "one") as first, flow.body_account(tenant_user("one"), "one") as second:
        first.count(60)
        with pytest.raises(Overloaded):
            second.count(60)
        with flow.body_account(tenant_user("two"), "two") as other:
            other.count(100)
    with flow.body_account(tenant_user("one"), "one") as again:
        again.count(100)


async def test_forwarded_renewal_has_the_priority_of_its_agent(region: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server forwards it under its own certificate, which has no priority level of its own."""
    import base64

    from .conftest import GROUPS

    monkeypatch.setitem(GROUPS, "holdfast:server:west", ("holdfast:servers",))
    lane = PriorityLevel("users", 0, 0, 0.01, 2)
    monkeypatch.setitem(flow_control.PRIORITY_LEVELS, "users", lane)
    region.app.flow = FlowControl()
    who = b'{"name":"holdfast:node:west:n1","groups":["holdfast:nodes"]}'
    api = Api(region.app, "holdfast:server:west", [("x-holdfast-forwarded-for", base64.b64encode(who).decode())])
    reply = await api.post("/placement/v1/renew", {"items": [{"node": "n1"}]})
    assert reply.code == 400 and "does not place replicas" in reply.json["message"]
