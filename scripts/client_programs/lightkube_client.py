"""Uses Holdfast with lightkube, typed and generic. Prints one JSON line with all checks."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import importlib.metadata
import sys

from lightkube import Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Event, Namespace, Node, Pod
from lightkube.types import PatchType
from reporting import WORKLOAD, Checks

config, tenant = sys.argv[1], sys.argv[2]
client = Client(KubeConfig.from_file(config), field_manager="lightkube")
Workload = create_namespaced_resource("holdfast.dev", "v1", "Workload", "workloads")
body = Workload(WORKLOAD | {"metadata": {"name": "from-lightkube", "namespace": tenant}})
patch = {"spec": {"replicas": 2}}
checks = Checks("lightkube", importlib.metadata.version("lightkube"))


def watch() -> None:
    for _, found in client.watch(Workload, namespace=tenant, server_timeout=10):
        if found.metadata.name == "from-lightkube":
            return
    raise AssertionError("no event")


checks.run("list nodes of all regions, typed", lambda: [n.status.nodeInfo.osImage for n in client.list(Node)])
checks.run("list pods, typed", lambda: [p.spec.nodeName for p in client.list(Pod, namespace="*")])
checks.run("list events, typed", lambda: list(client.list(Event, namespace="*")))
checks.run("list namespaces, typed", lambda: list(client.list(Namespace)))
checks.run("create", lambda: client.create(body))
checks.run("get", lambda: client.get(Workload, "from-lightkube", namespace=tenant))
checks.run(
    "patch", lambda: client.patch(Workload, "from-lightkube", patch, namespace=tenant, patch_type=PatchType.MERGE)
)
checks.run("apply", lambda: client.apply(body, force=True))
checks.run("watch", watch)
checks.run("delete", lambda: client.delete(Workload, "from-lightkube", namespace=tenant))
checks.done()
