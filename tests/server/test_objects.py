"""Create, read, update and delete: the rules that every Kubernetes client relies on."""

from __future__ import annotations

import pytest

from holdfast.model.kinds import BY_NAME
from holdfast.model.writes import SetStatus

from .conftest import V1, WORKLOADS, Api, World, workload


async def test_created_object_has_identity_defaults_and_status(api: Api) -> None:
    made = await api.post(WORKLOADS, workload())
    assert made.code == 201
    found = made.json
    assert (found["apiVersion"], found["kind"]) == ("holdfast.dev/v1", "Workload")
    meta = found["metadata"]
    assert meta["uid"] and meta["creationTimestamp"].endswith("Z") and meta["generation"] == 1
    assert meta["resourceVersion"].isdigit() and meta["resourceVersion"][0] != "0"
    assert meta["namespace"] == "shop" and found["spec"]["priorityClassName"] == "standard"
    assert found["status"]["summary"]["serving"] == 0
    again = (await api.get(f"{WORKLOADS}/web")).json
    assert again == found


async def test_missing_kind_is_accepted_and_wrong_kind_refused(api: Api) -> None:
    bare = {key: value for key, value in workload().items() if key not in ("apiVersion", "kind")}
    assert (await api.post(WORKLOADS, bare, type="")).code == 201
    wrong = await api.post(WORKLOADS, {**workload("b"), "kind": "Node"})
    assert (wrong.code, wrong.json["reason"]) == (400, "BadRequest")
    elsewhere = workload("c")
    elsewhere["metadata"]["namespace"] = "other"
    assert (await api.post(WORKLOADS, elsewhere)).code == 400


async def test_yaml_strings_such_as_on_stay_strings(api: Api) -> None:
    text = b"""
metadata: {name: web}
spec:
  replicas: 2
  template:
    command: [on, yes, "1:30"]
    env: {A: "010"}
"""
    made = await api.post(WORKLOADS, text, type="application/yaml")
    assert made.code == 201, made.json
    assert made.json["spec"]["template"]["command"] == ["on", "yes", "1:30"]


async def test_create_of_duplicate_or_invalid_object_is_refused(api: Api) -> None:
    await api.post(WORKLOADS, workload())
    twice = await api.post(WORKLOADS, workload())
    assert (twice.code, twice.json["reason"]) == (409, "AlreadyExists")
    assert twice.json["message"] == 'workloads.holdfast.dev "web" already exists'
    versioned = workload("v")
    versioned["metadata"]["resourceVersion"] = "5"
    assert (await api.post(WORKLOADS, versioned)).code == 400
    nowhere = await api.post(f"{V1}/namespaces/nope/workloads", workload())
    assert (nowhere.code, nowhere.json["message"]) == (404, 'namespaces "nope" not found')
    assert nowhere.json["details"] == {"name": "nope", "kind": "namespaces"}
    for name in ("UPPER", "a_b", "-a", "x" * 300):
        refused = await api.post(WORKLOADS, workload(name))
        assert (refused.code, refused.json["reason"]) == (422, "Invalid"), name


async def test_generate_name_makes_unique_names(api: Api) -> None:
    item = workload()
    item["metadata"] = {"generateName": "job-"}
    first, second = await api.post(WORKLOADS, item), await api.post(WORKLOADS, item)
    names = {first.json["metadata"]["name"], second.json["metadata"]["name"]}
    assert len(names) == 2 and all(name.startswith("job-") for name in names)


async def test_all_invalid_fields_are_reported_at_once(api: Api) -> None:
    item = workload(replicas="three", type="Other")
    item["spec"]["template"]["ports"] = [{"port": "x"}]
    refused = await api.post(WORKLOADS, item)
    assert (refused.code, refused.json["reason"], refused.json["details"]["kind"]) == (422, "Invalid", "Workload")
    causes = {cause["field"]: cause["reason"] for cause in refused.json["details"]["causes"]}
    assert causes == {
        "spec.replicas": "FieldValueTypeInvalid",
        "spec.type": "FieldValueNotSupported",
        "spec.template.ports[0].port": "FieldValueTypeInvalid",
        "spec.template.ports[0].name": "FieldValueRequired",
    }


