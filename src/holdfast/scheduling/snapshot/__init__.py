"""The planner's input: nodes and claims of a region as columns, at one revision."""

from holdfast.scheduling.snapshot.builder import SnapshotBuilder
from holdfast.scheduling.snapshot.claim import ClaimKey, SnapshotClaim, claim_of_binding, claim_of_reservation
from holdfast.scheduling.snapshot.columns import InternedColumn
from holdfast.scheduling.snapshot.frozen import Bools, Codes, Counts, Snapshot

__all__ = [
    "Bools",
    "ClaimKey",
    "Codes",
    "Counts",
    "InternedColumn",
    "Snapshot",
    "SnapshotBuilder",
    "SnapshotClaim",
    "claim_of_binding",
    "claim_of_reservation",
]
