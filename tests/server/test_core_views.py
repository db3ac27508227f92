"""core/v1 nodes and pods, as kubectl's cordon and drain use them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests import factories

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.kinds import BY_NAME
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeSpec
from holdfast.model.principal import agent
from holdfast.model.replica import PlacementBlock, Replica, ReplicaSpec
from holdfast.model.template import Template
from holdfast.model.times import parse_time
from holdfast.model.workload import Disruption
from holdfast.model.writes import Create, SetStatus

from .conftest import Api, World

STRATEGIC = "application/strategic-merge-patch+json"
POD = "/api/v1/namespaces/shop/pods/web-0.1"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-0.1", "namespace": "shop"}}


@pytest.fixture
async def api(region: World) -> Api:
    """Two nodes, a replica on each."""
    for index, name in enumerate(("n1", "n2")):
        node = Node(metadata=ObjectMeta(name=name), spec=NodeSpec(zone="west-a", capacity={"cpu": "4"}))
        await region.gate.commit(agent(name, region="west"), [Create(node)])
        spec = BindingSpec(
            replica=f"web-{index}",
            intent=Intent(f"uid-{index}", "h", 1),
            node=name,
            workload="web",
            template=Template(command=("serve",), termination_grace_seconds=7),
            resources={"cpu": "500m"},
        )
        claim = Binding(metadata=ObjectMeta(name=f"web-{index}.1", namespace="shop"), spec=spec)
        await region.commit(Create(claim), role="authority")
    return Api(region.app)


def node(region: World, name: str = "n1") -> Node:
    found = region.objects.get(BY_NAME["Node"], "", name)
    assert isinstance(found, Node)
    return found


async def test_core_node_shows_core_and_holdfast_fields(api: Api, region: World) -> None:
    live = ContactBlock(state=ContactState.LIVE, since="2026-01-02T03:04:05Z", reason="LeaseRenewed")
    await region.commit(
        SetStatus("Node", Key("", "n1"), node(region).uid, blocks={"contact": live}), role="node-health"
    )
    seen = (await api.get("/api/v1/nodes/n1")).json
    assert (seen["apiVersion"], seen["kind"]) == ("v1", "Node")
    assert seen["spec"]["zone"] == "west-a" and seen["status"]["contact"]["state"] == "Live"
    assert seen["status"]["capacity"] == {"cpu": "4"}
    assert [(c["type"], c["status"]) for c in seen["status"]["conditions"]] == [("Ready", "True")]
    listed = (await api.get("/api/v1/nodes")).json
    assert listed["kind"] == "NodeList" and [n["metadata"]["name"] for n in listed["items"]] == ["n1", "n2"]


async def test_node_conditions_have_heartbeat_time_of_lease(api: Api, region: World) -> None:
    """`kubectl describe node` shows a missing time as one of the year 1."""
    lease = NodeLease(epoch=1, renewed_at_s=parse_time("2026-02-03T04:05:06Z"), ttl_s=15.0)
    page = LeasePage(metadata=ObjectMeta(name="page-0"), spec=LeasePageSpec(page=0, leases={"n1": lease}))
    await region.commit(Create(page), role="authority")
    renewed, other = (await api.get("/api/v1/nodes")).json["items"]
    assert {c["lastHeartbeatTime"] for c in renewed["status"]["conditions"]} == {"2026-02-03T04:05:06Z"}
    assert {c["lastHeartbeatTime"] for c in other["status"]["conditions"]} == {other["metadata"]["creationTimestamp"]}
    assert (await api.get("/api/v1/nodes/n1")).json["status"] == renewed["status"]
    plain = (await api.get("/apis/holdfast.dev/v1/nodes/n1")).json
    assert "lastHeartbeatTime" not in str(plain), "a heartbeat is not part of the Node"
    done = await api.call("PUT", "/api/v1/nodes/n1", {**renewed, "spec": {**renewed["spec"], "unschedulable": True}})
    assert done.code == 200 and node(region).spec.unschedulable, "the object as read can be written back"


async def test_deleting_a_core_node_says_what_to_do_instead(api: Api, region: World) -> None:
    refused = await api.call("DELETE", "/api/v1/nodes/n1")
    assert refused.code == 405 and "holdfast node drain" in refused.json["message"]
    assert node(region).metadata.name == "n1"


async def test_uncordon_also_ends_a_drain(api: Api, region: World) -> None:
    done = await api.call("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}, type=STRATEGIC)
    assert done.code == 200 and done.json["spec"]["unschedulable"] is True
    assert node(region).spec.unschedulable and node(region).spec.zone == "west-a"
    await api.merge("/apis/holdfast.dev/v1/nodes/n1", {"spec": {"drain": True, "drainSeconds": 60}})
    await api.call("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": None}}, type=STRATEGIC)
    spec = node(region).spec
    assert (spec.unschedulable, spec.drain, spec.drain_seconds) == (False, False, 0.0), "uncordon also ends a drain"


async def test_pods_of_node_are_its_bindings(api: Api) -> None:
    listed = (await api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&limit=500")).json
    (pod,) = listed["items"]
    assert (listed["kind"], pod["metadata"]["name"], pod["spec"]["nodeName"]) == ("PodList", "web-0.1", "n1")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Replica", "web-0", True)
    assert (await api.get(POD)).json["status"]["phase"] == "Pending", "the agent has not reported yet"


async def test_write_to_pod_is_not_allowed(api: Api, region: World) -> None:
    pod = (await api.get(POD)).json
    for method, path, body in (
        ("PUT", POD, pod),
        ("PATCH", POD, {}),
        ("POST", "/api/v1/namespaces/shop/pods", pod),
        ("DELETE", "/api/v1/namespaces/shop/pods", None),
        ("DELETE", "/api/v1/nodes/n1", None),
    ):
        assert (await api.call(method, path, body)).code == 405, (method, path)
    assert region.objects.get(BY_NAME["Binding"], "shop", "web-0.1") is not None


async def cordon(api: Api) -> None:
    done = await api.call("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}, type=STRATEGIC)
    assert done.code == 200


async def test_eviction_sets_drain_on_a_cordoned_node(api: Api, region: World) -> None:
    await cordon(api)
    assert (await api.post(f"{POD}/eviction", {**EVICTION, "deleteOptions": {"dryRun": ["All"]}})).code == 201
    assert not node(region).spec.drain
    assert (await api.post(f"{POD}/eviction", EVICTION)).code == 201
    assert node(region).spec.drain and node(region).spec.unschedulable and not node(region, "n2").spec.drain
    other = {**EVICTION, "deleteOptions": {"preconditions": {"uid": "another"}}}
    assert (await api.post(f"{POD}/eviction", other)).code == 409
    gone = await api.post(POD.replace("web-0", "web-9") + "/eviction", EVICTION)
    assert gone.code == 404


async def serving_replica(region: World, max_unavailable: int) -> None:
    """The replica of the pod serves."""
    made = factories.replica(
        0, factories.assignment("web", "west", namespace="shop"), status=factories.serving_status()
    )
    status = msgspec.structs.replace(
        made.status, placement=PlacementBlock(attempt=1, node="n1", binding="web-0.1", reservation="web-0.1")
    )
    spec = msgspec.structs.replace(made.spec, disruption=Disruption(max_unavailable=max_unavailable))
    await region.commit(
        Create(Replica(metadata=ObjectMeta(name="web-0", namespace="shop"), spec=spec)), role="replicate"
    )
    stored = region.objects.get(BY_NAME["Replica"], "shop", "web-0")
    assert stored is not None
    for role, name in (("authority", "placement"), ("serve", "traffic")):
        blocks = {name: getattr(status, name)}
        await region.commit(SetStatus("Replica", stored.key, stored.uid, blocks=blocks), role=role)
    response = SetStatus("Replica", stored.key, stored.uid, blocks={"execution": status.execution})
    await region.gate.commit(agent("n1", region="west"), [response])


async def test_eviction_blocked_by_budget_returns_429_without_retry_after(api: Api, region: World) -> None:
    await serving_replica(region, 0)
    await cordon(api)
    waits = await api.post(f"{POD}/eviction", EVICTION)
    assert waits.code == 429
    assert "shop/web-0: disruption budget: disruption.maxUnavailable is 0" in waits.json["message"]
    assert node(region).spec.drain, "the drain request stays"
    # With Retry-After, client-go would retry ten times within one request, and kubectl would exceed its --timeout.
    assert "retry-after" not in waits.headers and "retryAfterSeconds" not in waits.json["details"]


@pytest.mark.parametrize("user", ["ada", "tim"])
async def test_eviction_from_a_schedulable_node_deletes_only_the_replica(api: Api, region: World, user: str) -> None:
    await serving_replica(region, 1)
    dry = {**EVICTION, "deleteOptions": {"dryRun": ["All"]}}
    assert (await api.as_user(user).post(f"{POD}/eviction", dry)).code == 201
    assert not terminating(region)
    assert (await api.as_user(user).post(f"{POD}/eviction", EVICTION)).code == 201
    assert terminating(region) and not node(region).spec.drain


async def test_pod_deletion_respects_the_budget_unless_forced(api: Api, region: World) -> None:
    await serving_replica(region, 0)
    blocked = await api.as_user("tim").delete(POD)
    assert blocked.code == 429 and "disruption budget" in blocked.json["message"] and not terminating(region)
    assert (await api.as_user("nobody").delete(POD)).code == 403
    assert (await api.as_user("tim").delete(POD, {"gracePeriodSeconds": 0})).code == 200
    assert terminating(region) and region.objects.get(BY_NAME["Binding"], "shop", "web-0.1") is not None


async def test_pod_deletion_in_a_region_without_a_share_says_what_helps(api: Api, region: World) -> None:
    """No share is requested for one pod, so the message must not promise one."""
    made = factories.assignment("web", "west", namespace="shop", disruption=Disruption(max_unavailable=1))
    without_share = msgspec.structs.replace(made.spec, disruption_share=0)
    copy = Assignment(metadata=ObjectMeta(name=made.metadata.name, namespace="shop"), spec=without_share)
    await region.commit(Create(copy), role="link")
    await serving_replica(region, 1)
    deleted = await api.as_user("tim").delete(POD)
    assert deleted.code == 429 and not terminating(region)
    assert "no share of maxUnavailable 1 at the moment; drain the node" in deleted.json["message"]
    assert "was requested" not in deleted.json["message"]
    await cordon(api)
    drained = await api.post(f"{POD}/eviction", EVICTION)
    assert drained.code == 429 and "a share was requested from the global cell" in drained.json["message"]


def terminating(region: World) -> bool:
    found = region.objects.get(BY_NAME["Replica"], "shop", "web-0")
    return found is None or found.metadata.terminating


async def test_concurrent_evictions_of_one_node_all_succeed(api: Api, region: World) -> None:
    await cordon(api)
    answers = await asyncio.gather(*(api.post(f"{POD}/eviction", EVICTION) for _ in range(12)))
    assert {a.code for a in answers} == {201} and node(region).spec.drain


async def test_eviction_by_user_never_drains_a_node(api: Api, region: World) -> None:
    await cordon(api)
    assert (await api.as_user("tim").post(f"{POD}/eviction", EVICTION)).code == 404, "the pod has no replica"
    assert (await api.as_user("nobody").post(f"{POD}/eviction", EVICTION)).code == 403
    for user in ("tim", "nobody"):
        assert (await api.as_user(user).get("/api/v1/pods")).code == 403
    assert not node(region).spec.drain


async def test_discovery_lists_eviction_subresource(api: Api) -> None:
    rows = {r["name"]: r for r in (await api.get("/api/v1")).json["resources"]}
    assert rows["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "kind": "Eviction",
        "verbs": ["create"],
        "group": "policy",
        "version": "v1",
    }
    assert "deletecollection" not in rows["pods"]["verbs"] and rows["nodes"]["verbs"] == [
        "get",
        "list",
        "watch",
        "patch",
        "update",
    ]


async def answered(region: World, lines: list[dict[str, str]]) -> None:
    """Plays the agent: reads the call from its stream and posts the rows."""
    node = Api(region.app, "holdfast:node:west:n1")
    async with node.watch("/node/v1/n1/calls") as asks:
        ask = await asks.next()
        path = f"/node/v1/n1/responses/{ask['id']}"
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        assert (await node.call("POST", path, b"")).json == {"more": True}
        await node.call("POST", f"{path}?end=true", body)


async def test_pod_log_is_served_by_the_agent(api: Api, region: World) -> None:
    silent = await api.get(f"{POD}/log")
    assert silent.code == 503 and "node n1: its agent is not connected" in silent.json["message"]
    rows = [{"at": f"2026-01-02T03:04:0{i}Z", "stream": "stdout", "text": f"line {i}"} for i in (1, 2)]
    for query, text in (
        ("", "line 1\nline 2\n"),
        ("?limitBytes=9", "line 1\nli"),
        ("?timestamps=true", "2026-01-02T03:04:01Z line 1\n2026-01-02T03:04:02Z line 2\n"),
    ):
        agent_answers = asyncio.create_task(answered(region, rows))
        while "n1" not in region.app.agent_rpc.agents:
            await asyncio.sleep(0)
        response = await api.get(f"{POD}/log{query}")
        await agent_answers
        assert (response.code, response.body.decode()) == (200, text)
    assert not region.app.agent_rpc.pending and not region.app.agent_rpc.responding
    assert (await api.get(f"{POD}/log?tailLines=many")).code == 400
    assert (await api.get(POD.replace("web-0", "web-9") + "/log")).code == 404


async def test_pod_log_with_agent_error_returns_503(api: Api, region: World) -> None:
    agent_answers = asyncio.create_task(answered(region, [{"error": "replica web-0: no logs on node n1"}]))
    while "n1" not in region.app.agent_rpc.agents:
        await asyncio.sleep(0)
    response = await api.get(f"{POD}/log")
    await agent_answers
    assert response.code == 503 and "node n1: replica web-0: no logs" in response.json["message"]


async def test_previous_log_says_why_there_is_none(region: World) -> None:
    """A replica that never restarted, and one whose earlier node was removed."""
    template = Template(command=("serve",))
    spec = ReplicaSpec(workload="web", workload_uid="u", assignment="web.west", template=template, revision="r1")
    for name, placed in (
        ("here-0", PlacementBlock(node="n1", binding="here-0.1", attempt=1)),
        ("moved-0", PlacementBlock(node="n1", binding="moved-0.2", attempt=2, last_node="removed")),
        ("waits-0", PlacementBlock(attempt=1)),
    ):
        made = Replica(metadata=ObjectMeta(name=name, namespace="shop"), spec=spec)
        await region.commit(Create(made), role="replicate")
        held = region.objects.get(BY_NAME["Replica"], "shop", name)
        assert isinstance(held, Replica)
        await region.commit(SetStatus("Replica", held.key, held.uid, blocks={"placement": placed}), role="authority")
    api = Api(region.app)

    async def said(name: str) -> str:
        answer = await api.post(f"/agent/v1/replicas/shop/{name}", {"kind": "Logs", "previous": True})
        assert answer.code == 404
        return str(answer.json["message"])

    assert await said("here-0") == (
        "replica shop/here-0: has no earlier run: it never restarted; next: ask for its log without --previous"
    )
    assert "its logs were on node removed, which has been removed from the region" in await said("moved-0")
    assert await said("waits-0") == "replica shop/waits-0: not placed on a node"
