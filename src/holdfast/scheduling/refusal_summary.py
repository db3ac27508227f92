"""Summary of node refusals: counts per reason with example nodes and the nearest miss.

Also maps each reason to the events that may resolve it, so that only those events retry a pending request.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import numpy as np

from holdfast.model import limits
from holdfast.model.host_paths import host_path_needs
from holdfast.model.placement_eligibility import first_untolerated_taint
from holdfast.model.placement_rules import Expression, Operator
from holdfast.model.quantity import GPU, amount_text
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import RefusalCount
from holdfast.model.template import IMAGE_DRIVER, PRIVATE_NETWORK, port_text, required_driver
from holdfast.scheduling.filters import labels, resources, volumes
from holdfast.scheduling.filters.refusal import code_of, count_reasons
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Codes


class RetryEvent(enum.StrEnum):
    """Events that may resolve a reason; stored in `status.retryOn`."""

    NODE_ADDED = "NodeAdded"
    NODE_CHANGED = "NodeChanged"
    CAPACITY_FREED = "CapacityFreed"
    REPLICA_PLACED = "ReplicaPlaced"
    GRANT_CHANGED = "GrantChanged"
    OVERRIDE_CHANGED = "OverrideChanged"
    POLICY_CHANGED = "PolicyChanged"
    REQUEST_CHANGED = "RequestChanged"


_ALWAYS = (RetryEvent.NODE_ADDED, RetryEvent.POLICY_CHANGED, RetryEvent.REQUEST_CHANGED)
_FREED = (RetryEvent.CAPACITY_FREED, RetryEvent.NODE_CHANGED)
_CURES: dict[str, tuple[RetryEvent, ...]] = {
    **dict.fromkeys(
        (
            Reason.INSUFFICIENT_CPU,
            Reason.INSUFFICIENT_MEMORY,
            Reason.INSUFFICIENT_RESOURCE,
            Reason.INSUFFICIENT_STORAGE,
            Reason.INSUFFICIENT_DEVICES,
            Reason.DEVICE_IN_USE,
            Reason.PORTS_EXHAUSTED,
            Reason.ANTI_AFFINITY_VIOLATED,
            Reason.GANG_INCOMPLETE,
        ),
        _FREED,
    ),
    **dict.fromkeys(
        (Reason.NO_GRANT, Reason.QUOTA_EXCEEDED, Reason.GRANT_EXPIRED, Reason.NOT_ALLOWED_WHILE_PARTITIONED),
        (RetryEvent.GRANT_CHANGED, RetryEvent.CAPACITY_FREED),
    ),
    # A fixed port in a node's range also waits while dynamic ports there have no numbers. A commit numbers them.
    Reason.PORT_IN_USE: (*_FREED, RetryEvent.REPLICA_PLACED),
    Reason.SPREAD_VIOLATED: (*_FREED, RetryEvent.REPLICA_PLACED),
    Reason.AFFINITY_NOT_MET: (RetryEvent.REPLICA_PLACED, RetryEvent.NODE_CHANGED),
    Reason.NODE_EXCLUDED_BY_OVERRIDE: (RetryEvent.OVERRIDE_CHANGED, RetryEvent.NODE_CHANGED),
}


def retry_events(reasons: Iterable[str]) -> tuple[str, ...]:
    """The events that may resolve any of these reasons, sorted. A new node, policy or request may resolve all."""
    events = set(_ALWAYS)
    for reason in reasons:
        events.update(_CURES.get(reason, (RetryEvent.NODE_CHANGED,)))
    return tuple(sorted(event.value for event in events))


def refusal_counts(
    scratch: Scratch, requirements: ReplicaRequirements, why: Codes, *, explained: bool
) -> tuple[RefusalCount, ...]:
    """One row per reason, most frequent first. `explained` adds example nodes and a message."""
    found = count_reasons(why)
    if not explained:
        return tuple(RefusalCount(reason=reason, nodes=count) for reason, count in found.items())
    if not scratch.snapshot.node_count:
        return (RefusalCount(reason=Reason.NO_NODES, message=Reason.NO_NODES.sentence),)
    rows = []
    for reason, count in found.items():
        slots = np.flatnonzero(why == code_of(reason))
        shown = slots[np.argsort(scratch.snapshot.name_order()[slots])[: limits.REASON_EXAMPLES_MAX]]
        rows.append(
            RefusalCount(
                reason=reason,
                nodes=count,
                examples=tuple(scratch.snapshot.name(slot) for slot in shown.tolist()),
                message=refusal_message(scratch, requirements, reason, slots.tolist()),
            )
        )
    return tuple(rows)


def pending_summary(refusals: Iterable[RefusalCount], pending: int) -> str:
    """One line for an event: number of pending replicas, and the reasons with their node counts. A reason that no node
    causes, such as a used-up quota, has no count."""
    parts = [
        (f"{r.nodes} node{'s' if r.nodes != 1 else ''} " if r.nodes else "")
        + r.reason
        + (f" ({r.message})" if r.message else "")
        for r in refusals
    ]
    return f"{pending} replica{'s' if pending != 1 else ''} pending: " + ("; ".join(parts) or "no reason known")


def refusal_message(scratch: Scratch, requirements: ReplicaRequirements, reason: Reason, slots: list[int]) -> str:
    """The message of a reason for these nodes: required and found."""
    match reason:
        case (
            Reason.INSUFFICIENT_CPU
            | Reason.INSUFFICIENT_MEMORY
            | Reason.INSUFFICIENT_STORAGE
            | Reason.INSUFFICIENT_RESOURCE
        ):
            return _shortfall(scratch, requirements, reason, slots)
        case Reason.INSUFFICIENT_DEVICES:
            return _devices(scratch, requirements, slots)
        case Reason.LABELS_DO_NOT_MATCH:
            return "needs " + ", ".join(_label_rules(requirements))
        case Reason.TAINT_NOT_TOLERATED:
            return _taint(scratch, requirements, slots)
        case Reason.ZONE_NOT_ALLOWED:
            there = sorted({scratch.snapshot.zone(slot) for slot in slots})
            return f"allows zones {', '.join(requirements.placement.zones)}; these are in {', '.join(there)}"
        case Reason.POOL_NOT_ALLOWED:
            pools = sorted({scratch.snapshot.static.pool.at(slot) for slot in slots})
            return f"allows pools {', '.join(requirements.placement.pools)}; these are in {', '.join(pools)}"
        case Reason.NODE_EXCLUDED_BY_OVERRIDE:
            places = sorted({(scratch.snapshot.zone(slot), scratch.snapshot.name(slot)) for slot in slots})
            found = [o for place in places if (o := scratch.avoidance_of(requirements, *place)) is not None]
            return "; ".join(dict.fromkeys(f"override {o.metadata.name}: {o.spec.reason}" for o in found))
        case Reason.PORT_IN_USE:
            return f"needs port {', '.join(map(port_text, requirements.fixed_ports))}"
        case Reason.DRIVER_MISSING:
            images = "; to run images a node needs crun or runc, and `images.registries`"
            network = "; for a network of its own a node needs root, slirp4netns, /dev/net/tun and an IPv4 address"
            driver = required_driver(requirements.template)
            advice = images if driver.startswith(IMAGE_DRIVER) else ""
            return f"needs the {driver} driver{advice}" + (network if driver.endswith(PRIVATE_NETWORK) else "")
        case Reason.HOST_PATH_NOT_ALLOWED:
            needs = ", ".join(
                f"{path}{'' if ro else ' for writing'}" for path, ro in host_path_needs(requirements.template)
            )
            return f"mounts {needs}"
        case Reason.VOLUME_NODE_LOST | Reason.VOLUME_ON_OTHER_NODE | Reason.VOLUME_TERMINATING:
            return volumes.volumes_text(scratch.snapshot, requirements)
        case Reason.RESIDENCY_VIOLATED:
            return f"the workload's placement rules do not allow region {scratch.snapshot.region}"
        case _:
            return reason.sentence


def _shortfall(scratch: Scratch, requirements: ReplicaRequirements, reason: Reason, slots: list[int]) -> str:
    """The missing resource, the required amount, and the node with most of it free."""
    for name, amount in requirements.amounts.items():
        if resources.reason_for(name) is not reason:
            continue
        free = resources.free_of(scratch, requirements, name)
        among = np.array(slots, dtype=np.int64)
        short = among[free[among] < amount]
        if short.size:
            most = short[free[short] == free[short].max()]
            best = int(most[np.argmin(scratch.snapshot.name_order()[most])])
            left = amount_text(name, max(0, int(free[best])))
            return f"needs {amount_text(name, amount)} {name}, best free {left} on node {scratch.snapshot.name(best)}"
    return reason.sentence


def _devices(scratch: Scratch, requirements: ReplicaRequirements, slots: list[int]) -> str:
    required_gpus = f"{amount_text(GPU, requirements.gpu_milli)} gpu"
    if requirements.template.gpu_models:
        required_gpus += f" of model {' or '.join(requirements.template.gpu_models)}"
    if not requirements.whole_gpus:
        return f"needs {required_gpus} on one device; none of these nodes has one with that much free"
    usable = scratch.gpu_usable(requirements).sum(axis=0)
    among = np.array(slots, dtype=np.int64)
    most = among[usable[among] == usable[among].max()]
    best = int(most[np.argmin(scratch.snapshot.name_order()[most])])
    if not usable[best]:
        return f"needs {required_gpus}, none is free on these nodes"
    return f"needs {required_gpus}, best free {int(usable[best])} on node {scratch.snapshot.name(best)}"


def _taint(scratch: Scratch, requirements: ReplicaRequirements, slots: list[int]) -> str:
    found = sorted(
        {
            f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            for slot in slots
            if (
                taint := first_untolerated_taint(
                    scratch.snapshot.static.taints.at(slot), requirements.placement.tolerations
                )
            )
        }
    )
    return f"does not tolerate {', '.join(found[: limits.REASON_EXAMPLES_MAX])}"


def _label_rules(requirements: ReplicaRequirements) -> list[str]:
    found = [_expression_text(e) for e in labels.expressions_of(requirements)]
    terms = [" and ".join(_expression_text(e) for e in term.expressions) for term in requirements.placement.node_terms]
    return [*found, f"one of ({' | '.join(terms)})"] if terms else found


def _expression_text(expression: Expression) -> str:
    values = expression.values
    match expression.operator:
        case Operator.IN if len(values) == 1:
            return f"{expression.key}={values[0]}"
        case Operator.EXISTS | Operator.DOES_NOT_EXIST:
            return f"{expression.key} {expression.operator}"
        case _:
            return f"{expression.key} {expression.operator} ({', '.join(values)})"
