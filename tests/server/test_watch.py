"""Watches: every change once and in order, from exactly the starting revision."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.model import limits
from holdfast.model.kinds import BY_NAME
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

from .conftest import V1, WORKLOADS, Api, World, workload
from .test_lists import TABLE


async def test_watch_without_revision_starts_with_existing_objects(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        first = await events.next()
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 9}})
        second = await events.next()
        assert (second["type"], second["object"]["spec"]["replicas"]) == ("MODIFIED", 9)
        assert second["object"]["kind"] == "Workload" and second["object"]["apiVersion"] == "holdfast.dev/v1"
        await api.delete(f"{WORKLOADS}/a")
        assert (await events.next())["type"] == "MODIFIED"
        await api.merge(f"{WORKLOADS}/a", {"metadata": {"finalizers": None}})
        last = await events.next()
        assert last["type"] == "DELETED" and last["object"]["spec"]["replicas"] == 9
        assert int(last["object"]["metadata"]["resourceVersion"]) > int(second["object"]["metadata"]["resourceVersion"])


async def test_watch_from_list_revision_misses_nothing(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    revision = (await api.get(WORKLOADS)).json["metadata"]["resourceVersion"]
    await api.post(WORKLOADS, workload("b"))
    async with api.watch(f"{WORKLOADS}?watch=1&resourceVersion={revision}") as events:
        assert (await events.next())["object"]["metadata"]["name"] == "b"
        await api.post(WORKLOADS, workload("c"))
        assert (await events.next())["object"]["metadata"]["name"] == "c"


async def test_watch_with_selector_reports_added_and_deleted(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    async with api.watch(f"{WORKLOADS}?watch=true&labelSelector=color=red&resourceVersion=0") as events:
        await api.merge(f"{WORKLOADS}/a", {"metadata": {"labels": {"color": "red"}}})
        assert (await events.next())["type"] == "ADDED"
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 7}})
        assert (await events.next())["type"] == "MODIFIED"
        await api.merge(f"{WORKLOADS}/a", {"metadata": {"labels": {"color": "blue"}}})
        gone = await events.next()
        assert gone["type"] == "DELETED" and gone["object"]["metadata"]["labels"]["color"] == "red"
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 8}})
        await api.merge(f"{WORKLOADS}/a", {"metadata": {"labels": {"color": "red"}}})
        assert (await events.next())["type"] == "ADDED"


async def test_watch_by_name_reports_only_that_object(api: Api) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true&fieldSelector=metadata.name=b") as events:
        await api.post(WORKLOADS, workload("a"))
        await api.post(WORKLOADS, workload("b"))
        assert (await events.next())["object"]["metadata"]["name"] == "b"


async def test_watch_by_path_reports_only_that_object(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    await api.post(WORKLOADS, workload("b"))
    async with api.watch(f"{WORKLOADS}/b?watch=true") as events:
        assert (await events.next())["object"]["metadata"]["name"] == "b"
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 1}})
        await api.merge(f"{WORKLOADS}/b", {"spec": {"replicas": 1}})
        assert (await events.next())["object"]["metadata"]["name"] == "b"


async def test_initial_events_end_with_bookmark(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    path = f"{WORKLOADS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(path) as events:
        assert (await events.next())["type"] == "ADDED"
        mark = await events.next()
        assert mark["type"] == "BOOKMARK" and mark["object"]["kind"] == "Workload"
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.post(WORKLOADS, workload("b"))
        assert (await events.next())["object"]["metadata"]["name"] == "b"
    refused = await api.get(f"{WORKLOADS}?watch=true&sendInitialEvents=true")
    assert (refused.code, refused.json["reason"]) == (422, "Invalid")


async def test_bookmarks_are_sent_only_on_request(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BOOKMARK_EVERY_S", 0.05)
    async with api.watch(f"{WORKLOADS}?watch=true&allowWatchBookmarks=true") as events:
        await api.post(f"{V1}/tenants", {"metadata": {"name": "unrelated"}})
        head = int((await api.get(f"{V1}/tenants")).json["metadata"]["resourceVersion"])
        while int((mark := await events.next())["object"]["metadata"]["resourceVersion"]) < head:
            assert mark["type"] == "BOOKMARK"
        assert mark["type"] == "BOOKMARK"
        assert set(mark["object"]) == {"kind", "apiVersion", "metadata"}
    async with api.watch(f"{WORKLOADS}?watch=true&timeoutSeconds=1") as events:
        await asyncio.wait_for(events.ended.wait(), 5)
        assert events.waiting() == 0


async def test_watch_ends_after_timeout(api: Api) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true&timeoutSeconds=1") as events:
        await asyncio.wait_for(events.ended.wait(), 5)


async def test_watch_from_compacted_revision_is_expired(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.watch.FUTURE_REVISION_WAIT_S", 0.05)
    await api.post(WORKLOADS, workload("a"))
    await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 1}})
    head = world.store.head
    for n in range(3):
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 5 + n}})
    await world.store.compact(world.store.head)
    # Recent changes stay in memory even if the store has compacted them; a restarted server has only the store.
    world.objects = world.app.objects = Objects(world.store, MemoryStore())
    await world.objects.start()
    async with api.watch(f"{WORKLOADS}?watch=true&resourceVersion={head - 1}") as events:
        first = await events.next()
        assert first["type"] == "ERROR"
        assert (first["object"]["code"], first["object"]["reason"]) == (410, "Expired")
        await asyncio.wait_for(events.ended.wait(), 5)
    ahead = await api.get(f"{WORKLOADS}?watch=true&resourceVersion={head + 1000}")
    assert (ahead.code, ahead.json["reason"]) == (410, "Expired")


async def test_watch_serves_tables_and_partial_metadata(api: Api) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true", accept=TABLE) as events:
        await api.post(WORKLOADS, workload("a"))
        await api.post(WORKLOADS, workload("b"))
        first, second = await events.next(), await events.next()
        assert first["object"]["kind"] == "Table" and first["object"]["columnDefinitions"]
        assert second["object"]["columnDefinitions"] == [] and second["object"]["rows"][0]["cells"][0] == "b"
    partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with api.watch(f"{WORKLOADS}?watch=true", accept=partial) as events:
        assert (await events.next())["object"]["kind"] == "PartialObjectMetadata"


async def test_watch_of_namespaces_follows_tenants(api: Api) -> None:
    async with api.watch("/api/v1/namespaces?watch=true&fieldSelector=metadata.name=new") as events:
        await api.post(f"{V1}/tenants", {"metadata": {"name": "new"}})
        made = await events.next()
        assert (made["type"], made["object"]["kind"]) == ("ADDED", "Namespace")
        await api.delete(f"{V1}/tenants/new")
        assert (await events.next())["object"]["status"]["phase"] == "Terminating"


async def test_many_watchers_receive_equal_events(api: Api, world: World) -> None:
    opened = [api.watch(f"{WORKLOADS}?watch=true") for _ in range(20)]
    for events in opened:
        await events.__aenter__()
    await api.post(WORKLOADS, workload("a"))
    seen = [await events.next() for events in opened]
    assert all(event == seen[0] for event in seen)
    for events in opened:
        await events.__aexit__()


async def test_stalled_watcher_is_disconnected(api: Api, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.response_sending.SEND_STALL_TIMEOUT_S", 0.2)
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        events.reading.clear()
        await api.post(WORKLOADS, workload("a"))
        await asyncio.wait_for(events._task, 5)
        streams = world.objects._durable.caches["Workload"].streams
        assert not streams._by_namespace, "nothing is kept for a disconnected client"
        events.reading.set()


async def test_drain_ends_watches_and_readiness(api: Api, world: World) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        await world.app.drain()
        await asyncio.wait_for(events.ended.wait(), 5)
    assert (await api.get("/readyz")).code == 500
    assert (await api.get("/livez")).code == 200


async def test_closed_watch_releases_its_resources(api: Api, world: World) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true"):
        assert world.app.flow._all_watches == 1
    assert world.app.flow._all_watches == 0
    assert not world.objects._durable.caches["Workload"].streams._by_namespace


async def test_watch_line_is_one_json_document(api: Api, world: World) -> None:
    item = workload("a")
    item["metadata"]["annotations"] = {"text": "two\nlines \u2028 and more"}
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        await api.post(WORKLOADS, item)
        found = await events.next()
        assert found["object"]["metadata"]["annotations"]["text"] == "two\nlines \u2028 and more"
    stored = world.objects.get(BY_NAME["Workload"], "shop", "a")
    assert stored is not None and json.dumps(found)


async def test_ages_of_a_watched_table_move_with_the_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(world.app)
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    async with api.watch("/api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Dshop", accept=table) as events:
        before = (await events.next())["object"]["rows"][0]["cells"][-1]
        now_s = world.ports.clock.now()
        monkeypatch.setattr("holdfast.foundation.ports.time.time", lambda: now_s + 7200)
        assert (await api.merge("/api/v1/namespaces/shop", {"metadata": {"labels": {"x": "y"}}})).code == 200
        after = (await events.next())["object"]["rows"][0]["cells"][-1]
    assert before.endswith("s") and after.startswith(("120m", "2h"))
