"""Scale, commits, notices, placement, endpoints, metrics and flow control."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.client import wire
from holdfast.client.contract import FencingToken
from holdfast.model.errors import Conflict, Invalid, NotFound, Overloaded
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, PlacementResponse, PlacementResult
from holdfast.model.principal import Principal, from_identity
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Summary, Workload
from holdfast.model.writes import Create, Delete, SetStatus, Update
from holdfast.server import flow_control
from holdfast.server.flow_control import FlowControl, PriorityLevel

from .conftest import V1, WORKLOADS, Api, World, workload


async def test_scale_subresource_reads_and_validates_replicas(api: Api) -> None:
    await api.post(WORKLOADS, workload())
    found = (await api.get(f"{WORKLOADS}/web/scale")).json
    assert (found["kind"], found["apiVersion"], found["spec"]["replicas"]) == ("Scale", "autoscaling/v1", 3)
    assert found["status"]["selector"]
    done = await api.merge(f"{WORKLOADS}/web/scale", {"spec": {"replicas": 5}})
    assert (done.code, done.json["spec"]["replicas"], done.json["kind"]) == (200, 5, "Scale")
    found["spec"]["replicas"] = 6
    assert (await api.put(f"{WORKLOADS}/web/scale", found, type="")).code == 409, "its revision is stale"
    fresh = (await api.get(f"{WORKLOADS}/web/scale")).json
    fresh["spec"]["replicas"] = 6
    assert (await api.put(f"{WORKLOADS}/web/scale", fresh, type="")).json["spec"]["replicas"] == 6
    assert (await api.get(f"{WORKLOADS}/web")).json["metadata"]["generation"] == 3
    for bad in ({"spec": {"replicas": -1}}, {"spec": {"replicas": "x"}}, {"spec": 5}, {"spec": {"replicas": 2**40}}):
        assert (await api.merge(f"{WORKLOADS}/web/scale", bad)).code in (400, 422), bad
    assert (await api.get(f"{V1}/tenants/shop/scale")).code == 404
    assert (await api.as_user("tim").merge(f"{WORKLOADS}/web/scale", {"spec": {"replicas": 2}})).code == 200


async def test_commit_with_one_refused_write_stores_nothing(api: Api, world: World) -> None:
    await api.post(WORKLOADS, workload())
    stored = (await api.get(f"{WORKLOADS}/web")).body
    item = wire.decode_object(stored)
    assert isinstance(item, Workload)
    tenant = Tenant(metadata=ObjectMeta(name="brand-new"))
    stale = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version="1"))
    refused = await api.post("/commit/v1", wire.encode_commit([Create(tenant), Update(stale)]))
    assert refused.code == 409 and isinstance(wire.fault_of(refused.code, refused.body), Conflict)
    assert (await api.get(f"{V1}/tenants/brand-new")).code == 404
    labelled = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels={"x": "y"}))
    done = await api.post("/commit/v1", wire.encode_commit([Create(tenant), Update(labelled)]))
    assert done.code == 200
    result = wire.decode_committed(done.body)
    assert [o.metadata.name for o in result.objects if o] == ["brand-new", "web"]
    assert result.revision == result.objects[1].revision  # type: ignore[union-attr]


async def test_commit_carries_status_blocks_deletions_and_fencing_tokens(api: Api) -> None:
    made = (await api.post(WORKLOADS, workload())).json
    writer = api.as_user("holdfast:controller:workload-status")
    block = SetStatus("Workload", Key("shop", "web"), made["metadata"]["uid"], {"summary": Summary(serving=2)})
    assert (await writer.post("/commit/v1", wire.encode_commit([block]))).code == 200
    assert (await api.get(f"{WORKLOADS}/web")).json["status"]["summary"]["serving"] == 2
    gone = Delete("Workload", Key("shop", "nope"), "u")
    refused = await api.post("/commit/v1", wire.encode_commit([gone]))
    assert isinstance(wire.fault_of(refused.code, refused.body), NotFound)
    stale = wire.encode_commit([block], FencingToken("some-election", 99))
    assert (await writer.post("/commit/v1", stale)).code in (200, 409)
    bad = Create(Workload(metadata=ObjectMeta(name="bad", namespace="shop")))
    refused = await api.post("/commit/v1", wire.encode_commit([bad]))
    fault = wire.fault_of(refused.code, refused.body)
    assert isinstance(fault, Invalid) and fault.causes
    assert (await api.as_user("nobody").post("/commit/v1", wire.encode_commit([bad]))).code == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"writes":5}',
        b'{"writes":[{"op":"create"}]}',
        b'{"writes":[{"op":"x"}]}',
        b'{"writes":[{"op":"create","object":{"kind":"Nope"}}]}',
        b"[" * 5000,
        b'{"writes":[{"op":"\xff"}]}',
        b'{"writes":[{"op":"setStatus","kind":"Event","name":"x","blocks":{"a":1}}]}',
    ],
)
async def test_malformed_commit_is_refused(api: Api, body: bytes) -> None:
    refused = await api.post("/commit/v1", body)
    assert 400 <= refused.code < 500 and refused.json["kind"] == "Status"


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"items":5,"notices":5}', b"[" * 5000, b"\xff"])
@pytest.mark.parametrize("path", ["/notify/v1", "/placement/v1/reserve", "/placement/v1/renew", "/placement/v1/bind"])
async def test_malformed_internal_call_is_refused(api: Api, path: str, body: bytes) -> None:
    refused = await api.post(path, body)
    assert 400 <= refused.code < 500 and refused.json["kind"] == "Status"


async def test_notice_about_existing_object_becomes_event(api: Api) -> None:
    made = (await api.post(WORKLOADS, workload())).json
    about = {"kind": "Workload", "namespace": "shop", "name": "web", "uid": made["metadata"]["uid"]}
    notices = [
        {"about": about, "reason": "Placed", "message": "m"},
        {"about": {**about, "uid": "old"}, "reason": "Stale"},
        {"about": {"kind": "Workload", "name": "nope", "namespace": "shop"}, "reason": "Gone"},
    ]
    response = await api.post("/notify/v1", {"component": "agent", "notices": notices})
    assert (response.code, response.json) == (200, {"received": 3})
    selector = f"involvedObject.uid={made['metadata']['uid']},involvedObject.kind=Workload"
    events = (await api.get(f"/api/v1/namespaces/shop/events?fieldSelector={selector}")).json["items"]
    assert [(e["reason"], e["source"]["component"], e["type"]) for e in events] == [("Placed", "agent", "Normal")]


async def test_user_can_create_and_patch_event(api: Api) -> None:
    event = {
        "metadata": {"generateName": "web."},
        "involvedObject": {"kind": "Workload", "name": "web", "namespace": "shop"},
        "reason": "Tested",
        "type": "Normal",
        "eventTime": None,
        "count": 1,
    }
    made = await api.as_user("tim").post("/api/v1/namespaces/shop/events", event)
    assert made.code == 201, made.json
    path = f"/api/v1/namespaces/shop/events/{made.json['metadata']['name']}"
    counted = await api.call("PATCH", path, {"count": 2}, type="application/strategic-merge-patch+json")
    assert (counted.code, counted.json["count"]) == (200, 2)


class Authority:
    """Accepts every call and records the caller."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any, Any]] = []

    def __getattr__(self, call: str) -> Any:
        async def answer(who: Principal, request: Any, token: Any = None) -> PlacementResponse:
            self.calls.append((call, who.name, request, token))
            return PlacementResponse(
                results=tuple(PlacementResult(result=PlacementOutcome.ACCEPTED) for _ in request.items), revision=7
            )

        return answer


