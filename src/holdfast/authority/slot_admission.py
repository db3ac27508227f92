"""Recovery places: the authority says which wishes of the `hold` controller are kept, and which claim uses which place.

What always holds: a place counts against its node only after it was checked by the same rule, and booked in the same
ledger, as a claim; so keeping one never races a bind. Which claim draws a place is recorded on the claim's Reservation,
and in the same transaction on the place (`Hold.status.draw`): whoever gives a place up compares its revision, and so
never one that is being drawn. When the claim goes the place says so a moment later.
"""

from __future__ import annotations

import msgspec

from holdfast.authority import records
from holdfast.authority.claims import Claim
from holdfast.authority.commit_rounds import (
    NOTHING,
    BackgroundJob,
    CommitRounds,
    CommitStep,
    SlotBooking,
    make_step,
)
from holdfast.authority.state import HOLD, NODE, AuthorityState
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.node import unschedulable_reason
from holdfast.model.placement_api import PlacementOutcome, PlacementResult
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
    def __init__(self, state: AuthorityState, rounds: CommitRounds, who: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._who = who

    async def admit(self) -> None:
        """Answers every wish that has no answer yet."""
        wishes = [h for h in self._state.list_all(RecoverySlot) if h.status.admission is None and not h.metadata.terminating]
        if wishes:
            chore = BackgroundJob("keep", self._who, wishes[: limits.PLACEMENT_BATCH_MAX], lambda hold: str(hold.uid), self.plan_admission)
            await self._rounds.process(chore)

    def plan_admission(self, wish: RecoverySlot) -> CommitStep | PlacementResult:
        state = self._state
        hold: RecoverySlot | None = state.get(HOLD, "", wish.metadata.name)
        if hold is None or hold.uid != wish.uid or hold.status.admission is not None:
            return NOTHING
        at = micro_text(state.now())
        node = state.node(hold.spec.node)
        wanted = amounts(hold.spec.resources)
        reason, message = "", ""
        if node is None:
            reason, message = Reason.NODE_NOT_FOUND.value, f"node {hold.spec.node} does not exist"
        elif unschedulable_reason(node):
            reason, message = unschedulable_reason(node), f"node {hold.spec.node} takes nothing new"
        else:
            short = state.ledger.account_for(node).slot_shortage(wanted)
            if short:
                named = ", ".join(f"{name} by {text}" for name, text in amounts_text(short).items())
                reason, message = Reason.SLOTS_UNSCHEDULABLE.value, f"node {hold.spec.node} has not enough left: {named}"
        block = SlotAdmissionStatus(admitted=not reason, reason=reason or Reason.SLOT_ADMITTED.value, message=message, at=at)
        step = self._write(hold, msgspec.structs.replace(hold.status, admitted=block))
        if node is not None:
            step.compares[NODE.store_key("", hold.spec.node)] = node.revision
        if not reason:
            step.slot = SlotBooking(hold.spec.node, hold.metadata.name, wanted)
        return step

    async def sync_consumers(self) -> None:
        """Makes each place say which claim uses it now; the claims themselves are the truth."""
        stale = [h for h in self._state.list_all(RecoverySlot) if self._draw(h) != _known(h)]
        if stale:
            chore = BackgroundJob("draw", self._who, stale[: limits.PLACEMENT_BATCH_MAX], lambda hold: str(hold.uid), self.plan_consumer)
            await self._rounds.process(chore)

    def _draw(self, hold: RecoverySlot) -> tuple[str, str]:
        account = self._state.ledger.nodes.get(hold.spec.node)
        if account is None or not is_admitted(hold):
            return "", ""
        found = next((c for c in account.claims.values() if hold.metadata.name in c.recovery_slots), None)
        return (found.replica_uid, found.key) if found is not None else ("", "")

    def plan_consumer(self, seen: RecoverySlot) -> CommitStep | PlacementResult:
        hold: RecoverySlot | None = self._state.get(HOLD, "", seen.metadata.name)
        if hold is None or hold.uid != seen.uid:
            return NOTHING
        uid, claim = self._draw(hold)
        if (uid, claim) == _known(hold):
            return NOTHING
        block = SlotConsumer(replica_uid=uid, claim=claim, at=micro_text(self._state.now())) if uid else None
        return self._write(hold, msgspec.structs.replace(hold.status, consumer=block))

    def _write(self, hold: RecoverySlot, status: RecoverySlotStatus) -> CommitStep:
        put = records.status_put(HOLD, hold, status)
        answer = PlacementResult(result=PlacementOutcome.ACCEPTED, node=hold.spec.node)
        return make_step("update", HOLD, hold.metadata, answer, [put], landed=lambda found: found.status == status)


def consumer_put(hold: RecoverySlot, claim: Claim, at: str) -> Put:
    """The place as it is once the claim draws it."""
    block = SlotConsumer(replica_uid=claim.replica_uid, claim=claim.key, at=at)
    return records.status_put(HOLD, hold, msgspec.structs.replace(hold.status, consumer=block))


def _known(hold: RecoverySlot) -> tuple[str, str]:
    return (hold.status.consumer.replica_uid, hold.status.consumer.claim) if hold.status.consumer is not None else ("", "")
