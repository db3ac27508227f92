"""Thousands of malformed requests: never a 5xx, always a Status, and nothing stored.

Requests are valid ones with seeded mutations, so that they pass the first checks and a failure can be reproduced.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import pytest

from holdfast.model.kinds import BY_NAME

from .conftest import V1, WORKLOADS, Api, World, workload

# fmt: off
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**40, 0.5, 1e308, -0.0, "", " ", "x", "a" * 300, "\u0000",
    "\u202e", "\ufffe", "💥", "../..", "%2e%2e", "${jndi}", "null", [], {}, [[]], [None], {"": ""}, {"a": {"b": {}}},
    "1Gi", "-1", ["a", 1, None], {"name": "x"}, "2026-01-01T00:00:00Z", "not-a-time", {"$patch": "delete"}, "0",
    "holdfast.dev/v1",
]
KEYS = [
    "metadata", "spec", "status", "name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid",
    "template", "managedFields", "replicas", "resourceVersion", "ports", "command", "kind", "apiVersion", "é", "",
]
TYPES = [
    "application/json", "application/yaml", "application/merge-patch+json", "application/json-patch+json",
    "application/apply-patch+yaml", "application/strategic-merge-patch+json", "application/vnd.kubernetes.protobuf",
    "text/plain", "", "multipart/form-data", "application/json; charset=latin-1",
]
PATHS = [
    WORKLOADS, f"{WORKLOADS}/web", f"{WORKLOADS}/web/status", f"{WORKLOADS}/web/scale", f"{V1}/workloads",
    f"{V1}/tenants", f"{V1}/tenants/shop", "/api/v1/namespaces", "/api/v1/namespaces/shop",
    "/api/v1/namespaces/shop/finalize", "/api/v1/namespaces/shop/events", f"{V1}/regions/west", f"{V1}/overrides",
    "/apis/coordination.k8s.io/v1/namespaces/shop/leases", f"{V1}/namespaces/shop/quotas/quota",
    f"{V1}/schedulerpolicies", f"{V1}/priorityclasses/standard", "/commit/v1", "/notify/v1", "/placement/v1/reserve",
    "/placement/v1/renew", "/endpoints/shop", "/endpoints/shop/web", "/version", "/openapi/v3", "/readyz", "/readyz/x",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/apis/authentication.k8s.io/v1/tokenreviews",
    "/openapi/v3/apis/holdfast.dev/v1", "/metrics", "/api", "/apis", "/", f"{V1}/namespaces/%00/workloads",
    f"{WORKLOADS}/{'x' * 3000}", f"{WORKLOADS}//", f"{V1}/namespaces", f"{WORKLOADS}/é", "/apis/../../etc/passwd",
]
QUERIES = [
    "watch=true&timeoutSeconds=1", "limit=1", "limit=-5", "limit=99999999999999999999", "continue=x", "dryRun=All",
    "resourceVersion=0", "resourceVersion=abc", "resourceVersion=99999999999999999999", "resourceVersionMatch=Exact",
    "labelSelector=a in (b", "labelSelector=a=b", "fieldSelector=metadata.name=web", "fieldSelector=x",
    "fieldSelector==", "fieldManager=x", "fieldManager=" + "y" * 200, "force=true", "fieldValidation=Strict",
    "fieldValidation=x", "propagationPolicy=x", "propagationPolicy=Orphan", "a=b", "includeObject=x", "pretty=1",
    "sendInitialEvents=true", "%ff=%fe", "timeoutSeconds=x", "&&&=",
]
ACCEPTS = [
    "", "application/json", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io", "text/html", ";;;,,,=",
    "application/json;as=x", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    "application/vnd.kubernetes.protobuf",
]
# fmt: on
STORMS = int(os.environ.get("HOLDFAST_FUZZ_STORMS", "10"))
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"]


def mutated(chance: random.Random, value: Any, depth: int = 0) -> Any:
    """`value` with an error somewhere in it."""
    roll = chance.random()
    if depth > 5 or roll < 0.15:
        return chance.choice(VALUES)
    if isinstance(value, dict) and value:
        made = dict(value)
        key = chance.choice(list(made))
        if roll < 0.3:
            made[chance.choice(KEYS)] = chance.choice(VALUES)
        elif roll < 0.4:
            del made[key]
        else:
            made[key] = mutated(chance, made[key], depth + 1)
        return made
    if isinstance(value, list) and value:
        index = chance.randrange(len(value))
        return [*value[:index], mutated(chance, value[index], depth + 1), *value[index + 1 :]]
    return chance.choice(VALUES)


def seeds_of_bodies() -> list[Any]:
    about = {"kind": "Workload", "namespace": "shop", "name": "web"}
    owned = {"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    blocks = {"summary": {"serving": 1}}
    return [
        workload(),
        workload("other"),
        {"spec": {"replicas": 2}},
        {"metadata": {"labels": {"a": "b"}}},
        [{"op": "add", "path": "/metadata/labels/x", "value": "y"}, {"op": "test", "path": "/spec", "value": 3}],
        {"writes": [{"op": "create", "object": workload("c")}, {"op": "delete", **about, "uid": "u"}]},
        {"writes": [{"op": "setStatus", **about, "uid": "u", "blocks": blocks, "conditions": []}]},
        {"component": "x", "notices": [{"about": about, "reason": "R", "message": "m"}]},
        {"spec": {"resourceAttributes": {"verb": "get", "resource": "workloads"}}},
        {"spec": {"token": "x"}},
        {"propagationPolicy": "Foreground", "preconditions": {"uid": "x"}, "dryRun": ["All"]},
        {"items": [{"node": "n1", "epoch": 1}]},
        {"metadata": {"name": "shop"}, "spec": {"finalizers": ["kubernetes"]}},
        {"metadata": {"name": "e"}, "involvedObject": about, "reason": "r", "eventTime": None},
        {"metadata": {"name": "web", "managedFields": [owned]}},
    ]


JSON, MERGE = "application/json", "application/merge-patch+json"


def valid_requests(number: int) -> list[tuple[str, str, str, Any]]:
    """Requests that the server accepts: method, path, type and body."""
    labels = [{"op": "add", "path": "/metadata/labels/x", "value": "y"}]
    named = {"metadata": {"name": f"n{number}"}}
    return [
        ("POST", WORKLOADS, JSON, workload(f"n{number}")),
        ("PATCH", f"{WORKLOADS}/web", MERGE, {"spec": {"replicas": number}}),
        ("PATCH", f"{WORKLOADS}/web", "application/json-patch+json", labels),
        ("PATCH", f"{WORKLOADS}/web", "application/strategic-merge-patch+json", {"metadata": {"labels": {"a": "b"}}}),
        ("PATCH", f"{WORKLOADS}/web/scale", MERGE, {"spec": {"replicas": number}}),
        ("PUT", f"{WORKLOADS}/web", JSON, workload(replicas=number)),
        ("POST", f"{V1}/tenants", JSON, named),
        ("POST", "/api/v1/namespaces", JSON, named),
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/shop/leases", JSON, named),
        ("DELETE", f"{WORKLOADS}/n{number - 1}", JSON, None),
    ]


def body_of(chance: random.Random, value: Any, mutations: int) -> bytes:
    for _ in range(mutations):
        value = mutated(chance, value)
    try:
        data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode()
    except (ValueError, UnicodeEncodeError):
        data = b"{}"
    roll = chance.random()
    if roll < 0.05:
        at = chance.randrange(len(data) + 1)
        data = data[:at] + bytes(chance.randrange(256) for _ in range(3)) + data[at:]
    elif roll < 0.08:
        data = data[: chance.randrange(len(data) + 1)]
    elif roll < 0.1:
        data = b"k8s\0" + data
    return data


async def storm(api: Api, world: World, seed: int, requests: int) -> None:
    """Half of the requests are valid ones with up to two errors; in the others no part fits another."""
    chance = random.Random(seed)
    accepted = dry_runs = 0
    await api.post(WORKLOADS, workload())
    users = [api] * 6 + [api.as_user("tim"), api.as_user("holdfast:controller:workload-status"), api.as_user("")]
    for number in range(requests):
        if chance.random() < 0.5:
            user, accept = api, chance.choice(["", JSON])
            method, path, type_, value = chance.choice(valid_requests(number))
            query = chance.choice(["", "", "dryRun=All", chance.choice(QUERIES)])
            body = body_of(chance, value, chance.randrange(3)) if value is not None else None
        else:
            user, accept, type_ = chance.choice(users), chance.choice(ACCEPTS), chance.choice(TYPES)
            method, path = chance.choice(METHODS), chance.choice(PATHS)
            query = "&".join(chance.sample(QUERIES, chance.randrange(3)))
            has_body = method not in ("GET", "HEAD") or chance.random() < 0.1
            body = body_of(chance, chance.choice(seeds_of_bodies()), chance.randrange(4)) if has_body else None
        query = query.replace(" ", "%20")
        if "watch=true" in query:
            query += "&timeoutSeconds=1&resourceVersion=abc"
        before = world.objects.head(BY_NAME["Workload"])
        began = time.process_time()  # CPU time: other processes do not slow it
        reply = await user.call(method, f"{path}?{query}", body, type=type_, accept=accept)
        what = f"seed {seed}, request {number}: {method} {path}?{query} {body!r:.400}"
        assert reply.code < 500, what
        watched = "watch=true" in query and reply.code == 200
        assert watched or time.process_time() - began < 1.0, f"slow: {what}"
        if reply.code >= 400:
            assert reply.json["kind"] == "Status" and reply.json["code"] == reply.code and reply.json["message"], what
            assert world.objects.head(BY_NAME["Workload"]) == before, f"stored something: {what}"
        elif "dryRun=All" in query and method in ("POST", "PUT", "PATCH") and path.startswith(("/api/", "/apis/")):
            dry_runs += 1
            assert world.objects.head(BY_NAME["Workload"]) == before, f"a dry run stored something: {what}"
        elif method in ("POST", "PUT", "PATCH"):
            accepted += 1
    assert accepted > requests / 50 and dry_runs > requests / 100, "too few requests pass the first checks"
    alive = await api.get("/readyz")
    assert alive.code == 200


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_requests_never_cause_server_error(api: Api, world: World, seed: int) -> None:
    await storm(api, world, seed, 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + STORMS))
async def test_mutated_requests_long_run_never_causes_server_error(api: Api, world: World, seed: int) -> None:
    await storm(api, world, seed, 2000)
