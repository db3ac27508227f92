"""Watches the replicas of one region while a workload is rolled to a new size, with asyncio.

python watch_replicas.py DIR|KUBECONFIG
"""

from __future__ import annotations

import asyncio
import sys

from holdfast.client import connect_async
from holdfast.model.lifecycle import stage
from holdfast.model.replica import Replica
from holdfast.model.workload import Workload

TENANT, NAME, REGION = "search", "watched", "us-east"
MANIFEST = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "metadata": {"name": NAME, "namespace": TENANT},
    "spec": {
        "replicas": 2,
        "template": {"command": ["sleep", "600"], "resources": {"cpu": "50m", "memory": "16Mi"}},
        "placement": {"regions": [REGION]},
    },
}


async def main(target: str) -> int:
    async with connect_async(target) as holdfast, await holdfast.region(REGION) as region:
        await holdfast.apply(MANIFEST)
        serving: set[str] = set()
        async with asyncio.timeout(90):
            async for change in region.watch(Replica, TENANT):
                replica = change.object
                if replica.spec.workload != NAME:
                    continue
                print(f"{change.type.value:8} {replica.metadata.name}: {stage(replica).value}")
                if stage(replica).value == "Serving":
                    serving.add(replica.metadata.name)
                if len(serving) == 2:
                    break
        await holdfast.delete(Workload, NAME, TENANT, wait_s=60)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
