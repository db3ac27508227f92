"""Fields by which objects can be looked up, besides their name: for caches, field selectors and watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, Reservation
from holdfast.model.break_glass_session import BreakGlassSession, session_requester
from holdfast.model.endpoint import Endpoint
from holdfast.model.quota import Grant
from holdfast.model.rbac import ClusterRoleBinding, RoleBinding, subject_keys
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.volume import Volume
from holdfast.model.workload import Workload, wanted_replicas

Index = Callable[[Any], Iterable[str]]


def _by_workload(item: Any) -> Iterable[str]:
    return (f"{item.metadata.namespace}/{item.spec.workload}",)


def _by_assignment(item: Any) -> Iterable[str]:
    return (f"{item.metadata.namespace}/{item.spec.assignment}",)


def _by_node(item: Any) -> Iterable[str]:
    return (item.spec.node,)


def _by_claim(item: Any) -> Iterable[str]:
    return (f"{item.metadata.namespace}/{item.spec.claim}",)


def _by_budget(item: Any) -> Iterable[str]:
    return (item.spec.budget,)


def _by_region(item: Any) -> Iterable[str]:
    return (item.spec.region,)


def _placed_on(replica: Replica) -> Iterable[str]:
    return (replica.status.placement.node,) if replica.status.placement.node else ()


def _replica_uid(item: Any) -> Iterable[str]:
    return (item.spec.intent.replica_uid,)


def _victims(reservation: Reservation) -> Iterable[str]:
    """The victims that the reservation waits for, as tenant/claim."""
    own = reservation.metadata.namespace
    return tuple(name if "/" in name else f"{own}/{name}" for name in reservation.spec.victims)


# type → index name → values of an object. The index `owner` (uid of every owner) exists for every type.
INDEXES: dict[type[Any], dict[str, Index]] = {
    Assignment: {"workload": _by_workload, "region": _by_region},
    Grant: {"region": _by_region},
    Replica: {"workload": _by_workload, "assignment": _by_assignment, "node": _placed_on},
    SchedulingRequest: {"workload": _by_workload, "assignment": _by_assignment},
    Reservation: {"node": _by_node, "replicaUid": _replica_uid, "victim": _victims},
    Binding: {"node": _by_node, "workload": _by_workload, "replicaUid": _replica_uid},
    Endpoint: {"workload": _by_workload, "region": _by_region},
    RecoverySlot: {"node": _by_node, "budget": _by_budget},
    Volume: {"node": _by_node, "claim": _by_claim},
    BreakGlassSession: {"requester": session_requester},
    RoleBinding: {"subject": subject_keys},
    ClusterRoleBinding: {"subject": subject_keys},
}


def owner_uids(item: Any) -> Iterable[str]:
    return tuple(owner.uid for owner in item.metadata.owner_references)


def indexes_of(kind: type[Any]) -> dict[str, Index]:
    return {**INDEXES.get(kind, {}), "owner": owner_uids}


def pending_replicas(workload: Workload) -> int:
    """Number of desired replicas that are not bound."""
    return max(0, wanted_replicas(workload) - workload.status.summary.bound)


# type → name → a number per object. Caches maintain the sum per namespace, so that no write has to count it.
TALLIES: dict[type[Any], dict[str, Callable[[Any], int]]] = {Workload: {"pending": pending_replicas}}
