"""Concurrent writes to one object. The other rules for objects are in cases/."""

from __future__ import annotations

import asyncio

from holdfast.model.kinds import BY_NAME
from holdfast.model.writes import SetStatus

from .conftest import WORKLOADS, Api, World, workload


async def test_concurrent_patches_all_take_effect(api: Api, world: World) -> None:
    item = (await api.post(WORKLOADS, workload())).json
    status = BY_NAME["Workload"].type
    assert status is not None

    async def label(n: int) -> int:
        return (await api.merge(f"{WORKLOADS}/web", {"metadata": {"labels": {f"l{n}": "x"}}})).code

    async def report(n: int) -> None:
        write = SetStatus(
            "Workload",
            world.objects.list(BY_NAME["Workload"])[0][0].key,
            item["metadata"]["uid"],
            {"summary": {"serving": n}},
        )
        await world.commit(write, role="workload-status")

    codes = await asyncio.gather(*(label(n) for n in range(6)), *(report(n) for n in range(6)))
    assert [c for c in codes if c is not None] == [200] * 6
    labels = (await api.get(f"{WORKLOADS}/web")).json["metadata"]["labels"]
    assert {f"l{n}" for n in range(6)} <= set(labels)
