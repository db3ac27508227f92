"""The official Python client decodes every core kind that is served, with its checks for required fields."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast.model.core import Event, ObjectReference
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import NodeExecution, NodeSystem
from holdfast.model.principal import agent
from holdfast.model.writes import Create, SetStatus

from .conftest import Api, World
from .test_core_views import api

__all__ = ["api"]


def decoded(body: bytes, type_: str) -> Any:
    """Raises ValueError if a field that the client requires is missing."""
    return ApiClient().deserialize(body.decode(), type_, "application/json")


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("/api/v1/nodes", "V1NodeList"),
        ("/api/v1/nodes/n1", "V1Node"),
        ("/api/v1/pods", "V1PodList"),
        ("/api/v1/namespaces/shop/pods/web-0.1", "V1Pod"),
        ("/api/v1/namespaces/shop/events", "CoreV1EventList"),
        ("/apis/coordination.k8s.io/v1/namespaces/shop/leases", "V1LeaseList"),
    ],
)
async def test_typed_client_decodes_the_core_kinds_of_a_region(api: Api, region: World, path: str, type_: str) -> None:
    about = ObjectReference(kind="Replica", namespace="shop", name="web-0", uid="uid-0")
    await region.commit(
        Create(Event(metadata=ObjectMeta(name="e", namespace="shop"), involved_object=about)), role="scheduler"
    )
    reply = await api.get(path)
    assert reply.code == 200
    found = decoded(reply.body, type_)
    assert found.items if type_.endswith("List") and "Lease" not in type_ else found.metadata is not None


async def test_typed_client_decodes_the_namespaces_of_the_global_cell(world: World) -> None:
    found = decoded((await Api(world.app).get("/api/v1/namespaces")).body, "V1NamespaceList")
    assert {n.status.phase for n in found.items} == {"Active"}


async def test_node_info_is_complete_and_shows_the_facts_of_the_agent(api: Api, region: World) -> None:
    before = (await api.get("/api/v1/nodes/n1")).json["status"]["nodeInfo"]
    assert len(before) == 10, "the ten fields that Kubernetes requires, even if empty"
    node = region.objects.get(BY_NAME["Node"], "", "n1")
    assert node is not None
    facts = NodeSystem(architecture="arm64", operating_system="linux", kernel_version="6.1", os_image="Debian 12")
    report = NodeExecution(epoch=1, agent_version="1.2", system=facts)
    write = SetStatus("Node", Key("", "n1"), node.uid, blocks={"execution": report})
    await region.gate.commit(agent("n1", region="west"), [write])
    seen = decoded((await api.get("/api/v1/nodes/n1")).body, "V1Node")
    info = seen.status.node_info
    assert (info.architecture, info.kernel_version, info.os_image) == ("arm64", "6.1", "Debian 12")
    assert info.kubelet_version == "holdfast-1.2"
    assert seen.metadata.labels["topology.kubernetes.io/zone"] == "west-a"
    chosen = await api.get("/api/v1/nodes?labelSelector=kubernetes.io/arch%3Darm64")
    assert [item["metadata"]["name"] for item in chosen.json["items"]] == ["n1"]


async def test_labels_of_the_view_are_not_stored_by_an_update(api: Api, region: World) -> None:
    seen = (await api.get("/api/v1/nodes/n1")).json
    seen["metadata"]["labels"]["rack"] = "r7"
    assert (await api.put("/api/v1/nodes/n1", seen)).code == 200
    stored = region.objects.get(BY_NAME["Node"], "", "n1")
    assert stored is not None and stored.metadata.labels == {"rack": "r7"}
