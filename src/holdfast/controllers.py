"""The table of controllers: which run in which cell, and what wakes each of them."""

from __future__ import annotations

from holdfast.fleet import assign, grants, policy, region_health, workload_status
from holdfast.flow import node_health, replicate, serve
from holdfast.flow.retreat import release
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.endpoint import Endpoint
from holdfast.model.lease_page import LeasePage
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quota import Grant, Quota
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision, SchedulerPolicy
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.runtime.controller import Controller


def global_controllers() -> tuple[Controller, ...]:
    return (
        Controller(
            name="assign",
            decide=assign.decide,
            keys=assign.keys,
            wakes={
                Workload: assign.woken_by_workload,
                Assignment: assign.woken_by_assignment,
                Region: assign.woken_by_region,
                PriorityClass: assign.woken_by_priority,
            },
            reads=(Tenant, Override),
        ),
        Controller(
            name="grant",
            decide=grants.decide,
            keys=grants.keys,
            wakes={Quota: grants.woken_by_any, Grant: grants.woken_by_any, Assignment: grants.woken_by_any},
            reads=(Region,),
        ),
        Controller(
            name="policy",
            decide=policy.decide,
            keys=policy.keys,
            wakes={SchedulerPolicy: policy.woken_by_policy},
            reads=(PolicyRevision,),
        ),
        Controller(
            name="workload-status",
            decide=workload_status.decide,
            keys=workload_status.keys,
            wakes={
                Workload: workload_status.woken_by_workload,
                Assignment: workload_status.woken_by_assignment,
            },
            batch=True,
        ),
        Controller(
            name="region-health",
            decide=region_health.decide,
            keys=region_health.keys,
            wakes={Region: region_health.woken_by_region},
            resync_s=5.0,
        ),
    )


def regional_controllers(region: str) -> tuple[Controller, ...]:
    return (
        Controller(
            name="replicate",
            decide=replicate.decider(region),
            keys=replicate.keys,
            wakes={
                Assignment: replicate.woken_by_assignment,
                Replica: replicate.woken_by_replica,
                SchedulingRequest: replicate.woken_by_request,
            },
            batch=True,
        ),
        Controller(
            name="serve",
            decide=serve.decider(region),
            keys=serve.keys,
            wakes={Replica: serve.woken_by_replica, Endpoint: serve.woken_by_endpoint},
            batch=True,
        ),
        Controller(
            name="release",
            decide=release.decide,
            keys=release.keys,
            wakes={
                Replica: release.woken_by_replica,
                Binding: release.woken_by_binding,
                Node: release.woken_by_node,
            },
            reads=(Assignment,),  # one key at a time: a disruption budget spans the replicas of a workload
        ),
        Controller(
            name="node-health",
            decide=node_health.decide,
            keys=node_health.keys,
            wakes={
                Node: node_health.woken_by_node,
                LeasePage: node_health.woken_by_page,
                Replica: node_health.woken_by_replica,
            },
            resync_s=5.0,
            batch=True,
        ),
    )