async def test_unknown_and_duplicate_fields_follow_field_validation(api: Api) -> None:
    body = b'{"metadata":{"name":"web"},"spec":{"replicas":1,"replicas":2,"replicaz":3,"template":{"command":["x"]}}}'
    strict = await api.post(f"{WORKLOADS}?fieldValidation=Strict", body)
    assert strict.code == 400
    assert 'unknown field "spec.replicaz"' in strict.json["message"]
    assert 'duplicate field "spec.replicas"' in strict.json["message"]
    warned = await api.post(f"{WORKLOADS}?dryRun=All", body)
    assert warned.code == 201
    assert '299 - "unknown field \\"spec.replicaz\\""' in warned.warnings
    ignored = await api.post(f"{WORKLOADS}?fieldValidation=Ignore&dryRun=All", body)
    assert ignored.code == 201 and not any("unknown" in warning for warning in ignored.warnings)
    assert "replicaz" not in ignored.json["spec"] and ignored.json["spec"]["replicas"] == 2
    assert (await api.post(f"{WORKLOADS}?fieldValidation=Maybe", body)).code == 422


async def test_dry_run_stores_nothing(api: Api) -> None:
    assert (await api.post(f"{WORKLOADS}?dryRun=All", workload())).code == 201
    assert (await api.get(f"{WORKLOADS}/web")).code == 404
    await api.post(WORKLOADS, workload())
    changed = await api.merge(f"{WORKLOADS}/web?dryRun=All", {"spec": {"replicas": 9}})
    assert changed.json["spec"]["replicas"] == 9
    stored = await api.get(f"{WORKLOADS}/web")  # `kubectl diff` compares with this object
    assert changed.json["metadata"]["resourceVersion"] == stored.json["metadata"]["resourceVersion"]
    assert (await api.delete(f"{WORKLOADS}/web?dryRun=All")).code == 200
    assert (await api.get(f"{WORKLOADS}/web")).json["spec"]["replicas"] == 3
    assert (await api.post(f"{WORKLOADS}?dryRun=Some", workload("b"))).code == 422


async def test_update_without_current_revision_is_refused(api: Api) -> None:
    item = (await api.post(WORKLOADS, workload())).json
    bare = {**item, "metadata": {**item["metadata"], "resourceVersion": ""}}
    assert (await api.put(f"{WORKLOADS}/web", bare)).code == 422
    item["spec"]["replicas"] = 5
    first = await api.put(f"{WORKLOADS}/web", item)
    assert (first.code, first.json["metadata"]["generation"]) == (200, 2)
    stale = await api.put(f"{WORKLOADS}/web", item)
    assert (stale.code, stale.json["reason"]) == (409, "Conflict")
    assert "the object has been modified" in stale.json["message"]
    other = {**first.json, "metadata": {**first.json["metadata"], "uid": "another"}}
    assert (await api.put(f"{WORKLOADS}/web", other)).code == 409
    assert (await api.put(f"{WORKLOADS}/api", first.json)).code == 400
    assert (await api.put(f"{WORKLOADS}/gone", {**workload("gone"), "metadata": {"resourceVersion": "1"}})).code == 404


async def test_write_without_change_keeps_revision(api: Api) -> None:
    item = (await api.post(WORKLOADS, workload())).json
    for reply in (
        await api.merge(f"{WORKLOADS}/web", {}),
        await api.merge(f"{WORKLOADS}/web", {"spec": {"replicas": 3}}),
        await api.put(f"{WORKLOADS}/web", item),
    ):
        assert (reply.code, reply.json["metadata"]["resourceVersion"]) == (200, item["metadata"]["resourceVersion"])


