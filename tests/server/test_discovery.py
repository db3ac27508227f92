"""Discovery, version, OpenAPI, health and reviews: the first requests of every client."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.kinds import ALL, Home
from holdfast.server.resources import RESOURCES

from .conftest import V1, WORKLOADS, Api, World

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
V2BETA1 = V2.replace("v=v2", "v=v2beta1")


@pytest.mark.parametrize("slash", ["", "/"])
async def test_legacy_discovery_lists_public_resources(api: Api, slash: str) -> None:
    assert (await api.get(f"/api{slash}")).json["versions"] == ["v1"]
    groups = (await api.get(f"/apis{slash}")).json
    assert [g["name"] for g in groups["groups"]][:2] == ["holdfast.dev", "coordination.k8s.io"]
    rows = {row["name"]: row for row in (await api.get(f"/apis/holdfast.dev/v1{slash}")).json["resources"]}
    assert rows["workloads"]["shortNames"] == ["wl"] and "all" in rows["workloads"]["categories"]
    scale = rows["workloads/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")
    assert "workloads/status" in rows and "terms" not in rows and "leasepages" not in rows
    assert (await api.get(f"/apis/holdfast.dev{slash}")).json["preferredVersion"]["version"] == "v1"


@pytest.mark.parametrize(("accept", "version"), [(V2, "v2"), (V2BETA1, "v2beta1")])
async def test_aggregated_discovery_returns_requested_type(api: Api, accept: str, version: str) -> None:
    for path in ("/api", "/apis"):
        found = await api.get(path, accept=f"{accept},application/json")
        assert found.headers["content-type"] == accept and found.headers["vary"] == "Accept"
        assert found.json["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    items = {item["metadata"]["name"]: item for item in found.json["items"]}
    rows = {row["resource"]: row for row in items["holdfast.dev"]["versions"][0]["resources"]}
    assert rows["workloads"]["scope"] == "Namespaced" and rows["tenants"]["scope"] == "Cluster"
    assert {s["subresource"] for s in rows["workloads"]["subresources"]} == {"status", "scale"}


async def test_region_discovery_shows_its_own_kinds(region: World) -> None:
    rows = (await Api(region.app).get("/apis/holdfast.dev/v1")).json["resources"]
    shown = {row["name"] for row in rows if "/" not in row["name"]}
    expected = {
        k.plural
        for k in ALL
        if k.group == "holdfast.dev" and not k.internal and (k.home is not Home.GLOBAL or k.mirrored)
    }
    assert shown == expected
    elsewhere = await Api(region.app).get(WORKLOADS)
    assert elsewhere.code == 404 and "global cell" in elsewhere.json["message"]


async def test_every_listed_resource_is_served(api: Api) -> None:
    for group in ("api/v1", "apis/holdfast.dev/v1", "apis/coordination.k8s.io/v1"):
        for row in (await api.get(f"/{group}")).json["resources"]:
            if "list" in row["verbs"]:
                found = await api.get(f"/{group}/{row['name']}")
                assert (found.code, found.json["kind"]) == (200, f"{row['kind']}List"), row["name"]


async def test_readyz_with_failed_store_returns_500(api: Api, world: World) -> None:
    await world.objects.close()
    found = await api.get("/readyz")
    assert found.code == 500 and b"[-]store failed" in found.body
    assert 500 <= (await api.get(WORKLOADS)).code <= 503


async def test_openapi_document_has_extensions_for_kubectl(api: Api) -> None:
    root = (await api.get("/openapi/v3")).json
    url = root["paths"]["apis/holdfast.dev/v1"]["serverRelativeURL"]
    found = await api.get(url)
    assert "immutable" in found.headers["cache-control"] and found.headers["etag"]
    assert (await api.get(url, if_none_match=found.headers["etag"])).code == 304
    document = found.json
    schemas = document["components"]["schemas"]
    workload_schema = schemas["dev.holdfast.v1.Workload"]
    gvk = {"group": "holdfast.dev", "version": "v1", "kind": "Workload"}
    assert workload_schema["x-kubernetes-group-version-kind"] == [gvk]
    patches = [
        item["patch"]
        for path, item in document["paths"].items()
        if "patch" in item and item["patch"]["x-kubernetes-group-version-kind"] == gvk
    ]
    assert len(patches) == 2
    for patch in patches:
        assert {"fieldValidation", "dryRun"} <= {p["name"] for p in patch["parameters"]}
    template = schemas["dev.holdfast.v1.Template"]["properties"]
    assert template["ports"]["x-kubernetes-list-map-keys"] == ["name"]
    assert template["restartPolicy"]["enum"] == ["Always", "OnFailure", "Never"]
    assert template["restartPolicy"]["default"] == "Always"
    assert _dangling(document) == set()


def _dangling(document: Any) -> set[str]:
    """References to missing schemas."""
    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                name = node["$ref"].removeprefix("#/components/schemas/")
                if name not in document["components"]["schemas"]:
                    found.add(name)
            for inner in node.values():
                look(inner)
        elif isinstance(node, list):
            for inner in node:
                look(inner)

    look(document)
    return found


async def test_openapi_v2_is_a_protobuf_document_whatever_is_accepted(api: Api) -> None:
    found = await api.get("/openapi/v2", accept="application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
    assert found.headers["content-type"] == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    assert found.code == 200 and b"dev.holdfast.v1.Workload" in found.body


AUTHZ, AUTHN = "/apis/authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1"


async def test_access_and_token_reviews_match_authorization(api: Api, world: World) -> None:
    tim = api.as_user("tim")
    ask = {
        "resourceAttributes": {"namespace": "shop", "verb": "create", "resource": "workloads", "group": "holdfast.dev"}
    }
    yes = await tim.post(f"{AUTHZ}/selfsubjectaccessreviews", {"spec": ask})
    assert (yes.code, yes.json["status"]["allowed"]) == (201, True)
    ask["resourceAttributes"]["namespace"] = "other"
    assert (await tim.post(f"{AUTHZ}/selfsubjectaccessreviews", {"spec": ask})).json["status"]["allowed"] is False
    path = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    assert (await tim.post(f"{AUTHZ}/selfsubjectaccessreviews", {"spec": path})).json["status"]["allowed"] is False
    rules = (await tim.post(f"{AUTHZ}/selfsubjectrulesreviews", {"spec": {"namespace": "shop"}})).json["status"]
    assert rules["resourceRules"] and rules["incomplete"] is False
    me = (await tim.post(f"{AUTHN}/selfsubjectreviews", {})).json
    assert me["status"]["userInfo"]["username"] == "tim"
    other = {"spec": {**ask, "user": "tim", "groups": ["holdfast:tenant:other"]}}
    assert (await api.post(f"{AUTHZ}/subjectaccessreviews", other)).json["status"]["allowed"] is True
    assert (await tim.post(f"{AUTHZ}/subjectaccessreviews", other)).code == 403
    token = world.tokens.issue("t", "tina", ("holdfast:tenant:shop",))
    good = await api.post(f"{AUTHN}/tokenreviews", {"spec": {"token": token}})
    assert good.json["status"]["user"]["username"] == "tina"
    bad = await api.post(f"{AUTHN}/tokenreviews", {"spec": {"token": "nonsense"}})
    assert bad.json["status"]["authenticated"] is False
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"spec": {}},
        {"spec": 5},
        {"kind": "Other"},
        {"spec": {"resourceAttributes": 3}},
    )
    for broken in bodies:
        assert (await tim.post(f"{AUTHZ}/selfsubjectaccessreviews", broken)).code == 400, broken


async def test_bearer_token_authenticates_and_limits_user(api: Api, world: World) -> None:
    token = world.tokens.issue("t", "tina", ("holdfast:tenant:shop",))
    stranger = api.as_user("")
    assert (await stranger.get(WORKLOADS, authorization=f"Bearer {token}")).code == 200
    assert (await stranger.get(f"{V1}/namespaces/other/workloads", authorization=f"Bearer {token}")).code == 403
    assert (await stranger.get(WORKLOADS, authorization="Bearer " + "x" * 9000)).code == 401


def test_resource_group_and_plural_are_unique() -> None:
    assert len({(r.kind.group, r.kind.plural) for r in RESOURCES}) == len(RESOURCES)
