"""VolumeClaim: persistent space that a tenant asks for. Volume: the space of one replica, on the node that holds it.

- A VolumeClaim belongs to the global cell. Every replica whose template names it gets a Volume of its own.
- A Volume belongs to a region. The authority creates it in the transaction that binds its replica for the first time,
  and it never moves: its node is immutable.
- A Volume counts against the node's capacity and the tenant's quota (`storage`) until it is deleted, in use or not.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import STORAGE, Amount, BadQuantity, amounts
from holdfast.model.reasons import Reason
from holdfast.model.validation import Causes, check_dns_label, forbidden, invalid, required

# Smallest size of a volume. A file system with a journal needs some space for itself.
VOLUME_BYTES_MIN = 16 * 1024 * 1024


class ReclaimPolicy(enum.StrEnum):
    """What happens to the data when the claim is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class OnRegionLoss(enum.StrEnum):
    """Whether replicas wait for a lost region, which has their data, or start elsewhere with an empty volume."""

    WAIT = "Wait"
    START_EMPTY = "StartEmpty"


class VolumeClaimSpec(ApiStruct, frozen=True):
    """Immutable. `size` is the size of each replica's volume."""

    size: Amount = ""
    reclaim_policy: ReclaimPolicy = visible_default(ReclaimPolicy.RETAIN)
    on_region_loss: OnRegionLoss = visible_default(OnRegionLoss.WAIT)


class DataDeletion(ApiStruct, frozen=True):
    """The order to delete the data of a claim: to every region, for Volumes that were made for the claim with this uid.
    A claim that is missing is no order. `confirmedBy` are the regions that reported that they have no Volume of it."""

    at: str
    confirmed_by: tuple[str, ...] = ()


class VolumeClaimStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    data_deletion: DataDeletion | None = None


class VolumeClaim(Object, frozen=True):
    spec: VolumeClaimSpec = msgspec.field(default_factory=VolumeClaimSpec)
    status: VolumeClaimStatus = msgspec.field(default_factory=VolumeClaimStatus)


class VolumeSpec(ApiStruct, frozen=True):
    """Written once by the authority. Immutable. `recovery`: its quota is the tenant's recovery allowance. `claimUid`:
    the claim that it was made for; another claim of that name cannot order the deletion of the data."""

    claim: str
    workload: str
    replica: str
    node: str
    size: Amount = ""
    reclaim_policy: ReclaimPolicy = visible_default(ReclaimPolicy.RETAIN)
    recovery: bool = False
    claim_uid: str = ""


class DataPhase(enum.StrEnum):
    """State of the data on the node."""

    PRESENT = "Present"
    DELETED = "Deleted"


class VolumeData(ApiStruct, frozen=True):
    """The agent's report. Once the data was present, no empty volume takes its place."""

    phase: DataPhase
    at: str = ""


class VolumeStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    data: VolumeData | None = None


class Volume(Object, frozen=True):
    spec: VolumeSpec
    status: VolumeStatus = msgspec.field(default_factory=VolumeStatus)


class BoundVolume(ApiStruct, frozen=True):
    """A Volume in a Binding. `new`: no agent has reported its data yet, so that the agent may create it."""

    claim: str
    name: str
    uid: str
    size: Amount = ""
    new: bool = False


class HeldVolume(msgspec.Struct, frozen=True):
    """A persistent volume of one replica that exists, and the node that holds its data."""

    name: str
    node: str
    terminating: bool = False


def volume_name(claim: str, replica: str) -> str:
    """Name of the volume of a replica. A replica that is created again under its name finds the data of the former."""
    return f"{claim}.{replica}"


def volume_bytes(size: Amount) -> int:
    """Raises BadQuantity."""
    return amounts({STORAGE: size})[STORAGE]


def is_data_deletion_ordered(claim: VolumeClaim | None, volume: Volume) -> bool:
    """Whether the claim orders the deletion of this volume's data: the claim that it was made for, and no other."""
    if claim is None or claim.status.data_deletion is None or volume.spec.reclaim_policy is not ReclaimPolicy.DELETE:
        return False
    return bool(claim.uid) and claim.uid == volume.spec.claim_uid


def volume_refusal(node: str, held_on: str, *, terminating: bool = False) -> Reason | None:
    """Why a replica whose volume is on `held_on` may not use the node; None if it may. The one rule of the planner and
    the authority."""
    if terminating:
        return Reason.VOLUME_TERMINATING
    return Reason.VOLUME_ON_OTHER_NODE if held_on != node else None


def validate_volume_claim(claim: VolumeClaim, old: VolumeClaim | None) -> Causes:
    yield from check_dns_label("metadata.name", claim.metadata.name)
    if claim.spec.size in ("", None):
        yield required("spec.size", "for example 1Gi")
        return
    try:
        size = volume_bytes(claim.spec.size)
    except BadQuantity as error:
        yield invalid("spec.size", claim.spec.size, str(error))
        return
    if size < VOLUME_BYTES_MIN:
        yield invalid("spec.size", claim.spec.size, "must be at least 16Mi")
    if old is not None and old.spec.size != claim.spec.size:
        yield forbidden(
            "spec.size",
            f"immutable: volumes of {old.spec.size} were made by it; "
            "create another VolumeClaim of the new size, name both in the template and copy the data",
        )
    elif old is not None and old.spec != claim.spec:
        yield forbidden("spec", "immutable, because volumes were made by it; create another VolumeClaim")


def validate_volume(volume: Volume, old: Volume | None) -> Causes:
    if old is not None and old.spec != volume.spec:
        yield forbidden("spec", "immutable; the data stays on its node")
    if old is not None and old.status.data is not None and volume.status.data is None:
        yield forbidden("status.data", "must not be removed")