async def test_placement_call_reaches_authority_with_caller_name(region: World) -> None:
    api = Api(region.app)
    refused = await api.as_user("holdfast:controller:scheduler").post("/placement/v1/reserve", {"items": []})
    assert refused.code == 400 and "does not place replicas" in refused.json["message"]
    authority = Authority()
    region.app.placement = authority
    intent = {"replicaUid": "u", "templateHash": "h", "attempt": 1}
    item = {"namespace": "shop", "replica": "r", "intent": intent, "node": "n1"}
    done = await api.as_user("holdfast:controller:scheduler").post("/placement/v1/reserve", {"items": [item]})
    assert msgspec.json.decode(done.body, type=PlacementResponse).revision == 7
    agent = api.as_user("holdfast:node:west:n1")
    assert (await agent.post("/placement/v1/renew", {"items": [{"node": "n1"}]})).code == 200
    assert (await agent.post("/placement/v1/renew", {"items": [{"node": "n2"}]})).code == 403
    assert (await agent.post("/placement/v1/reserve", {"items": [item]})).code == 403
    assert (await api.as_user("tim").post("/placement/v1/release", {"items": []})).code == 403
    assert [(call, who) for call, who, _, _ in authority.calls] == [
        ("reserve", "holdfast:controller:scheduler"),
        ("renew", "holdfast:node:west:n1"),
    ]
    for path in ("/placement/v1/nope", "/placement/v1"):
        assert (await agent.post(path, {})).code == 404


