"""A table of attempts to get more rights than one has: each is refused, and recorded exactly once before the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

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
    "another tenant by a dot segment at the end": Attempt("GET", f"{THEIRS}/."),
    "another tenant by encoded slashes": Attempt("GET", f"{V1}/namespaces/shop%2f..%2fother/workloads"),
    "Secrets, as a viewer": Attempt("GET", "/api/v1/namespaces/shop/secrets", user="vera"),
    "metrics, as a tenant": Attempt("GET", "/metrics"),
    "the audit log, as a tenant": Attempt("GET", "/audit/v1"),
    "write, as the monitor": Attempt("POST", WORKLOADS, workload(), user="prometheus"),
    "an unknown token": Attempt("GET", WORKLOADS, user="", headers={"authorization": "Bearer hf_" + "x" * 43}),
    "no credential": Attempt("GET", WORKLOADS, user=""),
}
PATHS_WITHOUT_A_ROUTE = (
    "/apis/holdfast.dev/v1/namespaces/shop/../other/workloads",
    "/apis/holdfast.dev/v1//namespaces/other/workloads",
    "/APIS/holdfast.dev/v1/namespaces/other/workloads",
)


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


@pytest.mark.parametrize("path", PATHS_WITHOUT_A_ROUTE)
async def test_path_trick_reaches_no_route(world: World, path: str) -> None:
    """Such a path names nothing that the server has, for whoever asks, so nothing was denied."""
    for user in ("tim", "ada"):
        assert (await Api(world.app, user).get(path)).code == 404
