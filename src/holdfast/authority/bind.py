"""bind: consumes a Reservation. An expired Reservation, or one that waits for victims, is refused."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.authority import placement_checks, records
from holdfast.authority.bind_preconditions import assignment_of
from holdfast.authority.claims import claim_from_reservation
from holdfast.authority.commit_rounds import CommitStep, ExtraWrites, make_step, rejected
from holdfast.authority.placement_gates import NO_RELIANCE
from holdfast.authority.reserve import ReserveJob, RoundState, already_placed, node_refusal, rely_on
from holdfast.authority.state import BINDING, NODE, REPLICA, RESERVATION, AuthorityState
from holdfast.authority.volumes import VolumeUse, new_volume_refusal, plan_volumes
from holdfast.model.binding import Reservation, ReservationPhase
from holdfast.model.decision import Decision
from holdfast.model.errors import Refused
from holdfast.model.fencing_token import fencing_token
from holdfast.model.node import Node
from holdfast.model.placement_api import BindItem, PlacementOutcome, PlacementResult, ReserveItem
from holdfast.model.principal import Principal
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.tenure import needs_tenure
from holdfast.model.times import parse_time
from holdfast.store.contract import Put, Remove


class BindHandler:
    """One bind request."""

    verb = "bind"

    def __init__(
        self, state: AuthorityState, caller: Principal, items: Sequence[BindItem], decision: Decision | None
    ) -> None:
        self.caller = caller
        self.items = items
        self._state = state
        self._round_state: RoundState
        items_to_place = [ReserveItem(i.namespace, i.replica, i.intent, "") for i in items]
        self._reserve_job = ReserveJob(state, caller, items_to_place, decision, bind=True)

    def identity(self, item: BindItem) -> str:
        return item.intent.replica_uid

    def begin_round(self) -> None:
        self._round_state = RoundState(self._state)
        self._reserve_job.begin_round()

    def extra_writes(
        self, taken: Sequence[tuple[int, CommitStep]], answers: Sequence[PlacementResult | None]
    ) -> ExtraWrites:
        return self._reserve_job.extra_writes(taken, answers)

    def plan(self, item: BindItem) -> CommitStep | PlacementResult:
        state = self._state
        replica = state.replica(item.namespace, item.replica)
        refused = placement_checks.replica_refusal(replica, item.namespace, item.replica, item.intent)
        if refused is not None or replica is None:
            return rejected(refused or Refused(Reason.REPLICA_NOT_FOUND))
        placed = replica.status.placement
        if placed.binding:
            return already_placed(state, replica, ())
        reservation = state.reservation(item.namespace, placed.reservation) if placed.reservation else None
        refused = self._reservation_refusal(item, reservation) or self._gang_refusal(replica)
        if refused is not None or reservation is None:
            return rejected(refused or Refused(Reason.RESERVATION_MISSING), attempt=item.intent.attempt)
        node = state.node(reservation.spec.node)
        refused = node_refusal(state, self._round_state, replica, node, reservation.spec.node)
        if refused is not None or node is None:
            return rejected(refused or Refused(Reason.NODE_NOT_FOUND), attempt=item.intent.attempt)
        reliance = self._round_state.gates.check(replica, node, new_claim=False)
        if isinstance(reliance, Refused):
            return rejected(reliance, attempt=item.intent.attempt)
        use = plan_volumes(state, replica, node.metadata.name, self._round_state.created)
        if isinstance(use, VolumeUse) and use.created:
            use = new_volume_refusal(replica)
        if isinstance(use, Refused):
            return rejected(use, attempt=item.intent.attempt)
        step = self._step(item, replica, node, reservation, use)
        if reliance is not NO_RELIANCE:
            rely_on(step, reliance)
        return step

    def _reservation_refusal(self, item: BindItem, reservation: Reservation | None) -> Refused | None:
        if reservation is None or reservation.spec.intent != item.intent:
            return Refused(
                Reason.RESERVATION_MISSING,
                f"replica {item.namespace}/{item.replica}: no reservation for attempt {item.intent.attempt}",
                {"replica": f"{item.namespace}/{item.replica}", "attempt": item.intent.attempt},
            )
        name = f"{item.namespace}/{reservation.metadata.name}"
        if reservation.spec.expires_at and parse_time(reservation.spec.expires_at) <= self._round_state.now:
            return Refused(
                Reason.RESERVATION_EXPIRED,
                f"reservation {name}: expired at {reservation.spec.expires_at}; next: reserve again",
                {"reservation": name, "expiresAt": reservation.spec.expires_at, "now": self._round_state.at},
            )
        if reservation.status.phase is ReservationPhase.NOMINATED:
            return Refused(
                Reason.WAITING,
                f"reservation {name}: waits for the release of {len(reservation.spec.victims)} victims",
                {"reservation": name, "phase": "Nominated", "victims": list(reservation.spec.victims)},
            )
        return None

    def _gang_refusal(self, replica: Replica) -> Refused | None:
        gang = self._round_state.gang(replica)
        if gang is None or gang.committed:
            return None
        return Refused(
            Reason.WAITING_FOR_GANG,
            f"replica {replica.key}: a gang member is bound only with {gang.needed} members of its gang",
            {"replica": str(replica.key), "needed": gang.needed},
        )

    def _step(
        self, item: BindItem, replica: Replica, node: Node, reservation: Reservation, use: VolumeUse
    ) -> CommitStep:
        state, round_state = self._state, self._round_state
        claim = msgspec.structs.replace(
            claim_from_reservation(reservation),
            bound=True,
            node_epoch=state.leases.epoch(node.metadata.name),
            expires_at="",
            victims=(),
            needs_tenure=needs_tenure(replica.spec.exclusive),
            volumes=use.names,
        )
        placed = msgspec.structs.replace(
            replica.status.placement,
            binding=claim.name,
            bound_at=round_state.at,
            decision=self._reserve_job.decision_name or replica.status.placement.decision,
            devices=tuple(device.id for device in claim.devices),
            ports=claim.ports,
        )
        binding = records.binding_put(
            claim,
            replica,
            node,
            item.intent,
            uid=state.ports.ids.uid(),
            created=round_state.created,
            decision=placed.decision,
            policy=reservation.spec.policy_revision,
            fencing_token=fencing_token(assignment_of(state, replica), replica),
            gang_min=gang.needed if (gang := round_state.gang(replica)) is not None else 0,
            annotations=state.trace_annotations(replica),
            volumes=use.bound,
        )
        writes: list[Put | Remove] = [
            records.reservation_change(reservation, ReservationPhase.CONSUMED),
            binding,
            records.replica_put(replica, placed),
        ]
        return make_step(
            "create",
            BINDING,
            binding.attached.metadata,
            PlacementResult(
                result=PlacementOutcome.ACCEPTED,
                node=claim.node,
                devices=claim.devices,
                ports=claim.ports,
                reservation=claim.name,
                binding=claim.name,
                attempt=claim.attempt,
                epoch=claim.attempt,
            ),
            writes,
            compares={
                **use.compares,
                REPLICA.store_key(item.namespace, item.replica): replica.revision,
                RESERVATION.store_key(item.namespace, claim.name): reservation.revision,
                NODE.store_key("", claim.node): node.revision,
            },
            claim=claim,
        )
