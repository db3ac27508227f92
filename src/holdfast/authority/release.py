"""release: STOP asks the agent to stop the task; FREE releases the claim, as far as the evidence allows.

- Node resources of a claim (capacity, devices, ports) are released only on proof: the agent reports that the task ended
  or never started, or the node was removed.
- The quota is also released at the fence, and the replica may then be rescheduled.
- If the store has lost the Binding that a replica names, nothing proves that the task has ended. The Binding is written
  again as a stop order, with its whole claim.
- FREE raises the attempt in the same transaction, so that a delayed duplicate of the old attempt is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.authority import placement_checks, records
from holdfast.authority.claims import ENDED_PHASES, claim_from_binding
from holdfast.authority.commit_rounds import CommitStep, ExtraWrites, make_step, rejected
from holdfast.authority.state import BINDING, NODE, REPLICA, RESERVATION, AuthorityState
from holdfast.authority.stop_orders import stop_order
from holdfast.client.contract import FencingToken
from holdfast.model.binding import Binding, DesiredRunState, Reservation
from holdfast.model.errors import Refused
from holdfast.model.kinds import BY_NAME
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, ReleaseAction, ReleaseItem
from holdfast.model.principal import Principal
from holdfast.model.reasons import Reason
from holdfast.model.replica import PlacementBlock, Replica
from holdfast.model.times import micro_text, seconds_text
from holdfast.store.contract import Put, Remove

_TERM = BY_NAME["Term"]


class ReleaseHandler:
    """One release request. `token` is the calling controller's; with a stale one nothing is committed."""

    verb = "release"

    def __init__(
        self, state: AuthorityState, caller: Principal, items: Sequence[ReleaseItem], token: FencingToken | None
    ) -> None:
        self.caller = caller
        self.items = items
        self._state = state
        self._token = token

    def identity(self, item: ReleaseItem) -> str:
        return item.replica_uid

    def begin_round(self) -> None:
        """Nothing to do: state is read per item."""

    def extra_writes(
        self, taken: Sequence[tuple[int, CommitStep]], answers: Sequence[PlacementResult | None]
    ) -> ExtraWrites:
        if self._token is None:
            return ExtraWrites()
        return ExtraWrites({_TERM.store_key("", self._token.election): self._token.revision})

    def plan(self, item: ReleaseItem) -> CommitStep | PlacementResult:
        state = self._state
        replica = state.replica(item.namespace, item.replica)
        if replica is None or replica.uid != item.replica_uid:
            return rejected(
                Refused(
                    Reason.REPLICA_NOT_FOUND,
                    f"replica {item.namespace}/{item.replica}: not found with uid {item.replica_uid}",
                    {"replica": f"{item.namespace}/{item.replica}", "uid": replica.uid if replica is not None else ""},
                )
            )
        placement = replica.status.placement
        has_claim = bool(placement.binding or placement.reservation)
        if not has_claim and item.attempt in (placement.attempt, placement.attempt - 1):
            return PlacementResult(result=PlacementOutcome.ALREADY, attempt=placement.attempt)
        refused = placement_checks.attempt_refusal(replica, item.attempt)
        if refused is not None:
            return rejected(refused, attempt=placement.attempt)
        binding = state.binding(item.namespace, placement.binding) if placement.binding else None
        if binding is None and placement.binding:
            return stop_order_step(state, replica, item.grace_seconds)
        if item.action is ReleaseAction.STOP:
            return self._stop(item, replica, binding)
        return self._free(item, replica, binding)

    def _stop(self, item: ReleaseItem, replica: Replica, binding: Binding | None) -> CommitStep | PlacementResult:
        if binding is None or binding.spec.desired is DesiredRunState.STOP:
            name = binding.metadata.name if binding is not None else ""
            node = replica.status.placement.node
            return PlacementResult(result=PlacementOutcome.ALREADY, attempt=item.attempt, binding=name, node=node)
        spec = msgspec.structs.replace(
            binding.spec, desired=DesiredRunState.STOP, stop_reason=item.reason, stop_grace_seconds=item.grace_seconds
        )
        name = binding.metadata.name
        claim = self._state.ledger.claims.get(f"{item.namespace}/{name}")
        return make_step(
            "update",
            BINDING,
            binding.metadata,
            PlacementResult(
                result=PlacementOutcome.ACCEPTED,
                attempt=item.attempt,
                binding=name,
                reservation=name,
                node=binding.spec.node,
            ),
            [records.binding_change(binding, spec)],
            landed=lambda found: found.spec.desired is DesiredRunState.STOP,
            claim=msgspec.structs.replace(claim, stopping=True) if claim is not None else None,
        )

    def _free(self, item: ReleaseItem, replica: Replica, binding: Binding | None) -> CommitStep | PlacementResult:
        if binding is None or binding.status.phase in ENDED_PHASES:
            return free_step(self._state, replica, binding, item.reason)
        if is_fenced(self._state, binding):
            return free_at_fence_step(self._state, replica, binding, item.reason)
        node = self._state.node(binding.spec.node)
        name = f"{item.namespace}/{binding.metadata.name}"
        facts: dict[str, Any] = {
            "binding": name,
            "node": binding.spec.node,
            "nodeEpoch": binding.spec.node_epoch,
            "fencedEpoch": node.status.fence.fenced_epoch if node is not None else 0,
            "nodeGone": node is None,
            "desired": binding.spec.desired.value,
            "phase": binding.status.phase.value if binding.status.phase is not None else "",
        }
        return rejected(
            Refused(
                Reason.STOP_NOT_CONFIRMED,
                f"binding {name}: stop not confirmed (not acknowledged by node {binding.spec.node}, node not fenced)",
                facts,
            ),
            attempt=item.attempt,
        )