async def test_agent_can_list_only_bindings_of_its_node(region: World) -> None:
    agent = Api(region.app, "holdfast:node:west:n1")
    assert (await agent.get(f"{V1}/bindings?fieldSelector=node=n1")).code == 200
    assert (await agent.get(f"{V1}/bindings?fieldSelector=spec.node=n1")).code == 200
    assert (await agent.get(f"{V1}/bindings?fieldSelector=node=n2")).code == 403
    assert (await agent.get(f"{V1}/bindings?fieldSelector=node!=n1")).code == 403
    assert (await agent.get(f"{V1}/bindings")).code == 403


async def test_metrics_require_permission(api: Api, world: World) -> None:
    await api.get(WORKLOADS)
    text = (await api.get("/metrics")).body.decode()
    assert 'holdfast_server_requests_total{code="200",resource="workloads",verb="list"}' in text
    assert (await api.as_user("tim").get("/metrics")).code == 403
    assert (await api.as_user("").get("/metrics")).code == 401
    assert (await api.as_user("prometheus").get("/metrics")).code == 200
    assert (await api.as_user("prometheus").get(WORKLOADS)).code == 403


# Flow control ----------------------------------------------------------------------------------------------------


def user(name: str, tenant: str) -> Principal:
    return from_identity(name, (f"holdfast:tenant:{tenant}",), credential="test")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> FlowControl:
    lane = PriorityLevel("users", max_running=1, max_queued=8, queue_timeout_s=5.0, max_watches_per_client=2)
    monkeypatch.setitem(flow_control.PRIORITY_LEVELS, "users", lane)
    return FlowControl()


async def test_queued_tenants_are_served_round_robin(narrow: FlowControl) -> None:
    order: list[str] = []
    first = narrow.admit(user("a", "one"), "one")
    await first.__aenter__()

    async def wait(name: str, tenant: str) -> None:
        async with narrow.admit(user(name, tenant), tenant):
            order.append(tenant)

    waiting = [asyncio.create_task(wait("a", "one")) for _ in range(2)]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(wait("b", "two")))
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)
    await asyncio.gather(*waiting)
    assert order == ["one", "two", "one"]


async def test_full_flow_is_refused_while_others_are_served(narrow: FlowControl) -> None:
    async def hold(who: Principal, tenant: str) -> None:
        async with narrow.admit(who, tenant):
            await asyncio.sleep(60)

    held = [asyncio.create_task(hold(user("a", "one"), "one")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        async with narrow.admit(user("a", "one"), "one"):
            pass
    assert refused.value.retry_after_s >= 1
    held.append(asyncio.create_task(hold(user("b", "two"), "two")))
    await asyncio.sleep(0)
    assert not held[-1].done(), "another tenant still has room in the queue"
    operator = from_identity("ada", ("holdfast:operators",), credential="test")
    async with asyncio.timeout(1), narrow.admit(operator, ""):
        pass
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    async with asyncio.timeout(1), narrow.admit(user("a", "one"), "one"):
        pass


async def test_queued_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        flow_control.PRIORITY_LEVELS,
        "users",
        PriorityLevel("users", max_running=1, max_queued=8, queue_timeout_s=0.05, max_watches_per_client=2),
    )
    flow = FlowControl()
    who = user("a", "one")
    async with flow.admit(who, "one"):
        with pytest.raises(Overloaded):
            async with flow.admit(who, "one"):
                pass
    async with flow.admit(who, "one"):
        pass


async def test_overload_response_has_retry_after(api: Api, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        flow_control.PRIORITY_LEVELS,
        "users",
        PriorityLevel("users", max_running=0, max_queued=0, queue_timeout_s=0.05, max_watches_per_client=2),
    )
    world.app.flow = FlowControl()
    refused = await api.as_user("tim").get(WORKLOADS)
    assert (refused.code, refused.json["reason"], refused.headers["retry-after"]) == (429, "TooManyRequests", "1")
    assert (await api.get(WORKLOADS)).code == 200


async def test_watch_above_client_limit_is_refused(api: Api, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        flow_control.PRIORITY_LEVELS,
        "users",
        PriorityLevel("users", max_running=9, max_queued=9, queue_timeout_s=1, max_watches_per_client=1),
    )
    tim = api.as_user("tim")
    async with tim.watch(f"{WORKLOADS}?watch=true"):
        refused = await tim.get(f"{WORKLOADS}?watch=true")
        assert refused.code == 429
    async with tim.watch(f"{WORKLOADS}?watch=true&timeoutSeconds=1"):
        pass
