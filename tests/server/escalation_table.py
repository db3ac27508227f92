"""Attempts to get more rights than one has, and malformed paths. The same tables are sent to the application in process
(`test_escalation_attempts.py`) and to the servers of a platform (`tests/e2e/test_access_matrix.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .conftest import V1, WORKLOADS, workload

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
