"""Uses Holdfast with kr8s. Prints one JSON line with all checks."""

# mypy: disable-error-code="import-not-found,no-untyped-call"

from __future__ import annotations

import sys
from typing import Any

import kr8s
from kr8s.objects import new_class
from reporting import WORKLOAD, Checks

config, tenant = sys.argv[1], sys.argv[2]
api = kr8s.api(kubeconfig=config)
Workload = new_class("Workload", "holdfast.dev/v1", namespaced=True, scalable=True, asyncio=False)
made: Any = Workload(WORKLOAD | {"metadata": {"name": "from-kr8s", "namespace": tenant}}, api=api)
checks = Checks("kr8s", kr8s.__version__)


def every_kind() -> None:
    for found in api.api_resources():
        if "list" in found["verbs"]:
            list(api.get(f"{found['name']}.{found['version'].rpartition('/')[0] or 'v1'}", namespace=kr8s.ALL))


def watch() -> None:
    for _, found in api.watch("workloads.holdfast.dev", namespace=tenant):
        if found.name == "from-kr8s":
            return


checks.run("list nodes of all regions", lambda: [n.status.nodeInfo.osImage for n in api.get("nodes")])
checks.run("list pods", lambda: list(api.get("pods", namespace=kr8s.ALL)))
checks.run("list every kind", every_kind)
checks.run("create", made.create)
checks.run("get", lambda: Workload.get("from-kr8s", namespace=tenant, api=api))
checks.run("patch", lambda: made.patch({"spec": {"replicas": 2}}))
checks.run("scale", lambda: made.patch({"spec": {"replicas": 1}}))
checks.run("watch", watch)
checks.run("delete", made.delete)
checks.done()
