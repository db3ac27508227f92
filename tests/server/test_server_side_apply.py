"""Server-side apply: managers, and the ownership rules on random data. Requests are in cases/server_side_apply.yaml."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds import BY_NAME
from holdfast.model.schema import object_schema
from holdfast.server.managed_fields import APPLY, UPDATE, Owner, Owners, after_update, owned_paths, parse, render
from holdfast.server.server_side_apply import apply

from .conftest import WORKLOADS, Api, workload

WEB = f"{WORKLOADS}/web"
SCHEMA = object_schema(BY_NAME["Workload"].type)


def managers(item: Any) -> dict[tuple[str, str, str], Any]:
    return {
        (m["manager"], m["operation"], m.get("subresource", "")): m["fieldsV1"]
        for m in item["metadata"].get("managedFields", [])
    }


async def test_managed_fields_can_be_replaced_and_cleared(api: Api) -> None:
    await api.apply(WEB, workload())
    entries = (await api.get(WEB)).json["metadata"]["managedFields"]
    entries[0]["manager"] = "renamed"
    replaced = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    done = await api.call("PATCH", WEB, replaced, type="application/json-patch+json")
    assert set(managers(done.json)) == {("renamed", "Apply", "")}
    cleared = await api.call(
        "PATCH",
        WEB,
        [{"op": "replace", "path": "/metadata/managedFields", "value": []}],
        type="application/json-patch+json",
    )
    assert cleared.code == 200 and managers(cleared.json) == {}


async def test_update_and_scale_own_the_fields_they_change(api: Api) -> None:
    await api.post(f"{WORKLOADS}?fieldManager=maker", workload())
    await api.merge(f"{WEB}/scale?fieldManager=scaler", {"spec": {"replicas": 6}})
    owned = managers((await api.get(WEB)).json)
    assert owned[("scaler", "Update", "scale")] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owned[("maker", "Update", "")]["f:spec"]
    writer = api.as_user("holdfast:controller:workload-status")
    await writer.merge(f"{WEB}/status?fieldManager=reporter", {"status": {"summary": {"serving": 1}}})
    owned = managers((await api.get(WEB)).json)
    assert owned[("reporter", "Update", "status")] == {"f:status": {"f:summary": {"f:serving": {}}}}


async def test_old_update_managers_are_merged_into_one(api: Api) -> None:
    await api.post(f"{WORKLOADS}?fieldManager=maker", workload())
    for n in range(15):
        await api.merge(f"{WEB}?fieldManager=m{n}", {"metadata": {"labels": {f"l{n}": "x"}}})
    owned = managers((await api.get(WEB)).json)
    assert len(owned) <= 11 and ("ancient-changes", "Update", "") in owned
    labels = [path for fields in owned.values() for path in fields.get("f:metadata", {}).get("f:labels", {})]
    assert {f"f:l{n}" for n in range(15)} <= set(labels)


# The rules on plain data -----------------------------------------------------------------------------------------

ports: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": st.sampled_from("hk")}, optional={"port": st.integers(1, 3)}
)
port_lists = st.lists(ports, max_size=2, unique_by=lambda port: str(port["name"]))
templates = st.fixed_dictionaries(
    {},
    optional={
        "env": st.dictionaries(st.sampled_from("xy"), st.sampled_from("12")),
        "command": st.lists(st.sampled_from("pq"), max_size=2),
        "ports": port_lists,
    },
)
recoveries = st.fixed_dictionaries({}, optional={"minServing": st.integers(1, 2)})
specs = st.fixed_dictionaries(
    {}, optional={"replicas": st.integers(0, 3), "template": templates, "recovery": recoveries}
)
labels = st.dictionaries(st.sampled_from("abc"), st.text(max_size=2))
configs = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional={"labels": labels})}, optional={"spec": specs}
)


def applied(live: Any, owners: Owners, config: Any, manager: str) -> Any:
    return apply(
        SCHEMA,
        live,
        config,
        owners,
        Owner(manager, APPLY),
        force=True,
        now="2026-01-01T00:00:00Z",
        api_version="holdfast.dev/v1",
        normalize=lambda data: data,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), configs), min_size=1, max_size=5))
def test_apply_sequence_leaves_only_owned_fields(steps: list[tuple[str, Any]]) -> None:
    live: Any = None
    owners: Owners = {}
    for manager, config in steps:
        done = applied(live, owners, config, manager)
        live, owners = done.data, done.owners
        again = applied(live, owners, config, manager)
        assert (again.data, again.owners) == (live, owners), "a repeated apply changes nothing"
        assert owners[Owner(manager, APPLY)].paths == owned_paths(SCHEMA, config)
        everyone = frozenset().union(*(entry.paths for entry in owners.values()))
        leaves = {path for path in owned_paths(SCHEMA, live) if not path[-1].startswith("k:")}
        kept = {path for path in leaves if path[-1] == "f:name" or path == ("f:spec",)}
        assert leaves - kept <= everyone, "a field without owner is removed"
    assert parse(render(owners)) == {owner: entry for owner, entry in owners.items() if entry.paths}


@settings(max_examples=150, deadline=None)
@given(configs, configs)
def test_update_owns_exactly_its_changed_fields(old: Any, new: Any) -> None:
    now, version = "2026-01-01T00:00:00Z", "holdfast.dev/v1"
    first = after_update(SCHEMA, {}, None, old, Owner("a", UPDATE), now=now, api_version=version)
    second = after_update(SCHEMA, first, old, new, Owner("b", UPDATE), now=now, api_version=version)
    paths = owned_paths(SCHEMA, new)
    changed, theirs = (second[o].paths if (o := Owner(name, UPDATE)) in second else frozenset() for name in ("b", "a"))
    assert not changed & theirs and changed <= paths
    if old == new:
        assert second == first
