"""A table of attempts to get more rights than one has: each is refused, and recorded exactly once before the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from holdfast.gate import audit_rows
from holdfast.gate.audit import AUDIT_LOG, REFUSED, AuditRecord, decode_record

from .conftest import V1, WORKLOADS, Api, World, workload

RBAC = "/apis/rbac.authorization.k8s.io/v1"
THEIRS = WORKLOADS.replace("shop", "other")
OPERATOR_ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "holdfast:operator"}
TIM = {"kind": "User", "name": "tim", "apiGroup": "rbac.authorization.k8s.io"}
OWNER = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "theirs", "uid": "1"}
BINDING = {"metadata": {"name": "me"}, "roleRef": OPERATOR_ROLE, "subjects": [TIM]}
AGGREGATION = {"rbac.authorization.kubernetes.io/aggregate-to-admin": "true"}


class Attempt(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: Any = None
    user: str = "tim"
    headers: Mapping[str, str] = {}


ATTEMPTS = {
    "impersonate an operator": Attempt("GET", WORKLOADS, headers={"impersonate_user": "ada"}),
    "impersonate the group of operators": Attempt(
        "GET", WORKLOADS, headers={"impersonate_user": "tim", "impersonate_group": "holdfast:operators"}
    ),
    "impersonate a component, as an operator": Attempt(
        "GET", WORKLOADS, user="ada", headers={"impersonate_user": "x", "impersonate_group": "holdfast:controllers"}
    ),
    "bind the operator's role to oneself": Attempt("POST", f"{RBAC}/clusterrolebindings", BINDING),
    "bind it in the own tenant": Attempt("POST", f"{RBAC}/namespaces/shop/rolebindings", BINDING),
    "role with labels that aggregate it elsewhere": Attempt(
        "POST", f"{RBAC}/clusterroles", {"metadata": {"name": "wide", "labels": AGGREGATION}, "rules": []}
    ),
    "own a dependent in another tenant": Attempt(
        "POST", THEIRS, {**workload("mine"), "metadata": {"name": "mine", "ownerReferences": [OWNER]}}
    ),
    "finalizer on another tenant's object": Attempt(
        "PATCH", f"{THEIRS}/theirs", {"metadata": {"finalizers": ["example.com/hold"]}}
    ),
    "labels on another tenant's object": Attempt("PATCH", f"{THEIRS}/theirs", {"metadata": {"labels": {"a": "b"}}}),
    "labels on a tenant": Attempt("PATCH", f"{V1}/tenants/shop", {"metadata": {"labels": {"team": "root"}}}),
    "status of the own workload": Attempt("PUT", f"{WORKLOADS}/mine/status", workload("mine")),
    "status of a node": Attempt("PATCH", f"{V1}/regions/west/status", {"status": {}}),
    "approve the own override": Attempt("PATCH", f"{V1}/overrides/mine", {"spec": {"approver": "tim"}}),
    "raise the own quota": Attempt("PATCH", f"{V1}/namespaces/shop/quotas/quota", {"spec": {"hard": {"cpu": "9999"}}}),
    "all tenants by a cluster-wide list": Attempt("GET", f"{V1}/workloads"),
    "all tenants by a field selector": Attempt("GET", f"{V1}/workloads?fieldSelector=metadata.namespace%3Dshop"),
    "Secrets, as a viewer": Attempt("GET", "/api/v1/namespaces/shop/secrets", user="vera"),
    "metrics, as a tenant": Attempt("GET", "/metrics"),
    "the audit log, as a tenant": Attempt("GET", "/audit/v1"),
    "write, as the monitor": Attempt("POST", WORKLOADS, workload(), user="prometheus"),
    "an unknown token": Attempt("GET", WORKLOADS, user="", headers={"authorization": "Bearer hf_" + "x" * 43}),
    "no credential": Attempt("GET", WORKLOADS, user=""),
}
MALFORMED_PATHS = {
    "a dot segment": f"{V1}/namespaces/shop/../other/workloads",
    "a dot segment at the end": f"{THEIRS}/.",
    "dot segments to a file": "/apis/../../etc/passwd",
    "two slashes": f"{V1}//namespaces/other/workloads",
    "two slashes at the beginning": f"/{THEIRS}",
    "two slashes at the end": f"{THEIRS}//",
    "a slash that is encoded twice": f"{V1}/namespaces/shop%2f..%2fother/workloads",
    "dots that are encoded twice": f"{V1}/namespaces/shop/%2e%2e/other/workloads",
    "backslashes": f"{V1}/namespaces/shop\\..\\other/workloads",
    "a zero byte": f"{THEIRS}/theirs\0.json",
    "another case of the prefix": THEIRS.replace("/apis", "/APIS"),
    "another case of the resource": THEIRS.replace("/workloads", "/Workloads"),
    "the console's prefix": f"/console/api/resources{V1}/../v1/namespaces/other/workloads",
}
PATHS_WITHOUT_A_ROUTE = (f"{V1}/namespaces/shop/absent", "/apis/absent.example.com/v1", "/metrics/absent/x")


async def refusals(world: World) -> list[AuditRecord]:
    """Read from the store, without a flush."""
    records = [decode_record(record.value) for record in await world.store.read_log(AUDIT_LOG, limit=10_000)]
    return [record for record in records if record.result == REFUSED]


@pytest.mark.parametrize("name", ATTEMPTS)
async def test_attempt_is_refused_and_recorded_once(world: World, name: str) -> None:
    attempt = ATTEMPTS[name]
    kind = "application/merge-patch+json" if attempt.method == "PATCH" else "application/json"
    reply = await Api(world.app, attempt.user).call(
        attempt.method, attempt.path, attempt.body, type=kind, **attempt.headers
    )
    assert reply.code in (401, 403), reply.body
    (record,) = await refusals(world)
    assert record.count == 1
    assert record.principal.startswith(attempt.user or "system:anonymous")


@pytest.mark.parametrize(("not_after", "why"), [("Jan  1 00:00:00 2021 GMT", "CertificateExpired")])
async def test_stale_certificate_is_refused_and_recorded_once(world: World, not_after: str, why: str) -> None:
    class Stale(Api):
        def scope(self, method: str, path: str, headers: Any) -> dict[str, Any]:
            made = super().scope(method, path, headers)
            made["holdfast.peer_certificate"]["notAfter"] = not_after
            return made

    assert (await Stale(world.app, "ada").get(WORKLOADS)).code == 401
    (record,) = await refusals(world)
    assert (record.principal, record.reason, record.count) == ("ada", why, 1)


@pytest.mark.parametrize("name", MALFORMED_PATHS)
async def test_malformed_path_is_refused_and_recorded_once_for_whoever_sends_it(world: World, name: str) -> None:
    path = MALFORMED_PATHS[name]
    headers = {"x_holdfast_console": "x", "host": "localhost"} if path.startswith("/console") else {}
    for number, (user, code) in enumerate((("tim", 400), ("ada", 400), ("", 401)), 1):
        reply = await Api(world.app, user).call("GET", path, **headers)
        assert reply.code == code, reply.body
        found = await refusals(world)
        assert len(found) == number and found[-1].count == 1
        assert found[-1].principal.startswith(user or "system:anonymous")
        if user:
            assert (found[-1].reason, found[-1].resource, found[-1].verb) == ("MalformedPath", "paths", "get")
            assert found[-1].message.isprintable()


@pytest.mark.parametrize("path", PATHS_WITHOUT_A_ROUTE)
async def test_well_formed_path_without_a_route_is_not_found_and_leaves_no_record(world: World, path: str) -> None:
    """Such a path names nothing that the server has, for whoever asks, so nothing was denied."""
    for user in ("tim", "ada"):
        assert (await Api(world.app, user).get(path)).code == 404
    assert await refusals(world) == []


async def test_flood_of_malformed_paths_is_counted_in_few_records(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_rows, "AUDIT_PROMPT_BURST", 3)
    tim = Api(world.app, "tim")
    answers = await asyncio.gather(*(tim.get(f"{V1}/../{number}") for number in range(500)))
    assert {answer.code for answer in answers} == {400}
    found = await refusals(world)
    assert sum(record.count for record in found) == 500 and len(found) <= 4
