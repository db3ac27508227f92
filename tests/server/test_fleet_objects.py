"""Nodes, pods and replicas of all regions in the API of the global cell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient
from tests.agent.agent_world import eventually
from tests.expected import present

from holdfast.console import region_calls
from holdfast.console.region_reads import RegionReader, region_history
from holdfast.console.uplink import ConsoleUplink
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node, NodeSpec
from holdfast.model.principal import NODES, agent
from holdfast.model.template import Template
from holdfast.model.writes import Create
from holdfast.server import fleet_watch
from holdfast.server.asserted_calls import AssertedCalls

from . import conftest
from .conftest import Api, World, running
from .test_console_regions import HubClient

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class ConnectedRegion:
    """A region of the global cell that can be cut off from it."""

    def __init__(self, name: str, world: World, cell: World) -> None:
        self.name, self.cell, self._world = name, cell, world
        self._uplink: asyncio.Future[None] | None = None

    async def connect(self) -> None:
        reader = RegionReader(self.name, self.cell.objects, self.cell.ports)
        history = region_history(self.name, self.cell.objects, self.cell.ports)
        client = HubClient(present(self._world.app.console).hub)
        uplink = ConsoleUplink(client, reader, history, AssertedCalls(self.cell.app))
        self._uplink = asyncio.ensure_future(uplink.run())
        await asyncio.sleep(0)

    async def cut(self) -> None:
        if self._uplink is not None:
            self._uplink.cancel()
            await asyncio.wait({self._uplink})

    async def add_node(self, name: str) -> None:
        node = Node(metadata=ObjectMeta(name=name), spec=NodeSpec(zone=f"{self.name}-a", capacity={"cpu": "4"}))
        await self.cell.gate.commit(agent(name, region=self.name), [Create(node)])

    async def add_pod(self, name: str, node: str, tenant: str = "shop") -> None:
        spec = BindingSpec(
            replica=name,
            intent=Intent(f"uid-{name}", "h", 1),
            node=node,
            workload="web",
            template=Template(command=("serve",)),
            resources={"cpu": "500m"},
        )
        claim = Binding(metadata=ObjectMeta(name=f"{name}.1", namespace=tenant), spec=spec)
        await self.cell.commit(Create(claim), role="authority")


@asynccontextmanager
async def connected(world: World, name: str, folder: Path) -> AsyncIterator[ConnectedRegion]:
    folder.mkdir()
    async for cell in running(name, folder):
        made = ConnectedRegion(name, world, cell)
        await made.connect()
        try:
            yield made
        finally:
            await made.cut()


@pytest.fixture
async def regions(world: World, tmp_path: Path) -> AsyncIterator[dict[str, ConnectedRegion]]:
    """East and west with two nodes and two pods each."""
    async with AsyncExitStack() as stack:
        made = {}
        for name in ("east", "west"):
            if world.objects.get(BY_NAME["Region"], "", name) is None:
                body = {"apiVersion": "holdfast.dev/v1", "kind": "Region", "metadata": {"name": name}}
                body["spec"] = {"zones": [f"{name}-a"]}
                assert (await Api(world.app).post("/apis/holdfast.dev/v1/regions", body)).code == 201
            region = await stack.enter_async_context(connected(world, name, tmp_path / name))
            for index in range(2):
                await region.add_node(f"{name}-{index}")
                await region.add_pod(f"web-{name}-{index}", f"{name}-{index}")
            made[name] = region
        yield made


def names(body: Any) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_nodes_of_all_regions_are_one_list_with_their_region(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    reply = await Api(world.app).get("/api/v1/nodes")
    assert names(reply.json) == ["east-0", "east-1", "west-0", "west-1"] and not reply.warnings
    assert {i["metadata"]["labels"]["topology.kubernetes.io/region"] for i in reply.json["items"]} == {"east", "west"}
    typed = ApiClient().deserialize(reply.body.decode(), "V1NodeList", "application/json")
    assert [node.metadata.name for node in typed.items] == names(reply.json)


async def test_table_has_region_behind_the_name_and_the_time_of_the_answer_at_the_end(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    for path in ("/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/shop/pods"):
        table = (await Api(world.app).get(f"{path}?limit=500", accept=TABLE)).json
        columns = [c["name"] for c in table["columnDefinitions"]]
        assert columns[:2] == ["Name", "Region"] and columns[-1] == "Answered"
        assert [(row["cells"][1], row["cells"][-1]) for row in table["rows"]] == [("east", "now")] * 2 + [
            ("west", "now")
        ] * 2
        assert all(len(row["cells"]) == len(columns) for row in table["rows"])
    one = (await Api(world.app).get("/api/v1/nodes/west-1", accept=TABLE)).json
    assert one["rows"][0]["cells"][:2] == ["west-1", "west"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_pages_hold_every_object_once_in_the_order_of_regions(
    world: World, regions: dict[str, ConnectedRegion], limit: int
) -> None:
    api, found, token, revisions = Api(world.app), [], "", set()
    while True:
        page = (await api.get(f"/api/v1/nodes?limit={limit}" + (f"&continue={token}" if token else ""))).json
        assert len(page["items"]) <= limit
        found += names(page)
        revisions.add(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == ["east-0", "east-1", "west-0", "west-1"] and len(revisions) == 1


async def test_selectors_are_answered_by_the_regions_and_the_region_label_by_the_global_cell(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    api = Api(world.app)
    west = await api.get("/api/v1/nodes?labelSelector=topology.kubernetes.io/region%3Dwest,kubernetes.io/os%3Dlinux")
    assert names(west.json) == ["west-0", "west-1"]
    none = await api.get("/api/v1/nodes?labelSelector=topology.kubernetes.io/region%20notin%20(east,west)")
    assert names(none.json) == []
    one = await api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Deast-1")
    assert names(one.json) == ["web-east-1.1"]
    assert (await api.get("/api/v1/pods?fieldSelector=spec.colour%3Dred")).code == 400
    assert (await api.get("/api/v1/nodes?continue=nonsense")).code == 400


async def test_region_out_of_touch_is_shown_with_the_age_of_its_last_answer(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    api = Api(world.app)
    for accept in (TABLE, "application/json"):
        await api.get("/api/v1/nodes", accept=accept)
    await regions["west"].cut()
    table = await api.get("/api/v1/nodes", accept=TABLE)
    assert [row["cells"][-1] for row in table.json["rows"]][:2] == ["now", "now"]
    assert all(row["cells"][-1].endswith("ago") for row in table.json["rows"][2:])
    assert len(table.warnings) == 1 and "region west: shown as it was" in table.warnings[0]
    plain = (await api.get("/api/v1/nodes")).json
    marked = [
        i["metadata"]["name"]
        for i in plain["items"]
        if "holdfast.dev/answered-at" in i["metadata"].get("annotations", {})
    ]
    assert marked == ["west-0", "west-1"], "a fresh object has no such annotation"
    never = await api.get("/api/v1/pods")
    assert names(never.json) == ["web-east-0.1", "web-east-1.1"]
    assert "region west: not shown" in never.warnings[0]
    missing = await api.get("/api/v1/nodes/west-7")
    assert missing.code == 503, "a region that does not answer may have the node"


async def test_get_finds_the_region_of_an_object(world: World, regions: dict[str, ConnectedRegion]) -> None:
    api = Api(world.app)
    found = (await api.get("/api/v1/namespaces/shop/pods/web-west-0.1")).json
    assert found["metadata"]["labels"]["topology.kubernetes.io/region"] == "west"
    assert (await api.get("/api/v1/nodes/absent")).code == 404
    await regions["west"].add_node("east-0")
    twice = await api.get("/api/v1/nodes/east-0")
    assert twice.code == 409 and "east, west" in twice.json["message"]


async def test_tenant_sees_only_its_own_pods(world: World, regions: dict[str, ConnectedRegion]) -> None:
    await regions["west"].add_pod("hidden", "west-0", tenant="other")
    tenant = Api(world.app, "tim")
    assert (await tenant.get("/api/v1/pods")).code == 403
    assert (await tenant.get("/api/v1/nodes")).code == 403
    assert (await tenant.get("/api/v1/namespaces/other/pods")).code == 403
    own = await tenant.get("/api/v1/namespaces/shop/pods")
    assert own.code == 200 and len(own.json["items"]) == 4
    await regions["west"].cut()
    assert (await tenant.as_user("nobody").get("/api/v1/namespaces/shop/pods")).code == 403, "not even what was kept"


async def test_objects_of_regions_are_only_read_in_the_global_cell(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    api = Api(world.app)
    refused = await api.call("PATCH", "/api/v1/nodes/east-0", {"spec": {}}, type="application/merge-patch+json")
    assert refused.code == 405 and "next: use the context of its region" in refused.json["message"]
    rows = {row["name"]: row["verbs"] for row in (await api.get("/api/v1")).json["resources"]}
    assert rows["nodes"] == rows["pods"] == ["get", "list", "watch"] and "pods/eviction" not in rows
    direct = AssertedCalls(regions["west"].cell.app)
    request = region_calls.RegionRequest(method="GET", path="/apis/holdfast.dev/v1/nodeidentities")
    who = world.app.authenticator.from_certificate(api.scope("GET", "/", ())["holdfast.peer_certificate"])
    assert (await direct.call(who, request)).code == 403, "regions give nothing else to the global cell"


async def test_bound_role_reads_the_pods_of_regions(world: World, regions: dict[str, ConnectedRegion]) -> None:
    api, user, path = Api(world.app), Api(world.app, "nobody"), "/api/v1/namespaces/shop/pods"
    assert (await user.get(path)).code == 403
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop"
    rules = [{"verbs": ["get", "list"], "resources": ["pods"], "apiGroups": [""]}]
    role = {"metadata": {"name": "reader"}, "rules": rules}
    bound = {
        "metadata": {"name": "nobody"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    assert (await api.post(f"{base}/roles", role)).code == 201
    assert (await api.post(f"{base}/rolebindings", bound)).code == 201
    refused = await user.get(path)
    assert names(refused.json) == [] and "it answered 403" in refused.warnings[0], "the region has no copy of the role"
    for region in regions.values():
        for kind, name in (("Role", "reader"), ("RoleBinding", "nobody")):
            made = present(world.objects.get(BY_NAME[kind], "shop", name))
            await region.cell.commit(Create(made), role="link")
    assert len(names((await user.get(path)).json)) == 4
    assert (await user.get(path.replace("shop", "other"))).code == 403


async def use_of(region: ConnectedRegion, node: str, pod: str) -> None:
    """Plays the agent of the node for one call."""
    row = {"namespace": "shop", "workload": "web", "replica": pod, "cpu": 20, "memory": 1 << 20}
    caller = Api(region.cell.app, f"holdfast:node:{region.name}:{node}")
    async with caller.watch(f"/node/v1/{node}/calls") as asked:
        call = await asked.next()
        await caller.call("POST", f"/node/v1/{node}/responses/{call['id']}?end=true", json.dumps(row).encode())


async def test_use_of_all_regions_is_one_list_and_a_silent_region_is_named(
    world: World, regions: dict[str, ConnectedRegion], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {f"holdfast:node:{name}:{name}-0": (NODES,) for name in regions}
    monkeypatch.setattr(conftest, "GROUPS", conftest.GROUPS | nodes)
    monkeypatch.setattr("holdfast.server.pod_metrics.USAGE_FRESH_S", 1_000.0)  # the agents answer once
    api, path = Api(world.app), "/apis/metrics.k8s.io/v1beta1"
    agents = [asyncio.create_task(use_of(r, f"{name}-0", f"web-{name}-0")) for name, r in regions.items()]
    await eventually(lambda: all(region.cell.app.agent_rpc.agents for region in regions.values()))
    pods = await api.get(f"{path}/namespaces/shop/pods")
    await asyncio.gather(*agents)
    assert names(pods.json) == ["web-east-0.1", "web-west-0.1"] and pods.json["kind"] == "PodMetricsList"
    assert pods.json["items"][0]["containers"][0]["usage"] == {"cpu": "20m", "memory": "1024Ki"}
    one = await api.get(f"{path}/nodes/west-0")
    assert (one.json["kind"], one.json["metadata"]["name"]) == ("NodeMetrics", "west-0")
    assert (await api.get(f"{path}/nodes/absent")).code == 404
    assert (await Api(world.app, "tim").get(f"{path}/nodes")).code == 403
    await regions["west"].cut()
    left = await api.get(f"{path}/nodes")
    assert names(left.json) == ["east-0"] and "region west: not shown" in left.warnings[0]


@pytest.mark.parametrize("session", ["exec?command=id&stdout=true", "attach?stdout=true", "portforward"])
async def test_session_with_a_pod_that_no_region_has_is_refused_before_it_opens(
    world: World, regions: dict[str, ConnectedRegion], session: str
) -> None:
    path = "/api/v1/namespaces/shop/pods/absent.1"
    assert (await Api(world.app).get(f"{path}/{session}")).code == 404
    assert (await Api(world.app, "tim").get(f"/api/v1/namespaces/other/pods/x/{session}")).code == 403
    await regions["west"].cut()
    assert (await Api(world.app).get(f"{path}/{session}")).code == 503, "the silent region may have it"


async def test_long_list_is_read_in_pages_that_fit_the_uplink(
    world: World, regions: dict[str, ConnectedRegion], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.asserted_calls.CALL_RESPONSE_BYTES_MAX", 8_000)
    for index in range(2, 30):
        await regions["west"].add_node(f"west-{index}")
    assert len((await Api(world.app).get("/api/v1/nodes")).json["items"]) == 32


async def test_watch_sends_the_changes_of_every_region_after_the_list(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    api = Api(world.app)
    revision = (await api.get("/api/v1/nodes")).json["metadata"]["resourceVersion"]
    async with api.watch(f"/api/v1/nodes?watch=1&resourceVersion={revision}") as events:
        await regions["west"].add_node("west-9")
        added = await events.next(30)
        assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "west-9")
        assert added["object"]["metadata"]["labels"]["topology.kubernetes.io/region"] == "west"
        east = Api(regions["east"].cell.app)
        patch = {"metadata": {"labels": {"rack": "r1"}}}
        assert (await east.merge("/api/v1/nodes/east-0", patch)).code == 200
        changed = await events.next(30)
        assert (changed["type"], changed["object"]["metadata"]["name"]) == ("MODIFIED", "east-0")
    assert (await api.get("/api/v1/nodes?watch=1&resourceVersion=7")).code == 410, "a revision of no list"


async def test_watch_of_tables_without_a_revision_begins_with_every_object(
    world: World, regions: dict[str, ConnectedRegion]
) -> None:
    async with Api(world.app).watch("/api/v1/nodes?watch=1", accept=TABLE) as events:
        found = [await events.next(30) for _ in range(4)]
        assert [e["object"]["rows"][0]["cells"][:2] for e in found] == [
            ["east-0", "east"],
            ["east-1", "east"],
            ["west-0", "west"],
            ["west-1", "west"],
        ]
        assert [bool(e["object"]["columnDefinitions"]) for e in found] == [True, False, False, False]
        await regions["east"].add_node("east-9")
        late = await events.next(30)
        assert late["object"]["rows"][0]["cells"][:2] == ["east-9", "east"]
        assert late["object"]["columnDefinitions"] == []


async def test_watch_ends_with_an_error_when_a_region_falls_silent_or_returns(
    world: World, regions: dict[str, ConnectedRegion], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "SILENCE_MAX_S", 0.2)
    monkeypatch.setattr(fleet_watch, "RETURN_CHECK_EVERY_S", 0.1)
    api = Api(world.app)
    revision = (await api.get("/api/v1/nodes")).json["metadata"]["resourceVersion"]
    async with api.watch(f"/api/v1/nodes?watch=1&resourceVersion={revision}") as events:
        await regions["west"].cut()
        ended = await events.next(30)
        assert (ended["type"], ended["object"]["code"]) == ("ERROR", 503)
    revision = (await api.get("/api/v1/pods")).json["metadata"]["resourceVersion"]
    async with api.watch(f"/api/v1/pods?watch=1&resourceVersion={revision}") as events:
        await regions["west"].connect()
        ended = await events.next(30)
        assert (ended["type"], ended["object"]["code"]) == ("ERROR", 410)
        assert "region west: answers again" in ended["object"]["message"]
