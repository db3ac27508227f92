"""Equivalence classes of scheduling requests: if one request of a class is unschedulable, all of them are.

Invariant: two requests with the same key pass and fail the same filters on every node, whatever else is placed.
Gangs, requests with spread or affinity rules, volumes, a deadline or the right to preempt, and recovery work
have no class.
"""

from __future__ import annotations

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import required_driver, template_claims
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def equivalence_key(request: SchedulingRequest) -> bytes:
    """The request's equivalence class in the queue; empty if it has none."""
    spec = request.spec
    has_no_class = spec.gang is not None or spec.may_preempt or spec.deadline or spec.purpose is Purpose.RECOVERY
    if has_no_class or template_claims(spec.template) or spec.placement.spread or spec.placement.affinity:
        return b""
    template = spec.template
    return msgspec.msgpack.encode(
        (
            request.metadata.namespace,
            spec.priority,
            spec.purpose,
            spec.reclaimable,
            spec.dedicated,
            spec.placement,
            required_driver(template),
            template.resources,
            template.gpu_models,
            template.labels,
            template.ports,
        )
    )


def refusal_cache_key(scratch: Scratch, requirements: ReplicaRequirements) -> bytes:
    """Key under which a plan caches refusals: equal keys get the same refusals, with the same messages, until the plan
    places another replica. Empty if the refusals depend on more than these requirements."""
    placement = requirements.placement
    if (
        requirements.gang_min
        or requirements.may_preempt
        or requirements.uses_recovery_slots
        or template_claims(requirements.template)
        or placement.spread
        or placement.affinity
    ):
        return b""
    # Anti-affinity guards match other workloads by label, so workload and labels matter only if the tenant has guards.
    has_guards = any(True for _ in scratch.guards(requirements.namespace))
    return msgspec.msgpack.encode(
        (
            requirements.namespace,
            requirements.workload if has_guards else "",
            requirements.labels if has_guards else (),
            requirements.amounts,
            placement,
            required_driver(requirements.template),
            requirements.template.gpu_models,
            requirements.fixed_ports,
            requirements.open_ports,
            requirements.reclaimable,
            requirements.dedicated,
            requirements.quota_headroom,
            [override.metadata.name for override in scratch.avoidances(requirements)],
        )
    )
