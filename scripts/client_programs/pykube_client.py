"""Uses Holdfast with pykube-ng. Prints one JSON line with all checks."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import importlib.metadata
import sys

import pykube
from reporting import WORKLOAD, Checks

config, tenant = sys.argv[1], sys.argv[2]
api = pykube.HTTPClient(pykube.KubeConfig.from_file(config))
Workload = pykube.object_factory(api, "holdfast.dev/v1", "Workload")
made = Workload(api, WORKLOAD | {"metadata": {"name": "from-pykube", "namespace": tenant}})
checks = Checks("pykube-ng", importlib.metadata.version("pykube-ng"))


def watch() -> None:
    for event in Workload.objects(api, namespace=tenant).watch(params={"timeoutSeconds": "10"}):
        if event.object.name == "from-pykube":
            return
    raise AssertionError("no event")


checks.run("list nodes of all regions", lambda: [n.name for n in pykube.Node.objects(api)])
checks.run("list pods", lambda: [p.name for p in pykube.Pod.objects(api, namespace=pykube.all)])
checks.run("create", made.create)
checks.run("get", lambda: Workload.objects(api, namespace=tenant).get_by_name("from-pykube"))
checks.run("patch", lambda: made.patch({"spec": {"replicas": 2}}))
checks.run("watch", watch)
checks.run("delete", made.delete)
checks.done()
