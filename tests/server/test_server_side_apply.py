"""Server-side apply: field ownership, conflicts, and removed fields."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds import BY_NAME
from holdfast.model.schema import object_schema
from holdfast.server.managed_fields import APPLY, UPDATE, Owner, Owners, after_update, owned_paths, parse, render
from holdfast.server.server_side_apply import apply

from .conftest import V1, WORKLOADS, Api, workload

WEB = f"{WORKLOADS}/web"
SCHEMA = object_schema(BY_NAME["Workload"].type)


def managers(item: Any) -> dict[tuple[str, str, str], Any]:
    return {
        (m["manager"], m["operation"], m.get("subresource", "")): m["fieldsV1"]
        for m in item["metadata"].get("managedFields", [])
    }


async def test_apply_twice_creates_then_changes_nothing(api: Api) -> None:
    first = await api.apply(WEB, workload())
    assert first.code == 201
    owned = managers(first.json)[("tests", "Apply", "")]
    assert owned["f:spec"]["f:replicas"] == {}
    assert owned["f:spec"]["f:template"]["f:ports"]['k:{"name":"http"}'] == {".": {}, "f:name": {}}
    assert "f:name" not in owned["f:metadata"] and owned["f:metadata"]["f:labels"] == {"f:app": {}}
    second = await api.apply(WEB, workload())
    assert second.code == 200 and second.json == first.json


async def test_apply_conflict_names_field_and_manager(api: Api) -> None:
    await api.apply(WEB, workload())
    await api.merge(f"{WEB}?fieldManager=ops", {"spec": {"replicas": 7}})
    refused = await api.apply(WEB, workload())
    assert (refused.code, refused.json["reason"]) == (409, "Conflict")
    assert refused.json["message"] == 'Apply failed with 1 conflict: conflict with "ops" using v1: .spec.replicas'
    assert refused.json["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    assert refused.json["details"]["causes"][0]["field"] == ".spec.replicas"
    forced = await api.apply(WEB, workload(), force=True)
    assert forced.json["spec"]["replicas"] == 3 and ("ops", "Update", "") not in managers(forced.json)


async def test_field_applied_by_two_managers_stays_until_both_drop_it(api: Api) -> None:
    await api.apply(WEB, workload(), "a")
    assert (await api.apply(WEB, {"spec": {"replicas": 3}, "metadata": {}}, "b")).code == 200
    dropped = workload()
    del dropped["spec"]["replicas"]
    left = (await api.apply(WEB, dropped, "a")).json
    assert left["spec"]["replicas"] == 3, "b still owns it"
    assert (await api.apply(WEB, {"spec": {"replicas": 5}, "metadata": {}}, "b")).json["spec"]["replicas"] == 5


async def test_field_dropped_from_apply_is_removed(api: Api) -> None:
    item = workload(minReadySeconds=5, recovery={"minServing": 2})
    item["spec"]["template"]["ports"].append({"name": "admin", "port": 9000})
    item["spec"]["template"]["env"] = {"A": "1", "B": "2"}
    item["metadata"]["labels"]["extra"] = "yes"
    await api.apply(WEB, item)
    slim = workload()
    slim["spec"]["template"]["env"] = {"B": "2"}
    left = (await api.apply(WEB, slim)).json
    assert [port["name"] for port in left["spec"]["template"]["ports"]] == ["http"]
    assert left["spec"]["template"]["env"] == {"B": "2"} and left["metadata"]["labels"] == {"app": "web"}
    assert "minReadySeconds" not in left["spec"] and "recovery" not in left["spec"]


async def test_apply_merges_keyed_list_items(api: Api) -> None:
    await api.apply(WEB, workload(), "a")
    other = {"metadata": {}, "spec": {"template": {"ports": [{"name": "admin", "port": 9000}]}}}
    both = (await api.apply(WEB, other, "b")).json
    assert [port["name"] for port in both["spec"]["template"]["ports"]] == ["http", "admin"]
    gone = (await api.apply(WEB, {"metadata": {}, "spec": {}}, "b")).json
    assert [port["name"] for port in gone["spec"]["template"]["ports"]] == ["http"]
    clash = {"metadata": {}, "spec": {"template": {"ports": [{"name": "http", "port": 80}]}}}
    assert (await api.apply(WEB, clash, "b")).code == 200, "a does not own the port"
    changed = workload()
    changed["spec"]["template"]["ports"] = [{"name": "http", "port": 81}]
    refused = await api.apply(WEB, changed, "a")
    assert refused.json["details"]["causes"][0]["field"] == '.spec.template.ports[name="http"].port'


async def test_apply_of_equal_quantity_is_no_conflict(api: Api) -> None:
    await api.post(f"{WORKLOADS}?fieldManager=maker", workload())
    item = workload()
    item["spec"]["template"]["resources"] = {"cpu": "0.5"}
    assert (await api.apply(WEB, item)).code == 200


async def test_object_without_managers_is_owned_by_before_first_apply(api: Api) -> None:
    await api.post(WORKLOADS, workload())
    await api.merge(WEB, {"metadata": {"managedFields": [{}]}})
    assert managers((await api.get(WEB)).json) == {}
    refused = await api.apply(WEB, workload(replicas=9))
    assert refused.code == 409 and '"before-first-apply"' in refused.json["message"]
    assert (await api.apply(WEB, workload())).code == 200


async def test_managed_fields_can_be_replaced_and_cleared(api: Api) -> None:
    await api.apply(WEB, workload())
    entries = (await api.get(WEB)).json["metadata"]["managedFields"]
    entries[0]["manager"] = "renamed"
    replaced = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    done = await api.call("PATCH", WEB, replaced, type="application/json-patch+json")
    assert set(managers(done.json)) == {("renamed", "Apply", "")}
    cleared = await api.call("PATCH", WEB, [{"op": "replace", "path": "/metadata/managedFields", "value": []}],
                             type="application/json-patch+json")  # fmt: skip
    assert cleared.code == 200 and managers(cleared.json) == {}


async def test_apply_without_manager_or_with_bad_body_is_refused(api: Api) -> None:
    missing = await api.call("PATCH", WEB, workload(), type="application/apply-patch+yaml")
    assert (missing.code, missing.json["details"]["causes"][0]["field"]) == (422, "fieldManager")
    item = workload()
    item["metadata"]["managedFields"] = [{"manager": "x"}]
    assert (await api.apply(WEB, item)).code == 400
    await api.apply(WEB, workload())
    stale = workload()
    stale["metadata"]["resourceVersion"] = "1"
    assert (await api.apply(WEB, stale)).code == 409
    assert (await api.apply(WEB, b"metadata: {name: web}\nspec: {replicas: 4}\n", "other", force=True)).json["spec"][
        "replicas"
    ] == 4
    assert (await api.apply(f"{WORKLOADS}/gone/status", workload("gone"))).code == 404
    assert (await api.apply(WEB, b"- just\n- a list\n")).code == 400


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


async def test_apply_works_for_namespaces(api: Api) -> None:
    item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "red"}}}
    assert (await api.apply("/api/v1/namespaces/shop", item)).json["metadata"]["labels"]["team"] == "red"
    del item["metadata"]["labels"]
    assert "team" not in (await api.apply("/api/v1/namespaces/shop", item)).json["metadata"].get("labels", {})
    assert (await api.get(f"{V1}/tenants/shop")).code == 200


# The rules on plain data -----------------------------------------------------------------------------------------

ports = st.fixed_dictionaries({"name": st.sampled_from("hk")}, optional={"port": st.integers(1, 3)})
templates = st.fixed_dictionaries(
    {},
    optional={
        "env": st.dictionaries(st.sampled_from("xy"), st.sampled_from("12")),
        "command": st.lists(st.sampled_from("pq"), max_size=2),
        "ports": st.lists(ports, max_size=2, unique_by=lambda port: str(port["name"])),
    },
)
recoveries = st.fixed_dictionaries({}, optional={"minServing": st.integers(1, 2)})
specs = st.fixed_dictionaries(
    {}, optional={"replicas": st.integers(0, 3), "template": templates, "recovery": recoveries}
)  # fmt: skip
labels = st.dictionaries(st.sampled_from("abc"), st.text(max_size=2))
configs = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional={"labels": labels})}, optional={"spec": specs}
)  # fmt: skip


def applied(live: Any, owners: Owners, config: Any, manager: str) -> Any:
    return apply(
        SCHEMA, live, config, owners, Owner(manager, APPLY), force=True, now="2026-01-01T00:00:00Z",
        api_version="holdfast.dev/v1", normalize=lambda data: data,
    )  # fmt: skip


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
