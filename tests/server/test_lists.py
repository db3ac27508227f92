"""Lists: selectors, consistent pages, revisions, and response forms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import assignment, replica

from holdfast.model.core import Event
from holdfast.model.kinds import ALL, BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import RefusalCount, RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.writes import Create, SetStatus
from holdfast.server import tables
from holdfast.server.resources import RESOURCES

from .conftest import V1, WORKLOADS, Api, World, workload

TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


async def fill(api: Api, *names: str) -> None:
    for name in names:
        assert (await api.post(WORKLOADS, workload(name))).code == 201


def names(found: Any) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


async def test_field_selector_accepts_indexed_fields(region: World) -> None:
    there = Api(region.app)
    for label in ("node=n1", "spec.node=n1", "workload=shop/web", "spec.workload=web", "replicaUid=u"):
        assert (await there.get(f"{V1}/bindings?fieldSelector={label}")).code == 200, label


async def test_all_pages_of_a_list_are_read_at_the_revision_of_the_first(api: Api) -> None:
    await fill(api, "a", "b", "c", "d", "e")
    first = (await api.get(f"{WORKLOADS}?limit=2")).json
    assert names(first) == ["a", "b"] and first["metadata"]["remainingItemCount"] == 3
    await api.post(WORKLOADS, workload("bb"))
    await api.merge(f"{WORKLOADS}/c", {"metadata": {"labels": {"new": "yes"}}})
    second = (await api.get(f"{WORKLOADS}?limit=2&continue={first['metadata']['continue']}")).json
    assert names(second) == ["c", "d"] and "new" not in second["items"][0]["metadata"]["labels"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = (await api.get(f"{WORKLOADS}?limit=2&continue={second['metadata']['continue']}")).json
    assert names(last) == ["e"] and "continue" not in last["metadata"]


async def test_paged_list_with_selector_returns_all_matches(api: Api) -> None:
    await fill(api, *(f"w{n}" for n in range(9)))
    for n in range(0, 9, 2):
        await api.merge(f"{WORKLOADS}/w{n}", {"metadata": {"labels": {"even": "yes"}}})
    found: list[str] = []
    token = ""
    for _ in range(10):
        page = (await api.get(f"{WORKLOADS}?limit=2&labelSelector=even&continue={token}")).json
        found += names(page)
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == ["w0", "w2", "w4", "w6", "w8"]


async def test_continue_token_invalid_or_compacted_is_refused(api: Api, world: World) -> None:
    await fill(api, "a", "b", "c")
    token = (await api.get(f"{WORKLOADS}?limit=1")).json["metadata"]["continue"]
    for bad in ("nonsense", "%00", token[:-3], "e30"):
        assert (await api.get(f"{WORKLOADS}?limit=1&continue={bad}")).code == 400, bad
    assert (await api.get(f"{V1}/tenants?limit=1&continue={token}")).code == 400
    await api.merge(f"{WORKLOADS}/c", {"spec": {"replicas": 1}})
    await world.store.compact(world.store.head)
    expired = await api.get(f"{WORKLOADS}?limit=1&continue={token}")
    assert (expired.code, expired.json["reason"]) == (410, "Expired")


async def test_list_at_requested_revision_is_served(api: Api, world: World) -> None:
    await fill(api, "a")
    old = world.objects.head(BY_NAME["Workload"])
    await fill(api, "b")
    assert names((await api.get(f"{WORKLOADS}?resourceVersion={old}&resourceVersionMatch=NotOlderThan")).json) == [
        "a",
        "b",
    ]
    exact = (await api.get(f"{WORKLOADS}?resourceVersion={old}&resourceVersionMatch=Exact")).json
    assert names(exact) == ["a"] and exact["metadata"]["resourceVersion"] == str(old)


async def test_list_at_future_revision_times_out(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.read.FUTURE_REVISION_WAIT_S", 0.05)
    refused = await api.get(f"{WORKLOADS}?resourceVersion=999999")
    assert (refused.code, refused.json["reason"]) == (504, "Timeout")
    assert refused.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_table_has_a_cell_for_every_column(api: Api) -> None:
    await fill(api, "a", "b")
    found = (await api.get(WORKLOADS, accept=TABLE)).json
    columns = found["columnDefinitions"]
    assert columns[0]["name"] == "Name" and columns[0]["format"] == "name"
    assert all(len(row["cells"]) == len(columns) for row in found["rows"])
    one = (await api.get(f"{WORKLOADS}/a", accept=TABLE)).json
    assert [row["cells"][0] for row in one["rows"]] == ["a"]


def test_table_columns_of_every_kind_render_bare_object() -> None:
    """A broken column would only show as an empty one."""
    for resource in RESOURCES:
        kind = resource.kind
        assert kind.name in tables.COLUMNS, kind.name
        assert len({c.name for c in tables.COLUMNS[kind.name]}) == len(tables.COLUMNS[kind.name])
    for kind in ALL:
        item = bare(kind.type)
        for column in tables.COLUMNS[kind.name]:
            column.cell(item)
        assert len(tables.cells(kind.name, item, 0.0)) == len(tables.definitions(kind.name))


def bare(type_: type[Any]) -> Any:
    """An object with every required field set."""
    import msgspec

    def made(info: Any) -> Any:
        shapes = msgspec.inspect
        match info:
            case shapes.StructType():
                fields = {f.name: made(f.type) for f in info.fields if f.required}
                return info.cls(**fields)
            case shapes.StrType():
                return "x"
            case shapes.IntType() | shapes.FloatType():
                return 1
            case shapes.EnumType():
                return next(iter(info.cls))
            case shapes.DictType():
                return {}
        return None

    built = made(msgspec.inspect.type_info(type_))
    return msgspec.structs.replace(built, metadata=ObjectMeta(name="x", creation_timestamp="2026-01-01T00:00:00Z"))


def test_event_table_shows_age_of_last_occurrence() -> None:
    item = Event(metadata=ObjectMeta(name="e"), last_timestamp="2026-01-01T00:00:00Z", reason="Placed")
    row = tables.cells("Event", item, 1767225610.0)
    assert row[0] == "10s" and row[2] == "Placed"


async def test_table_of_replicas_says_why_each_queued_one_waits(region: World) -> None:
    """The reason is its request's; a replica that was not tried yet has none."""
    there, held = Api(region.app), assignment("web", "west", namespace="shop")
    made = [
        msgspec.structs.replace(r, metadata=ObjectMeta(name=r.metadata.name, namespace="shop"))
        for r in (replica(n, held) for n in range(2))
    ]
    await region.commit(*(Create(item) for item in made), role="replicate")
    queued, untried = (region.objects.get(BY_NAME["Replica"], "shop", r.metadata.name) for r in made)
    assert isinstance(queued, Replica) and isinstance(untried, Replica)
    spec = SchedulingRequestSpec(
        workload="web",
        assignment=queued.spec.assignment,
        revision="r",
        template=queued.spec.template,
        members=(RequestMember(queued.metadata.name, queued.uid),),
    )
    await region.commit(Create(SchedulingRequest(ObjectMeta(name="web", namespace="shop"), spec)), role="replicate")
    request = region.objects.get(BY_NAME["SchedulingRequest"], "shop", "web")
    assert request is not None
    for first in ("QuotaExceeded", "InsufficientCpu"):
        reasons = (RefusalCount(reason=first), RefusalCount(reason="NoVictims"))
        await region.commit(
            SetStatus("SchedulingRequest", request.key, request.uid, blocks={"pending": 1, "reasons": reasons}),
            role="scheduler",
        )
        for path in (f"{V1}/replicas", f"{V1}/namespaces/shop/replicas/{queued.metadata.name}"):
            found = (await there.get(path, accept=TABLE)).json
            at = [column["name"] for column in found["columnDefinitions"]].index("Reason")
            rows = {row["object"]["metadata"]["name"]: row["cells"][at] for row in found["rows"]}
            assert rows.pop(queued.metadata.name) == first and not any(rows.values())
