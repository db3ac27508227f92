"""`GET /audit/v1`: who changed what, read by operators, in pages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.cli.commands.audit import audit_row
from holdfast.server import audit_log

from .conftest import Api, World, workload

WORKLOADS = "/apis/holdfast.dev/v1/namespaces/shop/workloads"


async def records(api: Api, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        parameters = "&".join(f"{name}={value}" for name, value in {"after": str(after), **query}.items())
        reply = await api.get(f"/audit/v1?{parameters}")
        assert reply.code == 200, reply.body
        found += reply.json["records"]
        if not reply.json["more"]:
            return found
        after = reply.json["next"]


async def test_write_is_read_back_with_its_author_and_object(api: Api) -> None:
    assert (await api.post(WORKLOADS, workload())).code == 201
    assert (await api.delete(f"{WORKLOADS}/web")).code == 200
    made, deleted = await records(api, kind="Workload", name="web")
    assert (made["principal"], made["verb"], made["result"]) == ("ada", "create", "Committed")
    assert made["entries"][0]["namespace"] == "shop" and made["time"] < deleted["time"]
    assert (deleted["principal"], deleted["verb"]) == ("ada", "delete")
    assert made["sequence"] < deleted["sequence"]
    assert audit_row(made)[1:5] == ("ada", "create", "Committed", "Workload/shop/web")
    assert await records(api, kind="Workload", name="absent") == []


async def test_refusals_are_read_at_once(api: Api, world: World) -> None:
    stranger = Api(world.app, "tim")
    path = "/apis/holdfast.dev/v1/tenants/shop"
    replies = await asyncio.gather(*(stranger.delete(path) for _ in range(3)))
    assert [reply.code for reply in replies] == [403] * 3
    (refused,) = [r for r in await records(api, result="Refused", principal="tim") if r["verb"] == "delete"]
    assert refused["count"] == 3 and refused["reason"] == "Forbidden"
    assert audit_row(refused)[3] == "Refused (3 times)"


async def test_log_is_read_in_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        assert (await api.post(WORKLOADS, workload(f"web-{number}"))).code == 201
    whole = await records(api)
    monkeypatch.setattr(audit_log, "AUDIT_PAGE_RECORDS_MAX", 2)
    assert await records(api) == whole
    found = await records(api, kind="Workload", namespace="shop")
    assert [r["entries"][0]["name"] for r in found] == [f"web-{number}" for number in range(7)]


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=9999999999999999999", "who=ada"])
async def test_invalid_parameter_is_refused(api: Api, query: str) -> None:
    assert (await api.get(f"/audit/v1?{query}")).code == 400


async def test_only_operators_and_viewers_read_the_log(world: World) -> None:
    for user in ("tim", "holdfast:node:west:n1"):
        reply = await Api(world.app, user).get("/audit/v1")
        assert reply.code == 403 and b"records" not in reply.body
