"""The table of kinds: names, scope, home cell, type, and the functions that default and validate them.

Routes, discovery, schemas, docs and tests read this table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.model import (
    assignment,
    binding,
    core,
    decision,
    election_term,
    endpoint,
    grant_copy,
    join,
    lease_page,
    node,
    node_pool,
    override,
    priority_class,
    quota,
    recovery,
    recovery_budget,
    recovery_slot,
    region,
    replica,
    scheduler_policy,
    scheduling_request,
    tenant,
    workload,
)
from holdfast.model.errors import Cause
from holdfast.model.meta import GROUP, Object


class Home(enum.StrEnum):
    """The cell in which a kind is written. `CELL` kinds are written in every cell."""

    GLOBAL = "global"
    REGION = "region"
    CELL = "cell"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row. The link copies `mirrored` kinds from the global cell into regions, where they are read-only."""

    name: str
    plural: str
    type: type[Any]
    home: Home
    validate: Callable[[Any, Any], Iterator[Cause]]
    default: Callable[[Any], Any] | None = None
    namespaced: bool = False
    mirrored: bool = False
    group: str = GROUP
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("holdfast",)
    has_status: bool = True
    scalable: bool = False
    internal: bool = False
    ephemeral: bool = False

    @property
    def singular(self) -> str:
        return self.name.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def resource(self) -> str:
        """The name used in errors: `workloads.holdfast.dev`, `events`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def prefix(self) -> str:
        """Store key prefix of this kind."""
        return f"/{self.plural}/"

    def store_key(self, namespace: str, name: str) -> str:
        return f"/{self.plural}/{namespace}/{name}" if self.namespaced else f"/{self.plural}/{name}"

    def range_prefix(self, namespace: str = "") -> str:
        return f"/{self.plural}/{namespace}/" if self.namespaced and namespace else self.prefix


ALL: tuple[Kind, ...] = (
    Kind(
        name="Tenant",
        plural="tenants",
        type=tenant.Tenant,
        home=Home.GLOBAL,
        mirrored=True,
        validate=tenant.validate_tenant,
    ),
    Kind(
        name="Region",
        plural="regions",
        type=region.Region,
        home=Home.GLOBAL,
        mirrored=True,
        validate=region.validate_region,
    ),
    Kind(
        name="PriorityClass",
        plural="priorityclasses",
        type=priority_class.PriorityClass,
        home=Home.GLOBAL,
        mirrored=True,
        validate=priority_class.validate_priority_class,
        short_names=("pc",),
    ),
    Kind(
        name="Quota",
        plural="quotas",
        type=quota.Quota,
        home=Home.GLOBAL,
        namespaced=True,
        validate=quota.validate_quota,
    ),
    Kind(
        name="Grant",
        plural="grants",
        type=quota.Grant,
        home=Home.GLOBAL,
        namespaced=True,
        validate=quota.validate_grant,
    ),
    Kind(
        name="RecoveryBudget",
        plural="recoverybudgets",
        type=recovery_budget.RecoveryBudget,
        home=Home.GLOBAL,
        mirrored=True,
        validate=recovery_budget.validate_recovery_budget,
        short_names=("rb",),
    ),
    Kind(
        name="SchedulerPolicy",
        plural="schedulerpolicies",
        type=scheduler_policy.SchedulerPolicy,
        home=Home.GLOBAL,
        validate=scheduler_policy.validate_scheduler_policy,
        short_names=("policy",),
    ),
    Kind(
        name="PolicyRevision",
        plural="policyrevisions",
        type=scheduler_policy.PolicyRevision,
        home=Home.GLOBAL,
        mirrored=True,
        validate=scheduler_policy.validate_policy_revision,
    ),
    Kind(
        name="Workload",
        plural="workloads",
        type=workload.Workload,
        home=Home.GLOBAL,
        namespaced=True,
        validate=workload.validate_workload,
        default=workload.default_workload,
        short_names=("wl",),
        categories=("all", "holdfast"),
        scalable=True,
    ),
    Kind(
        name="Assignment",
        plural="assignments",
        type=assignment.Assignment,
        home=Home.GLOBAL,
        namespaced=True,
        mirrored=True,
        validate=assignment.validate_assignment,
        short_names=("asg",),
    ),
    Kind(
        name="Override",
        plural="overrides",
        type=override.Override,
        home=Home.GLOBAL,
        mirrored=True,
        validate=override.validate_override,
    ),
    Kind(
        name="Recovery",
        plural="recoveries",
        type=recovery.Recovery,
        home=Home.GLOBAL,
        validate=recovery.validate_recovery,
    ),
    Kind(
        name="GrantCopy",
        plural="grantcopies",
        type=grant_copy.GrantCopy,
        home=Home.REGION,
        namespaced=True,
        validate=grant_copy.validate_grant_copy,
    ),
    Kind(
        name="Node", plural="nodes", type=node.Node, home=Home.REGION, validate=node.validate_node, short_names=("no",)
    ),
    Kind(
        name="RecoverySlot",
        plural="recoveryslots",
        type=recovery_slot.RecoverySlot,
        home=Home.REGION,
        validate=recovery_slot.validate_recovery_slot,
    ),
    Kind(
        name="Replica",
        plural="replicas",
        type=replica.Replica,
        home=Home.REGION,
        namespaced=True,
        validate=replica.validate_replica,
        short_names=("rep",),
        categories=("all", "holdfast"),
    ),
    Kind(
        name="SchedulingRequest",
        plural="schedulingrequests",
        type=scheduling_request.SchedulingRequest,
        home=Home.REGION,
        namespaced=True,
        validate=scheduling_request.validate_scheduling_request,
        short_names=("sr",),
    ),
    Kind(
        name="Reservation",
        plural="reservations",
        type=binding.Reservation,
        home=Home.REGION,
        namespaced=True,
        validate=binding.validate_reservation,
    ),
    Kind(
        name="Binding",
        plural="bindings",
        type=binding.Binding,
        home=Home.REGION,
        namespaced=True,
        validate=binding.validate_binding,
    ),
    Kind(
        name="Decision",
        plural="decisions",
        type=decision.Decision,
        home=Home.REGION,
        namespaced=True,
        validate=decision.validate_decision,
    ),
    Kind(
        name="Endpoint",
        plural="endpoints",
        type=endpoint.Endpoint,
        home=Home.CELL,
        namespaced=True,
        validate=endpoint.validate_endpoint,
        short_names=("ep",),
    ),
    Kind(
        name="JoinToken",
        plural="jointokens",
        type=join.JoinToken,
        home=Home.REGION,
        validate=join.validate_join_token,
    ),
    Kind(
        name="NodeIdentity",
        plural="nodeidentities",
        type=join.NodeIdentity,
        home=Home.REGION,
        validate=join.validate_node_identity,
    ),
    Kind(
        name="NodePool",
        plural="nodepools",
        type=node_pool.NodePool,
        home=Home.REGION,
        validate=node_pool.validate_node_pool,
        short_names=("np",),
    ),
    Kind(
        name="LeasePage",
        plural="leasepages",
        type=lease_page.LeasePage,
        home=Home.REGION,
        validate=lease_page.validate_lease_page,
        internal=True,
    ),
    Kind(
        name="Term",
        plural="terms",
        type=election_term.Term,
        home=Home.CELL,
        validate=election_term.validate_term,
        internal=True,
    ),
    Kind(
        name="Event",
        plural="events",
        type=core.Event,
        home=Home.CELL,
        namespaced=True,
        group="",
        categories=(),
        short_names=("ev",),
        validate=core.validate_event,
        has_status=False,
        ephemeral=True,
    ),
    Kind(
        name="Lease",
        plural="leases",
        type=core.Lease,
        home=Home.CELL,
        namespaced=True,
        group="coordination.k8s.io",
        categories=(),
        validate=core.validate_lease,
        has_status=False,
    ),
)

BY_NAME: dict[str, Kind] = {kind.name: kind for kind in ALL}
BY_PLURAL: dict[str, Kind] = {kind.plural: kind for kind in ALL}
BY_TYPE: dict[type[Any], Kind] = {kind.type: kind for kind in ALL}


def kind_of(item: Object | type[Any]) -> Kind:
    """The row of an object or of its type."""
    return BY_TYPE[item if isinstance(item, type) else type(item)]


def kind_of_store_key(key: str) -> Kind | None:
    """The kind of a store key, or None if the key holds no object."""
    return BY_PLURAL.get(key[1 : key.find("/", 1)])
