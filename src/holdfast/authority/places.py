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
from holdfast.authority.rounds import NOTHING, Chore, Place, Rounds, Step, make_step
from holdfast.authority.state import HOLD, NODE, State
from holdfast.gate.principal import Principal
from holdfast.model import limits
from holdfast.model.hold import DrawBlock, Hold, HoldStatus, KeptBlock, is_kept
from holdfast.model.node import why_not_schedulable
from holdfast.model.placement import Answer, Result
from holdfast.model.quantity import amounts, amounts_text
from holdfast.model.reasons import Reason
from holdfast.model.times import micro_text
from holdfast.store.contract import Put


class Places:
    def __init__(self, state: State, rounds: Rounds, who: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._who = who

    async def keep(self) -> None:
        """Answers every wish that has no answer yet."""
        wishes = [h for h in self._state.every(Hold) if h.status.kept is None and not h.metadata.terminating]
        if wishes:
            chore = Chore("keep", self._who, wishes[: limits.BATCH], lambda hold: str(hold.uid), self.plan_keep)
            await self._rounds.settle(chore)

    def plan_keep(self, wish: Hold) -> Step | Answer:
        state = self._state
        hold: Hold | None = state.get(HOLD, "", wish.metadata.name)
        if hold is None or hold.uid != wish.uid or hold.status.kept is not None:
            return NOTHING
        at = micro_text(state.now())
        node = state.node(hold.spec.node)
        wanted = amounts(hold.spec.resources)
        reason, message = "", ""
        if node is None:
            reason, message = Reason.NODE_GONE.value, f"node {hold.spec.node} does not exist"
        elif why_not_schedulable(node):
            reason, message = why_not_schedulable(node), f"node {hold.spec.node} takes nothing new"
        else:
            short = state.ledger.see(node).place_shortage(wanted)
            if short:
                named = ", ".join(f"{name} by {text}" for name, text in amounts_text(short).items())
                reason, message = Reason.PLACES_MISSING.value, f"node {hold.spec.node} has not enough left: {named}"
        block = KeptBlock(kept=not reason, reason=reason or Reason.PLACE_KEPT.value, message=message, at=at)
        step = self._write(hold, msgspec.structs.replace(hold.status, kept=block))
        if node is not None:
            step.compares[NODE.store_key("", hold.spec.node)] = node.revision
        if not reason:
            step.place = Place(hold.spec.node, hold.metadata.name, wanted)
        return step

    async def follow_draws(self) -> None:
        """Makes each place say which claim uses it now; the claims themselves are the truth."""
        stale = [h for h in self._state.every(Hold) if self._draw(h) != _known(h)]
        if stale:
            chore = Chore("draw", self._who, stale[: limits.BATCH], lambda hold: str(hold.uid), self.plan_draw)
            await self._rounds.settle(chore)

    def _draw(self, hold: Hold) -> tuple[str, str]:
        account = self._state.ledger.nodes.get(hold.spec.node)
        if account is None or not is_kept(hold):
            return "", ""
        found = next((c for c in account.claims.values() if hold.metadata.name in c.holds), None)
        return (found.replica_uid, found.key) if found is not None else ("", "")

    def plan_draw(self, seen: Hold) -> Step | Answer:
        hold: Hold | None = self._state.get(HOLD, "", seen.metadata.name)
        if hold is None or hold.uid != seen.uid:
            return NOTHING
        uid, claim = self._draw(hold)
        if (uid, claim) == _known(hold):
            return NOTHING
        block = DrawBlock(replica_uid=uid, claim=claim, at=micro_text(self._state.now())) if uid else None
        return self._write(hold, msgspec.structs.replace(hold.status, draw=block))

    def _write(self, hold: Hold, status: HoldStatus) -> Step:
        put = records.status_put(HOLD, hold, status)
        answer = Answer(result=Result.ACCEPTED, node=hold.spec.node)
        return make_step("update", HOLD, hold.metadata, answer, [put], landed=lambda found: found.status == status)


def drawn_put(hold: Hold, claim: Claim, at: str) -> Put:
    """The place as it is once the claim draws it."""
    block = DrawBlock(replica_uid=claim.replica_uid, claim=claim.key, at=at)
    return records.status_put(HOLD, hold, msgspec.structs.replace(hold.status, draw=block))


def _known(hold: Hold) -> tuple[str, str]:
    return (hold.status.draw.replica_uid, hold.status.draw.claim) if hold.status.draw is not None else ("", "")
