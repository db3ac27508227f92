"""Properties that hold for any sequence of writes and any data."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gate.conftest import OPERATOR, USER, World, by, make_world, tenant, with_meta, with_spec, workload

from holdfast.model.errors import Fault
from holdfast.model.kinds import ALL, Home
from holdfast.model.meta import ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.workload import Workload
from holdfast.model.writes import Create, Delete, SetStatus, Update

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_data = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 3)),
        st.tuples(st.just("label"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("status"), st.integers(0, 2)),
        st.tuples(st.just("observe"), st.integers(0, 6)),
        st.tuples(st.just("delete"), st.just(0)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("create"), st.just(0)),
    ),
    max_size=30,
)


async def _fresh() -> World:
    world = await make_world("global")
    await world.create(OPERATOR, tenant("shop"))
    await world.create(
        OPERATOR, PriorityClass(metadata=ObjectMeta(name="standard"), spec=PriorityClassSpec(tenants=("*",)))
    )
    return world


def _write(step: str, value: Any, item: Any) -> tuple[Any, Any]:
    """The principal and the write of a step."""
    match step:
        case "scale":
            return USER, Update(with_spec(item, replicas=value))
        case "label":
            return USER, Update(with_meta(item, labels={"l": value}))
        case "status":
            return by("workload-status"), SetStatus("Workload", item.key, item.uid, {"summary": {"ready": value}})
        case "observe":
            return by("workload-status"), SetStatus("Workload", item.key, item.uid, observed_generation=value)
        case "delete":
            return USER, Delete("Workload", item.key, item.uid)
        case _:
            return by("assign"), Update(with_meta(item, finalizers=()))


@settings(max_examples=150, deadline=None)
@given(_steps)
def test_revision_and_generation_match_changes(steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        world = await _fresh()
        uids: set[str] = set()
        for step, value in steps:
            before = world.get(Workload, "web", "shop")
            head = world.store.head
            if before is None:
                if step == "create":
                    made = await world.create(USER, workload())
                    assert made.uid not in uids, "a uid is never reused"
                    uids.add(made.uid)
                continue
            try:
                await world.do(*_write(step, value, before)) if step != "create" else None
            except Fault:
                assert world.store.head == head and world.get(Workload, "web", "shop") is before
                continue
            after = world.get(Workload, "web", "shop")
            if after is None:
                assert before.metadata.terminating or not before.metadata.finalizers
                continue
            same = (
                msgspec.structs.replace(after, metadata=before.metadata) == before and after.metadata == before.metadata
            )
            assert (after.revision == before.revision) == same == (world.store.head == head)
            grew = after.metadata.generation - before.metadata.generation
            went = after.metadata.terminating and not before.metadata.terminating
            assert grew == int(after.spec != before.spec or went)
            assert before.status.observed_generation <= after.status.observed_generation <= after.metadata.generation
        records = [r for r in await world.audit() if r.result == "Committed"]
        assert sum(len(r.entries) for r in records) == world.store.head, "exactly one audit entry per change"
        await world.objects.close()

    asyncio.run(run())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([k for k in ALL if k.home is not Home.REGION]), _data, _data, _data)
def test_random_object_raises_only_faults(kind: Any, spec: Any, status: Any, labels: Any) -> None:
    """Objects built without type checks raise a Fault, or are stored as their bytes decode."""

    async def run() -> None:
        world = await _fresh()
        meta = ObjectMeta(name="x", namespace="shop" if kind.namespaced else "", labels=labels)
        parts = {f.name for f in msgspec.structs.fields(kind.type)}
        extra = {name: value for name, value in (("spec", spec), ("status", status)) if name in parts}
        roles = frozenset({"operator", "grant", "assign", "policy", "recover", "region"})
        everyone = msgspec.structs.replace(OPERATOR, roles=roles, groups=("holdfast:controllers",))
        with contextlib.suppress(Fault):
            await world.do(everyone, Create(kind.type(metadata=meta, **extra)))
        await world.objects.close()

    asyncio.run(run())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["summary", "scale", "rollout", "conditions", "observedGeneration", "nonsense"]), _data)
def test_random_status_block_raises_only_faults(block: str, value: Any) -> None:
    async def run() -> None:
        world = await _fresh()
        made = await world.create(USER, workload())
        who = msgspec.structs.replace(OPERATOR, roles=frozenset({"workload-status", "autoscale", "operator"}))
        try:
            await world.do(who, SetStatus("Workload", made.key, made.uid, {block: value}))
        except Fault:
            assert world.get(Workload, "web", "shop") is made
        await world.objects.close()

    asyncio.run(run())
