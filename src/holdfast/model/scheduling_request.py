"""SchedulingRequest: the durable queue entry of identical replicas. It does not depend on events being delivered."""

from __future__ import annotations

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.template import Template
from holdfast.model.validation import Causes, check_unique
from holdfast.model.workload import Exclusivity, Gang


class RequestMember(ApiStruct, frozen=True):
    """One replica that may need a node. `attempt` is a hint; the authority knows the current one."""

    name: str
    uid: str
    attempt: int = visible_default(1)


class SchedulingRequestSpec(ApiStruct, frozen=True):
    workload: str
    assignment: str
    revision: str
    template: Template
    workload_uid: str = ""
    purpose: Purpose = Purpose.NORMAL
    placement: PlacementRules = msgspec.field(default_factory=PlacementRules)
    priority: int = visible_default(0)
    reclaimable: bool = False
    may_preempt: bool = False
    dedicated: bool = False
    exclusive: Exclusivity | None = None
    gang: Gang | None = None
    deadline: str = ""
    max_unavailable: int = 0
    workload_generation: int = 0
    members: tuple[RequestMember, ...] = ()
    active_until: str = ""


class RefusalCount(ApiStruct, frozen=True):
    """How many nodes were refused for one reason, with some of them by name."""

    reason: str
    nodes: int = visible_default(0)
    examples: tuple[str, ...] = ()
    message: str = ""


class GangBlock(ApiStruct, frozen=True):
    """Written once by the authority, when enough members have a reservation. Only then are they bound."""

    committed_at: str
    members: int = visible_default(0)


class SchedulingRequestStatus(ApiStruct, frozen=True):
    """Written by the scheduler, except `gang`. `retryOn` names the events that trigger a retry."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    pending: int = visible_default(0)
    attempts: int = visible_default(0)
    position: int = 0
    reasons: tuple[RefusalCount, ...] = ()
    retry_on: tuple[str, ...] = ()
    next_retry_at: str = ""
    decision: str = ""
    gang: GangBlock | None = None


class SchedulingRequest(Object, frozen=True):
    spec: SchedulingRequestSpec
    status: SchedulingRequestStatus = msgspec.field(default_factory=SchedulingRequestStatus)


def validate_scheduling_request(request: SchedulingRequest, old: SchedulingRequest | None) -> Causes:
    yield from check_unique("spec.members", (m.name for m in request.spec.members))
