"""Pods as kubectl and typed clients read them: of a Binding and its Replica, in lists, tables and watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, NodeSpec
from holdfast.model.principal import agent
from holdfast.model.replica import Phase, TrafficBlock
from holdfast.model.writes import Create, SetStatus
from holdfast.store import kind_cache

from .conftest import Api, World
from .pods import CRASHED, BoundPod
from .test_fleet_objects import ConnectedRegion, regions

__all__ = ["regions"]

PODS = "/api/v1/namespaces/shop/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def pod(region: World) -> BoundPod:
    node = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(zone="west-a", capacity={"cpu": "4"}))
    await region.gate.commit(agent("n1", region="west"), [Create(node)])
    made = BoundPod(region, "west", "web-0", "n1")
    await made.bind()
    return made


def ready_of(pod: Mapping[str, Any]) -> str:
    return next(str(c["status"]) for c in pod["status"]["conditions"] if c["type"] == "Ready")


def rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = [column["name"] for column in table["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]


async def test_crash_loop_is_shown_in_table_object_and_typed_client(region: World, pod: BoundPod) -> None:
    await pod.report(Phase.BACKING_OFF, reason="Exited", restarts=7, last_exit=CRASHED)
    api = Api(region.app)
    (row,) = rows((await api.get(PODS, accept=TABLE)).json)
    assert (row["Name"], row["Ready"], row["Status"], row["Restarts"]) == ("web-0.1", "0/1", "CrashLoopBackOff", 7)
    for path, type_ in ((PODS, "V1PodList"), (f"{PODS}/web-0.1", "V1Pod")):
        found = ApiClient().deserialize((await api.get(path)).body.decode(), type_, "application/json")
        shown = found.items[0] if type_ == "V1PodList" else found
        (main,) = shown.status.container_statuses
        assert (main.ready, main.restart_count, main.state.waiting.reason) == (False, 7, "CrashLoopBackOff")
        assert (main.last_state.terminated.exit_code, shown.status.host_ip) == (3, "127.0.0.1")


async def test_watch_of_pods_follows_the_reports_of_the_agent(region: World, pod: BoundPod) -> None:
    api = Api(region.app)
    start = (await api.get(PODS)).json["metadata"]["resourceVersion"]
    async with api.watch(f"{PODS}?watch=1&resourceVersion={start}") as events:
        await pod.report(Phase.RUNNING, pid=7, ready=True)
        ready = await events.next()
        assert (ready["type"], ready_of(ready["object"])) == ("MODIFIED", "True")
        head = region.objects.head(BY_NAME["Replica"])
        assert ready["object"]["metadata"]["resourceVersion"] == str(head), "a client that resumes here misses nothing"
        served = SetStatus("Replica", Key("shop", "web-0"), pod.uid, blocks={"traffic": TrafficBlock(True, 1)})
        await region.commit(served, role="serve")
        await pod.report(Phase.BACKING_OFF, reason="Exited", restarts=1, last_exit=CRASHED)
        crashed = await events.next()
        assert ready_of(crashed["object"]) == "False", "what the pod does not show is no event"
        await pod.remove()
        assert (await events.next())["type"] == "DELETED"


@pytest.mark.parametrize("recent", [1, kind_cache.OBJECT_RING_EVENTS])
async def test_watch_from_the_past_has_every_change_of_both_records_in_order(
    region: World, pod: BoundPod, monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    """With `recent` 1 the changes are read from the store's history, otherwise from memory."""
    for kind in ("Binding", "Replica"):
        cache = region.objects._durable.caches[kind]
        cache.recent = type(cache.recent)(region.objects.head(BY_NAME[kind]), recent)
    start = region.objects.head(BY_NAME["Binding"])
    other = BoundPod(region, "west", "web-1", "n1")
    await pod.report(Phase.RUNNING, pid=7, ready=True)
    await other.bind()
    await other.report(Phase.RUNNING, pid=8, ready=True)
    await pod.report(Phase.BACKING_OFF, reason="Exited", restarts=1, last_exit=CRASHED)
    is_history = region.objects._durable.caches["Replica"].recent.floor > start
    assert is_history is (recent == 1)
    async with Api(region.app).watch(f"{PODS}?watch=1&resourceVersion={start}") as events:
        seen = [await events.next() for _ in range(4)]
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in seen] == [
        ("MODIFIED", "web-0.1"),
        ("ADDED", "web-1.1"),
        ("MODIFIED", "web-1.1"),
        ("MODIFIED", "web-0.1"),
    ]
    revisions = [int(e["object"]["metadata"]["resourceVersion"]) for e in seen]
    assert revisions == sorted(revisions)


async def test_field_selector_uses_the_phase_that_is_shown(region: World, pod: BoundPod) -> None:
    api = Api(region.app)
    running = f"{PODS}?fieldSelector=status.phase%3DRunning"
    assert (await api.get(running)).json["items"] == []
    async with api.watch(f"{running}&watch=1") as events:
        await pod.report(Phase.RUNNING, pid=7, ready=True)
        assert (await events.next())["type"] in ("ADDED", "MODIFIED")
        assert len((await api.get(running)).json["items"]) == 1
        await pod.report(Phase.SUCCEEDED)
        assert (await events.next())["type"] == "DELETED"


async def test_deletion_with_the_shown_revision_is_accepted(region: World, pod: BoundPod) -> None:
    """kubectl and typed clients send the resourceVersion that they read."""
    await pod.report(Phase.STARTING)
    api = Api(region.app)
    shown = (await api.get(f"{PODS}/web-0.1")).json["metadata"]["resourceVersion"]
    old = {"preconditions": {"resourceVersion": "1"}, "gracePeriodSeconds": 0}
    assert (await api.delete(f"{PODS}/web-0.1", old)).code == 409
    current = {"preconditions": {"resourceVersion": shown}, "gracePeriodSeconds": 0}
    assert (await api.delete(f"{PODS}/web-0.1", current)).code == 200


async def test_global_api_shows_and_watches_the_reports(world: World, regions: dict[str, ConnectedRegion]) -> None:
    west = regions["west"]
    pod = BoundPod(west.cell, "west", "api-west-0", "west-0")
    await pod.bind()
    api = Api(world.app)
    start = (await api.get(PODS)).json["metadata"]["resourceVersion"]
    async with api.watch(f"{PODS}?watch=1&resourceVersion={start}") as events:
        await pod.report(Phase.BACKING_OFF, reason="Exited", restarts=4, last_exit=CRASHED)
        seen = await events.next(30)
        assert (seen["type"], seen["object"]["metadata"]["name"]) == ("MODIFIED", "api-west-0.1")
        assert seen["object"]["status"]["containerStatuses"][0]["restartCount"] == 4
    by_name = {row["Name"]: row for row in rows((await api.get(PODS, accept=TABLE)).json)}
    row = by_name["api-west-0.1"]
    assert (row["Region"], row["Ready"], row["Status"], row["Restarts"]) == ("west", "0/1", "CrashLoopBackOff", 4)
    found = ApiClient().deserialize((await api.get(PODS)).body.decode(), "V1PodList", "application/json")
    assert len(found.items) == 5
