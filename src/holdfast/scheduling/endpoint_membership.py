"""serve: decides which replicas receive traffic. Owns Endpoint and Replica.status.traffic.

- An address is in the Endpoint only while its replica is ready, its node is in contact and no release is requested.
- The address is withdrawn in the commit that clears `status.traffic.serving`, and before the replica is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model.endpoint import Address, Endpoint, EndpointSpec, endpoint_name
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.lifecycle import current_execution, is_out_of_contact
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, Replica, TrafficBlock
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType
from holdfast.model.writes import Create, Delete, Notice, Outcome, SetStatus, Update, Write

# Lifetime of Endpoint addresses after the region's last report. After that, other regions stop using them.
ENDPOINT_TTL_S = 60.0


def serving_eligibility(replica: Replica, now: float) -> tuple[bool, float | None]:
    """Whether the replica may receive traffic, and if only `minReadySeconds` is missing, the seconds left."""
    status = replica.status
    execution = current_execution(replica)
    if execution is None or execution.phase is not Phase.RUNNING or not execution.ready:
        return False, None
    if replica.metadata.terminating or not status.placement.binding:
        return False, None
    if status.release is not None and status.release.attempt == status.placement.attempt:
        return False, None
    if is_out_of_contact(replica):
        return False, None
    if replica.spec.min_ready_seconds and execution.ready_since:
        remaining = parse_time(execution.ready_since) + replica.spec.min_ready_seconds - now
        if remaining > 0:
            return False, remaining
    return True, None


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function for the Endpoint of one workload in this region; the key names the workload."""

    def decide(key: Key, view: View, now: float) -> Outcome:
        replicas: Sequence[Replica] = [
            r for r in view.by(Replica, "workload", str(key)) if r.spec.type is WorkloadType.SERVICE
        ]
        stored: Endpoint | None = view.get(Endpoint, endpoint_name(key.name, region), key.namespace)
        writes: list[Write] = []
        notices: list[Notice] = []
        addresses: list[Address] = []
        waits: list[float] = []
        for replica in replicas:
            eligible, wait_s = serving_eligibility(replica, now)
            if wait_s is not None:
                waits.append(wait_s)
            if eligible:
                addresses.append(_address(replica))
            changed = _traffic(replica, eligible=eligible, now=now)
            if changed is not None:
                writes.append(changed)
                reason = Reason.ADDED_TO_ENDPOINT if eligible else Reason.WITHDRAWN_FROM_ENDPOINT
                message = "receives traffic" if eligible else "receives no more traffic"
                notices.append(Notice(replica, reason, message))
        endpoint_write = _endpoint_write(region, key, tuple(addresses), stored, exists=bool(replicas))
        if endpoint_write is not None:
            writes.insert(0, endpoint_write)
        return Outcome(writes=tuple(writes), notices=tuple(notices), requeue_after_s=min(waits, default=None))

    return decide


def _address(replica: Replica) -> Address:
    placed, execution = replica.status.placement, replica.status.execution
    return Address(
        replica=replica.metadata.name,
        uid=replica.uid,
        node=placed.node,
        zone=placed.zone,
        address=execution.address if execution is not None else "",
        ports=execution.ports if execution is not None else {},
        epoch=placed.epoch,
        revision=replica.spec.revision,
    )


def _traffic(replica: Replica, *, eligible: bool, now: float) -> SetStatus | None:
    """The status write that makes `status.traffic` agree with the Endpoint; None if it does already."""
    attempt = replica.status.placement.attempt
    block = replica.status.traffic
    serves = block is not None and block.serving
    if eligible == serves and (not eligible or (block is not None and block.attempt == attempt)):
        return None
    new = TrafficBlock(serving=eligible, attempt=attempt, since=micro_text(now))
    return SetStatus("Replica", replica.key, replica.uid, blocks={"traffic": new})


def _endpoint_write(
    region: str, key: Key, addresses: tuple[Address, ...], stored: Endpoint | None, *, exists: bool
) -> Write | None:
    if stored is None:
        if not addresses:
            return None  # no Endpoint until the first replica is ready
        spec = EndpointSpec(workload=key.name, region=region, ttl_seconds=ENDPOINT_TTL_S, addresses=addresses)
        meta = ObjectMeta(
            name=endpoint_name(key.name, region), namespace=key.namespace, labels={LABEL_WORKLOAD: key.name}
        )
        return Create(Endpoint(metadata=meta, spec=spec))
    if not exists:
        return Delete("Endpoint", stored.key, stored.uid)
    if stored.spec.addresses == addresses:
        return None
    return Update(msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, addresses=addresses)))


def keys(view: View) -> Iterable[Key]:
    found = {Key(r.metadata.namespace, r.spec.workload) for r in view.list(Replica)}
    found |= {Key(e.metadata.namespace, e.spec.workload) for e in view.list(Endpoint)}
    return sorted(found)


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Wakes the workload if a change affects serving. Replicas are skipped until they are ready or removed."""
    item = new or old
    if item is None or item.spec.type is not WorkloadType.SERVICE:
        return ()
    if new is not None and (_inputs(old) if old is not None else None) == _inputs(new):
        return ()
    return (Key(item.metadata.namespace, item.spec.workload),)


def _inputs(replica: Replica) -> tuple[object, ...] | None:
    """The replica's fields that this decision reads; None while it neither serves nor could."""
    status = replica.status
    execution = current_execution(replica)
    can_serve = execution is not None and execution.ready and execution.phase is Phase.RUNNING
    if not can_serve and (status.traffic is None or not status.traffic.serving):
        return None
    return (
        replica.metadata.deletion_timestamp,
        status.placement.binding,
        is_out_of_contact(replica),
        status.release,
        status.traffic,
        execution is not None
        and (execution.phase, execution.ready, execution.address, execution.ports, execution.ready_since),
    )


def woken_by_endpoint(new: Endpoint | None, old: Endpoint | None, view: View) -> Iterable[Key]:
    item = new or old
    return (Key(item.metadata.namespace, item.spec.workload),) if item is not None else ()