async def test_generation_increases_only_with_spec(api: Api) -> None:
    await api.post(WORKLOADS, workload())
    assert (await api.merge(f"{WORKLOADS}/web", {"metadata": {"labels": {"a": "b"}}})).json["metadata"][
        "generation"
    ] == 1
    assert (await api.merge(f"{WORKLOADS}/web", {"spec": {"replicas": 4}})).json["metadata"]["generation"] == 2
    status = {"status": {"summary": {"serving": 4}}}
    writer = api.as_user("holdfast:controller:workload-status")
    done = await writer.merge(f"{WORKLOADS}/web/status", status)
    assert (done.code, done.json["metadata"]["generation"]) == (200, 2)
    assert done.json["status"]["summary"]["serving"] == 4


async def test_spec_and_status_writes_do_not_affect_each_other(api: Api) -> None:
    item = workload()
    item["status"] = {"summary": {"serving": 99}}
    assert (await api.post(WORKLOADS, item)).json["status"]["summary"]["serving"] == 0
    await api.merge(f"{WORKLOADS}/web", {"status": {"summary": {"serving": 98}}})
    writer = api.as_user("holdfast:controller:workload-status")
    current = (await api.get(f"{WORKLOADS}/web")).json
    assert current["status"]["summary"]["serving"] == 0
    current["spec"]["replicas"] = 77
    current["status"]["summary"]["serving"] = 2
    done = await writer.put(f"{WORKLOADS}/web/status", current)
    assert (done.json["spec"]["replicas"], done.json["status"]["summary"]["serving"]) == (3, 2)
    assert (await api.get(f"{WORKLOADS}/web/status")).json == done.json


async def test_status_write_by_other_role_is_forbidden(api: Api) -> None:
    await api.post(WORKLOADS, workload())
    refused = await api.merge(f"{WORKLOADS}/web/status", {"status": {"summary": {"serving": 9}}})
    assert (refused.code, refused.json["reason"]) == (403, "Forbidden")


async def test_delete_marks_object_until_finalizers_are_removed(api: Api) -> None:
    assert (await api.post(f"{V1}/priorityclasses", {"metadata": {"name": "low"}})).code == 201
    gone = await api.delete(f"{V1}/priorityclasses/low")
    assert (gone.code, gone.json["status"]) == (200, "Success")
    assert gone.json["details"]["kind"] == "priorityclasses" and gone.json["details"]["uid"]
    await api.post(WORKLOADS, workload())
    marked = (await api.delete(f"{WORKLOADS}/web", {"kind": "DeleteOptions", "propagationPolicy": "Foreground"})).json
    assert marked["metadata"]["deletionTimestamp"] and marked["metadata"]["deletionGracePeriodSeconds"] == 0
    assert marked["metadata"]["generation"] == 2
    assert "foregroundDeletion" in marked["metadata"]["finalizers"]
    more = {"metadata": {"finalizers": [*marked["metadata"]["finalizers"], "example.com/x"]}}
    assert (await api.merge(f"{WORKLOADS}/web", more)).code == 422
    assert (await api.merge(f"{WORKLOADS}/web", {"metadata": {"finalizers": None}})).code == 200
    assert (await api.get(f"{WORKLOADS}/web")).code == 404


async def test_delete_with_wrong_precondition_is_refused(api: Api) -> None:
    item = (await api.post(WORKLOADS, workload())).json
    wrong = {"preconditions": {"uid": "another"}}
    assert (await api.delete(f"{WORKLOADS}/web", wrong)).code == 409
    assert (await api.delete(f"{WORKLOADS}/web", {"preconditions": {"resourceVersion": "1"}})).code == 409
    right = {"preconditions": {"uid": item["metadata"]["uid"], "resourceVersion": item["metadata"]["resourceVersion"]}}
    assert (await api.delete(f"{WORKLOADS}/web", right)).code == 200
    for bad in ({"propagationPolicy": "Sideways"}, {"preconditions": 5}, [], {"dryRun": "All"}):
        assert 400 <= (await api.delete(f"{WORKLOADS}/web", bad)).code < 500


