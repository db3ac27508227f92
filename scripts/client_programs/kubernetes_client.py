"""Uses Holdfast with the official Python client, typed and dynamic. Prints one JSON line per check."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
from typing import Any

import kubernetes
from kubernetes.dynamic import DynamicClient
from reporting import WORKLOAD, Checks

config, tenant = sys.argv[1], sys.argv[2]
kubernetes.config.load_kube_config(config)
api = kubernetes.client.ApiClient()
core: Any = kubernetes.client.CoreV1Api(api)
custom: Any = kubernetes.client.CustomObjectsApi(api)
workloads = ("holdfast.dev", "v1", tenant, "workloads")
checks = Checks("kubernetes", kubernetes.__version__)


def every_kind() -> None:
    dynamic = DynamicClient(api)
    for found in dynamic.resources.search():
        if "list" in (found.verbs or ()) and not found.kind.endswith("List"):
            found.get()


def watch() -> None:
    stream = kubernetes.watch.Watch()
    for event in stream.stream(custom.list_namespaced_custom_object, *workloads, timeout_seconds=10):
        if event["object"]["metadata"]["name"] == "from-kubernetes":
            return
    raise AssertionError("no event")


body = WORKLOAD | {"metadata": {"name": "from-kubernetes"}}
patch = {"spec": {"replicas": 2}}
checks.run("list nodes of all regions, typed", lambda: [n.status.node_info.os_image for n in core.list_node().items])
checks.run("list pods, typed", lambda: core.list_pod_for_all_namespaces(limit=50).items[0].spec.node_name)
checks.run("list events, typed", core.list_event_for_all_namespaces)
checks.run("list namespaces, typed", core.list_namespace)
checks.run("list every kind", every_kind)
checks.run("create", lambda: custom.create_namespaced_custom_object(*workloads, body))
checks.run("get", lambda: custom.get_namespaced_custom_object(*workloads, "from-kubernetes"))
checks.run("patch", lambda: custom.patch_namespaced_custom_object(*workloads, "from-kubernetes", patch))
checks.run("scale", lambda: custom.patch_namespaced_custom_object_scale(*workloads, "from-kubernetes", patch))
checks.run("watch", watch)
checks.run("delete", lambda: custom.delete_namespaced_custom_object(*workloads, "from-kubernetes"))
checks.done()
