"""The planner's input: nodes and claims of a region as columns, at one revision."""

from holdfast.flow.snapshot.builder import SnapshotBuilder
from holdfast.flow.snapshot.claim import Claim, ClaimKey, claim_of_binding, claim_of_reservation
from holdfast.flow.snapshot.columns import Column
from holdfast.flow.snapshot.frozen import Bools, Codes, Counts, Snapshot

__all__ = [
    "Bools",
    "Claim",
    "ClaimKey",
    "Codes",
    "Column",
    "Counts",
    "Snapshot",
    "SnapshotBuilder",
    "claim_of_binding",
    "claim_of_reservation",
]
