"""The `kubernetes` package and kopf against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError
from tests.expected import present

from .conftest import Cell, eventually

MERGE = "application/merge-patch+json"


def workload(name: str, replicas: int = 3) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"replicas": replicas, "template": {"command": ["serve"], "resources": {"cpu": "500m"}}},
    }


@pytest.fixture
def client(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(cell.kubeconfig()), client_configuration=configuration)
    configuration.proxy = None
    return kubernetes.client.ApiClient(configuration)


@pytest.fixture
def workloads(client: Any, cell: Cell, tmp_path: Path) -> Any:
    dynamic = DynamicClient(client, cache_file=str(tmp_path / "discovery"))
    return dynamic.resources.get(api_version="holdfast.dev/v1", kind="Workload")


def test_dynamic_client_creates_lists_and_reports_errors(workloads: Any) -> None:
    made = workloads.create(body=workload("dynamic"), namespace="shop")
    assert made.metadata.uid and made.spec.replicas == 3
    assert "dynamic" in [item.metadata.name for item in workloads.get(namespace="shop").items]
    patched = workloads.patch(name="dynamic", namespace="shop", body={"spec": {"replicas": 4}}, content_type=MERGE)
    assert patched.spec.replicas == 4
    replaced = workloads.get(name="dynamic", namespace="shop").to_dict()
    replaced["spec"]["replicas"] = 5
    assert workloads.replace(body=replaced, namespace="shop").spec.replicas == 5
    with pytest.raises(ConflictError):
        workloads.replace(body=replaced, namespace="shop")
    applied = workloads.server_side_apply(
        body=workload("dynamic", 6), namespace="shop", field_manager="python", force_conflicts=True
    )
    assert applied.spec.replicas == 6
    scaled = workloads.scale.patch(name="dynamic", namespace="shop", body={"spec": {"replicas": 7}}, content_type=MERGE)
    assert scaled.spec.replicas == 7
    assert workloads.status.get(name="dynamic", namespace="shop").status.summary.serving == 0
    workloads.delete(name="dynamic", namespace="shop")
    with pytest.raises(NotFoundError):
        workloads.get(name="missing", namespace="shop")
    with pytest.raises(kubernetes.client.ApiException) as refused:
        workloads.create(body=workload("UPPER"), namespace="shop")
    assert refused.value.status == 422


def test_python_watch_reports_scale(client: Any) -> None:
    custom = kubernetes.client.CustomObjectsApi(client)
    where = ("holdfast.dev", "v1", "shop", "workloads")
    seen: list[tuple[str, int]] = []
    watch = kubernetes.watch.Watch()

    def follow() -> None:
        for event in watch.stream(custom.list_namespaced_custom_object, *where, timeout_seconds=20):
            if event["object"]["metadata"]["name"] == "watched":
                seen.append((event["type"], event["object"]["spec"]["replicas"]))
                if seen[-1] == ("MODIFIED", 8):
                    watch.stop()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    custom.create_namespaced_custom_object(*where, workload("watched"))
    custom.patch_namespaced_custom_object_scale(*where, "watched", {"spec": {"replicas": 8}})
    eventually(lambda: ("MODIFIED", 8) in seen)
    assert seen[0] == ("ADDED", 3)
    custom.patch_namespaced_custom_object(*where, "watched", {"metadata": {"labels": {"a": "b"}}})
    reader.join(25)


def test_typed_clients_use_namespaces_events_and_reviews(client: Any) -> None:
    core = kubernetes.client.CoreV1Api(client)
    core.create_namespace(kubernetes.client.V1Namespace(metadata=kubernetes.client.V1ObjectMeta(name="typed")))
    assert present(core.read_namespace("typed").status).phase == "Active"
    core.patch_namespace("typed", {"metadata": {"labels": {"team": "red"}}})
    assert (present(core.read_namespace("typed").metadata).labels or {})["team"] == "red"
    event = kubernetes.client.CoreV1Event(
        metadata=kubernetes.client.V1ObjectMeta(generate_name="typed."),
        involved_object=kubernetes.client.V1ObjectReference(kind="Workload", name="web", namespace="shop"),
        reason="Tested",
        message="said by the typed client",
    )
    assert core.create_namespaced_event("shop", event).reason == "Tested"
    review = kubernetes.client.V1SelfSubjectAccessReview(
        spec=kubernetes.client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=kubernetes.client.V1ResourceAttributes(verb="delete", resource="regions")
        )
    )
    answer = kubernetes.client.AuthorizationV1Api(client).create_self_subject_access_review(review)
    assert present(answer.status).allowed is True
    assert kubernetes.client.VersionApi(client).get_code().minor == "32"


def test_lease_replace_with_stale_revision_conflicts(client: Any) -> None:
    api = kubernetes.client.CoordinationV1Api(client)
    body = kubernetes.client.V1Lease(
        metadata=kubernetes.client.V1ObjectMeta(name="lock"),
        spec=kubernetes.client.V1LeaseSpec(holder_identity="a", lease_duration_seconds=15),
    )
    made = api.create_namespaced_lease("shop", body)
    present(made.spec).holder_identity = "b"
    assert present(api.replace_namespaced_lease("lock", "shop", made).spec).holder_identity == "b"
    with pytest.raises(kubernetes.client.ApiException) as late:
        api.replace_namespaced_lease("lock", "shop", made)
    assert late.value.status == 409


HANDLERS = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.persistence.finalizer = "example.com/kopf"
    settings.posting.enabled = True

@kopf.on.create("holdfast.dev", "v1", "workloads", labels={"kopf": "yes"})
def created(name, patch, **_):
    patch.metadata.annotations["example.com/created"] = name

@kopf.on.update("holdfast.dev", "v1", "workloads", labels={"kopf": "yes"}, field="spec.replicas")
def updated(old, new, patch, **_):
    patch.metadata.annotations["example.com/updated"] = f"{old}-{new}"

@kopf.on.delete("holdfast.dev", "v1", "workloads", labels={"kopf": "yes"})
def deleted(name, **_):
    print(f"deleted {name}", flush=True)
"""


