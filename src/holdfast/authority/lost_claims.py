"""Claims that a replica names and the store does not have: a Binding or Reservation was lost or removed by other means.

The authority removes a claim only together with the replica's placement, so such a replica shows a damaged record. Its
task may still run, and nobody would ever stop it or notice its end.
- A lost Binding is written again as a request to stop. The agent acknowledges the stop, and then `release` frees the
  replica as usual. Nothing is freed without this proof or a fence: the ledger reads the claim from the replica.
- A lost Reservation started nothing, so its replica is freed at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from holdfast.authority.commit_rounds import NOTHING, BackgroundJob, CommitRounds, CommitStep
from holdfast.authority.release import free_step, stop_order_step
from holdfast.authority.state import AuthorityState
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.override import OverrideKind, is_in_scope
from holdfast.model.placement_api import PlacementResult
from holdfast.model.principal import Principal
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.scheduling.last_contact import is_effective_here, last_contact_s

# Lost claims repaired per region and minute. Many at once show a damaged store rather than single records; stopping
# their tasks would make it worse, so the rest waits.
LOST_CLAIMS_PER_MINUTE = 10

_log = structlog.get_logger()


class LostClaims:
    def __init__(self, state: AuthorityState, rounds: CommitRounds, caller: Principal) -> None:
        self._state = state
        self._rounds = rounds
        self._caller = caller
        self._recent_s: list[float] = []
        """Monotonic times of the repairs of the last minute."""

    async def repair(self) -> None:
        """Finds all replicas whose claim is not in the store, and repairs as many as the rate allows."""
        now_s = self._state.ports.clock.monotonic()
        self._recent_s = [at_s for at_s in self._recent_s if now_s - at_s < 60.0]
        found = [replica for replica in self._find() if not self._is_paused(replica)]
        found = found[: LOST_CLAIMS_PER_MINUTE - len(self._recent_s)]
        self._recent_s += [now_s] * len(found)
        for replica in found:
            placed = replica.status.placement
            _log.error("claim_lost", replica=str(replica.key), binding=placed.binding, reservation=placed.reservation)
        if found:
            await self._rounds.process(
                BackgroundJob("repair", self._caller, found, lambda replica: replica.uid, self.plan)
            )

    def _find(self) -> Iterator[Replica]:
        for replica in self._state.list_all(Replica):
            placed = replica.status.placement
            if placed.binding or placed.reservation:
                name = placed.binding or placed.reservation
                if self.is_lost(replica) and not self._rounds.in_flight(f"{replica.metadata.namespace}/{name}"):
                    yield replica

    def _is_paused(self, replica: Replica) -> bool:
        """Whether an override pauses repairs of this replica."""
        state, contact_s = self._state, last_contact_s(list(self._state.list_all(GrantCopy)))
        tenant, workload = replica.metadata.namespace, replica.spec.workload
        return any(
            o.spec.kind is OverrideKind.PAUSE_REPAIR
            and is_effective_here(o, state.now(), contact_s)
            and is_in_scope(o, region=state.region, tenant=tenant, workload=workload)
            for o in state.overrides()
        )

    def is_lost(self, replica: Replica) -> bool:
        placed, namespace = replica.status.placement, replica.metadata.namespace
        if placed.binding:
            return self._state.binding(namespace, placed.binding) is None
        return bool(placed.reservation) and self._state.reservation(namespace, placed.reservation) is None

    def plan(self, seen: Replica) -> CommitStep | PlacementResult:
        replica = self._state.replica(seen.metadata.namespace, seen.metadata.name)
        if replica is None or replica.uid != seen.uid or not self.is_lost(replica):
            return NOTHING
        if replica.status.placement.binding:
            return stop_order_step(self._state, replica)
        return free_step(self._state, replica, None, Reason.CLAIM_LOST.value)
