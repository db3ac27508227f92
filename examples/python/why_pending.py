"""Plans a workload before it is applied, applies it anyway, and explains why its replicas wait.

python why_pending.py DIR|KUBECONFIG
"""

from __future__ import annotations

import sys

from holdfast.client import connect
from holdfast.insight.queries import explain, plan
from holdfast.model.workload import Workload

MANIFEST = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "metadata": {"name": "too-big", "namespace": "search"},
    "spec": {
        "replicas": 1,
        "template": {"command": ["sleep", "600"], "resources": {"cpu": "1", "memory": "64Mi"}},
        "placement": {"regions": ["us-east"], "nodeSelector": {"disk": "nvme"}},
    },
}


def waits(workload: Workload) -> bool:
    return any(region.pending_reason for region in workload.status.summary.regions)


def main(target: str) -> int:
    with connect(target) as holdfast:
        for placing in plan(holdfast, MANIFEST).placings:
            print(f"plan: {placing.replica} on {placing.node or 'no node'} {placing.reason} (to fit: {placing.to_fit})")
        holdfast.apply(MANIFEST)
        try:
            holdfast.wait(Workload, "too-big", "search", until=waits)
            for timeline in explain(holdfast, "search/too-big").timelines:
                print(f"{timeline.subject}: {timeline.stage}, next {timeline.next_owner}")
                print("\n".join(f"  because {reason}" for reason in timeline.reasons))
        finally:
            holdfast.delete(Workload, "too-big", "search", wait_s=60)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