@pytest.mark.slow
def test_kopf_operator_handles_workloads(cell: Cell, workloads: Any, tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    environment = {**os.environ, "KUBECONFIG": str(cell.kubeconfig()), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    log = (tmp_path / "kopf.log").open("wb")
    operator = subprocess.Popen(
        [sys.executable, "-m", "kopf", "run", "--standalone", "-n", "shop", str(tmp_path / "handlers.py")],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        item = workload("by-kopf")
        item["metadata"]["labels"]["kopf"] = "yes"
        workloads.create(body=item, namespace="shop")

        def annotation(name: str) -> str:
            found = workloads.get(name="by-kopf", namespace="shop").to_dict()
            return str(found["metadata"].get("annotations", {}).get(name, ""))

        assert eventually(lambda: annotation("example.com/created"), within_s=40) == "by-kopf"
        workloads.patch(name="by-kopf", namespace="shop", body={"spec": {"replicas": 9}}, content_type=MERGE)
        assert eventually(lambda: annotation("example.com/updated"), within_s=40) == "3-9"
        workloads.delete(name="by-kopf", namespace="shop")
        eventually(lambda: "deleted by-kopf" in (tmp_path / "kopf.log").read_text(), within_s=40)
        ours = {"metadata": {"finalizers": ["holdfast.dev/assignments"]}}

        def let_go() -> bool:
            left = workloads.get(name="by-kopf", namespace="shop").metadata.finalizers or []
            return list(left) == ours["metadata"]["finalizers"]

        eventually(let_go, within_s=40)
    finally:
        operator.terminate()
        operator.wait(20)
        log.close()
    kopf_log = (tmp_path / "kopf.log").read_text()
    assert "Traceback" not in kopf_log, kopf_log
