"""Liveness: after convergence no object is leaked.

One check of every cell: no object is terminating, every dependent has its owner, and no override is active after its
expiry. The chain is compared both ways: every claim has its replica and every placed replica its claim, every recovery
slot has its budget and its claim, and every address has a serving replica. Open reservations and recoveries are checked
by `convergence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Binding, Reservation
from holdfast.model.endpoint import Endpoint
from holdfast.model.override import ACTIVE, Override
from holdfast.model.recovery import Recovery, is_open
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Finding

EXPIRY_WRITE_MAX_S = 60.0
"""Maximum delay until the expiry of an override is recorded. It covers clock differences and the check interval."""


def leaked_objects(states: dict[str, dict[str, Any]], wall_s: float) -> Iterator[tuple[str, Finding]]:
    """Leaked objects by cell. `wall_s` is the true time."""
    living = {item.metadata.uid for state in states.values() for item in state.values()}
    for cell, state in states.items():
        for found in _in_cell(cell, state, living, wall_s):
            yield cell, found


def _in_cell(cell: str, state: dict[str, Any], living: set[str], wall_s: float) -> Iterator[Finding]:
    replicas = {item.uid: item for item in state.values() if isinstance(item, Replica)}
    recovers = any(isinstance(item, Recovery) and is_open(item) for item in state.values())
    for key, item in state.items():
        metadata = item.metadata
        if metadata.terminating:
            finalizers = ", ".join(metadata.finalizers) or "none"
            yield (
                "leak",
                f"{key} was deleted at {metadata.deletion_timestamp} and still has finalizers: {finalizers}",
                (key,),
            )
        owners = metadata.owner_references
        if owners and living.isdisjoint(owner.uid for owner in owners):
            yield "leak", f"{key} belongs to {_named(f'{o.kind} {o.name}' for o in owners)}, which is gone", (key,)
        for why in _broken_links(cell, item, state, replicas, living):
            yield "chain", f"{key} {why}", (key,)
        for why in _unused_reasons(cell, item, state, replicas, recovers=recovers):
            yield "leak", f"{key} {why}", (key,)
        if isinstance(item, Override) and _overdue(item, wall_s):
            yield "leak", f"{key} is still {item.status.phase}; it expired at {item.status.expires_at}", (key,)


def _unused_reasons(
    cell: str, item: Any, state: dict[str, Any], replicas: dict[str, Replica], *, recovers: bool
) -> Iterator[str]:
    if isinstance(item, Binding | Reservation):
        uid = item.spec.intent.replica_uid
        if uid not in replicas:
            yield f"is a claim of replica {item.spec.replica}, which is gone"
    elif isinstance(item, RecoverySlot):
        draw = item.status.consumer
        if draw is not None and draw.claim and not _claimed(draw.claim, state):
            yield f"is consumed by claim {draw.claim}, which is gone"
    elif isinstance(item, SchedulingRequest):
        if not any(member.uid in replicas for member in item.spec.members):
            yield f"has no existing member ({_named(m.name for m in item.spec.members)})"
    elif isinstance(item, Assignment) and cell == "global" and item.spec.purpose is Purpose.RECOVERY and not recovers:
        yield "is a recovery Assignment, and no Recovery is open"


def _broken_links(
    cell: str, item: Any, state: dict[str, Any], replicas: dict[str, Replica], living: set[str]
) -> Iterator[str]:
    if isinstance(item, Replica):
        placed, namespace = item.status.placement, item.metadata.namespace
        if placed.binding and f"/bindings/{namespace}/{placed.binding}" not in state:
            yield f"is placed by Binding {placed.binding}, which is gone"
        elif placed.reservation and not placed.binding and not _claimed(f"{namespace}/{placed.reservation}", state):
            yield f"is placed by Reservation {placed.reservation}, which is gone"
    elif isinstance(item, RecoverySlot) and f"/recoverybudgets/{item.spec.budget}" not in state:
        yield f"is reserved for RecoveryBudget {item.spec.budget}, which is gone"
    elif isinstance(item, Endpoint):
        for address in item.spec.addresses:
            serving = address.uid in living if cell == "global" else _serves(replicas.get(address.uid), state)
            if not serving:
                yield f"has the address of {address.replica}, which does not serve"


def _serves(replica: Replica | None, state: dict[str, Any]) -> bool:
    if replica is None:
        return False
    status = replica.status
    bound = f"/bindings/{replica.metadata.namespace}/{status.placement.binding}" in state
    ran = status.execution
    return bound and ran is not None and ran.ready and ran.attempt == status.placement.attempt


def _claimed(claim: str, state: dict[str, Any]) -> bool:
    return f"/bindings/{claim}" in state or f"/reservations/{claim}" in state


def _overdue(override: Override, wall_s: float) -> bool:
    if override.status.phase != ACTIVE or not override.status.expires_at:
        return False
    return parse_time(override.status.expires_at) + EXPIRY_WRITE_MAX_S < wall_s


def _named(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
