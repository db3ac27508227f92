"""Watches: every change once and in order, from exactly where they start."""

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


async def test_a_watch_without_a_revision_begins_with_what_is_there(api: Api) -> None:
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


async def test_a_watch_from_a_list_misses_nothing(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    revision = (await api.get(WORKLOADS)).json["metadata"]["resourceVersion"]
    await api.post(WORKLOADS, workload("b"))
    async with api.watch(f"{WORKLOADS}?watch=1&resourceVersion={revision}") as events:
        assert (await events.next())["object"]["metadata"]["name"] == "b"
        await api.post(WORKLOADS, workload("c"))
        assert (await events.next())["object"]["metadata"]["name"] == "c"


async def test_selectors_turn_changes_into_coming_and_going(api: Api) -> None:
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


async def test_watching_one_name(api: Api) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true&fieldSelector=metadata.name=b") as events:
        await api.post(WORKLOADS, workload("a"))
        await api.post(WORKLOADS, workload("b"))
        assert (await events.next())["object"]["metadata"]["name"] == "b"


async def test_watching_one_object_by_its_path(api: Api) -> None:
    await api.post(WORKLOADS, workload("a"))
    await api.post(WORKLOADS, workload("b"))
    async with api.watch(f"{WORKLOADS}/b?watch=true") as events:
        assert (await events.next())["object"]["metadata"]["name"] == "b"
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 1}})
        await api.merge(f"{WORKLOADS}/b", {"spec": {"replicas": 1}})
        assert (await events.next())["object"]["metadata"]["name"] == "b"


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
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


async def test_bookmarks_only_for_who_asks(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BOOKMARK_EVERY_S", 0.05)
    async with api.watch(f"{WORKLOADS}?watch=true&allowWatchBookmarks=true") as events:
        await api.post(f"{V1}/tenants", {"metadata": {"name": "unrelated"}})
        head = int((await api.get(f"{V1}/tenants")).json["metadata"]["resourceVersion"])
        while int((mark := await events.next())["object"]["metadata"]["resourceVersion"]) < head:
            assert mark["type"] == "BOOKMARK"
        assert set(mark["object"]) == {"kind", "apiVersion", "metadata"}
    async with api.watch(f"{WORKLOADS}?watch=true&timeoutSeconds=1") as events:
        await asyncio.wait_for(events.ended.wait(), 5)
        assert events.waiting() == 0


async def test_the_timeout_ends_the_stream(api: Api) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true&timeoutSeconds=1") as events:
        await asyncio.wait_for(events.ended.wait(), 5)


async def test_an_old_revision_is_expired(api: Api, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FUTURE_REVISION_WAIT_S", 0.05)
    await api.post(WORKLOADS, workload("a"))
    await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 1}})
    head = world.store.head
    for n in range(3):
        await api.merge(f"{WORKLOADS}/a", {"spec": {"replicas": 5 + n}})
    await world.store.compact(world.store.head)
    # Recent changes stay in memory whatever the store has forgotten; a server that starts anew has only the store.
    world.objects = world.app.objects = Objects(world.store, MemoryStore())
    await world.objects.start()
    async with api.watch(f"{WORKLOADS}?watch=true&resourceVersion={head - 1}") as events:
        first = await events.next()
        assert first["type"] == "ERROR"
        assert (first["object"]["code"], first["object"]["reason"]) == (410, "Expired")
        await asyncio.wait_for(events.ended.wait(), 5)
    ahead = await api.get(f"{WORKLOADS}?watch=true&resourceVersion={head + 1000}")
    assert (ahead.code, ahead.json["reason"]) == (410, "Expired")


async def test_tables_and_metadata_in_watches(api: Api) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true", accept=TABLE) as events:
        await api.post(WORKLOADS, workload("a"))
        await api.post(WORKLOADS, workload("b"))
        first, second = await events.next(), await events.next()
        assert first["object"]["kind"] == "Table" and first["object"]["columnDefinitions"]
        assert second["object"]["columnDefinitions"] == [] and second["object"]["rows"][0]["cells"][0] == "b"
    partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with api.watch(f"{WORKLOADS}?watch=true", accept=partial) as events:
        assert (await events.next())["object"]["kind"] == "PartialObjectMetadata"


async def test_namespaces_can_be_watched(api: Api) -> None:
    async with api.watch("/api/v1/namespaces?watch=true&fieldSelector=metadata.name=new") as events:
        await api.post(f"{V1}/tenants", {"metadata": {"name": "new"}})
        made = await events.next()
        assert (made["type"], made["object"]["kind"]) == ("ADDED", "Namespace")
        await api.delete(f"{V1}/tenants/new")
        assert (await events.next())["object"]["status"]["phase"] == "Terminating"


async def test_many_watchers_share_one_encoding(api: Api, world: World) -> None:
    opened = [api.watch(f"{WORKLOADS}?watch=true") for _ in range(20)]
    for events in opened:
        await events.__aenter__()
    await api.post(WORKLOADS, workload("a"))
    seen = [await events.next() for events in opened]
    assert all(event == seen[0] for event in seen)
    for events in opened:
        await events.__aexit__()


async def test_a_stalled_client_is_dropped(api: Api, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEND_STALL_S", 0.2)
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        events.reading.clear()
        await api.post(WORKLOADS, workload("a"))
        await asyncio.wait_for(events._task, 5)
        streams = world.objects._durable.caches["Workload"].streams
        assert not streams._by_namespace, "nothing may be kept for a client that is gone"
        events.reading.set()


async def test_drain_ends_watches_in_good_order(api: Api, world: World) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        await world.app.drain()
        await asyncio.wait_for(events.ended.wait(), 5)
    assert (await api.get("/readyz")).code == 500
    assert (await api.get("/livez")).code == 200


async def test_leaving_frees_what_the_watch_held(api: Api, world: World) -> None:
    async with api.watch(f"{WORKLOADS}?watch=true"):
        assert world.app.flow._all_watches == 1
    assert world.app.flow._all_watches == 0
    assert not world.objects._durable.caches["Workload"].streams._by_namespace


async def test_a_line_is_one_json_document(api: Api, world: World) -> None:
    item = workload("a")
    item["metadata"]["annotations"] = {"text": "two\nlines \u2028 and more"}
    async with api.watch(f"{WORKLOADS}?watch=true") as events:
        await api.post(WORKLOADS, item)
        found = await events.next()
        assert found["object"]["metadata"]["annotations"]["text"] == "two\nlines \u2028 and more"
    stored = world.objects.get(BY_NAME["Workload"], "shop", "a")
    assert stored is not None and json.dumps(found)
