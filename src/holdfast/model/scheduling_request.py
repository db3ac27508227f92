"""SchedulingRequest: the durable queue entry of identical replicas. It does not depend on events being delivered."""

from __future__ import annotations

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.placement_rules import Placement
from holdfast.model.template import Template
from holdfast.model.validation import Causes, check_unique
from holdfast.model.workload import Exclusivity, Gang


class Member(Part, frozen=True):
    """One replica that may need a node. `attempt` is a hint; the authority knows the current one."""

    name: str
    uid: str
    attempt: int = shown(1)


class SchedulingRequestSpec(Part, frozen=True):
    workload: str
    assignment: str
    revision: str
    template: Template
    workload_uid: str = ""
    purpose: Purpose = Purpose.NORMAL
    placement: Placement = msgspec.field(default_factory=Placement)
    rank: int = shown(0)
    reclaimable: bool = False
    may_preempt: bool = False
    dedicated: bool = False
    exclusive: Exclusivity | None = None
    gang: Gang | None = None
    deadline: str = ""
    max_unavailable: int = 0
    workload_generation: int = 0
    members: tuple[Member, ...] = ()


class RefusalCount(Part, frozen=True):
    """How many nodes were refused for one reason, with some of them by name."""

    reason: str
    nodes: int = shown(0)
    examples: tuple[str, ...] = ()
    message: str = ""


class GangBlock(Part, frozen=True):
    """Written once by the authority, when enough members have a reservation. Only then are they bound."""

    committed_at: str
    members: int = shown(0)


class SchedulingRequestStatus(Part, frozen=True):
    """Written by the scheduler, except `gang`. `retryOn` names the events that trigger a retry."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    pending: int = shown(0)
    attempts: int = shown(0)
    position: int = 0
    reasons: tuple[RefusalCount, ...] = ()
    wake_on: tuple[str, ...] = ()
    next_try_at: str = ""
    decision: str = ""
    gang: GangBlock | None = None


class SchedulingRequest(Object, frozen=True):
    spec: SchedulingRequestSpec
    status: SchedulingRequestStatus = msgspec.field(default_factory=SchedulingRequestStatus)


def validate_scheduling_request(request: SchedulingRequest, old: SchedulingRequest | None) -> Causes:
    yield from check_unique("spec.members", (m.name for m in request.spec.members))