def is_fenced(state: AuthorityState, binding: Binding) -> bool:
    """Whether the node's lease under which the work was bound can never be renewed. No exclusive work of it runs then;
    ordinary work may run on."""
    node = state.node(binding.spec.node)
    if node is None:
        return not state.leases.may_be_live(binding.spec.node)
    return node.status.fence.fenced_epoch >= binding.spec.node_epoch


def free_step(state: AuthorityState, replica: Replica, binding: Binding | None, reason: str) -> CommitStep:
    """Releases node resources and quota: the task has ended, or never started."""
    placement = replica.status.placement
    namespace, name = replica.metadata.namespace, placement.binding or placement.reservation
    compares, writes = clear_placement(state, replica, reason)
    if binding is not None:
        compares[BINDING.store_key(namespace, name)] = binding.revision
        writes.append(Remove(BINDING.store_key(namespace, name)))
    return _release_step(replica, name, compares, writes, free=f"{namespace}/{name}")


def free_at_fence_step(state: AuthorityState, replica: Replica, binding: Binding, reason: str) -> CommitStep:
    """Releases quota and replica. The Binding keeps the node resources until the stop is proven."""
    namespace, name = replica.metadata.namespace, binding.metadata.name
    compares, writes = clear_placement(state, replica, reason)
    spec = msgspec.structs.replace(
        binding.spec, desired=DesiredRunState.STOP, stop_reason=binding.spec.stop_reason or reason, quota_released=True
    )
    change = records.binding_change(binding, spec)
    node = state.node(binding.spec.node)
    compares[BINDING.store_key(namespace, name)] = binding.revision
    if node is None:
        compares[NODE.store_key("", binding.spec.node)] = 0
    writes.append(change)
    step = _release_step(replica, name, compares, writes)
    step.claim_after = claim_from_binding(change.attached, None)
    return step


def clear_placement(state: AuthorityState, replica: Replica, reason: str) -> tuple[dict[str, int], list[Put | Remove]]:
    """Compares and writes that clear the replica's placement, raise its attempt and delete its Reservation."""
    placement = replica.status.placement
    namespace = replica.metadata.namespace
    reservation: Reservation | None = (
        state.reservation(namespace, placement.reservation) if placement.reservation else None
    )
    compares = {REPLICA.store_key(namespace, replica.metadata.name): replica.revision}
    at = micro_text(state.ports.clock.now())
    cleared = PlacementBlock(
        attempt=placement.attempt + 1,
        released_reason=reason,
        released_at=at,
        last_node=placement.node if placement.binding else placement.last_node,
    )
    writes: list[Put | Remove] = [records.replica_put(replica, cleared)]
    if reservation is not None:
        key = RESERVATION.store_key(namespace, reservation.metadata.name)
        compares[key] = reservation.revision
        writes.append(Remove(key))
    return compares, writes


def _release_step(
    replica: Replica, name: str, compares: dict[str, int], writes: list[Put | Remove], free: str = ""
) -> CommitStep:
    attempt = replica.status.placement.attempt + 1
    return make_step(
        "release",
        REPLICA,
        replica.metadata,
        PlacementResult(
            result=PlacementOutcome.ACCEPTED,
            attempt=attempt,
            node=replica.status.placement.node,
            reservation=name,
            binding=name,
        ),
        writes,
        compares=compares,
        landed=lambda found: found.status.placement.attempt >= attempt,
        free=free,
    )


def stop_order_step(state: AuthorityState, replica: Replica, grace_s: float = 0.0) -> CommitStep:
    """Writes the lost Binding of a replica again, as a request to stop its task."""
    placed, namespace = replica.status.placement, replica.metadata.namespace
    order = stop_order(
        replica,
        state.volumes_of(replica),
        node_epoch=state.leases.epoch(placed.node),
        uid=state.ports.ids.uid(),
        created=seconds_text(state.now()),
        grace_s=grace_s,
    )
    result = PlacementResult(
        result=PlacementOutcome.ACCEPTED, attempt=placed.attempt, binding=placed.binding, node=placed.node
    )
    return make_step(
        "create",
        BINDING,
        order.metadata,
        result,
        [records.put_object(BINDING, order)],
        compares={
            REPLICA.store_key(namespace, replica.metadata.name): replica.revision,
            BINDING.store_key(namespace, placed.binding): 0,
        },
        claim=claim_from_binding(order, state.reservation(namespace, placed.binding)),
    )
