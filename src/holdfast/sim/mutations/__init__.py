"""Mutations of production code, to test that the simulation catches bugs.

Each mutation removes one defence or makes a typical mistake. If a second defence would hide the mistake, the mutation
removes both. Production code does not know about mutations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.sim.mutations.amnesia_mutations import TABLE as FORGETTING
from holdfast.sim.mutations.array_mutations import TABLE as INDEXING
from holdfast.sim.mutations.cron_mutations import TABLE as TIMING
from holdfast.sim.mutations.decision_mutations import TABLE as DECIDING
from holdfast.sim.mutations.decoding_mutations import TABLE as READING
from holdfast.sim.mutations.lease_mutations import TABLE as LEASE
from holdfast.sim.mutations.maintenance_mutations import TABLE as MAINTAINING
from holdfast.sim.mutations.patch import Mutation, Patch
from holdfast.sim.mutations.placement_mutations import TABLE as PLACING
from holdfast.sim.mutations.quota_mutations import TABLE as SHARING
from holdfast.sim.mutations.retry_mutations import TABLE as HANDLING
from holdfast.sim.mutations.status_mutations import TABLE as TELLING
from holdfast.sim.mutations.volume_mutations import TABLE as KEEPING

__all__ = ["CATALOGUE", "MUTATIONS", "Mutation", "Patch", "applied_mutation", "find_mutation"]

MUTATIONS: tuple[Mutation, ...] = (
    *PLACING,
    *LEASE,
    *SHARING,
    *TELLING,
    *HANDLING,
    *DECIDING,
    *READING,
    *FORGETTING,
    *TIMING,
    *INDEXING,
    *MAINTAINING,
    *KEEPING,
)

CATALOGUE = (
    "residency ignored on reassignment",
    "repair trusts a missed heartbeat",
    'watch resumes at "now"',
    "compaction ignored",
    "quota left out of the transaction",
    "ledger left out of the transaction",
    "wake-up lost on quota release",
    "no watchdog for exclusive work",
    "watchdog deadline later than the lease",
    "deadline counted from the reply, not the request",
    "start uses a fresh deadline of its own",
    "non-idempotent release",
    "bind retried blindly after a timeout",
    "fencing token not checked",
    "drain does not wait for the stop",
    "release by name, not identity",
    "stale observedGeneration overwrite",
    "uid reuse on recreate",
    "finalizer removed early",
    "override TTL by the client's clock",
    "autoscaler ignores pending reasons",
    "quota leaked on a rejected reserve",
    "list from a lagging member after restart",
    "unbounded retry",
    "policy revision read twice within one decision",
    "status write touches spec",
    "watch crosses tenants",
    "audit written after commit",
    "lease revoked in a finally",
    "recovery slot consumed twice",
    "grant shrunk without acknowledgement",
    "reclaimable work evicted without a node for the preemptor",
    "an empty global cell is believed",
    "an empty regional cell is believed",
    "affinity not checked at the commit",
    "taints not checked at the commit",
    "eviction by a taint outside the budgeted path",
    "a lost record is not noticed",
)
"""Mistakes that the mutations must cover, each with at least one mutation."""


def find_mutation(name: str) -> Mutation:
    for mutation in MUTATIONS:
        if mutation.name == name:
            return mutation
    raise LookupError(f"mutation {name}: not found (expected one of {', '.join(m.name for m in MUTATIONS)})")


@contextmanager
def applied_mutation(name: str) -> Iterator[Patch]:
    """Applies the mutation inside the block."""
    patch = Patch()
    try:
        find_mutation(name).apply(patch)
        yield patch
    finally:
        patch.undo()