async def test_delete_collection_deletes_matching_objects(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.post(WORKLOADS, workload(name))
    assert (await api.delete(f"{WORKLOADS}?labelSelector=app in (a,b)")).code == 200
    left = (await api.get(WORKLOADS)).json["items"]
    assert {i["metadata"]["name"]: "deletionTimestamp" in i["metadata"] for i in left} == {
        "a": True,
        "b": True,
        "c": False,
    }


async def test_namespace_is_a_view_of_tenant(api: Api) -> None:
    made = await api.post("/api/v1/namespaces", {"metadata": {"name": "new", "labels": {"a": "b"}}})
    assert made.code == 201 and made.json["status"]["phase"] == "Active"
    assert made.json["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "new"}
    tenant = (await api.get(f"{V1}/tenants/new")).json
    assert tenant["metadata"]["labels"] == {"a": "b"} and tenant["spec"]["isolation"] == "Shared"
    strategic = {"metadata": {"labels": {"c": "d"}, "$retainKeys": ["x"]}}
    patched = await api.call(
        "PATCH", "/api/v1/namespaces/new", strategic, type="application/strategic-merge-patch+json"
    )
    assert patched.code == 200 and patched.json["metadata"]["labels"]["c"] == "d"
    missing = await api.get("/api/v1/namespaces/nope")
    assert (missing.code, missing.json["message"]) == (404, 'namespaces "nope" not found')
    again = await api.post("/api/v1/namespaces", {"metadata": {"name": "new"}})
    assert again.json["message"] == 'namespaces "new" already exists'
    assert (await api.delete("/api/v1/namespaces/new")).json["status"]["phase"] == "Terminating"
    late = await api.post(f"{V1}/namespaces/new/workloads", workload())
    assert (late.code, late.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    assert (await api.put("/api/v1/namespaces/new/finalize", {"metadata": {"name": "new"}})).code == 200
    listed = (await api.get("/api/v1/namespaces")).json
    assert listed["kind"] == "NamespaceList" and "new" in [i["metadata"]["name"] for i in listed["items"]]


async def test_concurrent_patches_all_take_effect(api: Api, world: World) -> None:
    import asyncio

    item = (await api.post(WORKLOADS, workload())).json
    status = BY_NAME["Workload"].type
    assert status is not None

    async def label(n: int) -> int:
        return (await api.merge(f"{WORKLOADS}/web", {"metadata": {"labels": {f"l{n}": "x"}}})).code

    async def report(n: int) -> None:
        write = SetStatus("Workload", world.objects.list(BY_NAME["Workload"])[0][0].key, item["metadata"]["uid"],
                          {"summary": {"serving": n}})  # fmt: skip
        await world.commit(write, role="workload-status")

    codes = await asyncio.gather(*(label(n) for n in range(6)), *(report(n) for n in range(6)))
    assert [c for c in codes if c is not None] == [200] * 6
    labels = (await api.get(f"{WORKLOADS}/web")).json["metadata"]["labels"]
    assert {f"l{n}" for n in range(6)} <= set(labels)


@pytest.mark.parametrize("path", ["/nothing", V1 + "/nothings", WORKLOADS + "/a/b/c", V1 + "/namespaces/shop/tenants"])
async def test_unknown_path_returns_404(api: Api, path: str) -> None:
    assert (await api.get(path)).code == 404


async def test_wrong_method_returns_405(api: Api) -> None:
    for method, path in (
        ("POST", f"{WORKLOADS}/web"),
        ("PUT", WORKLOADS),
        ("DELETE", "/version"),
        ("TRACE", WORKLOADS),
    ):
        refused = await api.call(method, path, {})
        assert (refused.code, refused.json["reason"]) == (405, "MethodNotAllowed")
