"""Deploys a service, waits until it serves, scales it, and deletes it.

python deploy_and_wait.py DIR|KUBECONFIG
"""

from __future__ import annotations

import sys

from holdfast.client import WaitTimedOut, connect
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.template import Template
from holdfast.model.workload import Workload, WorkloadSpec

TENANT, NAME = "search", "python-demo"


def main(target: str) -> int:
    with connect(target) as holdfast:
        wanted = Workload(
            ObjectMeta(name=NAME, namespace=TENANT, labels={"made-by": "python"}),
            WorkloadSpec(
                replicas=2,
                template=Template(command=("sleep", "600"), resources={"cpu": "50m", "memory": "16Mi"}),
                placement=PlacementRules(regions=("us-east",)),
            ),
        )
        stored = holdfast.apply(wanted)
        print(f"stored as generation {stored.metadata.generation}")
        try:
            ready = holdfast.wait(
                Workload, NAME, TENANT, until=lambda item: item.status.summary.serving == 2, timeout_s=90
            )
        except WaitTimedOut as late:
            print(late)
            return 1
        print(f"{ready.status.summary.serving} replicas serve")
        scaled = holdfast.patch(Workload, NAME, TENANT, changes={"spec": {"replicas": 1}})
        print(f"scaled to {scaled.spec.replicas}")
        holdfast.delete(Workload, NAME, TENANT, wait_s=60)
        print("deleted")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
