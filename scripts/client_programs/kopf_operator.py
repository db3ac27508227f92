"""Runs a kopf operator on Workloads until it has seen one created and deleted. Prints one JSON line with all checks."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sys
from typing import Any

import kopf
import kubernetes
from reporting import WORKLOAD, write_result

config, tenant = sys.argv[1], sys.argv[2]
os.environ["KUBECONFIG"] = config
sys.argv = sys.argv[:1]
seen: dict[str, str] = {}
stop = asyncio.Event()


@kopf.on.create("holdfast.dev", "v1", "workloads", labels={"operator": "kopf"})
def created(**_: Any) -> None:
    seen["handler of create"] = "ok"


@kopf.on.delete("holdfast.dev", "v1", "workloads", labels={"operator": "kopf"})
def deleted(**_: Any) -> None:
    seen["handler of delete, with a finalizer"] = "ok"
    stop.set()


async def main() -> None:
    running = asyncio.ensure_future(kopf.operator(namespaces=[tenant], stop_flag=stop))
    await use_workload()
    try:
        async with asyncio.timeout(30):
            await stop.wait()
    except TimeoutError:
        stop.set()
    await running
    for name in ("handler of create", "handler of delete, with a finalizer"):
        seen.setdefault(name, "not called within 30 s")
    write_result("kopf", importlib.metadata.version("kopf"), seen)


async def use_workload() -> None:
    kubernetes.config.load_kube_config(config)
    custom = kubernetes.client.CustomObjectsApi()
    body = WORKLOAD | {"metadata": {"name": "from-kopf", "labels": {"operator": "kopf"}}}
    where = ("holdfast.dev", "v1", tenant, "workloads")
    await asyncio.to_thread(custom.create_namespaced_custom_object, *where, body)
    for _ in range(100):
        await asyncio.sleep(0.2)
        if "handler of create" in seen:
            break
    await asyncio.sleep(1)
    await asyncio.to_thread(custom.delete_namespaced_custom_object, *where, "from-kopf")


asyncio.run(main())
