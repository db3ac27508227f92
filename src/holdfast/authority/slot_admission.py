"""Admission of recovery slots: the authority admits or refuses each requested RecoverySlot and records its consumer.

- A slot counts against its node only after the same check, in the same ledger, as a claim. It never races a bind.
- The consuming claim is recorded on the Reservation and on the slot in one transaction. Deletes compare the slot's
  revision, so a consumed slot is never deleted. After the claim ends, the slot is marked free asynchronously.
"""

from __future__ import annotations

import msgspec

from holdfast.authority import records
from holdfast.authority.claims import Claim
from holdfast.authority.commit_rounds import NOTHING, BackgroundJob, CommitRounds, CommitStep, SlotBooking, make_step
from holdfast.authority.state import HOLD, NODE, AuthorityState
from holdfast.model import limits
from holdfast.model.meta import Condition, with_condition
from holdfast.model.node import unschedulable_reason
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
from holdfast.model.principal import Principal
from holdfast.model.quantity import amounts, amounts_text
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import (
    RecoverySlot,
    RecoverySlotStatus,
    SlotAdmissionStatus,
    SlotConsumer,
    is_admitted,
)
from holdfast.model.times import micro_text
from holdfast.store.contract import Put


class RecoverySlotAdmission:
    def __init__(self, state: AuthorityState, rounds: CommitRounds, caller: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._caller = caller

    async def admit(self) -> None:
        """Admits or refuses every RecoverySlot that has no admission status yet."""
        requested_slots = [
            h for h in self._state.list_all(RecoverySlot) if h.status.admission is None and not h.metadata.terminating
        ]
        if requested_slots:
            job = BackgroundJob(
                "keep",
                self._caller,
                requested_slots[: limits.PLACEMENT_BATCH_MAX],
                lambda slot: str(slot.uid),
                self.plan_admission,
            )
            await self._rounds.process(job)

    def plan_admission(self, requested: RecoverySlot) -> CommitStep | PlacementResult:
        state = self._state
        slot: RecoverySlot | None = state.get(HOLD, "", requested.metadata.name)
        if slot is None or slot.uid != requested.uid or slot.status.admission is not None:
            return NOTHING
        at = micro_text(state.now())
        node = state.node(slot.spec.node)
        amounts_requested = amounts(slot.spec.resources)
        reason, message = "", ""
        if node is None:
            reason, message = Reason.NODE_NOT_FOUND.value, f"node {slot.spec.node}: not found"
        elif unschedulable_reason(node):
            reason, message = unschedulable_reason(node), f"node {slot.spec.node}: not schedulable"
        else:
            missing = state.ledger.account_for(node).slot_shortage(amounts_requested)
            if missing:
                named = ", ".join(f"{name} by {text}" for name, text in amounts_text(missing).items())
                reason = Reason.SLOTS_UNSCHEDULABLE.value
                message = f"node {slot.spec.node}: insufficient resources (missing {named})"
        block = SlotAdmissionStatus(
            admitted=not reason, reason=reason or Reason.SLOT_ADMITTED.value, message=message, at=at
        )
        generation = slot.metadata.generation
        condition = Condition(
            type="Admitted",
            status="True" if block.admitted else "False",
            reason=block.reason,
            message=message,
            observed_generation=generation,
        )
        status = msgspec.structs.replace(
            slot.status,
            observed_generation=generation,
            conditions=with_condition(slot.status.conditions, condition, at),
            admission=block,
        )
        step = self._write(slot, status)
        if node is not None:
            step.compares[NODE.store_key("", slot.spec.node)] = node.revision
        if not reason:
            step.slot = SlotBooking(slot.spec.node, slot.metadata.name, amounts_requested)
        return step

    async def sync_consumers(self) -> None:
        """Writes the consuming claim to each slot whose status is stale. The claims are authoritative."""
        stale_slots = [h for h in self._state.list_all(RecoverySlot) if self._consumer_of(h) != _recorded_consumer(h)]
        if stale_slots:
            job = BackgroundJob(
                "draw",
                self._caller,
                stale_slots[: limits.PLACEMENT_BATCH_MAX],
                lambda slot: str(slot.uid),
                self.plan_consumer,
            )
            await self._rounds.process(job)

    def _consumer_of(self, slot: RecoverySlot) -> tuple[str, str]:
        account = self._state.ledger.nodes.get(slot.spec.node)
        if account is None or not is_admitted(slot):
            return "", ""
        found = next((c for c in account.claims.values() if slot.metadata.name in c.recovery_slots), None)
        return (found.replica_uid, found.key) if found is not None else ("", "")

    def plan_consumer(self, stale_slot: RecoverySlot) -> CommitStep | PlacementResult:
        slot: RecoverySlot | None = self._state.get(HOLD, "", stale_slot.metadata.name)
        if slot is None or slot.uid != stale_slot.uid:
            return NOTHING
        uid, claim = self._consumer_of(slot)
        if (uid, claim) == _recorded_consumer(slot):
            return NOTHING
        block = SlotConsumer(replica_uid=uid, claim=claim, at=micro_text(self._state.now())) if uid else None
        return self._write(slot, msgspec.structs.replace(slot.status, consumer=block))

    def _write(self, slot: RecoverySlot, status: RecoverySlotStatus) -> CommitStep:
        put = records.status_put(HOLD, slot, status)
        answer = PlacementResult(result=PlacementOutcome.ACCEPTED, node=slot.spec.node)
        return make_step("update", HOLD, slot.metadata, answer, [put], landed=lambda found: found.status == status)


def consumer_put(slot: RecoverySlot, claim: Claim, at: str) -> Put:
    """The write that marks the slot as consumed by the claim."""
    block = SlotConsumer(replica_uid=claim.replica_uid, claim=claim.key, at=at)
    return records.status_put(HOLD, slot, msgspec.structs.replace(slot.status, consumer=block))


def _recorded_consumer(slot: RecoverySlot) -> tuple[str, str]:
    return (
        (slot.status.consumer.replica_uid, slot.status.consumer.claim) if slot.status.consumer is not None else ("", "")
    )
