"""The objects of a new platform, without which it refuses every workload: priority classes, a policy and a tenant."""

from __future__ import annotations

from typing import Any

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.model import kinds

_API = "holdfast.dev/v1"


def default_objects() -> list[dict[str, Any]]:
    """In the order to create them. `critical` and `high` name no tenant: an operator adds those that may preempt."""
    return [
        _priority("critical", 1000, "Users notice within seconds.", mayPreempt=True, tenants=[]),
        _priority("high", 500, "Users notice within minutes.", mayPreempt=True, tenants=[]),
        _priority("standard", 0, "The default."),
        _priority("reclaimable", -100, "Runs in capacity kept for recovery, and yields it.", reclaimable=True),
        {
            "apiVersion": _API,
            "kind": "SchedulerPolicy",
            "metadata": {"name": "default"},
            "spec": {
                "stage": "Active",
                "rules": {
                    "scores": [
                        {"name": "Spread", "weight": 2},
                        {"name": "Balance", "weight": 1},
                        {"name": "Taints", "weight": 1},
                        {"name": "Locality", "weight": 2},
                    ],
                    "queue": ["Priority", "Deadline", "Fairness", "Age"],
                    "partitionMode": "Wait",
                },
            },
        },
        {
            "apiVersion": _API,
            "kind": "Tenant",
            "metadata": {"name": "default"},
            "spec": {"description": "The first tenant."},
        },
        {
            "apiVersion": _API,
            "kind": "Quota",
            "metadata": {"name": "quota", "namespace": "default"},
            "spec": {"hard": {"cpu": "100", "memory": "400Gi", "disk": "4Ti", "gpu": 100}},
        },
    ]


def _priority(name: str, priority: int, description: str, **more: Any) -> dict[str, Any]:
    spec = {"priority": priority, "description": description, "tenants": ["*"], **more}
    return {"apiVersion": _API, "kind": "PriorityClass", "metadata": {"name": name}, "spec": spec}


def create_default_objects(api: CellApi) -> int:
    """Creates those that do not exist. An object that an operator changed stays as it is. Returns how many were
    created."""
    created = 0
    for item in default_objects():
        namespace = item["metadata"].get("namespace", "")
        where = f"namespaces/{namespace}/" if namespace else ""
        try:
            api.request("POST", f"/apis/{_API}/{where}{kinds.BY_NAME[item['kind']].plural}", item)
            created += 1
        except ApiRefusal as refusal:
            if refusal.status != 409:
                raise
    return created
