"""The columns of pods in `kubectl get`: those that kubectl shows for pods of Kubernetes, with the same words."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.pod_view import Container, ContainerStatus, Pod
from holdfast.server.table_column import NONE, TableColumn

SIDECAR_POLICY = "Always"


def _ready(pod: Pod) -> str:
    """Ready containers of all. Sidecars count, init tasks do not."""
    sidecars = [one.name for one in pod.spec.init_containers if _is_sidecar(one)]
    counted = [*pod.status.container_statuses, *_named(pod.status.init_container_statuses, sidecars)]
    return f"{sum(one.ready for one in counted)}/{len(pod.spec.containers) + len(sidecars)}"


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == SIDECAR_POLICY


def _named(statuses: Iterable[ContainerStatus], names: Iterable[str]) -> list[ContainerStatus]:
    wanted = set(names)
    return [one for one in statuses if one.name in wanted]


def _status(pod: Pod) -> str:
    """What people read first: why the container waits or how it ended, else the phase."""
    status = pod.status
    if status.phase == "Unknown":
        return status.phase
    if status.reason and status.phase in ("Pending", "Running"):
        return "Terminating"
    for one in status.container_statuses:
        if one.state.waiting is not None:
            return one.state.waiting.reason or status.phase
        if one.state.terminated is not None:
            return one.state.terminated.reason or status.phase
    return status.phase


def _restarts(pod: Pod) -> int:
    return sum(one.restart_count for one in (*pod.status.container_statuses, *pod.status.init_container_statuses))


POD_COLUMNS = (
    TableColumn("Ready", _ready, description="ready containers/all"),
    TableColumn("Status", _status, description="why the container waits, how it ended, or the phase"),
    TableColumn("Restarts", _restarts, "integer"),
    TableColumn("IP", lambda pod: pod.status.pod_ip or NONE, wide=True),
    TableColumn("Node", lambda pod: pod.spec.node_name, wide=True),
    TableColumn("Workload", lambda pod: pod.metadata.labels.get(LABEL_WORKLOAD, ""), wide=True),
)
